"""Where `--config` finds its file, and what the file says of its keys."""

from __future__ import annotations

import ast
import inspect
import io
import runpy
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

from absl import flags
from ml_collections import ConfigDict, config_flags

from pe_jax.errors import did_you_mean
from pe_jax.schema import flatten

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
    """Key, value and comment of everything in a config, in the order of its file."""
    get_config = runpy.run_path(find_config(given))["get_config"]
    comments = _comments(get_config)
    for key, value in flatten(get_config().to_dict()).items():
        yield key, value, comments.get(key, "")


def _comments(function: object) -> dict[str, str]:
    """The comments on `config.KEY = ...` in a function that makes a config, by dotted key; what
    other functions make, in other files as well, is read there."""
    if not isinstance(function, FunctionType):
        return {}
    source = textwrap.dedent(inspect.getsource(function))
    lines = {
        token.start[0]: token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    alone = lambda line: line in lines and lines[line].line.strip().startswith("#")
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assign):
            continue
        key = ast.unparse(node.targets[0]).partition(".")[2]
        if isinstance(node.value, ast.Call):
            made = _comments(_called(node.value.func, function))
            found |= {f"{key}.{name}".lstrip("."): comment for name, comment in made.items()}
        above = node.lineno
        while alone(above - 1):
            above -= 1
        own = [*range(above, node.lineno), *range(node.lineno, (node.end_lineno or 0) + 1)]
        if comment := " ".join(lines[n].string.lstrip("# ") for n in own if n in lines):
            found[key] = comment
    return found


def _called(name: ast.expr, function: FunctionType) -> object:
    """What `name` or `module.name` stands for within `function`."""
    match name:
        case ast.Name(id):
            return function.__globals__.get(id)
        case ast.Attribute(ast.Name(module), attribute):
            return getattr(function.__globals__.get(module), attribute, None)
    return None
