"""Checkpoints: encodings by config.json, position tables, import and export of encoders.

`from_hf` needs JAX alone. What reads and writes files needs the extra `train`, and is imported when
it is first used.
"""

import typing

from pe_jax.common.lazy import lazy_attributes
from pe_jax.interop.hf_encoding import from_hf

__all__ = [
    "PositionTable", "PublishedEncoder", "TextSpan", "from_hf", "load_encoder",
    "load_position_table", "save_encoder", "save_onnx", "save_stablehlo",
]  # fmt: skip

if typing.TYPE_CHECKING:
    from pe_jax.interop.bert_export import save_encoder
    from pe_jax.interop.bert_import import PublishedEncoder, load_encoder
    from pe_jax.interop.onnx_export import save_onnx
    from pe_jax.interop.position_tables import PositionTable, load_position_table
    from pe_jax.interop.programs import save_stablehlo
    from pe_jax.interop.text_tagging import TextSpan
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        __all__,
        (
            "position_tables",
            "bert_import",
            "bert_export",
            "programs",
            "onnx_export",
            "text_tagging",
        ),
        needs="train",
        renamed={
            "load_bert": "load_encoder",
            "save_bert": "save_encoder",
            "PublishedBert": "PublishedEncoder",
        },
    )
