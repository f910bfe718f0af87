"""Published models by name, from the Hugging Face Hub or its cache on this machine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from pe_jax.common.errors import did_you_mean
from pe_jax.interop.refusals import ADAPTER
from pe_jax.interop.sentence_files import (
    MODULES,
    PROMPTS,
    TOKENIZERS,
    TRANSFORMER_SETTINGS,
    read_modules,
    transformer_folder,
)
from pe_jax.interop.tokenizer_config import ADDED_TOKENS, CONFIG, NAMES_MAP

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# Of a module's folder. Shards are named by the index, which is among them.
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
)
# The settings of an adapter too, so that it is refused by name.
_FILES = ("config.json", ADAPTER, *TOKENIZERS, CONFIG, NAMES_MAP, ADDED_TOKENS)
_PICKLE = "pytorch_model.bin"


def local_folder(path: str | Path) -> Path:
    """Return a path as it is, or the folder of a model of the Hub, downloaded if necessary.

    A text such as "sentence-transformers/all-mpnet-base-v2" is the name of a model of the Hub if
    there is no such file or folder here. A `Path`, and a text that begins with `.`, `/` or `~` or
    ends with `/`, is always a path; `~` is the home folder. Only config.json, tokenizer,
    safetensors and the files of sentence-transformers are downloaded, into the cache of
    huggingface_hub.

    Raises:
      ValueError: if the model is neither in the cache nor can be downloaded, has its weights only
        in a pickle, or a modules.json that is not supported; or huggingface_hub is not installed.
    """
    given = Path(path).expanduser()
    if isinstance(path, Path) or given.exists() or not _is_name(path):
        return given
    try:  # The package imports its modules only by name.
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ModuleNotFoundError as error:
        raise ValueError(
            f"No checkpoint at {path}. If it is a model of the Hugging Face Hub, install "
            "huggingface_hub, the extra 'hub', to load it by name."
        ) from error
    # Which folders have the modules decides what to download.
    folder = _download(huggingface_hub, path, [MODULES])
    patterns = _patterns(folder)
    folder = _download(huggingface_hub, path, patterns)
    places = {folder, transformer_folder(folder)}
    if not any(_has_weights(place) for place in places):
        raise _no_weights(huggingface_hub, path, folder, patterns)
    return folder


def _is_name(text: str) -> bool:
    """Return whether a text can be the name of a model, and not a file of weights."""
    is_file = text.endswith((".safetensors", ".bin", ".pt", ".json", ".txt"))
    return bool(_NAME.fullmatch(text)) and not is_file


def _download(hub: Any, name: str, patterns: list[str]) -> Path:
    """Return the folder of a model in the cache, with the files of some patterns."""
    try:
        return Path(hub.snapshot_download(name, allow_patterns=patterns))
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        # Without a connection, whatever is in the cache has to do.
        try:
            folder = hub.snapshot_download(
                name, allow_patterns=patterns, local_files_only=True
            )
            return Path(folder)
        except (OSError, ValueError):
            raise ValueError(_unreachable(hub, name, error)) from error


def _unreachable(hub: Any, name: str, error: BaseException) -> str:
    reason = str(error).strip().partition("\n")[0]
    reason = f"{type(error).__name__}: {reason}"
    lines = [
        f"{name} is no file or folder in {Path.cwd()}.{_folder_hint(name)} If you mean a folder, "
        "give its path.",
        f"If you mean a model of the Hugging Face Hub: it is neither in the cache "
        f"{hub.constants.HF_HUB_CACHE} nor can it be downloaded ({reason}).",
    ]
    if "/" not in name:
        lines.append(
            f"Names of models there have an owner, as in 'google-bert/bert-base-uncased': "
            f"'OWNER/{name}'."
        )
    folder = name.rpartition("/")[2]
    lines.append(
        "Check the name. Where the Hub can be reached, download the model, copy the folder here, "
        "and load the folder:"
    )
    return f"{' '.join(lines)}\n  {_command(name, _patterns(Path()), folder)}"


def _folder_hint(name: str) -> str:
    """Return close matches of a name among the folders where it would be."""
    parent = Path(name).parent
    if not parent.is_dir():
        return ""
    folders = [str(entry) for entry in parent.iterdir() if entry.is_dir()]
    return did_you_mean(name, folders)


def _command(name: str, patterns: list[str], folder: str) -> str:
    """Return a shell command that downloads the files of some patterns."""
    include = [argument for pattern in patterns for argument in ("--include", pattern)]
    return shlex.join(["hf", "download", name, "--local-dir", folder, *include])


def _patterns(folder: Path) -> list[str]:
    """Return patterns of the files that are read of a model, by the modules.json in `folder`.

    Without it, the folders of modules are those of their usual names.
    """
    files = [*_FILES, *TRANSFORMER_SETTINGS, *_WEIGHTS]
    patterns = [MODULES, PROMPTS, *files]
    modules = read_modules(folder)
    if not modules:
        return [*patterns, "[0-9]_*/config.json", "[0-9]_*/model.safetensors"]
    for module in modules:
        if module["path"]:
            patterns += [f"{module['path']}/{name}" for name in files]
    return patterns


def _has_weights(folder: Path) -> bool:
    return (folder / ADAPTER).is_file() or any(
        (folder / name).is_file() for name in _WEIGHTS[:2]
    )


def _no_weights(hub: Any, name: str, folder: Path, patterns: list[str]) -> ValueError:
    """Return the error for a model without safetensors here: of a pickle, or of missing files."""
    try:
        files = hub.list_repo_files(name)
    except (OSError, ValueError, hub.errors.HfHubHTTPError):
        files = [file.name for file in folder.rglob("*")]
    if any(file.endswith(_PICKLE) for file in files):
        return ValueError(
            f"{name} has its weights only in a pickle ({_PICKLE}), which can run arbitrary code "
            "when loaded and is not opened. If you trust its source, convert it: "
            f"https://huggingface.co/spaces/safetensors/convert does so on the Hub. Or download it "
            "and load the folder, which prints a command that converts it here:\n"
            f"  {_command(name, [*patterns, _PICKLE], name.rpartition('/')[2])}"
        )
    return ValueError(
        f"The cache folder of {name} ({folder}) has no model.safetensors. Where the Hub can be "
        f"reached, download it, and load the folder:\n"
        f"  {_command(name, patterns, name.rpartition('/')[2])}"
    )
