"""Position parameters that imitate the attention of another model, by least squares.

A teacher's attention logits, averaged over texts, are a function of the positions of query and key:
its *positional logits*. Another encoding is fitted to them layer by layer, without training.

Shapes: B texts, L length, N layers, H heads, d head size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from pe_jax.attention import attention_logits
from pe_jax.console.terminal import log
from pe_jax.data import PackedExamples
from pe_jax.encodings import Params, PositionEncoding, embed, parameter_count
from pe_jax.models import BertConfig, kernel_map, queries_keys_values
from pe_jax.properties import Estimate, offset_kernel
from pe_jax.properties.offset_share import centred_rows
from pe_jax.shapes import Array, Bool, Float, Int
from pe_jax.tasks.attention_windows import without_positions

_ROWS = 64  # Held-out rows that positions are fitted on.
_BATCH = 4  # Texts whose logits of all layers are in memory at a time.
_STEPS = 100  # Of L-BFGS.


class PositionFit(NamedTuple):
    """Fitted position parameters.

    Attributes:
      params: of the student's encoding.
      explained: `[N]`, the share of the variance of the teacher's positional logits within their
        rows that the fit reproduces, by layer.
    """

    params: Params
    explained: Float[np.ndarray, " N"]


@functools.partial(jax.jit, static_argnames=("teacher", "length"))
def keep_table_mean(
    teacher: BertConfig, teacher_params: Params, student_params: Params, length: int
) -> Params:
    """Return the student's parameters with the mean of the teacher's first `length` position
    vectors added to the embedding of token types, or to that of tokens where there is none.

    The mean is the same for all tokens. So it is no position, and a student without the table
    should keep it.

    Args:
      teacher_params, student_params: of `Bert`.
    """
    zeros = jnp.zeros((1, length, teacher.hidden_size))
    positions, tokens = teacher_params.get("position", {}), jnp.zeros((1, length), jnp.int32)
    vectors = embed(teacher.encoding(), positions, zeros, range(length), tokens=tokens)
    name = "segment" if "segment" in student_params else "token"
    table = student_params[name]["embedding"]
    moved = table + vectors.mean((0, 1)).astype(table.dtype)
    return {**student_params, name: {"embedding": moved}}


def full_rows(rows: PackedExamples) -> Int[np.ndarray, "B L"]:
    """Return the tokens of some rows without padding, spread over the text."""
    full = len(rows) - 1  # The last one is padded.
    if full < 1:
        raise ValueError(
            "config.fit=True needs more than one row of held-out text. Raise config.data.held_out, "
            "give more text, or leave fit out."
        )
    numbers = np.linspace(0, full, min(_ROWS, full), endpoint=False, dtype=int)
    rng = np.random.default_rng(0)  # Nothing is drawn: the rows have no masks.
    return np.stack([rows(int(number), rng)["tokens"] for number in numbers])


def inner_pairs(length: int) -> Bool[np.ndarray, "L L"]:
    """Return True at pairs of tokens between the first and the last: [CLS] and [SEP] are at the
    same positions in all texts, so that their effect could not be told from that of positions."""
    inside = np.zeros(length, bool)
    inside[1:-1] = True
    return inside & inside[:, None]


def mean_logits(config: BertConfig, params: Params, tokens: Int[Array, "B L"]) -> Estimate:
    """Return the mean over texts of the logits that enter the softmax, and its standard error.

    Returns:
      `[N, H, L, L]` each, 0 outside `inner_pairs`.
    """
    where = inner_pairs(tokens.shape[1])
    phi = offset_kernel(kernel_map(config), params, tokens[:, None], where=where, batch=_BATCH)
    return Estimate(*(jnp.where(where, x, 0) / config.head_size**0.5 for x in phi))


def fit_positions(
    teacher: BertConfig,
    teacher_params: Params,
    student: BertConfig,
    student_params: Params,
    tokens: Int[Array, "B L"],
) -> PositionFit:
    """Fit the position parameters of a student to the positional logits of a teacher.

    Minimises, over the parameters of all layers,

        mean over layers of Σ (T + r - F)² / Σ (T - mean of row)²

    by L-BFGS, where

    - T: the teacher's mean logits minus those of the student without positions.
    - F: the terms that the student's encoding adds, computed with the teacher's mean query and key.
    - r: one constant for each row, to which the softmax is invariant.

    For biases that are linear in their parameters, and for vectors that meet the queries, this is
    linear least squares.

    Args:
      teacher_params, student_params: of `Bert`; all but the position of the student may have been
        taken from the teacher.
      tokens: texts `[CLS] ... [SEP]` without padding.

    Raises:
      ValueError: if the student's encoding cannot be fitted, see `fit_obstacle`.
    """
    if fault := fit_obstacle(student):
        raise ValueError(f"{student.encoding().name!r} cannot be fitted: {fault} Distill it.")
    bare = without_positions(student)
    bare_params = {name: leaf for name, leaf in student_params.items() if name != "position"}
    target = mean_logits(teacher, teacher_params, tokens).mean
    target -= mean_logits(bare, bare_params, tokens).mean
    where = inner_pairs(tokens.shape[1])
    target, _ = centred_rows(target, where)
    queries, keys, _ = queries_keys_values(teacher, teacher_params, tokens[: 4 * _BATCH])
    content = [x.mean((1, 2)) for x in (queries, keys)]
    start, unravel = ravel_pytree(student_params["position"])
    flat, errors = _minimise(
        lambda flat: _errors(student.encoding(), unravel(flat), content, target, where), start
    )
    return PositionFit(unravel(flat), 1 - np.asarray(errors))


def fit_obstacle(student: BertConfig) -> str:
    """Return a sentence on why `fit_positions` cannot fit a model's encoding; empty if it can."""
    encodings = [student.encoding().layer(i).in_attention for i in range(student.num_layers)]
    if not any(parameter_count(encoding) for encoding in encodings):
        return "it has no parameters in attention."
    q = jax.ShapeDtypeStruct((1, 4, student.num_heads, student.head_size), jnp.float32)
    try:
        for encoding in encodings:
            params = jax.eval_shape(encoding.init, jax.random.key(0))
            jax.eval_shape(
                functools.partial(attention_logits, encoding=encoding), q, q, params=params
            )
    except ValueError:
        return "its terms depend on more than positions, queries and keys."
    return ""


def better_start(start: Params, fit: PositionFit, score: Callable[[Params], float]) -> Params:
    """Return parameters of a model with heads and fitted positions, or `start` if these score
    better: vectors that are added to both keys and values are fitted through the keys only."""
    fitted = {**start, "bert": {**start["bert"], "position": fit.params}}
    before, after = score(start), score(fitted)
    explained = ", ".join(f"{share:.2f}" for share in fit.explained)
    log(f"Positions fitted to the teacher's mean logits; explained by layer: {explained}.")
    choice = "the fitted ones" if after > before else "those that were drawn"
    log(f"Mean R² of positions as drawn {before:.3f}, fitted {after:.3f}: kept {choice}.")
    return fitted if after > before else start


def _errors(
    encoding: PositionEncoding,
    params: Params,
    content: list[Float[Array, "N H d"]],
    target: Float[Array, "N H L M"],
    where: Bool[np.ndarray, "L L"],
) -> Float[Array, " N"]:
    """Return the squared error of each layer over the target's square."""
    length, errors = len(where), []
    for layer, (query, key, goal) in enumerate(zip(*content, target, strict=True)):
        q, k = (jnp.broadcast_to(x, (1, length, *x.shape)) for x in (query, key))
        layer_params = encoding.layer_params(params, layer)
        logits = attention_logits(q, k, encoding.layer(layer).in_attention, layer_params)
        terms, _ = centred_rows(logits[0], where)  # q·k is the same in a row, and drops out.
        errors.append(((terms - goal) ** 2).sum() / (goal**2).sum())
    return jnp.stack(errors)


def _minimise(
    errors: Callable[[Array], Float[Array, " N"]], start: Float[Array, " P"]
) -> tuple[Array, Array]:
    """Return the minimum of the mean of `errors` by L-BFGS, and the errors there."""
    import scipy.optimize  # Takes long, and few runs fit.

    loss = jax.jit(jax.value_and_grad(lambda x: errors(x).mean()))
    found = scipy.optimize.minimize(
        lambda x: tuple(np.asarray(part, float) for part in loss(x.astype(start.dtype))),
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": _STEPS},
    )
    x = jnp.asarray(found.x, start.dtype)
    return x, jax.jit(errors)(x)
