"""Other people's checkpoints: what is read, what is refused, and a BERT that computes the same."""

import json
import pickle
import shlex

import flax
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.special import erf

from pe_jax.interop import FAMILIES, load_bert, load_position_table, open_checkpoint
from pe_jax.models import Bert, BertForPretraining

V, N, S, D, M, H, LAYERS = 13, 10, 2, 12, 20, 3, 2
BERT = {
    "model_type": "bert",
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": H,
    "intermediate_size": M,
    "max_position_embeddings": N,
    "type_vocab_size": S,
    "layer_norm_eps": 1e-5,
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
    "initializer_range": 0.04,
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
}
TABLE = "embeddings.position_embeddings.weight"


def bert_tensors(seed=0):
    """Random weights by their published names, a pooler and position ids among them."""
    shapes = {
        "embeddings.word_embeddings.weight": (V, D),
        TABLE: (N, D),
        "embeddings.token_type_embeddings.weight": (S, D),
        "embeddings.LayerNorm.weight": (D,),
        "embeddings.LayerNorm.bias": (D,),
        "pooler.dense.weight": (D, D),
    }
    for i in range(LAYERS):
        dense = {
            "attention.self.query": (D, D),
            "attention.self.key": (D, D),
            "attention.self.value": (D, D),
            "attention.output.dense": (D, D),
            "intermediate.dense": (M, D),
            "output.dense": (D, M),
        }
        for name, shape in dense.items():
            shapes[f"encoder.layer.{i}.{name}.weight"] = shape
            shapes[f"encoder.layer.{i}.{name}.bias"] = shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"encoder.layer.{i}.{name}.weight"] = (D,)
            shapes[f"encoder.layer.{i}.{name}.bias"] = (D,)
    rng = np.random.default_rng(seed)
    tensors = {n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in shapes.items()}
    return {**tensors, "embeddings.position_ids": np.arange(N)[None]}


def write(folder, tensors, config=None, file="model.safetensors"):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / file)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_shards(folder, tensors, config):
    """Every other tensor in the second file."""
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    where = {name: files[i % 2] for i, name in enumerate(tensors)}
    for file in files:
        write(folder, {n: t for n, t in tensors.items() if where[n] == file}, config, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def numpy_bert(t, config, tokens, segments, valid):
    """Hidden states in float64, straight from the published names; one head at a time."""
    t = {name: np.asarray(value, np.float64) for name, value in t.items()}

    def dense(x, name):
        return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return x * t[f"{name}.weight"] + t[f"{name}.bias"]

    x = t["embeddings.word_embeddings.weight"][tokens]
    x = x + t["embeddings.token_type_embeddings.weight"][segments]
    x = norm(x + t[TABLE][: tokens.shape[1]], "embeddings.LayerNorm")
    size = config["hidden_size"] // config["num_attention_heads"]
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        q, k, v = (dense(x, f"{layer}.attention.self.{n}") for n in ("query", "key", "value"))
        mixed = []
        for h in range(config["num_attention_heads"]):
            own = slice(h * size, (h + 1) * size)
            scores = q[..., own] @ k[..., own].swapaxes(1, 2) / np.sqrt(size)
            weights = np.exp(scores - scores.max(-1, keepdims=True)) * valid[:, None, :]
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v[..., own])
        y = dense(np.concatenate(mixed, -1), f"{layer}.attention.output.dense")
        x = norm(x + y, f"{layer}.attention.output.LayerNorm")
        y = dense(x, f"{layer}.intermediate.dense")
        y = dense(y * (1 + erf(y / np.sqrt(2))) / 2, f"{layer}.output.dense")
        x = norm(x + y, f"{layer}.output.LayerNorm")
    return x


# Tensors by name.


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
    np.testing.assert_array_equal(checkpoint.read("a"), half.astype(np.float32), strict=True)


def test_shards(tmp_path):
    tensors = bert_tensors()
    checkpoint = open_checkpoint(write_shards(tmp_path, tensors, BERT))
    assert set(checkpoint.names) == set(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(checkpoint.read(name), tensor)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"not in .*: model-00002-of-00002.safetensors\. Download"):
        open_checkpoint(tmp_path)


class Bomb:
    """Pickled so that loading it raises; a pickle that is only refused does not."""

    def __reduce__(self):
        return (int, ("a pickle was loaded",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "model.pth"])
def test_pickles_are_refused_unread(tmp_path, name):
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


def test_the_command_takes_the_weights_alone(tmp_path):
    for name in ("optimizer.pt", "pytorch_model-1-of-2.bin", "pytorch_model-2-of-2.bin"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="pytorch_model-2-of-2.bin: a pickle") as caught:
        open_checkpoint(tmp_path)
    assert "optimizer" not in str(caught.value)


def test_missing_or_damaged_files_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"No checkpoint at .*nowhere.*hf download"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="neither model.safetensors nor .*give that file"):
        open_checkpoint(tmp_path)
    file = write(tmp_path, {"a": np.ones(9)}) / "model.safetensors"
    whole = file.read_bytes()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    for damaged in (b"", whole[:5], whole[:-5], pointer):
        file.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"model.safetensors is not a whole.*download it again"
        ):
            open_checkpoint(tmp_path)
    file.write_bytes(whole)
    for damaged in ('{"vocab_size": 3', "[1, 2]", "7"):
        (tmp_path / "config.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"config.json is not a JSON object"):
            open_checkpoint(tmp_path)
    index = tmp_path / "m" / "model.safetensors.index.json"
    index.parent.mkdir()
    index.write_text("{}")
    with pytest.raises(ValueError, match=r'index.json has no "weight_map"'):
        open_checkpoint(index.parent)


# Position tables.

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


def test_roberta_counts_on_from_its_padding_token(tmp_path):
    write(tmp_path, {TABLE: ROWS}, {"model_type": "roberta", "pad_token_id": 0})
    assert load_position_table(tmp_path).first_row == 1


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_tables_are_float32(tmp_path, dtype):
    write(tmp_path, {"wpe.weight": ROWS.astype(dtype)})
    expected = ROWS.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(load_position_table(tmp_path).vectors, expected, strict=True)


def test_a_table_that_bert_and_roberta_share_needs_a_word(tmp_path):
    choose = "can be of bert or roberta.*family='bert' or family='roberta'"
    with pytest.raises(ValueError, match=choose):
        load_position_table(write(tmp_path, {TABLE: ROWS}))
    with pytest.raises(ValueError, match=choose):
        load_position_table(write(tmp_path, {TABLE: ROWS}, {"model_type": "mpnet"}))


@pytest.mark.parametrize(
    ("name", "model_type", "argument", "match"),
    [
        (f"bert.{TABLE}", "", "roberta", "can be of bert, but the argument is 'roberta'"),
        (f"roberta.{TABLE}", "bert", "", "of roberta, but config.json's model_type is 'bert'"),
        (TABLE, "bert", "camembert", "model_type is 'bert' and the argument is 'camembert'"),
        (TABLE, "", "gpt2", "can be of bert or roberta, but the argument is 'gpt2'"),
        ("wpe.weight", "", "t5", "Unknown family 't5': use one of bert, .*roberta, .*gpt2"),
    ],
)
def test_contradictions_are_errors(tmp_path, name, model_type, argument, match):
    write(tmp_path, {name: ROWS}, {"model_type": model_type} if model_type else None)
    with pytest.raises(ValueError, match=match):
        load_position_table(tmp_path, argument)


def test_no_position_table(tmp_path):
    near = [f"block.{i}.relPosition" for i in range(7)]
    write(tmp_path, {**{name: ROWS for name in near}, "shared.weight": ROWS})
    with pytest.raises(ValueError, match=r"no learned position table") as caught:
        load_position_table(tmp_path)
    assert sum(name in str(caught.value) for name in near) == 5
    assert "shared.weight" not in str(caught.value)
    assert all(f.key in str(caught.value) for f in FAMILIES.values())
    with pytest.raises(ValueError, match=r"in their name: none\. Looked for: embeddings\.pos"):
        load_position_table(write(tmp_path, {"w": ROWS}))


def test_a_table_that_is_unused_or_no_table(tmp_path):
    write(tmp_path, {TABLE: ROWS}, {**BERT, "position_embedding_type": "relative_key"})
    with pytest.raises(ValueError, match="'relative_key'.*never uses it"):
        load_position_table(tmp_path)
    for wrong in (ROWS[0], ROWS[:2], ROWS.astype(np.int8)):
        write(tmp_path, {f"roberta.{TABLE}": wrong}, {})
        with pytest.raises(ValueError, match=r"no table \[N, D\] of floats with more than 2 rows"):
            load_position_table(tmp_path)


# The encoder.


def old_names(tensors):
    """As in the first published files: under a prefix, LayerNorm's gamma and beta, with heads."""
    gamma = lambda name: name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
    heads = {"cls.predictions.transform.LayerNorm.gamma": np.ones(D, np.float32)}
    return {**{f"bert.{gamma(name)}": tensor for name, tensor in tensors.items()}, **heads}


def test_config(tmp_path):
    config, _ = load_bert(write(tmp_path, bert_tensors(), BERT))
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (V, D, M)
    assert (config.num_layers, config.num_heads, config.num_segments) == (LAYERS, H, S)
    assert (config.max_length, config.position) == (N, "learned_absolute")
    assert (config.dropout_rate, config.attention_dropout_rate) == (0.2, 0.3)
    assert (config.layer_norm_epsilon, config.initializer_stddev) == (1e-5, 0.04)
    old = {key: value for key, value in BERT.items() if key not in ("layer_norm_eps", "hidden_act")}
    assert load_bert(write(tmp_path, bert_tensors(), old))[0].layer_norm_epsilon == 1e-12


@pytest.mark.parametrize("layout", ["plain", "old", "shards"])
def test_hidden_states_are_those_of_a_numpy_bert(tmp_path, layout):
    tensors = bert_tensors()
    if layout == "shards":
        write_shards(tmp_path, tensors, BERT)
    else:
        write(tmp_path, old_names(tensors) if layout == "old" else tensors, BERT)
    config, params = load_bert(tmp_path)
    rng = np.random.default_rng(2)
    tokens, segments = rng.integers(0, V, (3, 7)), rng.integers(0, S, (3, 7))
    valid = np.arange(7) < np.array([[7], [4], [1]])
    got = jax.jit(Bert(config).apply)({"params": params}, tokens, segments, jnp.asarray(valid))
    expected = numpy_bert(tensors, BERT, tokens, segments, valid)
    np.testing.assert_allclose(got, expected, atol=2e-5, rtol=0)


def test_parameters_are_those_under_bert(tmp_path):
    half = {name: t.astype(np.float16) for name, t in bert_tensors().items()}
    config, params = load_bert(write(tmp_path, half, BERT))
    one = jnp.zeros((1, 1), jnp.int32)
    model = BertForPretraining(config)
    expected = jax.eval_shape(model.init, jax.random.key(0), one, one)["params"]["bert"]
    shapes = lambda tree: {
        path: (leaf.shape, leaf.dtype)
        for path, leaf in flax.traverse_util.flatten_dict(tree, sep="/").items()
    }
    assert shapes(params) == shapes(expected)


def test_every_mismatch_is_listed_at_once(tmp_path):
    tensors = {f"bert.{name}": tensor for name, tensor in bert_tensors().items()}
    del tensors[f"bert.{TABLE}"], tensors["bert.encoder.layer.1.attention.self.key.bias"]
    tensors["bert.encoder.layer.0.intermediate.dense.weight"] = np.ones((D, M), np.float32)
    tensors["bert.embeddings.LayerNorm.bias"] = np.ones(D, np.int8)
    tensors["bert.encoder.layer.2.output.dense.bias"] = np.ones(D, np.float32)
    with pytest.raises(ValueError, match="does not hold the BERT") as caught:
        load_bert(write(tmp_path, tensors, BERT))
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        f"{TABLE}: missing, (10, 12) wanted",
        "bert.embeddings.LayerNorm.bias: I8, floats wanted",
        "bert.encoder.layer.0.intermediate.dense.weight: (12, 20), (20, 12) wanted",
        "encoder.layer.1.attention.self.key.bias: missing, (12,) wanted",
        "bert.encoder.layer.2.output.dense.bias: has no place in this model",
    ]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_type": "roberta"}, "model_type is 'roberta', not 'bert'"),
        ({"model_type": None}, "model_type is None, not 'bert'"),
        ({"position_embedding_type": "relative_key"}, "is 'relative_key', not 'absolute'"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', not 'gelu'"),
        ({"is_decoder": True}, "is_decoder is True, not False"),
    ],
)
def test_other_models_are_refused(tmp_path, changes, match):
    with pytest.raises(ValueError, match=match):
        load_bert(write(tmp_path, bert_tensors(), {**BERT, **changes}))


def test_a_config_is_needed(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        load_bert(write(tmp_path, bert_tensors()))
    few = {key: BERT[key] for key in ("model_type", "vocab_size", "hidden_size")}
    with pytest.raises(ValueError, match=r"num_hidden_layers is missing; num_attention_heads is"):
        load_bert(write(tmp_path, bert_tensors(), few))
