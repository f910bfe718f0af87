"""Other people's checkpoints: tensors by name, learned position tables, a BERT's weights."""

from pe_jax.interop.bert import load_bert
from pe_jax.interop.checkpoints import Checkpoint, open_checkpoint
from pe_jax.interop.position_tables import FAMILIES, PositionTable, load_position_table

__all__ = [
    "FAMILIES",
    "Checkpoint",
    "PositionTable",
    "load_bert",
    "load_position_table",
    "open_checkpoint",
]
