"""Published checkpoints: tensors by name, position tables, import and export of encoders."""

from pe_jax.errors import extra

with extra("train"):
    from pe_jax.interop.bert_export import position_table, save_bert
    from pe_jax.interop.bert_import import PRETRAINING, PublishedBert, load_bert, read_config
    from pe_jax.interop.checkpoint_files import Checkpoint, open_checkpoint
    from pe_jax.interop.families import ENCODERS
    from pe_jax.interop.position_tables import FAMILIES, PositionTable, load_position_table

__all__ = [
    "ENCODERS",
    "FAMILIES",
    "PRETRAINING",
    "Checkpoint",
    "PositionTable",
    "PublishedBert",
    "load_bert",
    "load_position_table",
    "open_checkpoint",
    "position_table",
    "read_config",
    "save_bert",
]
