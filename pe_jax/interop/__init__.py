"""Checkpoints: encodings by config.json, position tables, import and export of encoders.

`from_hf` needs JAX alone. What reads and writes files needs the extra `train`, and is imported when
it is first used.
"""

import importlib
import typing

from pe_jax.common.errors import did_you_mean, extra
from pe_jax.interop.hf_encoding import from_hf

__all__ = [
    "PositionTable", "PublishedEncoder", "from_hf", "load_encoder", "load_position_table",
    "save_encoder", "save_onnx", "save_stablehlo",
]  # fmt: skip

if typing.TYPE_CHECKING:
    from pe_jax.interop.bert_export import save_encoder
    from pe_jax.interop.bert_import import PublishedEncoder, load_encoder
    from pe_jax.interop.onnx_export import save_onnx
    from pe_jax.interop.position_tables import PositionTable, load_position_table
    from pe_jax.interop.programs import save_stablehlo
else:
    _RENAMED = {
        "load_bert": "load_encoder",
        "save_bert": "save_encoder",
        "PublishedBert": "PublishedEncoder",
    }
    _LAZY = ("position_tables", "bert_import", "bert_export", "programs", "onnx_export")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

    def __getattr__(name: str) -> typing.Any:
        if name in __all__:
            with extra("train"):
                for module in _LAZY:
                    members = vars(importlib.import_module(f"{__name__}.{module}"))
                    if name in members:
                        return members[name]
        hint = (
            f" It is {_RENAMED[name]} now."
            if name in _RENAMED
            else did_you_mean(name, __all__)
        )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}")
