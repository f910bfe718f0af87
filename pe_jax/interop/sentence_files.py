"""How a published folder turns texts into vectors or scores: the files of sentence-transformers.

`modules.json` lists the modules, and the folders of the modules have their settings. Everything is
read as data: a module is recognised by the name of its class, and no class is imported.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer, normalizers

from pe_jax.common.errors import did_you_mean
from pe_jax.common.files import Json, parse_json
from pe_jax.common.values import shown
from pe_jax.encodings import Params
from pe_jax.interop.checkpoint_files import open_checkpoint
from pe_jax.interop.export_folder import with_special_tokens
from pe_jax.interop.tokenizer import load_tokenizer
from pe_jax.interop.tokenizer_config import CONFIG, read_object

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
# The settings of the module `Transformer`; the first that exists is read, as by its authors.
TRANSFORMER_SETTINGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
TOKENIZERS = ("tokenizer.json", "vocab.txt")  # The first is preferred.
# The names of poolings in older files, in the order in which several are concatenated.
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
POOLINGS = tuple(_POOLING_FLAGS.values())
# The last part of the name of a class of torch: ours.
_ACTIVATIONS = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
    "SiLU": "silu",
}
_ON_VECTORS = "sentence_embedding"  # What the modules after the pooling read and write.
_SECTION = "sentence_transformers"  # Of config.json, in folders of a CrossEncoder.
_CONVERT = (
    "Load the model with sentence-transformers and save it again with save_pretrained, which "
    "writes safetensors."
)


class Step(NamedTuple):
    """A module after the pooling.

    Attributes:
      kind: "normalize", "dense" or "layer_norm".
      activation: of "dense", a name in `pe_jax.interop.sentence_vectors.ACTIVATIONS`.
      has_residual: whether a dense layer adds its input to its output.
    """

    kind: str
    activation: str = "identity"
    has_residual: bool = False


class SentenceSettings(NamedTuple):
    """What the files of a folder say about texts, vectors and scores.

    Attributes:
      max_length: of an input in tokens; None where no file has it.
      has_token_types: whether the model is given the token types of a pair.
      pooling: modes of `POOLINGS`, whose results are concatenated; empty without modules.json.
      include_prompt: whether the tokens of the prompt are pooled.
      steps: the modules after the pooling.
      weights: the parameters of each step, float32; {} for a step without any.
      prompts: by name.
      default_prompt_name: the prompt of a call that names none; None for no prompt.
      dimensions: the number of dimensions that are kept of a vector; None for all.
      score_activation: what turns logits into scores; "" where no file has it.
    """

    max_length: int | None
    has_token_types: bool
    pooling: tuple[str, ...]
    include_prompt: bool
    steps: tuple[Step, ...]
    weights: tuple[Params, ...]
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    dimensions: int | None
    score_activation: str


class EncoderFolder:
    """The folder of a published encoder, whose tokenizer and settings are read when first used.

    Two of them are equal if their paths are.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tokenizers: dict[int | None, Tokenizer] = {}

    def __repr__(self) -> str:
        return f"EncoderFolder({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EncoderFolder) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @functools.cached_property
    def settings(self) -> SentenceSettings:
        """The content of the files of sentence-transformers; see `read_settings`."""
        return read_settings(self.path)

    def tokenizer(self, max_length: int | None = None) -> Tokenizer:
        """Return the tokenizer, which puts special tokens around a text and cuts long ones.

        Raises:
          ValueError: if the folder has no tokenizer, or one that `load_tokenizer` refuses.
        """
        if max_length not in self._tokenizers:
            tokenizer = self._whole_texts
            if max_length is not None:
                tokenizer = Tokenizer.from_str(tokenizer.to_str())
                tokenizer.enable_truncation(max_length, direction=self._cut_side)
            self._tokenizers[max_length] = tokenizer
        return self._tokenizers[max_length]

    @functools.cached_property
    def _whole_texts(self) -> Tokenizer:
        folder = transformer_folder(self.path)
        files = [folder / name for name in TOKENIZERS if (folder / name).is_file()]
        if not files:
            raise ValueError(
                f"{folder} has no {' or '.join(TOKENIZERS)}, so texts cannot be encoded. Download "
                "the tokenizer of the model into that folder."
            )
        tokenizer = with_special_tokens(load_tokenizer(files[0]))
        if _transformer_settings(folder).get("do_lower_case") is True:
            lower = [normalizers.Lowercase()]
            if tokenizer.normalizer is not None:
                lower.append(tokenizer.normalizer)
            tokenizer.normalizer = normalizers.Sequence(lower)
        return tokenizer

    @property
    def _cut_side(self) -> str:
        config = read_object(transformer_folder(self.path) / CONFIG)
        return "left" if config.get("truncation_side") == "left" else "right"


def transformer_folder(folder: Path) -> Path:
    """Return the folder with config.json and the tensors: old models have them in `0_Transformer`.

    Raises:
      ValueError: for a modules.json that `read_modules` refuses.
    """
    modules = read_modules(folder)
    if not modules or (folder / "config.json").is_file():
        return folder
    return folder / modules[0]["path"]


def read_settings(folder: Path) -> SentenceSettings:
    """Return what the files in `folder` say about texts, vectors and scores.

    Raises:
      ValueError: for a module, a pooling or an activation that is not supported, named by the file
        and its value; for weights in a pickle; and for a damaged file.
    """
    transformer = transformer_folder(folder)
    config = read_object(transformer / "config.json")
    tokenizer_config = read_object(transformer / CONFIG)
    inputs = tokenizer_config.get("model_input_names") or ["token_type_ids"]
    general = read_object(folder / PROMPTS)
    modules = _after_transformer(folder)
    longest = _max_length(_transformer_settings(transformer), tokenizer_config, config)
    return SentenceSettings(
        max_length=longest,
        has_token_types="token_type_ids" in inputs,
        pooling=modules.pooling,
        include_prompt=modules.include_prompt,
        steps=tuple(modules.steps),
        weights=tuple(modules.weights),
        prompts=_prompts(folder / PROMPTS, general),
        default_prompt_name=general.get("default_prompt_name"),
        dimensions=_whole_number(general.get("truncate_dim")),
        score_activation=_score_activation(folder, config, general),
    )


class _Modules(NamedTuple):
    """The modules after the first; see `SentenceSettings`."""

    pooling: tuple[str, ...]
    include_prompt: bool
    steps: list[Step]
    weights: list[Params]


def _after_transformer(folder: Path) -> _Modules:
    """Return the modules after the first.

    Raises:
      ValueError: for a module, a pooling or an activation that is not supported.
    """
    result = _Modules((), True, [], [])
    for module in read_modules(folder)[1:]:
        kind = module["type"].rpartition(".")[2]
        path = folder / module["path"]
        file = path / "config.json"
        values = read_object(file)
        if kind == "Pooling" and not result.pooling:
            result = result._replace(
                pooling=_pooling(file, values),
                include_prompt=values.get("include_prompt") is not False,
            )
        elif kind in _READ_STEP and result.pooling:
            _check_place(file, kind, values)
            step, weights = _READ_STEP[kind](path, values)
            result.steps.append(step)
            result.weights.append(weights)
        elif kind != "Dropout":  # Which does nothing outside of training.
            raise ValueError(
                f"{folder / MODULES} has a module {module['type']!r} at a place where encode does "
                "not support it. Supported are Transformer, then Pooling, then any of Normalize, "
                "Dense and LayerNorm. For hidden states, use pe_jax.models.hidden_states."
            )
    return result


def _transformer_settings(folder: Path) -> Json:
    """Return the settings of the module `Transformer`; empty if there are none."""
    for name in TRANSFORMER_SETTINGS:
        if settings := read_object(folder / name):
            return settings
    return {}


def read_modules(folder: Path) -> list[dict[str, str]]:
    """Return the modules of a folder: their `type` and `path`; empty without modules.json.

    Raises:
      ValueError: if the file is damaged, names code that is not of sentence-transformers, or a
        path outside of the folder.
    """
    file = folder / MODULES
    if not file.is_file():
        return []
    try:
        modules = parse_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}). Download it again.") from error
    is_list = isinstance(modules, list) and bool(modules)
    listed: list[Any] = modules if is_list else [None]
    for module in listed:
        kinds = [
            isinstance(module, dict) and module.get(key) for key in ("type", "path")
        ]
        if not all(isinstance(kind, str) for kind in kinds):
            raise ValueError(
                f"{file} must be a list of modules, each with a type and a path, got "
                f"{shown(modules)}. Download it again."
            )
        if not module["type"].startswith("sentence_transformers."):
            raise ValueError(
                f"{file} names the class {module['type']!r}, whose code comes with the model. "
                "Such code is never run. If the class computes what Transformer of "
                "sentence-transformers does, write 'sentence_transformers.models.Transformer' "
                "there."
            )
        path = Path(module["path"])
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(
                f"{file} lists {module['path']!r}, which is outside of the folder. Download it "
                "again."
            )
    if not modules[0]["type"].endswith(".Transformer"):
        raise ValueError(
            f"{file} begins with a module {modules[0]['type']!r}, not with a Transformer: it is "
            "not an encoder that pe_jax can load."
        )
    return modules


def _pooling(file: Path, values: Json) -> tuple[str, ...]:
    """Return the modes of a module `Pooling`.

    Raises:
      ValueError: for a mode that is not in `POOLINGS`.
    """
    modes = values.get("pooling_mode")
    if modes is None:
        flags = {
            key
            for key, is_on in values.items()
            if key.startswith("pooling_mode_") and is_on
        }
        modes = [mode for flag, mode in _POOLING_FLAGS.items() if flag in flags]
        modes += sorted(flags - _POOLING_FLAGS.keys())  # Refused below.
    modes = [modes] if isinstance(modes, str) else modes or ["mean"]
    for mode in modes:
        check_pooling(mode, f"{file}: ")
    return tuple(modes)


def check_pooling(mode: object, where: str = "") -> None:
    """Raise a ValueError for a name that is not in `POOLINGS`."""
    if mode not in POOLINGS:
        hint = did_you_mean(str(mode), POOLINGS)
        raise ValueError(
            f"{where}pooling must be one of {', '.join(POOLINGS)}, got {shown(mode)}.{hint}"
        )


def _check_place(file: Path, kind: str, values: Json) -> None:
    """Raise a ValueError for a module that reads or writes anything but the pooled vector."""
    for key in ("module_input_name", "module_output_name"):
        if values.get(key) not in (None, _ON_VECTORS):
            raise ValueError(
                f"{file}: {key} of {kind} must be {_ON_VECTORS!r}, got {shown(values[key])}. "
                "Models with a vector for each token or with a head of their own for scores are "
                "not supported."
            )


def _dense(folder: Path, values: Json) -> tuple[Step, Params]:
    file = folder / "config.json"
    activation = _activation(
        values.get("activation_function", "torch.nn.modules.activation.Tanh"),
        f"{file}: activation_function",
    )
    has_residual = values.get("use_residual") is True
    tensors = _tensors(folder)
    expected = {"linear.weight": 2}
    if values.get("bias", True):
        expected["linear.bias"] = 1
    if has_residual and values.get("in_features") != values.get("out_features"):
        expected["residual.weight"] = 2
    _check_tensors(folder, tensors, expected)
    return Step("dense", activation, has_residual), tensors


def _layer_norm(folder: Path, values: Json) -> tuple[Step, Params]:
    tensors = _tensors(folder)
    _check_tensors(folder, tensors, {"norm.weight": 1, "norm.bias": 1})
    return Step("layer_norm"), tensors


def _normalize(folder: Path, values: Json) -> tuple[Step, Params]:
    return Step("normalize"), {}


_READ_STEP = {"Dense": _dense, "LayerNorm": _layer_norm, "Normalize": _normalize}


def _tensors(folder: Path) -> Params:
    """Return the tensors of a module, float32.

    Raises:
      ValueError: if there are none, or only in a pickle.
    """
    if not (folder / "model.safetensors").is_file():
        has_pickle = (folder / "pytorch_model.bin").is_file()
        what = "only a pickle, which is never opened" if has_pickle else "no weights"
        raise ValueError(f"{folder} has {what}. {_CONVERT}")
    checkpoint = open_checkpoint(folder / "model.safetensors")
    return {
        name: jnp.asarray(checkpoint.read(name), jnp.float32)
        for name in checkpoint.names
    }


def _check_tensors(folder: Path, tensors: Params, expected: Mapping[str, int]) -> None:
    axes = {name: np.ndim(tensor) for name, tensor in tensors.items()}
    if axes != dict(expected):
        raise ValueError(
            f"{folder / 'model.safetensors'} must have the tensors {', '.join(expected)}, as its "
            f"config.json says, got {', '.join(tensors) or 'none'}. Download both again."
        )


def _activation(name: object, where: str) -> str:
    """Return our name of an activation.

    Raises:
      ValueError: for one that is not in torch, or not supported.
    """
    package, _, last = str(name).rpartition(".")
    if package.partition(".")[0] != "torch" or last not in _ACTIVATIONS:
        known = ", ".join(f"torch.nn.{known}" for known in _ACTIVATIONS)
        raise ValueError(f"{where} must be one of {known}, got {shown(name)}.")
    return _ACTIVATIONS[last]


def _score_activation(folder: Path, config: Json, general: Json) -> str:
    """Return what turns the logits of a CrossEncoder into scores; "" where no file says it."""
    section = config.get(_SECTION)
    own = section.get("activation_fn") if isinstance(section, dict) else None
    named = [
        (PROMPTS, general.get("activation_fn")),
        ("config.json", own),
        ("config.json", config.get("sbert_ce_default_activation_function")),
    ]
    for file, name in named:
        if name is not None:
            return _activation(name, f"{folder / file}: the activation of scores")
    return ""


def _max_length(settings: Json, tokenizer_config: Json, config: Json) -> int | None:
    """Return the longest input in tokens: of the module, else of the tokenizer and the model."""
    processor: Any = (
        settings.get("processor_kwargs") or settings.get("tokenizer_args") or {}
    )
    own = _whole_number(processor.get("model_max_length"))
    own = own or _whole_number(settings.get("max_seq_length"))
    if own is not None:
        return own
    # A tokenizer without a limit has 10^30.
    lengths = [
        _whole_number(tokenizer_config.get("model_max_length")),
        _whole_number(config.get("max_position_embeddings")),
    ]
    return min((length for length in lengths if length is not None), default=None)


def _whole_number(value: object) -> int | None:
    """Return a positive whole number below 10^9, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 < value < 10**9 or value != int(value):
        return None
    return int(value)


def _prompts(file: Path, general: Json) -> dict[str, str]:
    prompts = general.get("prompts") or {}
    texts = prompts.values() if isinstance(prompts, dict) else [prompts]
    if not all(isinstance(text, str | None) for text in texts):
        raise ValueError(
            f"{file}: prompts must be texts by name, got {shown(prompts)}. Download it again."
        )
    default = general.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ValueError(
            f"{file}: default_prompt_name {shown(default)} is none of its prompts: "
            f"{', '.join(prompts) or 'there are none'}. Download it again."
        )
    return {name: text or "" for name, text in prompts.items()}
