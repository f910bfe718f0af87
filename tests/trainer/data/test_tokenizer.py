"""Tokenizers as they are published: special tokens, rows, words, and names written in a text."""

import json
import types

import numpy as np
import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from pe_jax.interop.special_tokens import special_tokens, text_tokenizer, vocabulary
from pe_jax.interop.tokenizer import SPECIAL_TOKENS, load_tokenizer, tokenizer_files
from pe_jax.trainer import data
from pe_jax.trainer.data import squad
from pe_jax.trainer.data.glue import Examples, encode_examples
from pe_jax.trainer.data.masking import mask_words
from pe_jax.trainer.data.questions import Answer, Question
from pe_jax.trainer.data.rows import pad_rows
from pe_jax.trainer.data.tokenized import tokenize_documents

TEXT = "A bird sings.  The tree is old!\n\nThe bird is here. A fox, too."


def byte_level(special, post_processor, added=()):
    """A byte-level BPE trained on `TEXT`; `special` has the first ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=310,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 9, trainer)
    tokenizer.add_special_tokens([AddedToken(name, lstrip=True) for name in added])
    tokenizer.post_processor = post_processor(tokenizer)
    return tokenizer


def templates(single, pair, names):
    def post_processor(tokenizer):
        ids = [(name, tokenizer.token_to_id(name)) for name in names]
        return processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=ids
        )

    return post_processor


def roberta():
    """RoBERTa: `<s>` at 0, `<mask>` last; separators twice, offsets without spaces."""
    return byte_level(
        ["<s>", "<pad>", "</s>", "<unk>"],
        lambda t: processors.RobertaProcessing(
            ("</s>", 2), ("<s>", 0), add_prefix_space=False
        ),
        added=["<mask>"],
    )


def modern_bert():
    """ModernBERT: BERT's names after the vocabulary; white space and placeholders are added."""
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer = byte_level(
        ["|||IP_ADDRESS|||"], lambda t: processors.ByteLevel(trim_offsets=False)
    )
    tokenizer.add_tokens([AddedToken("   ", normalized=True)])
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]"])
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True)])
    tokenizer.post_processor = templates("[CLS] $A [SEP]", pair, ["[CLS]", "[SEP]"])(
        tokenizer
    )
    return tokenizer


def llama(
    single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1"
):
    """Llama, and EuroBERT with its mask: a token before each text, none after it."""
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "<|pad|>"]

    def post_processor(tokenizer):
        template = templates(single, pair, names[:2])(tokenizer)
        return processors.Sequence([processors.ByteLevel(trim_offsets=False), template])

    return byte_level([], post_processor, added=names)


def xlm_roberta():
    """XLM-R: pieces of Unigram, among them `<s>` of score 0; split at white space."""
    letters = sorted({*TEXT, *"<>/s[]k"} - {" ", "\n"})
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(piece, -3.0) for piece in ("\u2581The", "\u2581bird", "\u2581is")]
    pieces += [("\u2581", -4.0), *((letter, -5.0) for letter in letters)]
    tokenizer = Tokenizer(models.Unigram(pieces, 3))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    pair = "<s> $A </s> </s> $B </s>"
    tokenizer.post_processor = templates("<s> $A </s>", pair, ["<s>", "</s>"])(
        tokenizer
    )
    return tokenizer


def gemma():
    """Gemma, mmBERT: a text is not split at spaces, and HTML tags are ordinary tokens."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    ordinary = [
        "<i>",
        "<s>",
        "</i>",
        "</s>",
        "\n",
        "\n\n",
        "\u2581",
        "\u2581T",
        "he",
        "\u2581The",
    ]
    letters = sorted({*TEXT} - {" ", "\n"})
    vocab = {
        name: number for number, name in enumerate([*special, *ordinary, *letters])
    }
    merges = [("\n", "\n"), ("\u2581", "T"), ("h", "e"), ("\u2581T", "he")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_special_tokens(special)
    pair = "<bos> $A <eos> $B:1 <eos>:1"
    tokenizer.post_processor = templates("<bos> $A <eos>", pair, ["<bos>", "<eos>"])(
        tokenizer
    )
    return tokenizer


def bert():
    words = "a bird sing ##s the tree is old here fox too . ! , [ ] mask".split()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    model = models.WordPiece(
        {name: n for n, name in enumerate(names)}, unk_token="[UNK]"
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(names[:5])
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer.post_processor = templates("[CLS] $A [SEP]", pair, ["[CLS]", "[SEP]"])(
        tokenizer
    )
    return tokenizer


MAKERS = {
    f.__name__: f for f in (bert, roberta, modern_bert, llama, xlm_roberta, gemma)
}


@pytest.fixture(params=MAKERS, scope="module")
def tokenizer(request, tmp_path_factory):
    file = tmp_path_factory.mktemp(request.param) / "tokenizer.json"
    MAKERS[request.param]().save(str(file))
    return load_tokenizer(file)


# --- rows -----------------------------------------------------------------------------------------


def test_rows_of_glue_are_those_of_the_tokenizer(tokenizer):
    first, second = ["A bird", "The fox is here."], ["The tree", "is old"]
    for texts in ((first,), (first, second)):
        rows = encode_examples(Examples(texts, np.zeros(2, np.int32)), tokenizer, 64)
        batch = pad_rows(rows, np.arange(2), 64)
        for number, row in enumerate(zip(*texts, strict=True)):
            expected = tokenizer.encode(*row)
            size = len(expected)
            assert batch["tokens"][number, :size].tolist() == expected.ids
            assert batch["token_type_ids"][number, :size].tolist() == expected.type_ids
            assert batch["mask"][number].sum() == size


def test_windows_of_squad_are_those_of_the_tokenizer(tokenizer):
    context = "The bird is here. A fox, too. The tree is old."
    asked = Question("1", "A bird", context, (Answer("fox", context.index("fox")),))
    questions = [asked, asked]
    length = 64
    windows, skipped = squad.training_windows(
        questions, tokenizer, length, max_query=16
    )
    starts, ends = windows.rows.targets.values()
    assert not skipped
    expected = tokenizer.encode(asked.question, context)
    batch = pad_rows(windows.rows, np.arange(2), length)
    assert batch["tokens"][0][batch["mask"][0]].tolist() == expected.ids
    assert batch["token_type_ids"][0][batch["mask"][0]].tolist() == expected.type_ids
    answer = slice(starts[0], ends[0] + 1)
    assert expected.sequence_ids[answer] == [1] * (answer.stop - answer.start)
    offsets = expected.offsets[answer]
    assert context[offsets[0][0] : offsets[-1][1]].strip(" ,") == "fox"
    # In windows, each with the special tokens; together they hold every token of the context.
    template = vocabulary(tokenizer).pair
    sizes = {"max_query": 2, "stride": 4}
    windows = squad.evaluation_windows(
        questions[:1], tokenizer, template.size + 8, **sizes
    )
    ids = tokenizer.encode(context, add_special_tokens=False).ids
    for window, (begin, end) in enumerate(
        zip(windows.rows.bounds, windows.rows.bounds[1:])
    ):
        row = windows.rows.tokens[begin:end].tolist()
        assert row[: len(template.before)] == template.before.tolist()
        assert row[len(row) - len(template.after) :] == template.after.tolist()
        start, first = int(windows.context_start[window]), int(windows.first[window])
        stop = len(row) - len(template.after)
        assert row[start:stop] == ids[first : first + stop - start]
    assert windows.first[-1] + windows.context_sizes[-1] == len(ids)


def corpus_of(texts, tokenizer):
    tokens, sizes = zip(*tokenize_documents(texts, tokenizer))
    return types.SimpleNamespace(
        tokens=np.concatenate(tokens),
        sentences=np.append(0, np.cumsum(np.concatenate(sizes))).astype(int),
        documents=np.append(0, np.cumsum([len(size) for size in sizes])),
    )


def true_row(row):
    """Return a row's tokens without its masks."""
    tokens, used = row["tokens"].copy(), row["masked_weights"] > 0
    tokens[row["masked_positions"][used]] = row["masked_tokens"][used]
    return tokens


def test_rows_of_pretraining_are_those_of_the_tokenizer(tokenizer):
    corpus = corpus_of([TEXT] * 3, tokenizer)
    words = vocabulary(tokenizer)
    pairs = data.PretrainingExamples(corpus, np.arange(3), words, 40, 8)
    for number in range(len(pairs)):
        first, second, _ = pairs.pair(number, np.random.default_rng(number))
        row = pairs(number, np.random.default_rng(number))
        ids = [corpus.tokens["id"][part.start : part.stop] for part in (first, second)]
        expected = words.pair.join(*ids)
        assert true_row(row)[row["mask"]].tolist() == expected.tolist()
        assert row["token_type_ids"].any() == (words.pair.second is not None)
    packed = data.PackedExamples(corpus, np.arange(3), words, 24, 8)
    rows = [packed(number, np.random.default_rng(0)) for number in range(len(packed))]
    inner = [
        true_row(row)[row["document_ids"] > 0][
            len(words.single.before) : (row["document_ids"] > 0).sum()
            - len(words.single.after)
        ]
        for row in rows
    ]
    one = corpus.tokens["id"][: corpus.sentences[corpus.documents[1]]]
    gap = np.concatenate([words.single.after, words.single.before])
    expected = np.concatenate([one, gap, one, gap, one])
    np.testing.assert_array_equal(np.concatenate(inner), expected)
    targets = np.concatenate(
        [row["masked_tokens"][row["masked_weights"] > 0] for row in rows]
    )
    assert len(targets) and np.isin(targets, words.ordinary).all()


def test_rows_of_distillation_have_the_special_tokens_of_the_tokenizer(tokenizer):
    corpus, words = corpus_of([TEXT] * 9, tokenizer), vocabulary(tokenizer)
    cut = data.VariableLengthExamples(
        data.PackedExamples(corpus, np.arange(9), words, 40)
    )
    kinds = set()
    for draw in range(60):
        row = cut(draw % len(cut), np.random.default_rng(draw))
        for document in range(1, row["document_ids"].max() + 1):
            inside = row["document_ids"] == document
            tokens, is_text = row["tokens"][inside], row["text"][inside]
            special = tokens[~is_text].tolist()
            pair = np.concatenate(
                [words.pair.before, words.pair.between, words.pair.after]
            )
            single = np.concatenate([words.single.before, words.single.after])
            assert special in (pair.tolist(), single.tolist())
            kinds.add(len(special))
            assert np.isin(tokens[is_text], words.ordinary).mean() > 0.9
            assert row["token_type_ids"][inside].any() <= (
                words.pair.second is not None
            )
    assert kinds == {words.pair.size, words.single.size}


@pytest.mark.parametrize("last", ["", " <|end_of_text|>"])
def test_a_template_without_a_first_special_token_is_refused_where_it_is_needed(last):
    tokenizer = llama(f"$A{last}", f"$A{last} $B:1{last and last + ':1'}")
    examples = Examples((["A bird"],), np.zeros(1, np.int32))
    with pytest.raises(ValueError, match=r"no special token before a text, .*\[CLS\]"):
        encode_examples(examples, tokenizer, 16)
    with pytest.raises(ValueError, match="no special token before a text"):
        squad.evaluation_windows(
            [Question("1", "A", "A bird", ())], tokenizer, 32, max_query=4
        )
    corpus = corpus_of([TEXT] * 3, tokenizer)
    with pytest.raises(ValueError, match="no special token before a text"):
        data.PretrainingExamples(corpus, np.arange(3), vocabulary(tokenizer), 40, 8)
    assert len(data.PackedExamples(corpus, np.arange(3), vocabulary(tokenizer), 24, 8))


def test_types_of_another_order_are_refused():
    tokenizer = bert()
    pair = "[CLS]:2 $A [SEP] $B:1 [SEP]:1"  # As in Funnel.
    tokenizer.post_processor = templates("[CLS] $A [SEP]", pair, ["[CLS]", "[SEP]"])(
        tokenizer
    )
    with pytest.raises(ValueError, match=r"the types \[2, 0, 0, 1, 1\]"):
        vocabulary(tokenizer)


CONFIGS = {  # Of the published tokenizer_config.json; RoBERTa's and XLM-R's name no token.
    "bert": {"tokenizer_class": "BertTokenizer"},
    "roberta": {"tokenizer_class": "RobertaTokenizer"},
    "xlm_roberta": {"tokenizer_class": "XLMRobertaTokenizer"},
    "modern_bert": {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"},
    "llama": {
        "bos_token": "<|begin_of_text|>",
        "mask_token": "<|mask|>",
        "pad_token": "<|pad|>",
    },
    "gemma": {"bos_token": "<bos>", "cls_token": "<bos>", "mask_token": "<mask>"},
}


@pytest.mark.torch
@pytest.mark.parametrize("name", CONFIGS)
def test_rows_and_names_are_those_of_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    MAKERS[name]().save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **CONFIGS[name]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path / "tokenizer.json")
    words, texts = vocabulary(ours), ("The bird is here.", "A fox, too.")
    ids = [np.array(ours.encode(text, add_special_tokens=False).ids) for text in texts]
    assert words.single.join(ids[0]).tolist() == theirs(texts[0])["input_ids"]
    assert words.pair.join(*ids).tolist() == theirs(*texts)["input_ids"]
    assert words.mask == theirs.mask_token_id
    assert (theirs.pad_token_id or words.pad) == words.pad


# --- special tokens -------------------------------------------------------------------------------


def named(folder, tokenizer, **files):
    """Write a tokenizer and the files beside it, and load it; files by name without `.json`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return load_tokenizer(folder / "tokenizer.json")


def test_flagged_special_tokens_precede_words_with_the_names_of_bert():
    """MPNet's vocabulary is BERT's with five more tokens, which are its special ones."""
    words = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "<mask>",
    ]
    model = models.WordPiece(
        {word: i for i, word in enumerate(words)}, unk_token="[UNK]"
    )
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = ("<s>", "</s>", "<pad>", "[UNK]", "<mask>")
    roles = ("cls", "sep", "pad", "unk", "mask")
    assert special_tokens(tokenizer) == dict(zip(roles, names))


def test_html_tags_are_not_special_tokens(tmp_path):
    names = special_tokens(named(tmp_path, gemma()))
    assert (names["cls"], names["sep"], names["mask"]) == ("<bos>", "<eos>", "<mask>")


def test_names_come_from_the_post_processor_then_from_the_files(tmp_path):
    """In the forms that transformers writes into the two files."""
    tokenizer = byte_level(
        ["<s>", "</s>", "<e>", "<p>", "<m>", "<n>", "<u>"], lambda t: None
    )
    mask = {
        "__type": "AddedToken",
        "content": "<m>",
        "lstrip": True,
        "normalized": False,
    }
    config = {"cls_token": "<s>", "sep_token": "<e>", "mask_token": mask,
              "pad_token": None, "bos_token": "<s>", "model_max_length": 512}  # fmt: skip
    other = {"mask_token": "<n>", "pad_token": "<p>", "unk_token": "<added>"}
    loaded = named(
        tmp_path, tokenizer, tokenizer_config=config, special_tokens_map=other
    )
    assert loaded.token_to_id("<added>") == tokenizer.get_vocab_size()
    expected = {
        "pad": "<p>",
        "unk": "<added>",
        "cls": "<s>",
        "sep": "<e>",
        "mask": "<n>",
    }
    assert special_tokens(loaded) == expected
    # A run's folder has them too.
    (tmp_path / "run").mkdir()
    for name, content in tokenizer_files(loaded).items():
        (tmp_path / "run" / name).write_text(content)
    assert (
        special_tokens(load_tokenizer(tmp_path / "run" / "tokenizer.json")) == expected
    )
    # The post-processor comes first.
    tokenizer.post_processor = processors.BertProcessing(("</s>", 1), ("<u>", 6))
    loaded = named(tmp_path, tokenizer)
    assert special_tokens(loaded) == {**expected, "cls": "<u>", "sep": "</s>"}
    config["mask_token"] = 7
    with pytest.raises(
        ValueError, match=r"tokenizer_config.json: mask_token must be .* got 7"
    ):
        named(tmp_path, tokenizer, tokenizer_config=config)


def test_the_names_of_a_vocabulary(tmp_path):
    words = [
        "<p>",
        "<u>",
        "<c>",
        "<e>",
        "<m>",
        "sch\u00f6n",
        "schon",
        "Sch\u00f6n",
        "\u4e2d\u6587",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), words))
    config = {f"{role}_token": name for role, name in roles.items()}
    for settings, tokens in (
        ({"do_lower_case": True}, ["schon", "<u>", "<u>"]),
        ({"do_lower_case": True, "strip_accents": False}, ["sch\u00f6n", "<u>", "<u>"]),
        ({"do_lower_case": False}, ["Sch\u00f6n", "<u>", "<u>"]),
        (
            {"do_lower_case": False, "tokenize_chinese_chars": False},
            ["Sch\u00f6n", "\u4e2d\u6587"],
        ),
    ):
        (tmp_path / "tokenizer_config.json").write_text(
            json.dumps({**config, **settings})
        )
        loaded = load_tokenizer(tmp_path / "vocab.txt")
        assert loaded.encode("Sch\u00f6n \u4e2d\u6587").tokens == tokens
        assert special_tokens(loaded) == roles
        single = vocabulary(loaded).single
        assert (*single.before, *single.after) == (2, 3)
    for changed, message in (
        ({}, r"tokens in upper case.*do_lower_case"),
        ({"do_lower_case": "no"}, r"do_lower_case must be true or false, got 'no'"),
        (
            {"tokenizer_class": "MPNetTokenizer"},
            r"tokenizer_class='MPNetTokenizer' does not",
        ),
    ):
        (tmp_path / "tokenizer_config.json").write_text(
            json.dumps({**config, **changed})
        )
        with pytest.raises(ValueError, match=message):
            load_tokenizer(tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ValueError, match="tokenizer_config.json is damaged"):
        load_tokenizer(tmp_path / "vocab.txt")


@pytest.mark.parametrize(
    "model",
    [
        models.WordPiece({"[PAD]": 0, "[MASK]": 1, "a": 2}, unk_token="[UNK]"),
        models.WordLevel({"[PAD]": 0, "[MASK]": 1, "a": 2}, unk_token="[UNK]"),
        models.Unigram([("[PAD]", 0.0), ("[MASK]", 0.0), ("a", -1.0)], None),
    ],
    ids=["WordPiece", "WordLevel", "Unigram"],
)
def test_a_model_without_a_token_for_unknown_words_is_refused(model, tmp_path):
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(["[PAD]", "[MASK]"])
    with pytest.raises(
        ValueError, match=r"tokenizer.json: unk_\w+ of the model is .* no token"
    ):
        named(tmp_path, tokenizer)


def test_a_template_that_names_no_token_is_refused(tmp_path):
    spec = json.loads(gemma().to_str())
    del spec["post_processor"]["special_tokens"]["<eos>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(
        ValueError, match=r"tokenizer.json cannot encode a text \(.*\)\."
    ):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_an_empty_token_is_a_token(tmp_path):
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "", "a"]
    tokenizer = Tokenizer(
        models.WordPiece({n: i for i, n in enumerate(names)}, unk_token="[UNK]")
    )
    loaded = named(tmp_path, tokenizer)
    ((tokens, _),) = tokenize_documents(["a"], loaded)
    assert tokens["id"].tolist() == [6] and vocabulary(loaded).size == 7


# --- text -----------------------------------------------------------------------------------------


def test_a_document_is_tokenized_as_a_whole(tokenizer):
    """And cut into sentences at the characters where they begin."""
    ((tokens, sizes),) = tokenize_documents([TEXT], tokenizer)
    whole = tokenizer.encode(TEXT, add_special_tokens=False)
    assert tokens["id"].tolist() == whole.ids
    *bounds, last = np.cumsum(sizes).tolist()
    assert len(bounds) == 3 and last == len(whole.ids)
    for bound in bounds:
        assert TEXT[: whole.offsets[bound - 1][1]].rstrip().endswith((".", "!"))
        assert TEXT[whole.offsets[bound][0] :].lstrip().startswith(("The", "A fox"))


@pytest.mark.parametrize("name", ["[MASK]", "<mask>", "<s>", "</s>", "[SEP]", "<pad>", "[PAD]",
                                  "<bos>", "<|mask|>", "<|end_of_text|>", "[UNK]"])  # fmt: skip
def test_names_of_special_tokens_in_a_text_are_text(tokenizer, name):
    words = vocabulary(tokenizer)
    text = f"The bird {name} is here.{name}"
    ((tokens, _),) = tokenize_documents([text], tokenizer)
    names = special_tokens(tokenizer)
    unknown = tokenizer.token_to_id(names["unk"]) if names["unk"] else -1
    assert np.isin(tokens["id"], [*words.ordinary, unknown]).all()
    examples = Examples(([text],), np.zeros(1, np.int32))
    row = encode_examples(examples, tokenizer, 64).tokens
    assert (row == words.mask).sum() == 0
    copy = text_tokenizer(tokenizer).encode(TEXT, add_special_tokens=False)
    assert copy.ids == tokenizer.encode(TEXT, add_special_tokens=False).ids


def test_text_that_xlm_roberta_has_a_piece_for():
    encoded = text_tokenizer(xlm_roberta()).encode(
        "The <s> bird", add_special_tokens=False
    )
    assert encoded.tokens == ["\u2581The", "\u2581", "<", "s", ">", "\u2581bird"]


# --- words ----------------------------------------------------------------------------------------

SCRIPTS = {
    "Cyrillic": "лиса и кот",
    "Japanese": "狐が 跳ぶ",
    "Hindi": "लोमड़ी और बिल्ली",
    "Thai": "หมา และ แมว",
    "white space": "a dog\tfox b\r\n\r\nan ox  there",
}


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("maker", [roberta, modern_bert, xlm_roberta])
def test_whole_words_are_masked(maker, text):
    tokenizer = maker()
    ((tokens, _),) = tokenize_documents([text], tokenizer)
    word = np.array(tokenizer.encode(text, add_special_tokens=False).word_ids)
    np.testing.assert_array_equal(tokens["begins"], np.diff(word, prepend=-1) != 0)
    every, words = np.ones(len(word), bool), vocabulary(tokenizer)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        row = mask_words(tokens["id"], tokens["begins"], every, words, rng, 32, 0.5)
        chosen = row["masked_positions"][row["masked_weights"] > 0]
        assert np.isin(np.flatnonzero(np.isin(word, word[chosen])), chosen).all()


def test_words_of_a_word_piece_tokenizer_are_those_of_its_prefix():
    tokenizer = data.train_tokenizer(
        [TEXT, "don't re-enter U.S. snake_case 3.5 don't"] * 3, 60
    )
    text = f"{TEXT} don't re-enter the U.S. snake_case, 3.5"
    ((tokens, _),) = tokenize_documents([text], tokenizer)
    names = [tokenizer.id_to_token(int(number)) for number in tokens["id"]]
    assert tokens["begins"].tolist() == [not name.startswith("##") for name in names]
    assert not tokens["begins"].all()


def test_words_of_a_text_that_is_not_split_begin_at_spaces():
    ((tokens, _),) = tokenize_documents(["The bird  is\n\nhere"], gemma())
    names = [gemma().id_to_token(int(number)) for number in tokens["id"]]
    starts = np.flatnonzero(tokens["begins"])
    words = ["".join(names[a:b]) for a, b in zip(starts, [*starts[1:], len(names)])]
    assert words == ["The", "\u2581bird", "\u2581\u2581is", "\n\n", "here"]


def test_a_long_run_without_spaces_is_many_words():
    run = "birdsistree" * 3
    ((tokens, _),) = tokenize_documents([f"{run} fox"], xlm_roberta())
    words = xlm_roberta().encode(f"{run} fox", add_special_tokens=False).word_ids
    assert words.count(0) > 16 and tokens["begins"].sum() == words.count(0) + 1


# --- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"), [("バス", "ハス"), ("कुल", "कल"), ("schön", "schon")]
)
def test_a_trained_vocabulary_keeps_marks(one, other):
    texts = [f"{one} {other} " * 9]
    kept = data.train_tokenizer(texts, 60)
    assert kept.encode(one).tokens == [one] and kept.encode(other).tokens == [other]
    stripped = data.train_tokenizer(texts, 60, strip_accents=True)
    assert stripped.encode(one).ids == stripped.encode(other).ids


def test_a_published_tokenizer_may_truncate(tmp_path, books):
    _, tokenizer, _ = books
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.enable_truncation(4)
    copy.save(str(tmp_path / "tokenizer.json"))
    loaded = data.load_tokenizer(tmp_path / "tokenizer.json")
    assert len(loaded.encode("the sea the sea the sea").ids) == 6


def test_a_tokenizer_with_an_id_twice_or_dropout_is_refused(tmp_path, books):
    spec = json.loads(books[1].to_str())
    spec["model"]["vocab"]["[twice]"] = spec["model"]["vocab"]["a"]
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(spec))
    with pytest.raises(
        ValueError, match=r"gives the id \d+ to several tokens: '\[twice\]', 'a'"
    ):
        data.load_tokenizer(file)
    vocab = {token: number for number, token in enumerate([*SPECIAL_TOKENS, "a"])}
    file.write_text(Tokenizer(models.BPE(vocab, [], dropout=0.1)).to_str())
    with pytest.raises(ValueError, match=r"tokenizes at random \(dropout 0.1\)"):
        data.load_tokenizer(file)
