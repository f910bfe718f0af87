"""Imitation of a teacher's hidden states: the loss, and the statistics that it needs.

Shapes: N layers, B rows, L length, P positions, D hidden size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention.masks import document_positions
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.models import BertConfig, BertForPretraining, LayerOutputs, layer_outputs
from pe_jax.models.config import ARCHITECTURE, SIZES
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.pytrees import Batch, Params, Sums, checksum
from pe_jax.trainer.training.step import Task, cache_by_arguments


class Statistics(NamedTuple):
    """Statistics of the teacher's outputs on held-out text, float32.

    A variance is the mean squared distance of a token's vector from the mean vector.
    """

    hidden: Float[Array, " N"]  # Variance of each layer's output.
    attention: Float[Array, " N"]  # Variance of each layer's output of attention.
    # From the mean over positions to that of each position; None without `config.centered`.
    centre: Float[Array, "N P D"] | None


@cache_by_arguments
def imitation_task(
    student: BertConfig,
    teacher: BertConfig,
    mesh: jax.sharding.Mesh,
    parallel: str,
    layers: tuple[float, ...],
    attention: float,
    differences: float,
    heads: tuple[str, ...],
) -> Task:
    """Return the task of imitating a teacher.

    Its constants are the parameters of the teacher's `Bert`, and `Statistics`. Its scores are
    `loss`, and R² of the hidden states: 1 minus the squared distance over the variance, of the last
    layer (`r2`), the mean over layers (`r2_mean`), and of each (`r2/layer_1`, ...).

    Args:
      parallel: a name in `sharding.PARALLEL`.
      layers: weights in the loss; empty weights all alike.
      attention: weight of the loss of the attention's outputs.
      differences: weight of half the loss of the states' changes when a row's words are shuffled;
        the others are then means over rows as they are and shuffled. R² is of rows as they are.
      heads: the heads of `BertForPretraining` that the student holds besides; nothing trains them.
    """
    weights = np.array(layers or [1.0] * student.num_layers, np.float32)
    weights /= weights.sum()
    student_outputs = outputs_of(student, mesh, parallel)
    teacher_outputs = _targets_of(teacher, mesh, parallel)
    names = [f"r2/layer_{i}" for i in range(1, student.num_layers + 1)]

    def init(rng: jax.Array) -> Params:
        tokens = jnp.zeros((1, 8), jnp.int32)
        model = BertForPretraining(student)
        params = model.init(rng, tokens, masked_positions=tokens)["params"]
        return {name: params[name] for name in ("bert", *heads)}

    def counts(batch: Batch) -> Sums:
        tokens = _real(batch).sum().astype(jnp.float32)
        return dict.fromkeys(("loss", "r2", "r2_mean", *names), tokens)

    def outputs(
        params: Params, batch: Batch, rng: jax.Array | None = None
    ) -> LayerOutputs:
        return student_outputs(params["bert"], batch, rng)

    def sums(
        params: Params,
        batch: Batch,
        rng: jax.Array | None,
        teacher_params: Params,
        statistics: Statistics,
    ) -> Sums:
        read = _with_shuffles(batch) if differences else batch
        ours = outputs(params, read, rng)
        theirs = teacher_outputs(teacher_params, read)
        hidden = ours.hidden[1:]
        targets = theirs.hidden[1:]
        rows = len(batch["tokens"])  # Those that are not shuffled come first.
        error = _distance(hidden[:, :rows], targets[:, :rows], batch)
        error = error / statistics.hidden
        if statistics.centre is not None:
            targets = _centered(targets, statistics.centre, read)
        loss = _distance(hidden, targets, read) / statistics.hidden
        if attention:
            attention_loss = _distance(ours.attention, theirs.attention, read)
            loss = loss + attention * attention_loss / statistics.attention
        if differences:
            change = _change(hidden, batch["order"])
            target_change = _change(targets, batch["order"])
            change_loss = _distance(change, target_change, batch) / statistics.hidden
            loss = (loss + differences * change_loss) / 2
        r2 = _real(batch).sum() - error
        by_layer = dict(zip(names, r2, strict=True))
        return {"loss": loss @ weights, "r2": r2[-1], "r2_mean": r2.mean(), **by_layer}

    return Task(init, counts, sums, ("loss",), outputs)


@cache_by_arguments
def outputs_of(
    model: BertConfig, mesh: jax.sharding.Mesh, parallel: str
) -> Callable[..., LayerOutputs]:
    """Return `outputs(params of Bert, batch, rng=None)`."""

    def outputs(
        params: Params, batch: Batch, rng: jax.Array | None = None
    ) -> LayerOutputs:
        return layer_outputs(
            model,
            params,
            batch["tokens"],
            batch["token_type_ids"],
            rng=rng,
            document_ids=batch["document_ids"],
        )

    return sharding.gather(outputs, mesh, parallel)


@cache_by_arguments
def _targets_of(
    teacher: BertConfig, mesh: jax.sharding.Mesh, parallel: str
) -> Callable[[Params, Batch], LayerOutputs]:
    """Return `outputs(params of Bert, batch)`, of batches with windows from `teacher_windows`."""
    outputs = outputs_of(teacher, mesh, parallel)

    def targets(params: Params, batch: Batch) -> LayerOutputs:
        if "windows" not in batch:
            return outputs(params, batch)
        rows, _, width = batch["windows"].shape
        sources = batch["windows"].reshape(rows, -1)
        places = batch["window_places"]

        def by_window(x: Int[Array, "B L"]) -> Int[Array, "B*R W"]:
            return jnp.take_along_axis(x, sources, 1).reshape(-1, width)

        windows = {
            "tokens": by_window(batch["tokens"]),
            "token_type_ids": by_window(batch["token_type_ids"]),
            "document_ids": batch["window_document_ids"].reshape(-1, width),
        }

        def by_token(x: Float[Array, "N R W D"]) -> Float[Array, "N B L D"]:
            x = x.reshape(len(x), rows, -1, x.shape[-1])
            return jnp.take_along_axis(x, places[None, :, :, None], 2)

        return jax.tree.map(by_token, outputs(params, windows))

    return targets


def _distance(
    ours: Float[Array, "N B L D"], theirs: Float[Array, "N B L D"], batch: Batch
) -> Float[Array, " N"]:
    """Squared distances at real tokens, added up."""
    difference = ours.astype(jnp.float32) - theirs.astype(jnp.float32)
    return jnp.where(_real(batch)[..., None], difference**2, 0).sum((1, 2, 3))


def _with_shuffles(batch: Batch) -> Batch:
    """The rows of a batch, and the same with their words in another order."""
    tokens = jnp.take_along_axis(batch["tokens"], batch["order"], 1)
    shuffled = batch | {"tokens": tokens}
    return jax.tree.map(lambda *both: jnp.concatenate(both), batch, shuffled)


def _change(
    hidden: Float[Array, "N 2*B L D"], order: Int[Array, "B L"]
) -> Float[Array, "N B L D"]:
    """How far each token's state moves when its row is shuffled; see `_with_shuffles`."""
    text, shuffled = jnp.split(hidden.astype(jnp.float32), 2, axis=1)
    back = jnp.argsort(order, 1)[None, :, :, None]
    return jnp.take_along_axis(shuffled, back, 2) - text


def _real(batch: Batch) -> Bool[Array, "B L"]:
    """True at tokens, False at padding."""
    return batch["document_ids"] > 0


def _centered(
    hidden: Float[Array, "N B L D"], centre: Float[Array, "N P D"], batch: Batch
) -> Float[Array, "N B L D"]:
    """Hidden states without the mean of their position, except at special tokens."""
    shift = centre[:, document_positions(batch["document_ids"])]
    return hidden.astype(jnp.float32) - jnp.where(batch["text"][..., None], shift, 0)


def measure(
    config: DistillationConfig,
    teacher: BertConfig,
    mesh: jax.sharding.Mesh,
    params: Params,
    held_out: Sequence[Sequence[Batch]],
) -> list[Statistics]:
    """Return the statistics of a teacher on held-out batches, for each stage.

    Args:
      params: of the teacher's `Bert`, with the shardings of `sharding.state_shardings`.
      held_out: batches of each stage.
    """
    sums = _statistics_of(_targets_of(teacher, mesh, config.parallel), config.centered)
    # With the shardings that both arguments come with.
    step = sharding.compiled(sums, mesh, (None, None))
    stages = []
    for batches in held_out:
        stages.append([_to_float64(step(params, batch)) for batch in batches])
    centre = None
    if config.centered:
        longest = max(stages, key=lambda totals: len(totals[0]["texts"]))
        centre = _centre(longest)
    return [
        Statistics(
            hidden=_variance(totals, "hidden"),
            attention=_variance(totals, "attention"),
            centre=centre,
        )
        for totals in stages
    ]


def _to_float64(sums: Sums) -> dict[str, np.ndarray]:
    return {name: np.asarray(x, np.float64) for name, x in sums.items()}


@cache_by_arguments
def _statistics_of(
    outputs: Callable[..., LayerOutputs], by_position: bool
) -> Callable[[Params, Batch], Sums]:
    """Return the function that adds up what `measure` needs of a batch, also by position or not."""

    def sums(params: Params, batch: Batch) -> Sums:
        theirs = outputs(params, batch)
        real = _real(batch)
        hidden = theirs.hidden[1:].astype(jnp.float32)
        attention = theirs.attention.astype(jnp.float32)
        totals = {
            "tokens": real.sum(),
            **_mean_and_spread(hidden, real, "hidden"),
            **_mean_and_spread(attention, real, "attention"),
        }
        if not by_position:
            return totals
        text = batch["text"]
        positions = document_positions(batch["document_ids"])
        counts = jnp.zeros(text.shape[1], jnp.int32)
        vectors = jnp.zeros_like(hidden[:, 0])
        of_text = jnp.where(text[..., None], hidden, 0)
        return totals | {
            "texts": counts.at[positions].add(text),
            "by_position": vectors.at[:, positions].add(of_text),
        }

    return sums


def _mean_and_spread(x: Float[Array, "N B L D"], real: Array, name: str) -> Sums:
    """The mean vector of the real tokens of a batch, and the sum of squared distances from it."""
    # Squares of the vectors themselves would be too coarse in float32 beside a large mean.
    mask = real[..., None]
    mean = jnp.where(mask, x, 0).sum((1, 2), keepdims=True) / jnp.maximum(real.sum(), 1)
    spread = jnp.where(mask, (x - mean) ** 2, 0).sum((1, 2, 3))
    return {f"{name}_mean": mean[:, 0, 0], f"{name}_spread": spread}


def _variance(batches: Sequence[dict[str, np.ndarray]], name: str) -> np.ndarray:
    """The variance of all tokens, within batches and between them."""

    def stacked(key: str) -> np.ndarray:
        return np.stack([batch[key] for batch in batches])

    tokens = stacked("tokens")
    means = stacked(f"{name}_mean")
    spreads = stacked(f"{name}_spread")
    mean = np.average(means, axis=0, weights=tokens)
    between = np.average(((means - mean) ** 2).sum(-1), axis=0, weights=tokens)
    return (spreads.sum(0) / tokens.sum() + between).astype(np.float32)


def _centre(batches: Sequence[dict[str, np.ndarray]]) -> np.ndarray:
    """Return `[N, P, D]`, zero at positions without text."""
    counts = np.sum([batch["texts"] for batch in batches], axis=0)[:, None]
    by_position = np.sum([batch["by_position"] for batch in batches], axis=0)
    mean = by_position.sum(1, keepdims=True) / counts.sum()
    centre = np.where(counts > 0, by_position / np.maximum(counts, 1) - mean, 0)
    return centre.astype(np.float32)


def teacher_checksum(teacher: BertConfig, params: Params) -> str:
    """Return a checksum of all that the teacher's hidden states depend on."""
    names = (*SIZES, *ARCHITECTURE, "max_length")
    settings = {name: getattr(teacher, name) for name in names}
    facts = [teacher.encoding().name, settings, checksum(params)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
