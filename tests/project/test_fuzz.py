"""Odd configs, commands, weights, caches and files of runs, drawn at random from a seed.

A case ends well if it does what it means, or is refused with our own error, which names the key or
the file. Everything else fails: another exception, a crash, a hang, another result without a word.

    pytest -n 0 -s -m fuzz tests/project/test_fuzz.py  # 2,000 cases of each class, with counts
"""

import collections
import contextlib
import copy
import functools
import io
import json
import math
import re
import shutil
import time
from pathlib import Path
from unittest import mock

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from helpers import finetuning_data, published_bert, tfds_dataset, tiny_run
from helpers.commands import call
from helpers.config_schemas import FILES, changed, read, shipped
from hypothesis import HealthCheck, Phase, given, seed, settings
from safetensors.numpy import load_file

from pe_jax import encodings, interop
from pe_jax.attention import attention
from pe_jax.common.schema import class_for, flatten, keys
from pe_jax.encodings.registry import ENCODINGS, WRAPPERS, options_of
from pe_jax.trainer import data
from pe_jax.trainer.configs.all_tasks import CONFIGS
from pe_jax.trainer.data.questions import read_official
from pe_jax.trainer.data.tokenized import sentences
from pe_jax.trainer.tasks import pretraining, text_training
from pe_jax.trainer.tasks import train as runs
from pe_jax.trainer.training.metrics import read_metrics
from pe_jax.trainer.training.pytrees import checksum

SLOW = 30  # Seconds in which a case ends; most take milliseconds.

NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**32, 10**30, -(10**30)]),
    st.floats(),
    st.floats(0, 1),
)
TEXTS = st.one_of(
    st.text(max_size=5),
    st.sampled_from(
        ["0.1", "nan", "-1", "tiny", "mini", "rope", "rope(", "+", "v1.1", "auto", ""]
    ),
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    TEXTS,
    st.lists(
        st.one_of(st.integers(-1, 5), st.floats(), st.text(max_size=2)), max_size=3
    ),
    st.tuples(st.floats(), st.floats()),
    st.dictionaries(st.text("ab", min_size=1, max_size=2), st.integers(), max_size=1),
)
JSON = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, st.just([]), st.just({}))


@pytest.fixture(params=[20, pytest.param(2_000, marks=pytest.mark.fuzz)])
def fuzz(request):
    """`fuzz(case)` calls `case(data)` many times, and counts what it returns."""
    many = request.param > 20
    if many and "fuzz" not in request.config.option.markexpr:
        pytest.skip(
            "thousands of cases, which take minutes: pytest -m fuzz tests/project/test_fuzz.py"
        )
    counts = collections.Counter()

    def run(case):
        @seed(0)
        @settings(
            max_examples=request.param,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink] if not many else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def each(drawn):
            begin = time.monotonic()
            outcome = case(drawn.draw)
            assert time.monotonic() - begin < SLOW
            counts[outcome] += 1

        each()
        name = request.node.name.partition("[")[0].removeprefix("test_")
        print(
            f"\n| {name} | {counts.total():,} | {counts['right']:,} | {counts['refused']:,} | 0 |"
        )

    return run


def judged(run, *names):
    """ "right", or "refused" if `run()` raises an error of ours, whose first line has one of the
    names."""
    try:
        run()
    except (ValueError, OSError) as error:
        first = str(error).split("\n")[0]
        if not any(str(name) in first for name in names):
            raise
        return "refused"
    return "right"


# --- damage ---------------------------------------------------------------------------------------


def damaged(draw, content):
    """Other bytes than `content`."""
    content, size = bytearray(content), len(content)
    at = draw(st.integers(0, max(0, size - 1)))
    length = draw(st.integers(1, max(1, min(size, 64))))
    how = draw(
        st.sampled_from(["flip", "cut", "empty", "zeros", "insert", "drop", "garbage"])
    )
    if how == "flip" and size:
        content[at] ^= 1 << draw(st.integers(0, 7))
    elif how == "cut":
        del content[at:]
    elif how == "zeros":
        content[at : at + length] = bytes(len(content[at : at + length]))
    elif how == "insert":
        content[at:at] = draw(st.binary(min_size=1, max_size=8))
    elif how == "drop":
        del content[at : at + length]
    elif how == "garbage":
        content = draw(st.binary(max_size=64))
    else:
        content = b""
    return bytes(content)


def odd_json(draw, tree):
    """A tree with another value, a missing key, or one more."""
    tree = copy.deepcopy(tree)
    inner = tree
    while True:
        key = draw(
            st.sampled_from([*inner] if isinstance(inner, dict) else range(len(inner)))
        )
        if (
            not isinstance(inner[key], dict | list)
            or not inner[key]
            or draw(st.booleans())
        ):
            break
        inner = inner[key]
    how = draw(st.sampled_from(["other", "other", "missing", "more"]))
    if how == "missing":
        del inner[key]
    elif how == "more" and isinstance(inner, dict):
        inner[draw(st.text(max_size=5))] = draw(JSON)
    else:
        inner[key] = draw(JSON)
    return tree


def odd_file(draw, path):
    """Damages a file: as bytes, or, if it is JSON, as such."""
    content = path.read_bytes()
    if path.suffix == ".json" and draw(st.booleans()):
        path.write_text(json.dumps(odd_json(draw, json.loads(content))))
    else:
        path.write_bytes(damaged(draw, content))


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


# --- configs --------------------------------------------------------------------------------------


# Last names of keys that a shipped config leaves open.
OPEN = {
    key.rpartition(".")[2]
    for name in FILES
    for key, value in flatten(shipped(name).to_dict()).items()
    if value is None
}


def nonsense(key, value, default):
    """Whether a value that passed cannot be meant, by other rules than the schema's own."""
    if value is None and key.rpartition(".")[2] in OPEN:
        return False
    if isinstance(value, tuple | list):
        return any(nonsense(key, one, None) for one in value)
    if isinstance(value, bool | str | None):
        return isinstance(default, int | float) and not isinstance(default, bool)
    if not isinstance(value, int | float | np.number) or isinstance(
        default, bool | str
    ):
        return True
    if key.endswith("null_threshold"):
        return math.isnan(value)
    return not math.isfinite(value) or value < 0 or value > 2**32


def near(value):
    """Values that may well be meant."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [value, type(value)(value / 2), value * 2, value + 1]
    return [value]


def test_configs(fuzz):

    def case(draw):
        config = shipped(draw(st.sampled_from(FILES)))
        known = sorted({*keys(class_for(config.task, CONFIGS))} - {"task"})
        defaults = flatten(config.to_dict())
        changes = {}
        for key in draw(
            st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True)
        ):
            value = draw(st.one_of(VALUES, st.sampled_from(near(defaults[key]))))
            changes[key] = tuple(value) if isinstance(value, list) else value
            config = changed(config, key, changes[key])
        names = [key.rpartition(".")[2] for key in changes]
        outcome = judged(lambda: read(config), *names)
        if outcome == "right":
            values = flatten(
                config.to_dict()
            )  # A ConfigDict makes a float of an int or a bool.
            odd = [key for key in changes if nonsense(key, values[key], defaults[key])]
            assert not odd, f"{odd} passed"
            if config.task == "pretraining":
                # A stage that is given steps may be too long for the model.
                outcome = judged(
                    lambda: text_training.resolve(read(config)), *names, "length"
                )
        return outcome

    fuzz(case)


# --- commands -------------------------------------------------------------------------------------

REACHED = "what it does was reached"
WORK = [
    "pe_jax.trainer.tasks.finetuning.run",
    "pe_jax.trainer.reports.property_report.report.measure_properties",
    "pe_jax.trainer.reports.sinusoid_sweep.sweep_sinusoids",
    "pe_jax.trainer.reports.paper_tables.write_tables",
    "pe_jax.trainer.reports.run_export.export",
    "pe_jax.trainer.reports.comparison.compare",
    "pe_jax.trainer.reports.rescoring.rescore",
    "pe_jax.trainer.reports.pretraining_report.report_pretraining",
]
FLAGS = {
    "train.py": ["coordinator", "hosts", "host", "lost_after"],
    "eval.py": ["runs", "encodings", "checkpoints", "out"],
}
ODD = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
    st.sampled_from(
        ["0", "-1", "1e9", "nan", "inf", "True", "None", "[]", "(1,", "{}", "2,2"]
    ),
    st.sampled_from(
        [
            "all",
            "paper",
            "rope",
            "rope,none",
            "v5e:2x4",
            "v9:1",
            "host:1",
            ":",
            "/x",
            "~x",
        ]
    ),
)


def test_commands(fuzz, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reached = mock.Mock(side_effect=ValueError(REACHED))
    for name in WORK:
        monkeypatch.setattr(name, reached)
    monkeypatch.setattr(
        pretraining,
        "run",
        lambda config, folder, profile: (text_training.resolve(config), reached()),
    )
    monkeypatch.setattr(
        jax.distributed, "initialize", mock.Mock(side_effect=RuntimeError(REACHED))
    )

    def case(draw):
        script = draw(st.sampled_from([*FLAGS]))
        name = draw(st.sampled_from(FILES))
        config = f"--config={tiny_run.ROOT / 'configs' / name}.py"
        args = [
            draw(
                st.sampled_from(
                    [config] * 5 + [f"--config={tmp_path}", "--config=none.py"]
                )
            )
        ]
        args += draw(
            st.sampled_from(
                [[f"--workdir={tmp_path / 'run'}"]] * 3 + [[], ["--workdir="]]
            )
        )
        defaults = flatten(shipped(name).to_dict())
        keys = [f"config.{key}" for key in defaults]
        own = [*keys, *FLAGS[script], *FLAGS[script], "config.fo", "foo", "config"]
        for flag in draw(st.lists(st.sampled_from(own), max_size=3)):
            default = defaults.get(flag.removeprefix("config."), "")
            args.append(
                f"--{flag}={draw(st.one_of(ODD, st.sampled_from(near(default))))}"
            )
        code, _, err = call(script, *args)
        assert code == 1 and "Traceback" not in err, (args, err)
        lines = [line for line in err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, (args, err)
        assert not files(tmp_path)
        return "right" if REACHED in err else "refused"

    fuzz(case)


# --- weights and tokenizers -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The files of a published BERT, and its tokenizer in two formats."""
    folder = tmp_path_factory.mktemp("published") / "model"
    published_bert.write(folder, published_bert.whole_tensors(), published_bert.BERT)
    (folder / "vocab.txt").write_text("\n".join(published_bert.WORDS) + "\n")
    tokenizer = data.load_tokenizer(folder / "vocab.txt")
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True))
    return folder


def odd_header(draw, path):
    """Another header of a safetensors file, of the right length."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(odd_json(draw, json.loads(content[8:end]))).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])


def load_weights(folder):
    bert = interop.load_encoder(folder)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(bert.params))
    said = json.loads((folder / "config.json").read_text())
    stored = load_file(folder / "model.safetensors")
    words = stored["bert.embeddings.word_embeddings.weight"]
    assert words.shape == (said["vocab_size"], said["hidden_size"])
    assert bert.config.num_layers == said["num_hidden_layers"]
    got = bert.params["bert"]["token"]["embedding"]
    np.testing.assert_array_equal(np.asarray(got).reshape(words.shape), words)


def load_words(path):
    tokenizer = data.load_tokenizer(path)
    words = data.vocabulary(tokenizer)
    ids = tokenizer.encode("abc é \u2028 c", add_special_tokens=False).ids
    assert all(0 <= each < words.size for each in ids)
    assert (
        len({words.pad, words.single.before[0], words.single.after[-1], words.mask})
        == 4
    )


def test_weights(fuzz, model, tmp_path):
    def case(draw):
        folder = tmp_path / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(model, folder)
        path = draw(st.sampled_from(files(folder)))
        if path.suffix == ".safetensors" and draw(st.booleans()):
            odd_header(draw, path)
        else:
            odd_file(draw, path)
        if path.name in ("vocab.txt", "tokenizer.json"):
            return judged(lambda: load_words(path), path)
        outcome = judged(lambda: interop.load_position_table(folder), folder)
        return max(outcome, judged(lambda: load_weights(folder), folder))

    fuzz(case)


# --- text, questions and tfds records -------------------------------------------------------------

# Letters and stops of scripts that split sentences differently.
SCRIPTS = [
    "aé ßA. ",
    "яЖ. ",
    "語文。「」！",
    "ابج؟ ۔",
    "कख। ",
    "กข ",
    "한글. ",
    "𝒜😀\u0301\u200d. ",
    "\r\x0b\u2028\x85",
]
LANGUAGES = st.lists(st.sampled_from(SCRIPTS), min_size=1, max_size=2).flatmap(
    lambda scripts: st.text(st.sampled_from("".join(scripts)), max_size=300)
)


def test_languages(fuzz):
    """No character is lost between a document and its sentences."""

    def case(draw):
        document = draw(LANGUAGES) * draw(st.sampled_from([1, 1, 50]))
        parts = sentences(document)
        assert re.sub(r"\s", "", "".join(parts)) == re.sub(r"\s", "", document)
        assert all(part == part.strip() != "" for part in parts)
        return "right"

    fuzz(case)


LINES = st.one_of(
    st.sampled_from(
        [
            "[" * 10_000,
            '{"text": ' * 10_000,
            "9" * 5_000,
            r'{"text": "\ud800"}',
            "",
            " ",
        ]
    ),
    st.text(max_size=20),
    st.fixed_dictionaries({"text": st.one_of(LANGUAGES, JSON), "n": JSON}).map(
        json.dumps
    ),
    LANGUAGES.map(lambda text: json.dumps({"text": text}, ensure_ascii=False)),
)


def test_json_lines(fuzz, tmp_path):
    def case(draw):
        path = tmp_path / "a.jsonl"
        lines = draw(st.lists(LINES, max_size=3))
        with contextlib.suppress(UnicodeEncodeError):  # Half of a surrogate pair.
            path.write_text("\n".join(lines), encoding="utf-8")
        if draw(st.booleans()):
            path.write_bytes(damaged(draw, path.read_bytes()))
        return judged(
            lambda: "".join(data.open_corpus(str(path)).documents()).encode(), path
        )

    fuzz(case)


def test_questions(fuzz, tmp_path):
    original = json.loads(
        Path(finetuning_data.questions(tmp_path / "q.json", 3, 0)).read_text()
    )

    def case(draw):
        path = tmp_path / "odd.json"
        path.write_text(json.dumps(odd_json(draw, original)))
        return judged(lambda: questions_are_texts(path), path)

    def questions_are_texts(path):
        for question in read_official(path):
            "".join(
                [*question[:3], *(answer.text for answer in question.answers)]
            ).encode()
            assert all(type(answer.start) is int for answer in question.answers)

    fuzz(case)


def test_tfds_records(fuzz, tmp_path):
    examples = [{"text": f"Text {n}. " * 9} for n in range(50)]
    tfds_dataset.write(tmp_path, "FuzzedText", tfds_dataset.texts, {"train": examples})
    sound = {path: path.read_bytes() for path in files(tmp_path)}

    def read():
        corpus = data.open_corpus("tfds:fuzzed_text:train", data_dir=str(tmp_path))
        return list(corpus.documents())

    wanted = read()

    def case(draw):
        for path, content in sound.items():
            path.write_bytes(content)
        path = draw(st.sampled_from([*sound]))
        path.write_bytes(damaged(draw, sound[path]))
        return judged(lambda: check(read()), "fuzzed_text")

    def check(documents):
        assert documents == wanted

    fuzz(case)


# --- names and positions of encodings -------------------------------------------------------------

OPTIONS = sorted(
    {
        key
        for make in (*ENCODINGS.values(), *WRAPPERS.values())
        for key in options_of(make)
    }
)
SIMPLE = st.sampled_from([*ENCODINGS] * 3 + [*WRAPPERS, "cycle", "own", "ropee", ""])
OPTION_VALUES = st.one_of(NUMBERS, TEXTS, st.tuples(NUMBERS), st.booleans()).map(repr)


@st.composite
def call_of(draw, inside=None):
    """The name of an encoding, with arguments and options that may not fit it."""
    name = draw(SIMPLE)
    arguments = [] if inside is None else draw(st.lists(inside, max_size=2))
    known = (
        sorted(options_of((ENCODINGS | WRAPPERS).get(name, lambda: None))) or OPTIONS
    )
    for option in draw(st.lists(st.sampled_from(known), max_size=2)):
        arguments.append(f"{option}={draw(OPTION_VALUES)}")
    return f"{name}({', '.join(arguments)})" if arguments else name


NAMES = st.one_of(
    st.recursive(
        call_of(),
        lambda inner: st.one_of(
            call_of(inner), st.lists(inner, min_size=2, max_size=3).map("+".join)
        ),
        max_leaves=4,
    ),
    st.text("ropealib+(),.=0-[]{}'\0\ud800 ", max_size=20),
    st.sampled_from(
        [
            "+".join(["rope"] * 1_000),
            "per_layer(" * 200,
            "-" * 9_999,
            "a" + ".a" * 9_999,
        ]
    ),
)
SIZES = {"hidden_size": 8, "head_size": 4, "num_heads": 2, "max_length": 8}


def test_names(fuzz):
    def case(draw):
        name = draw(NAMES)
        known = [word for word in (*ENCODINGS, *OPTIONS) if word in name]
        return judged(
            lambda: encodings.parameter_count(encodings.from_name(name, **SIZES)),
            "position encoding",
            *known,
        )

    fuzz(case)


POSITIONS = st.one_of(
    st.just(range(4)),
    st.builds(
        range, st.integers(-3, 9), st.integers(-3, 13), st.sampled_from([1, 1, 2, -1])
    ),
    st.tuples(
        st.sampled_from([(4,), (4,), (4,), (1, 4), (3,), (4, 1), (0,), ()]),
        st.sampled_from(
            ["int32", "int8", "uint8", "bool", "float16", "float32", "complex64", "<U3"]
        ),
        st.lists(
            st.sampled_from([0, 1, 2, 3, 7, 8, 100, -1, float("nan"), float("inf")]),
            min_size=8,
            max_size=8,
        ),
    ),
)


def test_positions(fuzz):
    encoding = encodings.from_name("rope+alibi", **SIZES)
    x = np.asarray(jax.random.normal(jax.random.key(1), (1, 4, 2, 4)))

    def positions_of(drawn):
        if isinstance(drawn, range):
            return drawn
        shape, dtype, values = drawn
        whole = [int(value) if math.isfinite(value) else 5 for value in values]
        values = values if dtype == "float32" else whole
        with np.errstate(all="ignore"):
            return np.resize(np.array(values), shape).astype(dtype)

    def case(draw):
        positions = [
            positions_of(draw(POSITIONS)) for _ in range(draw(st.integers(1, 2)))
        ]
        return judged(lambda: check(positions), "ositions", "range")

    def check(positions):
        names = ("positions_q", "positions_k")
        context = encodings.Context(**dict(zip(names, positions)))
        out = attention(x, x, x, encoding, {}, context=context, implementation="naive")
        if all(np.isfinite(np.asarray(each)).all() for each in positions):
            assert out.shape == x.shape and np.isfinite(out).all()

    fuzz(case)


# --- caches ---------------------------------------------------------------------------------------


def test_caches(fuzz, tmp_path):
    corpus = data.open_corpus(str(tiny_run.write_books(tmp_path, count=3, length=4)))
    cache = tmp_path / "cache"

    def read():
        tokenizer = data.prepare_tokenizer(corpus, "", 80, cache)
        text = data.tokenize(corpus, tokenizer, cache)
        return [
            tokenizer.to_str(),
            *(np.array(getattr(text, n)).tolist() for n in text_arrays),
        ]

    text_arrays = ("tokens", "sentences", "documents")
    wanted = read()
    sound = shutil.copytree(cache, tmp_path / "sound")

    def case(draw):
        shutil.rmtree(cache)
        shutil.copytree(sound, cache)
        path = draw(
            st.sampled_from([path for path in files(cache) if path.suffix != ".lock"])
        )
        if draw(st.integers(0, 9)):
            odd_file(draw, path)
        else:
            path.unlink()
        with contextlib.redirect_stderr(io.StringIO()) as told:
            assert read() == wanted
        return "refused" if "recomputed" in told.getvalue() else "right"

    fuzz(case)
    assert len(list(cache.iterdir())) == 4  # With a lock each; no leftovers.


# --- the files of a run ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run of two steps, both saved; its state after each; and what resumes it."""
    folder = tmp_path_factory.mktemp("run")
    short = {
        "stage1.steps": 2,
        "stage2.steps": 0,
        "checkpoint_every": 1,
        "log_every": 1,
    }
    config = tiny_run.config(folder, **short, **tiny_run.NO_DROPOUT)
    states, given = {}, {}
    save, train = runs.Checkpoints.save, runs.train

    def saved(self, state, *rest):
        states[int(state.step)] = checksum(state)
        save(self, state, *rest)

    def trained(run, folder, profile):
        given["training"] = functools.partial(train, run)
        return train(run, folder, profile)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.Checkpoints, "save", saved)
        patch.setattr(pretraining, "train", trained)
        pretraining.run(config, folder / "run")
    return folder / "run", states, given["training"]


def test_files_of_a_run(fuzz, done, tmp_path, monkeypatch):
    """It resumes from a checkpoint as it was saved."""
    original, states, training = done
    resumed = []
    monkeypatch.setattr(
        runs.Loop, "fit", lambda self, state, *rest: resumed.append(state)
    )
    kept = [path.relative_to(original) for path in files(original)]
    kept = [
        path for path in kept if path.parts[0] not in ("lock", "tensorboard", "report")
    ]
    lines = (original / "metrics.jsonl").read_text()

    def resume(folder):
        data.load_tokenizer(folder / "tokenizer.json")
        training(folder=folder)
        found = read_metrics(folder)
        assert [line["step"] for line in found] == sorted(
            line["step"] for line in found
        )
        assert len(found) <= lines.count("\n")

    def case(draw):
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(original, folder)
        for path in draw(
            st.lists(st.sampled_from(kept), min_size=1, max_size=2, unique=True)
        ):
            odd_file(draw, folder / path)
        resumed.clear()
        with contextlib.redirect_stderr(io.StringIO()) as told:
            outcome = judged(lambda: resume(folder), folder)
        for state in resumed:
            assert checksum(state) == states.get(int(state.step), "another step")
        return "refused" if "cannot be read" in told.getvalue() else outcome

    fuzz(case)
