"""The trainer: commands, configs, data, tasks, training and reports, on top of the library.

The library imports nothing from here. For users of the library `load_run` reads the model of a run.
"""

import typing

from pe_jax.common.lazy import lazy_attributes

__all__ = ["load_run"]

if typing.TYPE_CHECKING:
    from pe_jax.trainer.runs import load_run
else:  # Commands start faster without it.
    __getattr__, __dir__ = lazy_attributes(__name__, __all__, ("runs",), needs="train")
