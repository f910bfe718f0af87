"""Comparison of other code with golden vectors, and the mistakes that explain a difference."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pe_jax.common.markdown import raw_table
from pe_jax.common.records import Record
from pe_jax.golden.cases import LENGTH, Case
from pe_jax.golden.files import read
from pe_jax.golden.formula import evaluate, formula_of
from pe_jax.golden.mistakes import mistakes
from pe_jax.golden.vectors import Golden, Layer, inputs_of

# Takes arguments of `ARGUMENTS`; returns attention `[B, Lq, H, d]`, or rotated queries and keys.
Function = Callable[..., Any]
ARGUMENTS = (
    "q",
    "k",
    "v",
    "positions_q",
    "positions_k",
    "mask",
    "allowed",
    "layer",
    "config",
)


class Failure(Record):
    """A case that other code gets wrong.

    Attributes:
      case, layer: names in the file.
      difference: the largest, relative to the largest value; NaN if values are not finite.
      tolerance: what was allowed.
      causes: mistakes that give the same numbers; empty if none of those that are known does.
      error: the exception's text, if the function raised one.
    """

    case: str
    layer: str
    difference: float
    tolerance: float
    causes: tuple[str, ...] = ()
    error: str = ""


def check(
    function: Function, file: str | Path, dtype: str = "float32"
) -> list[Failure]:
    """Compare a function with the golden vectors in NAME.safetensors, next to NAME.json.

    The function gets those of these arguments that it names:

        q, k, v                   [B, Lq, H, d], [B, L, G, d] twice, float32 or bfloat16
        positions_q, positions_k  [B, Lq], [B, L] integers; [B, L, A] with several axes
        mask                      [B, 1, Lq, L] bool, True where a query may attend to a key
        allowed                   [B, 1, Lq, L], mask and window together
        layer, config             the index of the layer, and the whole config

    Each head of k and v serves H / G consecutive heads of q.

    With `v` it returns attention, `[B, Lq, H, d]`; without, the rotated queries and keys, whose
    products are compared where a query attends to the key. Such a function may leave the
    temperature of the softmax out, or multiply the queries by it.

    Args:
      function: the code to check.
      file: NAME.safetensors, which `write` made.
      dtype: that the function computes in, `"float32"` or `"bfloat16"`, for the tolerance.

    Returns:
      The cases and layers that differ; empty if the function is right.

    Raises:
      ValueError: for a function with other arguments, and for a file that is missing, damaged or of
        another format.
    """
    names = tuple(inspect.signature(function).parameters)
    strange = [name for name in names if name not in ARGUMENTS]
    if strange or "q" not in names or "k" not in names:
        raise ValueError(
            f"The function must take q, k and any of {', '.join(ARGUMENTS[2:])}; got "
            f"{', '.join(names) or 'no arguments'}."
        )
    golden = read(Path(file))
    failures = []
    for name in golden.cases:
        for kind in golden.layers:
            failure = _compare(function, names, golden, name, kind, dtype)
            if failure is not None:
                failures.append(failure)
    return failures


def _compare(
    function: Function,
    names: tuple[str, ...],
    golden: Golden,
    name: str,
    kind: str,
    dtype: str,
) -> Failure | None:
    """Return how a function differs in a case and a kind of layer; None if it passes."""
    case = golden.cases[name]
    right = golden.results[name][kind]
    inputs = inputs_of(golden, kind, case)
    tolerance = max(case.tolerance(dtype), case.tolerance(case.dtype))
    attends = "v" in names
    facts = {"layer": int(kind.removeprefix("layer_")), "config": golden.config}
    try:
        result = _call(function, names, case, right.allowed, inputs, facts)
    except (Exception, SystemExit) as error:  # An exit would be a check that passed.
        first_line = next(iter(str(error).splitlines()), "")
        return Failure(
            case=name,
            layer=kind,
            difference=np.nan,
            tolerance=tolerance,
            error=f"{type(error).__name__}: {first_line}",
        )

    def difference_from(expected: Layer) -> float:
        if attends:
            out = expected.out.astype(np.float64)
            return _difference(result, _padded(out, inputs[0].shape[-1]))
        logits = expected.logits.astype(np.float64)
        return _difference(
            np.where(right.allowed, result, 0), np.where(right.allowed, logits, 0)
        )

    difference = difference_from(right)
    if difference <= tolerance:
        return None
    others = {other: formula_of(golden, other, case) for other in golden.layers}
    formula = others.pop(kind)
    if not attends:  # A temperature is the attention's matter, not the rotation's.
        formula = formula._replace(temperature=None)
        difference = np.fmin(difference, difference_from(evaluate(formula)))
    if difference <= tolerance:
        return None
    causes: list[str] = []
    length = int(case.positions.max()) + 1
    with np.errstate(all="ignore"):  # Positions of float16 may be infinite.
        for cause, wrong in mistakes(formula, others, length):
            if cause in causes:
                continue
            if difference_from(evaluate(wrong)) <= tolerance:
                causes.append(cause)
    return Failure(
        case=name,
        layer=kind,
        difference=float(difference),
        tolerance=tolerance,
        causes=tuple(causes),
    )


def _padded(x: np.ndarray, size: int) -> np.ndarray:
    """Return `[..., f]` with zeros up to a size."""
    missing = size - x.shape[-1]
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])


def _call(
    function: Function,
    names: tuple[str, ...],
    case: Case,
    allowed: np.ndarray,
    inputs: Sequence[np.ndarray],
    facts: dict[str, Any],
) -> np.ndarray:
    """Return attention `[B, Lq, H, d]`, or logits `[B, H, Lq, L]`, 0 where a call lacks the key."""
    q, k, v = inputs
    v = _padded(v, k.shape[-1])
    index = np.arange(LENGTH)[case.queries]
    calls = index[:, None] if case.steps else index[None]
    results = []
    for number, queries in enumerate(calls):
        keys = rows = slice(None)
        if case.steps:  # One query, and the keys up to itself.
            keys = slice(0, queries[0] + 1)
            rows = slice(number, number + 1)
        arguments = {
            "q": q[:, queries],
            "k": k[:, keys],
            "v": v[:, keys],
            "positions_q": case.positions[:, queries],
            "positions_k": case.positions[:, keys],
            "mask": case.mask[:, None, queries, keys],
            "allowed": allowed[:, :, rows, keys],
            **facts,
        }
        result = function(**{name: arguments[name] for name in names})
        if "v" in names:
            results.append(_checked("attention", result, arguments["q"]))
            continue
        rotated_q, rotated_k = result
        rotated_q = _checked("rotated queries", rotated_q, arguments["q"])
        rotated_k = _checked("rotated keys", rotated_k, arguments["k"])
        group = q.shape[2] // k.shape[2]
        rotated_k = np.repeat(rotated_k, group, axis=2)
        products = np.einsum("bqhd,bkhd->bhqk", rotated_q, rotated_k)
        results.append(_padded(products / np.sqrt(q.shape[-1]), LENGTH))
    return np.concatenate(results, 1 if "v" in names else 2)


def _checked(what: str, result: Any, like: np.ndarray) -> np.ndarray:
    """Return an array that the function made, as float64.

    Raises:
      ValueError: if it is complex, or has not the shape of `like`.
    """
    if np.iscomplexobj(result):
        raise ValueError(f"{what} must be real numbers, got complex ones")
    array = np.asarray(result, np.float64)
    if array.shape != like.shape:
        raise ValueError(f"{what} must be {list(like.shape)}, got {list(array.shape)}")
    return array


def _difference(result: np.ndarray, expected: np.ndarray) -> float:
    largest = max(np.abs(expected).max(), 1e-30)
    return float(np.abs(result - expected).max() / largest)


def report(failures: list[Failure]) -> str:
    """Return failures as Markdown."""
    rows = []
    for failure in failures:
        difference = failure.error or f"{failure.difference:.2g}"
        causes = "; ".join(failure.causes)
        if not causes and not failure.error:
            causes = "unknown"
        allowed = f"{failure.tolerance:.2g}"
        rows.append([failure.case, failure.layer, difference, allowed, causes])
    lines = raw_table(["case", "layer", "difference", "allowed", "as if"], rows)
    common = common_causes(failures)
    if common:
        names = ", or ".join(common)
        lines += ["", f"As if {names}: that gives the same numbers in all of them."]
    return "\n".join(lines)


def common_causes(failures: Sequence[Failure]) -> list[str]:
    """Return the mistakes that explain all failures."""
    if not failures:
        return []
    shared = set.intersection(*(set(failure.causes) for failure in failures))
    return [cause for cause in failures[0].causes if cause in shared]
