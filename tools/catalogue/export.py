"""Which programs and families of transformers a model with an encoding can be exported to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from catalogue.entries import Entry
from pe_jax.interop.bert_export import position_table
from pe_jax.interop.programs import model_function, symbolic_inputs
from pe_jax.models import Bert, BertConfig
from pe_jax.testing.subject import SIZES


def exports(row: Entry) -> list[str]:
    """Return names of formats, for an encoder; nothing is written.

    Args:
      row: of the sizes of the suite.
    """
    config = BertConfig(
        vocab_size=8, num_layers=1, intermediate_size=8, hidden_size=SIZES["hidden_size"],
        num_heads=SIZES["num_heads"], max_length=SIZES["max_length"], position=row.name,
    )  # fmt: skip
    if row.encoding.axes > 1:
        return []
    params = {
        "bert": Bert(config).init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))[
            "params"
        ]
    }
    found = []
    try:
        jax.eval_shape(model_function(config, params)[0], *symbolic_inputs(config))
        found.append("ONNX, StableHLO")
    except ValueError as error:
        if "known at compile time" not in str(error):
            raise
    try:
        position_table(
            config, jax.tree.map(np.asarray, params["bert"].get("position", {}))
        )
        found.append("BERT")
    except ValueError:
        found += ["RoFormer"] * (row.name == "rope")
    return found
