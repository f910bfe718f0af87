"""Every key of every config: what it may hold, and how an error says what is wrong."""

import copy
import importlib
import json
import math
import pickle
from pathlib import Path

import pytest
from helpers.commands import call
from helpers.config_schemas import FILES, changed, read, shipped
from ml_collections import ConfigDict

from pe_jax.common.files import cache_folder, reachable_path
from pe_jax.common.schema import as_dict, flatten, from_values, keys, values_of
from pe_jax.interop import load_position_table
from pe_jax.interop.bert_import import read_config
from pe_jax.models import BertConfig, preset
from pe_jax.trainer.tasks import finetuning, text_training

NAN, INF = math.nan, math.inf


def message(config, run=read):
    """The one line of the error."""
    with pytest.raises(ValueError) as error:
        run(config)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", FILES)
def test_shipped_configs_pass(name):
    config = shipped(name)
    typed = read(config)
    flat = flatten(config.to_dict())
    assert set(flat) == set(keys(type(typed))) and flat == values_of(typed)
    # What a run's config.json holds reads back as the same.
    assert from_values(json.loads(json.dumps(as_dict(typed))), type(typed)) == typed


@pytest.mark.parametrize("name", [file for file in FILES if "pretrain" in str(file)])
def test_a_longer_stage_predicts_more(name):
    config = shipped(name)
    config.stage1.length = 400
    rate = config.data.mask_rate
    assert read(config).stages["stage1"].max_predictions == round(400 * rate)


def test_what_is_legal_stays_legal():
    """Ends of ranges, and values that the documentation names."""
    for name, key, value in [
        ("quickstart", "optimizer.learning_rate", 0.0),
        ("quickstart", "optimizer.learning_rate", 1),
        ("quickstart", "optimizer.warmup", 1.0),
        ("quickstart", "optimizer.decay", 1.0),  # Not used by the linear schedule.
        ("quickstart", "optimizer.schedule", "wsd"),
        ("quickstart", "optimizer.clip_norm", 0.0),
        ("quickstart", "optimizer.frequency_learning_rate", 0.0),
        ("quickstart", "data.mask_rate", 1.0),
        ("quickstart", "data.short_probability", 0.0),
        ("quickstart", "data.held_out", 0.5),
        ("quickstart", "log_every", 0),
        ("quickstart", "eval_every", 0),
        ("quickstart", "checkpoint_every", 0),
        ("quickstart", "parallel", "fsdp"),
        ("quickstart", "seed", 2**32 - 1),
        (
            "quickstart",
            "model.position",
            "cycle(rope(base=160000), rope+window(max_distance=64))",
        ),
        ("glue", "data.buckets", ()),
        ("glue", "seeds", [3]),
        ("glue", "steps", 1000),
        ("glue", "model.scan_layers", True),
        ("squad", "null_threshold", -INF),
        ("properties", "parts", " words, heads,"),
        ("properties", "windows", ()),
        ("properties", "family", "distilbert"),
        ("sweep", "bases", (1e6, 10.0)),
        ("sweep", "length", 32),  # A turning point has no window.
        ("lengths", "lengths", ()),
        ("export", "seed", 3),
    ]:
        read(changed(shipped(name), key, value))


WRONG = [
    # Trained before.
    *[("quickstart", "data.mask_rate", value) for value in (2.0, -1.0, 0.0, NAN, INF)],
    *[("quickstart", "data.short_probability", value) for value in (NAN, -0.1, 1.5)],
    *[("quickstart", "data.vocab_size", value) for value in (0, -5, 3, 10**9)],
    *[("quickstart", "model.num_layers", value) for value in (0, -1, 10**9, 2.5, True)],
    *[("quickstart", "model.dropout_rate", value) for value in (1.0, -0.1, NAN)],
    ("quickstart", "model.attention_dropout_rate", 2.0),
    *[
        ("quickstart", "model.initializer_stddev", value)
        for value in (0.0, -0.02, NAN, INF)
    ],
    *[("quickstart", "optimizer.learning_rate", value) for value in (-1e-4, NAN, INF)],
    ("quickstart", "optimizer.frequency_learning_rate", -1.0),
    *[("quickstart", "optimizer.warmup", value) for value in (2.0, -0.1, NAN)],
    *[("quickstart", "optimizer.decay", value) for value in (2.0, -0.1, NAN)],
    *[("quickstart", "optimizer.weight_decay", value) for value in (-0.01, NAN)],
    *[("quickstart", "optimizer.b1", value) for value in (1.0, -0.5)],
    *[("quickstart", "optimizer.b2", value) for value in (1.0, 1 - 1e-9, 2.0)],
    *[("quickstart", "optimizer.epsilon", value) for value in (0.0, -1e-6, NAN)],
    *[("quickstart", "optimizer.clip_norm", value) for value in (-1.0, NAN, INF)],
    *[("quickstart", "keep_checkpoints", value) for value in (0, -1)],
    *[
        ("quickstart", key, -1)
        for key in ("log_every", "eval_every", "checkpoint_every")
    ],
    *[("quickstart", "eval_examples", value) for value in (0, -3)],
    ("quickstart", "stage2.steps", -2),
    ("quickstart", "stage1.steps", -450),
    ("quickstart", "stage1.max_predictions", 129),
    ("glue", "epochs", -3.0),
    ("glue", "epochs", 0.0),
    ("squad", "n_best", 0),
    ("squad", "max_answer_tokens", -1),
    ("squad", "null_threshold", NAN),
    ("properties", "words", 0),
    ("properties", "kernel", "word"),
    ("properties", "seeds", 0),
    ("lengths", "lengths", (128, 128)),
    # Ended in a traceback before.
    *[("quickstart", "stage1.accumulation", value) for value in (0, -1, 3)],
    *[("quickstart", "stage1.epochs", value) for value in (INF, NAN, -1.0)],
    *[
        ("quickstart", "seed", value)
        for value in (-1, 2**32, 2**70, 1.5, "0", None, True)
    ],
    *[
        ("glue", "seeds", value)
        for value in ((), (1, 1), (-1,), (1.5,), 3, "01", ([],))
    ],
    *[("quickstart", "stage1.batch_size", value) for value in (0, -8)],
    *[("quickstart", "data.held_out", value) for value in (-0.1, 0.51, 0.9)],
    *[("quickstart", "stage1.length", value) for value in (0, 7, -1)],
    ("quickstart", "stage1.max_predictions", -1),
    *[("quickstart", "model.num_heads", value) for value in (0, -2)],
    ("quickstart", "model.hidden_size", "12"),
    ("quickstart", "data.workers", -1),
    ("quickstart", "data.workers", 200),
    *[
        ("sweep", "bases", value)
        for value in ((1.0, 10.0), (10.0,), (-10.0, 10.0), (10.0, NAN), 3)
    ],
    *[
        ("sweep", "dims", value)
        for value in ((0.0, 10.0), (16.0, 16.5), (16.0, INF), ())
    ],
    *[("sweep", "base_count", value) for value in (1, 0, -60)],
    ("sweep", "window", 512),
    ("sweep", "memory", 0),
    ("properties", "ridge", (-1.0,)),
    ("properties", "length", 0),
    ("properties", "layer", -1),
    # Names.
    ("quickstart", "model.size", "tyni"),
    ("quickstart", "model.dtype", "float16"),
    ("quickstart", "model.implementation", "flash"),
    ("quickstart", "model.remat", "half"),
    ("quickstart", "parallel", "pmapp"),
    ("quickstart", "optimizer.name", "adam"),
    ("quickstart", "optimizer.schedule", "constant"),
    ("quickstart", "data.source", ""),
    ("quickstart", "data.source", "\udcc3.txt"),  # Of a locale without UTF-8.
    ("glue", "select", "first"),
    ("glue", "resize", "stretch"),
    ("glue", "data.buckets", (64, 32)),
    ("glue", "data.batch_size", 0),
    ("squad", "version", "v3"),
    ("squad", "data.max_query", 384),
    ("properties", "parts", "vectors,corelation"),
    ("properties", "vector", "eps"),
    ("sweep", "measure", "turning"),
    ("tables", "p_value", 5),
    ("tables", "all_rows", "yes"),
    ("lengths", "resize", "truncate"),
    ("export", "seed", -1),
]


def in_force(name, key):
    """The config of that name where `key` has a meaning."""
    config = shipped(name)
    if key == "window":
        config.measure = "monotonicity"
    if key.endswith("epochs") and name == "quickstart":
        config.stage1.steps = 0
    return config


@pytest.mark.parametrize(("name", "key", "value"), WRONG)
def test_wrong_values_are_named(name, key, value):
    found = message(changed(in_force(name, key), key, value))
    assert f"config.{key}" in found
    assert repr(value) in found


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"data.held_out": 0.0},
            "config.data.held_out=0.0 must be above 0 if config.data.validation",
        ),
        (
            {"stage1.steps": 0},
            "Nothing to train: set steps or epochs of config.stage1, config.stage2",
        ),
        (
            {"stage1.epochs": 2.0},
            "config.stage1.steps=450 and epochs=2.0: a stage takes",
        ),
        (
            {"optimizer.learning_rate": 0.0, "optimizer.frequency_learning_rate": 0.1},
            "config.optimizer.learning_rate, which then has to be above 0",
        ),
        (
            {
                "optimizer.schedule": "wsd",
                "optimizer.warmup": 0.3,
                "optimizer.decay": 0.8,
            },
            "config.optimizer.warmup=0.3 and decay=0.8 overlap: as fractions of the",
        ),
        (
            {"data.mask_rate": "0.15"},
            "a number in (0, 1], got '0.15'. Give the number, 0.15, with",
        ),
        (
            {"stage1.steps": 450.0},
            "an integer from 0 to 2,147,483,647, got 450.0. The nearest",
        ),
        ({"model.size": "minni"}, "got 'minni'. Did you mean mini?"),
        (
            {"model.implementation": "buckets"},
            "got 'buckets'. It is now called 'table'.",
        ),
        (
            {"model.num_heads": 5},
            "config.model.hidden_size 128 is not a multiple of num_heads 5",
        ),
        (
            {"model.position": "learnt_absolute"},
            "config.model.position: Cannot read the position encoding: 'learnt_absolute' is",
        ),
        (
            {"model.position": "rope(base=1e999)"},
            "the option 'base' takes float, got inf",
        ),
        (
            {"model.position": f"rope(base=1{400 * '0'})"},
            "the option 'base' takes float, got 100",
        ),
        (
            {"data.mask_rate": 0.4, "stage1.max_predictions": 20},
            "config.stage1.max_predictions=20 is too low: config.data.mask_rate=0.4 masks 50 of "
            "the 125 tokens of an input. Raise it to 50, or lower the rate.",
        ),
        (
            {"stage1.length": 129, "model.position": "learned_absolute"},
            "config.stage1.length=129 does not fit the 128 positions",
        ),
    ],
)
def test_relations_and_ways_out(changes, says):
    config = shipped("quickstart")
    for key, value in changes.items():
        config = changed(config, key, value)
    assert says in message(config, lambda config: text_training.resolve(read(config)))


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (
            "stage1.leng",
            "config.stage1.leng is not a key of the task 'pretraining'. Did you mean",
        ),
        ("mask_rate", "Did you mean config.data.mask_rate?"),
        ("num_heads", "Did you mean config.model.num_heads?"),
        ("model.num_segments", "is now called config.model.num_token_types."),
        (
            "model.attention",
            "config.model.attention is now called config.model.implementation.",
        ),
        (
            "data.attention",
            "config.data.attention is not a key of the task 'pretraining'.",
        ),
        ("optimizer.learing_rate", "Did you mean config.optimizer.learning_rate"),
        (
            "foo",
            "config.foo is not a key of the task 'pretraining'. It has seed, init, parallel, ",
        ),
    ],
)
def test_unknown_keys(key, says):
    assert says in message(changed(shipped("quickstart"), key, 1))


def test_missing_keys_and_tasks():
    config = shipped("quickstart")
    del config.stage1.accumulation
    assert "config.stage1.accumulation is missing. It must be an integer" in message(
        config
    )
    assert "config.stage1 is a part" in message(changed(config, "stage1", 3))
    for task in ("pretrainning", 3, None, ["cola"]):
        assert "config.task must be one of pretraining, " in message(
            ConfigDict({"task": task})
        )
    assert "config.task must be one of" in message(ConfigDict())
    assert "must return a ConfigDict, got None" in message(None)


def test_fine_tuning_without_a_start():
    config = importlib.import_module("pe_jax.trainer.configs.glue").get_config()
    says = "config.init must not be empty, got ''. Fine-tuning starts from a pretrained"
    assert says in message(config, lambda config: finetuning.resolve(read(config)))


# --- published models -----------------------------------------------------------------------------


def test_renamed_fields_of_a_model():
    with pytest.raises(TypeError, match="^attention is now called implementation"):
        BertConfig(attention="naive")
    with pytest.raises(TypeError, match="num_segments is now called num_token_types"):
        preset("mini", num_segments=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'platform'"):
        BertConfig(platform="tpu")
    config = preset("mini", implementation="naive")
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_layers", 0),
        ("num_layers", 10**9),
        ("hidden_size", "12"),
        ("num_heads", 0),
        ("vocab_size", -1),
        ("dropout_rate", NAN),
        ("layer_norm_epsilon", 0.0),
        ("scan_layers", 1),
        ("remat", ["full"]),
    ],
)
def test_model_configs(field, value):
    found = message({field: value}, lambda changes: BertConfig(**changes))
    assert found.startswith(f"{field} must be ") and f"got {value!r}" in found


def publish(folder, config, name):
    """A checkpoint of one number."""
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps(
        {name: {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}
    ).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    (folder / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", [1]),
        ("hidden_size", "12"),
        ("hidden_size", 12.0),
        ("hidden_dropout_prob", NAN),
        ("layer_norm_eps", "1e-12"),
        ("num_hidden_layers", 10**9),
        ("num_attention_heads", 0),
        ("num_attention_heads", 5),
        ("vocab_size", [30_522]),
        ("type_vocab_size", None),
        ("initializer_range", -INF),
    ],
)
def test_published_config(tmp_path, key, value):
    """The file's own names; nothing else of the checkpoint is read."""
    config = {
        "model_type": "bert",
        "vocab_size": 100,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 32,
        "type_vocab_size": 2,
        key: value,
    }
    publish(tmp_path, config, "x")
    found = message(tmp_path, read_config)
    assert str(tmp_path) in found
    assert key in found or "num_heads 5" in found


@pytest.mark.parametrize("row", ["1", -1, None, 1.5])
def test_published_padding(tmp_path, row):
    config = {"model_type": "roberta", "pad_token_id": row}
    publish(tmp_path, config, "roberta.embeddings.position_embeddings.weight")
    found = message(tmp_path, load_position_table)
    wrong = f"must be an integer from 0 to 2147483647, got {row!r}"
    assert f"pad_token_id {'is missing' if row is None else wrong}" in found


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (
            "gs://bucket/run",
            "gs://bucket/run needs the package gcsfs, which is not installed: ",
        ),
        (
            "s4://bucket/run",
            "s4://bucket/run is not in a supported object store: gs://, ",
        ),
    ],
)
def test_object_stores_out_of_reach(monkeypatch, path, says):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert message(path, reachable_path).startswith(says)


def test_caches_are_local_folders(monkeypatch):
    """Object stores have no locks; one slash would be a folder named gs:."""
    says = "config.data.cache_dir must be a local folder, got gs://b/c: object stores have no locks"
    assert message("gs://b/c", cache_folder).startswith(says)
    monkeypatch.setenv("PE_JAX_CACHE", "gs://b")
    assert message("", cache_folder).startswith(
        "PE_JAX_CACHE must be a local folder, got gs://b:"
    )
    assert message("gs:/b/c", cache_folder).startswith(
        "gs:/b/c has one slash after gs:"
    )
    assert cache_folder("somewhere") == Path("somewhere")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ["--config.foo=1"],
            "error: config.foo is not a key of configs/quickstart.py.",
        ),
        (["--config.stage1.leng=8"], "Did you mean config.stage1.length"),
        (
            ["--config.seed=1.5"],
            "error: --config.seed must be an integer from 0 to 4,294,967,295, got",
        ),
        (
            ["--hosts=two"],
            "error: --hosts must be an integer, got 'two'.",
        ),
        (["--profile=" + "x" * 10**6], "x ... xxx"),
        (
            ["--config.data.mask_rate=2"],
            "error: config.data.mask_rate must be a number in (0, 1], got 2.0.",
        ),
        (
            ["--hosts=2", "--host=0"],
            "error: --hosts and --host need --coordinator=HOST:PORT",
        ),
        (["--config.seed=-1"], "error: config.seed must be an integer from 0"),
    ],
)
def test_train_says_so_before_it_begins(tmp_path, args, says):
    code, _, err = call(
        "train.py", "--config=configs/quickstart.py", *args, f"--workdir={tmp_path}"
    )
    assert code == 1 and says in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("length", "rate", "predictions"),
    [(128, 0.15, 20), (512, 0.15, 77), (20, 0.15, 3), (64, 0.4, 26)],
)
def test_words_to_predict_follow_the_length_and_the_rate(length, rate, predictions):
    config = changed(
        changed(shipped("quickstart"), "data.mask_rate", rate), "stage1.length", length
    )
    assert read(config).stages["stage1"].max_predictions == predictions
