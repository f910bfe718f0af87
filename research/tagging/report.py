"""The results of the study of tagging: README.md beside this file.

python research/tagging/report.py
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pe_jax.common.files import write_text
from pe_jax.common.markdown import raw_table
from research.json_files import read_json_lines
from research.tagging import plan, runs, verdicts
from research.which_encoding.names import SECOND_SEEDS, TEN_MILLION

FOLDER = Path(__file__).resolve().parent
_ABOUT = """\
# Which encoding for tagging?

Encoders that differ in their positions alone, fine-tuned on tagging and on sentence tasks, to tell
whether an encoding is worse at tagging, or worse. How to tag is on
[its own page](../../docs/tagging.md).

```sh
python research/tagging/run.py --books=BOOKS --tagging=DATA --minilm=MINILM --scratch=S \\
    --tfds=TFDS --workdir=W
python research/tagging/report.py
```

Each model on each task is a line of `results.jsonl`; the command resumes, and
`--origins=published,distilled --tasks=ncbi` runs a part of it. **{count} of {planned} lines are
there.**

- **From scratch**: the BERT-minis of ten million tokens of
  [which_encoding](../which_encoding/README.md), {scratch} encodings, {scratch_again} of them twice.
- **Distilled**: MiniLM with its positions replaced by [distillation](../../docs/distillation.md) on
  a million tokens, {distilled} encodings, each twice. `learned_absolute` is a new table. New
  positions learn 5 times as fast as all other parameters, {other_ratios}.
- **Published**: MiniLM, untouched.
- **Fine-tuning** has {seeds} seeds in one program, and the last step counts. Rows have {length}
  tokens.
- **Tasks**: NCBI disease and WNUT-17 (strict F1 of entities in the test file), UD English-EWT XPOS
  (accuracy of words in the test file); with `--tfds` CoLA (Matthews) and SST-2 (accuracy).

DATA holds `ncbi_disease/{{train,devel,test}}.tsv` (from spyysalo/ncbi-disease),
`wnut17/{{train,dev,test}}.conll` (from leondz/emerging_entities_17), and
`ud_ewt/{{train,dev,test}}.tsv` of word, UPOS and XPOS (from UniversalDependencies/UD_English-EWT).
"""
_POINT = """
## Operating point

The study says something about positions only if `none` is clearly below the untouched model, and
the untouched model near what models of its size reach. Scores in points, mean over the seeds of
fine-tuning; *trivial* is each word's most frequent label in training, or the most frequent class.

"""
_ORIGIN = {
    plan.DISTILLED: "MiniLM with other positions",
    plan.SCRATCH: "BERT-minis from scratch",
}
_DIFFERENCES = """
## {title}

Scores in points, mean over {models}. In brackets, the difference to `{reference}` with an interval
that holds for all encodings of a column together with 95 % confidence; it includes the spread
between {models}, and is missing where no encoding has two.

"""

_VERDICTS = """
What this decides about differences to `{reference}`, by task:

"""
_OF_MODELS = """
How well they were trained, on held-out text: masked-LM loss in nats, or R² of the last states,
where 1 is the teacher, and of their changes when words or sentences of a text are shuffled.

"""
_OF_MODEL = {
    "r2": "R²",
    "order/words/token_r2": "words shuffled",
    "order/sentences/token_r2": "sentences shuffled",
    "masked_lm_loss": "masked-LM loss",
}

Line = Mapping[str, Any]


def mean_score(line: Line) -> float:
    metric = plan.TASKS[line["task"]].metric
    return statistics.fmean(line["scores"][metric])


def baseline(line: Line) -> str:
    """Return the score of the trivial answer, where the task has one."""
    value = line["baseline"].get(plan.TASKS[line["task"]].metric)
    return "–" if value is None else f"{value:.1f}"


def operating_point(lines: Sequence[Line]) -> list[str]:
    """Return the lines of the table of the untouched model, `none`, and the trivial answer."""
    rows = []
    for task in plan.TASKS:
        published = [
            line
            for line in lines
            if line["task"] == task and line["origin"] == plan.PUBLISHED
        ]
        if not published:
            continue
        (untouched,) = published
        none = verdicts.scores_of(lines, plan.DISTILLED, task).get("none", [])
        cells = [task, plan.TASKS[task].metric, baseline(untouched)]
        cells.append(f"{statistics.fmean(none):.1f}" if none else "–")
        cells.append(f"{mean_score(untouched):.1f}")
        settings = f"{untouched['learning_rate']:g}, {untouched['epochs']:g}"
        rows.append([*cells, settings])
    header = [
        "task",
        "score",
        "trivial",
        "`none`",
        "untouched",
        "learning rate, epochs",
    ]
    return raw_table(header, rows)


def score_cell(values: Sequence[float], difference: verdicts.Difference | None) -> str:
    score = f"{statistics.fmean(values):.1f}"
    if difference is None:
        return score
    if difference.width is None:
        return f"{score} ({difference.value:+.1f})"
    return f"{score} ({difference.value:+.1f} ± {difference.width:.1f})"


def origin_table(lines: Sequence[Line], origin: str) -> list[str]:
    """Return the lines of the table of the models of an origin: scores and differences by encoding
    and task. Empty without results."""
    by_task = {task: verdicts.scores_of(lines, origin, task) for task in plan.TASKS}
    by_task = {task: scores for task, scores in by_task.items() if scores}
    positions = dict.fromkeys(
        position for scores in by_task.values() for position in scores
    )
    differences = {
        task: verdicts.differences(scores) for task, scores in by_task.items()
    }
    rows = []
    for position in positions:
        models = max(len(scores.get(position, [])) for scores in by_task.values())
        cells = [f"`{position}`", str(models)]
        for task, scores in by_task.items():
            if position in scores:
                difference = differences[task].get(position)
                cells.append(score_cell(scores[position], difference))
            else:
                cells.append("–")
        rows.append(cells)
    return raw_table(["encoding", "models", *by_task], rows) if rows else []


def verdict_lines(lines: Sequence[Line], origin: str) -> list[str]:
    """Return a list item by task: which encodings are better or worse, and which may be either."""
    items = []
    for task in plan.TASKS:
        differences = verdicts.differences(verdicts.scores_of(lines, origin, task))
        by_verdict: dict[str, list[str]] = {}
        for position, difference in differences.items():
            by_verdict.setdefault(difference.verdict, []).append(f"`{position}`")
        found = [f"{verdict}: {', '.join(x)}" for verdict, x in by_verdict.items()]
        if found:
            items.append(f"- **{task}**: {'; '.join(found)}.")
    return items


def training_table(lines: Sequence[Line], origin: str) -> list[str]:
    """Return the lines of the table of how well the models of an origin were trained, mean over
    models. Empty without results."""
    scores_of_models = {
        (line["position"], line["seed"]): line["of_model"]
        for line in lines
        if line["origin"] == origin
    }
    by_position: dict[str, list[Mapping[str, float]]] = {}
    for (position, _), scores in scores_of_models.items():
        by_position.setdefault(position, []).append(scores)
    names = {name for scores in scores_of_models.values() for name in scores}
    shown = [name for name in _OF_MODEL if name in names]
    rows = []
    for position, models in by_position.items():
        cells = [f"`{position}`"]
        for name in shown:
            values = [scores[name] for scores in models if name in scores]
            cells.append(f"{statistics.fmean(values):z.2f}" if values else "–")
        rows.append(cells)
    header = ["encoding", *(_OF_MODEL[name] for name in shown)]
    return raw_table(header, rows) if shown else []


def page(lines: Sequence[Line]) -> str:
    """Return README.md."""
    planned = len(list(plan.models())) * len(plan.TASKS)
    other_ratios = [f"`{name}` {ratio:g} times" for name, ratio in plan.RATIOS.items()]
    about = _ABOUT.format(
        other_ratios=", ".join(other_ratios),
        count=len(lines),
        planned=planned,
        scratch=len(TEN_MILLION),
        scratch_again=len(SECOND_SEEDS),
        distilled=len(plan.REPLACED),
        seeds=len(runs.SEEDS),
        length=runs.LENGTH,
    )
    parts = [about]
    if any(line["origin"] == plan.PUBLISHED for line in lines):
        parts += [_POINT, *operating_point(lines)]
    models = {plan.DISTILLED: "distillations", plan.SCRATCH: "pretrained models"}
    for origin, title in _ORIGIN.items():
        table = origin_table(lines, origin)
        if table:
            intro = _DIFFERENCES.format(
                title=title, models=models[origin], reference=verdicts.REFERENCE
            )
            parts += [intro, *table]
            decided = verdict_lines(lines, origin)
            if decided:
                parts += [_VERDICTS.format(reference=verdicts.REFERENCE), *decided]
            trained = training_table(lines, origin)
            if trained:
                parts += [_OF_MODELS, *trained]
    return "\n".join(parts) + "\n"


def main() -> None:
    lines = read_json_lines(FOLDER / "results.jsonl")
    write_text(FOLDER / "README.md", page(lines))


if __name__ == "__main__":
    main()
