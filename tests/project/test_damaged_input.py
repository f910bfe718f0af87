"""Damaged, hostile and odd input: an error that says where, or a cache that is made again."""

import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from tokenizers import models, pre_tokenizers

from pe_jax.interop import tokenizer
from pe_jax.interop.checkpoint_files import open_checkpoint
from pe_jax.trainer import data
from pe_jax.trainer.data import corpora, tokenized
from pe_jax.trainer.disk_cache import cache_compiled_programs, make_once

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


# --- caches ---------------------------------------------------------------------------------------


def write(folder):
    (folder / "a").write_bytes(bytes(range(200)))
    (folder / "b").write_text("text")


def zeroed(folder):
    (folder / "a").write_bytes(bytes(200))


def cut(folder):
    (folder / "a").write_bytes(bytes(range(100)))


def missing(folder):
    (folder / "b").unlink()


def without_digests(folder):
    (folder / "sha256.json").unlink()


def with_broken_digests(folder):
    (folder / "sha256.json").write_text('{"a":')


def with_digests_of_another_type(folder):
    (folder / "sha256.json").write_text("[1]")


def with_too_few_digests(folder):
    (folder / "sha256.json").write_text("{}")


def with_the_digest_of_a_folder(folder):
    digests = json.loads((folder / "sha256.json").read_text())
    (folder / "sha256.json").write_text(json.dumps(digests | {"": "0"}))


@pytest.mark.parametrize(
    "damage",
    [
        zeroed,
        cut,
        missing,
        without_digests,
        with_broken_digests,
        with_digests_of_another_type,
        with_too_few_digests,
        with_the_digest_of_a_folder,
    ],
)
def test_a_damaged_cache_is_made_again(damage, tmp_path, capsys):
    folder = make_once(tmp_path / "cached", write)
    assert make_once(folder, lambda _: pytest.fail("was there")) == folder
    damage(folder)
    make_once(folder, write)
    assert (folder / "a").read_bytes() == bytes(range(200)) and (folder / "b").is_file()
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and "recomputed" in told[0]
    assert sorted(os.listdir(tmp_path)) == [".cached.lock", "cached"]


def test_a_failure_leaves_nothing(tmp_path):
    def fail(folder):
        write(folder)
        raise ValueError("no text")

    with pytest.raises(ValueError, match="no text"):
        make_once(tmp_path / "cached", fail)
    assert os.listdir(tmp_path) == [".cached.lock"]


HOLD = """import pathlib, sys, time
from pe_jax.trainer.disk_cache import make_once
def make(folder):
    (folder / "half").touch()
    print(folder, flush=True), time.sleep(60)
make_once(pathlib.Path(sys.argv[1]), make)
"""


def test_folders_of_killed_processes_are_swept(tmp_path):
    command = [sys.executable, "-c", HOLD, tmp_path / "cached"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        folder = Path(other.stdout.readline().strip())
        other.kill()
    assert folder.exists()
    make_once(tmp_path / "cached", write)
    assert sorted(os.listdir(tmp_path)) == [".cached.lock", "cached"]
    assert sorted(os.listdir(tmp_path / "cached")) == ["a", "b", "sha256.json"]


USE = """import os, pathlib, sys
from pe_jax.trainer.disk_cache import make_once
os.setgroups([30_000]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
make_once(pathlib.Path(sys.argv[1]), lambda folder: (folder / "a").write_text("text"))
"""


@pytest.mark.skipif(
    os.geteuid() != 0, reason="changes the user of a process: needs root"
)
def test_users_of_one_group_share_a_cache():
    """The second repairs what the first has made."""
    cache = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        os.chown(cache, -1, 30_000)
        cache.chmod(0o2770)
        for user in ("30001", "30002"):
            command = [sys.executable, "-c", USE, cache / "cached", user]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert (cache / "cached" / "a").read_text() == "text"
            if user == "30001":
                (cache / "cached" / "a").write_text("damaged")
        assert "recomputed" in done.stderr and sorted(os.listdir(cache)) == [
            ".cached.lock",
            "cached",
        ]
    finally:
        shutil.rmtree(cache)


def test_a_cache_on_a_full_disk(tmp_path):
    def full(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(
        OSError, match=r"cached cannot be read or created: .*No space left .*PE_JAX_C"
    ):
        make_once(tmp_path / "cached", full)


def test_zeroed_tokens_do_not_train(tmp_path, capsys):
    """The arrays of a tokenized corpus and a trained tokenizer are such caches."""
    (tmp_path / "text.txt").write_text(
        "One thing here. Another thing there.\n\nA third document.\n"
    )
    corpus = data.open_corpus(str(tmp_path / "text.txt"))
    tokenizer = data.prepare_tokenizer(corpus, "", 60, tmp_path / "cache")
    first = data.tokenize(corpus, tokenizer, tmp_path / "cache")
    wanted = np.array(first.tokens)
    np.save(first.folder / "tokens.npy", np.zeros_like(wanted))
    (trained,) = (tmp_path / "cache").glob("tokenizer-*/tokenizer.json")
    trained.write_text("{")
    again = data.prepare_tokenizer(corpus, "", 60, tmp_path / "cache")
    assert again.to_str() == tokenizer.to_str()
    tokens = data.tokenize(corpus, again, tmp_path / "cache").tokens
    np.testing.assert_array_equal(tokens, wanted)
    assert capsys.readouterr().err.count("recomputed") == 2


def test_damaged_programs_are_compiled_again(tmp_path, monkeypatch):
    """JAX's own cache: cut, empty and with a wrong bit; nobody reads another program."""
    names = (
        "jax_compilation_cache_dir",
        "jax_enable_compilation_cache",
        "jax_persistent_cache_min_compile_time_secs",
    )
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_enable_compilation_cache", True)
    monkeypatch.setenv("PE_JAX_CACHE", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    cache_compiled_programs()
    compilation_cache.reset_cache()
    x = np.ones(3, np.float32)
    run = lambda: [
        np.asarray(jax.jit(lambda x, n=n: x * n + n)(x)).tolist() for n in range(2, 5)
    ]
    wanted = run()
    cut, empty, wrong = (tmp_path / "compiled").iterdir()
    cut.write_bytes(cut.read_bytes()[:-100])
    empty.write_bytes(b"")
    damaged = bytearray(wrong.read_bytes())
    damaged[200] ^= 4
    wrong.write_bytes(damaged)
    with pytest.warns(
        UserWarning, match="Error reading persistent compilation cache entry"
    ):
        assert run() == wanted
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


# --- vocabularies ---------------------------------------------------------------------------------


def test_tokens_may_have_characters_that_unicode_takes_for_line_breaks(tmp_path):
    odd = ["a\u2028", "\u0085", "b\x0bc", "\x1c", "\u200b"]
    for end in ("\n", "\r\n", ""):
        text = "\n".join([*SPECIAL, *odd, "word"]) + end
        (tmp_path / "vocab.txt").write_text(text, encoding="utf-8", newline="")
        tokenizer = data.load_tokenizer(tmp_path / "vocab.txt")
        assert tokenizer.token_to_id("word") == len(SPECIAL) + len(odd)
        assert data.vocabulary(tokenizer).size == len(SPECIAL) + len(odd) + 1


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([*SPECIAL, "a", "a"], "line 7: 'a' repeats line 6"),
        ([*SPECIAL, "", "a"], "line 6: '' is blank"),
        ([*SPECIAL, "a", ""], "line 7: '' is blank"),
        (SPECIAL[:4], "lacks"),
    ],
)
def test_vocabularies_that_are_none(lines, told, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=told.replace("[", r"\[")) as error:
        data.load_tokenizer(tmp_path / "vocab.txt")
    assert "vocab.txt" in str(error.value)


def test_a_damaged_tokenizer_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    vocab = {token: i for i, token in enumerate(SPECIAL)}
    model = {"type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]",
             "max_input_chars_per_word": 100, "continuing_subword_prefix": "##"}  # fmt: skip
    path.write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": []}))
    data.load_tokenizer(path)
    vocab["far"] = 9
    path.write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": []}))
    with pytest.raises(ValueError, match="tokenizer.json have gaps: no token has id 5"):
        data.load_tokenizer(path)
    path.write_text('{"version": ')
    with pytest.raises(ValueError, match="cannot read .*tokenizer.json"):
        data.load_tokenizer(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="tokenizer.json is not UTF-8"):
        data.load_tokenizer(path)


def test_a_text_without_spaces_trains_a_vocabulary_at_once():
    start = time.process_time()
    texts = ["x" * 300_000 + "ab" * 200_000, "some words and 中文" * 40]
    tokenizer = data.train_tokenizer(texts, 60)
    assert tokenizer.encode("words 中").tokens[-1] == "中"
    assert (
        time.process_time() - start < 10
    )  # Minutes, in time quadratic in the longest word.


def test_a_long_text_trains_a_vocabulary_in_pieces(monkeypatch):
    word_piece, lengths = tokenizer._word_piece, []

    class Recorded:
        def __init__(self, vocab, settings):
            self._tokenizer = word_piece(vocab, settings)

        def __getattr__(self, name):
            return getattr(self._tokenizer, name)

        def train_from_iterator(self, texts, trainer):
            texts = list(texts)
            lengths.append(max(map(len, texts)))
            self._tokenizer.train_from_iterator(texts, trainer)

    monkeypatch.setattr(tokenizer, "_word_piece", Recorded)
    # With separators that are none to the tokenizer, or none to Python, and accents apart.
    prose = "Of café, cafe\u0301 a\x1cb\xa0c\u3000d: naïve!  中文，漢字 don't_stop\n\U00020000x\ty "
    texts = [prose * 3_000, "ab cd " * 40_000, "中文" * 60_000]
    vocabulary = data.train_tokenizer(texts, 60).get_vocab()
    assert max(lengths) <= 100_000
    assert "".join(tokenizer._pieces("ก็" * 70_000 + prose)) == "ก็" * 70_000 + prose
    monkeypatch.setattr(tokenizer, "_LONGEST_PIECE", 10**9)
    assert vocabulary == data.train_tokenizer(texts, 60).get_vocab()
    assert max(lengths) > 100_000


# --- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"text": ' * 100_000, "nested too deeply"),
        (
            '{"text": "a", "n": ' + "9" * 5_000 + "}",
            "an integer has thousands of digits",
        ),
        (
            r'{"text": "a \ud83d b"}',
            r"\ud83d is half of a surrogate pair, not a character",
        ),
        (r'{"text": "a", "\uDC00": 1}', r"\udc00 is half of a surrogate pair"),
        ('{"text": "a"', "Expecting ',' delimiter"),
    ],
)
def test_odd_json_lines_are_named(line, fault, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "fine \\ud83d\\ude00"}}\n{line}\n')
    documents = data.open_corpus(str(path)).documents()
    assert next(documents) == "fine \U0001f600"
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: not valid JSON") as error:
        next(documents)
    assert fault in str(error.value)


def test_long_lines(tmp_path, monkeypatch):
    """Of a document that is one line, some is in the tokenizer at a time."""
    calls = []

    class Counted:
        model, normalizer = models.BPE(), None
        pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        get_vocab_size = staticmethod(lambda: 2**17)

        def encode_batch(self, texts, add_special_tokens):
            calls.append(sum(map(len, texts)))
            return [Characters(text) for text in texts]

    class Characters(str):
        ids = property(lambda self: list(map(ord, self)))
        offsets = property(lambda self: [(n, n + 1) for n in range(len(self))])
        word_ids = property(lambda self: range(len(self)))

    monkeypatch.setattr(tokenized, "_BATCH", 1_000)
    monkeypatch.setattr(tokenized, "text_tokenizer", lambda tokenizer: tokenizer)
    for text in (
        "word. The " * 2_000,
        "x" * 20_000,
        "short. The " * 2_000 + "x" * 150_000,
    ):
        ((tokens, sizes),) = tokenized.tokenize_documents([text], Counted())
        assert "".join(map(chr, tokens["id"])) == text
        assert len(tokens) == sizes.sum() and sizes.max() <= 101 and max(calls) <= 2_000
    monkeypatch.setattr(corpora, "_LONGEST_LINE", 100)
    path = tmp_path / "a.txt"
    path.write_text("a\n" + "x" * 100 + "\n")
    with pytest.raises(
        ValueError, match=r"a\.txt, line 2: longer than 100 bytes.*fold"
    ):
        list(data.open_corpus(str(path)).documents())


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_archives_are_named(compress, damage, tmp_path):
    rng = np.random.default_rng(0)
    text = "\n".join(
        json.dumps({"text": str(rng.integers(1e9))}) for _ in range(3000)
    ).encode()
    whole = bytearray(compress(text))
    if damage == "cut":
        whole = whole[: len(whole) // 2]
    else:
        whole[len(whole) // 2] ^= 255
    path = tmp_path / f"a.jsonl.{'gz' if compress is gzip.compress else 'xz'}"
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"a\.jsonl\.(gz|xz), (after )?line \d+"):
        list(data.open_corpus(str(path)).documents())


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine\n" * 5000 + b"\xff\xfe\n" + b"fine\n" * 5000)
    with pytest.raises(ValueError, match=r"a.txt, line 5001: not UTF-8"):
        list(data.open_corpus(str(path)).documents())


@pytest.mark.parametrize(
    "shard", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors"]
)
def test_an_index_stays_in_its_folder(shard, tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": shard}}))
    with pytest.raises(ValueError, match="outside of its own folder"):
        open_checkpoint(tmp_path)
