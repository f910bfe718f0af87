"""The numbers of a config: frequencies, angles, biases and windows by layer, and attention.

The encodings' own formulas and the naive attention compute them in float64, for inputs that are
float32 or bfloat16. The tests compare them with independent formulas, pair by pair.

Shapes: L tokens of a case, P positions, F frequencies, A axes, H heads, d head size.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from pe_jax.attention import attention, attention_weights, naive
from pe_jax.attention.attention import completed
from pe_jax.attention.inputs import apply_encoding
from pe_jax.encodings.encoding import PositionEncoding, parameter_count
from pe_jax.encodings.part import Context, Part
from pe_jax.encodings.positions import AttentionWindow
from pe_jax.interop import from_hf
from pe_jax.interop.hf_keys import checked_config

FORMAT = 1  # Of the files; changes whenever a number or a name in them does.
LENGTH = 6  # Tokens of a case.
_EPSILON = {"float32": 2**-24, "bfloat16": 2**-8}
_HEADS, _HEAD_SIZE = 2, 8  # Where the encoding fits any.
_LIMITS = ("window", "chunks", "causal")


class Case(NamedTuple):
    """Some tokens, and which of them attend to which.

    Attributes:
      positions: `[L]` of all tokens, or `[L, A]`.
      mask: `[L, L]` bool, True where a query may attend to a key, whatever the layer's window.
      queries: which tokens are queries.
      steps: queries come one at a time, each with the keys up to itself alone.
      dtype: that the inputs are rounded to.
      what: in one sentence.
      query_positions: `[L]` where they differ from `positions`, as in mistakes.
    """

    positions: np.ndarray
    mask: np.ndarray
    queries: slice = slice(None)
    steps: bool = False
    dtype: str = "float32"
    what: str = ""
    query_positions: np.ndarray | None = None

    def tolerance(self, dtype: str) -> float:
        """Return how far an implementation in `dtype` may be off, relative to the largest value.

        The error of float32 angles grows with the position: frequency and product are rounded.
        """
        return 8 * _EPSILON[dtype] + 8 * 2**-24 * (1 + int(np.abs(self.positions).max()))

    def keys(self) -> np.ndarray:
        """Return `[Lq, L]` bool, False for keys after a query that comes in a step of its own."""
        index = np.arange(LENGTH)
        return (index <= index[self.queries, None]) | (not self.steps)


class Layer(NamedTuple):
    """What a kind of layer computes for a case.

    Attributes:
      logits: `[H, Lq, L]`, scaled, with biases and without any mask.
      allowed: `[H or 1, Lq, L]`, mask and window together.
      out: `[Lq, H, d]`; zeros where nothing is allowed.
    """

    logits: np.ndarray
    allowed: np.ndarray
    out: np.ndarray


class Golden(NamedTuple):
    """The golden vectors of a config.

    Attributes:
      config: as it was read.
      layers: the encoding of each kind of layer, by its first one, such as `layer_0`.
      pattern: the kind of each layer, repeated over the model.
      trained_length: longest input of the config.
      q, k, v: `[L, H, d]`, k and v with one head; float32, not scaled. See `head_size`.
      cases: inputs by name.
      results: by case and kind of layer.
    """

    config: Mapping[str, Any]
    layers: dict[str, PositionEncoding]
    pattern: list[str]
    trained_length: int
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    cases: dict[str, Case]
    results: dict[str, dict[str, Layer]]


def golden_vectors(config: Mapping[str, Any], cases: Collection[str] | None = None) -> Golden:
    """Compute the golden vectors of a config.json; one with `model_type` alone has its defaults.

    Args:
      cases: names of those to compute; default all.

    Raises:
      ValueError: for a config that `interop.from_hf` refuses, or whose positions are learned.
    """
    encoding = from_hf(config)
    model = checked_config(config)[0]
    kinds = encoding.layers or (encoding,)
    names = [f"layer_{kinds.index(kind)}" for kind in kinds]
    layers = dict(zip(names, kinds))
    parts = [part for layer in layers.values() for part in layer.parts]
    if not parts:
        raise ValueError("The model has no positions in attention.")
    for part in parts:
        if part.embed or parameter_count(PositionEncoding((part,))):
            raise ValueError(
                f"{part.name} has learned parameters, so no config determines its numbers. Golden "
                "vectors are of rotations, fixed biases, temperatures and windows."
            )
    heads = next((n for part in parts if (n := part.traits.num_heads)), _HEADS)
    size = max(head_size(layer) or 0 for layer in layers.values()) or _HEAD_SIZE
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(LENGTH, n, size)).astype(np.float32) for n in (heads, 1, 1))
    trained_length = int(model.get("max_position_embeddings") or 2048)
    all_cases = _cases(trained_length, [layer.reach for layer in layers.values()], encoding.axes)
    used = {name: case for name, case in all_cases.items() if cases is None or name in cases}
    results = {
        name: {kind: attend(layer, case, q, k, v) for kind, layer in layers.items()}
        for name, case in used.items()
    }
    return Golden(config, layers, names, trained_length, q, k, v, used, results)


def head_size(layer: PositionEncoding) -> int | None:
    """Return d of a kind of layer, whose inputs are the first d of q, k and v; None for all."""
    return next((size for part in layer.parts if (size := part.traits.head_size)), None)


def _cases(trained: int, reaches: list[AttentionWindow], axes: int) -> dict[str, Case]:
    index = np.arange(LENGTH)
    causal = index[None] <= index[:, None]
    token = np.maximum(index - 2, 0)
    documents = np.array([0, 0, 0, 1, 1, 1])
    same = documents[:, None] == documents[None]
    cases = {
        "full": Case(index, np.ones_like(causal), what="Every token attends to every token."),
        "causal": Case(index, causal, what="Every token attends to itself and to those before."),
        "decoding": Case(index, causal, steps=True, what="As causal, a token at a time: a cache."),
        "chunk": Case(index, causal, slice(3, None), what="As causal, the last three at once."),
        "left_padding": Case(
            token,
            causal & (index >= 2),
            slice(2, None),
            what="Two tokens of padding, then four whose positions count from 0.",
        ),
        "packed": Case(
            index % 3, causal & same, what="Two documents in one row, positions from 0 in each."
        ),
        "beyond": Case(
            index * (trained // 2) + 7,
            causal,
            what="As causal, at positions up to more than twice the trained length.",
        ),
        "bfloat16": Case(
            index, causal, dtype="bfloat16", what="As causal, of inputs rounded to bfloat16."
        ),
    }
    for reach in sorted({one.left for one in reaches if one.left}):
        ends = np.array([0, 1, 2, reach, reach + 1, reach + 2])
        cases[f"window_{reach}"] = Case(
            ends, ends[None] <= ends[:, None], what="As causal, at positions around a window's end."
        )
    if axes > 1:
        cases = {
            name: case._replace(positions=np.tile(case.positions[:, None], axes))
            for name, case in cases.items()
        }
        image = np.stack([0 * index, *([index // 2, index % 2] * axes)][:axes], -1)
        cases["image"] = Case(image, np.ones_like(causal), what="Six patches of an image.")
    return cases


def attend(
    layer: PositionEncoding, case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray
) -> Layer:
    """Compute attention of a kind of layer in float64."""
    q, k, v = (x[..., : head_size(layer)] for x in (q, k, v))
    if case.dtype == "bfloat16":
        q, k, v = (x.astype(ml_dtypes.bfloat16) for x in (q, k, v))
    index = np.arange(LENGTH)
    at_q = case.positions if case.query_positions is None else case.query_positions
    # A row for each step, whose later keys are masked as padding is: one program for all cases.
    mask = np.stack([case.mask & ((index <= i) | (not case.steps)) for i in index])[:, None]
    arrays = (
        np.broadcast_to(x, (LENGTH, *x.shape))
        for x in (*(x.astype(np.float64) for x in (q, k, v)), at_q, case.positions)
    )
    with jax.enable_x64(True):
        results = [np.asarray(x) for x in _attend(layer, *arrays, mask)]
    step = index if case.steps else 0 * index
    logits, allowed, out = (
        x[step, index] for x in (*(np.swapaxes(x, 1, 2) for x in results[:2]), results[2])
    )
    logits, allowed = (np.swapaxes(x, 0, 1)[:, case.queries] for x in (logits, allowed))
    return Layer(logits, allowed, out[case.queries])


@functools.partial(jax.jit, static_argnames="layer")
def _attend(
    layer: PositionEncoding,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    at_q: jax.Array,
    at_k: jax.Array,
    mask: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Logits and allowed pairs `[B, H, L, L]`, and outputs `[B, L, H, d]`."""
    context = Context(at_q, at_k)
    kinds: tuple[list[Part], list[Part]] = [], []
    for part in layer.parts:
        kinds[part.name.partition("(")[0] in _LIMITS].append(part)
    terms, limits = (PositionEncoding(tuple(parts)) for parts in kinds)
    # Logits as they are with the mask, which hides keys from the length of the row, but unmasked.
    complete = completed(context, terms, q.shape[:2], k.shape[:2])
    logits = naive.logits(apply_encoding(terms, {}, q, k, v, complete, mask))
    allowed = attention_weights(0 * q, 0 * k, limits, {}, context, mask=mask) > 0
    out = attention(q, k, v, layer, {}, context, mask=mask, implementation="naive")
    return logits, allowed, out


def tables(golden: Golden) -> dict[str, np.ndarray]:
    """Return what needs no queries and keys, by `KIND/NAME`: frequencies, angles, cos and sin of
    rotations `[P, F]` at `positions` `[P]`, and the bias of each offset `[H, P]`; float64."""
    longest = golden.trained_length
    at = np.array(sorted({0, 1, 2, 7, 100, 1000, longest - 1, longest, 2 * longest, 131_071}))
    found: dict[str, np.ndarray] = {"positions": at}
    for kind, layer in golden.layers.items():
        for part in layer.parts:
            with jax.enable_x64(True):
                if part.metadata and part.metadata.frequencies:
                    w = np.asarray(part.metadata.frequencies({}), np.float64).reshape(-1)
                    angle = at[:, None] * w
                    found[f"{kind}/frequencies"] = w
                    found[f"{kind}/angles"] = angle
                    found[f"{kind}/cos"], found[f"{kind}/sin"] = np.cos(angle), np.sin(angle)
                if part.offsets and part.offsets.bias:
                    bias = np.asarray(part.offsets.bias({}, -at, Context(at, at)), np.float64)
                    found[f"{kind}/bias_to_the_left"] = np.moveaxis(bias, -1, 0)
    return found


def rotated_pairs(part: Part) -> tuple[tuple[int, int], ...]:
    """Return the pairs of dimensions that a rotary encoding rotates; none of other encodings."""
    return part.metadata.pairs if part.metadata else ()


def attention_factor(layer: PositionEncoding) -> float:
    """Return c, which multiplies cos and sin of queries and of keys (YaRN, LongRoPE); else 1."""
    # Nothing is rotated at the origin.
    origin = np.zeros((1, layer.axes) if layer.axes > 1 else 1, int)
    for part in layer.parts:
        if part.heads and (pairs := rotated_pairs(part)):
            x = np.zeros((1, 1, 1, head_size(layer) or _HEAD_SIZE))
            x[..., pairs[0][0]] = 1
            with jax.enable_x64(True):
                q, _, _ = part.heads({}, x, x, x, Context(origin, origin))
            return float(np.asarray(q).max())
    return 1.0
