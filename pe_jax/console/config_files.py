"""Where `--config` finds its file, and what the file says of its keys."""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict, config_flags

from pe_jax.errors import did_you_mean
from pe_jax.schema import class_for, fields_of, flatten

SHIPPED = Path(__file__).resolve().parent.parent / "configs"


def shipped() -> dict[str, Path]:
    """The package's own configs, by name."""
    files = (path for path in sorted(SHIPPED.glob("*.py")) if "def get_config" in path.read_text())
    return {path.stem: path for path in files}


def find_config(given: str) -> str:
    """The file that `--config=given` means: the one that is there, else the package's own, whose
    name may be given alone: `configs/glue.py` and `glue` mean the same from any folder.

    Raises:
      ValueError: if there is neither.
    """
    if Path(given).is_file():
        return given
    own, path = shipped(), Path(given)
    if path.stem in own and path in (Path(path.stem), Path(f"configs/{path.stem}.py")):
        return str(own[path.stem])
    hint = did_you_mean(path.stem, own) or f" Ours are {', '.join(own)}."
    raise ValueError(f"there is no file {given}.{hint}")


class _Found(flags.ArgumentParser):
    """A flag's own parser of a path, on the file that is found."""

    def __init__(self, inner: flags.ArgumentParser):
        self._inner = inner

    def parse(self, argument: str) -> ConfigDict:
        return self._inner.parse(find_config(argument))

    def flag_type(self) -> str:
        return self._inner.flag_type()


def define_config(flag_values: flags.FlagValues, what: str) -> flags.FlagHolder:
    """The flag `--config`, whose keys `--config.KEY=VALUE` sets."""
    holder = config_flags.DEFINE_config_file("config", None, what, flag_values)
    flag_values["config"].parser = _Found(flag_values["config"].parser)
    return holder


def described_keys(given: str) -> Iterator[tuple[str, object, str]]:
    """Key, value and description of everything in a config: a comment of its file, or else what
    the class of the config says."""
    from pe_jax.configs.all_tasks import CONFIGS

    get_config = runpy.run_path(find_config(given))["get_config"]
    values = get_config()
    task = values.get("task")
    known = {}
    if task in {name for config in CONFIGS for name in config.TASKS}:
        known = dict(fields_of(class_for(task, CONFIGS)))
    comments = _comments(get_config)
    for key, value in flatten(values.to_dict()).items():
        described = known[key].metadata["description"] if key in known else ""
        yield key, value, comments.get(key, described)


def _comments(function: Callable[[], ConfigDict]) -> dict[str, str]:
    """The comments on lines `config.KEY = ...` of a function, by dotted key."""
    comments: dict[str, str] = {}
    above = ""
    for line in inspect.getsource(function).splitlines():
        code, _, comment = line.partition("# ")
        if not code.strip():
            above = f"{above} {comment}"
        elif match := re.match(r"\s+config\.([\w.]+) = ", code):
            if text := f"{above} {comment}".strip():
                comments[match[1]] = text
            above = ""
        else:
            above = ""
    return comments
