"""Published checkpoints: what is read, what is refused, and a BERT with the same outputs."""

import dataclasses
import functools
import json
import pickle
import re
import shlex
import time
from pathlib import Path

import flax
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from helpers.published_bert import (
    BERT,
    LAYERS,
    TABLE,
    WORDS,
    D,
    H,
    M,
    N,
    S,
    V,
    bert_tensors,
    numpy_bert,
    numpy_heads,
    whole_tensors,
    write,
)
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from pe_jax.interop import load_encoder, load_position_table
from pe_jax.interop.bert_import import read_config
from pe_jax.interop.checkpoint_files import open_checkpoint
from pe_jax.interop.hf_registry import FAMILIES
from pe_jax.models import Bert, BertForPretraining, hidden_states


def write_shards(folder, tensors, config):
    """Writes tensors to two files, alternately."""
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    where = {name: files[i % 2] for i, name in enumerate(tensors)}
    for file in files:
        write(
            folder, {n: t for n, t in tensors.items() if where[n] == file}, config, file
        )
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": where})
    )
    return folder


# --- tensors by name ------------------------------------------------------------------------------


def test_a_folder_or_one_file(tmp_path):
    tensors = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(4)}
    folder = write(tmp_path / "m", tensors, {"model_type": "x"})
    for path in (folder, str(folder), folder / "model.safetensors"):
        checkpoint = open_checkpoint(path)
        assert checkpoint.config == {"model_type": "x"}
        assert sorted(checkpoint.names) == ["a", "b"]
        assert checkpoint.shape("a") == (2, 3)
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(checkpoint.read(name), tensor, strict=True)
    with pytest.raises(ValueError, match="no tensor 'c'"):
        checkpoint.read("c")
    assert open_checkpoint(write(tmp_path / "bare", tensors)).config == {}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_read_as_float32(tmp_path, dtype):
    half = np.linspace(-3, 3, 12).reshape(3, 4).astype(dtype)
    checkpoint = open_checkpoint(write(tmp_path, {"a": half}))
    np.testing.assert_array_equal(
        checkpoint.read("a"), half.astype(np.float32), strict=True
    )


def test_shards(tmp_path):
    tensors = bert_tensors()
    checkpoint = open_checkpoint(write_shards(tmp_path, tensors, BERT))
    assert set(checkpoint.names) == set(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(checkpoint.read(name), tensor)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(
        ValueError, match=r"not in .*: model-00002-of-00002.safetensors\. Download"
    ):
        open_checkpoint(tmp_path)


def test_the_index_says_which_file_holds_a_tensor(tmp_path):
    first, second = {"a": np.zeros(2), "b": np.zeros(3)}, {"a": np.ones(2)}
    write(tmp_path, first, {}, "x.safetensors")
    write(tmp_path, second, {}, "y.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    where = {"a": "x.safetensors", "b": "x.safetensors", "c": "y.safetensors"}
    index.write_text(json.dumps({"weight_map": where}))
    with pytest.raises(
        ValueError, match=r"y.safetensors has no tensor 'c', although model.safe"
    ):
        open_checkpoint(tmp_path)
    second["c"] = np.ones(1)
    write(tmp_path, second, {}, "y.safetensors")
    np.testing.assert_array_equal(open_checkpoint(tmp_path).read("a"), first["a"])


def test_weights_too_large_for_float32(tmp_path):
    tensors = {name: np.float64(tensor) for name, tensor in bert_tensors().items()}
    del tensors["embeddings.position_ids"]
    tensors["embeddings.LayerNorm.bias"][0] = 1e300
    with pytest.raises(
        ValueError, match="too large for float32: embeddings.LayerNorm.bias"
    ):
        load_encoder(write(tmp_path, tensors, BERT))


class Bomb:
    """Raises when it is unpickled, so a test fails if the pickle is loaded."""

    def __reduce__(self):
        return (int, ("a pickle was loaded",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "model.pth"])
def test_pickles_are_refused_without_loading(tmp_path, name):
    file = tmp_path / "a folder" / name
    file.parent.mkdir()
    file.write_bytes(pickle.dumps(Bomb()))
    (file.parent / "config.json").write_text(json.dumps(BERT))
    to = {file.parent: "model.safetensors", file: file.with_suffix(".safetensors").name}
    for path, target in to.items():
        with pytest.raises(ValueError, match="not opened") as caught:
            open_checkpoint(path)
        assert str(caught.value).startswith(str(file))
        program, _, code, *files = shlex.split(str(caught.value).splitlines()[-1])
        assert program == "python" and files == [str(file.parent / target), str(file)]
        compile(code, "command", "exec")


def test_the_conversion_command_lists_the_weights_only(tmp_path):
    for name in (
        "optimizer.pt",
        "pytorch_model-1-of-2.bin",
        "pytorch_model-2-of-2.bin",
    ):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(
        ValueError, match="pytorch_model-2-of-2.bin: a pickle"
    ) as caught:
        open_checkpoint(tmp_path)
    assert "optimizer" not in str(caught.value)


def test_errors_for_missing_or_damaged_files_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"No checkpoint at .*nowhere.*hf download"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(
        ValueError, match="neither model.safetensors nor .*give its path"
    ):
        open_checkpoint(tmp_path)
    file = write(tmp_path, {"a": np.ones(9)}) / "model.safetensors"
    whole = file.read_bytes()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    for damaged in (b"", whole[:5], whole[:-5], pointer):
        file.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"model.safetensors is not a complete.*Download it again"
        ):
            open_checkpoint(tmp_path)
    file.write_bytes(whole)
    for damaged in ('{"vocab_size": 3', "[1, 2]", "7"):
        (tmp_path / "config.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"config.json is not a JSON object"):
            open_checkpoint(tmp_path)
    index = tmp_path / "m" / "model.safetensors.index.json"
    index.parent.mkdir()
    for empty in ("{}", '{"weight_map": {}}'):
        index.write_text(empty)
        with pytest.raises(ValueError, match=r'index.json has no "weight_map"'):
            open_checkpoint(index.parent)


# --- position tables ------------------------------------------------------------------------------

ROWS = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "model_type", "argument", "family", "first_row"),
    [
        (f"bert.{TABLE}", "", "", "bert", 0),
        (f"distilbert.{TABLE}", "distilbert", "", "bert", 0),
        (f"electra.{TABLE}", "", "electra", "bert", 0),
        (TABLE, "bert", "", "bert", 0),
        (TABLE, "", "distilbert", "bert", 0),
        (f"roberta.{TABLE}", "", "", "roberta", 2),
        (f"roberta.{TABLE}", "camembert", "roberta", "roberta", 2),
        (TABLE, "xlm-roberta", "", "roberta", 2),
        (TABLE, "mpnet", "roberta", "roberta", 2),
        ("wpe.weight", "", "", "gpt2", 0),
        ("transformer.wpe.weight", "gpt2", "gpt2", "gpt2", 0),
    ],
)
def test_position_tables(tmp_path, name, model_type, argument, family, first_row):
    config = {"model_type": model_type} if model_type else None
    write(tmp_path, {name: ROWS, "other": np.ones(3)}, config)
    table = load_position_table(tmp_path, argument)
    assert (table.name, table.family, table.first_row) == (name, family, first_row)
    np.testing.assert_array_equal(table.vectors, ROWS[first_row:], strict=True)


def test_roberta_positions_start_after_its_padding_token(tmp_path):
    write(tmp_path, {TABLE: ROWS}, {"model_type": "roberta", "pad_token_id": 0})
    assert load_position_table(tmp_path).first_row == 1


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_tables_are_float32(tmp_path, dtype):
    write(tmp_path, {"wpe.weight": ROWS.astype(dtype)})
    expected = ROWS.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(
        load_position_table(tmp_path).vectors, expected, strict=True
    )


def test_a_table_name_that_bert_and_roberta_share_needs_an_argument(tmp_path):
    choose = "can be of bert or roberta.*family='bert' or family='roberta'"
    with pytest.raises(ValueError, match=choose):
        load_position_table(write(tmp_path, {TABLE: ROWS}))
    with pytest.raises(ValueError, match=choose):
        load_position_table(write(tmp_path, {TABLE: ROWS}, {"model_type": "mpnet"}))


@pytest.mark.parametrize(
    ("name", "model_type", "argument", "match"),
    [
        (
            f"bert.{TABLE}",
            "",
            "roberta",
            "can be of bert, but the argument is 'roberta'",
        ),
        (
            f"roberta.{TABLE}",
            "bert",
            "",
            "of roberta, but config.json's model_type is 'bert'",
        ),
        (
            TABLE,
            "bert",
            "camembert",
            "model_type is 'bert' and the argument is 'camembert'",
        ),
        (TABLE, "", "gpt2", "can be of bert or roberta, but the argument is 'gpt2'"),
        (
            "wpe.weight",
            "",
            "t5",
            "Unknown family 't5': use one of bert, .*roberta, .*gpt2",
        ),
    ],
)
def test_contradictions_are_errors(tmp_path, name, model_type, argument, match):
    write(tmp_path, {name: ROWS}, {"model_type": model_type} if model_type else None)
    with pytest.raises(ValueError, match=match):
        load_position_table(tmp_path, argument)


def test_no_position_table(tmp_path):
    near = [f"block.{i}.relPosition" for i in range(7)]
    write(tmp_path, {**{name: ROWS for name in near}, "shared.weight": ROWS})
    with pytest.raises(ValueError, match=r"no known learned position table") as caught:
        load_position_table(tmp_path)
    assert sum(name in str(caught.value) for name in near) == 5
    assert "shared.weight" not in str(caught.value)
    assert all(name in str(caught.value) for f in FAMILIES.values() for name in f.table)
    with pytest.raises(
        ValueError, match=r"in their name: none\. Looked for: embeddings\.pos"
    ):
        load_position_table(write(tmp_path, {"w": ROWS}))


def test_a_table_that_is_unused_or_no_table(tmp_path):
    write(tmp_path, {TABLE: ROWS}, {**BERT, "position_embedding_type": "relative_key"})
    with pytest.raises(ValueError, match="'relative_key'.*never uses it"):
        load_position_table(tmp_path)
    for wrong in (ROWS[0], ROWS[:2], ROWS.astype(np.int8)):
        write(tmp_path, {f"roberta.{TABLE}": wrong}, {})
        with pytest.raises(
            ValueError, match=r"not a table \[N, D\] of floats with more than 2 rows"
        ):
            load_position_table(tmp_path)


# --- a BERT ---------------------------------------------------------------------------------------


def old_names(tensors):
    """The names of the first published files: LayerNorm's gamma and beta."""
    gamma = lambda name: name.replace("Norm.weight", "Norm.gamma").replace(
        "Norm.bias", "Norm.beta"
    )
    return {gamma(name): tensor for name, tensor in tensors.items()}


def inputs():
    """Tokens, token types, and which are valid; the last row is padding but for one token."""
    rng = np.random.default_rng(2)
    valid = np.arange(7) < np.array([[7], [4], [1]])
    return rng.integers(0, V, (3, 7)), rng.integers(0, S, (3, 7)), valid


def test_config(tmp_path):
    config = load_encoder(write(tmp_path, bert_tensors(), BERT)).config
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (
        V,
        D,
        M,
    )
    assert (config.num_layers, config.num_heads, config.num_token_types) == (
        LAYERS,
        H,
        S,
    )
    assert (config.max_length, config.encoding().name) == (N, "learned_absolute")
    assert (config.dropout_rate, config.attention_dropout_rate) == (0.2, 0.3)
    assert (config.layer_norm_epsilon, config.initializer_stddev) == (1e-5, 0.04)
    old = {
        key: value
        for key, value in BERT.items()
        if key not in ("layer_norm_eps", "hidden_act")
    }
    assert (
        load_encoder(write(tmp_path, bert_tensors(), old)).config.layer_norm_epsilon
        == 1e-12
    )


@functools.partial(jax.jit, static_argnums=0)
def states_and_logits(config, params, tokens, token_type_ids, valid):
    """Hidden states of every layer, and the outputs of both heads at every token."""
    everywhere = np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))
    model = BertForPretraining(config)
    logits = model.apply(
        {"params": params}, tokens, token_type_ids, valid, masked_positions=everywhere
    )
    return hidden_states(config, params["bert"], tokens, token_type_ids, valid), logits


@pytest.mark.parametrize("layout", ["plain", "old", "shards"])
def test_outputs_equal_those_of_a_numpy_bert(tmp_path, layout):
    """Hidden states of every layer, also at padding, and both heads."""
    tensors = whole_tensors()
    if layout == "shards":
        write_shards(tmp_path, tensors, BERT)
    else:
        write(tmp_path, old_names(tensors) if layout == "old" else tensors, BERT)
    encoder = load_encoder(tmp_path)
    config, params, absent, unread = (
        encoder.config,
        encoder.params,
        encoder.absent,
        encoder.unread,
    )
    assert (absent, unread) == ((), ())
    tokens, token_type_ids, valid = inputs()
    states, logits = states_and_logits(config, params, tokens, token_type_ids, valid)
    expected = numpy_bert(tensors, BERT, tokens, token_type_ids, valid)
    assert states.shape == (LAYERS + 1, 3, 7, D)
    np.testing.assert_allclose(states, expected, atol=2e-5, rtol=0)
    words, pairs = numpy_heads(tensors, BERT, expected[-1])
    np.testing.assert_allclose(logits.masked_lm, words, atol=5e-5, rtol=0)
    np.testing.assert_allclose(logits.next_sentence, pairs, atol=5e-5, rtol=0)


def test_the_last_hidden_states_are_the_output_of_the_model(tmp_path):
    """Also with scanned, rematerialised layers, and positions that do not start at 0."""
    encoder = load_encoder(write(tmp_path, bert_tensors(), BERT))
    config, params = encoder.config, encoder.params
    tokens, token_type_ids, valid = inputs()
    looped = dataclasses.replace(config, scan_layers=True, remat="full")

    @jax.jit
    def run(params):
        args = (tokens, token_type_ids, jnp.asarray(valid), jnp.arange(3, 10))
        states = hidden_states(looped, params, *args)
        at_0 = hidden_states(config, params, *args[:3])
        return states, Bert(looped).apply({"params": params}, *args), at_0

    states, last, at_0 = run(params["bert"])
    np.testing.assert_allclose(states[-1], last, atol=1e-6)
    assert not np.allclose(states[0], at_0[0])


@pytest.mark.parametrize("heads", [True, False])
def test_parameters_are_those_of_a_model_for_pretraining(tmp_path, heads):
    tensors = whole_tensors() if heads else bert_tensors()
    half = {name: t.astype(np.float16) for name, t in tensors.items()}
    encoder = load_encoder(write(tmp_path, half, BERT))
    config, params, absent = encoder.config, encoder.params, encoder.absent
    one = jnp.zeros((1, 1), jnp.int32)
    model = BertForPretraining(config)
    expected = jax.eval_shape(model.init, jax.random.key(0), one, masked_positions=one)[
        "params"
    ]
    shapes = lambda tree: {
        path: (leaf.shape, leaf.dtype)
        for path, leaf in flax.traverse_util.flatten_dict(tree, sep="/").items()
    }
    assert absent == (() if heads else ("pooler", "masked_lm", "next_sentence"))
    assert shapes(params) == shapes(expected if heads else {"bert": expected["bert"]})


def of_class(name, **keys):
    """The config.json of a class of transformers; without a name, of none."""
    return {**BERT, **({"architectures": [name]} if name else {}), **keys}


def test_heads_of_other_tasks(tmp_path):
    other = {
        "classifier.weight": np.ones((3, D), np.float32),
        "classifier.bias": np.arange(3.0),
    }
    other |= {
        "qa_outputs.weight": np.ones((2, D)),
        "qa_outputs.bias": np.ones(2),
        "x": np.ones(1),
    }
    folder = write(
        tmp_path, whole_tensors() | other, of_class("BertForSequenceClassification")
    )
    encoder = load_encoder(folder)
    params, unread = encoder.params, encoder.unread
    assert params["classifier"]["kernel"].shape == (D, 3)
    assert "spans" not in params and unread == (
        "qa_outputs.bias",
        "qa_outputs.weight",
        "x",
    )
    folder = write(
        tmp_path, whole_tensors() | other, of_class("BertForQuestionAnswering")
    )
    encoder = load_encoder(folder)
    params, unread = encoder.params, encoder.unread
    assert params["spans"]["kernel"].shape == (D, 2)
    assert "classifier" not in params and unread == (
        "classifier.bias",
        "classifier.weight",
        "x",
    )
    encoder = load_encoder(folder, heads=("pooler",))
    params, unread = encoder.params, encoder.unread
    assert params.keys() == {"bert", "pooler"}
    assert {"x", "classifier.bias", "qa_outputs.weight", "cls.predictions.bias"} <= set(
        unread
    )


@pytest.mark.parametrize(
    ("name", "classes", "is_read"),
    [
        ("BertForSequenceClassification", 3, True),
        ("BertForSequenceClassification", 1, True),  # Of a regression.
        ("TFBertForSequenceClassification", 3, True),
        ("BertForTokenClassification", 3, False),
        ("BertForMultipleChoice", 1, False),
        ("BertForQuestionAnswering", 2, False),
        ("BertForMaskedLM", 3, False),
        ("BertModel", 3, False),
        ("", 3, False),
        ("", 1, False),
    ],
)
def test_the_class_decides_what_a_classifier_is(tmp_path, name, classes, is_read):
    """The pooler and the names of the tensors are the same in all of these files."""
    rows = np.ones((classes, D), np.float32)
    classifier = {"classifier.weight": rows, "classifier.bias": rows[:, 0].copy()}
    encoder = load_encoder(
        write(tmp_path, whole_tensors() | classifier, of_class(name))
    )
    params, unread = encoder.params, encoder.unread
    assert ("classifier" in params) == is_read and "pooler" in params
    has_tokens = name == "BertForTokenClassification"
    assert ("tokens" in params) == has_tokens
    is_unread = not is_read and not has_tokens
    assert unread == (("classifier.bias", "classifier.weight") if is_unread else ())


def test_a_classifier_without_its_pooler_is_not_read(tmp_path):
    classifier = {"classifier.weight": np.ones((3, D)), "classifier.bias": np.ones(3)}
    config = of_class("BertForSequenceClassification")
    encoder = load_encoder(write(tmp_path, bert_tensors() | classifier, config))
    params, unread = encoder.params, encoder.unread
    assert params.keys() == {"bert"} and unread == (
        "classifier.bias",
        "classifier.weight",
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"id2label": dict.fromkeys("012345678", "x")},
            "3 classes, but id2label .* has 9",
        ),
        ({"num_labels": 10**9}, "3 classes, but num_labels .* has 1000000000"),
        (
            {"id2label": {"0": "a", "5": "b", "7": "c"}},
            "id2label .* must count from 0, got .*'5'",
        ),
        (
            {"id2label": ["a", "b", "c"]},
            "id2label of config.json must be an object, got",
        ),
        ({"num_labels": 9, "id2label": {"0": "a", "1": "b", "2": "c"}}, ""),
        ({"num_labels": 3, "id2label": None}, ""),
    ],
)
def test_the_labels_are_those_of_the_classifier(tmp_path, keys, message):
    classifier = {"classifier.weight": np.ones((3, D)), "classifier.bias": np.ones(3)}
    config = of_class("BertForSequenceClassification", **keys)
    folder = write(tmp_path, whole_tensors() | classifier, config)
    if not message:
        assert "classifier" in load_encoder(folder).params
        return
    with pytest.raises(ValueError, match=f"classifier.weight: {message}"):
        load_encoder(folder)
    assert load_encoder(folder, heads=("pooler",)).params.keys() == {"bert", "pooler"}


# A key of config.json, and what an error says of the file.
SIZES_OF_FILE = {
    "num_hidden_layers": "the file has tensors of 2 layers",
    "vocab_size": r"bert.embeddings.word_embeddings.weight is \(13, 12\)",
    "hidden_size": r"bert.embeddings.word_embeddings.weight is \(13, 12\)",
    "type_vocab_size": r"bert.embeddings.token_type_embeddings.weight is \(2, 12\)",
    "max_position_embeddings": r"bert.embeddings.position_embeddings.weight is \(10, 12\)",
    "intermediate_size": r"bert.encoder.layer.0.output.dense.weight is \(12, 20\)",
}


@pytest.mark.parametrize("value", [33, 10_000, 10**9, 10**30])
@pytest.mark.parametrize("key", [*SIZES_OF_FILE, "num_attention_heads"])
def test_sizes_that_the_file_does_not_have(tmp_path, key, value):
    """A short error at once, whatever the value: nothing is built in that size."""
    folder = write(tmp_path, whole_tensors(), {**BERT, key: value})
    about = (
        f"{key} is {value}, but {SIZES_OF_FILE[key]}" if key in SIZES_OF_FILE else key
    )
    start = time.process_time()
    for read in (load_encoder, read_config):
        with pytest.raises(ValueError, match=about) as caught:
            read(folder)
        assert len(str(caught.value)) < 400 + len(str(folder))
    assert time.process_time() - start < 1


def test_a_file_without_layers(tmp_path):
    """The list of tensors that are missing ends, however many layers config.json says there are."""
    tensors = {n: x for n, x in whole_tensors().items() if ".layer." not in n}
    folder = write(tmp_path, tensors, {**BERT, "num_hidden_layers": 2_000})
    with pytest.raises(
        ValueError, match=r"(?s)layer.0.attention.*\n  \.\.\. and 31,800 more$"
    ):
        load_encoder(folder)


def test_tied_weights_are_the_same_or_an_error(tmp_path):
    tensors = whole_tensors()
    again = {
        "cls.predictions.decoder.weight": tensors[
            "bert.embeddings.word_embeddings.weight"
        ].copy(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].copy(),
    }
    load_encoder(write(tmp_path, tensors | again, BERT))
    again["cls.predictions.decoder.weight"][3, 4] += 1e-6
    with pytest.raises(
        ValueError, match=r"decoder.weight: not the same as bert.embeddings.word_"
    ):
        load_encoder(write(tmp_path, tensors | again, BERT))


def test_a_decoder_that_is_not_tied_is_read_or_missed(tmp_path):
    tensors, untied = whole_tensors(), {**BERT, "tie_word_embeddings": False}
    message = (
        "cls.predictions.decoder.weight: missing, .*, as tie_word_embeddings is False"
    )
    with pytest.raises(ValueError, match=message):
        load_encoder(write(tmp_path, tensors, untied))
    tensors["cls.predictions.decoder.weight"] = np.ones((V, D), np.float32)
    params = load_encoder(write(tmp_path, tensors, untied)).params
    np.testing.assert_array_equal(params["masked_lm"]["decoder"], np.ones((V, D)))
    assert load_encoder(
        write(tmp_path, bert_tensors(), untied)
    ).absent  # An encoder alone.


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("bert.encoder.layer.0.output.dense.bias", "encoder.layer.0.output.dense.bias"),
        ("bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma"),
    ],
)
def test_two_names_of_one_tensor(tmp_path, name, again):
    tensors = whole_tensors()
    tensors[again] = tensors[name].copy()
    load_encoder(write(tmp_path, tensors, BERT))
    tensors[again][3] += 1e-6
    with pytest.raises(
        ValueError, match="not the same as .*, another name of the same"
    ) as caught:
        load_encoder(write(tmp_path, tensors, BERT))
    assert name in str(caught.value) and again in str(caught.value)


def test_all_mismatches_are_listed(tmp_path):
    tensors = whole_tensors()
    del (
        tensors[f"bert.{TABLE}"],
        tensors["bert.encoder.layer.1.attention.self.key.bias"],
    )
    del tensors["cls.seq_relationship.bias"]
    tensors["bert.encoder.layer.0.intermediate.dense.weight"] = np.ones(
        (D, M), np.float32
    )
    tensors["bert.embeddings.LayerNorm.bias"] = np.ones(D, np.int8)
    tensors["bert.encoder.layer.2.output.dense.bias"] = np.ones(D, np.float32)
    tensors["cls.predictions.extra"] = np.ones(D, np.float32)
    with pytest.raises(ValueError, match="does not hold the BERT") as caught:
        load_encoder(write(tmp_path, tensors, BERT))
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        f"{TABLE}: missing, (10, 12) expected",
        "bert.embeddings.LayerNorm.bias: I8, floats expected",
        "bert.encoder.layer.0.intermediate.dense.weight: (12, 20), (20, 12) expected",
        "encoder.layer.1.attention.self.key.bias: missing, (12,) expected",
        "cls.seq_relationship.bias: missing, (2,) expected",
        "cls.predictions.extra: is not part of this model",
        "bert.encoder.layer.2.output.dense.bias: is not part of this model",
    ]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2', not 'bert', 'distilbert'"),
        ({"model_type": None}, "model_type is None, not 'bert'"),
        (
            {"position_embedding_type": "rotary"},
            "must be 'absolute', got 'rotary'",
        ),
        ({"hidden_act": "tanh"}, "hidden_act must be one of gelu, .*'tanh'"),
        ({"is_decoder": True}, "is_decoder must be False, got True"),
        ({"add_cross_attention": True}, "add_cross_attention must be False, got True"),
        ({"alibi_starting_size": 512}, "does not hold the MosaicBert"),
        (
            {"quantization_config": {"bits": 8}},
            "quantization_config must be left out, got {'bits'",
        ),
        (
            {"auto_map": {"AutoModelForMaskedLM": "bert_layers.BertForMaskedLM"}},
            "auto_map must not name models, .* got {'AutoModelForMaskedLM': 'bert_layers",
        ),
        (
            {"model_type": ["bert"]},
            r"config.json: model_type must be a str, got \['bert'\]",
        ),
        ({"architectures": 3}, "config.json: architectures must be a list, got 3"),
    ],
)
def test_other_models_are_refused(tmp_path, changes, match):
    with pytest.raises(ValueError, match=match):
        load_encoder(write(tmp_path, bert_tensors(), {**BERT, **changes}))


def test_a_config_is_required(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        load_encoder(write(tmp_path, bert_tensors()))
    few = {key: BERT[key] for key in ("model_type", "vocab_size", "hidden_size")}
    with pytest.raises(
        ValueError, match=r"it lacks num_hidden_layers, num_attention_heads, "
    ):
        load_encoder(write(tmp_path, bert_tensors(), few))


# --- docs/checkpoints.md --------------------------------------------------------------------------


def test_the_page_reads_and_writes_checkpoints(tmp_path, monkeypatch):
    """Its blocks on a small BERT: what it reads, merges with new heads and writes comes back."""
    page = Path(__file__).parents[2] / "docs/checkpoints.md"
    read, written = re.findall(
        r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S
    )
    monkeypatch.chdir(tmp_path)
    write(Path("BERT"), bert_tensors(), BERT)
    words = dict(zip(WORDS, range(V)))
    Tokenizer(WordPiece(words, unk_token="[UNK]")).save("BERT/tokenizer.json")
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}  # It is no BertTokenizer.
    Path("BERT/tokenizer_config.json").write_text(json.dumps(config))
    found = {}
    exec(read, found)
    shape = (LAYERS + 1, *found["tokens"].shape, D)
    assert found["states"].shape == shape and "masked_lm" in found["params"]
    exec(written, found)
    again = load_encoder("FOLDER")
    assert not again.absent
    states = hidden_states(again.config, again.params["bert"], found["tokens"])
    np.testing.assert_array_equal(states, found["states"])
