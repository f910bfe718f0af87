"""Parameters of a model and the tensors that hold them in a checkpoint, by the tables of a family.

A dense kernel is [out, in] in PyTorch and [in, out] in Flax, where several axes may take the place
of each. Everything else has the same order in both.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.absolute.position_vectors import LEARNED_TABLE_PATH
from pe_jax.interop.hf_encoders import POSITION_MODULE, EncoderFormat, Modules
from pe_jax.models import (
    BertConfig,
    BertForClassification,
    BertForPretraining,
    BertForSpans,
    BertForTokens,
)

POSITIONS = f"{POSITION_MODULE}/{LEARNED_TABLE_PATH[1]}"
TOKENS = "bert/token/embedding"
DECODER = "masked_lm/decoder"


class Leaf(NamedTuple):
    """A parameter, and the tensors that hold it, concatenated along their first axis."""

    ours: str  # Path of the parameter, joined by `/`.
    tensors: tuple[str, ...]  # Their names.
    shape: tuple[int, ...]  # Of the parameter.
    swapped: bool = False  # The halves of the tensor are in the other order.
    skipped: int = 0  # Rows of the tensor before the first that the parameter has.
    # The parameter is the tensor times `factor`, plus `offset`.
    factor: float = 1.0
    offset: float = 0.0

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape of each of the tensors."""
        shape = self.shape
        if self._is_convolution:
            return shape[::-1]
        if self._inputs:
            shape = (math.prod(shape) // self._inputs, self._inputs)
        elif self.ours.endswith("/bias"):
            shape = (math.prod(shape),)
        return (shape[0] // len(self.tensors) + self.skipped, *shape[1:])

    @property
    def _is_convolution(self) -> bool:
        """Whether it is [width, in, out], and [out, in, width] in PyTorch."""
        return self.ours.endswith("/conv/kernel")

    @property
    def _inputs(self) -> int:
        """The size that a kernel contracts; 0 for other parameters."""
        if not self.ours.endswith("/kernel") or self._is_convolution:
            return 0
        return math.prod(
            self.shape[: 2 if self.ours.endswith("attention/out/kernel") else 1]
        )

    def to_ours(self, tensors: list[np.ndarray]) -> np.ndarray:
        """Return the parameter."""
        x = np.concatenate(tensors)[self.skipped :]
        if self.swapped:
            x = np.roll(x, len(x) // 2, axis=0)
        if self._inputs or self._is_convolution:
            x = x.T
        x = x * np.float32(self.factor) + np.float32(self.offset)
        return x.reshape(self.shape)

    def to_theirs(self, x: np.ndarray) -> list[np.ndarray]:
        """Return the tensors; rows that are skipped become zeros."""
        x = (x - np.float32(self.offset)) / np.float32(self.factor)
        if self._inputs:
            x = x.reshape(self._inputs, -1).T
        if self._is_convolution:
            x = x.T
        if self.ours.endswith("/bias"):
            x = x.reshape(-1)
        if self.swapped:
            x = np.roll(x, len(x) // 2, axis=0)
        if self.skipped:
            x = np.pad(x, [(self.skipped, 0), *[(0, 0)] * (x.ndim - 1)])
        return np.split(x, len(self.tensors))


def leaves(
    encoder: EncoderFormat,
    config: BertConfig,
    heads: tuple[str, ...],
    classes: int,
    skipped: int = 0,
) -> list[Leaf]:
    """Return every parameter of an encoder and its heads.

    Args:
      heads: those of `encoder.heads` to return.
      classes: outputs of the heads "classifier" and "tokens".
      skipped: rows of the position table before the first position.

    Raises:
      ValueError: if the family has no tensor for a parameter.
    """
    shapes = parameter_shapes(config, encoder, heads, classes)
    if "masked_lm" in heads and config.tied_decoder:
        shapes.pop(DECODER, None)
    in_layer = encoder.layer
    if config.gated_mlp:
        in_layer = {**in_layer, **encoder.gated}
    layer = {f"bert/layer_*/{ours}": theirs for ours, theirs in in_layer.items()}
    tables: list[Modules] = []
    tables += [_of_layer(encoder.embeddings, i) for i in range(config.num_layers)]
    layers = 1 if config.shared_layers else config.num_layers
    tables += [_of_layer(layer, i) for i in range(layers)]
    tables += [encoder.heads[head] for head in heads]
    modules: dict[str, tuple[str, ...]] = {}
    for table in tables:
        modules |= table
    swapped = {name for module in encoder.swapped for name in _numbered(module, layers)}
    model_leaves: list[Leaf] = []
    for ours, theirs in modules.items():
        model_leaves += _of_module(ours, theirs, shapes, theirs[0] in swapped)
    for i, leaf in enumerate(model_leaves):
        if leaf.ours == POSITIONS:
            model_leaves[i] = leaf._replace(skipped=skipped)
        elif leaf.ours == TOKENS and encoder.scales_embeddings:
            model_leaves[i] = leaf._replace(factor=config.hidden_size**0.5)
        elif leaf.ours.endswith("norm/scale") and encoder.norms_add_one:
            model_leaves[i] = leaf._replace(offset=1.0)
    if missing := sorted(shapes.keys() - {leaf.ours for leaf in model_leaves}):
        raise ValueError(
            f"{encoder.name} of transformers has nothing for {', '.join(missing[:3])}"
            f"{', ...' if len(missing) > 3 else ''}."
        )
    return model_leaves


def _numbered(module: str, layers: int) -> list[str]:
    return [module.replace("*", str(i)) for i in range(layers)]


def _of_layer(table: Modules, layer: int) -> dict[str, tuple[str, ...]]:
    """Return a table with the number of a layer for each `*`."""
    return {
        ours.replace("*", str(layer)): tuple(
            module.replace("*", str(layer)) for module in theirs
        )
        for ours, theirs in table.items()
    }


def _of_module(
    ours: str,
    modules: tuple[str, ...],
    shapes: Mapping[str, tuple[int, ...]],
    swapped: bool,
) -> Iterator[Leaf]:
    """Yield the parameters that a module of ours has in this model, and their tensors."""
    for name in ("", "/kernel", "/embedding", "/table", "/scale", "/bias"):
        path = f"{ours}{name}"
        if path in shapes:
            suffix = "bias" if name == "/bias" else "weight"
            tensors = tuple(f"{module}.{suffix}" for module in modules)
            yield Leaf(path, tensors, shapes[path], swapped)


def parameter_shapes(
    config: BertConfig, encoder: EncoderFormat, of_heads: tuple[str, ...], classes: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters by path, of positions only if the family has modules.

    Args:
      of_heads: the heads of `encoder.heads` that the model has.
      classes: outputs of the heads "classifier" and "tokens".
    """
    heads = encoder.head_parts(of_heads)
    # Two layers are enough: the others are as the second.
    few = dataclasses.replace(config, num_layers=min(2, config.num_layers))
    token = jnp.zeros((1, 1), jnp.int32)
    inits: dict[str, Callable[..., Any]] = {
        "bert": functools.partial(BertForPretraining(few).init, masked_positions=token),
        "classifier": BertForClassification(few, classes).init,
        "spans": BertForSpans(few).init,
        "tokens": BertForTokens(few, classes).init,
    }
    tree: dict[str, Any] = {}
    for part, init in inits.items():
        if part in ("bert", *heads):
            tree |= jax.eval_shape(init, jax.random.key(0), token)["params"]
    positions = tuple(module.partition("*")[0] for module in encoder.position_modules)
    shapes: dict[str, tuple[int, ...]] = {}
    for path, leaf in flax.traverse_util.flatten_dict(tree, sep="/").items():
        is_part = path.split("/")[0] in ("bert", *heads)
        is_position = path.startswith("bert/position/")
        if is_part and (not is_position or path.startswith(positions)):
            shapes[path] = leaf.shape
    for prefix in ("bert/layer_", "bert/position/layer_"):
        second = [path for path in shapes if path.startswith(f"{prefix}1/")]
        for i in range(2, config.num_layers):
            for path in second:
                shapes[path.replace("layer_1", f"layer_{i}", 1)] = shapes[path]
    return shapes


def tied(encoder: EncoderFormat, config: BertConfig) -> dict[str, str]:
    """Return the tensors that repeat another one, and which."""
    head = encoder.heads.get("masked_lm")
    if head is None:
        return {}
    (decoder,), (output,) = head[DECODER], head["masked_lm"]
    copies = {}
    if config.tied_decoder:
        (token,) = encoder.embeddings["bert/token"]
        copies[f"{decoder}.weight"] = f"{token}.weight"
    if decoder != output:
        copies[f"{decoder}.bias"] = f"{output}.bias"
    return copies
