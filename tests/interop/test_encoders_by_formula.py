"""Published encoders without a class in transformers 5, against their formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.byte_level import byte_level
from helpers.published_bert import (
    BERT,
    LAYERS,
    D,
    H,
    M,
    N,
    V,
    _dense,
    _gelu,
    _norm,
    dense,
    encoder_shapes,
    head_shapes,
    random_tensors,
    write,
)  # fmt: skip

from pe_jax.interop import check, load_encoder, save_encoder
from pe_jax.models import BertForMaskedLM, hidden_states

SIZE = D // H
TABLE = "embeddings.position_embeddings.weight"
CONFIG = {key: x for key, x in BERT.items() if key != "position_embedding_type"}
OFFSETS = np.arange(N)[:, None] - np.arange(N)  # Query minus key.


def with_glu(shapes, packed):
    """The names of a BERT with gated layers; `packed` queries, keys and values."""
    shapes = dict(shapes)
    del shapes[TABLE]
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        for old in ("intermediate.dense", "output.dense", "output.LayerNorm"):
            for name in (f"{layer}.{old}.weight", f"{layer}.{old}.bias"):
                del shapes[name]
        shapes[f"{layer}.mlp.gated_layers.weight"] = (2 * M, D)
        shapes |= dense(f"{layer}.mlp.wo", D, M)
        shapes |= {f"{layer}.mlp.layernorm.{x}": (D,) for x in ("weight", "bias")}
        if packed:
            for name in ("query", "key", "value"):
                del shapes[f"{layer}.attention.self.{name}.weight"]
                del shapes[f"{layer}.attention.self.{name}.bias"]
            shapes |= dense(f"{layer}.attention.self.Wqkv", 3 * D, D)
    return shapes


def with_offsets(shapes):
    for i in range(LAYERS):
        name = f"encoder.layer.{i}.attention.self.distance_embedding.weight"
        shapes = {**shapes, name: (2 * N - 1, SIZE)}
    return shapes


def nezha_vectors():
    """Row m + 64 of the sinusoid, for the offset m of a key from its query, clipped to 64."""
    places = np.clip(-OFFSETS, -64, 64) + 64
    angles = places[..., None] / 10_000 ** (np.arange(0, SIZE, 2) / SIZE)
    vectors = np.empty((N, N, SIZE))
    vectors[..., 0::2], vectors[..., 1::2] = np.sin(angles), np.cos(angles)
    return vectors


def slopes():
    """ALiBi's for 3 heads: those of 2, then every other one of 4."""
    return [2.0**-4, 2.0**-8, 2.0**-2]


CASES = {
    "relative_key": (
        {"position_embedding_type": "relative_key"},
        with_offsets(encoder_shapes()),
        "per_layer(relative_key)",
    ),
    "relative_key_query": (
        {"position_embedding_type": "relative_key_query"},
        with_offsets(encoder_shapes()),
        "per_layer(relative_key_query)",
    ),
    "mosaic": (
        {"alibi_starting_size": 512, "position_embedding_type": "absolute",
         "auto_map": {"AutoModel": "bert_layers.BertModel"}},
        with_glu(encoder_shapes(), packed=True),
        "alibi",
    ),
    "jina": (
        {"position_embedding_type": "alibi", "feed_forward_type": "geglu",
         "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"}},
        with_glu(encoder_shapes(), packed=False),
        "alibi",
    ),
    "nezha": (
        {"model_type": "nezha", "max_relative_position": 64},
        {name: x for name, x in encoder_shapes().items() if name != TABLE},
        "nezha",
    ),
}  # fmt: skip
CASES["nezha, first files"] = (
    {"use_relative_position": True, "max_relative_position": 64},
    *CASES["nezha"][1:],
)


def heads_of(t, x, layer):
    """Queries, keys and values `[B, L, D]`."""
    name = f"{layer}.attention.self"
    if f"{name}.Wqkv.weight" in t:
        return np.split(_dense(t, x, f"{name}.Wqkv"), 3, axis=-1)
    return [_dense(t, x, f"{name}.{part}") for part in ("query", "key", "value")]


def attended(t, x, kind, layer, valid):
    q, k, v = heads_of(t, x, layer)
    mixed = []
    for h in range(H):
        own = slice(h * SIZE, (h + 1) * SIZE)
        logits = q[..., own] @ k[..., own].swapaxes(1, 2)
        if kind.startswith("relative_key"):
            table = t[f"{layer}.attention.self.distance_embedding.weight"]
            vectors = table[OFFSETS + N - 1]
            logits = logits + np.einsum("bld,lrd->blr", q[..., own], vectors)
            if kind == "relative_key_query":
                logits = logits + np.einsum("brd,lrd->blr", k[..., own], vectors)
        if kind.startswith("nezha"):
            logits = logits + np.einsum("bld,lrd->blr", q[..., own], nezha_vectors())
        logits = logits / np.sqrt(SIZE)
        if kind in ("mosaic", "jina"):
            logits = logits - slopes()[h] * np.abs(OFFSETS)
        weights = np.exp(logits - logits.max(-1, keepdims=True)) * valid[:, None, :]
        weights = weights / weights.sum(-1, keepdims=True)
        values = weights @ v[..., own]
        if kind.startswith("nezha"):
            values = values + np.einsum("blr,lrd->bld", weights, nezha_vectors())
        mixed.append(values)
    return _dense(t, np.concatenate(mixed, -1), f"{layer}.attention.output.dense")


def reference(t, kind, tokens, valid):
    """The hidden states of all layers, in float64; token types are 0."""
    t = {name.removeprefix("bert."): np.asarray(x, np.float64) for name, x in t.items()}
    x = t["embeddings.word_embeddings.weight"][tokens]
    x = x + t["embeddings.token_type_embeddings.weight"][0]
    x = _norm(t, BERT, x, "embeddings.LayerNorm")
    states = [x]
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        y = attended(t, x, kind, layer, valid)
        x = _norm(t, BERT, x + y, f"{layer}.attention.output.LayerNorm")
        if f"{layer}.mlp.gated_layers.weight" in t:
            gate, up = np.split(x @ t[f"{layer}.mlp.gated_layers.weight"].T, 2, axis=-1)
            y = _dense(t, _gelu(gate) * up, f"{layer}.mlp.wo")
            x = _norm(t, BERT, x + y, f"{layer}.mlp.layernorm")
        else:
            y = _gelu(_dense(t, x, f"{layer}.intermediate.dense"))
            y = _dense(t, y, f"{layer}.output.dense")
            x = _norm(t, BERT, x + y, f"{layer}.output.LayerNorm")
        states.append(x)
    return np.stack(states)


@pytest.mark.parametrize("case", CASES)
def test_hidden_states_and_logits(tmp_path, case):
    keys, shapes, position = CASES[case]
    tensors = random_tensors(shapes | head_shapes())
    if case == "mosaic":  # Its bias is the decoder's.
        bias = tensors.pop("cls.predictions.bias")
        tensors["cls.predictions.decoder.bias"] = bias
        del tensors["cls.seq_relationship.weight"], tensors["cls.seq_relationship.bias"]
    whole = {x if x.startswith("cls.") else f"bert.{x}": y for x, y in tensors.items()}
    encoder = load_encoder(write(tmp_path, whole, {**CONFIG, **keys}))
    assert encoder.unread == () and encoder.config.encoding().name == position
    tokens = np.random.default_rng(1).integers(5, V, (2, N))
    valid = np.arange(N) < np.array([[N], [N - 4]])
    want = reference(whole, case, tokens, valid)
    mask = jnp.asarray(valid)
    run = jax.jit(hidden_states, static_argnums=0)
    got = run(encoder.config, encoder.params["bert"], tokens, None, mask)
    np.testing.assert_allclose(np.asarray(got)[:, valid], want[:, valid], atol=1e-5)
    everywhere = np.tile(np.arange(N), (2, 1))
    logits = jax.jit(BertForMaskedLM(encoder.config).apply)(
        {"params": encoder.params}, tokens, None, mask, masked_positions=everywhere
    )
    x = _gelu(_dense(tensors, want[-1], "cls.predictions.transform.dense"))
    x = _norm(tensors, BERT, x, "cls.predictions.transform.LayerNorm")
    words = tensors["embeddings.word_embeddings.weight"]
    bias = [
        x
        for name, x in tensors.items()
        if name.startswith("cls.predictions.") and x.shape == (V,)
    ]
    np.testing.assert_allclose(
        np.asarray(logits)[valid], (x @ words.T + bias[0])[valid], atol=1e-5
    )


def test_those_that_only_transformers_4_has_are_chosen_by_name_alone(tmp_path):
    keys, shapes, _ = CASES["nezha"]
    tensors = random_tensors(shapes | head_shapes())
    encoder = load_encoder(write(tmp_path / "in", tensors, {**CONFIG, **keys}))
    words = byte_level(37)
    with pytest.raises(ValueError, match="cannot represent 'nezha'"):
        save_encoder(tmp_path / "no", encoder.config, encoder.params, words)


@pytest.mark.parametrize("case", CASES)
def test_the_check_compares_nothing_with_a_bert_of_other_positions(
    tmp_path, capsys, case
):
    keys, shapes, _ = CASES[case]
    folder = write(tmp_path, random_tensors(shapes), {**CONFIG, **keys})
    assert check.main([str(folder)]) == 2
    assert "transformers 5 has no class for its positions" in capsys.readouterr().out
