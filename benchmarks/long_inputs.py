"""How well does a BERT with distilled positions read inputs that are longer than its teacher's?

    python benchmarks/long_inputs.py --teacher=BERT --models=W/rope,W/alibi \
        --text='books/valid.jsonl.xz' --out=long_inputs.jsonl

Every document gives some pairs of neighbouring pieces of each length. Three measures of a model:

- r2: of the last layer's states against the teacher's, up to the length of the teacher's table;
- retrieval: the share of pieces whose neighbour is the nearest of all second pieces, by the cosine
  of the mean hidden states, and the loss of that choice: cross-entropy of 20 times the cosines;
- masked_lm_loss: nats a masked token, for a teacher that has a masked-LM head. Without one, train
  it with the encoder frozen and name the run with --head.

The teacher itself is measured beyond its table with a table stretched to each length. Each line of
--out is one model and length, and a second start goes on from there; then it prints the table.

Hardware: any; a CPU core takes minutes for a model of 6 layers of 384.
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
import jax.numpy as jnp
import numpy as np
from absl import app, flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from pe_jax.data import Vocabulary, load_tokenizer, open_corpus, vocabulary
from pe_jax.data.masking import mask_words
from pe_jax.data.tokenized import tokenize_documents
from pe_jax.models import BertConfig, BertForMaskedLM, hidden_states
from pe_jax.tasks.losses import cross_entropy
from pe_jax.tasks.pretrained_source import PretrainedSource
from pe_jax.training import sharding
from pe_jax.training.pytrees import Params

_TEACHER = flags.DEFINE_string("teacher", None, "Folder of a published BERT.", required=True)
_HEAD = flags.DEFINE_string("head", "", "Run of a masked-LM head for the teacher.")
_MODELS = flags.DEFINE_list("models", [], "Runs of position distillation.")
_TEXT = flags.DEFINE_string("text", None, "Source of long documents.", required=True)
_OUT = flags.DEFINE_string("out", None, "JSON lines, to go on from.", required=True)
_LENGTHS = flags.DEFINE_list("lengths", ["128", "512", "1024", "2048"], "Of inputs.")
_PAIRS = flags.DEFINE_integer("pairs", 2, "Of a document.")
_METHODS = ("interpolate", "repeat")  # Of a longer table for the teacher.


class Model(NamedTuple):
    """A model of some length.

    Attributes:
      params: of `BertForMaskedLM`; without a head, `bert` alone.
    """

    config: BertConfig
    params: Params


class Pieces(NamedTuple):
    """Pieces of long documents, [CLS] and [SEP] around each.

    Attributes:
      first, second: `[N, L]` neighbours.
      masked: `first` with masks and their targets, see `mask_words`.
    """

    first: np.ndarray
    second: np.ndarray
    masked: dict[str, np.ndarray]


def pieces(documents: list[np.ndarray], length: int, words: Vocabulary) -> Pieces:
    """Cut `_PAIRS` pairs out of each document, at starts that do not depend on `length`."""
    rng, template = np.random.default_rng(0), words.single
    size, room = length - template.size, 2 * max(map(int, _LENGTHS.value))
    ends = len(template.before), len(template.after)
    inner = np.pad(np.ones(size, bool), ends)

    first, second, masked = [], [], []
    for tokens in documents:
        for start in np.linspace(0, len(tokens) - room, _PAIRS.value, dtype=int):
            text = tokens[start : start + size]
            first.append(template.join(text["id"]))
            second.append(template.join(tokens[start + size : start + 2 * size]["id"]))
            begins = np.pad(text["begins"], ends)
            masked.append(mask_words(first[-1], begins, inner, words, rng, round(0.15 * size)))
    together = {name: np.stack([row[name] for row in masked]) for name in masked[0]}
    return Pieces(np.stack(first), np.stack(second), together)


def read(folder: str, max_length: int | None = None, resize: str = "") -> Params:
    """Return the parameters of a run, or of a published BERT."""
    place = functools.partial(sharding.state_shardings, sharding.data_mesh(), "data")
    return PretrainedSource(folder).params(place, max_length, resize)


def load(folder: str, head: Params | None, length: int, resize: str = "") -> Model:
    """Return a model for inputs of `length`; `resize` is the method for a table."""
    model = PretrainedSource(folder).model
    if resize:
        model = dataclasses.replace(model, max_length=max(length, model.max_length))
    bert = read(folder, model.max_length, resize)["bert"]
    config = dataclasses.replace(model, dtype="float32")
    return Model(config, {"bert": bert} | ({"masked_lm": head} if head else {}))


@functools.partial(jax.jit, static_argnums=0)
def last_states(config: BertConfig, params: Params, tokens: jax.Array) -> jax.Array:
    return hidden_states(config, params["bert"], tokens)[-1]


@functools.partial(jax.jit, static_argnums=0)
def masked_losses(
    config: BertConfig, params: Params, tokens: jax.Array, at: jax.Array, targets: jax.Array
) -> jax.Array:
    logits = BertForMaskedLM(config).apply({"params": params}, tokens, at)
    assert isinstance(logits, jax.Array)  # Without collections that change.
    return cross_entropy(logits, targets)[0]


def in_batches(function, *arrays: np.ndarray) -> np.ndarray:
    """Apply a function to rows of arrays, 2,048 tokens at a time."""
    rows = max(1, 2048 // arrays[0].shape[1])
    starts = range(0, len(arrays[0]), rows)
    return np.concatenate([function(*(x[i : i + rows] for x in arrays)) for i in starts])


def scores(model: Model, data: Pieces, teacher: np.ndarray | None) -> dict[str, float]:
    """Measure a model on pieces; `teacher` are the teacher's states `[N, L, D]` of the first."""
    states = functools.partial(last_states, model.config, model.params)
    first = in_batches(states, data.first)
    second = in_batches(lambda tokens: states(tokens).mean(1), data.second)
    cosines = unit(first.mean(1)) @ unit(second).T
    right = np.arange(len(cosines))
    measured = {
        "retrieval": float((cosines.argmax(1) == right).mean()),
        "retrieval_loss": float(cross_entropy(jnp.array(20 * cosines), jnp.array(right))[0].mean()),
    }
    if "masked_lm" in model.params:
        losses = functools.partial(masked_losses, model.config, model.params)
        masked = (data.masked[f"masked_{name}"] for name in ("positions", "tokens", "weights"))
        at, targets, weights = masked
        by_token = in_batches(losses, data.masked["tokens"], at, targets)
        measured["masked_lm_loss"] = float(np.average(by_token, weights=weights))
    if teacher is not None:
        distance = ((first - teacher) ** 2).sum(-1).mean()
        measured["r2"] = float(1 - distance / teacher.var((0, 1)).sum())
    return measured


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def table(records: list[dict]) -> list[str]:
    """Return one row of Markdown for each model and measure."""
    lengths = sorted({record["length"] for record in records})
    names = dict.fromkeys(record["model"] for record in records)
    lines = [
        f"| model | measure | {' | '.join(map(str, lengths))} |",
        "|" + "---|" * (2 + len(lengths)),
    ]
    for name in names:
        for measure in ("r2", "retrieval", "retrieval_loss", "masked_lm_loss"):
            by_length = {x["length"]: x.get(measure) for x in records if x["model"] == name}
            values = [by_length.get(length) for length in lengths]
            if not any(value is not None for value in values):
                continue
            cells = ["–" if value is None else f"{value:.3f}" for value in values]
            lines.append(f"| {name} | {measure} | {' | '.join(cells)} |")
    return lines


def main(_: list[str]) -> None:
    out = Path(_OUT.value)
    records = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(record["model"], record["length"]) for record in records}
    start = PretrainedSource(_TEACHER.value)
    head = read(_HEAD.value or _TEACHER.value).get("masked_lm")
    tokenizer = load_tokenizer(str(start.tokenizer()))
    lengths = sorted(map(int, _LENGTHS.value))
    documents = [
        tokens for tokens, _ in tokenize_documents(open_corpus(_TEXT.value).documents(), tokenizer)
    ]
    documents = [tokens for tokens in documents if len(tokens) >= 2 * lengths[-1]]
    print(f"{len(documents)} documents of at least {2 * lengths[-1]:,} tokens", flush=True)
    for length in lengths:
        data = pieces(documents, length, vocabulary(tokenizer))
        fits = length <= start.model.max_length
        teacher = None
        if fits:
            model = load(_TEACHER.value, head, length)
            states = functools.partial(last_states, model.config, model.params)
            teacher = in_batches(states, data.first)
        todo = [(f"teacher, {method}", _TEACHER.value, method) for method in _METHODS]
        todo = [("teacher", _TEACHER.value, "")] if fits else todo
        todo += [(Path(folder).name, folder, "") for folder in _MODELS.value]
        for name, folder, method in todo:
            if (name, length) in done:
                continue
            begin = time.monotonic()
            measured = scores(load(folder, head, length, method), data, teacher)
            records.append({"model": name, "length": length, "rows": len(data.first), **measured})
            print(records[-1], f"{time.monotonic() - begin:.0f} s", flush=True)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(records[-1]) + "\n")
    print("\n".join(table(records)))


if __name__ == "__main__":
    app.run(main)
