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
from pe_jax.interop.hf_encoders import POSITION_MODULE, EncoderFormat
from pe_jax.models import (
    BertConfig,
    BertForClassification,
    BertForPretraining,
    BertForSpans,
    BertForTokens,
)

POSITIONS = f"{POSITION_MODULE}/{LEARNED_TABLE_PATH[1]}"
DECODER = "masked_lm/decoder"


class Leaf(NamedTuple):
    """A parameter, and the tensors that hold it, concatenated along their first axis."""

    ours: str  # Path of the parameter, joined by `/`.
    tensors: tuple[str, ...]  # Their names.
    shape: tuple[int, ...]  # Of the parameter.
    swapped: bool = False  # The halves of the tensor are in the other order.
    skipped: int = 0  # Rows of the tensor before the first that the parameter has.

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
        axes = 2 if self.ours.endswith("attention/out/kernel") else 1
        return math.prod(self.shape[:axes])

    def to_ours(self, tensors: list[np.ndarray]) -> np.ndarray:
        """Return the parameter."""
        x = np.concatenate(tensors)[self.skipped :]
        if self.swapped:
            x = np.roll(x, len(x) // 2, axis=0)
        if self._inputs or self._is_convolution:
            x = x.T
        return x.reshape(self.shape)

    def to_theirs(self, x: np.ndarray) -> list[np.ndarray]:
        """Return the tensors; rows that are skipped become zeros."""
        if self._inputs:
            x = x.reshape(self._inputs, -1).T
        if self._is_convolution:
            x = x.T
        if self.ours.endswith("/bias"):
            x = x.reshape(-1)
        if self.swapped:
            x = np.roll(x, len(x) // 2, axis=0)
        if self.skipped:
            zeros = np.zeros((self.skipped, *x.shape[1:]), x.dtype)
            x = np.concatenate([zeros, x])
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
    tables = [encoder.embeddings, layer]
    tables += [encoder.heads[head] for head in heads]
    model_leaves: list[Leaf] = []
    for table in tables:
        for ours, theirs in table.items():
            shared = config.shared_layers and ours.startswith("bert/layer_")
            # Modules with a `*` are there once a layer.
            count = config.num_layers if "*" in ours and not shared else 1
            for i in range(count):
                modules = [module.replace("*", str(i)) for module in theirs]
                swapped = theirs[0] in encoder.swapped
                module = ours.replace("*", str(i))
                model_leaves += _of_module(module, modules, shapes, swapped)
    missing = set(shapes)
    for i, leaf in enumerate(model_leaves):
        missing.discard(leaf.ours)
        if leaf.ours == POSITIONS:
            model_leaves[i] = leaf._replace(skipped=skipped)
    if missing:
        raise ValueError(
            f"{encoder.name} of transformers has nothing for {', '.join(sorted(missing)[:3])}"
            f"{', ...' if len(missing) > 3 else ''}."
        )
    return model_leaves


def _of_module(
    ours: str,
    modules: list[str],
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
        for path, shape in list(shapes.items()):
            if path.startswith(f"{prefix}1/"):
                for i in range(2, config.num_layers):
                    shapes[path.replace("layer_1", f"layer_{i}", 1)] = shape
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
