"""The files beside a tokenizer, and texts: the tokens are those of transformers' AutoTokenizer.

The expected sizes, flags and tokens are those of transformers 5.24. Tests that are marked torch
compare them with the version that is installed.
"""

import json

import numpy as np
import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from pe_jax.interop.special_tokens import special_tokens, vocabulary
from pe_jax.interop.tokenizer import tokenizer_files
from pe_jax.trainer.data import load_tokenizer, squad
from pe_jax.trainer.data.glue import Examples, encode_examples
from pe_jax.trainer.data.questions import Answer, Question
from pe_jax.trainer.data.rows import pad_rows
from pe_jax.trainer.data.tokenized import tokenize_documents
from pe_jax.trainer.tasks.squad_answers import best_answers

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NAMES = {
    "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}  # fmt: skip
WORDS = [
    *SPECIAL,
    *"[]/e1<>_.",
    "the",
    "cat",
    "The",
    "caf\u00e9",
    "cafe",
    "foo",
    "bar",
    "##1",
]
SIZE = len(WORDS)
TEXT = "the [E1] cat[/E1] [MASK] The caf\u00e9 foo_bar"


def write(folder, **contents):
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def row(tokenizer, text=TEXT):
    """Return the names of the tokens of a row of GLUE, without those around the text."""
    rows = encode_examples(Examples(([text],), np.zeros(1, np.int32)), tokenizer, 64)
    names = {number: token for token, number in tokenizer.get_vocab().items()}
    return [names[number] for number in rows.tokens.tolist()[1:-1]]


# --- added tokens beside a vocab.txt --------------------------------------------------------------


def added(content, *, special=True, **flags):
    """Return an added token in the form of `added_tokens_decoder`."""
    defaults = {
        "lstrip": False,
        "rstrip": False,
        "single_word": False,
        "normalized": not special,
    }
    return {"content": content, "special": special, **defaults, **flags}


MARKS = {"[E1]": SIZE, "[/E1]": SIZE + 1}
BERT = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, **NAMES}
IN_CONFIG = {str(number): added(token) for token, number in MARKS.items()}
# Files, and the flags of the two tokens: special, normalized, lstrip.
BESIDE_VOCAB = {
    "added_tokens": (
        {"added_tokens": MARKS, "tokenizer_config": BERT},
        [(False, True, False), (False, True, False)],
    ),
    "special in the config": (
        {
            "added_tokens": MARKS,
            "tokenizer_config": {**BERT, "additional_special_tokens": ["[/E1]"]},
        },
        [(False, True, False), (True, False, False)],
    ),
    "special in the map": (
        {
            "added_tokens": MARKS,
            "special_tokens_map": {"additional_special_tokens": [*MARKS]},
            "tokenizer_config": BERT,
        },
        [(False, True, False), (False, True, False)],
    ),
    "the map alone": (
        {"special_tokens_map": {"additional_special_tokens": [*MARKS]}, "tokenizer_config": BERT},
        [(True, False, False), (True, False, False)],
    ),
    "added_tokens_decoder": (
        {
            "tokenizer_config": {
                **BERT,
                "added_tokens_decoder": {
                    str(SIZE + 1): added("[/E1]", special=False, lstrip=True),
                    str(SIZE): added("[E1]"),
                },
            }
        },
        [(True, False, False), (False, True, True)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE_VOCAB)
def test_added_tokens_beside_a_vocabulary(name, tmp_path):
    files, flags = BESIDE_VOCAB[name]
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    write(tmp_path, **files)
    tokenizer = load_tokenizer(tmp_path / "vocab.txt")
    assert tokenizer.get_vocab_size() == SIZE + 2
    decoder = tokenizer.get_added_tokens_decoder()
    tokens = [decoder[number] for number in MARKS.values()]
    assert [token.content for token in tokens] == [*MARKS]
    assert [
        (token.special, token.normalized, token.lstrip) for token in tokens
    ] == flags
    assert row(tokenizer)[:4] == ["the", "[E1]", "cat", "[/E1]"]
    # A run keeps them.
    (tmp_path / "run").mkdir()
    for file, content in tokenizer_files(tokenizer).items():
        (tmp_path / "run" / file).write_text(content)
    again = load_tokenizer(tmp_path / "run" / "tokenizer.json")
    assert again.to_str() == tokenizer.to_str() and row(again) == row(tokenizer)


@pytest.mark.torch
@pytest.mark.parametrize("name", BESIDE_VOCAB)
def test_added_tokens_beside_a_vocabulary_are_those_of_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    write(tmp_path, **BESIDE_VOCAB[name][0], config={"model_type": "bert"})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path / "vocab.txt")
    assert len(theirs) == ours.get_vocab_size()
    assert {
        number: repr(token) for number, token in theirs.added_tokens_decoder.items()
    } == {
        number: repr(token) for number, token in ours.get_added_tokens_decoder().items()
    }
    text = TEXT.replace("[MASK]", "")
    assert theirs.tokenize(text) == row(ours, text)


def test_the_padding_token_may_be_an_added_one(tmp_path):
    words = [word for word in WORDS if word != "[PAD]"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    config = {"do_lower_case": False}
    write(tmp_path, tokenizer_config=config)
    with pytest.raises(
        ValueError, match=r"vocabulary of .* lacks \[PAD\], and the files next to"
    ):
        load_tokenizer(tmp_path / "vocab.txt")
    write(
        tmp_path,
        added_tokens={"<pad>": len(words)},
        special_tokens_map={"pad_token": "<pad>"},
    )
    tokenizer = load_tokenizer(tmp_path / "vocab.txt")
    assert special_tokens(tokenizer)["pad"] == "<pad>"
    assert vocabulary(tokenizer).pad == len(words)
    examples = Examples((["the", "the cat"],), np.zeros(2, np.int32))
    batch = pad_rows(encode_examples(examples, tokenizer, 9), np.arange(2), 5)
    assert batch["tokens"][0].tolist() == [
        1,
        words.index("the"),
        2,
        len(words),
        len(words),
    ]


CONTRADICTIONS = {
    "a gap": ({"added_tokens": {"[E1]": SIZE + 1}}, rf"'\[E1\]' has the id {SIZE + 1}, which is"),
    "taken": ({"added_tokens": {"[E1]": 3}}, r"'\[E1\]' has the id 3, which is that of '\[SEP\]'"),
    "twice": ({"added_tokens": {"[E1]": SIZE, "[E2]": SIZE}}, rf"'\[E2\]' has the id {SIZE}, w"),
    "a text": ({"added_tokens": {"[E1]": "x"}}, r"the id of '\[E1\]' must be a whole number, got"),
    "two files": (
        {
            "added_tokens": {"[E1]": SIZE},
            "tokenizer_config": {**BERT, "added_tokens_decoder": {}},
        },
        rf"added_tokens.json gives '\[E1\]' the id {SIZE}, but added_tokens_decoder of .* none",
    ),
    "a key": (
        {"tokenizer_config": {**BERT, "added_tokens_decoder": {"x": added("[E1]")}}},
        "added_tokens_decoder must have ids as keys, got 'x'",
    ),
    "a flag": (
        {"tokenizer_config": {**BERT, "added_tokens_decoder": {str(SIZE): added("a", lstrip=1)}}},
        f"added_tokens_decoder, {SIZE}: lstrip must be true or false, got 1",
    ),
    "no list": (
        {"special_tokens_map": {"additional_special_tokens": "[E1]"}},
        r"special_tokens_map.json: additional_special_tokens must be a list of tokens, got '\[E1",
    ),
    "case": (
        {
            "added_tokens": {"[E1]": SIZE, "[e1]": SIZE + 1},
            "tokenizer_config": {**BERT, "do_lower_case": True},
        },
        r"the added tokens '\[E1\]' and '\[e1\]' are both '\[e1\]' to its normalizer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_added_tokens_that_contradict_are_refused(name, tmp_path):
    files, message = CONTRADICTIONS[name]
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    write(tmp_path, **{"tokenizer_config": BERT, **files})
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path / "vocab.txt")


@pytest.mark.parametrize("kind", ["roformer", "mpnet"])
def test_the_model_of_a_vocabulary_may_split_a_text_otherwise(kind, tmp_path):
    (tmp_path / "vocab.txt").write_text(
        "\n".join(word for word in WORDS if word != "The")
    )
    write(tmp_path, config={"model_type": kind})
    with pytest.raises(
        ValueError, match=r"config.json: tokenizer_class=.* vocab.txt alone"
    ):
        load_tokenizer(tmp_path / "vocab.txt")


# --- texts ----------------------------------------------------------------------------------------


def bert(*, lower=False, strip=None, chinese=True, clean=True, splitter=None):
    model = models.WordPiece(
        {word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=clean,
        handle_chinese_chars=chinese,
        strip_accents=strip,
        lowercase=lower,
    )
    tokenizer.pre_tokenizer = splitter or pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def saved(folder, tokenizer, **files):
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder, **files)
    return folder / "tokenizer.json"


@pytest.mark.parametrize("special", [True, False])
def test_added_tokens_are_tokens_of_every_text(special, tmp_path):
    tokenizer = bert(lower=True)
    tokens = [
        AddedToken("[E1]", special=special),
        AddedToken("<x>", special=special, lstrip=True),
    ]
    tokenizer.add_tokens(tokens)
    tokenizer = load_tokenizer(saved(tmp_path, tokenizer))
    ids = [tokenizer.token_to_id(name) for name in ("the", "[E1]", "cat", "<x>")]
    text = "the [E1]cat <x>"
    assert row(tokenizer, text) == ["the", "[E1]", "cat", "<x>"]
    ((stored, _),) = tokenize_documents([text], tokenizer)
    assert stored["id"].tolist() == ids and stored["begins"].all()
    question = Question(
        "1", text, f"cat {text}", (Answer("[E1]cat", text.index("[") + 4),)
    )
    windows, _ = squad.training_windows([question], tokenizer, 32, max_query=8)
    assert windows.rows.tokens.tolist() == [2, *ids, 3, ids[2], *ids, 3]
    start, end = (windows.rows.targets[name][0] for name in ("start", "end"))
    assert windows.rows.tokens[start : end + 1].tolist() == ids[1:3]
    # Control tokens are none, whatever is added.
    assert "[MASK]" not in row(tokenizer) and "[UNK]" in row(tokenizer)
    assert np.isin(ids, vocabulary(tokenizer).ordinary).all()


def test_names_in_a_config_make_control_tokens(tmp_path):
    """Special tokens without a role are for texts; those with one are not."""
    tokenizer = bert(lower=True)
    tokenizer.add_special_tokens(["<e>", "[E1]"])
    path = saved(tmp_path, tokenizer)
    assert row(load_tokenizer(path), "the <e> [E1]") == ["the", "<e>", "[E1]"]
    write(tmp_path, tokenizer_config={"eos_token": "<e>", "tokenizer_class": "BertTokenizer",
                                      "do_lower_case": True})  # fmt: skip
    assert row(load_tokenizer(path), "the <e> [E1]") == ["the", "<", "e", ">", "[E1]"]


# --- the class in tokenizer_config.json -----------------------------------------------------------

# tokenizer.json, tokenizer_config.json, and the tokens of a text.
CASED = ["The", "caf\u00e9", "foo", "_", "bar"]
UNCASED = ["the", "cafe", "foo", "_", "bar"]
SETTINGS = {
    "cased in the config": (bert(lower=True), {"do_lower_case": False}, CASED),
    "uncased in the config": (bert(), {"do_lower_case": True}, UNCASED),
    "accents kept": (
        bert(),
        {"do_lower_case": True, "strip_accents": False},
        ["the", "caf\u00e9", "foo", "_", "bar"],
    ),
    "accents stripped": (
        bert(),
        {"do_lower_case": False, "strip_accents": True},
        ["The", "cafe", "foo", "_", "bar"],
    ),
    "the default of accents": (
        bert(lower=True, strip=False), {"tokenizer_class": "BertTokenizer"}, UNCASED
    ),
    "a generic class": (
        bert(), {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}, CASED
    ),
    "an unknown class": (bert(), {"tokenizer_class": "NezhaTokenizer"}, CASED),
    "DistilBERT's": (
        bert(), {"tokenizer_class": "DistilBertTokenizerFast", "do_lower_case": True}, UNCASED
    ),
    "ELECTRA's": (bert(), {"tokenizer_class": "ElectraTokenizer", "do_lower_case": True}, UNCASED),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_those_of_the_class(name, tmp_path):
    tokenizer, config, expected = SETTINGS[name]
    path = saved(tmp_path, tokenizer, tokenizer_config={**NAMES, **config},
                 config={"model_type": "bert"})  # fmt: skip
    assert row(load_tokenizer(path), "The caf\u00e9 foo_bar") == expected


@pytest.mark.torch
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_those_of_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer, config, expected = SETTINGS[name]
    saved(
        tmp_path,
        tokenizer,
        tokenizer_config={**NAMES, **config},
        config={"model_type": "bert"},
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.tokenize("The caf\u00e9 foo_bar") == expected


def test_chinese_is_split_as_the_config_says(tmp_path):
    config = {"do_lower_case": False, "tokenize_chinese_chars": False}
    path = saved(
        tmp_path,
        bert(),
        tokenizer_config={"tokenizer_class": "BertTokenizer", **config},
    )
    assert row(load_tokenizer(path), "\u4e2d\u6587") == ["[UNK]"]
    write(
        tmp_path,
        tokenizer_config={"tokenizer_class": "BertTokenizer", "do_lower_case": False},
    )
    assert row(load_tokenizer(path), "\u4e2d\u6587") == ["[UNK]"] * 2


ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def byte_level(
    splitter, special=ROBERTA, text="De hoofdstad is Amsterdam, zei hij in 1814"
):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text] * 4, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def robbert():
    """The pre-tokenizers of RobBERT: each word gets a space of its own."""
    byte = pre_tokenizers.ByteLevel(add_prefix_space=True)
    splitters = [pre_tokenizers.Whitespace(), byte, pre_tokenizers.Punctuation()]
    return byte_level(pre_tokenizers.Sequence(splitters))


@pytest.mark.parametrize("adds_space", [False, True])
def test_the_prefix_space_is_that_of_the_config(adds_space, tmp_path):
    other = pre_tokenizers.ByteLevel(add_prefix_space=not adds_space)
    config = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": adds_space}
    tokenizer = load_tokenizer(
        saved(tmp_path, byte_level(other), tokenizer_config=config)
    )
    assert row(tokenizer, "hij")[0].startswith("\u0120") == adds_space


def xlm_roberta():
    pieces = [
        *((name, 0.0) for name in ROBERTA[:4]),
        ("\u2581the", -1.0),
        ("\u2581", -2.0),
    ]
    tokenizer = Tokenizer(models.Unigram([*pieces, *((c, -3.0) for c in "theca")], 3))
    metaspace = pre_tokenizers.Metaspace()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), metaspace]
    )
    tokenizer.add_special_tokens(ROBERTA)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )  # fmt: skip
    return tokenizer


def with_parts(tokenizer, **parts):
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


GENERIC = r'set tokenizer_class of tokenizer_config.json to "PreTrainedTokenizerFast"'
PLAIN = pre_tokenizers.ByteLevel(add_prefix_space=False)
PREFIX = pre_tokenizers.ByteLevel(add_prefix_space=True)
REFUSED = {
    "a pre-tokenizer": (
        bert(splitter=pre_tokenizers.WhitespaceSplit()),
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
        f"tokenizer_class='BertTokenizer' builds another .* is here.*{GENERIC}",
    ),
    "a normalizer": (
        with_parts(bert(), normalizer=normalizers.Lowercase()),
        {"tokenizer_class": "BertTokenizer", "do_lower_case": True},
        f"builds another tokenizer .*{GENERIC}",
    ),
    "control characters": (
        bert(clean=False),
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
        "builds another tokenizer",
    ),
    "a template": (
        with_parts(bert(), post_processor=processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))),
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
        r"a row of 2 text\(s\) has the special tokens \[2\] \[3\] \[3\], type 1 from 0 on, not",
    ),
    "a default": (
        bert(),
        {"tokenizer_class": "BertTokenizer"},
        r"tokenizer_config.json lacks do_lower_case, .*tokenizer.json has lowercase=false",
    ),
    "another model": (
        byte_level(PLAIN),
        {"tokenizer_class": "BertTokenizer"},
        "its model is WordPiece, not BPE",
    ),
    "RobBERT": (robbert(), {"tokenizer_class": "RobertaTokenizer"}, f"builds another .*{GENERIC}"),
    "a default of RoBERTa": (
        byte_level(PREFIX),
        {"tokenizer_class": "RobertaTokenizer"},
        r"lacks add_prefix_space, .*tokenizer.json has add_prefix_space=true",
    ),
    "a space that version 4 adds": (
        byte_level(PLAIN),
        {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True},
        r"has add_prefix_space=true, but .*tokenizer.json has add_prefix_space=false",
    ),
    "a space of XLM-R": (
        xlm_roberta(),
        {"tokenizer_class": "XLMRobertaTokenizerFast", "add_prefix_space": False},
        f"builds another .*{GENERIC}",
    ),
    "Jieba": (
        bert(),
        {"tokenizer_class": "RoFormerTokenizer", "do_lower_case": False},
        "'RoFormerTokenizer' splits a text by code of its own, not as .*tokenizer.json says",
    ),
    "settings of an unknown class": (
        bert(),
        {"tokenizer_class": "ConvBertTokenizer", "do_lower_case": True},
        "has do_lower_case=true, but .*tokenizer.json has lowercase=false",
    ),
    "MPNet's": (
        bert(),
        {"tokenizer_class": "MPNetTokenizer", "do_lower_case": False, **NAMES},
        r"a row of 2 text\(s\) has",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_class_that_builds_another_tokenizer_is_refused(name, tmp_path):
    tokenizer, config, message = REFUSED[name]
    path = saved(tmp_path, tokenizer, tokenizer_config=config)
    with pytest.raises(ValueError, match=message) as caught:
        load_tokenizer(path)
    assert str(path) in str(caught.value)
    assert str(tmp_path / "tokenizer_config.json") in str(caught.value)
    # The way out.
    write(tmp_path, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast"})
    tokenizer.no_padding()
    assert load_tokenizer(path).to_str() == tokenizer.to_str()


def test_an_added_token_that_the_config_does_not_list_is_refused(tmp_path):
    tokenizer = bert()
    tokenizer.add_tokens(["[E1]"])
    config = {**BERT, "added_tokens_decoder": {}}
    path = saved(tmp_path, tokenizer, tokenizer_config=config)
    with pytest.raises(ValueError, match=r"it lacks the added token\(s\) '\[E1\]'"):
        load_tokenizer(path)
    write(
        tmp_path,
        tokenizer_config={**BERT, "added_tokens_decoder": {str(SIZE): added("[E1]")}},
    )
    assert row(load_tokenizer(path))[1] == "[E1]"


def test_the_model_type_decides_where_no_file_names_a_class(tmp_path):
    config = {"do_lower_case": True}
    path = saved(
        tmp_path, bert(), tokenizer_config=config, config={"model_type": "bert"}
    )
    assert row(load_tokenizer(path), "The") == ["the"]
    # ModernBERT's tokenizer is what tokenizer.json says, whatever class is named.
    write(
        tmp_path,
        config={"model_type": "modernbert"},
        tokenizer_config={**BERT, **config},
    )
    assert row(load_tokenizer(path), "The") == ["The"]
    (tmp_path / "tokenizer_config.json").unlink()
    assert row(load_tokenizer(path), "The") == ["The"]
    # Then model_type alone names BERT's class, which lower-cases by default.
    write(tmp_path, config={"model_type": "bert"})
    with pytest.raises(
        ValueError, match="lacks do_lower_case, which is then true.*: false to"
    ):
        load_tokenizer(path)
    (tmp_path / "config.json").unlink()
    assert row(load_tokenizer(path), "The") == ["The"]


# --- offsets --------------------------------------------------------------------------------------

DUTCH = "'t Is Amsterdam, zei hij in 1814, en 7 keer \u00e9\u00e9n, caf\u00e9 (\u65e5\u672c) e x"
ANSWERS = ["'", "Amsterdam", "Is", "1814", "7", "\u00e9\u00e9n", "caf\u00e9", "\u65e5", "\u672c",
           "in 1814, en 7", "(\u65e5\u672c)", ",", "x"]  # fmt: skip
PREFIXED = {
    "RobBERT": robbert(),
    "spaces": byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), PREFIX])
    ),
    "digits": byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), PREFIX])
    ),
    "RoBERTa": byte_level(PLAIN),
    "a prefix": byte_level(PREFIX),
}


@pytest.mark.parametrize(
    "context", [DUTCH, f"  {DUTCH.replace(' ', '  ')}\n"], ids=["", "spaces"]
)
@pytest.mark.parametrize("length", [200, 24], ids=["whole", "windows"])
@pytest.mark.parametrize("name", PREFIXED)
def test_answers_have_all_their_letters(name, length, context, tmp_path):
    """transformers' own offsets begin one letter late in the words of the first three."""
    tokenizer = load_tokenizer(saved(tmp_path, PREFIXED[name]))
    answers = [
        answer for answer in ANSWERS if answer in context and len(answer) < length / 2
    ]
    questions = [
        Question(str(number), "Is", context, (Answer(answer, context.rindex(answer)),))
        for number, answer in enumerate(answers)
    ]
    sizes = {"max_query": 4, "stride": 7}
    windows, skipped = squad.training_windows(questions, tokenizer, length, **sizes)
    assert not skipped
    logits = {
        side: np.full((len(windows.question), length), -9.0)
        for side in ("start", "end")
    }
    for side, array in logits.items():
        target = windows.rows.targets[side]
        array[np.arange(len(target)), target] = np.where(target > 0, 9, -9)
    found = [
        answer.text for answer in best_answers(windows, logits["start"], logits["end"])
    ]
    assert found == answers
    for offsets in windows.offsets:
        covered = np.zeros(len(context), bool)
        for begin, end in offsets:
            covered[begin:end] = True
        letters = np.array([not letter.isspace() for letter in context])
        np.testing.assert_array_equal(covered, letters)
