"""Part on order: how far shuffled words move the hidden states of texts."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import properties
from pe_jax.models import BertConfig, hidden_states
from pe_jax.properties import SHUFFLES
from pe_jax.trainer.configs.all_tasks import ENCODERS
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.configs.pretraining import EncoderTrainingConfig
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report import render
from pe_jax.trainer.reports.property_report.render import Findings
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel
from pe_jax.trainer.reports.property_report.texts import texts
from pe_jax.trainer.tasks.pretrained_source import PretrainedSource
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.pytrees import Params
from pe_jax.trainer.training.workdir import load_config


@render.part(
    "Order sensitivity",
    "How far the states of the last layer move when a text is shuffled: all words, neighbouring "
    "words in pairs, or sentences. Pooled: 1 − cosine of the mean states. By token: √(Σ‖h′ − h‖² / "
    "Σ‖h − mean‖²), each token followed to its new place. A distilled model is compared with its "
    "teacher on the same shuffles: the teacher's numbers, and R² of the changes, 1 if they are the "
    "teacher's, 0 if they are as far from them as no change.",
    ["model", "shuffle", ("pooled", ".4f"), ("teacher", ".4f"), ("R²", ".3f"),
     ("by token", ".3f"), ("teacher", ".3f"), ("R²", ".3f")],
)  # fmt: skip
def order_sensitivity(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure changes of the last hidden states by kind of shuffle, and those of the teacher."""
    read, name, findings = texts(subject, config), subject.name, Findings()
    count, length = read.tokens.shape
    # Random words are tokens that begin no sentence.
    words = np.broadcast_to(np.array([True, False])[:, None, None], (2, count, length))
    begins, ends = (words, (0, 0)) if read.begins is None else (read.begins, (1, 1))
    orders = properties.shuffled_orders(begins, ends=ends, seed=config.seed)

    def states(model: BertConfig, params: Params) -> jax.Array:
        tokens = jnp.asarray(read.tokens)
        return properties.states_by_order(_last_states(model), params, tokens, orders)

    theirs = None
    try:
        if (teacher := _teacher(subject)) is not None:
            theirs = states(*teacher)
    except ValueError as error:
        findings.notes[f"{name} is not compared with its teacher"] = [
            str(error).removesuffix(".")
        ]
    ours = properties.order_sensitivity(
        states(subject.bert, subject.params), orders, theirs
    )
    numbers = {field: np.asarray(x) for field, x in vars(ours).items() if x is not None}
    if theirs is not None:
        of_teacher = properties.order_sensitivity(theirs, orders)
        numbers |= {
            f"teacher_{x}": np.asarray(getattr(of_teacher, x))
            for x in ("pooled", "token")
        }
    fields = (
        "pooled",
        "teacher_pooled",
        "pooled_r2",
        "token",
        "teacher_token",
        "token_r2",
    )
    findings.numbers[name] = {"texts": count, "length": length, "source": read.source}
    for i, kind in enumerate(SHUFFLES):
        values = findings.numbers[name][kind] = {
            key: x[i] for key, x in numbers.items()
        }
        findings.rows.append([name, kind, *(values.get(field) for field in fields)])
    return findings


@functools.cache
def _last_states(model: BertConfig) -> Callable[[Params, jax.Array], jax.Array]:
    return lambda params, tokens: hidden_states(model, params, tokens)[-1]


def _teacher(subject: MeasuredModel) -> tuple[BertConfig, Params] | None:
    """Return the teacher of a distilled run; ValueError if it is gone."""
    if subject.folder is None:
        return None
    config: EncoderTrainingConfig = load_config(subject.folder, ENCODERS).config
    if not isinstance(config, DistillationConfig):
        return None
    source = PretrainedSource(config.init)
    place = functools.partial(sharding.state_shardings, sharding.data_mesh(), "jit")
    return source.model, source.params(place)["bert"]
