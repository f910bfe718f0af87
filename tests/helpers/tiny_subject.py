"""An untrained BERT that reads random tokens and has a masked-LM head, as reports measure it."""

import dataclasses
import functools

import numpy as np

from helpers.initial_params import initial_params
from pe_jax.models import BertConfig, BertForPretraining
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel
from pe_jax.trainer.reports.property_report.texts import Texts

VOCABULARY, LENGTH, TEXTS = 30, 10, 6


def config(position):
    """The model of an encoding, or of its name."""
    model = BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=16,
        max_length=LENGTH, initializer_stddev=0.5,
    )  # fmt: skip
    if isinstance(position, str):
        return dataclasses.replace(model, position=position)
    return dataclasses.replace(model, position=position)


@functools.cache
def parameters(position):
    tokens = np.zeros((1, 4), np.int32)
    return initial_params(
        BertForPretraining(config(position)), tokens, masked_positions=tokens
    )


def texts(seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, VOCABULARY, (TEXTS, LENGTH)).astype(np.int32)
    where = np.zeros((TEXTS, LENGTH), bool)
    where[:, [2, 7]] = True
    return Texts("random tokens", tokens, np.where(where, 0, tokens), where)


def subject(position, name=""):
    model, params = config(position), parameters(position)
    return MeasuredModel(
        name=name or position,
        encoding=model.encoding(),
        position=params["bert"].get("position", {}),
        length=LENGTH,
        model=model,
        heads=params,
    )


def give(config, *subjects, read=None):
    """Let the subjects read `read` in reports of `config`, default `texts()`."""
    for each in subjects:
        each.results["texts", config] = texts() if read is None else read
