"""The trainer: commands, configs, data, tasks, training and reports, on top of the library.

The library imports nothing from here. For users of the library `load_run` reads the model of a run.
"""

import typing

from pe_jax.common.errors import extra

__all__ = ["load_run"]

if typing.TYPE_CHECKING:
    from pe_jax.trainer.runs import load_run
else:

    def __getattr__(name: str) -> typing.Any:
        if name == "load_run":  # Commands start faster without it.
            with extra("train"):
                from pe_jax.trainer.runs import load_run

            return load_run
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
