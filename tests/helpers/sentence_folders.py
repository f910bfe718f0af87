"""Folders of small published encoders, with a tokenizer and files of sentence-transformers."""

import json

import jax
import numpy as np
from safetensors.numpy import save_file

from helpers.byte_level import byte_level_for
from helpers.initial_params import shapes_of
from helpers.published_encoders import ENCODERS
from pe_jax.interop import save_encoder
from pe_jax.interop.bert_import import config_of
from pe_jax.models import BertForClassification, BertForMaskedLM, BertForTokens

SIZE = 12  # Of the hidden states.
LENGTH = 21  # The longest input of the models.
TEXTS = [
    "ab cd",
    "a",
    "",
    "abcdefghij " * 9,
    "cd ab cd ab",
    "\u2603 \u00e9\U0001f600",
    "  b  ",
    "j i h g",
]


def module(index, name, path=""):
    kind = f"sentence_transformers.models.{name}"
    return {"idx": index, "name": str(index), "path": path, "type": kind}


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def random_params(model, scale=0.3):
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: rng.normal(0, scale, x.shape).astype(np.float32), shapes_of(model)
    )


def encoder_folder(folder, case="bert", classes=0, labels=()):
    """Write a published encoder with random weights, or a classifier of some classes."""
    theirs = ENCODERS[case][1]
    config = config_of(theirs, "the test")
    model = BertForMaskedLM(config)
    if classes:
        model = BertForClassification(config, classes)
    save_encoder(
        folder,
        config,
        random_params(model),
        byte_level_for(theirs),
        family=theirs["model_type"],
        labels=labels,
    )
    return folder


def tagger_folder(folder, tokenizer, labels, case="bert", seed=0):
    """Write a published encoder with random weights that labels tokens."""
    theirs = ENCODERS[case][1]
    config = config_of({**theirs, "vocab_size": tokenizer.get_vocab_size()}, "the test")
    rng = np.random.default_rng(seed)
    params = jax.tree.map(
        lambda x: rng.normal(0, 0.7, x.shape).astype(np.float32),
        shapes_of(BertForTokens(config, len(labels))),
    )
    save_encoder(
        folder, config, params, tokenizer, family=theirs["model_type"], labels=labels
    )
    return folder


def sentence_folder(
    folder, *modules, case="bert", pooling=None, transformer=None, **general
):
    """Write an encoder of sentence-transformers.

    Args:
      modules: after the pooling, their names, or `(name, config, tensors)`.
      pooling: the config of the pooling; by default the mean.
      transformer: the content of sentence_bert_config.json.
      general: the content of config_sentence_transformers.json.
    """
    encoder_folder(folder, case)
    pooling = {"pooling_mode_mean_tokens": True} if pooling is None else pooling
    pooling = {"word_embedding_dimension": SIZE, **pooling}
    listed = [module(0, "Transformer"), module(1, "Pooling", "1_Pooling")]
    write_json(folder / "1_Pooling/config.json", pooling)
    for index, each in enumerate(modules, 2):
        name, config, tensors = (each, {}, {}) if isinstance(each, str) else each
        path = folder / f"{index}_{name}"
        listed.append(module(index, name, path.name))
        write_json(path / "config.json", config)
        if tensors:
            save_file(tensors, path / "model.safetensors")
    write_json(folder / "modules.json", listed)
    write_json(
        folder / "sentence_bert_config.json", transformer or {"max_seq_length": 17}
    )
    write_json(folder / "config_sentence_transformers.json", general)
    return folder
