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
from pe_jax.common.shapes import Array
from pe_jax.encodings.encoding import PositionEncoding, parameter_count
from pe_jax.encodings.part import Context, HookContext, Part
from pe_jax.golden.cases import LENGTH, ROWS, Case, cases_of, is_causal
from pe_jax.interop import from_hf
from pe_jax.interop.hf_keys import checked_config

FORMAT = 2  # Of the files; changes whenever a number or a name in them does.
# Where the encoding fits any. A key head serves two heads of queries: enough to see their order.
_HEADS = 4
_HEAD_SIZE = 8
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
      config: the contents of a config.json.
      cases: names of those to compute; default all.

    Raises:
      ValueError: for a config that `interop.from_hf` refuses, or whose positions are learned.
    """
    golden = golden_inputs(config)
    used = golden.cases
    if cases is not None:
        used = {name: case for name, case in used.items() if name in cases}
    results = {}
    for name, case in used.items():
        results[name] = {kind: attend(golden, kind, case) for kind in golden.layers}
    return golden._replace(cases=used, results=results)


def golden_inputs(config: Mapping[str, Any]) -> Golden:
    """Return the inputs of all cases of a config, without results; see `golden_vectors`.

    Raises:
      ValueError: for a config that `interop.from_hf` refuses, or whose positions are learned.
    """
    encoding = from_hf(config)
    model = checked_config(config)[0]
    kinds = encoding.layers or (encoding,)
    pattern = [f"layer_{kinds.index(kind)}" for kind in kinds]
    layers = dict(zip(pattern, kinds))
    parts = [part for layer in layers.values() for part in layer.parts]
    if not parts:
        raise ValueError("The model has no positions in attention.")
    for part in parts:
        if part.embed or parameter_count(PositionEncoding(parts=(part,))):
            raise ValueError(
                f"{part.name} has learned parameters, so no config determines its numbers. Golden "
                "vectors are of rotations, fixed biases, temperatures and windows."
            )
    stated = [part.traits.num_heads for part in parts if part.traits.num_heads]
    num_heads = next(iter(stated), _HEADS)
    num_key_heads = num_heads // 2 if num_heads % 2 == 0 else num_heads
    sizes = [head_size(layer) or _HEAD_SIZE for layer in layers.values()]
    rng = np.random.default_rng(0)

    def draw(heads: int, size: int) -> np.ndarray:
        return rng.normal(size=(ROWS, LENGTH, heads, size)).astype(np.float32)

    trained_length = int(model.get("max_position_embeddings") or 2048)
    causal = is_causal(model)
    return Golden(
        config=config,
        layers=layers,
        pattern=pattern,
        trained_length=trained_length,
        causal=causal,
        q=draw(num_heads, max(sizes)),
        k=draw(num_key_heads, max(sizes)),
        v=draw(num_key_heads, min(_VALUE_SIZE, *sizes)),
        cases=cases_of(kinds, trained_length, encoding.axes, causal=causal),
        results={},
    )


def base_name(part: Part) -> str:
    """Return the name of a part without its options."""
    return part.name.partition("(")[0]


def head_size(layer: PositionEncoding) -> int | None:
    """Return d of a kind of layer, whose inputs are the first d of q and k; None for all."""
    sizes = [part.traits.head_size for part in layer.parts if part.traits.head_size]
    return sizes[0] if sizes else None


def inputs_of(
    golden: Golden, kind: str, case: Case
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return q, k and v of a kind of layer, rounded to the case's dtype."""
    size = head_size(golden.layers[kind])
    dtype = ml_dtypes.bfloat16 if case.dtype == "bfloat16" else np.float32
    q = golden.q[..., :size].astype(dtype)
    k = golden.k[..., :size].astype(dtype)
    return q, k, golden.v.astype(dtype)


def attend(golden: Golden, kind: str, case: Case) -> Layer:
    """Compute attention of a kind of layer in float64."""
    index = np.arange(LENGTH)
    mask = np.broadcast_to(case.mask, (LENGTH, *case.mask.shape))
    step = 0 * index
    if case.steps:
        # A batch for each step, whose later keys are masked as padding is: one program for all
        # cases.
        mask = mask & (index <= index[:, None, None, None])
        step = index

    def repeated(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x] * LENGTH)

    q, k, v = inputs_of(golden, kind, case)
    with jax.enable_x64(True):
        results = _attend(
            golden.layers[kind],
            repeated(q.astype(np.float64)),
            repeated(k.astype(np.float64)),
            repeated(v.astype(np.float64)),
            repeated(case.positions),
            mask.reshape(-1, 1, LENGTH, LENGTH),
        )
        results = jax.device_get(results)
    logits, allowed, out = (x.reshape(LENGTH, ROWS, *x.shape[1:]) for x in results)
    # Query i of step i: [L, B, H, L], or [L, B, H, f].
    logits = np.moveaxis(logits[step, :, :, index], 0, 2)
    allowed = np.moveaxis(allowed[step, :, :, index], 0, 2)
    out = np.moveaxis(out[step, :, index], 0, 1)
    return Layer(
        logits=logits[:, :, case.queries],
        allowed=allowed[:, :, case.queries],
        out=out[:, case.queries],
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
    limits = [part for part in layer.parts if base_name(part) in _LIMITS]
    others = [part for part in layer.parts if base_name(part) not in _LIMITS]
    # Logits as they are with the mask, which hides keys from the length of the row, but unmasked.
    terms = PositionEncoding(parts=tuple(others))
    complete = completed(context, terms, q.shape[:2], k.shape[:2])
    logits = naive.logits(apply_encoding(terms, {}, q, k, v, complete, mask))
    # Limits are the same for all heads.
    nothing = jnp.zeros_like(k[:, :, :1])
    limit = PositionEncoding(parts=tuple(limits))
    allowed = attention_weights(nothing, nothing, limit, {}, context, mask=mask) > 0
    out = attention(q, k, v, layer, {}, context, mask=mask, implementation="naive")
    return logits, allowed, out


def tables(golden: Golden) -> dict[str, np.ndarray]:
    """Return the numbers that need no queries and keys, by `KIND/NAME`, float64.

    They are frequencies, angles, cos and sin of rotations `[P, F]` at `positions` `[P]`, and the
    bias of each offset `[H, P]`.
    """
    longest = golden.trained_length
    chosen = {0, 1, 2, 7, 100, 1000, longest - 1, longest, 2 * longest, 131_071}
    positions = np.array(sorted(chosen))
    arrays = {"positions": positions}
    for kind, layer in golden.layers.items():
        for part in layer.parts:
            if part.metadata and part.metadata.frequencies:
                with jax.enable_x64(True):
                    frequencies = np.asarray(part.metadata.frequencies({}), np.float64)
                frequencies = frequencies.reshape(-1)
                angles = positions[:, None] * frequencies
                arrays[f"{kind}/frequencies"] = frequencies
                arrays[f"{kind}/angles"] = angles
                arrays[f"{kind}/cos"] = np.cos(angles)
                arrays[f"{kind}/sin"] = np.sin(angles)
            if part.offsets and part.offsets.bias:
                bias = offset_bias(part, -positions)
                arrays[f"{kind}/bias_to_the_left"] = np.moveaxis(bias, -1, 0)
    return arrays


def offset_bias(part: Part, offsets: np.ndarray) -> np.ndarray:
    """Return the bias of a part at some offsets, `[P, H]`, in float64."""
    assert part.offsets is not None and part.offsets.bias is not None
    # The context has positions of the right number; a bias of offsets does not read them.
    context = HookContext(positions_q=offsets, positions_k=offsets)
    with jax.enable_x64(True):
        return np.asarray(part.offsets.bias({}, offsets, context), np.float64)


def rotated_pairs(part: Part) -> tuple[tuple[int, int], ...]:
    """Return the pairs of dimensions that a rotary encoding rotates; none of other encodings."""
    return part.metadata.pairs if part.metadata else ()


def rotated_queries(part: Part, x: Array, positions: Array) -> Array:
    """Return queries `x`, `[B, L, H, d]`, as a rotary encoding maps them."""
    assert part.map_qkv is not None
    context = HookContext(positions_q=positions, positions_k=positions)
    return part.map_qkv({}, x, x, x, context)[0]


def attention_factor(layer: PositionEncoding) -> float:
    """Return c, which multiplies cos and sin of queries and of keys (YaRN, LongRoPE); else 1."""
    # Nothing is rotated at the origin.
    origin = np.zeros((1, layer.axes) if layer.axes > 1 else 1, int)
    for part in layer.parts:
        pairs = rotated_pairs(part)
        if part.map_qkv and pairs:
            x = np.zeros((1, 1, 1, head_size(layer) or _HEAD_SIZE))
            x[..., pairs[0][0]] = 1
            with jax.enable_x64(True):
                return float(np.asarray(rotated_queries(part, x, origin)).max())
    return 1.0
