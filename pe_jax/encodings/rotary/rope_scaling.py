"""Rotary encodings for inputs longer than those trained on: frequencies stretched by a factor.

The encodings differ only in how they change the frequencies ω_m = base^(-2m/r), m < r/2, NumPy in
float64. Formulas and defaults are those of Hugging Face's transformers, whose tables the tests
compare with.

Two depend on the length of the input: `rope_dynamic_ntk` and `rope_longrope`. That is the largest
position of queries and keys + 1 of each row (transformers: of the whole batch); documents packed
into one row share it. They are not cacheable, nor invariant to a shift of all positions.
"""

from __future__ import annotations

import math
import reprlib

import jax.numpy as jnp
import numpy as np

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.part import Metadata, Part
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.rotary.rope import Layout, fixed_rotary, frequencies, rotary


def ntk(w: Float[Array, " F"], factor: Array | float) -> Float[Array, "*B F"]:
    """Return the frequencies `w` for base · s^(r/(r-2)), s = `factor`: the fastest stays as it is,
    the slowest is divided by s."""
    return w * factor ** -np.linspace(0, 1, w.size)


def yarn_scale(
    factor: float, mscale: float | None = None, mscale_all_dim: float | None = None
) -> float:
    """Return the scale of YaRN's sines and cosines: 0.1 ln s + 1, s = `factor`.

    With both `mscale` a and `mscale_all_dim` b, neither of them 0, it is DeepSeek's
    (0.1 a ln s + 1)/(0.1 b ln s + 1).
    """
    if not (mscale and mscale_all_dim):
        return _log_scale(factor, 1.0)
    return _log_scale(factor, mscale) / _log_scale(factor, mscale_all_dim)


def _log_scale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1


@register_encoding
def rope_linear(
    *,
    head_size: int,
    factor: float,
    base: float = 10_000.0,
    layout: Layout = "half",
    fraction: float = 1.0,
    proportional: float = 1.0,
) -> Part:
    """RoPE with all frequencies divided by s = `factor`: position interpolation.

    Source: Chen et al. 2023, eq. 4; Gemma 3.

    Other arguments as in `rope`.

    Raises:
      ValueError: for a factor below 1, and see `rope`.
    """
    check_at_least(1, factor=factor)
    w = frequencies(head_size, base, fraction, proportional) / factor
    return _fixed(
        w,
        layout,
        formula=f"R(ω i / {factor:g})",
        source="Chen et al. 2023, eq. 4",
    )


@register_encoding
def rope_ntk(
    *,
    head_size: int,
    factor: float,
    base: float = 10_000.0,
    layout: Layout = "half",
    fraction: float = 1.0,
) -> Part:
    """RoPE with the base multiplied by s^(r/(r-2)), s = `factor` (NTK-aware interpolation: bloc97
    2023; Peng et al. 2023, section 3.1).

    Other arguments as in `rope`.

    Raises:
      ValueError: for a factor below 1, and see `rope`.
    """
    check_at_least(1, factor=factor)
    w = ntk(frequencies(head_size, base, fraction), factor)
    return _fixed(
        np.asarray(w),
        layout,
        formula=f"R(ω' i), base' = base·{factor:g}^(r/(r−2))",
        source="bloc97 2023",
    )


@register_encoding
def rope_dynamic_ntk(
    *,
    head_size: int,
    factor: float,
    original_length: int,
    base: float = 10_000.0,
    layout: Layout = "half",
    fraction: float = 1.0,
) -> Part:
    """`rope_ntk` by a factor that grows with the length n of the input (see the file's docstring),
    s n/L - (s - 1), from 1 at L = `original_length` (emozilla 2023).

    Other arguments as in `rope`.

    Raises:
      ValueError: for a factor or original length below 1, and see `rope`.
    """
    check_at_least(1, factor=factor, original_length=original_length)
    w = frequencies(head_size, base, fraction)

    def by_length(n: Array) -> Array:
        grown = factor * n / original_length - (factor - 1)
        return ntk(jnp.array(w), jnp.maximum(1.0, grown))

    metadata = Metadata(
        formula="R(ω'(n) i), base' = base·(s n/L − s + 1)^(r/(r−2))",
        source="emozilla 2023",
    )
    return rotary(lambda _: jnp.array(w), w.size, layout, metadata, by_length=by_length)


@register_encoding
def rope_yarn(
    *,
    head_size: int,
    factor: float,
    original_length: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    scale_logits: bool = False,
    truncate: bool = True,
    base: float = 10_000.0,
    layout: Layout = "half",
    fraction: float = 1.0,
) -> Part:
    """YaRN: fast frequencies stay, slow ones are divided by s = `factor`; sines and cosines of
    queries and keys are scaled (Peng et al. 2023, sections 3.2 to 3.4).

    The ramp between the two is linear in a frequency's index, as in the authors' code; the paper's
    is linear in its number of rotations within the original length.

    Args:
      factor: Ratio s of the new maximum length to `original_length`, at least 1.
      original_length: L, of the inputs trained on.
      beta_fast, beta_slow: rotations within L at the ends of the ramp.
      attention_factor: c, the scale of sines and cosines, so that logits are scaled by c². It wins
        over the default, `yarn_scale` of the three others.
      mscale, mscale_all_dim: see `yarn_scale`; one without the other does nothing there.
      scale_logits: all logits, of dimensions that are not rotated too, are multiplied by
        (0.1 b ln s + 1)², b = `mscale_all_dim` (DeepSeek's attention).
      truncate: whether the ends of the ramp are rounded outwards to whole indices.
      base, layout, fraction: as in `rope`.

    Raises:
      ValueError: for a factor or original length below 1, betas that are not positive or in the
        wrong order, a base of 1 or less, a negative attention factor, or `scale_logits` without
        `mscale_all_dim`; and see `rope`.
    """
    check_at_least(1, factor=factor, original_length=original_length)
    if not beta_fast >= beta_slow > 0:
        raise ValueError(
            f"beta_fast >= beta_slow > 0 must hold, got {beta_fast} and {beta_slow}."
        )
    if not base > 1:
        raise ValueError(
            f"base must be above 1 for YaRN, so that its frequencies differ; got {base}."
        )
    if scale_logits and not mscale_all_dim:
        raise ValueError(
            f"scale_logits needs a positive mscale_all_dim, got {mscale_all_dim}."
        )
    scale = attention_factor
    if scale is None:
        scale = yarn_scale(factor, mscale, mscale_all_dim)
    check_at_least(0, attention_factor=scale)
    w = frequencies(head_size, base, fraction)

    def index(rotations: float) -> float:
        """Return the index of the frequency that makes so many rotations within L."""
        wavelengths = original_length / (2 * math.pi * rotations)
        return w.size * math.log(wavelengths) / math.log(base)

    start = index(beta_fast)
    end = index(beta_slow)
    if truncate:
        start = math.floor(start)
        end = math.ceil(end)
    start = max(start, 0)
    end = min(end, 2 * w.size - 1)
    width = (end - start) or 0.001  # As the authors' code, which divides by it.
    ramp = np.clip((np.arange(w.size) - start) / width, 0, 1)
    w = (1 - ramp) * w + ramp * w / factor
    part = _fixed(
        w,
        layout,
        formula=f"c R(ω' i), c = {scale:.4g}, ω' between ω and ω/s",
        source="Peng et al. 2023, sections 3.2–3.4",
        scale=scale,
    )
    if not scale_logits:
        return part
    logit_factor = _log_scale(factor, mscale_all_dim or 0) ** 2
    return part.replace(scale=lambda params, context: logit_factor)


@register_encoding
def rope_llama3(
    *,
    head_size: int,
    factor: float,
    original_length: int,
    low_frequency_factor: float = 1.0,
    high_frequency_factor: float = 4.0,
    base: float = 10_000.0,
    layout: Layout = "half",
    fraction: float = 1.0,
) -> Part:
    """Llama 3.1's scaling of frequencies by their wavelength (Meta 2024, llama-models; no paper).

    Frequencies that rotate more than `high_frequency_factor` times within `original_length` stay,
    those that rotate less than `low_frequency_factor` times are divided by `factor`, and the others
    lie in between. Other arguments as in `rope`.

    Raises:
      ValueError: for a factor or original length below 1, or frequency factors that are not
        positive or in the wrong order; and see `rope`.
    """
    check_at_least(1, factor=factor, original_length=original_length)
    if not high_frequency_factor >= low_frequency_factor > 0:
        raise ValueError(
            "high_frequency_factor >= low_frequency_factor > 0 must hold, got "
            f"{high_frequency_factor} and {low_frequency_factor}."
        )
    w = frequencies(head_size, base, fraction)
    rotations = original_length * w / (2 * np.pi)
    width = (high_frequency_factor - low_frequency_factor) or 1e-9  # None, in Llama 4.
    share = np.clip((rotations - low_frequency_factor) / width, 0, 1)
    w = share * w + (1 - share) * w / factor
    return _fixed(
        w,
        layout,
        formula="R(ω' i), ω' between ω and ω/s by wavelength",
        source="Llama 3.1, Meta 2024",
    )


@register_encoding
def rope_longrope(
    *,
    head_size: int,
    short: tuple[float, ...],
    long: tuple[float, ...],
    factor: float,
    original_length: int,
    attention_factor: float | None = None,
    base: float = 10_000.0,
    layout: Layout = "half",
    fraction: float = 1.0,
) -> Part:
    """LongRoPE: each frequency has a divisor of its own, one list for inputs up to
    `original_length`, one for longer ones (Ding et al. 2024; Phi-3), by the length of the input,
    see the file's docstring.

    Args:
      short, long: the lists, r/2 divisors each.
      factor: s, the longest input over `original_length`; it sets the default scale only.
      original_length: Number L of tokens that the model was trained on.
      attention_factor: c, the scale of sines and cosines at any length; default sqrt(1 + ln s /
        ln L).
      base, layout, fraction: as in `rope`.

    Raises:
      ValueError: for lists that have not r/2 positive divisors each, a factor below 1, an original
        length below 2, or a negative attention factor; and see `rope`.
    """
    check_at_least(1, factor=factor)
    check_at_least(2, original_length=original_length)
    w = frequencies(head_size, base, fraction)
    for name, divisors in (("short", short), ("long", long)):
        if len(divisors) != w.size or min(divisors) <= 0:
            raise ValueError(
                f"{name} must have a positive divisor for each of {w.size} frequencies, got "
                f"{len(divisors)}: {reprlib.repr(divisors)}."
            )
    scale = attention_factor
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original_length))
    check_at_least(0, attention_factor=scale)
    w_short = w / np.array(short)
    w_long = w / np.array(long)

    def by_length(n: Array) -> Array:
        return jnp.where(n > original_length, jnp.array(w_long), jnp.array(w_short))

    metadata = Metadata(
        formula=f"c R(ω_m i / λ_m), c = {scale:.4g}, λ by length",
        source="Ding et al. 2024",
    )
    return rotary(
        lambda _: jnp.array(w_short),
        w.size,
        layout,
        metadata,
        scale=scale,
        by_length=by_length,
    )


def _fixed(
    w: Float[np.ndarray, " F"],
    layout: Layout,
    *,
    formula: str,
    source: str,
    scale: float = 1.0,
) -> Part:
    """Return the part with the frequencies `w` at any length."""
    metadata = Metadata(formula=formula, source=source, invariant=True)
    return fixed_rotary(w, layout, metadata, scale)
