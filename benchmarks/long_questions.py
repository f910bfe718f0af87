"""How well does a fine-tuned BERT answer questions on texts that are longer than its table?

    python benchmarks/long_questions.py --readers=W/teacher_squad,W/rope_squad \
        --questions=dev-v1.1.json --out=long_questions.jsonl

--readers are runs of configs/squad.py. Each question of SQuAD gets its paragraph among others of
the same article, at a place that is drawn evenly, so that the input has --lengths tokens. The
measure is the F1 of the answers, by the quarter of the context that the answer is in. A run reads
the input at once, if its positions allow, and in windows of --window tokens that start --stride
apart. All runs get the same inputs. Each line of --out is one run, length and way of reading, and a
second start goes on from there; then it prints the table.

Hardware: any. A model of 6 layers of 384 takes about 10 minutes on an idle CPU core.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent.parent))

from pe_jax.common.markdown import raw_table
from pe_jax.models import BertConfig, BertForSpans
from pe_jax.trainer.configs.all_tasks import FINETUNING
from pe_jax.trainer.data import load_tokenizer, vocabulary
from pe_jax.trainer.data.questions import Question, read_official
from pe_jax.trainer.data.rows import pad_rows
from pe_jax.trainer.data.squad import evaluation_windows
from pe_jax.trainer.tasks.run import saved_tokenizer
from pe_jax.trainer.tasks.squad_answers import best_answers
from pe_jax.trainer.tasks.squad_scores import f1
from pe_jax.trainer.training.checkpointing import newest_params
from pe_jax.trainer.training.pytrees import Params
from pe_jax.trainer.training.workdir import load_config

_READERS = flags.DEFINE_list(
    "readers", None, "Runs of configs/squad.py.", required=True
)
_QUESTIONS = flags.DEFINE_string(
    "questions", None, "SQuAD v1.1's dev file.", required=True
)
_OUT = flags.DEFINE_string("out", None, "JSON lines, to go on from.", required=True)
_LENGTHS = flags.DEFINE_list("lengths", ["512", "1024", "2048"], "Of inputs.")
_COUNT = flags.DEFINE_integer("count", 100, "Questions of each length.")
_WINDOW = flags.DEFINE_integer("window", 256, "Tokens of a window.")
_STRIDE = flags.DEFINE_integer(
    "stride", 128, "Tokens from the start of a window to the next."
)
_BATCH = 2048  # Tokens read at a time.


def long_inputs(
    path: str, tokenizer: Tokenizer, lengths: list[int]
) -> dict[int, list[Question]]:
    """Return `_COUNT` questions with contexts that fill each length, the same for all lengths."""
    articles = json.loads(Path(path).read_text(encoding="utf-8"))["data"]
    texts = [[paragraph["context"] for paragraph in x["paragraphs"]] for x in articles]
    article_of = {context: article for article in texts for context in article}
    questions, rng = read_official(path), np.random.default_rng(0)
    inputs: dict[int, list[Question]] = {length: [] for length in lengths}
    for number in rng.permutation(len(questions)):
        question = questions[number]
        others = [
            text for text in article_of[question.context] if text != question.context
        ]
        other = " ".join(rng.permutation(others))
        count = functools.partial(tokenizer.encode, add_special_tokens=False)
        used = len(count(question.question)) + len(count(question.context))
        used += (
            vocabulary(tokenizer).pair.size + 2
        )  # The text's ends may be tokenized otherwise.
        ends = count(other).offsets  # Of characters.
        if used > min(lengths) or used + len(ends) < max(lengths):
            continue
        place = rng.random()
        for length in lengths:
            before = round(place * (length - used))
            split, end = (ends[n - 1][1] if n else 0 for n in (before, length - used))
            context = f"{other[:split]} {question.context} {other[split:end]}"
            answers = tuple(
                x._replace(start=x.start + split + 1) for x in question.answers
            )
            inputs[length].append(question._replace(context=context, answers=answers))
        if len(inputs[lengths[0]]) == _COUNT.value:
            break
    return inputs


def load(folder: str) -> tuple[BertConfig, Params]:
    """Return the model of a fine-tuning run in float32, with the parameters of its first seed."""
    model = load_config(Path(folder), FINETUNING).model
    model = dataclasses.replace(model, dtype="float32")
    return model, jax.tree.map(lambda x: x[0], newest_params(Path(folder))[1])


@functools.partial(jax.jit, static_argnums=0)
def logits(
    config: BertConfig, params: Params, batch: dict[str, np.ndarray]
) -> tuple[jax.Array, jax.Array]:
    inputs = (batch["tokens"], batch["token_type_ids"], batch["mask"])
    spans: Any = BertForSpans(config).apply({"params": params}, *inputs)
    return spans[0], spans[1]


def scores_of(folder: str, questions: list[Question], window: int) -> dict[str, object]:
    """Return the mean F1 of a run's answers, and by the quarter of the context with the answer."""
    tokenizer = load_tokenizer(str(saved_tokenizer(Path(folder))))
    config, params = load(folder)
    windows = evaluation_windows(questions, tokenizer, window, stride=_STRIDE.value)
    count, rows = len(windows.question), max(1, _BATCH // window)
    numbers = np.minimum(np.arange(-(-count // rows) * rows), count - 1).reshape(
        -1, rows
    )
    batches = [
        logits(config, params, pad_rows(windows.rows, x, window)) for x in numbers
    ]
    starts, ends = (
        np.concatenate([np.asarray(x) for x in part])[:count] for part in zip(*batches)
    )
    quarters: list[list[float]] = [[], [], [], []]
    for question, answer in zip(
        questions, best_answers(windows, starts, ends), strict=True
    ):
        depth = question.answers[0].start / len(question.context)
        best = max(f1(answer.text, gold.text, empty=0) for gold in question.answers)
        quarters[int(4 * depth)].append(100 * best)
    return {
        "questions": [len(scores) for scores in quarters],
        "f1": float(np.mean(np.concatenate(quarters))),
        "f1_by_quarter": [float(np.mean(scores)) for scores in quarters],
    }


def results_table(records: list[dict]) -> list[str]:
    """Return one row of Markdown for each run and way of reading: the mean, and the quarters."""
    lengths = sorted({record["length"] for record in records})
    rows = []
    for reader, reads in dict.fromkeys((x["run"], x["reads"]) for x in records):
        cells = []
        for length in lengths:
            key = (reader, reads, length)
            found = [x for x in records if (x["run"], x["reads"], x["length"]) == key]
            places = (
                ", ".join(f"{x:.0f}" for x in found[0]["f1_by_quarter"])
                if found
                else ""
            )
            cells.append(f"{found[0]['f1']:.1f} ({places})" if found else "–")
        rows.append([reader, reads, *cells])
    return raw_table(["run", "reads", *map(str, lengths)], rows)


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)  # Orbax prints a dozen lines for each model.
    out = Path(_OUT.value)
    records = (
        [json.loads(line) for line in out.read_text().splitlines()]
        if out.exists()
        else []
    )
    done = {(record["run"], record["length"], record["reads"]) for record in records}
    tokenizer = load_tokenizer(str(saved_tokenizer(Path(_READERS.value[0]))))
    tokenizer.no_truncation()
    inputs = long_inputs(_QUESTIONS.value, tokenizer, sorted(map(int, _LENGTHS.value)))
    for length, questions in inputs.items():
        print(f"{length} tokens: {len(questions)} questions", flush=True)
        for folder in _READERS.value:
            rows = load(folder)[0].encoding().max_length
            for reads, window in (("at once", length), ("windows", _WINDOW.value)):
                fits = rows is None or window <= rows
                if not fits or (folder, length, reads) in done:
                    continue
                begin = time.monotonic()
                scores = scores_of(folder, questions, window)
                record = {"run": folder, "length": length, "reads": reads, **scores}
                records.append(record)
                print(record, f"{time.monotonic() - begin:.0f} s", flush=True)
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
    print("\n".join(results_table(records)))


if __name__ == "__main__":
    app.run(main)
