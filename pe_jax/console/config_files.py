"""The flag `--config`: search for the file, and descriptions of the keys for `--help`."""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict, config_flags

from pe_jax.configs.all_tasks import CONFIGS
from pe_jax.errors import did_you_mean
from pe_jax.schema import Classes, Config, class_for, classes_by_task, fields_of, flatten

SHIPPED = Path(__file__).resolve().parent.parent / "configs"


def shipped() -> dict[str, Path]:
    """Return the files of the shipped configs by name."""
    files = (
        path for path in sorted(SHIPPED.glob("*.py")) if "def get_config" in path.read_text("utf-8")
    )
    return {path.stem: path for path in files}


def find_config(given: str) -> str:
    """Return the file that `--config=given` means: a name is a shipped config, a path is a file.

    A path has a `/` or ends in `.py`. `configs/glue.py` means the shipped config where there is no
    such file.

    Raises:
      ValueError: if there is neither.
    """
    configs, path = shipped(), Path(given)
    is_path = "/" in given or path.suffix == ".py"
    if is_path and path.is_file():
        return given
    if path.stem in configs and path in (Path(path.stem), Path(f"configs/{path.stem}.py")):
        return str(configs[path.stem])
    hint = did_you_mean(path.stem, configs) or f" Shipped: {', '.join(configs)}."
    if not is_path and path.is_file():
        hint = f" For the file in this folder, give ./{given}."
    raise ValueError(f"there is no {'file' if is_path else 'config'} {given}.{hint}")


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


def described_keys(
    given: str, classes: Classes[Config] = CONFIGS
) -> Iterator[tuple[str, object, str]]:
    """Yield key, value and description of everything in a config.

    A comment of the file takes precedence over the description in the class of the config.
    """
    get_config = runpy.run_path(find_config(given))["get_config"]
    values = get_config()
    task = values.get("task")
    known = task in classes_by_task(classes)
    fields = dict(fields_of(class_for(task, classes))) if known else {}
    comments = _comments(get_config)
    for key, value in flatten(values.to_dict()).items():
        described = fields[key].metadata["description"] if key in fields else ""
        yield key, value, comments.get(key, described)


def _comments(function: Callable[[], ConfigDict]) -> dict[str, str]:
    """Return the comments on lines `config.KEY = ...` of a function, by dotted key."""
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
