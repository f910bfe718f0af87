"""From text to batches: corpora, tokenizer, cache, pairs, masks, and determinism of the stream."""

import collections
import gzip
import io
import itertools
import json
import lzma
import multiprocessing
import pickle
import sys
from glob import glob
from pathlib import Path

import numpy as np
import pytest
from absl import flags
from etils.epath import testing
from helpers import tfds_dataset, tiny_run
from helpers.tiny_run import write_books
from tokenizers import Tokenizer, models

from pe_jax import data, files
from pe_jax.data import corpora, masking, pretraining, tokenized
from pe_jax.data.templates import bert_template
from pe_jax.data.tokenized import sentences
from pe_jax.data.tokenizer import SPECIAL_TOKENS
from pe_jax.tasks.text_split import load_text


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    folder = tmp_path_factory.mktemp("books")
    corpus = data.open_corpus(str(write_books(folder)))
    tokenizer = data.prepare_tokenizer(corpus, "", 200, folder)
    return data.tokenize(corpus, tokenizer, folder), tokenizer, data.vocabulary(tokenizer)


def make_examples(books, length=48, **changes):
    corpus, _, vocabulary = books
    return data.PretrainingExamples(
        corpus, corpus.all_documents(), vocabulary, length, max_predictions=8, **changes
    )


# --- corpora --------------------------------------------------------------------------------------


def test_pydoc_is_prose_and_each_paragraph_occurs_once():
    documents = list(data.open_corpus("pydoc").documents())
    paragraphs = [p for d in documents for p in d.split("\n")]
    assert len(documents) > 50
    assert sum(len(p.split()) for p in paragraphs) > 20_000
    assert len(set(paragraphs)) == len(paragraphs)
    assert not any(">>>" in p[:3] for p in paragraphs)


@pytest.mark.parametrize("open_as", [open, gzip.open, lzma.open], ids=["", ".gz", ".xz"])
def test_text_and_json_lines(tmp_path, open_as):
    ending = {open: "", gzip.open: ".gz", lzma.open: ".xz"}[open_as]
    with open_as(tmp_path / f"a.txt{ending}", "wt") as file:
        file.write("One line.\nIts second.\n \n\nAnother document.\n")
    with open_as(tmp_path / f"b.jsonl{ending}", "wt") as file:
        file.write('{"text": "Från JSON."}\n\n{"text": "Two."}\n')
    assert list(data.open_corpus(str(tmp_path / "*")).documents()) == [
        "One line.\nIts second.",
        "Another document.",
        "Från JSON.",
        "Two.",
    ]


def test_fingerprints_follow_content(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("One.")
    first = data.open_corpus(str(path)).fingerprint()
    path.write_text("Two.")
    assert data.open_corpus(str(path)).fingerprint() != first
    path.write_text("One.")
    assert data.open_corpus(str(path)).fingerprint() == first


def test_text_in_a_bucket(tmp_path, monkeypatch):
    """The documents and fingerprint of the same local files; what is missing is one line."""
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n")
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("Three.\n")
    local = data.open_corpus(str(tmp_path / "*.txt*"))

    def inside(path):
        return str(path).replace("gs://bucket/text", str(tmp_path))

    functions = {
        "glob": lambda _, pattern: [
            f"gs://bucket/text/{Path(path).name}" for path in glob(inside(pattern))
        ],
        "open": lambda original, path, *_, **__: io.BytesIO(Path(inside(path)).read_bytes()),
        "exists": lambda original, path: Path(inside(path)).exists(),
        "isdir": lambda original, path: Path(inside(path)).is_dir(),
    }
    with testing.mock_epath(**functions):
        monkeypatch.setattr(files, "_STORES", {"gs": "json"})
        corpus = data.open_corpus("gs://bucket/text/*.txt*")
        assert [*corpus.documents()] == [*local.documents()] == ["One.", "Two.", "Three."]
        assert corpus.fingerprint() == local.fingerprint()
        with pytest.raises(ValueError, match="works for local files only"):
            data.open_corpus("gs://bucket/**/*.txt")
    monkeypatch.setattr(files, "_STORES", {"gs": "not_installed"})
    with pytest.raises(ValueError, match=r"gs://bucket/x.txt needs the package not_installed"):
        data.open_corpus("gs://bucket/x.txt")


def test_fingerprints_follow_the_type_of_the_file(tmp_path):
    content = '{"text": "One. Two."}\n'
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).write_text(content)
    text, lines = (data.open_corpus(str(tmp_path / name)) for name in ("a.txt", "a.jsonl"))
    assert text.fingerprint() != lines.fingerprint()


def test_sources_that_do_not_exist(tmp_path):
    with pytest.raises(ValueError, match=r"source=.*nothing.* matches no file.*pydoc"):
        data.open_corpus(str(tmp_path / "nothing*.txt"))
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(ValueError, match=r"a\.csv.*must end in \.txt, \.jsonl"):
        data.open_corpus(str(tmp_path / "a.csv"))
    (tmp_path / "b.jsonl").write_text('{"text": "fine"}\n{"body": "x"}\n')
    with pytest.raises(
        ValueError, match=r"line 2: no text under the key 'text'; it has \['body'\]"
    ):
        list(data.open_corpus(str(tmp_path / "b.jsonl")).documents())
    (tmp_path / "c.jsonl").write_text('{"text": \n')
    with pytest.raises(ValueError, match="line 1: not valid JSON"):
        list(data.open_corpus(str(tmp_path / "c.jsonl")).documents())
    with pytest.raises(ValueError, match="tfds:NAME:SPLIT"):
        data.open_corpus("tfds:wikipedia")


def test_tfds_without_tensorflow(tmp_path):
    """A real tfds dataset, written and read as array_record; TensorFlow is never imported."""
    examples = [
        {"body": "First text. Again.", "number": 1},
        {"body": "Ünïcode.", "number": 2},
    ]

    def features(kinds):
        return {"body": kinds.Text(), "number": kinds.Scalar(np.int32)}

    tfds_dataset.write(tmp_path, "TinyText", features, {"train": examples})
    assert "tensorflow" not in sys.modules
    source = "tfds:tiny_text:train"
    corpus = data.open_corpus(source, feature="body", data_dir=str(tmp_path))
    assert sorted(corpus.documents()) == ["First text. Again.", "Ünïcode."]
    assert corpus.fingerprint() == corpus.fingerprint()
    with pytest.raises(ValueError, match="the feature 'number' is .*, not text"):
        data.open_corpus(source, feature="number", data_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"no feature 'text'; it has \['body', 'number'\]"):
        data.open_corpus(source, data_dir=str(tmp_path))
    with pytest.raises(ValueError, match="no split 'valid'"):
        data.open_corpus("tfds:tiny_text:valid", feature="body", data_dir=str(tmp_path))


def test_wiki40b_is_read_without_its_markup():
    text = "\n_START_ARTICLE_\nOrkney\n_START_SECTION_\nSea\n_START_PARAGRAPH_\nA._NEWLINE_B."
    assert list(sentences(corpora._CLEANING["wiki40b"](text))) == ["Orkney", "Sea", "A.", "B."]


def test_sentences():
    text = 'He said "Stop." Then he left. It cost 3.5 pounds! (Really?) Yes.\nA new line'
    assert list(sentences(text)) == [
        'He said "Stop."',
        "Then he left.",
        "It cost 3.5 pounds!",
        "(Really?)",
        "Yes.",
        "A new line",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello there. is it? yes.", ["hello there.", "is it?", "yes."]),
        ("Первое. Второе и т. д. стоит! «Да».", ["Первое.", "Второе и т. д. стоит!", "«Да»."]),
        ("Das ist neu. Ändert es? Ö!", ["Das ist neu.", "Ändert es?", "Ö!"]),
        ("第一句。他说「好。」然后？", ["第一句。", "他说「好。」", "然后？"]),
        ("पहला। दूसरा।", ["पहला।", "दूसरा।"]),
    ],
    ids=["lower-case", "Russian", "German", "Chinese", "Hindi"],
)
def test_sentences_of_any_script(text, expected):
    assert sentences(text) == expected


def test_text_without_stops_is_cut_into_windows():
    words = "word " * 100
    assert " ".join(sentences(words)) == words.strip()
    assert max(map(len, sentences(words))) <= 100
    assert "".join(sentences("ไทย" * 200)) == "ไทย" * 200
    assert sentences("a" * 300) == ["a" * 300]  # A document of one sentence.


def test_the_rule_for_any_script_changes_no_english_text():
    for document in data.open_corpus("pydoc").documents():
        english = filter(None, map(str.strip, tokenized._ENGLISH_END.split(document)))
        assert sentences(document) == list(english)


# --- tokenizer and cache --------------------------------------------------------------------------


def test_trained_and_loaded_tokenizers(tmp_path, books):
    _, tokenizer, vocabulary = books
    assert tokenizer.get_vocab_size() <= 200
    assert [tokenizer.id_to_token(i) for i in range(5)] == [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
    ]
    assert not np.isin([0, 1, 2, 3, 4], vocabulary.ordinary).any()
    assert len(vocabulary.ordinary) == vocabulary.size - 5
    words = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for name in ("vocab.txt", "tokenizer.json"):
        loaded = data.load_tokenizer(tmp_path / name)
        text = "The WHALE upon deckwater"
        assert loaded.encode(text).tokens == tokenizer.encode(text).tokens
    (tmp_path / "short.txt").write_text("[PAD]\n[UNK]\nthe")
    with pytest.raises(ValueError, match=r"lacks \[CLS\], \[SEP\], \[MASK\]"):
        data.load_tokenizer(tmp_path / "short.txt")
    with pytest.raises(ValueError, match="No tokenizer at"):
        data.load_tokenizer(tmp_path / "none.txt")


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
    with pytest.raises(ValueError, match=r"gives the id \d+ to several tokens: '\[twice\]', 'a'"):
        data.load_tokenizer(file)
    vocab = {token: number for number, token in enumerate([*SPECIAL_TOKENS, "a"])}
    file.write_text(Tokenizer(models.BPE(vocab, [], dropout=0.1)).to_str())
    with pytest.raises(ValueError, match=r"tokenizes at random \(dropout 0.1\)"):
        data.load_tokenizer(file)


def test_training_a_tokenizer_is_deterministic(tmp_path):
    texts = list(data.open_corpus(str(write_books(tmp_path))).documents())
    first, second = (data.train_tokenizer(texts, 150).to_str() for _ in range(2))
    assert first == second


def test_the_cache_is_reused_and_holds_the_text(tmp_path, monkeypatch):
    path = write_books(tmp_path)
    corpus = data.open_corpus(str(path))
    tokenizer = data.prepare_tokenizer(corpus, "", 200, tmp_path / "cache")
    first = data.tokenize(corpus, tokenizer, tmp_path / "cache")
    ids = [tokenizer.encode(s).ids for d in corpus.documents() for s in sentences(d)]
    assert first.tokens["id"].tolist() == [i for sentence in ids for i in sentence]
    assert first.tokens["id"].dtype == np.uint16
    assert np.diff(first.sentences).tolist() == [len(sentence) for sentence in ids]
    assert np.diff(first.documents).tolist() == [30] * 12

    def fail(*args):
        raise AssertionError("read the text again")

    monkeypatch.setattr(corpora, "_read_json_lines", fail)
    again = data.open_corpus(str(path))
    assert data.tokenize(again, tokenizer, tmp_path / "cache").folder == first.folder
    path.write_text(path.read_text() + '{"text": "More. And more."}\n')
    with pytest.raises(AssertionError, match="read the text again"):
        data.tokenize(data.open_corpus(str(path)), tokenizer, tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache").iterdir() if p.name.startswith("tmp")]


def test_splits(books):
    corpus = books[0]
    train, held_out = corpus.split(0.25)
    assert held_out.tolist() == [3, 7, 11]
    assert sorted([*train, *held_out]) == list(range(12))
    with pytest.raises(ValueError, match=r"held_out=0.05 .* 12 document.*data.validation"):
        corpus.split(0.05)
    assert len(corpus.split(0.4)[1]) == 4  # Not every second one.


def test_a_vocabulary_smaller_than_the_characters_is_refused(tmp_path):
    corpus = data.open_corpus(str(write_books(tmp_path)))
    with pytest.raises(ValueError, match=r"vocab_size=10 is too small .* are \d\d tokens"):
        data.prepare_tokenizer(corpus, "", 10, tmp_path / "cache")


def test_an_empty_corpus(tmp_path, books):
    (tmp_path / "a.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="contains no text"):
        data.tokenize(data.open_corpus(str(tmp_path / "a.txt")), books[1], tmp_path)


# --- pairs ----------------------------------------------------------------------------------------


def test_chunks_cover_each_document_once(books):
    corpus = books[0]
    rows = pretraining.chunks(corpus, corpus.all_documents(), 40)
    for document in corpus.all_documents():
        own = rows[rows[:, 0] == document]
        assert own[0, 1] == corpus.documents[document]
        assert own[-1, 2] == corpus.documents[document + 1]
        assert (own[1:, 1] == own[:-1, 2]).all()
        assert (own[:, 2] - own[:, 1] >= 2).all()
        sizes = corpus.sentences[own[:, 2]] - corpus.sentences[own[:, 1]]
        assert (sizes[:-1] >= 40).all()


@pytest.mark.parametrize("max_tokens", [3, 40, 10_000])
def test_chunks_equal_those_of_a_loop(books, max_tokens):
    corpus = books[0]
    documents, starts = np.array([5, 0, 11, 7]), corpus.sentences
    rows = []
    for document in documents:
        begin, stop = corpus.documents[document : document + 2]
        while stop - begin >= 2:
            end = begin + 2
            while end < stop and starts[end] - starts[begin] < max_tokens:
                end += 1
            end = stop if stop - end == 1 else end
            rows.append((document, begin, end))
            begin = end
    np.testing.assert_array_equal(pretraining.chunks(corpus, documents, max_tokens), rows)


def pair_examples(books, documents, max_tokens, **options):
    corpus, _, vocabulary = books
    sizes = (max_tokens + 3, 8)
    return data.PretrainingExamples(corpus, documents, vocabulary, *sizes, **options)


def test_pairs(books):
    examples = pair_examples(books, books[0].all_documents(), 40)
    rng = np.random.default_rng(0)
    labels, lengths = [], []
    for n in range(2_000):
        first, second, label = examples.pair(n % len(examples), rng)
        assert len(first) >= 1
        assert len(second) >= 1
        assert len(first) + len(second) <= 40
        labels.append(label)
        lengths.append(len(first) + len(second))
    assert np.mean(labels) == pytest.approx(0.5, abs=0.04)
    assert np.mean(lengths) > 34


def test_lengths_do_not_give_the_label_away(books):
    """A model that sees only the positions of [SEP] and of the end must stay at chance."""
    examples = pair_examples(books, books[0].all_documents(), 40)
    rng = np.random.default_rng(0)
    lengths = {pretraining.IS_NEXT: [], pretraining.IS_RANDOM: []}
    for n in range(4_000):
        first, second, label = examples.pair(n % len(examples), rng)
        lengths[label].append((len(first), len(second)))
    for part in (0, 1):
        counts = [np.bincount([t[part] for t in s], minlength=41) for s in lengths.values()]
        shares = [c / c.sum() for c in counts]
        # By how much the best guess from this length beats chance.
        assert np.abs(shares[0] - shares[1]).sum() / 4 < 0.06


def test_second_parts_follow_or_come_from_another_document(books):
    corpus = books[0]
    documents = corpus.all_documents()[:2]
    examples = pair_examples(books, documents, 60, short_probability=0.0)
    bounds = corpus.sentences[corpus.documents[:3]]
    texts = [corpus.tokens["id"][a:b].tolist() for a, b in itertools.pairwise(bounds)]

    def inside(part, text):
        part = corpus.tokens["id"][part.start : part.stop].tolist()
        return any(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))

    rng = np.random.default_rng(1)
    for _ in range(200):
        first, second, label = examples.pair(0, rng)
        assert inside(first, texts[0])
        if min(len(second), len(first)) > 5:
            assert inside(second, texts[0 if label == pretraining.IS_NEXT else 1])


def test_a_single_document_draws_from_outside_the_chunk(books):
    examples = pair_examples(books, books[0].all_documents()[:1], 40)
    rng = np.random.default_rng(0)
    pairs = [examples.pair(1, rng) for _ in range(20)]
    assert {label for _, _, label in pairs} == {0, 1}


# --- masking --------------------------------------------------------------------------------------

VOCABULARY = data.Vocabulary(
    size=50,
    pad=0,
    mask=4,
    ordinary=np.arange(5, 50),
    single=bert_template([2], [3], pair=False),
    pair=bert_template([2], [3], pair=True),
)


def masked(tokens, maskable, rng, max_predictions=20, **options):
    """Tokens, and the positions and true ids of those that were chosen; tokens from 40 on continue
    words."""
    words = (tokens < 40, maskable, VOCABULARY)
    arrays = masking.mask_words(tokens, *words, rng, max_predictions, **options)
    count = int(arrays["masked_weights"].sum())
    assert (
        not arrays["masked_positions"][count:].any() and not arrays["masked_tokens"][count:].any()
    )
    return arrays["tokens"], arrays["masked_positions"][:count], arrays["masked_tokens"][:count]


def test_whole_words_and_rates():
    # Alternating words of one, two and three tokens.
    tokens = np.array([2, *[10, 11, 41, 12, 42, 43] * 10, 3], np.int32)
    maskable = np.ones(62, bool)
    maskable[[0, -1]] = False
    words = [
        [i for i in (6 * n + 1 + o for o in w)] for n in range(10) for w in ([0], [1, 2], [3, 4, 5])
    ]
    rng = np.random.default_rng(0)
    kinds = np.zeros(3)
    for _ in range(1_000):
        changed, positions, labels = masked(tokens, maskable, rng)
        chosen = set(positions.tolist())
        assert len(chosen) == len(positions) == 9  # 15 % of 60.
        assert all(chosen >= set(w) or not chosen & set(w) for w in words)
        assert (labels == tokens[positions]).all()
        untouched = np.setdiff1d(np.arange(62), positions)
        assert (changed[untouched] == tokens[untouched]).all()
        now = changed[positions]
        kinds += [(now == 4).sum(), (now == labels).sum(), 0]
        kinds[2] += len(now) - (now == 4).sum() - (now == labels).sum()
        assert (now[now != 4] >= 5).all()
    # A random token is the true one in 1 of 45 draws.
    assert kinds / kinds.sum() == pytest.approx([0.8, 0.1 + 0.1 / 45, 0.1 - 0.1 / 45], abs=0.01)


def test_the_number_of_masks_has_a_maximum_and_is_at_least_one():
    tokens, rng = np.arange(5, 35, dtype=np.int32), np.random.default_rng(0)
    every = np.ones(30, bool)

    def count(*args, **options):
        return len(masked(*args, rng, **options)[1])

    assert count(tokens, every, max_predictions=3) == 3
    assert count(tokens[:2], every[:2]) == 1
    assert count(tokens[:2], ~every[:2]) == 0


def test_a_word_does_not_cross_a_separator():
    tokens = np.array([2, 10, 3, 40, 41, 3])  # [CLS] word [SEP] ##cut ##off [SEP]
    maskable = np.array([False, True, False, True, True, False])
    rng = np.random.default_rng(0)
    seen = {tuple(masked(tokens, maskable, rng, rate=0.67)[1]) for _ in range(50)}
    assert seen == {(3, 4), (1,)}


# --- the stream -----------------------------------------------------------------------------------


def test_an_example_is_consistent(books):
    _, _, v = books
    examples = make_examples(books)
    for n in range(len(examples)):
        e = examples(n, np.random.default_rng(n))
        original = e["tokens"].copy()
        used = int(e["masked_weights"].sum())
        at = e["masked_positions"][:used]
        original[at] = e["masked_tokens"][:used]
        valid = e["valid"]
        assert original[0] == v.single.before
        ends = np.flatnonzero(original == v.single.after)
        assert len(ends) == 2
        assert ends[1] == valid.sum() - 1
        assert (original[~valid] == v.pad).all()
        assert (e["token_type_ids"] == ((np.arange(48) > ends[0]) & valid)).all()
        assert not np.isin(at, [0, *ends]).any()
        assert valid[at].all()
        assert (e["masked_tokens"][used:] == 0).all()


def take(stream, count):
    return [b for b, _ in zip(iter(stream), range(count))]


def same(a, b):
    return all(np.array_equal(a[key], b[key]) for key in a)


def test_the_stream_is_a_function_of_seed_and_step(books):
    examples = make_examples(books)
    steps = 3 * len(examples) // 4
    a, b = (take(data.batches(examples, batch_size=4, seed=7), steps) for _ in range(2))
    assert all(same(x, y) for x, y in zip(a, b))
    other = take(data.batches(examples, batch_size=4, seed=8), 1)[0]
    assert not same(a[0], other)


def test_masks_are_new_each_epoch(books):
    examples = make_examples(books, short_probability=0.0)
    rows = len(examples)
    first, second = take(data.batches(examples, batch_size=rows, seed=0), 2)
    key = lambda batch, n: batch["tokens"][n].tobytes()
    assert len({key(first, n) for n in range(rows)} & {key(second, n) for n in range(rows)}) == 0


def test_batches_resume_with_any_number_of_workers(books):
    """On several hosts too."""
    examples = make_examples(books)
    flags.FLAGS.mark_as_parsed()  # As in a command; grain's workers check it.
    arguments = {"batch_size": 4, "seed": 7, "host": 1, "hosts": 2}
    _, *expected = take(data.batches(examples, 4, **arguments), 5)
    for workers in (0, 2):
        resumed = take(data.batches(examples, 5, **arguments, workers=workers), 4)
        assert all(same(a, b) for a, b in zip(resumed, expected, strict=True))


def test_hosts_split_the_same_global_batch(books):
    examples = make_examples(books)
    whole = take(data.batches(examples, batch_size=8, seed=3), 3)
    parts = [
        take(data.batches(examples, batch_size=8, seed=3, host=h, hosts=2), 3) for h in range(2)
    ]
    for n, batch in enumerate(whole):
        for key, rows in batch.items():
            joined = np.concatenate([parts[0][n][key], parts[1][n][key]])
            np.testing.assert_array_equal(rows, joined)


def test_worker_processes_make_the_same_batches(books, tmp_path, monkeypatch):
    for name in ("json.py", "pickle.py", "copyreg.py", "pe_jax.py"):  # Not run by the workers.
        (tmp_path / name).write_text("raise SystemExit('ran')")
    monkeypatch.chdir(tmp_path)
    examples = make_examples(books)
    assert (
        len(pickle.dumps(examples.corpus)) < 1_000
    )  # Workers map the files: the arrays are not pickled.
    flags.FLAGS.mark_as_parsed()  # As in a command; grain's workers check it.
    here = take(data.batches(examples, batch_size=4, seed=7), 5)
    there = iter(data.batches(examples, batch_size=4, seed=7, workers=2))
    assert all(same(batch, next(there)) for batch in here)
    for process in multiprocessing.active_children():  # As if memory had run out.
        process.kill()
    with pytest.raises(ChildProcessError, match=r"was killed \(exit code -9\).*workers"):
        collections.deque(there, maxlen=0)


def test_texts_without_any_pair_are_refused(books, tmp_path):
    (tmp_path / "a.txt").write_text("One sentence.\n\nAnother one.")
    corpus = data.tokenize(data.open_corpus(str(tmp_path / "a.txt")), books[1], tmp_path)
    with pytest.raises(ValueError, match="No document of this corpus has two sentences"):
        make_examples((corpus, books[1], books[2]))


def load(tmp_path, documents, vocab="", **changes):
    """`load_text` of these documents."""
    (tmp_path / "text.jsonl").write_text("".join(f'{{"text": "{d}"}}\n' for d in documents))
    source = {"data.source": str(tmp_path / "text.jsonl")}
    return load_text(tiny_run.config(tmp_path, **source, **changes).data, vocab)


def test_the_documents_that_are_dropped_are_counted(tmp_path):
    text = load(tmp_path, ["The sea is wide. A ship is not."] * 7 + ["One."] * 2 + [""] * 3)
    assert text.summary() == (
        "12 read, 7 used (22.2% held out); dropped 2, of a single sentence, which makes no pair; "
        "dropped 3, empty"
    )
    with pytest.raises(ValueError, match=r"text.jsonl: 8 of 12 documents, \d+% of the text, are a"):
        load(tmp_path, ["The sea is wide"] * 8 + ["The. Sea."] * 4)


def test_a_vocabulary_that_does_not_fit_the_text(tmp_path, capsys):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*SPECIAL_TOKENS, *tiny_run.WORDS, "."]) + "\n")
    load(tmp_path, ["The sea. The ship."] * 8, str(vocab))
    assert "[UNK]" not in capsys.readouterr().err
    load(tmp_path, ["The sea. The xylophone."] * 8, str(vocab))
    assert "text.jsonl: 16.7% of the tokens are [UNK]" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"66\.7% of the tokens are \[UNK\].*--config.data.vocab"):
        load(tmp_path, ["Das Meer. Ein Schiff."] * 8, str(vocab))
