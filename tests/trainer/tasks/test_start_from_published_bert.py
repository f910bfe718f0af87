"""Starting from a published BERT: its sizes, vocabulary and weights, another position encoding."""

import dataclasses
import json
import re
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import tiny_run
from helpers.finetuning_data import zero_params
from helpers.published_bert import (
    BERT,
    D,
    N,
    encoder_shapes,
    head_shapes,
    random_tensors,
    write,
)

from pe_jax.common.schema import changed, from_values
from pe_jax.interop import load_encoder
from pe_jax.trainer.configs import glue as glue_config
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.data import glue, load_tokenizer
from pe_jax.trainer.reports.property_report.subjects import trained
from pe_jax.trainer.tasks import finetuning, pretraining, text_training
from pe_jax.trainer.tasks.pretrained_source import (
    PretrainedSource,
    published_tokenizer,
    tokenizer_file,
)
from pe_jax.trainer.training.transplant import transplant

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *tiny_run.WORDS]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with an encoder of one layer, the pooler, a classifier and a vocabulary, which has 3
    tokens fewer than the encoder rows of embeddings."""
    shapes = encoder_shapes(len(VOCAB) + 3, layers=1)
    shapes |= {
        name: s for name, s in head_shapes().items() if name.startswith("pooler")
    }
    shapes |= {"classifier.weight": (2, D), "classifier.bias": (2,)}
    folder = tmp_path_factory.mktemp("published")
    sizes = {"vocab_size": len(VOCAB) + 3, "num_hidden_layers": 1}
    write(folder, random_tensors(shapes), {**BERT, **sizes})
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return folder


def config(folder, published, **changes):
    """A short run that gives no size."""
    c = tiny_run.config_dict(folder, **{"stage2.steps": 0})
    c.init = str(published)
    c.model.update(
        num_layers=None, hidden_size=None, num_heads=None, intermediate_size=None
    )
    c.model.max_length = 48
    c.stage1.update(length=8, batch_size=8, max_predictions=2, steps=1)
    c.update_from_flattened_dict(changes)
    return from_values(c, PretrainingConfig)


def test_sizes_and_words_are_those_of_the_published(published, tmp_path, capsys):
    resolved = text_training.resolve(config(tmp_path, published))
    assert "1 layer of 12, learned_absolute" in capsys.readouterr().err
    experiment = pretraining.build(resolved)
    model, theirs = experiment.program.model, load_encoder(published).config
    for field in ("num_layers", "hidden_size", "num_heads", "intermediate_size"):
        assert getattr(model, field) == getattr(theirs, field)
    assert (model.vocab_size, model.unused_rows) == (len(VOCAB), 3)
    assert (model.layer_norm_epsilon, model.max_length) == (1e-5, N)
    assert model.dropout_rate == theirs.dropout_rate
    assert experiment.data.text.vocabulary.size == len(VOCAB)


def test_weights_with_another_position_encoding(published, tmp_path, capsys):
    name = "learned_absolute+learnable_sinusoidal_relative"
    experiment = pretraining.build(
        text_training.resolve(config(tmp_path, published, **{"model.position": name}))
    )
    params = experiment.start(zero_params(experiment.program))
    theirs = load_encoder(published).params
    for part in ("token", "layer_0"):
        jax.tree.map(
            np.testing.assert_array_equal, params["bert"][part], theirs["bert"][part]
        )
    np.testing.assert_array_equal(
        params["bert"]["position"]["learned_absolute"]["table"],
        theirs["bert"]["position"]["learned_absolute"]["table"],
    )
    jax.tree.map(np.testing.assert_array_equal, params["pooler"], theirs["pooler"])
    new = [
        "bert/position/learnable_sinusoidal_relative/frequencies",
        *(f"masked_lm/{name}" for name in ("bias", "dense/bias", "dense/kernel")),
        *(f"masked_lm/norm/{name}" for name in ("bias", "scale")),
        *(f"next_sentence/{name}" for name in ("bias", "kernel")),
    ]
    assert f"dropped: nothing\nnew: {', '.join(new)}\n" in capsys.readouterr().err


def test_a_table_that_is_too_short_is_not_kept(published, tmp_path):
    longer = config(tmp_path, published, **{"stage1.length": 16})
    model = dataclasses.replace(
        text_training.resolve(longer).model, vocab_size=len(VOCAB)
    )
    assert model.max_length == 48
    fresh = jax.eval_shape(pretraining.pretraining_task(model).init, jax.random.key(0))
    theirs = load_encoder(published)
    _, changes = transplant(fresh, theirs.params)
    assert "bert/position/learned_absolute/table" in set(changes.dropped) & set(
        changes.new
    )


def test_positions_drawn_anew(published, tmp_path):
    """With `config.keep_position=False` only the positions are those of the seed; measures know
    them as the run's start."""
    found = {}
    for keep in (True, False):
        own = {"keep_position": keep, "model.position": "learned_absolute"}
        experiment = pretraining.build(
            text_training.resolve(config(tmp_path, published, **own))
        )
        fresh = experiment.program.init().params
        found[keep] = experiment.start(fresh)
        at = lambda params: np.asarray(
            params["bert"]["position"]["learned_absolute"]["table"]
        )
        assert (at(found[keep]) == at(fresh)).all() != keep
        text = load_tokenizer(tokenizer_file(experiment.config))
        start = trained(
            "run", tmp_path, experiment.resolved, text, 0, found[keep]
        ).start
        assert (start is None) == keep
        assert keep or (start["learned_absolute"]["table"] == at(fresh)).all()
    for one in found.values():
        del one["bert"]["position"]
    shared = zip(
        *(jax.tree.leaves(found[keep]["bert"]) for keep in (True, False)), strict=True
    )
    assert all((np.asarray(a) == np.asarray(b)).all() for a, b in shared)


def test_a_size_that_is_given_has_to_fit(published, tmp_path):
    given = config(tmp_path, published, **{"model.intermediate_size": 8})
    with pytest.raises(
        ValueError, match="differ in more than their position"
    ) as caught:
        pretraining.run(given, tmp_path / "run")
    assert "bert/layer_0/up/kernel: (12, 20) there, (12, 8) here" in str(caught.value)
    assert not (tmp_path / "run" / "config.json").exists()


def test_other_words_are_refused(published, tmp_path):
    other = tmp_path / "vocab.txt"
    other.write_text("\n".join([*VOCAB[:-2], *VOCAB[:-3:-1]]) + "\n")
    given = config(tmp_path, published, **{"data.vocab": str(other)})
    with pytest.raises(ValueError, match=r"config.data.vocab=.* has other tokens than"):
        pretraining.build(text_training.resolve(given))
    given = changed(given, {"data.vocab": str(published / "vocab.txt")})
    assert tokenizer_file(given) == given.data.vocab


def test_the_tokenizer_next_to_a_checkpoint(published, tmp_path):
    file = published_tokenizer(published / "model.safetensors")
    assert file == published / "vocab.txt"
    bare = write(tmp_path / "bare", random_tensors(encoder_shapes()), BERT)
    with pytest.raises(ValueError, match=r"no tokenizer.json or vocab.txt next to it"):
        PretrainedSource(str(bare)).tokenizer()
    (bare / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    with pytest.raises(ValueError, match=r"has 22 tokens, but the model 13 rows of"):
        PretrainedSource(str(bare)).tokenizer()
    (bare / "vocab.txt").write_text("\n".join([*VOCAB[:12], "Whale"]) + "\n")
    with pytest.raises(
        ValueError, match=r"upper case.*Write (\{.*\}) to (.*)\.$"
    ) as caught:
        load_tokenizer(PretrainedSource(str(bare)).tokenizer())
    content, file = re.search(r"Write (\{.*\}) to (.*)\.$", str(caught.value)).groups()
    Path(file).write_text(content)
    cased = load_tokenizer(PretrainedSource(str(bare)).tokenizer())
    assert cased.encode("Whale whale", add_special_tokens=False).ids == [12, 1]


def test_nothing_to_start_from(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere.* nor a published BERT\. No check"):
        PretrainedSource(str(tmp_path / "nowhere"))
    (tmp_path / "config.json").write_text(json.dumps({**BERT, "model_type": "gpt2"}))
    write(tmp_path, {"wpe.weight": np.ones((2, 2))})
    with pytest.raises(
        ValueError, match=r"nor a published BERT\. .*model_type is 'gpt2', not 'bert'"
    ):
        PretrainedSource(str(tmp_path))


def test_fine_tuning(published, tmp_path, monkeypatch, capsys):
    """Heads are drawn by seed: a published classifier is of another task."""
    rows = [
        {"sentence": b"the sea", "label": 0},
        {"sentence": b"a ship", "label": 1},
    ] * 4
    opened = types.SimpleNamespace(as_data_source=lambda split: rows)
    monkeypatch.setattr(glue, "open_dataset", lambda *args, **named: opened)
    c = glue_config.get_config()
    c.init, c.seeds, c.steps, c.model.position = str(published), (0, 1), 1, "none"
    c.data.update(length=8, buckets=(), batch_size=4, eval_batch_size=4)
    resolved = finetuning.resolve(from_values(c, FinetuningConfig))
    assert (resolved.model.num_layers, resolved.model.layer_norm_epsilon) == (1, 1e-5)
    experiment = finetuning.build(resolved, tmp_path)
    params, changes = finetuning.start_from(
        experiment.config, experiment.program, zero_params(experiment.program)
    )
    theirs = load_encoder(published).params
    kernel = theirs["bert"]["layer_0"]["up"]["kernel"]
    np.testing.assert_array_equal(
        params["bert"]["layer_0"]["up"]["kernel"], np.stack([kernel] * 2)
    )
    assert changes.new == ["classifier/bias", "classifier/kernel"]
    assert changes.dropped == ["bert/position/learned_absolute/table"]
    assert (
        "Not read from" in (printed := capsys.readouterr().err)
        and "classifier.weight" in printed
    )
