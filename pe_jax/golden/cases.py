"""Inputs of golden vectors: two rows of a few tokens, with positions and masks of many kinds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pe_jax.encodings.encoding import PositionEncoding
from pe_jax.interop.hf_registry import DECODERS, FAMILIES

ROWS = 2  # Of a batch. Their positions differ in some cases.
LENGTH = 6  # Tokens of a row.
_EPSILON = {"float32": 2**-24, "bfloat16": 2**-8}
# Models of images and speech that are causal, among those of `TOWERS`.
_CAUSAL_TOWERS = ("dia_decoder",)
# Options of encodings whose results change at this position, by the function's name.
_EDGES = {"chunks": "size", "log_n": "original_length"}


class Case(NamedTuple):
    """Some tokens, and which of them attend to which.

    Attributes:
      positions: `[B, L]` of all tokens, or `[B, L, A]`.
      mask: `[B, L, L]` bool, True where a query may attend to a key, whatever the layer's window.
      queries: which tokens are queries.
      steps: queries come one at a time, each with the keys up to itself alone.
      dtype: that the inputs are rounded to.
      what: in one sentence.
    """

    positions: np.ndarray
    mask: np.ndarray
    queries: slice = slice(None)
    steps: bool = False
    dtype: str = "float32"
    what: str = ""

    def tolerance(self, dtype: str) -> float:
        """Return how far an implementation in `dtype` may be off, relative to the largest value.

        The error of float32 angles grows with the position: frequency and product are rounded.
        """
        farthest = int(np.abs(self.positions).max())
        error_of_angles = 2**-24 * (1 + farthest)
        return 8 * (_EPSILON[dtype] + error_of_angles)


def is_causal(model: Mapping[str, Any]) -> bool:
    """Return False if tokens of a checked config's model attend to later ones as well."""
    if model.get("use_bidirectional_attention") in (True, "all"):
        return False
    if model.get("is_causal") is False:
        return False
    name = model.get("model_type")
    if not name:  # ModernBERT's key, which gives a window of both sides.
        return not model.get("local_attention")
    return name not in FAMILIES or name in DECODERS or name in _CAUSAL_TOWERS


def cases_of(
    layers: Sequence[PositionEncoding], trained_length: int, axes: int, *, causal: bool
) -> dict[str, Case]:
    """Return the cases that show how these layers treat positions, by name.

    Args:
      layers: the kinds of a model's layers.
      trained_length: longest input of the config.
      axes: A, of a position.
      causal: no query attends to a later key.
    """
    index = np.arange(LENGTH)
    if causal:
        first = "As causal"
        mask = np.stack([index <= index[:, None]] * ROWS)
        cases = _causal_cases(mask)
    else:
        first = "As full"
        mask = np.ones((ROWS, LENGTH, LENGTH), bool)
        cases = _bidirectional_cases(mask)
    padding = _rows([1], [2])
    cases["left_padding"] = Case(
        np.maximum(index - padding, 0),
        mask & (index >= padding)[:, None],
        slice(2, None),
        what="Padding, one token or two, then tokens whose positions count from 0.",
    )
    documents = _rows([0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1])
    cases["packed"] = Case(
        _rows([0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 2, 3]),
        mask & (documents[:, :, None] == documents[:, None]),
        what="Two documents in each row, of other lengths, positions from 0 in each.",
    )
    cases["beyond"] = _case(
        index * (trained_length // 2) + 7,
        mask,
        f"{first}, at positions up to more than twice the trained length.",
    )
    cases["bfloat16"] = Case(
        _rows(index, index),
        mask,
        dtype="bfloat16",
        what=f"{first}, of inputs rounded to bfloat16.",
    )
    distances = {layer.window.left for layer in layers if layer.window.left}
    for distance in sorted(distances):
        end = max(distance, 2)
        cases[f"window_{distance}"] = _case(
            [0, 1, end, end + 1, end + 2, 3 * end + 3],
            mask,
            f"{first}, at positions around a window's ends.",
        )
    for edge in sorted(_edges(layers)):
        cases[f"edge_{edge}"] = _case(
            [edge - 2, edge - 1, edge, edge + 1, 2 * edge - 1, 2 * edge],
            mask,
            f"{first}, where a chunk or a step of the temperature ends.",
        )
    for switch in sorted(_switches(layers)):
        for length, side in ((switch, "at the most"), (switch + 1, "one token above")):
            cases[f"length_{length}"] = _case(
                np.maximum([0, 1, 2, length - 3, length - 2, length - 1], 0),
                mask,
                f"{first}, in an input of {side} that short frequencies are for.",
            )
    if axes > 1:
        for name, case in cases.items():
            same_on_all_axes = np.stack([case.positions] * axes, -1)
            cases[name] = case._replace(positions=same_on_all_axes)
        cases["image"] = Case(
            _patches(axes), mask, what="Six patches of an image in each row."
        )
    return cases


def _causal_cases(mask: np.ndarray) -> dict[str, Case]:
    index = np.arange(LENGTH)
    # Tokens 2 and 3 of the second row have left its cache.
    evicted = _rows(index, [0, 1, 4, 5, 6, 7])
    padding = _rows(index < 0, index == 3)  # Token 3 of the second row.
    return {
        "causal": _case(
            index, mask, "Every token attends to itself and to those before."
        ),
        "decoding": Case(
            evicted,
            mask,
            steps=True,
            what="A token at a time: a cache, of which the second row has lost two tokens.",
        ),
        "chunk": Case(evicted, mask, slice(3, None), what="The last three at once."),
        "right_padding": Case(
            _rows(index, [0, 1, 2, 2, 3, 4]),
            mask & ~padding[:, None],
            slice(4, None),
            what="Generated tokens after a prompt that has padding in the second row.",
        ),
    }


def _bidirectional_cases(mask: np.ndarray) -> dict[str, Case]:
    index = np.arange(LENGTH)
    padding = _rows(index < 0, index >= 4)  # The last two tokens of the second row.
    return {
        "full": _case(index, mask, "Every token attends to every token."),
        "right_padding": Case(
            _rows(index, index),
            mask & ~padding[:, None],
            slice(0, 4),
            what="Two tokens of padding at the end of the second row.",
        ),
    }


def _patches(axes: int) -> np.ndarray:
    """Return positions `[B, L, A]` of patches: time if A is 3, then row and column."""
    index = np.arange(LENGTH)
    two_columns = [0 * index, index // 2, index % 2]
    three_columns = [0 * index + 3, 4 + index // 3, 5 + index % 3]
    patches = _rows(two_columns[-axes:], three_columns[-axes:])  # [B, A, L]
    return np.moveaxis(patches, 1, -1)


def _rows(*rows: Any) -> np.ndarray:
    return np.stack([np.asarray(row) for row in rows])


def _case(positions: Any, mask: np.ndarray, what: str) -> Case:
    """Return a case of the same positions in all rows."""
    return Case(_rows(*[positions] * ROWS), mask, what=what)


def _edges(layers: Iterable[PositionEncoding]) -> set[int]:
    edges = set()
    for layer in layers:
        for part in layer.parts:
            option = _EDGES.get(part.name.partition("(")[0])
            if option and part.constructor:
                edges.add(part.constructor.keywords[option])
    return edges


def _switches(layers: Iterable[PositionEncoding]) -> set[int]:
    """Return the lengths above which frequencies change."""
    switches = set()
    for layer in layers:
        for part in layer.parts:
            if part.constructor is None or part.traits.cacheable:
                continue
            if "original_length" in part.constructor.keywords:
                switches.add(part.constructor.keywords["original_length"])
    return switches
