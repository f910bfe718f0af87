"""Comparison of other code with golden vectors, and the mistakes that explain a difference."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

from pe_jax.console.markdown import raw_table
from pe_jax.encodings.encoding import PositionEncoding
from pe_jax.encodings.modifiers.window import window
from pe_jax.encodings.part import Part
from pe_jax.encodings.rotary.rope import rope
from pe_jax.files import read_json
from pe_jax.golden.vectors import (
    FORMAT,
    LENGTH,
    Case,
    Golden,
    Layer,
    attend,
    attention_factor,
    golden_vectors,
    head_size,
    rotated_pairs,
)

# Takes arguments of `ARGUMENTS`; returns attention `[1, Lq, H, d]`, or rotated queries and keys.
Function = Callable[..., Any]
ARGUMENTS = ("q", "k", "v", "positions_q", "positions_k", "mask", "allowed", "layer", "config")


class Failure(NamedTuple):
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


def check(function: Function, file: str | Path, dtype: str = "float32") -> list[Failure]:
    """Compare a function with the golden vectors in NAME.safetensors, next to NAME.json.

    The function gets those of these arguments that it names:

        q, k, v                   [1, Lq or L, H, d], float32 or bfloat16; k and v with one head
        positions_q, positions_k  [1, Lq], [1, L] integers; [1, L, A] with several axes
        mask                      [1, 1, Lq, L] bool, True where a query may attend to a key
        allowed                   [1, H or 1, Lq, L], mask and window together
        layer, config             the index of the layer, and the whole config

    With `v` it returns attention, `[1, Lq, H, d]`; without, the rotated queries and keys, whose
    products are compared.

    Args:
      dtype: that the function computes in, `"float32"` or `"bfloat16"`, for the tolerance.

    Raises:
      ValueError: for a function with other arguments, or a file of another format.
    """
    names = tuple(inspect.signature(function).parameters)
    strange = [name for name in names if name not in ARGUMENTS]
    if strange or "q" not in names or "k" not in names:
        raise ValueError(
            f"The function must take q, k and any of {', '.join(ARGUMENTS[2:])}; got "
            f"{', '.join(names) or 'no arguments'}."
        )
    golden = _read(Path(file))
    compared = [
        _compare(function, names, golden, name, kind, dtype)
        for name in golden.cases
        for kind, layer in golden.layers.items()
        # A rotation has no temperature.
        if "v" in names or not any(part.factor for part in layer.parts)
    ]
    return [failure for failure in compared if failure]


def _read(path: Path) -> Golden:
    about = read_json(path.with_suffix(".json"), "Write it again with pe-jax golden.")
    if about.get("format") != FORMAT:
        raise ValueError(
            f"{path.with_suffix('.json')} has format {about.get('format')!r}; this version reads "
            f"{FORMAT}. Write it again with pe-jax golden."
        )
    arrays = load_file(path)
    golden = golden_vectors(about["config"], cases=())
    cases = {
        name: Case(
            arrays[f"{name}/positions"], arrays[f"{name}/mask"], slice(*facts["queries"]),
            facts["one_query_at_a_time"], facts["inputs"],
        )
        for name, facts in about["cases"].items()
    }  # fmt: skip
    results = {
        name: {
            kind: Layer(*(arrays[f"{name}/{kind}/{field}"] for field in Layer._fields))
            for kind in golden.layers
        }
        for name in cases
    }
    q, k, v = (arrays[name] for name in "qkv")
    return golden._replace(q=q, k=k, v=v, cases=cases, results=results)


def _compare(
    function: Function, names: tuple[str, ...], golden: Golden, name: str, kind: str, dtype: str
) -> Failure | None:
    """Return how a function differs in a case and a kind of layer; None if it passes."""
    case, layer, right = golden.cases[name], golden.layers[kind], golden.results[name][kind]
    inputs = [x[..., : head_size(layer)] for x in (golden.q, golden.k, golden.v)]
    tolerance = max(case.tolerance(dtype), case.tolerance(case.dtype))

    def compared(result: Layer) -> np.ndarray:
        if "v" in names:
            return result.out.astype(np.float64)
        return np.where(case.keys(), result.logits.astype(np.float64), 0)

    facts = {"layer": int(kind.removeprefix("layer_")), "config": golden.config}
    try:
        result = _call(function, names, case, right.allowed, inputs, facts)
    except Exception as error:
        text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return Failure(name, kind, np.nan, tolerance, (), text)
    difference = _difference(result, compared(right))
    if difference <= tolerance:
        return None
    others = {key: other for key, other in golden.layers.items() if key != kind}
    causes = tuple(
        cause
        for cause, wrong_layer, wrong_case in _mistakes(layer, case, others)
        if _difference(result, compared(attend(wrong_layer, wrong_case, *inputs))) <= tolerance
    )
    return Failure(name, kind, difference, tolerance, causes)


def _call(
    function: Function,
    names: tuple[str, ...],
    case: Case,
    allowed: np.ndarray,
    inputs: Sequence[np.ndarray],
    facts: dict[str, Any],
) -> np.ndarray:
    """Return attention `[Lq, H, d]`, or logits `[H, Lq, L]`, 0 where a call lacks the key."""
    dtype = ml_dtypes.bfloat16 if case.dtype == "bfloat16" else np.float32
    q, k, v = (x.astype(dtype)[None] for x in inputs)
    index = np.arange(LENGTH)[case.queries]
    rows = []
    for number, queries in enumerate(index[:, None] if case.steps else index[None]):
        keys = slice(0, queries[-1] + 1) if case.steps else slice(None)
        of = slice(number, number + 1) if case.steps else slice(None)
        arguments = {
            "q": q[:, queries], "k": k[:, keys], "v": v[:, keys],
            "positions_q": case.positions[None, queries], "positions_k": case.positions[None, keys],
            "mask": case.mask[None, None, queries, keys], "allowed": allowed[None, :, of, keys],
            **facts,
        }  # fmt: skip
        result = function(**{name: arguments[name] for name in names})
        if "v" in names:
            rows.append(np.asarray(result, np.float64)[0])
            continue
        rotated_q, rotated_k = (np.asarray(x, np.float64)[0] for x in result)
        logits = np.einsum("qhd,kd->hqk", rotated_q, rotated_k[:, 0]) / np.sqrt(q.shape[-1])
        rows.append(np.pad(logits, [(0, 0), (0, 0), (0, LENGTH - logits.shape[-1])]))
    return np.concatenate(rows, 0 if "v" in names else 1)


def _difference(result: np.ndarray, expected: np.ndarray) -> float:
    if result.shape != expected.shape:
        return np.inf
    return float(np.abs(result - expected).max() / max(np.abs(expected).max(), 1e-30))


def _mistakes(
    layer: PositionEncoding, case: Case, others: dict[str, PositionEncoding]
) -> Iterator[tuple[str, PositionEncoding, Case]]:
    """Yield what is often computed instead, with the layer and the case that give it."""
    if case.positions.ndim == 1:
        index, first = np.arange(LENGTH), case.queries.start or 0
        rounded = case.positions.astype(ml_dtypes.bfloat16).astype(case.positions.dtype)
        from_0 = 0 * index if case.steps else index - first
        for what, wrong in {
            "positions are rounded to bfloat16": case._replace(positions=rounded),
            "positions are indices in the row": case._replace(positions=index),
            "queries are at 0, 1, ...": case._replace(query_positions=from_0),
            "positions are indices, and queries at 0, 1, ...": case._replace(
                positions=index, query_positions=from_0
            ),
        }.items():
            yield what, layer, wrong
    yield "the mask is ignored", layer, case._replace(mask=np.ones_like(case.mask))
    for number, part in enumerate(layer.parts):
        for what, other in _wrong_parts(part, others):
            parts = (*layer.parts[:number], *other.parts, *layer.parts[number + 1 :])
            yield what, dataclasses.replace(layer, parts=parts), case


def _wrong_parts(
    part: Part, others: dict[str, PositionEncoding]
) -> Iterator[tuple[str, PositionEncoding]]:
    """Yield wrong encodings that stand in for a part of a layer."""
    if part.constructor is None:
        return
    make, options = part.constructor.func, part.constructor.keywords
    accepted = inspect.signature(make).parameters
    if part.offsets and part.offsets.reach:
        yield "the window is missing", PositionEncoding()
        if reach := options.get("reach"):
            yield "the window is one key longer", window(reach=reach + 1)
            yield "the window is one key shorter", window(reach=max(reach - 1, 1))
    elif part.factor and not part.heads:
        yield f"{part.name} is missing", PositionEncoding()
    elif part.offsets and part.offsets.bias:
        yield f"the bias of {part.name} is missing", PositionEncoding()
    if not rotated_pairs(part):
        return
    yield "nothing is rotated", PositionEncoding()
    if "layout" in accepted:
        halves = options.get("layout", "half") == "half"
        what = "neighbours rotate instead of halves" if halves else "halves instead of neighbours"
        yield what, make(**options | {"layout": "interleaved" if halves else "half"})
    if options.get("fraction", 1) != 1 and make.__name__ == "rope":
        yield "all dimensions rotate", make(**options | {"fraction": 1.0})
    kept = ("head_size", "base", "layout", "fraction")
    if make.__name__.startswith("rope_") and "factor" in accepted:
        plain = rope(**{key: value for key, value in options.items() if key in kept})
        yield "frequencies and scale are those of unscaled RoPE", plain
    if "attention_factor" in accepted:
        scale = attention_factor(PositionEncoding((part,)))
        for what, power in {"is missing": 0, "counts twice": 2}.items():
            wrong = make(**options | {"attention_factor": scale**power})
            yield f"the attention factor, {scale:.4g}, {what}", wrong
    for name, other in others.items():
        for one in other.parts:
            if rotated_pairs(one) and one != part:
                yield f"the rotation is that of {name}", PositionEncoding((one,))


def report(failures: list[Failure]) -> str:
    """Return failures as Markdown."""
    rows = [
        [
            f.case,
            f.layer,
            f.error or f"{f.difference:.2g}",
            f"{f.tolerance:.2g}",
            "; ".join(f.causes) or ("" if f.error else "unknown"),
        ]
        for f in failures
    ]
    return "\n".join(raw_table(["case", "layer", "difference", "allowed", "as if"], rows))
