"""Teachers of each family that is read: transformers' hidden states, and two steps of distillation.

Their config.json are published texts, with smaller sizes; see tests/published.
"""

import copy
import importlib.util
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import published_configs, tiny_run
from helpers.published_bert import write
from helpers.published_encoders import ENCODERS
from tokenizers import (
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from pe_jax.common import schema
from pe_jax.encodings import from_name
from pe_jax.interop import layout, load_encoder
from pe_jax.interop.bert_import import config_of, current_config
from pe_jax.interop.hf_keys import first_row
from pe_jax.interop.hf_registry import ENCODERS as FORMATS
from pe_jax.models import hidden_states
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.data import load_tokenizer
from pe_jax.trainer.reports.distillation_report import report_distillation
from pe_jax.trainer.tasks import distillation
from pe_jax.trainer.tasks.pretrained_source import PretrainedSource
from pe_jax.trainer.tasks.student_model import with_windows
from pe_jax.trainer.training import metrics
from pe_jax.trainer.training.checkpointing import newest_params

TEXT = [" ".join(tiny_run.WORDS).capitalize() + "."] * 9
ROBERTA, BERT = (
    ["<s>", "<pad>", "</s>", "<unk>"],
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
)
LONGEST, LENGTH = 24, 16


def bpe(special, pair):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=special, initial_alphabet=alphabet
        ),
    )
    return finished(tokenizer, pair)


def unigram(special, pair):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=special, unk_token="<unk>"
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return finished(tokenizer, pair)


def word_piece(special, pair):
    words = [*special, *(["[UNK]"] if special == ROBERTA else []), ".", *tiny_run.WORDS]
    model = models.WordPiece(
        {word: i for i, word in enumerate(words)}, unk_token="[UNK]"
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(special)
    return finished(tokenizer, pair)


def finished(tokenizer, pair):
    """With the special tokens around one text and two, `pair` of the form "CLS SEP SEP"."""
    tokenizer.add_special_tokens(["<mask>"] if pair[0] == "<" else BERT)
    cls, *between = pair.split()
    ids, second = tokenizer.get_vocab(), 1 if cls == "[CLS]" else 0
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {between[0]}",
        pair=f"{cls} $A {' '.join(between)} $B:{second} {between[0]}:{second}",
        special_tokens=[(name, ids[name]) for name in {cls, *between}],
    )
    return tokenizer


# Name: config.json, its name in tests/published or in helpers.published_encoders; tokenizer.
OF_ROBERTA, OF_BERT = "<s> </s> </s>", "[CLS] [SEP]"
TEACHERS = {
    "bert": ("bert-base-uncased", word_piece, BERT, OF_BERT),
    "roberta": ("roberta-base", bpe, ROBERTA, OF_ROBERTA),
    "xlm-roberta": ("xlm-roberta-base-classifier", unigram, ROBERTA, OF_ROBERTA),
    "mpnet": ("all-mpnet-base-v2", word_piece, ROBERTA, OF_ROBERTA),
    "distilbert": ("distilbert-base-uncased", word_piece, BERT, OF_BERT),
    "modernbert": ("modernbert-large", bpe, BERT, OF_BERT),
    "eurobert": ("eurobert", bpe, BERT, OF_BERT),
    "roformer": ("roformer", word_piece, BERT, OF_BERT),
    "nomic_bert": ("nomic_bert", word_piece, BERT, OF_BERT),
    "gte": ("gte", unigram, ROBERTA, OF_ROBERTA),
}
SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
SIZES["intermediate_size"] = 20
OTHER_SIZES = {
    "distilbert": {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 20},
    "modernbert": {**SIZES, "num_hidden_layers": 3, "local_attention": 8},
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """`write(name)`: the folder of a teacher with random weights, as published."""
    folders = {}

    def write_teacher(name):
        if name not in folders:
            folders[name] = folder = tmp_path_factory.mktemp(name)
            file, make, *special = TEACHERS[name]
            published = published_configs.ENCODERS.get(file)
            theirs = copy.deepcopy(published or ENCODERS[file][1])
            tokenizer = make(*special)
            ids = {
                key: theirs.get(key) or 0 for key in theirs if key.endswith("_token_id")
            }
            if (
                max(ids.values(), default=0) >= tokenizer.get_vocab_size()
            ):  # ModernBERT's.
                ids = dict.fromkeys(ids, tokenizer.token_to_id("[PAD]"))
            theirs |= {**OTHER_SIZES.get(name, SIZES), **ids}
            theirs["vocab_size"] = tokenizer.get_vocab_size()
            theirs["max_position_embeddings"] = LONGEST + first_row(name, theirs)
            config = config_of(current_config(theirs, name), name)
            leaves = layout.leaves(
                FORMATS[name], config, (), 0, first_row(name, theirs)
            )
            rng = np.random.default_rng(0)
            write(
                folder,
                {
                    tensor: rng.normal(0, 0.3, leaf.tensor_shape).astype(np.float32)
                    for leaf in leaves
                    for tensor in leaf.tensors
                },
                theirs,
            )
            tokenizer.save(str(folder / "tokenizer.json"))
            # Else the class that transformers has for its model_type would build another.
            config = {"tokenizer_class": "PreTrainedTokenizerFast"}
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
            tiny_run.write_books(folder, count=6, length=8)
        return folders[name]

    return write_teacher


@pytest.mark.torch
@pytest.mark.skipif(
    not (
        importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")
    ),
    reason="PyTorch and transformers, the extra parity, are not installed",
)
@pytest.mark.parametrize("name", TEACHERS)
def test_hidden_states_are_those_of_transformers(teacher, name):
    """Of a pair, of a text, and of one token, padded."""
    import torch
    from transformers import AutoModel

    folder = teacher(name)
    model, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    lacking = report["missing_keys"] - FORMATS[name].constants.keys()
    assert all("pooler" in key for key in lacking) and not report["unexpected_keys"]
    bert, words = load_encoder(folder), load_tokenizer(folder / "tokenizer.json")
    rows = [words.encode("the sea", "a deck"), words.encode("water"), words.encode("")]
    length = max(map(len, rows))
    pad = json.loads((folder / "config.json").read_text())["pad_token_id"]
    tokens, types, valid = (
        np.array([getattr(row, key) + [fill] * (length - len(row)) for row in rows])
        for key, fill in (("ids", pad), ("type_ids", 0), ("attention_mask", 0))
    )
    inputs = {"input_ids": tokens, "attention_mask": valid}
    if bert.config.num_token_types > 1:
        inputs["token_type_ids"] = types
    with torch.inference_mode():
        inputs = {key: torch.tensor(x) for key, x in inputs.items()}
        out = model.eval()(**inputs, output_hidden_states=True).hidden_states
    want, valid = np.stack([state.numpy() for state in out]), valid == 1
    run = jax.jit(hidden_states, static_argnums=0)
    got = run(bert.config, bert.params["bert"], tokens, types, jnp.asarray(valid))
    np.testing.assert_allclose(np.asarray(got)[:, valid], want[:, valid], atol=2e-5)


def run_config(folder, **changes):
    c = schema.config_dict(DistillationConfig)
    c.init = str(folder)
    c.data.update(
        source=str(folder / "books.jsonl"),
        held_out=0.25,
        cache_dir=str(folder / "cache"),
    )
    c.stage1.update(length=LENGTH, batch_size=4, steps=2)
    c.update(log_every=1, eval_every=0, eval_examples=8, checkpoint_every=0)
    c.update_from_flattened_dict(changes)
    return schema.from_values(c, DistillationConfig)


SLOW = pytest.mark.slow
WINDOWS = "+cycle(none, window(max_distance=4), window(max_distance=4))"


@pytest.mark.parametrize(
    ("name", "position", "windows"),
    [
        ("roberta", "learned_relative", ""),
        ("modernbert", "t5", WINDOWS),
        pytest.param("mpnet", "rope(fraction=0.5)", "", marks=SLOW),
        pytest.param("distilbert", "t5", "", marks=SLOW),
        *(
            pytest.param(name, "learned_relative", "", marks=SLOW)
            for name in (
                "bert",
                "xlm-roberta",
                "eurobert",
                "roformer",
                "nomic_bert",
                "gte",
            )
        ),
        *(
            pytest.param("modernbert", position, WINDOWS, marks=SLOW)
            for position in ("learned_relative", "rope(fraction=0.5)")
        ),
    ],
)
def test_two_steps(teacher, tmp_path, name, position, windows):
    """The embeddings stay the teacher's, but for the mean of the rows of its table that are used,
    which the token types get, or the tokens."""
    folder = teacher(name)
    run = distillation.run(
        run_config(folder, **{"model.position": position}), tmp_path / "run"
    )
    assert run.program.model.position == position + windows
    lines = metrics.read_metrics(tmp_path / "run")
    assert np.isfinite([line["loss"] for line in lines if "loss" in line]).all()
    assert f"Teacher: {folder}." in report_distillation(
        tmp_path / "run", tmp_path / "report"
    )
    old, new = (
        load_encoder(folder).params["bert"],
        newest_params(tmp_path / "run")[1]["bert"],
    )
    table = (
        old.get("position", {})
        .get("learned_absolute", {})
        .get("table", np.zeros((LENGTH, 12)))
    )
    mean, into = (
        table[:LENGTH].mean(0),
        "token_type" if "token_type" in old else "token",
    )
    for part in ("token", "token_type")[: 1 + ("token_type" in old)]:
        added = mean if part == into else 0
        after, before = new[part]["embedding"], old[part]["embedding"]
        np.testing.assert_allclose(after, before + added, atol=1e-6)


def test_rows_have_the_special_tokens_of_the_teacher(teacher):
    """Two </s> between the parts of a pair, and no second token type."""
    run = distillation.build(distillation.resolve(run_config(teacher("roberta"))))
    cls, sep, found = 0, 2, set()
    for batch in run.data.held_out[0]:
        assert not np.asarray(batch["token_type_ids"]).any()
        for tokens, documents in zip(
            *(np.asarray(batch[x]) for x in ("tokens", "document_ids"))
        ):
            for number in range(1, documents.max() + 1):
                ids = tokens[documents == number]
                found.add(
                    " ".join(
                        {cls: "<s>", sep: "</s>"}.get(x, "x") for x in ids.tolist()
                    )
                )
    shapes = {re.sub(r"(?:x ?)+", "text ", row) for row in found}
    assert shapes == {"<s> text </s>", "<s> text </s> </s> text </s>"}


@pytest.mark.parametrize(
    "name",
    [
        *("roberta", "mpnet", "modernbert"),
        *(
            pytest.param(name, marks=SLOW)
            for name in TEACHERS
            if name not in ("roberta", "mpnet", "modernbert")
        ),
    ],
)
def test_a_student_with_the_positions_of_the_teacher_has_its_states(teacher, name):
    run = distillation.build(distillation.resolve(run_config(teacher(name))))
    params = PretrainedSource(run.config.init).params(run.program.shardings_of)
    scores = run.stages[0].evaluate(0, params)
    assert scores["r2_mean"] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("student", "teacher", "joined"),
    [
        ("alibi", "rope+window(max_distance=4)", "alibi+window(max_distance=4)"),
        (
            "per_layer(t5)",
            "cycle(rope, rope+chunks(size=4))",
            "per_layer(t5, t5+chunks(size=4))",
        ),
        (
            "alibi+window(max_distance=2)",
            "cycle(rope, rope+window(max_distance=4))",
            "alibi+window(max_distance=2)",
        ),
        ("alibi", "cycle(rope, rope(base=7))", "alibi"),
    ],
)
def test_windows_of_a_teacher(student, teacher, joined):
    sizes = {"hidden_size": 8, "head_size": 4, "num_heads": 2, "max_length": 8}
    both = (from_name(name, **sizes) for name in (student, teacher))
    assert with_windows(*both).name == joined
