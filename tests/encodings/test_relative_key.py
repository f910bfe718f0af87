"""relative_key: rows and logits by hand, and against BERT's."""

import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import draw, made_narrow
from helpers.torch_modules import array, loud, needs, projected

from pe_jax import encodings
from pe_jax.attention import attention_weights
from pe_jax.encodings.parameters import split_params

HEADS, SIZE, LENGTH = 3, 4, 11
WIDTH = HEADS * SIZE
CLOSE = {"atol": 1e-5, "rtol": 0}


def test_relative_key_rows_count_query_minus_key():
    """Of max_length 4: rows 0 .. 6 are i - j = -3 .. 3, and of farther offsets the last ones."""
    part = made_narrow("relative_key")[0].parts[0]
    table = {"table": np.arange(7, dtype=np.float32)[:, None]}
    rows = part.metadata.vectors(table, np.array([3, 1, 0, -1, -3, 9, -9]))[:, 0]
    np.testing.assert_array_equal(rows, [0, 2, 3, 4, 6, 0, 6])


def test_a_relative_key_resized_has_the_same_vector_at_each_offset():
    encoding, params = made_narrow("relative_key")
    longer, _ = made_narrow("relative_key", max_length=9)
    table = encoding.resize(params, 9, "")["relative_key"]
    offsets = np.arange(-8, 9)
    vectors = [e.parts[0].metadata.vectors for e in (encoding, longer)]
    np.testing.assert_array_equal(
        vectors[0](params["relative_key"], offsets), vectors[1](table, offsets)
    )
    back = longer.resize({"relative_key": table}, 4, "repeat")
    np.testing.assert_array_equal(
        back["relative_key"]["table"], params["relative_key"]["table"]
    )
    with pytest.raises(ValueError, match="has shape"):
        split_params(longer, params)  # Its rows would be those of other offsets.


def test_relative_key_query_meets_the_key_as_well():
    q, k = draw(1, 3, 2, 4), draw(1, 3, 2, 4, seed=1)
    params = {"table": draw(7, 4, seed=2)}
    p = params["table"][np.arange(3)[:, None] - np.arange(3) + 3]
    content = np.einsum("bqhd,bkhd->bhqk", q, k) + np.einsum("bqhd,qkd->bhqk", q, p)
    for name, more in (
        ("relative_key", 0),
        ("relative_key_query", np.einsum("bkhd,qkd->bhqk", k, p)),
    ):
        found = attention_logits(q, k, made_narrow(name)[0], {name: params})
        np.testing.assert_allclose(found, (content + more) / 2, atol=1e-6)


@needs("torch", "transformers", "x_transformers")
@pytest.mark.parametrize("name", ["relative_key", "relative_key_query"])
def test_relative_key_is_berts(torch, transformers, name):
    from transformers.models.bert.modeling_bert import BertSelfAttention

    config = transformers.BertConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
        position_embedding_type=name,
    )
    layer = loud(torch, BertSelfAttention(config), 0.5)
    x = draw(2, LENGTH, WIDTH)
    out, weights = layer(torch.tensor(x), output_attentions=True)[:2]
    q, k, v = projected(layer, x)
    encoding = getattr(encodings, name)(head_size=SIZE, max_length=LENGTH)
    params = {name: {"table": array(layer.distance_embedding.weight)}}
    np.testing.assert_allclose(
        attention_weights(q, k, encoding, params), array(weights), **CLOSE
    )
    ours = attention(q, k, v, encoding, params).reshape(out.shape)
    np.testing.assert_allclose(ours, array(out), **CLOSE)
