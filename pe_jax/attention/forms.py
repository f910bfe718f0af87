"""Which form of attention runs: chosen by platform, length and encoding, or named by the caller.

All forms give the same numbers, gradients and dropped weights; they differ in time and memory.
docs/performance.md has the measurements behind the choices.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention.offset_terms import How, Terms, rotation, tables
from pe_jax.attention.operands import Operands, Term
from pe_jax.attention.plain import bias
from pe_jax.encodings.positions import Reach


class Form(NamedTuple):
    """How attention is computed.

    Attributes:
      terms: forms of the terms of the offset, in order of preference (see `offset_terms`). None at
        all: as the formula stands (see `plain`).
      block: queries at a time, for memory linear in the length; None takes all at once.
      kernel: runs as the TPU kernel where that supports the encoding, memory linear as well.
    """

    terms: tuple[str, ...] = ()
    block: int | None = None
    kernel: bool = False


FORMS: dict[str, Form] = {
    "naive": Form(),
    "pairs": Form(("pairs",)),
    "buckets": Form(("buckets",)),
    "rotation": Form(("rotation",)),
    "fused": Form(("buckets", "rotation"), block=128),
    "kernel": Form(("buckets", "rotation"), block=128, kernel=True),
}

_BY_PAIRS = Form(("pairs", "rotation"))

# For each platform, forms up to a number of keys. The last one holds for all longer inputs.
_AUTO: dict[str, tuple[tuple[float, Form], ...]] = {
    "cpu": ((1024, Form(("buckets", "rotation"))), (float("inf"), FORMS["fused"])),
    # Below 128 keys the kernel would work on padding.
    "tpu": ((127, _BY_PAIRS), (float("inf"), FORMS["kernel"])),
    # Has no rotation of rows by different numbers of lanes, which the kernel is built on.
    "tpu v4": (
        (256, _BY_PAIRS),
        (1024, Form(("rotation", "buckets"))),
        (float("inf"), FORMS["fused"]),
    ),
    # Not measured on a GPU: as on a TPU, gathers are avoided at lengths where they would show.
    "gpu": (
        (256, _BY_PAIRS),
        (1024, Form(("rotation", "buckets"))),
        (float("inf"), FORMS["fused"]),
    ),
}
# A window is run in blocks, which skip what it does not reach, from so many times its keys on.
_WINDOWS = 3


PLATFORMS = tuple(_AUTO)


def choose(
    form: str | Form, keys: int, platform: str | None = None, reach: Reach | None = None
) -> Form:
    """What `"auto"`, or a name in `FORMS`, stands for; a form stands for itself.

    Args:
      keys: how many there are.
      platform: what the program is compiled for, `"cpu"`, `"gpu"`, `"tpu"` or `"tpu v4"`; default:
        where this process runs.
      reach: how far queries attend, where there is a limit.

    Raises:
      ValueError: for an unknown form.
    """
    if isinstance(form, Form):
        return form
    if form == "auto":
        rules = _AUTO.get(platform or _here(), _AUTO["gpu"])
        found = next(form for longest, form in rules if keys <= longest)
        block = FORMS["fused"].block
        span = reach and reach.span
        if span is not None and block and keys >= _WINDOWS * (block + span):
            return found._replace(block=block)
        return found
    if form not in FORMS:
        raise ValueError(f"Attention has the forms auto, {', '.join(FORMS)}; got {form!r}.")
    return FORMS[form]


def _here() -> str:
    """The platform of this process."""
    kind = jax.devices()[0].device_kind.lower()
    return kind if kind in _AUTO else jax.default_backend()


def arrays(x: Operands, form: Form) -> tuple[How, Terms] | None:
    """The terms of `x` as arrays, in the forms that `form` prefers; None where there is no form but
    the plain one: for vectors of offsets without a clip at positions that are no range, for real
    positions, for positions of a part's own, and for a temperature of each query where vectors join
    the queries.
    """
    in_tables: list[Term] = []
    rotations: list[tuple] = []
    added = [term.logits for term in x.terms if term.logits is not None]
    pairs = False
    for term in x.terms:
        if not term.offsets.has_terms:
            continue
        fitting = [name for name in form.terms if _supports(name, term, x)]
        how = next((name for name in fitting if _suits(name, term)), next(iter(fitting), None))
        if how is None and not any((term.offsets.keys, term.offsets.queries, term.offsets.values)):
            added.append(bias(term))
        elif how is None:
            return None
        elif how == "rotation":
            rotations.append(rotation(term))
        else:
            in_tables.append(term)
            pairs = pairs or how == "pairs"
    clip, rows = tables(in_tables, x.scale)
    mapped = x.q is not x.content_q
    terms = Terms(
        rows if in_tables else None,
        tuple(one for one, _ in rotations),
        x.content_q if mapped and (in_tables or rotations) else None,
        x.content_k if mapped and in_tables else None,
        sum(added[1:], start=added[0]).astype(jnp.float32) if added else None,
    )
    return How(clip, pairs, tuple(clip for _, clip in rotations)), terms


def _supports(form: str, term: Term, x: Operands) -> bool:
    if term.moved:
        return False
    if form == "rotation":
        return supports_rotation(term)
    if term.offsets.queries and jnp.ndim(x.scale):
        return False
    return supports_tables(term)


def _suits(form: str, term: Term) -> bool:
    """Whether a form is as good as it can be: tables of a range of offsets, and for sinusoids not
    of all that occur."""
    clipped = term.offsets.frequencies is None or term.offsets.clip is not None
    return form == "rotation" or (term.shift is not None and clipped)


def supports_rotation(term: Term) -> bool:
    """Whether all its vectors are sinusoids, at positions that gradients do not flow to."""
    others = term.offsets.queries or term.offsets.bias
    return term.offsets.frequencies is not None and not others and not _real(term)


def supports_tables(term: Term) -> bool:
    """Whether its offsets are the integers of a range, or clipped to one."""
    return term.shift is not None or (term.offsets.clip is not None and not _real(term))


def _real(term: Term) -> bool:
    """Whether positions are real numbers."""
    return any(
        not isinstance(p, range) and not np.issubdtype(p.dtype, np.integer) for p in term.positions
    )


_NEEDS = {
    "rotation": "vectors that are sinusoids",
    "buckets": "consecutive positions, given as ranges",
    "pairs": "integer positions, as they are given, and a clip where they are no ranges",
}


def check(form: str | Form, x: Operands, name: str) -> None:
    """Raises:
    ValueError: if a form of terms that was asked for by name cannot compute one of `x`.
    """
    if isinstance(form, str) and form in _NEEDS and not computes(form, x):
        raise unable(form, name, _NEEDS[form])


def computes(form: str, x: Operands) -> bool:
    """Whether a form of terms, by name, can compute all of `x`."""
    return all(
        _supports(form, term, x) and (form != "buckets" or term.shift is not None)
        for term in x.terms
        if term.offsets.has_terms
    )


def unable(form: str, name: str, needs: str) -> ValueError:
    """That `form` cannot compute attention with the encoding called `name`."""
    return ValueError(
        f"Attention in the form {form!r} needs {needs}, which {name!r} has not here. Use 'auto', "
        "or 'naive' or 'fused', which support all."
    )
