"""Names and memory layouts of PyTorch's BERT and of `pe_jax.models`, for import and export.

Names and shapes are those of a Hugging Face checkpoint without the prefix `bert.`, and of its
config.json; readers of other formats translate to them. `ours` is pe_jax, `theirs` Hugging Face.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from pe_jax.encodings import PUBLISHED
from pe_jax.models import BertConfig

# Field of BertConfig: key in config.json.
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
# Old files lack some of these; the defaults are those of BertConfig.
CONSTANTS = {
    "layer_norm_epsilon": "layer_norm_eps",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
    "initializer_stddev": "initializer_range",
}
# Key in config.json: the only value that `Bert` supports, and the meaning of a missing key.
ONLY: dict[str, tuple[str | bool, str | bool | None]] = {
    "model_type": ("bert", None),
    "position_embedding_type": ("absolute", "absolute"),
    "hidden_act": ("gelu", "gelu"),
    "is_decoder": (False, False),
}
# Tensors that repeat another one: the output layer is tied to the token embedding.
TIED = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


# `(tensors, number of heads) -> parameter`, and its inverse.
_Conversion = tuple[
    Callable[[list[np.ndarray], int], np.ndarray], Callable[[np.ndarray], list[np.ndarray]]
]
# A dense kernel is [out, in] in PyTorch and [in, out] in Flax; an axis of size D = H·d is split
# heads first.
_SAME: _Conversion = (lambda tensors, heads: tensors[0], lambda x: [x])
_TRANSPOSED: _Conversion = (lambda tensors, heads: tensors[0].T, lambda x: [x.T])
_OUT_KERNEL: _Conversion = (
    lambda tensors, heads: tensors[0].T.reshape(heads, -1, len(tensors[0])),
    lambda x: [x.reshape(-1, x.shape[-1]).T],
)
_QKV_KERNEL: _Conversion = (
    lambda qkv, heads: np.stack([w.T.reshape(len(w), heads, -1) for w in qkv], axis=1),
    lambda x: [w.reshape(len(w), -1).T for w in np.moveaxis(x, 1, 0)],
)
_QKV_BIAS: _Conversion = (
    lambda qkv, heads: np.stack([b.reshape(heads, -1) for b in qkv]),
    lambda x: [b.reshape(-1) for b in x],
)


class Leaf(NamedTuple):
    """A parameter, by its path, and the tensors that hold it in a checkpoint.

    Attributes:
      ours: path of the parameter, joined by `/`.
      theirs: name of the tensor; with a `*`, of three, for query, key and value.
      shape: that of each tensor, see `tensor_shape`.
      to_ours: `(tensors, number of heads) -> parameter`; to_theirs: its inverse.
    """

    ours: str
    theirs: str
    shape: str
    to_ours: Callable[[list[np.ndarray], int], np.ndarray]
    to_theirs: Callable[[np.ndarray], list[np.ndarray]]

    @property
    def tensors(self) -> list[str]:
        """Names of the tensors, in the order of the conversions."""
        if "*" not in self.theirs:
            return [self.theirs]
        return [self.theirs.replace("*", which) for which in ("query", "key", "value")]


def _dense(ours: str, theirs: str, shape: str) -> tuple[Leaf, Leaf]:
    return (
        Leaf(f"{ours}/kernel", f"{theirs}.weight", shape, *_TRANSPOSED),
        Leaf(f"{ours}/bias", f"{theirs}.bias", shape.split()[0], *_SAME),
    )


def _norm(ours: str, theirs: str) -> tuple[Leaf, Leaf]:
    return (
        Leaf(f"{ours}/scale", f"{theirs}.LayerNorm.weight", "D", *_SAME),
        Leaf(f"{ours}/bias", f"{theirs}.LayerNorm.bias", "D", *_SAME),
    )


POSITIONS = Leaf(
    "/".join(("bert/position", *PUBLISHED)), "embeddings.position_embeddings.weight", "N D", *_SAME
)
_EMBEDDINGS = (
    Leaf("bert/token/embedding", "embeddings.word_embeddings.weight", "V D", *_SAME),
    POSITIONS,
    Leaf("bert/segment/embedding", "embeddings.token_type_embeddings.weight", "S D", *_SAME),
    *_norm("bert/embedding_norm", "embeddings"),
)
_LAYER = (
    Leaf("attention/qkv/kernel", "attention.self.*.weight", "D D", *_QKV_KERNEL),
    Leaf("attention/qkv/bias", "attention.self.*.bias", "D", *_QKV_BIAS),
    Leaf("attention/out/kernel", "attention.output.dense.weight", "D D", *_OUT_KERNEL),
    Leaf("attention/out/bias", "attention.output.dense.bias", "D", *_SAME),
    *_norm("attention_norm", "attention.output"),
    *_dense("up", "intermediate.dense", "M D"),
    *_dense("down", "output.dense", "D M"),
    *_norm("mlp_norm", "output"),
)
# By their names in `pe_jax.models`.
HEADS: dict[str, tuple[Leaf, ...]] = {
    "pooler": _dense("pooler/dense", "pooler.dense", "D D"),
    "masked_lm": (
        *_dense("masked_lm/dense", "cls.predictions.transform.dense", "D D"),
        *_norm("masked_lm/norm", "cls.predictions.transform"),
        Leaf("masked_lm/bias", "cls.predictions.bias", "V", *_SAME),
    ),
    "next_sentence": _dense("next_sentence", "cls.seq_relationship", "2 D"),
    "classifier": _dense("classifier", "classifier", "C D"),
    "spans": _dense("spans", "qa_outputs", "2 D"),
}


def encoder_leaves(num_layers: int) -> Iterator[Leaf]:
    """Yield every parameter of the encoder."""
    yield from _EMBEDDINGS
    for i in range(num_layers):
        for leaf in _LAYER:
            yield leaf._replace(
                ours=f"bert/layer_{i}/{leaf.ours}", theirs=f"encoder.layer.{i}.{leaf.theirs}"
            )


def tensor_shape(leaf: Leaf, config: BertConfig, classes: int) -> tuple[int, ...]:
    """Return the shape of each tensor of `leaf`.

    V vocabulary, N positions, S segments, D hidden size, M intermediate size, C classes.
    """
    c = config
    size = dict(V=c.vocab_size, N=c.max_length, S=c.num_segments, C=classes)
    size |= dict(D=c.hidden_size, M=c.intermediate_size)
    return tuple(size[s] if s in size else int(s) for s in leaf.shape.split())
