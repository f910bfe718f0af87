"""The numbers of a config: frequencies, angles, biases and windows by layer, and attention.

The encodings' own formulas and the naive attention compute them in float64, for inputs that are
float32 or bfloat16. The tests compare them with independent formulas, pair by pair.

Shapes: B = 2 rows, L tokens of a case, P positions, F frequencies, A axes, H heads, G heads of keys
and values, d head size, f size of the values.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pe_jax.attention import attention, attention_weights, naive
from pe_jax.attention.attention import completed
from pe_jax.attention.inputs import apply_encoding
from pe_jax.encodings.encoding import PositionEncoding, parameter_count
from pe_jax.encodings.part import Context, HookContext, Part
from pe_jax.golden.cases import LENGTH, ROWS, Case, cases_of, is_causal
from pe_jax.interop import from_hf
from pe_jax.interop.hf_keys import checked_config

FORMAT = 2  # Of the files; changes whenever a number or a name in them does.
# Where the encoding fits any. A key head serves two heads of queries: enough to see their order.
_HEADS, _HEAD_SIZE = 4, 8
_VALUE_SIZE = 8  # Of the file; a check pads the values with zeros to the head size.
_LIMITS = ("window", "chunks", "causal")


class Layer(NamedTuple):
    """What a kind of layer computes for a case.

    Attributes:
      logits: `[B, H, Lq, L]`, scaled, with biases and without any mask.
      allowed: `[B, 1, Lq, L]`, mask and window together.
      out: `[B, Lq, H, f]`; zeros where nothing is allowed.
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
      causal: False for models whose tokens attend to later ones as well, such as encoders.
      q, k, v: `[B, L, H, d]`, `[B, L, G, d]` and `[B, L, G, f]`; float32, not scaled. See
        `head_size`.
      cases: inputs by name.
      results: by case and kind of layer.
    """

    config: Mapping[str, Any]
    layers: dict[str, PositionEncoding]
    pattern: list[str]
    trained_length: int
    causal: bool
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    cases: dict[str, Case]
    results: dict[str, dict[str, Layer]]


def golden_vectors(
    config: Mapping[str, Any], cases: Collection[str] | None = None
) -> Golden:
    """Compute the golden vectors of a config.json; one with `model_type` alone has its defaults.

    Args:
      cases: names of those to compute; default all.

    Raises:
      ValueError: for a config that `interop.from_hf` refuses, or whose positions are learned.
    """
    golden = golden_inputs(config)
    used = {
        name: case
        for name, case in golden.cases.items()
        if cases is None or name in cases
    }
    results = {
        name: {
            kind: attend(layer, case, golden.q, golden.k, golden.v)
            for kind, layer in golden.layers.items()
        }
        for name, case in used.items()
    }
    return golden._replace(cases=used, results=results)


def golden_inputs(config: Mapping[str, Any]) -> Golden:
    """Return the inputs of all cases of a config, without results; see `golden_vectors`."""
    encoding = from_hf(config)
    model = checked_config(config)[0]
    kinds = encoding.layers or (encoding,)
    names = [f"layer_{kinds.index(kind)}" for kind in kinds]
    layers = dict(zip(names, kinds))
    parts = [part for layer in layers.values() for part in layer.parts]
    if not parts:
        raise ValueError("The model has no positions in attention.")
    for part in parts:
        if part.embed or parameter_count(PositionEncoding(parts=(part,))):
            raise ValueError(
                f"{part.name} has learned parameters, so no config determines its numbers. Golden "
                "vectors are of rotations, fixed biases, temperatures and windows."
            )
    heads = next((n for part in parts if (n := part.traits.num_heads)), _HEADS)
    key_heads = heads // 2 if heads % 2 == 0 else heads
    sizes = [head_size(layer) or _HEAD_SIZE for layer in layers.values()]
    value_size = min(_VALUE_SIZE, *sizes)
    rng = np.random.default_rng(0)
    shapes = ((heads, max(sizes)), (key_heads, max(sizes)), (key_heads, value_size))
    q, k, v = (
        rng.normal(size=(ROWS, LENGTH, *shape)).astype(np.float32) for shape in shapes
    )
    trained_length = int(model.get("max_position_embeddings") or 2048)
    causal = is_causal(model)
    cases = cases_of(
        list(layers.values()), trained_length, encoding.axes, causal=causal
    )
    return Golden(config, layers, names, trained_length, causal, q, k, v, cases, {})


def head_size(layer: PositionEncoding) -> int | None:
    """Return d of a kind of layer, whose inputs are the first d of q and k; None for all."""
    return next((size for part in layer.parts if (size := part.traits.head_size)), None)


def inputs_of(
    layer: PositionEncoding, case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return q, k and v of a kind of layer, rounded to the case's dtype."""
    size = head_size(layer)
    dtype = ml_dtypes.bfloat16 if case.dtype == "bfloat16" else np.float32
    return q[..., :size].astype(dtype), k[..., :size].astype(dtype), v.astype(dtype)


def attend(
    layer: PositionEncoding, case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray
) -> Layer:
    """Compute attention of a kind of layer in float64."""
    q, k, v = inputs_of(layer, case, q, k, v)
    index = np.arange(LENGTH)
    # A batch for each step, whose later keys are masked as padding is: one program for all cases.
    seen = (index <= index[:, None, None, None]) | (not case.steps)
    mask = (case.mask & seen).reshape(-1, 1, LENGTH, LENGTH)
    arrays = [*(x.astype(np.float64) for x in (q, k, v)), case.positions]
    batches = [np.concatenate([x] * LENGTH) for x in arrays]
    with jax.enable_x64(True):
        results = [np.asarray(x) for x in _attend(layer, *batches, mask)]
    logits, allowed, out = (x.reshape(LENGTH, ROWS, *x.shape[1:]) for x in results)
    step = index if case.steps else 0 * index
    # Query i of step i: [L, B, H, L], or [L, B, H, f].
    logits = np.moveaxis(logits[step, :, :, index], 0, 2)
    allowed = np.moveaxis(allowed[step, :, :, index], 0, 2)
    out = np.moveaxis(out[step, :, index], 0, 1)
    return Layer(
        logits[:, :, case.queries], allowed[:, :, case.queries], out[:, case.queries]
    )


@functools.partial(jax.jit, static_argnames="layer")
def _attend(
    layer: PositionEncoding,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    mask: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return logits `[B, H, L, L]`, allowed pairs `[B, 1, L, L]`, and outputs `[B, L, H, f]`."""
    context = Context(positions_q=positions, positions_k=positions)
    kinds: tuple[list[Part], list[Part]] = [], []
    for part in layer.parts:
        kinds[part.name.partition("(")[0] in _LIMITS].append(part)
    terms, limits = (PositionEncoding(parts=tuple(parts)) for parts in kinds)
    # Logits as they are with the mask, which hides keys from the length of the row, but unmasked.
    complete = completed(context, terms, q.shape[:2], k.shape[:2])
    logits = naive.logits(apply_encoding(terms, {}, q, k, v, complete, mask))
    # Limits are the same for all heads.
    nothing = jnp.zeros_like(k[:, :, :1])
    allowed = attention_weights(nothing, nothing, limits, {}, context, mask=mask) > 0
    out = attention(q, k, v, layer, {}, context, mask=mask, implementation="naive")
    return logits, allowed, out


def tables(golden: Golden) -> dict[str, np.ndarray]:
    """Return what needs no queries and keys, by `KIND/NAME`: frequencies, angles, cos and sin of
    rotations `[P, F]` at `positions` `[P]`, and the bias of each offset `[H, P]`; float64."""
    longest = golden.trained_length
    at = np.array(
        sorted({0, 1, 2, 7, 100, 1000, longest - 1, longest, 2 * longest, 131_071})
    )
    found: dict[str, np.ndarray] = {"positions": at}
    for kind, layer in golden.layers.items():
        for part in layer.parts:
            with jax.enable_x64(True):
                if part.metadata and part.metadata.frequencies:
                    w = np.asarray(part.metadata.frequencies({}), np.float64).reshape(
                        -1
                    )
                    angle = at[:, None] * w
                    found[f"{kind}/frequencies"] = w
                    found[f"{kind}/angles"] = angle
                    found[f"{kind}/cos"], found[f"{kind}/sin"] = (
                        np.cos(angle),
                        np.sin(angle),
                    )
                if part.offsets and part.offsets.bias:
                    bias = np.asarray(
                        part.offsets.bias(
                            {}, -at, HookContext(positions_q=at, positions_k=at)
                        ),
                        np.float64,
                    )
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
        if part.map_qkv and (pairs := rotated_pairs(part)):
            x = np.zeros((1, 1, 1, head_size(layer) or _HEAD_SIZE))
            x[..., pairs[0][0]] = 1
            with jax.enable_x64(True):
                q, _, _ = part.map_qkv(
                    {}, x, x, x, HookContext(positions_q=origin, positions_k=origin)
                )
            return float(np.asarray(q).max())
    return 1.0
