"""Tokenized shards: the same arrays and batches as from text, and errors that name the fault.

Only the last tests run Apache Beam; the others write shards as its workers do.
"""

import json
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from absl import flags
from helpers import tfds_dataset, tiny_run
from helpers.commands import call
from helpers.tiny_run import write_books

from pe_jax import data
from pe_jax.data import corpora, shard_writer, shards
from pe_jax.data.packed import PackedExamples
from pe_jax.data.shards import open_shards, shards_tokenizer
from pe_jax.tasks.text_split import load_text

BLOCK = 100  # Small, so that reads cross the bounds of blocks and of shards.


def write_source(folder):
    """Three files of books, a text file and one without text; returns the glob."""
    folder.mkdir()
    for seed in (1, 2, 3):
        write_books(folder, count=5, seed=seed).rename(folder / f"{seed}.jsonl")
    (folder / "1b.txt").write_text("\n \n")
    (folder / "2b.txt").write_text("A single sentence.\n\nThe sea. And the ship. And the whale.\n")
    return str(folder / "*")


def write_shards(source, tokenizer, folder):
    """Does what the Beam pipeline does, sequentially."""
    folder.mkdir()
    parts = corpora.parts(source)
    written = [
        shard_writer.write_shard(
            data.open_corpus(part), tokenizer, folder, shards.shard_name(n, len(parts))
        )
        for n, part in enumerate(parts)
    ]
    sizes = (shard_writer.read_sizes(folder / shards.sizes_file(shard.name)) for shard in written)
    tokenizer_json = tokenizer.to_str(pretty=True).encode()
    (folder / "tokenizer.json").write_bytes(tokenizer_json)
    shard_writer.write_index(source, written, sizes, tokenizer_json, folder)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Source, tokenizer, local corpus, folder of shards."""
    folder = tmp_path_factory.mktemp("shards")
    source = write_source(folder / "source")
    corpus = data.open_corpus(source)
    tokenizer = data.prepare_tokenizer(corpus, "", 150, folder / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BLOCK", BLOCK)
        write_shards(source, tokenizer, folder / "out")
    return source, tokenizer, data.tokenize(corpus, tokenizer, folder / "cache"), folder / "out"


@pytest.fixture
def copy(prepared, tmp_path):
    return shutil.copytree(prepared[3], tmp_path / "copy")


# --- equal to the local path ----------------------------------------------------------------------


def same_arrays(local, sharded):
    assert len(sharded.tokens) == len(local.tokens)
    tokens = sharded.tokens[0 : len(local.tokens)]
    assert tokens.dtype == local.tokens.dtype
    np.testing.assert_array_equal(tokens, local.tokens)
    np.testing.assert_array_equal(sharded.sentences, local.sentences)
    np.testing.assert_array_equal(sharded.documents, local.documents)


def test_arrays_equal_those_of_the_text(prepared):
    _, _, local, folder = prepared
    sharded = open_shards(folder)
    same_arrays(local, sharded)
    rng = np.random.default_rng(0)
    for _ in range(300):
        begin, stop = rng.integers(len(local.tokens) + 1, size=2)
        np.testing.assert_array_equal(sharded.tokens[begin:stop], local.tokens[begin:stop])


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_equal_those_of_the_text(prepared, workers):
    _, tokenizer, local, folder = prepared
    assert len(pickle.dumps(open_shards(folder))) < 1_000
    flags.FLAGS.mark_as_parsed()  # As in a command; grain's workers check it.

    def first(corpus, workers):
        train, _ = corpus.split(0.25)
        examples = data.PretrainingExamples(corpus, train, data.vocabulary(tokenizer), 48, 8)
        stream = data.batches(examples, batch_size=8, seed=3, workers=workers)
        return [batch for batch, _ in zip(iter(stream), range(20))]

    for a, b in zip(first(local, 0), first(open_shards(folder), workers), strict=True):
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])
            assert a[key].dtype == b[key].dtype


@pytest.mark.parametrize("predictions", [0, 8])
def test_packed_rows_equal_those_of_the_text(prepared, predictions):
    _, tokenizer, local, folder = prepared
    text, sharded = (
        PackedExamples(corpus, corpus.split(0.25)[0], data.vocabulary(tokenizer), 48, predictions)
        for corpus in (local, open_shards(folder))
    )
    assert len(text) == len(sharded) > 4
    for number in range(len(text)):
        a, b = (rows(number, np.random.default_rng(number)) for rows in (text, sharded))
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])


def test_writing_a_shard_again_gives_the_same_bytes(prepared, tmp_path):
    source, tokenizer, _, folder = prepared
    name = shards.shard_name(2, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BLOCK", BLOCK)
        shard = shard_writer.write_shard(
            data.open_corpus(corpora.parts(source)[2]), tokenizer, tmp_path, name
        )
    assert shard.documents == 5
    for file in (shards.tokens_file(name), shards.sizes_file(name)):
        assert (tmp_path / file).read_bytes() == (folder / file).read_bytes()


def test_a_large_vocabulary_takes_four_bytes(tmp_path):
    words = [*"[PAD] [UNK] [CLS] [SEP] [MASK]".split(), *(f"w{n}" for n in range(66_000))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "a.txt").write_text("w5 w65999.\nw1 w2 w70000.")
    tokenizer = data.load_tokenizer(tmp_path / "vocab.txt")
    write_shards(str(tmp_path / "a.txt"), tokenizer, tmp_path / "out")
    corpus = data.open_corpus(str(tmp_path / "a.txt"))
    local = data.tokenize(corpus, tokenizer, tmp_path / "cache")
    assert local.tokens.dtype["id"] == np.uint32
    same_arrays(local, open_shards(tmp_path / "out"))


def test_parts_of_a_tfds_dataset(tmp_path):
    examples = [{"text": f"Line {n}."} for n in range(10)]
    tfds_dataset.write(tmp_path, "TinyLines", tfds_dataset.texts, {"train": examples})
    for split, sizes in {"train": [4, 4, 2], "train[30%:80%]": [4, 1]}.items():
        source = f"tfds:tiny_lines:{split}"
        parts = corpora.parts(source, data_dir=str(tmp_path), examples=4)
        read = [list(data.open_corpus(p, data_dir=str(tmp_path)).documents()) for p in parts]
        assert [len(part) for part in read] == sizes
        whole = data.open_corpus(source, data_dir=str(tmp_path))
        assert [document for part in read for document in part] == list(whole.documents())
        assert whole.fingerprint() == whole.fingerprint()
    with pytest.raises(ValueError, match=r"no split 'train\[:99\]'"):
        corpora.parts("tfds:tiny_lines:train[:99]", data_dir=str(tmp_path))


# --- as the text of a run -------------------------------------------------------------------------


def text_config(tmp_path, **changes):
    return tiny_run.config(tmp_path, **changes).data


def test_a_run_uses_the_tokenizer_of_the_shards(prepared, tmp_path):
    source, tokenizer, local, folder = prepared
    text = load_text(text_config(tmp_path, **{"data.source": f"shards:{folder}"}), "")
    assert text.tokenizer.to_str() == tokenizer.to_str()
    assert text.train is text.held_out
    train, held_out = local.split(0.25)
    np.testing.assert_array_equal(text.train_documents, train)
    np.testing.assert_array_equal(text.held_out_documents, held_out)
    # A resumed run passes the tokenizer that it has saved.
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str(pretty=True))
    both = {"data.source": f"shards:{folder}", "data.validation": source}
    text = load_text(text_config(tmp_path, **both), str(tmp_path / "tokenizer.json"))
    np.testing.assert_array_equal(text.held_out.tokens, local.tokens)
    both = {"data.source": source, "data.validation": f"shards:{folder}", "data.vocab_size": 150}
    text = load_text(text_config(tmp_path, **both), "")
    same_arrays(text.train, text.held_out)


def test_another_tokenizer_is_refused(prepared, tmp_path):
    _, _, _, folder = prepared
    words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nsea"
    (tmp_path / "vocab.txt").write_text(words)
    config = text_config(tmp_path, **{"data.source": f"shards:{folder}"})
    with pytest.raises(ValueError, match=r"another tokenizer \(92 tokens\) than the run's \(7 "):
        load_text(config, str(tmp_path / "vocab.txt"))


# --- damage ---------------------------------------------------------------------------------------


def test_a_folder_that_is_not_finished(prepared, tmp_path, copy):
    with pytest.raises(ValueError, match=r"nothing holds no complete corpus.*pe_jax.data.prepare"):
        open_shards(tmp_path / "nothing")
    (copy / "about.json").unlink()
    with pytest.raises(ValueError, match=r"no complete corpus: .*about.json is missing"):
        open_shards(copy)
    (copy / "about.json").write_text('{"format": 0}')
    with pytest.raises(ValueError, match="has format 0, but this version reads format 3"):
        open_shards(copy)
    (copy / "about.json").write_text('{"form')
    with pytest.raises(ValueError, match=r"about.json is damaged"):
        open_shards(copy)


def test_shards_that_are_missing_extra_or_truncated(copy):
    last = copy / "tokens-00004-of-00005.array_record"
    content = last.read_bytes()
    last.unlink()
    with pytest.raises(ValueError, match=r"tokens-00004-of-00005.array_record: not there, should"):
        open_shards(copy)
    last.write_bytes(content[:1000])
    with pytest.raises(ValueError, match=r"1,000 bytes, should be [\d,]+ bytes"):
        open_shards(copy)
    last.write_bytes(content)
    (copy / "tokens-00005-of-00006.array_record").write_bytes(content)
    with pytest.raises(ValueError, match=r"tokens-00005-of-00006.*bytes, should be not there"):
        open_shards(copy)


def test_damage_within_a_file(copy):
    path = copy / "tokens-00000-of-00005.array_record"
    content = bytearray(path.read_bytes())
    used = np.flatnonzero(np.frombuffer(content, np.uint8))
    middle = int(used[len(used) // 4])
    content[middle : middle + 8] = bytes(b ^ 0xFF for b in content[middle : middle + 8])
    path.write_bytes(content)
    corpus = open_shards(copy)
    with pytest.raises(ValueError, match=r"tokens-00000-of-00005.array_record is damaged: "):
        corpus.tokens[0 : len(corpus.tokens)]


@pytest.mark.parametrize("name", ["sentences", "documents"])
def test_a_damaged_index(copy, name):
    starts = np.load(copy / f"{name}.npy")
    np.save(copy / f"{name}.npy", starts[:-1])
    with pytest.raises(ValueError, match=rf"{name}.npy is damaged: {len(starts) - 1} entries"):
        open_shards(copy)
    path = copy / f"{name}.npy"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match=rf"{name}.npy is damaged"):
        open_shards(copy)


def test_a_replaced_tokenizer(copy):
    about = json.loads((copy / "tokenizer.json").read_text())
    (copy / "tokenizer.json").write_text(json.dumps(about, indent=7))
    with pytest.raises(ValueError, match="not the tokenizer that these shards"):
        shards_tokenizer(copy)


def test_an_index_of_other_sizes(prepared, tmp_path):
    _, _, _, folder = prepared
    listed = json.loads((folder / "about.json").read_text())["shards"]
    written = [shards.Shard(**shard) for shard in listed]
    sizes = [shard_writer.read_sizes(folder / shards.sizes_file(s.name)) for s in written]
    tokenizer = (folder / "tokenizer.json").read_bytes()
    with pytest.raises(ValueError, match=r"sizes-00001-of-00005.npz lists .*its shard"):
        shard_writer.write_index("", written, sizes[::-1], tokenizer, tmp_path)
    with pytest.raises(ValueError, match=r"1 part\(s\) and none holds text"):
        shard_writer.write_index("", written[1:2], sizes[1:2], tokenizer, tmp_path)


# --- Apache Beam ----------------------------------------------------------------------------------

# The fallback of DirectRunner, which itself first tries to download another runner.
RUNNER = "--runner=FnApiRunner"


@pytest.fixture
def beam():
    pytest.importorskip("apache_beam", reason="the extra beam is not installed")
    from pe_jax.data import beam

    return beam


def options():
    from apache_beam.options.pipeline_options import PipelineOptions

    return PipelineOptions([RUNNER])


@pytest.mark.beam
def test_the_pipeline_writes_the_same(prepared, tmp_path, beam):
    source, tokenizer, local, folder = prepared
    out = tmp_path / "out"
    beam.prepare(source, tokenizer, str(out), options())
    assert {path.name for path in out.iterdir()} == {path.name for path in folder.iterdir()}
    same_arrays(local, open_shards(out))
    assert shards_tokenizer(out).to_str() == tokenizer.to_str()
    with pytest.raises(ValueError, match="is not empty"):
        beam.prepare(source, tokenizer, str(out), options())


def test_flags_of_the_command():
    """They need no Beam; those of Beam stand apart."""
    status, out, _ = call("pe_jax/data/prepare.py", "--help")
    assert status == 0 and "  --examples                    Examples of a tfds dataset" in out
    flags = ("--source=x", "--vocab=y", "--out=z")
    for flag, says in [("--runner=X", "'runner'"), ("--examples=x", "an integer, got 'x'.")]:
        status, _, err = call("pe_jax/data/prepare.py", *flags, flag)
        assert status == 1 and f"{says} Put Beam's own options after --.\n" in err


@pytest.mark.beam
def test_the_command_writes_the_same(prepared, tmp_path, beam):
    source, tokenizer, local, _ = prepared
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    flags = (f"--vocab={tmp_path / 'tokenizer.json'}", f"--out={tmp_path / 'out'}", "--", RUNNER)
    status, _, err = call("pe_jax/data/prepare.py", f"--source={tmp_path / 'none'}", *flags)
    assert status == 1 and "error: --source=" in err and "matches no file" in err
    status, out, err = call("pe_jax/data/prepare.py", f"--source={source}", *flags)
    assert status == 0 and f"--config.data.source=shards:{tmp_path / 'out'}" in out, err
    same_arrays(local, open_shards(tmp_path / "out"))


@pytest.mark.beam
def test_a_preparation_that_was_stopped_starts_again(prepared, copy, beam):
    """The files of the same command are written again; those of another are refused."""
    source, tokenizer, local, folder = prepared
    for name in ("about.json", "documents.npy", "tokens-00003-of-00005.array_record"):
        (copy / name).unlink()
    (copy / "tokens-00003-of-00005.array_record.unfinished-0").write_text("half of it")
    (copy / "sizes-00000-of-00004.npz").write_text("of another source")
    with pytest.raises(ValueError, match="is not empty"):
        beam.prepare(source, tokenizer, str(copy), options())
    (copy / "sizes-00000-of-00004.npz").unlink()
    beam.prepare(source, tokenizer, str(copy), options())
    assert {path.name for path in copy.iterdir()} == {path.name for path in folder.iterdir()}
    same_arrays(local, open_shards(copy))


@pytest.mark.beam
def test_the_last_step_can_be_repeated(copy, beam):
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    (copy / "tokens-00000-of-00005.array_record.unfinished-0").write_text(
        "from a worker that failed"
    )
    about = json.loads(before["about.json"])
    found = [shards.Shard(**shard) for shard in about["shards"]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BLOCK", BLOCK)
        beam._write_index(found[::-1], about["source"], str(copy))
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


@pytest.mark.beam
def test_a_failed_run_leaves_nothing_to_train_on(prepared, tmp_path, beam):
    (tmp_path / "a.jsonl").write_text('{"text": "Fine."}\n')
    (tmp_path / "b.jsonl").write_text('{"body": "Not."}\n')
    with pytest.raises(ValueError, match=r"b\.jsonl, line 1: no text under the key 'text'"):
        beam.prepare(str(tmp_path / "*.jsonl"), prepared[1], str(tmp_path / "out"), options())
    with pytest.raises(ValueError, match="no complete corpus"):
        open_shards(tmp_path / "out")


@pytest.mark.beam
def test_source_and_folder_in_a_bucket(prepared, tmp_path, beam):
    """Beam with a file system other than the local one: local files under `bucket://` names."""
    from apache_beam.io.filesystem import FileMetadata
    from apache_beam.io.localfilesystem import LocalFileSystem

    class Bucket(LocalFileSystem):
        @classmethod
        def scheme(cls):
            return "bucket"

        def _path_open(self, path, *args, **kwargs):
            return super()._path_open(here(path), *args, **kwargs)

        def create(self, path, *args, **kwargs):
            return super().create(here(path), *args, **kwargs)

        def _list(self, folder):
            for found in super()._list(here(folder)):
                yield FileMetadata(there(found.path), found.size_in_bytes)

        def rename(self, sources, targets):
            super().rename([here(s) for s in sources], [here(t) for t in targets])

        def delete(self, paths):
            super().delete([here(path) for path in paths])

    here = lambda path: path.replace("bucket://", f"{tmp_path}/")
    there = lambda path: path.replace(f"{tmp_path}/", "bucket://")
    source, tokenizer, local, _ = prepared
    shutil.copytree(source.removesuffix("/*"), tmp_path / "in")
    with pytest.raises(ValueError, match="bucket://in is not empty"):
        beam.prepare("bucket://in/*", tokenizer, "bucket://in", options())
    beam.prepare("bucket://in/*", tokenizer, "bucket://new", options())
    same_arrays(local, open_shards(tmp_path / "new"))
    listed = json.loads((tmp_path / "new" / "about.json").read_text())["shards"]
    assert listed[0]["part"] == "bucket://in/1.jsonl"
    with pytest.raises(ValueError, match="source='bucket://in/none"):
        beam.prepare("bucket://in/none*", tokenizer, "bucket://other", options())


def test_the_page_of_corpora(prepared, tmp_path, monkeypatch):
    """Its first block trains a vocabulary, its last reads a shard; the one between them downloads
    Wikipedia, and is not run."""
    page = Path(__file__).parents[2] / "docs/corpora.md"
    vocabulary, download, read = re.findall(
        r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S
    )
    assert "download_and_prepare(" in download
    monkeypatch.chdir(tmp_path)
    Path("sample").mkdir()
    write_books(Path("sample"))
    exec(vocabulary, {})
    tokenizer = data.prepare_tokenizer(data.open_corpus(prepared[0]), "tokenizer.json", 0, tmp_path)
    assert "[MASK]" in tokenizer.get_vocab()
    shutil.copytree(prepared[3], "SHARDS")
    exec(read, found := {})
    first = found["about"]["shards"][0]["tokens"]
    np.testing.assert_array_equal(found["ids"], open_shards(Path("SHARDS")).tokens[0:first]["id"])
