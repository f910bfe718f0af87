"""Part on order: how far shuffled words move the hidden states of texts."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import properties
from pe_jax.common.files import Json
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

# Of the table; those of the teacher and R² are missing without one.
_FIELDS = (
    "pooled",
    "teacher_pooled",
    "pooled_r2",
    "token",
    "teacher_token",
    "token_r2",
)


@render.part(
    "Order sensitivity",
    "How far the states of the last layer move when a text is shuffled: all words, neighbouring "
    "words in pairs, or sentences. Pooled: 1 − cosine of the mean states. By token: √(Σ‖h′ − h‖² / "
    "Σ‖h − mean‖²), each token followed to its new place. A distilled model is compared with its "
    "teacher on the same shuffles: the teacher's numbers, and R² of the changes, 1 if they are the "
    "teacher's, 0 if they are as far from them as no change.",
    [
        "model",
        "shuffle",
        ("pooled", ".4f"),
        ("teacher", ".4f"),
        ("R²", ".3f"),
        ("by token", ".3f"),
        ("teacher", ".3f"),
        ("R²", ".3f"),
    ],
)
def order_sensitivity(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure changes of the last hidden states by kind of shuffle, and those of the teacher."""
    read = texts(subject, config)
    name = subject.name
    findings = Findings()
    count, length = read.tokens.shape
    if read.begins is None:
        # Random words are tokens that begin no sentence.
        begins = np.zeros((2, count, length), bool)
        begins[0] = True
        orders = properties.shuffled_orders(begins, ends=(0, 0), seed=config.seed)
    else:
        orders = properties.shuffled_orders(read.begins, ends=(1, 1), seed=config.seed)

    def states(model: BertConfig, params: Params) -> jax.Array:
        tokens = jnp.asarray(read.tokens)
        return properties.states_by_order(_last_states(model), params, tokens, orders)

    theirs = None
    try:
        teacher = _teacher(subject)
        if teacher is not None:
            theirs = states(*teacher)
    except ValueError as error:
        reason = str(error).removesuffix(".")
        findings.notes[f"{name} is not compared with its teacher"] = [reason]
    ours = states(subject.bert, subject.params)
    sensitivity = properties.order_sensitivity(ours, orders, theirs)
    by_field = {key: x for key, x in vars(sensitivity).items() if x is not None}
    if theirs is not None:
        of_teacher = properties.order_sensitivity(theirs, orders)
        by_field["teacher_pooled"] = of_teacher.pooled
        by_field["teacher_token"] = of_teacher.token
    numbers: Json = {"texts": count, "length": length, "source": read.source}
    findings.numbers[name] = numbers
    for i, kind in enumerate(SHUFFLES):
        values = {field: np.asarray(x)[i] for field, x in by_field.items()}
        numbers[kind] = values
        findings.rows.append([name, kind, *map(values.get, _FIELDS)])
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
