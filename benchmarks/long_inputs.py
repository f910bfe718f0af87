"""How well does a BERT with distilled positions read inputs that are longer than its teacher's?

    python benchmarks/long_inputs.py --teacher=BERT --models=W/rope,W/t5 \
        --text='books/valid.jsonl.xz' --out=long.jsonl

Cuts passages of each length out of long documents, and a sentence of 32 tokens out of each quarter
of a passage. Two measures, by the quarter:

- found: the share of sentences whose own passage has the nearest vector of all, by the cosine of
  mean hidden states of the last layer.
- r2: of the last layer's states, against the teacher's in overlapping windows (`teacher_windows`).

The models read a passage at once. The teacher reads it up to the end of its table ("truncated"),
with a table stretched to the length ("stretched"), and in windows: their vectors are averaged
("mean of windows") or compared one by one ("best window"), or the states that a student imitates
are averaged ("mean of targets"). Each line of --out is one model and length, and a second start
goes on from there; then it prints the table, and how many more sentences each model finds than the
readers of the same passages, with a 95 % interval by bootstrap over documents.

Hardware: any. A model of 6 layers of 384 takes about 5 minutes on an idle CPU core.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from absl import app, flags, logging

sys.path.insert(0, str(Path(__file__).parent.parent))

from pe_jax.common.markdown import raw_table
from pe_jax.models import BertConfig, hidden_states
from pe_jax.trainer.data import Vocabulary, load_tokenizer, open_corpus, vocabulary
from pe_jax.trainer.data.teacher_windows import teacher_windows
from pe_jax.trainer.data.tokenized import tokenize_documents
from pe_jax.trainer.tasks.pretrained_source import PretrainedSource
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.pytrees import Params

_TEACHER = flags.DEFINE_string(
    "teacher", None, "Folder of a published BERT.", required=True
)
_MODELS = flags.DEFINE_list("models", [], "Runs of position distillation.")
_TEXT = flags.DEFINE_string("text", None, "Source of long documents.", required=True)
_OUT = flags.DEFINE_string("out", None, "JSON lines, to go on from.", required=True)
_LENGTHS = flags.DEFINE_list("lengths", ["256", "512", "1024", "2048"], "Of passages.")
_PASSAGES = flags.DEFINE_integer("passages", 100, "Of each length.")
_WINDOW = flags.DEFINE_integer("window", 256, "Tokens of the teacher's windows.")
_SENTENCE = 32  # Tokens without special ones.
_BATCH = 2048  # Tokens read at a time.


class Passages(NamedTuple):
    """N passages of L tokens, and four sentences of each, special tokens around all of them."""

    tokens: np.ndarray  # [N, L]
    sentences: np.ndarray  # [N * 4, 34] for BERT


class Model(NamedTuple):
    config: BertConfig
    params: Params  # Of `Bert`.


def cut(documents: list[np.ndarray], length: int, words: Vocabulary) -> Passages:
    """Draw passages from the documents in turn."""
    rng, template = np.random.default_rng(length), words.single
    size = length - template.size
    passages, sentences = [], []
    for number in range(_PASSAGES.value):
        document = documents[number % len(documents)]
        start = rng.integers(len(document) - size)
        text = document[start : start + size]
        passages.append(template.join(text))
        for quarter in range(4):
            first = int(
                rng.integers(quarter * size // 4, (quarter + 1) * size // 4 - _SENTENCE)
            )
            sentences.append(template.join(text[first : first + _SENTENCE]))
    return Passages(np.stack(passages), np.stack(sentences))


def load(folder: str, length: int = 0) -> Model:
    """Return a model in float32, with a table of positions stretched to `length` if given."""
    source = PretrainedSource(folder)
    place = functools.partial(sharding.state_shardings, sharding.data_mesh(), "data")
    config = dataclasses.replace(source.model, dtype="float32")
    if length:
        config = dataclasses.replace(config, max_length=length)
    return Model(config, source.params(place, config.max_length, "interpolate")["bert"])


@functools.partial(jax.jit, static_argnums=0)
def last_states(config: BertConfig, params: Params, tokens: jax.Array) -> jax.Array:
    return hidden_states(config, params, tokens)[-1]


def states(model: Model, tokens: np.ndarray) -> np.ndarray:
    """Return the last hidden states `[N, L, D]` of rows `[N, L]`, in batches of one shape."""
    rows = max(1, min(len(tokens), _BATCH // tokens.shape[1]))
    padded = np.pad(tokens, ((0, -len(tokens) % rows), (0, 0)), mode="edge")
    batches = padded.reshape(-1, rows, tokens.shape[1])
    return np.concatenate([np.asarray(last_states(*model, x)) for x in batches])[
        : len(tokens)
    ]


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def in_windows(teacher: Model, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the teacher's states `[N, L, D]` from windows, and the unit vectors `[N, K, D]` of the
    means of the windows."""
    cut = teacher_windows(
        np.ones(tokens.shape[1], np.int32), min(_WINDOW.value, tokens.shape[1])
    )
    used = cut["window_document_ids"].any(1)
    shape = (len(tokens), used.sum(), -1)
    windows = tokens[:, cut["windows"][used]].reshape(-1, cut["windows"].shape[1])
    read = states(teacher, windows)
    by_token = read.reshape(len(tokens), -1, read.shape[-1])[:, cut["window_places"]]
    return by_token, unit(read.mean(1)).reshape(shape)


def quarters(by_sentence: np.ndarray) -> list[float]:
    """Return the means of `[N, 4, ...]` over all axes but the second."""
    return np.moveaxis(by_sentence, 1, 0).reshape(4, -1).mean(1).tolist()


def found(sentences: np.ndarray, passages: np.ndarray) -> dict[str, list]:
    """Return the share of sentences `[N * 4, D]` whose passage is the nearest, by quarter, and
    which are: 4 digits for each passage.

    Args:
      passages: unit vectors `[N, D]`, or `[N, K, D]`, of which the nearest counts.
    """
    vectors = passages.reshape(len(passages), -1, passages.shape[-1])
    nearest = np.einsum("sd,nkd->snk", unit(sentences), vectors).max(-1).argmax(-1)
    hits = (nearest.reshape(-1, 4) == np.arange(len(passages))[:, None]).astype(int)
    return {"found": quarters(hits), "hits": ["".join(map(str, row)) for row in hits]}


def r2(ours: np.ndarray, theirs: np.ndarray) -> list[float]:
    """Return R² in each quarter, against the variance of all tokens."""
    error = ((ours - theirs) ** 2).sum(-1)
    variance = ((theirs - theirs.mean((0, 1))) ** 2).sum(-1).mean()
    return [
        float(1 - part.mean() / variance) for part in np.array_split(error, 4, axis=1)
    ]


def measure(
    name: str, data: Passages, teacher: Model, targets: np.ndarray
) -> dict[str, list]:
    """Return the scores of a model that reads passages at once, by its name in the results."""
    length, model, tokens = data.tokens.shape[1], teacher, data.tokens
    rows = teacher.config.encoding().max_length or length
    if name == "teacher, stretched":
        model = load(_TEACHER.value, max(rows, length))
    elif name == "teacher, truncated":
        tokens = np.concatenate([tokens[:, : rows - 1], tokens[:, -1:]], 1)[:, :length]
    else:
        model = load(name)
    ours = states(model, tokens)
    sentences = states(model, data.sentences).mean(1)
    scores = found(sentences, unit(ours.mean(1)))
    return scores | ({"r2": r2(ours, targets)} if ours.shape == targets.shape else {})


def results_table(records: list[dict]) -> list[str]:
    """Return one row of Markdown for each model and measure: the mean, and the four quarters."""
    lengths = sorted({record["length"] for record in records})
    rows = []
    for name in dict.fromkeys(record["model"] for record in records):
        for measure in ("found", "r2"):
            by_length = {
                x["length"]: x.get(measure) for x in records if x["model"] == name
            }
            if not any(by_length.values()):
                continue
            cells = []
            for values in map(by_length.get, lengths):
                by_place = ", ".join(f"{x:.2f}" for x in values or ())
                cells.append(f"{np.mean(values):.3f} ({by_place})" if values else "–")
            rows.append([name, measure, *cells])
    return raw_table(["model", "measure", *map(str, lengths)], rows)


def differences(records: list[dict]) -> list[str]:
    """Return a table of the sentences that a model finds more than each other reader."""
    rows, rng = [], np.random.default_rng(0)
    records = [record for record in records if "hits" in record]
    for a in records:
        others = [b for b in records if b["length"] == a["length"] and b is not a]
        for b in others if not a["model"].startswith("teacher, ") else ():
            hits = [
                np.array([list(map(int, row)) for row in x["hits"]]).mean(1)
                for x in (a, b)
            ]
            document = np.arange(len(hits[0])) % a["documents"]  # As in `cut`.
            sums, counts = (
                np.bincount(document, hits[0] - hits[1]),
                np.bincount(document),
            )
            drawn = rng.integers(len(sums), size=(10_000, len(sums)))
            low, high = np.quantile(
                sums[drawn].sum(1) / counts[drawn].sum(1), (0.025, 0.975)
            )
            mean = sums.sum() / counts.sum()
            names = [a["model"], b["model"], str(a["length"])]
            rows.append([*names, f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"])
    return raw_table(["model", "against", "length", "found, difference"], rows)


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)  # Orbax prints a dozen lines for each model.
    out = Path(_OUT.value)
    records = (
        [json.loads(line) for line in out.read_text().splitlines()]
        if out.exists()
        else []
    )
    done = {(record["model"], record["length"]) for record in records}
    tokenizer = load_tokenizer(str(PretrainedSource(_TEACHER.value).tokenizer()))
    texts = tokenize_documents(open_corpus(_TEXT.value).documents(), tokenizer)
    lengths = sorted(map(int, _LENGTHS.value))
    documents = [tokens["id"] for tokens, _ in texts if len(tokens) >= 4 * lengths[-1]]
    print(
        f"{len(documents)} documents of at least {4 * lengths[-1]:,} tokens", flush=True
    )
    windowed = [
        f"teacher, {x}" for x in ("mean of windows", "best window", "mean of targets")
    ]
    for length in lengths:
        data, teacher = (
            cut(documents, length, vocabulary(tokenizer)),
            load(_TEACHER.value),
        )
        rows = teacher.config.encoding().max_length or length
        names = ["teacher, truncated", *windowed, *_MODELS.value]
        names += ["teacher, stretched"] if length > rows else []
        todo = [name for name in names if (name, length) not in done]
        if not todo:
            continue
        targets, windows = in_windows(teacher, data.tokens)
        for name in todo:
            begin = time.monotonic()
            if name in windowed:
                vectors = (unit(windows.mean(1)), windows, unit(targets.mean(1)))
                sentences = states(teacher, data.sentences).mean(1)
                scores = found(sentences, vectors[windowed.index(name)])
            else:
                scores = measure(name, data, teacher, targets)
            sizes = {"passages": len(windows), "documents": len(documents)}
            records.append({"model": name, "length": length, **sizes, **scores})
            print(records[-1], f"{time.monotonic() - begin:.0f} s", flush=True)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(records[-1]) + "\n")
    print("\n".join([*results_table(records), "", *differences(records)]))


if __name__ == "__main__":
    app.run(main)
