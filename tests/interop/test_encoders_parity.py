"""Hidden states, masked-LM logits and gradients of published encoders agree with transformers."""

import copy
import dataclasses
import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.byte_level import byte_level_for
from helpers.published_encoders import ENCODERS
from safetensors.numpy import load_file, save_file

from pe_jax.interop import hf_registry, layout, load_encoder, save_encoder
from pe_jax.interop.bert_export import their_config
from pe_jax.interop.bert_import import TASK_HEADS, config_of
from pe_jax.interop.hf_encoders import ACTIVATIONS
from pe_jax.interop.hf_registry import FAMILIES
from pe_jax.models import (
    BertForClassification,
    BertForMaskedLM,
    BertForSpans,
    BertForTokens,
    hidden_states,
    preset,
)
from pe_jax.models.config import ACTIVATIONS as OUR_ACTIVATIONS
from pe_jax.models.layers import activate

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not (
            importlib.util.find_spec("torch")
            and importlib.util.find_spec("transformers")
        ),
        reason="PyTorch and transformers, the extra parity, are not installed",
    ),
]
ROWS, LENGTH = 3, 17
ENCODERS_BY_NAME = {
    name: kind for name, kind in hf_registry.ENCODERS.items() if kind.in_transformers
}


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers")


def other_unread(encoder):
    """The unread tensors but for ESM's head of contacts, which all of its classes have."""
    return [path for path in encoder.unread if "contact_head" not in path]


def tensors_of(folder):
    """The tensors of a model by name, but for constants and ESM's head of contacts.

    transformers 5.24 writes old names of ESM's norms.
    """
    tensors = {}
    for path, x in load_file(folder / "model.safetensors").items():
        if "contact_head" not in path and "inv_freq" not in path:
            path = path.replace("Norm.gamma", "Norm.weight")
            tensors[path.replace("Norm.beta", "Norm.bias")] = x
    return tensors


def first_kind(theirs):
    """The class of transformers that most tests take."""
    heads = ENCODERS_BY_NAME[theirs["model_type"]].heads
    return "ForMaskedLM" if "masked_lm" in heads else "ForTokenClassification"


def random_model(torch, transformers, name, theirs, kind=None):
    """A model whose weights are larger than at initialization, biases drawn too."""
    kind = kind or first_kind(theirs)
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**theirs)
    model = getattr(transformers, f"{name}{kind}")(config).eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if weight.requires_grad:  # RoFormer's sinusoids are a constant.
                weight += 0.1 * torch.randn_like(weight)
            padded = FAMILIES[theirs["model_type"]].padded_table
            if padded and "position_embeddings" in path:
                weight[: config.pad_token_id + 1] = 0  # Rows of no position.
    return model


def batch(theirs):
    """Tokens and their mask; no padding token is inside, as models give such a vector none."""
    rng = np.random.default_rng(0)
    valid = np.arange(LENGTH) < np.array([[17], [11], [2]])
    tokens = rng.integers(5, theirs["vocab_size"], valid.shape)
    if theirs.get("token_dropout"):  # Which concerns masks alone.
        tokens[:2, [1, 4, 9]] = theirs["mask_token_id"]
    return np.where(valid, tokens, theirs["pad_token_id"]), valid


def losses_of_theirs(torch, model, tokens, valid, weights):
    """Hidden states, logits, and a copy of the model that has the gradients for weights."""
    out = model(
        input_ids=torch.tensor(tokens),
        attention_mask=torch.tensor(valid).long(),
        output_hidden_states=True,
    )
    model.zero_grad()
    (out.logits * torch.tensor(weights)).sum().backward()
    gradients = copy.deepcopy(model)
    with torch.no_grad():
        for path, weight in gradients.named_parameters():
            gradient = dict(model.named_parameters())[path].grad
            if gradient is not None:
                weight.copy_(gradient)
    states = np.stack([state.detach().numpy() for state in out.hidden_states])
    return states, out.logits.detach().numpy(), gradients


def differences(torch, transformers, folder, name, theirs):
    """The largest differences of hidden states, logits and gradients, and what they are of."""
    model = random_model(torch, transformers, name, theirs)
    model.save_pretrained(folder / "model")
    encoder = load_encoder(folder / "model")
    config, params = encoder.config, encoder.params
    assert other_unread(encoder) == []
    tokens, valid = batch(theirs)
    outputs = len(encoder.labels) or config.vocab_size
    weights = np.random.default_rng(1).normal(size=(ROWS, LENGTH, outputs))
    weights = (weights * valid[:, :, None]).astype(np.float32)
    want = losses_of_theirs(torch, model, tokens, valid, weights)
    want[-1].save_pretrained(folder / "gradients")
    gradients = load_encoder(folder / "gradients").params
    everywhere = np.tile(np.arange(LENGTH), (ROWS, 1))

    def loss(params):
        inputs = {"params": params}, tokens, None, jnp.asarray(valid)
        if encoder.labels:
            logits = BertForTokens(config, outputs).apply(*inputs)
        else:
            masked_lm = BertForMaskedLM(config)
            logits = masked_lm.apply(*inputs, masked_positions=everywhere)
        return (logits * weights).sum(), logits

    (_, logits), got = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    states = hidden_states(config, params["bert"], tokens, None, jnp.asarray(valid))
    scales = [float(jnp.abs(x).max()) for x in jax.tree.leaves(gradients)]
    return {
        "hidden states": np.abs(states - want[0])[:, valid].max(),
        "logits": np.abs(logits - want[1])[valid].max(),
        "gradients": max(
            np.abs(a - b).max() / max(scales)
            for a, b in zip(
                jax.tree.leaves(got), jax.tree.leaves(gradients), strict=True
            )
        ),
    }


@pytest.mark.parametrize("case", ENCODERS)
def test_states_logits_and_gradients(torch, transformers, tmp_path, case):
    found = differences(torch, transformers, tmp_path, *ENCODERS[case])
    print(case, {name: f"{value:.1e}" for name, value in found.items()})
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize(
    "case", ["bert", "roberta", "mpnet", "distilbert", "modernbert", "gte"]
)
def test_padding_on_the_left(torch, transformers, tmp_path, case):
    name, theirs = ENCODERS[case]
    model = random_model(torch, transformers, name, theirs)
    model.save_pretrained(tmp_path)
    bert = load_encoder(tmp_path)
    tokens, valid = (x[:, ::-1].copy() for x in batch(theirs))
    inputs = {
        "input_ids": torch.tensor(tokens),
        "attention_mask": torch.tensor(valid).long(),
    }
    with torch.inference_mode():
        want = model(**inputs, output_hidden_states=True).hidden_states[-1].numpy()
    got = hidden_states(
        bert.config, bert.params["bert"], tokens, None, jnp.asarray(valid)
    )[-1]
    np.testing.assert_allclose(np.asarray(got)[valid], want[valid], atol=1e-5)


@pytest.mark.parametrize(
    "case", ["bert", "roberta", "mpnet", "distilbert", "roformer", "nomic_bert", "gte"]
)
def test_a_decoder_that_is_not_tied(torch, transformers, tmp_path, case):
    """Its weights and its bias are its own; RoBERTa's and GTE's heads have gelu in any case."""
    name, theirs = ENCODERS[case]
    theirs = {**theirs, "tie_word_embeddings": False, "hidden_act": "relu"}
    model = random_model(torch, transformers, name, theirs)
    model.save_pretrained(tmp_path / "in")
    bert = load_encoder(tmp_path / "in")
    tokens, valid = batch(theirs)
    inputs = {
        "input_ids": torch.tensor(tokens),
        "attention_mask": torch.tensor(valid).long(),
    }

    def logits(model):
        with torch.inference_mode():
            return model.eval()(**inputs).logits.numpy()[valid]

    everywhere = np.tile(np.arange(LENGTH), (ROWS, 1))
    got = BertForMaskedLM(bert.config).apply(
        {"params": bert.params},
        tokens,
        None,
        jnp.asarray(valid),
        masked_positions=everywhere,
    )
    np.testing.assert_allclose(np.asarray(got)[valid], logits(model), atol=1e-5)
    words = byte_level_for(theirs)
    save_encoder(
        tmp_path / "out", bert.config, bert.params, words, family=theirs["model_type"]
    )
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    np.testing.assert_allclose(logits(loaded), logits(model), atol=1e-5)


@pytest.mark.parametrize("family", ENCODERS_BY_NAME)
def test_keys_that_are_missing_have_their_class_defaults(transformers, family):
    kind = ENCODERS_BY_NAME[family]
    # ESM's class has no default for these.
    more = {}
    if family == "esm":
        more = dict(vocab_size=33, pad_token_id=1, emb_layer_norm_before=False)
    if family == "gemma3_text":
        more = dict(use_bidirectional_attention=True)
    whole = getattr(transformers, f"{kind.name}Config")(**more).to_dict()
    keys = ("model_type", *kind.keys.values(), *kind.needs, *more)
    few = {key: whole[key] for key in keys}
    got = had = config_of(few, "the test")
    want = config_of(whole, "the test")
    # None stands for the value that other sizes give.
    for name in ("num_key_heads", "embedding_size"):
        got = dataclasses.replace(got, **{name: getattr(want, name)})
    assert got == want
    assert (had.key_heads, had.embedding_width) == (
        want.key_heads,
        want.embedding_width,
    )


# Fields of their classes that change nothing that is read: ids of tokens, caches, first values of
# weights, dropout of heads, what is returned, and heads of other tasks.
NO_EFFECT = {
    *("architectures", "bos_token_id", "chunk_size_feed_forward", "classifier_dropout"),
    *("cls_token_id", "deterministic_flash_attn", "dtype", "eos_token_id", "id2label"),
    *("initializer_cutoff_factor", "is_encoder_decoder", "label2id", "mask_token_id"),
    *(
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "return_dict",
    ),
    *(
        "sep_token_id",
        "sparse_pred_ignore_index",
        "sparse_prediction",
        "transformers_version",
    ),
    *("qa_dropout", "seq_classif_dropout", "use_cache", "classifier_dropout_prob"),
    *("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"),
    *("legacy", "pooler_dropout", "vocab_list", "is_decoder"),
    *("initializer_factor", "num_decoder_layers", "decoder_start_token_id"),
    "final_logit_softcapping",
}


@pytest.mark.parametrize("family", ENCODERS_BY_NAME)
def test_every_field_of_their_class_is_read_or_without_effect(transformers, family):
    """A field that a later version adds is noticed here."""
    kind = ENCODERS_BY_NAME[family]
    fields = {
        f.name for f in dataclasses.fields(getattr(transformers, f"{kind.name}Config"))
    }
    read = {
        *kind.keys.values(),
        *kind.optional_keys.values(),
        *kind.only,
        *kind.derived,
        *kind.choices,
        *kind.conditions.values(),
    }
    ignored = fields - read - FAMILIES[family].reads()
    if "masked_lm" not in kind.heads:
        ignored.discard("tie_word_embeddings")
    assert ignored - NO_EFFECT == set()


@pytest.mark.parametrize("case", ENCODERS)
def test_round_trip(torch, transformers, tmp_path, case):
    """An exported encoder has the same tensors, and transformers reads it."""
    name, theirs = ENCODERS[case]
    model = random_model(torch, transformers, name, theirs)
    model.save_pretrained(tmp_path / "in")
    encoder = load_encoder(tmp_path / "in")
    config, params = encoder.config, encoder.params
    words = byte_level_for(theirs)
    family = theirs["model_type"]
    architecture = save_encoder(tmp_path / "out", config, params, words, family=family)
    assert architecture == f"{name}{first_kind(theirs)}"
    before = tensors_of(tmp_path / "in")
    after = tensors_of(tmp_path / "out")
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        if "position_embeddings" not in key:
            np.testing.assert_array_equal(after[key], tensor, strict=True, err_msg=key)
    loaded, report = getattr(transformers, architecture).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        others = [path for path in report[key] if "inv_freq" not in path]
        assert not [path for path in others if "contact_head" not in path]
    tokens, valid = batch(theirs)
    mask = torch.tensor(valid).long()
    with torch.inference_mode():
        want, got = (
            m(input_ids=torch.tensor(tokens), attention_mask=mask).logits.numpy()
            for m in (model, loaded.eval())
        )
    np.testing.assert_array_equal(got[valid], want[valid])
    assert (
        json.loads((tmp_path / "out" / "config.json").read_text())["model_type"]
        == family
    )


@pytest.mark.parametrize(
    ("case", "position", "written"),
    [
        ("distilbert", "learned_absolute", "BertForMaskedLM"),
        ("mpnet", "learned_absolute", "RobertaForMaskedLM"),
        ("mpnet", "rope", "RoFormerForMaskedLM"),
    ],
)
def test_without_token_types_in_a_family_that_has_them(
    torch, transformers, tmp_path, case, position, written
):
    """With other positions MPNet is no MPNet: it is exported with one token type, a zero vector."""
    name, theirs = ENCODERS[case]
    random_model(torch, transformers, name, theirs).save_pretrained(tmp_path / "in")
    encoder = load_encoder(tmp_path / "in")
    config, params = encoder.config, encoder.params
    config = dataclasses.replace(config, position=position)
    kept = {key: x for key, x in params["bert"]["position"].items() if key == position}
    params = {**params, "bert": {**params["bert"], "position": kept}}
    assert (
        save_encoder(tmp_path / "out", config, params, byte_level_for(theirs))
        == written
    )
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    tokens, valid = batch({**theirs, "pad_token_id": loaded.config.pad_token_id})
    with torch.inference_mode():
        mask = torch.tensor(valid).long()
        out = loaded(
            torch.tensor(tokens), attention_mask=mask, output_hidden_states=True
        )
    want = np.stack([state.numpy() for state in out.hidden_states])
    got = hidden_states(config, params["bert"], tokens, None, jnp.asarray(valid))
    np.testing.assert_allclose(np.asarray(got)[:, valid], want[:, valid], atol=1e-5)


CLASSIFIERS = [
    (case, pooling)
    for case, (name, theirs) in ENCODERS.items()
    for pooling in {
        "ModernBert": ("cls", "mean"),
        "EuroBert": ("bos", "mean", "late"),
    }.get(name, ("",))
    if "classifier" in ENCODERS_BY_NAME[theirs["model_type"]].heads
]


@pytest.mark.parametrize(("case", "pooling"), CLASSIFIERS)
def test_classifiers(torch, transformers, tmp_path, case, pooling):
    """Logits of three classes, from a folder of theirs and in one of ours."""
    name, theirs = ENCODERS[case]
    extra = {"num_labels": 3, **({"classifier_pooling": pooling} if pooling else {})}
    model = random_model(
        torch, transformers, name, theirs | extra, "ForSequenceClassification"
    )
    model.save_pretrained(tmp_path / "in")
    bert = load_encoder(tmp_path / "in")
    assert other_unread(bert) == []
    tokens, valid = batch(theirs)
    with torch.inference_mode():
        inputs = {
            "input_ids": torch.tensor(tokens),
            "attention_mask": torch.tensor(valid).long(),
        }
        want = model(**inputs).logits.numpy()
    classifier = BertForClassification(bert.config, outputs=3)
    got = classifier.apply({"params": bert.params}, tokens, None, jnp.asarray(valid))
    np.testing.assert_allclose(got, want, atol=1e-5)
    words, family = byte_level_for(theirs), theirs["model_type"]
    save_encoder(tmp_path / "out", bert.config, bert.params, words, family=family)
    before = tensors_of(tmp_path / "in")
    after = tensors_of(tmp_path / "out")
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        if "position_embeddings" not in key:  # Rows depend on the tokenizer's padding.
            np.testing.assert_array_equal(after[key], tensor, strict=True, err_msg=key)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out"
    )
    with torch.inference_mode():
        np.testing.assert_array_equal(loaded.eval()(**inputs).logits.numpy(), want)


def inputs_of(torch, tokens, valid):
    return {
        "input_ids": torch.tensor(tokens),
        "attention_mask": torch.tensor(valid).long(),
    }


@pytest.mark.parametrize("case", ENCODERS)
def test_token_classifiers(torch, transformers, tmp_path, case):
    """Logits of three classes of each token, from a folder of theirs and in one of ours."""
    name, theirs = ENCODERS[case]
    labels = {0: "O", 1: "B-PER", 2: "I-PER"}
    model = random_model(
        torch,
        transformers,
        name,
        theirs | {"id2label": labels},
        "ForTokenClassification",
    )
    model.save_pretrained(tmp_path / "in")
    bert = load_encoder(tmp_path / "in")
    assert other_unread(bert) == [] and bert.labels == ("O", "B-PER", "I-PER")
    tokens, valid = batch(theirs)
    with torch.inference_mode():
        want = model(**inputs_of(torch, tokens, valid)).logits.numpy()
    got = BertForTokens(bert.config, outputs=3).apply(
        {"params": bert.params}, tokens, None, jnp.asarray(valid)
    )
    atol = 1e-5 * max(1, np.abs(want).max())  # Of mT5 they are up to 7.
    np.testing.assert_allclose(np.asarray(got)[valid], want[valid], atol=atol)
    save_encoder(
        tmp_path / "out",
        bert.config,
        bert.params,
        byte_level_for(theirs),
        labels=bert.labels,
        family=theirs["model_type"],
    )
    loaded = transformers.AutoModelForTokenClassification.from_pretrained(
        tmp_path / "out"
    )
    assert loaded.config.id2label == labels
    with torch.inference_mode():
        again = loaded.eval()(**inputs_of(torch, tokens, valid)).logits.numpy()
    np.testing.assert_array_equal(again[valid], want[valid])


SPANS = [
    case
    for case, (_, theirs) in ENCODERS.items()
    if "spans" in ENCODERS_BY_NAME[theirs["model_type"]].heads
]


@pytest.mark.parametrize("case", SPANS)
def test_spans(torch, transformers, tmp_path, case):
    """Logits of both ends of a span, from a folder of theirs and in one of ours."""
    name, theirs = ENCODERS[case]
    model = random_model(torch, transformers, name, theirs, "ForQuestionAnswering")
    model.save_pretrained(tmp_path / "in")
    bert = load_encoder(tmp_path / "in")
    assert other_unread(bert) == []
    tokens, valid = batch(theirs)
    inputs = {
        "input_ids": torch.tensor(tokens),
        "attention_mask": torch.tensor(valid).long(),
    }

    def logits(model):
        with torch.inference_mode():
            found = model(**inputs)
        return np.stack([found.start_logits.numpy(), found.end_logits.numpy()])[
            :, valid
        ]

    got = BertForSpans(bert.config).apply(
        {"params": bert.params}, tokens, None, jnp.asarray(valid)
    )
    np.testing.assert_allclose(np.stack(got)[:, valid], logits(model), atol=1e-5)
    words, family = byte_level_for(theirs), theirs["model_type"]
    save_encoder(tmp_path / "out", bert.config, bert.params, words, family=family)
    loaded = transformers.AutoModelForQuestionAnswering.from_pretrained(
        tmp_path / "out"
    )
    np.testing.assert_array_equal(logits(loaded.eval()), logits(model))


@pytest.mark.parametrize(
    "size", ["ettin_17m", "ettin_32m", "modernbert_base", "modernbert_large"]
)
def test_published_sizes_have_the_names_and_shapes_of_transformers(
    torch, transformers, size
):
    config = preset(size, vocab_size=50_368)
    theirs = their_config("modernbert", config)
    with torch.device("meta"):
        model = transformers.ModernBertForMaskedLM(
            transformers.ModernBertConfig(**theirs)
        )
    want = {
        name.removeprefix("model."): tuple(p.shape)
        for name, p in model.named_parameters()
    }
    leaves = layout.leaves(ENCODERS_BY_NAME["modernbert"], config, ("masked_lm",), 0)
    got = {name: leaf.tensor_shape for leaf in leaves for name in leaf.tensors}
    assert got == want


TASKS = (
    *("ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice"),
    *("ForQuestionAnswering", "ForNextSentencePrediction"),
)


@pytest.mark.parametrize(
    "family", [name for name, kind in ENCODERS_BY_NAME.items() if kind.heads]
)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("classes", [1, 2])
def test_a_head_is_read_as_that_of_its_class(
    torch, transformers, tmp_path, family, task, classes
):
    """Or all of its tensors are in `unread`, also next to a pooler; never as another head."""
    name, theirs = ENCODERS[family]
    if not hasattr(transformers, f"{name}{task}"):
        pytest.skip(f"{name} has no class {task}")
    if task in ("ForQuestionAnswering", "ForNextSentencePrediction") and classes != 2:
        pytest.skip(f"{task} has two outputs")
    theirs = {**theirs, "num_labels": classes}
    model = random_model(torch, transformers, name, theirs, task)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    base = getattr(transformers, f"{name}Model")(model.config).state_dict()
    prefix = ENCODERS_BY_NAME[family].prefixes[0]
    for path, tensor in base.items():
        if path.startswith("pooler."):
            tensors.setdefault(f"{prefix}{path}", tensor.numpy())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    back = load_encoder(tmp_path)
    of_task = {
        path
        for path in tensors
        if not path.startswith((prefix, "cls.seq_relationship"))
    }
    if "decoder." in " ".join(tensors):  # Of a whole T5 the encoder alone is read.
        of_task &= {*back.unread}
    heads = {
        heads for heads, end in ENCODERS_BY_NAME[family].classes.items() if end == task
    }
    expected = {*TASK_HEADS} & {head for each in heads for head in each}
    assert {*TASK_HEADS} & back.params.keys() == expected
    others = (f"{prefix}pooler.", f"{prefix}contact_head.", f"{prefix}decoder.")
    unread = {path for path in back.unread if not path.startswith(others)}
    assert unread == (set() if expected else of_task)
    for head in {"classifier", "tokens"} & back.params.keys():
        assert back.params[head]["kernel"].shape[-1] == classes


def test_activations(torch, transformers):
    """Those that are read are the same functions; no other one is, within what they differ by."""
    x = np.linspace(-12, 12, 2001, dtype=np.float32)
    for name in transformers.activations.ACT2CLS:
        if name == "xielu":  # In bfloat16 alone.
            continue
        want = transformers.activations.ACT2FN[name](torch.tensor(x)).detach().numpy()
        errors = {
            ours: np.abs(activate(x[None], ours)[0] - want).max()
            for ours in OUR_ACTIVATIONS
        }
        same = [ours for ours, error in errors.items() if error < 3e-6]
        assert same == [
            ours for theirs, ours in ACTIVATIONS.items() if theirs == name
        ], name
