"""Write golden vectors of published configs, or check other position code against them.

pe-jax golden --model_type=llama,gpt_oss --out=GOLDEN     with the defaults of these model types
pe-jax golden --config=config.json --out=GOLDEN           of a published config
pe-jax golden --all --out=GOLDEN                          of all model types
pe-jax golden --check=rotate.py:rotate --golden=GOLDEN/llama.safetensors

`check` imports the function from a Python file or module and runs it.
"""

from __future__ import annotations

import functools
import importlib
import runpy
from collections.abc import Callable
from typing import Any

from pe_jax.common.errors import extra
from pe_jax.golden.files import model_types

with extra("train", SystemExit):
    from absl import flags

    from pe_jax.common.files import reachable_path, read_json
    from pe_jax.trainer.console import command
    from pe_jax.trainer.console.terminal import log, show

_FLAGS = flags.FlagValues()
_string = functools.partial(flags.DEFINE_string, flag_values=_FLAGS)
_TYPES = flags.DEFINE_list(
    "model_type", [], "Model types of transformers.", flag_values=_FLAGS
)
_CONFIGS = flags.DEFINE_list(
    "config", [], "Files of published configs.", flag_values=_FLAGS
)
_ALL = flags.DEFINE_bool(
    "all", False, "All model types without learned positions.", flag_values=_FLAGS
)
_OUT = _string("out", None, "Folder for the files.")
_CHECK = _string("check", None, "FILE.py:FUNCTION or MODULE:FUNCTION to check.")
_GOLDEN = _string(
    "golden", None, "A .safetensors file of golden vectors, or a folder of them."
)
_DTYPE = flags.DEFINE_enum(
    "dtype",
    "float32",
    ["float32", "bfloat16"],
    "That the function computes in.",
    flag_values=_FLAGS,
)


def _function(name: str) -> Callable[..., Any]:
    """Return a function by FILE.py:FUNCTION or MODULE:FUNCTION; ValueError if there is none."""
    place, _, attribute = name.rpartition(":")
    try:
        if place.endswith(".py"):
            members = runpy.run_path(place)
        else:
            members = vars(importlib.import_module(place))
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"--check={name}: {error}. Give FILE.py:FUNCTION.") from error
    except SystemExit as error:  # Its status may be 0, though nothing was compared.
        raise ValueError(
            f"--check={name}: {place} ended Python (SystemExit: {error}) before anything was "
            'compared. Put what ends it under `if __name__ == "__main__":`.'
        ) from error
    if not callable(members.get(attribute)):
        raise ValueError(f"--check={name}: {place} has no function {attribute!r}.")
    function: Callable[..., Any] = members[attribute]
    return function


def _check() -> None:
    from pe_jax import golden

    place = reachable_path(_GOLDEN.value or "")
    files = sorted(place.glob("*.safetensors")) if place.is_dir() else [place]
    if not _GOLDEN.value or not files or not files[0].is_file():
        raise ValueError(
            f"--golden={_GOLDEN.value} has no golden vectors: give a .safetensors file that "
            "pe-jax golden wrote, or a folder of them."
        )
    function = _function(_CHECK.value)
    all_agree = True
    for file in files:
        failures = golden.check(function, file, _DTYPE.value)
        if failures:
            all_agree = False
            show(f"{file.stem}: {len(failures)} failures")
            show(golden.report(failures))
        else:
            show(f"{file.stem}: ok")
    if not all_agree:
        raise SystemExit(1)


def run() -> None:
    if _CHECK.value:
        _check()
        return
    from pe_jax import golden

    types = model_types() if _ALL.value else _TYPES.value
    configs: list[Any] = [{"model_type": name} for name in types]
    for file in _CONFIGS.value:
        configs.append(read_json(reachable_path(file), "Give a config.json."))
    if not configs or not _OUT.value:
        raise ValueError(
            "Give --out=FOLDER and --model_type, --config or --all; or --check=FILE.py:FUNCTION "
            "and --golden=FOLDER."
        )
    files = golden.write(configs, reachable_path(_OUT.value), log)
    size = sum(file.stat().st_size for file in files)
    show(
        f"Written {len(files)} files, {size / 1e6:.1f} MB, to {_OUT.value}; its README says more."
    )


def main() -> None:
    command.main(run, _FLAGS, __doc__ or "")


if __name__ == "__main__":
    main()
