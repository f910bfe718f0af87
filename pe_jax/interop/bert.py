"""The encoder of a Hugging Face BERT as parameters of `pe_jax.models.Bert`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.interop.checkpoints import Checkpoint, open_checkpoint
from pe_jax.models import BertConfig

# Our field: their key of config.json.
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
# Old files leave some of these out; their defaults are those of BertConfig.
_CONSTANTS = {
    "layer_norm_epsilon": "layer_norm_eps",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
    "initializer_stddev": "initializer_range",
}
# Their key: the one value that `Bert` computes, and what a file without the key means.
_ONLY: dict[str, tuple[Any, Any]] = {
    "model_type": ("bert", None),
    "position_embedding_type": ("absolute", "absolute"),
    "hidden_act": ("gelu", "gelu"),
    "is_decoder": (False, False),
}


# From their tensors and the number of heads. A dense kernel is [out, in] there and [in, out] here,
# and the heads are the outer part of an axis that holds them: H·d = D.
_same = lambda tensors, heads: tensors[0]
_turned = lambda tensors, heads: tensors[0].T
_out_kernel = lambda tensors, heads: tensors[0].T.reshape(heads, -1, len(tensors[0]))
_qkv_kernel = lambda qkv, heads: np.stack([w.T.reshape(len(w), heads, -1) for w in qkv], axis=1)
_qkv_bias = lambda qkv, heads: np.stack([b.reshape(heads, -1) for b in qkv])


class _Leaf(NamedTuple):
    """One of our parameters, the tensors that it is made of, their shape, and how."""

    ours: str
    theirs: str  # A `*` stands for query, key and value in turn.
    shape: str
    make: Callable[[list[np.ndarray], int], np.ndarray]


# Shapes: V vocabulary, N positions, S segments, D hidden size, M intermediate size.
_EMBEDDINGS = (
    _Leaf("token/embedding", "embeddings.word_embeddings.weight", "V D", _same),
    _Leaf("position/table", "embeddings.position_embeddings.weight", "N D", _same),
    _Leaf("segment/embedding", "embeddings.token_type_embeddings.weight", "S D", _same),
    _Leaf("embedding_norm/scale", "embeddings.LayerNorm.weight", "D", _same),
    _Leaf("embedding_norm/bias", "embeddings.LayerNorm.bias", "D", _same),
)
_LAYER = (
    _Leaf("attention/qkv/kernel", "attention.self.*.weight", "D D", _qkv_kernel),
    _Leaf("attention/qkv/bias", "attention.self.*.bias", "D", _qkv_bias),
    _Leaf("attention/out/kernel", "attention.output.dense.weight", "D D", _out_kernel),
    _Leaf("attention/out/bias", "attention.output.dense.bias", "D", _same),
    _Leaf("attention_norm/scale", "attention.output.LayerNorm.weight", "D", _same),
    _Leaf("attention_norm/bias", "attention.output.LayerNorm.bias", "D", _same),
    _Leaf("up/kernel", "intermediate.dense.weight", "M D", _turned),
    _Leaf("up/bias", "intermediate.dense.bias", "M", _same),
    _Leaf("down/kernel", "output.dense.weight", "D M", _turned),
    _Leaf("down/bias", "output.dense.bias", "D", _same),
    _Leaf("mlp_norm/scale", "output.LayerNorm.weight", "D", _same),
    _Leaf("mlp_norm/bias", "output.LayerNorm.bias", "D", _same),
)


def load_bert(path: str | Path) -> tuple[BertConfig, Any]:
    """Sizes and encoder weights of a Hugging Face BERT.

    The heads (`cls.*`, `pooler.*`) are not read. Names may begin with `bert.` or not; the gamma and
    beta of old files are LayerNorm's weight and bias.

    Args:
      path: see `open_checkpoint`; config.json must be there.

    Returns:
      The config, and float32 parameters for `pe_jax.models.Bert`: what `BertForPretraining` keeps
      under "bert".

    Raises:
      ValueError: if it is not such a BERT, or if any tensor is missing, has another shape, is no
        float or would be left over. All are listed, and nothing is loaded.
    """
    checkpoint = open_checkpoint(path)
    config = _config(checkpoint)
    names = {_modern(name): name for name in checkpoint.names}
    leaves = list(_leaves(config))
    wrong = _mismatches(checkpoint, config, names, leaves)
    if wrong:
        lines = "\n  ".join(wrong)
        raise ValueError(f"{path} does not hold the BERT that its config.json tells of:\n  {lines}")
    made = {
        leaf.ours: leaf.make([checkpoint.read(names[t]) for t in _sources(leaf)], config.num_heads)
        for leaf in leaves
    }
    params = flax.traverse_util.unflatten_dict(made, sep="/")
    return config, jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)


def _config(checkpoint: Checkpoint) -> BertConfig:
    theirs = checkpoint.config
    if not theirs:
        raise ValueError(
            f"{checkpoint.path} has no config.json beside it: the number of heads is not in the "
            "tensors. Take it from where the checkpoint comes from."
        )
    wrong = [
        f"{key} is {theirs.get(key, default)!r}, not {only!r}"
        for key, (only, default) in _ONLY.items()
        if theirs.get(key, default) != only
    ]
    wrong += [f"{key} is missing" for key in _SIZES.values() if key not in theirs]
    if wrong:
        raise ValueError(
            f"The config.json of {checkpoint.path} is not one of a BERT that can be loaded: "
            f"{'; '.join(wrong)}. (An old file may lack a key: add it if you know its value.)"
        )
    constants = {ours: theirs[key] for ours, key in _CONSTANTS.items() if key in theirs}
    sizes = {ours: theirs[key] for ours, key in _SIZES.items()}
    return BertConfig(**sizes, **constants, position="learned_absolute")


def _leaves(config: BertConfig) -> Iterator[_Leaf]:
    """Every parameter of the encoder, under its whole names."""
    yield from _EMBEDDINGS
    for i in range(config.num_layers):
        for leaf in _LAYER:
            yield leaf._replace(
                ours=f"layer_{i}/{leaf.ours}", theirs=f"encoder.layer.{i}.{leaf.theirs}"
            )


def _sources(leaf: _Leaf) -> list[str]:
    if "*" not in leaf.theirs:
        return [leaf.theirs]
    return [leaf.theirs.replace("*", which) for which in ("query", "key", "value")]


def _modern(name: str) -> str:
    """A tensor's name as the tables above have it."""
    name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def _mismatches(
    checkpoint: Checkpoint, config: BertConfig, names: dict[str, str], leaves: list[_Leaf]
) -> list[str]:
    """A line for each tensor that is missing, unfit, or of the encoder and yet not wanted."""
    c = config
    size = dict(V=c.vocab_size, N=c.max_length, S=c.num_segments)
    size |= dict(D=c.hidden_size, M=c.intermediate_size)
    want = {
        t: tuple(size[s] for s in leaf.shape.split()) for leaf in leaves for t in _sources(leaf)
    }
    wrong = []
    for name, shape in want.items():
        if name not in names:
            wrong.append(f"{name}: missing, {shape} wanted")
        elif checkpoint.shape(names[name]) != shape:
            wrong.append(f"{names[name]}: {checkpoint.shape(names[name])}, {shape} wanted")
        elif not checkpoint.is_float(names[name]):
            wrong.append(f"{names[name]}: {checkpoint.headers[names[name]].dtype}, floats wanted")
    # More layers than config.json says, distances of another encoding, adapters: another model.
    left = names.keys() - want.keys() - {"embeddings.position_ids"}
    return wrong + [
        f"{names[name]}: has no place in this model"
        for name in sorted(left)
        if name.startswith(("embeddings.", "encoder."))
    ]
