"""Published encoders other than BERT: what is written and read, and what is refused."""

import dataclasses
import functools
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.byte_level import byte_level, byte_level_for
from helpers.initial_params import shapes_of
from helpers.published_bert import write
from helpers.published_encoders import ENCODERS
from safetensors.numpy import load_file

from pe_jax.interop import load_encoder, save_encoder
from pe_jax.interop.bert_import import PRETRAINING_HEADS, TASK_HEADS, config_of
from pe_jax.interop.hf_registry import FAMILIES
from pe_jax.interop.special_tokens import special_tokens, vocabulary
from pe_jax.interop.tokenizer import load_tokenizer
from pe_jax.models import (
    BertForClassification,
    BertForMaskedLM,
    BertForSpans,
    BertForTokens,
    hidden_states,
    preset,
    with_tokens,
)

MODERN = ENCODERS["modernbert"][1]
LAYER = {
    "attn_norm.weight": (12,),
    "attn.Wqkv.weight": (36, 12),
    "attn.Wo.weight": (12, 12),
    "mlp_norm.weight": (12,),
    "mlp.Wi.weight": (38, 12),
    "mlp.Wo.weight": (12, 19),
}


def random_encoder(theirs):
    """Our config of a config.json, and random parameters."""
    config = config_of(theirs, "the test")
    heads = FAMILIES[theirs["model_type"]].encoder.heads
    if "masked_lm" in heads:
        return config, random_params(config)
    return config, random_params(config, BertForTokens, outputs=3)


@functools.cache
def random_params(config, model=BertForMaskedLM, **options):
    shapes = shapes_of(model(config, **options))
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes
    )


def saved(folder, theirs):
    config, params = random_encoder(theirs)
    save_encoder(
        folder, config, params, byte_level_for(theirs), family=theirs["model_type"]
    )
    return config, params


@pytest.mark.parametrize("case", ENCODERS)
def test_a_saved_encoder_loads_unchanged(tmp_path, case):
    config, params = saved(tmp_path / "out", ENCODERS[case][1])
    back = load_encoder(tmp_path / "out")
    has_masked_lm = "masked_lm" in params
    absent = {*PRETRAINING_HEADS} - ({"masked_lm"} if has_masked_lm else set())
    assert {*back.absent} == absent and back.unread == ()
    assert (
        dataclasses.replace(back.config, num_key_heads=config.num_key_heads) == config
    )
    assert jax.tree.structure(back.params) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, back.params, params)


# Tensors of a classifier of three classes, beside the encoder's.
CLASSIFIERS = {
    "roberta": {
        "classifier.dense.weight": (12, 12),
        "classifier.dense.bias": (12,),
        "classifier.out_proj.weight": (3, 12),
        "classifier.out_proj.bias": (3,),
    },
    "modernbert": {
        "head.dense.weight": (12, 12),
        "head.norm.weight": (12,),
        "classifier.weight": (3, 12),
        "classifier.bias": (3,),
    },
}


def loaded_unchanged(folder, case, config, params, of_head):
    """The model that is read from a folder: the one saved, with the tensors of a head alone beside
    the encoder's."""
    tensors = load_file(folder / "model.safetensors")
    prefix = FAMILIES[case].encoder.prefixes[0]
    heads = {
        name: x.shape for name, x in tensors.items() if not name.startswith(prefix)
    }
    assert heads == of_head
    back = load_encoder(folder)
    assert back.config == config and back.unread == ()
    jax.tree.map(np.testing.assert_array_equal, back.params, params)
    return back


@pytest.mark.parametrize("case", CLASSIFIERS)
def test_a_saved_classifier_loads_unchanged(tmp_path, case):
    theirs = {
        **ENCODERS[case][1],
        "classifier_pooling": "mean" if case == "modernbert" else "cls",
    }
    config, _ = random_encoder(theirs)
    params = random_params(config, BertForClassification, outputs=3)
    words, labels = byte_level(config.vocab_size), ("no", "maybe", "yes")
    architecture = save_encoder(
        tmp_path / "out", config, params, words, family=case, labels=labels
    )
    assert architecture == f"{ENCODERS[case][0]}ForSequenceClassification"
    back = loaded_unchanged(tmp_path / "out", case, config, params, CLASSIFIERS[case])
    assert back.absent == ("masked_lm", "next_sentence")
    encoder = load_encoder(
        tmp_path / "out", heads=PRETRAINING_HEADS
    )  # What further pretraining reads.
    assert encoder.params.keys() == {"bert"}
    assert sorted(encoder.unread) == sorted(CLASSIFIERS[case])


SPANS = {
    "roberta": {"qa_outputs.weight": (2, 12), "qa_outputs.bias": (2,)},
    "modernbert": {
        **{
            name: CLASSIFIERS["modernbert"][name]
            for name in ("head.dense.weight", "head.norm.weight")
        },
        "classifier.weight": (2, 12),
        "classifier.bias": (2,),
    },
}


@pytest.mark.parametrize("case", SPANS)
def test_saved_spans_load_unchanged(tmp_path, case):
    config, _ = random_encoder(ENCODERS[case][1])
    params = random_params(config, BertForSpans)
    words = byte_level(config.vocab_size)
    architecture = save_encoder(tmp_path / "out", config, params, words, family=case)
    assert architecture == f"{ENCODERS[case][0]}ForQuestionAnswering"
    loaded_unchanged(tmp_path / "out", case, config, params, SPANS[case])


TOKENS = {
    "roberta": {"classifier.weight": (3, 12), "classifier.bias": (3,)},
    "modernbert": CLASSIFIERS["modernbert"],
}


@pytest.mark.parametrize("case", TOKENS)
def test_a_saved_token_classifier_loads_unchanged(tmp_path, case):
    config, _ = random_encoder(ENCODERS[case][1])
    params = random_params(config, BertForTokens, outputs=3)
    words, labels = byte_level(config.vocab_size), ("O", "B-PER", "I-PER")
    architecture = save_encoder(
        tmp_path / "out", config, params, words, family=case, labels=labels
    )
    assert architecture == f"{ENCODERS[case][0]}ForTokenClassification"
    back = loaded_unchanged(tmp_path / "out", case, config, params, TOKENS[case])
    assert back.labels == labels
    theirs = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "problem_type" not in theirs


@pytest.mark.parametrize("asked", [("classifier",), ("spans", "classifier", "pooler")])
def test_a_head_of_another_task_is_named(tmp_path, asked):
    config, _ = random_encoder(ENCODERS["bert"][1])
    params = random_params(config, BertForTokens, outputs=3)
    save_encoder(tmp_path / "out", config, params, byte_level(37), family="bert")
    with pytest.raises(
        ValueError, match=r"BertForTokenClassification has 'tokens'. Pass heads=\('tok"
    ):
        load_encoder(tmp_path / "out", heads=asked)
    assert load_encoder(tmp_path / "out", heads=()).params.keys() == {"bert"}


def test_tensors_of_modernbert(tmp_path):
    _, params = saved(tmp_path / "out", MODERN)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "model.embeddings.tok_embeddings.weight": (37, 12),
        "model.embeddings.norm.weight": (12,),
        "model.final_norm.weight": (12,),
        "head.dense.weight": (12, 12),
        "head.norm.weight": (12,),
        "decoder.bias": (37,),
        **{
            f"model.layers.{i}.{name}": shape
            for i in range(4)
            for name, shape in LAYER.items()
            if (i, name) != (0, "attn_norm.weight")
        },
    }
    layer = params["bert"]["layer_2"]
    wi = tensors["model.layers.2.mlp.Wi.weight"]
    np.testing.assert_array_equal(wi[19:].T, layer["up"]["kernel"][:, 1])
    keys = tensors["model.layers.2.attn.Wqkv.weight"][12:24]
    np.testing.assert_array_equal(
        keys.T, layer["attention"]["qkv"]["kernel"][:, 1].reshape(12, 12)
    )


def test_the_gate_of_gte_is_the_second_half(tmp_path):
    _, params = saved(tmp_path / "out", ENCODERS["gte"][1])
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    packed = tensors["gte.encoder.layer.1.mlp.up_gate_proj.weight"]
    kernel = params["bert"]["layer_1"]["up"]["kernel"]
    np.testing.assert_array_equal(packed[19:].T, kernel[:, 0])


def test_special_tokens_are_those_of_the_tokenizer(tmp_path):
    """Without them transformers takes ids of the published vocabulary, outside of a smaller one."""
    saved(tmp_path / "out", MODERN)
    theirs = json.loads((tmp_path / "out" / "config.json").read_text())
    words = load_tokenizer(tmp_path / "out" / "tokenizer.json")
    names = special_tokens(words)
    for role, keys in {
        "cls": ("cls", "bos"),
        "sep": ("sep", "eos"),
        "pad": ("pad",),
    }.items():
        assert {theirs[f"{key}_token_id"] for key in keys} == {
            words.token_to_id(names[role])
        }


def test_positions_of_roberta_start_after_padding(tmp_path):
    config, params = saved(tmp_path / "out", ENCODERS["roberta"][1])
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    table = tensors["roberta.embeddings.position_embeddings.weight"]
    assert (config.max_length, table.shape) == (
        19,
        (20, 12),
    )  # The tokenizer pads with token 0.
    assert not table[0].any()
    ours = params["bert"]["position"]["learned_absolute"]["table"]
    np.testing.assert_array_equal(table[1:], ours)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (
            "modernbert",
            "cycle(rope(base=160000), rope+window(max_distance=3), rope+window(max_distance=3))",
        ),
        ("eurobert", "rope(base=250000)"),
        ("nomic_bert", "rope(base=1000)"),
        ("roformer", "rope(layout='interleaved')"),
        ("gte", "rope(base=20000)"),
        ("roberta", "learned_absolute"),
    ],
)
def test_positions_come_from_the_config(case, name):
    assert random_encoder(ENCODERS[case][1])[0].encoding().name == name


def test_scaled_positions_of_the_first_configs_of_gte(tmp_path):
    saved(tmp_path / "out", ENCODERS["gte"][1])
    path = tmp_path / "out" / "config.json"
    theirs = json.loads(path.read_text())
    theirs.pop("rope_parameters", None)
    theirs |= {"model_type": "new", "rope_theta": 5e5}
    path.write_text(
        json.dumps(theirs | {"rope_scaling": {"type": "ntk", "factor": 8.0}})
    )
    name = load_encoder(tmp_path / "out").config.encoding().name
    assert re.fullmatch(r"rope_linear\(factor=\S+, base=4000000\)", name)


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("modernbert", {"hidden_activation": "swiglu"}, "must be one of gelu, .*'swi"),
        ("modernbert", {"mlp_dropout": 0.1}, "mlp_dropout must be 0.0, got 0.1"),
        ("modernbert", {"sliding_window": 4}, "sliding_window must be left out, got 4"),
        (
            "modernbert",
            {"head_dim": 8},
            "head_dim must be 4, as the other sizes give it, got 8",
        ),
        (
            "modernbert",
            {"norm_bias": "no"},
            "norm_bias must be True or False, got 'no'",
        ),
        (
            "eurobert",
            {"head_dim": 8},
            "head_dim must be 4, as the other sizes give it, got 8",
        ),
        (
            "eurobert",
            {"num_key_value_heads": 2},
            "num_key_value_heads 2 does not divide num_attention_heads 3",
        ),
        ("nomic_bert", {"prenorm": True}, "prenorm must be False, got True"),
        ("nomic_bert", {"num_experts": 8}, "num_experts must be 0, got 8"),
        ("roformer", {"rotary_value": True}, "rotary_value must be False, got True"),
        (
            "gte",
            {"rope_scaling": {"type": "ntk2", "factor": 8}},
            "rope_type must be .*'ntk2'",
        ),
        (
            "gte",
            {"layer_norm_type": "rms_norm"},
            "layer_norm_type must be 'layer_norm', got 'rms_",
        ),
        (
            "gte",
            {"per_layer_config": {"0": {"skip": []}}},
            "per_layer_config must be left out",
        ),
        (
            "roberta",
            {"hidden_size": None},
            "hidden_size must be an integer .* got None",
        ),
    ],
)
def test_configs_that_are_refused(case, changes, message):
    with pytest.raises(ValueError, match=message):
        random_encoder({**ENCODERS[case][1], **changes})


# Right values: test_encoders_parity.py compares them with transformers' functions.
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        *[(name, "gelu") for name in ("gelu", "gelu_python")],
        *[
            (name, "gelu_tanh")
            for name in ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh")
        ],
        *[(name, "gelu_tanh") for name in ("gelu_fast", "gelu_accurate")],
        ("relu", "relu"),
        ("silu", "silu"),
        ("swish", "silu"),
    ],
)
def test_activations_that_are_read(theirs, ours):
    config, _ = random_encoder({**ENCODERS["bert"][1], "hidden_act": theirs})
    assert config.activation == config.head_activation == ours


@pytest.mark.parametrize(
    "name", ["gelu_10", "quick_gelu", "relu2", "gelu_tanh", "GELU", None, 3]
)
def test_activations_that_are_refused(name):
    message = f"hidden_act must be one of gelu, gelu_python, .*, swish, got {name!r}"
    with pytest.raises(ValueError, match=message) as caught:
        random_encoder({**ENCODERS["bert"][1], "hidden_act": name})
    assert "Did you mean" not in str(caught.value)


def test_rotations_of_roformer_of_another_length(tmp_path):
    saved(tmp_path / "out", ENCODERS["roformer"][1])
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    theirs = {**ENCODERS["roformer"][1], "max_position_embeddings": 10**7}
    message = r"max_position_embeddings is 10000000, but .*embed_positions.weight is \(21, 4\)"
    with pytest.raises(ValueError, match=message):
        load_encoder(write(tmp_path / "out", tensors, theirs))


# By class: the head that is read, and the modules of the file with their numbers of outputs.
TASKS = {
    "modernbert": {
        "ForSequenceClassification": ("classifier", {"classifier": 3}),
        "ForQuestionAnswering": ("spans", {"classifier": 2}),
        "ForTokenClassification": ("tokens", {"classifier": 3}),
        "ForMultipleChoice": (None, {"classifier": 1}),
        "": (None, {"classifier": 2}),
    },
    "roberta": {
        "ForSequenceClassification": (
            "classifier",
            {"classifier.dense": 12, "classifier.out_proj": 3},
        ),
        "": ("classifier", {"classifier.dense": 12, "classifier.out_proj": 3}),
        "ForTokenClassification": ("tokens", {"classifier": 3}),
        "ForMultipleChoice": (None, {"classifier": 1}),
        "ForQuestionAnswering": ("spans", {"qa_outputs": 2}),
    },
    "distilbert": {
        "ForSequenceClassification": (
            "classifier",
            {"pre_classifier": 12, "classifier": 3},
        ),
        "ForTokenClassification": ("tokens", {"classifier": 3}),
        "ForQuestionAnswering": ("spans", {"qa_outputs": 2}),
    },
}


@pytest.mark.parametrize(
    ("case", "task"), [(case, task) for case, tasks in TASKS.items() for task in tasks]
)
def test_heads_of_each_class(tmp_path, case, task):
    """A head that is not the class's, or whose class is not known, is left in `unread`."""
    saved(tmp_path / "out", ENCODERS[case][1])
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    head, outputs = TASKS[case][task]
    of_head = {}
    for module, size in outputs.items():
        of_head[f"{module}.weight"] = np.ones((size, 12), np.float32)
        of_head[f"{module}.bias"] = np.ones(size, np.float32)
    # Tensors of the masked-LM head stay, as in files that are trained further.
    theirs = json.loads((tmp_path / "out" / "config.json").read_text())
    theirs["architectures"] = [f"{ENCODERS[case][0]}{task}" if task else "X"]
    back = load_encoder(write(tmp_path / "in", {**tensors, **of_head}, theirs))
    assert {*TASK_HEADS} & back.params.keys() == ({head} if head else set())
    unread = {name for name in of_head if name in back.unread}
    assert unread == (set() if head else set(of_head))
    # The layers before the output are those of the class as well.
    assert ("masked_lm" in back.params) == (case != "modernbert")


def test_rotations_of_roformer_that_differ_are_named(tmp_path):
    saved(tmp_path / "out", ENCODERS["roformer"][1])
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    name = "roformer.encoder.embed_positions.weight"
    half = {**tensors, name: tensors[name].astype(np.float16)}
    load_encoder(write(tmp_path / "out", half, ENCODERS["roformer"][1]))
    other = {**tensors, name: tensors[name] + np.float32(0.01)}
    with pytest.raises(
        ValueError, match=f"{name}: has other values than the RoFormer of trans"
    ):
        load_encoder(write(tmp_path / "out", other, ENCODERS["roformer"][1]))


def test_rows_without_a_token_are_exported_unchanged(tmp_path):
    config, params = random_encoder(ENCODERS["nomic_bert"][1])
    words = byte_level(config.vocab_size - 6)
    for number, each in enumerate((config, with_tokens(config, config.vocab_size - 6))):
        save_encoder(tmp_path / f"{number}", each, params, words, family="nomic_bert")
        back = load_encoder(tmp_path / f"{number}")
        assert back.config == config
        jax.tree.map(np.testing.assert_array_equal, back.params, params)
    with pytest.raises(
        ValueError, match="has 38 tokens, the model 37 rows of embeddings"
    ):
        save_encoder(
            tmp_path / "no", config, params, byte_level(38), family="nomic_bert"
        )


def test_left_padding_of_roberta_changes_nothing(tmp_path):
    """Its positions count tokens, in transformers too; BERT's count from the start of a row."""
    config, params = random_encoder(ENCODERS["roberta"][1])
    tokens = np.random.default_rng(0).integers(5, config.vocab_size, (2, 9))
    left, right = (np.pad(tokens, [(0, 0), pad]) for pad in ((4, 0), (0, 4)))
    valid = np.arange(13) < 9
    valid = np.stack([valid, valid])

    @functools.partial(jax.jit, static_argnums=0)
    def last(config, tokens, valid):
        return hidden_states(config, params["bert"], tokens, None, valid)[-1]

    want = last(config, right, valid)[:, :9]
    np.testing.assert_allclose(
        last(config, left, valid[:, ::-1])[:, 4:], want, atol=1e-5
    )
    by_row = dataclasses.replace(config, positions_from_mask=False)
    assert np.abs(last(by_row, left, valid[:, ::-1])[:, 4:] - want).max() > 1e-3
    with pytest.raises(
        ValueError, match="Bert of .* cannot represent positions_from_mask True"
    ):
        save_encoder(tmp_path, config, params, byte_level(37), family="bert")


def test_tensors_that_are_left_over_or_missing_are_named(tmp_path):
    saved(tmp_path / "out", MODERN)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    del tensors["model.layers.1.mlp.Wo.weight"]
    tensors["model.layers.4.mlp.Wo.weight"] = np.ones((12, 19), np.float32)
    tensors["model.layers.0.attn_norm.weight"] = np.ones(12, np.float32)
    tensors["model.layers.1.attn.Wo.bias"] = np.ones(12, np.float32)
    with pytest.raises(
        ValueError, match="does not hold the ModernBert that its config"
    ) as caught:
        load_encoder(write(tmp_path / "in", tensors, MODERN))
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "layers.1.mlp.Wo.weight: missing, (12, 19) expected",
        "model.layers.0.attn_norm.weight: is not part of this model",
        "model.layers.1.attn.Wo.bias: is not part of this model",
        "model.layers.4.mlp.Wo.weight: is not part of this model",
    ]


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (
            "rope+alibi",
            "No model of transformers that is known here has the positions 'rope",
        ),
        (
            "cycle(rope, rope+window(max_distance=2), rope+window(max_distance=3))",
            "No model of transformers that is known here has the positions 'cycle",
        ),
    ],
)
def test_models_that_transformers_does_not_have(tmp_path, position, message):
    config = dataclasses.replace(
        preset("ettin_17m", vocab_size=37, num_layers=3), position=position
    )
    with pytest.raises(ValueError, match=message):
        save_encoder(tmp_path, config, {}, byte_level(37), family="modernbert")


@pytest.mark.parametrize(
    "position", ["", "rope(base=500)", "rope(base=20)+window(max_distance=2)"]
)
def test_the_family_is_chosen_by_the_settings(tmp_path, position):
    config = preset(
        "ettin_17m", vocab_size=37, num_layers=4, hidden_size=64, num_heads=1
    )
    config = dataclasses.replace(config, position=position) if position else config
    written = save_encoder(
        tmp_path / "out", config, random_params(config), byte_level(37)
    )
    assert written == "ModernBertForMaskedLM"
    assert (
        load_encoder(tmp_path / "out").config.encoding().name == config.encoding().name
    )


def test_the_page_loads_swaps_and_measures(tmp_path, monkeypatch):
    """The blocks of docs/modern.md on a small ModernBERT."""
    page = Path(__file__).parents[2] / "docs/modern.md"
    monkeypatch.chdir(tmp_path)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    config, params = random_encoder(MODERN)
    save_encoder("MODERN", config, params, byte_level(config.vocab_size, special))
    found = {}
    for block in re.findall(
        r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S
    ):
        exec(block, found)
    length = found["tokens"].shape[1]
    assert found["weights"].shape == (1, 4, 3, length, length)
    assert found["params"]["bert"]["position"] and found["config"].norm == "rms_norm"


# --- Tokenizers ---


def test_a_byte_level_tokenizer(tmp_path):
    byte_level(40).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.encode("ab ab ab", add_special_tokens=False).tokens == [
        "ab",
        "\u0120ab",
        "\u0120ab",
    ]
    assert special_tokens(tokenizer) == {
        "pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>",
    }  # fmt: skip
    words = vocabulary(tokenizer)
    assert (words.pad, *words.single.before, *words.single.after, words.mask) == (
        0,
        2,
        3,
        4,
    )
    assert words.ordinary.tolist() == list(range(5, 40))


def test_tokenizers_without_special_tokens_are_refused(tmp_path):
    byte_level(40, ["<pad>", "<unk>", "<s>", "</s>"]).save(
        str(tmp_path / "tokenizer.json")
    )
    with pytest.raises(ValueError, match=r"lacks \[MASK\] or <mask> or <\|mask\|>"):
        load_tokenizer(tmp_path / "tokenizer.json")
    names = ["<|pad|>", "x", "<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"]
    byte_level(40, names).save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert special_tokens(loaded)["sep"] == "<|end_of_text|>"


def test_rope_with_pairs_of_halves_becomes_a_roformer(tmp_path):
    """RoFormer pairs neighbours, so that rows of queries and keys change places."""
    config, _ = random_encoder(ENCODERS["bert"][1])
    config = dataclasses.replace(config, position="rope")
    params = random_params(config)
    words = byte_level(config.vocab_size)
    with_pooler = {**params, "pooler": {"dense": {}}}  # RoFormer has none.
    architecture = save_encoder(tmp_path / "out", config, with_pooler, words)
    assert architecture == "RoFormerForMaskedLM"
    back = load_encoder(tmp_path / "out")
    assert back.config.encoding().name == "rope(layout='interleaved')"
    tokens = np.random.default_rng(0).integers(5, config.vocab_size, (2, 17))
    states = jax.jit(hidden_states, static_argnums=0)
    want = np.asarray(states(config, params["bert"], tokens))
    got = states(back.config, back.params["bert"], tokens)
    np.testing.assert_allclose(got, want, atol=1e-5)
    unlike = states(config, back.params["bert"], tokens)
    assert np.abs(unlike - want).max() > 1e-3
    other = dataclasses.replace(config, position="rope(base=500)")
    with pytest.raises(ValueError, match=r"position encoding 'rope\(base=500\)'"):
        save_encoder(tmp_path / "no", other, params, words, family="roformer")


# --- Families that transformers 5 has, and rules of theirs ---


def test_the_norm_of_debertas_table_is_applied_once(tmp_path):
    """An export has the table that comes out, and no norm: the model gives the same numbers."""
    theirs = {**ENCODERS["deberta-v2"][1], "norm_rel_ebd": "none"}
    saved(tmp_path / "out", theirs)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    rng = np.random.default_rng(0)
    scale, bias = rng.normal(size=(2, 12)).astype(np.float32)
    norm = {
        "deberta.encoder.LayerNorm.weight": scale,
        "deberta.encoder.LayerNorm.bias": bias,
    }
    normed = {**theirs, "norm_rel_ebd": "layer_norm", "layer_norm_eps": 1e-7}
    back = load_encoder(write(tmp_path / "in", {**tensors, **norm}, normed))
    table = tensors["deberta.encoder.rel_embeddings.weight"].astype(np.float64)
    centred = table - table.mean(-1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-7)
    got = back.params["bert"]["position"]["deberta"]["table"]
    np.testing.assert_allclose(got, want * scale + bias, atol=1e-6)
    assert "table_norm" not in back.params
    words = byte_level_for(theirs)
    save_encoder(
        tmp_path / "again", back.config, back.params, words, family="deberta-v2"
    )
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["norm_rel_ebd"] == "none"
    with pytest.raises(ValueError, match=r"encoder.LayerNorm.weight: missing, \(12,\)"):
        load_encoder(write(tmp_path / "without", tensors, normed))
    with pytest.raises(ValueError, match="LayerNorm.weight: is not part of this model"):
        load_encoder(write(tmp_path / "more", {**tensors, **norm}, theirs))


def test_both_layouts_of_debertas_masked_lm(tmp_path):
    theirs = ENCODERS["deberta-v2"][1]
    _, params = saved(tmp_path / "out", theirs)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    renamed = {
        name.replace("cls.predictions.transform.", "lm_predictions.lm_head.").replace(
            "cls.predictions.bias", "lm_predictions.lm_head.bias"
        ): tensor
        for name, tensor in tensors.items()
    }
    assert renamed.keys() != tensors.keys()
    back = load_encoder(write(tmp_path / "in", renamed, {**theirs, "legacy": False}))
    assert back.unread == ()
    jax.tree.map(np.testing.assert_array_equal, back.params, params)


def test_the_decoder_of_a_t5_is_left_unread(tmp_path):
    theirs = ENCODERS["t5"][1]
    config = config_of(theirs, "the test")
    params = random_params(config, BertForTokens, outputs=2)
    save_encoder(
        tmp_path / "out", config, {"bert": params["bert"]}, byte_level(37), family="t5"
    )
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    more = {
        "decoder.block.0.layer.0.SelfAttention.q.weight": np.ones((18, 12), np.float32),
        "encoder.embed_tokens.weight": tensors["shared.weight"],
        "lm_head.weight": np.ones((37, 12), np.float32),
    }
    whole = {**theirs, "architectures": ["T5ForConditionalGeneration"]}
    back = load_encoder(write(tmp_path / "in", {**tensors, **more}, whole))
    assert back.unread == tuple(sorted(more.keys() - {"encoder.embed_tokens.weight"}))
    jax.tree.map(np.testing.assert_array_equal, back.params["bert"], params["bert"])
    more["encoder.embed_tokens.weight"] = more["encoder.embed_tokens.weight"] + 1
    with pytest.raises(ValueError, match=r"not the same as .*shared|embed_tokens"):
        load_encoder(write(tmp_path / "other", {**tensors, **more}, whole))


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("deberta-v2", {"share_att_key": False}, "share_att_key must be true"),
        ("deberta-v2", {"pos_att_type": "c2p"}, r"pos_att_type must be p2c\|c2p"),
        ("deberta-v2", {"conv_groups": 2}, "conv_groups must be 1, got 2"),
        ("deberta-v2", {"norm_rel_ebd": "x"}, "norm_rel_ebd must be one of none, la"),
        ("deberta-v2", {"attention_head_size": 8}, "attention_head_size must be 4"),
        ("deberta-v2", {"embedding_size": 8}, "embedding_size must be 12"),
        ("albert", {"num_hidden_groups": 2}, "num_hidden_groups must be 1, got 2"),
        ("albert", {"inner_group_num": 2}, "inner_group_num must be 1, got 2"),
        ("esm", {"is_folding_model": True}, "is_folding_model must be False"),
        ("esm", {"rope_theta": 5e5}, "rope_theta must be 10000.0"),
        ("t5", {"feed_forward_proj": "gelu"}, "feed_forward_proj must be one of relu"),
        ("t5", {"is_decoder": True}, "is_decoder must be False, got True"),
        ("bert", {"quantization_config": {"bits": 4}}, "dequantize.*save_pretrained"),
        ("bert", {"auto_map": {"AutoModel": "x.Y"}}, "auto_map must not name models"),
    ],
)
def test_models_of_these_families_that_are_refused(case, changes, message):
    with pytest.raises(ValueError, match=message):
        config_of({**ENCODERS[case][1], **changes}, "the test")


def test_adapters_are_refused(tmp_path):
    saved(tmp_path / "out", ENCODERS["bert"][1])
    (tmp_path / "out" / "adapter_config.json").write_text("{}")
    for path in (tmp_path / "out", tmp_path / "out" / "model.safetensors"):
        with pytest.raises(
            ValueError, match=r"(?s)holds an adapter .*merge_and_unload"
        ):
            load_encoder(path)
