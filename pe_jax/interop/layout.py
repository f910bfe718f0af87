"""Parameters of a model and the tensors that hold them in a checkpoint, by the tables of a family.

A dense kernel is [out, in] in PyTorch and [in, out] in Flax, where several axes may take the place
of each. Everything else has the same order in both.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
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
        if self._inputs:
            shape = (math.prod(shape) // self._inputs, self._inputs)
        elif self.ours.endswith("/bias"):
            shape = (math.prod(shape),)
        return (shape[0] // len(self.tensors) + self.skipped, *shape[1:])

    @property
    def _inputs(self) -> int:
        """The size that a kernel contracts; 0 for other parameters."""
        if not self.ours.endswith("/kernel"):
            return 0
        return math.prod(
            self.shape[: 2 if self.ours.endswith("attention/out/kernel") else 1]
        )

    def to_ours(self, tensors: list[np.ndarray]) -> np.ndarray:
        """Return the parameter."""
        x = np.concatenate(tensors)[self.skipped :]
        x = np.roll(x, len(x) // 2, axis=0) if self.swapped else x
        return (x.T if self._inputs else x).reshape(self.shape)

    def to_theirs(self, x: np.ndarray) -> list[np.ndarray]:
        """Return the tensors; rows that are skipped become zeros."""
        x = x.reshape(self._inputs, -1).T if self._inputs else x
        if self.ours.endswith("/bias"):
            x = x.reshape(-1)
        x = np.roll(x, len(x) // 2, axis=0) if self.swapped else x
        x = (
            np.pad(x, [(self.skipped, 0), *[(0, 0)] * (x.ndim - 1)])
            if self.skipped
            else x
        )
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
      classes: outputs of the head "classifier".
      skipped: rows of the position table before the first position.

    Raises:
      ValueError: if the family has no tensor for a parameter.
    """
    shapes = parameter_shapes(config, encoder, heads, classes)
    if "masked_lm" in heads and config.tied_decoder:
        shapes.pop(DECODER, None)
    tables = [(encoder.embeddings, "")]
    for i in range(config.num_layers):
        tables += [
            ({f"bert/layer_{i}/{ours}": x for ours, x in encoder.layer.items()}, str(i))
        ]
    tables += [(encoder.heads[head], "") for head in heads]
    model_leaves = [
        leaf._replace(skipped=skipped) if leaf.ours == POSITIONS else leaf
        for table, layer in tables
        for leaf in _of_table(encoder, table, shapes, layer)
    ]
    if missing := sorted(shapes.keys() - {leaf.ours for leaf in model_leaves}):
        raise ValueError(
            f"{encoder.name} of transformers has nothing for {', '.join(missing[:3])}"
            f"{', ...' if len(missing) > 3 else ''}."
        )
    return model_leaves


def _of_table(
    encoder: EncoderFormat,
    table: Modules,
    shapes: dict[str, tuple[int, ...]],
    layer: str,
) -> Iterator[Leaf]:
    """Yield the parameters that modules of a table have in this model."""
    for ours, theirs in table.items():
        modules = (theirs,) if isinstance(theirs, str) else theirs
        swapped = modules[0] in encoder.swapped
        for name in ("", "/kernel", "/embedding", "/table", "/scale", "/bias"):
            path, suffix = f"{ours}{name}", "bias" if name == "/bias" else "weight"
            if path in shapes:
                names = tuple(
                    f"{module}.{suffix}".replace("*", layer) for module in modules
                )
                yield Leaf(path, names, shapes[path], swapped)


def parameter_shapes(
    config: BertConfig, encoder: EncoderFormat, of_heads: tuple[str, ...], classes: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters by path, of positions only if the family has modules."""
    heads = encoder.head_parts(of_heads)
    few = dataclasses.replace(
        config, num_layers=min(2, config.num_layers)
    )  # Others are the same.
    token = jnp.zeros((1, 1), jnp.int32)
    inits: dict[str, Callable[..., Any]] = {
        "bert": functools.partial(BertForPretraining(few).init, masked_positions=token),
        "classifier": BertForClassification(few, classes).init,
        "spans": BertForSpans(few).init,
    }
    tree: dict[str, Any] = {}
    for part, init in inits.items():
        if part in ("bert", *heads):
            tree |= jax.eval_shape(init, jax.random.key(0), token)["params"]
    shapes = {
        path: leaf.shape
        for path, leaf in flax.traverse_util.flatten_dict(tree, sep="/").items()
        if path.split("/")[0] in ("bert", *heads)
        and (
            not path.startswith("bert/position/")
            or path.startswith(encoder.position_modules)
        )
    }
    second = {
        path: shape
        for path, shape in shapes.items()
        if path.startswith("bert/layer_1/")
    }
    for i in range(2, config.num_layers):
        for path, shape in second.items():
            shapes[path.replace("layer_1", f"layer_{i}", 1)] = shape
    return shapes


def tied(encoder: EncoderFormat, config: BertConfig) -> dict[str, str]:
    """Return the tensors that repeat another one, and which."""
    table = encoder.heads.get("masked_lm", {})
    decoder, head = table.get(DECODER), table.get("masked_lm")
    copies = {f"{decoder}.weight": f"{encoder.embeddings['bert/token']}.weight"}
    copies = copies if config.tied_decoder else {}
    return copies | ({f"{decoder}.bias": f"{head}.bias"} if decoder != head else {})
