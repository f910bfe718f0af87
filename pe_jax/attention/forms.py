"""Forms of attention, chosen by platform, length and encoding or named by the caller.

All forms give the same numbers, gradients and dropped weights; they differ in time and memory.
docs/performance.md has the measurements behind the choices.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

from pe_jax.encodings.positions import Reach, check_length
from pe_jax.shapes import Size


class Form(NamedTuple):
    """A way of computing attention.

    Attributes:
      plain: as the formula stands, see `plain`; else as `fast` has it, wherever it can.
      pairs: tables of the offset are looked up for each pair of query and key, see `offset_terms`.
      rotation: sinusoids are computed by rotation even with a clip, see `offset_terms`.
      block: queries at a time, for memory linear in the length; None takes all at once.
      kernel: runs as the TPU kernel where that supports the encoding, memory linear as well.
      cudnn: runs as cuDNN's flash attention where that supports the input.
    """

    plain: bool = False
    pairs: bool = False
    rotation: bool = False
    block: int | None = None
    kernel: bool = False
    cudnn: bool = False


FORMS: dict[str, Form] = {
    "naive": Form(plain=True),
    "pairs": Form(pairs=True),
    "buckets": Form(),
    "rotation": Form(rotation=True),
    "fused": Form(block=128),
    # Passed as a `Form` instead of by name, these two fall back to `"fused"`.
    "kernel": Form(block=128, kernel=True),
    "cudnn": Form(block=128, cudnn=True),
}

# For each platform, forms up to a number of keys. The last one holds for all longer inputs.
_AUTO: dict[str, tuple[tuple[float, str], ...]] = {
    "cpu": ((1024, "buckets"), (float("inf"), "fused")),
    # Below 128 keys the kernel would work on padding.
    "tpu": ((127, "pairs"), (float("inf"), "kernel")),
    # Has no rotation of rows by different numbers of lanes, which the kernel is built on.
    "tpu v4": ((256, "pairs"), (1024, "rotation"), (float("inf"), "fused")),
    # "cudnn" is the fastest where it can compute the input, but jax 0.11.2 cannot vmap it, as seeds
    # are.
    "gpu": ((256, "pairs"), (1024, "buckets"), (float("inf"), "fused")),
}
# A window is run in blocks, which skip what it does not reach, from so many times its keys on.
_WINDOWS = 3


PLATFORMS = tuple(_AUTO)


def choose(
    form: str | Form, keys: Size, platform: str | None = None, reach: Reach | None = None
) -> Form:
    """Return the form of a name, the best one here for `"auto"`; a form is returned as it is.

    Args:
      keys: their number. `"auto"` takes `"buckets"` for a symbolic one.
      platform: what the program is compiled for, `"cpu"`, `"gpu"`, `"tpu"` or a generation such as
        `"tpu v4"`; default: where this process runs.
      reach: how far queries attend, where there is a limit.

    Raises:
      ValueError: for an unknown form, or one in blocks with a symbolic number of keys.
    """
    if isinstance(form, Form):
        return form
    if form == "auto":
        if not isinstance(keys, int):
            return FORMS["buckets"]
        platform = platform or _here()
        rules = _AUTO.get(platform) or _AUTO["tpu" if platform.startswith("tpu") else "gpu"]
        chosen = FORMS[next(name for longest, name in rules if keys <= longest)]
        block = FORMS["fused"].block
        span = reach and reach.span
        if span is not None and block and keys >= _WINDOWS * (block + span):
            return chosen._replace(block=block)
        return chosen
    if form not in FORMS:
        raise ValueError(f"form must be one of auto, {', '.join(FORMS)}; got {form!r}.")
    if FORMS[form].block:
        check_length(keys, f"form={form!r}")
    return FORMS[form]


def _here() -> str:
    """The platform of this process."""
    kind = jax.devices()[0].device_kind.lower()
    return kind if kind in _AUTO else jax.default_backend()
