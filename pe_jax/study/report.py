"""The page of a study: its tables, figures and verdicts, from the cells that are done."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from pe_jax.configs import study as study_config
from pe_jax.console.markdown import table
from pe_jax.console.terminal import counted
from pe_jax.files import read_json, write_text
from pe_jax.reports.paper_tables import write_tables
from pe_jax.reports.property_report import from_name
from pe_jax.reports.property_report.section import Settings
from pe_jax.reports.property_report.table1 import table1
from pe_jax.schema import flatten
from pe_jax.study import figures
from pe_jax.study.cell import DONE
from pe_jax.study.claims import Verdict, judge, models_above
from pe_jax.study.evidence import (
    BEST,
    CHANGE,
    GLUE,
    GLUE_MEAN,
    LOSS,
    LOSS_UNSEEN,
    PROPERTIES,
    SQUAD_EXACT,
    SQUAD_F1,
    BySeed,
    Evidence,
    gather,
    trivial_scores,
)
from pe_jax.study.plan import KEPT, PRETRAINING, TASKS, Cell, cells
from pe_jax.study.progress import open_cells
from pe_jax.study.settings import SETTINGS
from pe_jax.study.state import is_done, seconds

_ABOUT_CLAIMS = """\
An effect is a mean over seeds, with Student's interval: of fine-tuning's seeds, which share one
pretrained model, or of pretraining's. p is two-sided (of rank correlations, by permuting the
models), q that of Benjamini and Hochberg over the whole table, where every p moves the q of others;
a verdict needs q < 0.05, and is about the direction of an effect alone. Its size shows beside the
two means that it is the difference of: a table may become more nearly invariant, and stay far from
it. Of a correlation, the same column has the model without which it is most different: few models
decide."""
_ABOUT_SCORES = """\
Mean ± sample standard deviation over seeds; losses in nats, at the length of the last stage; scores
in points. Added by unseen lengths: the loss at that length of the last checkpoint before training
there, minus its loss at the length it was trained on. A trivial answer: the first sentence of the
context, the better of two constant labels. Models above it: by Student's one-sided t-test over
seeds, p < 0.025, not corrected; where few are, a score tells models apart by little."""
_TRIVIAL, _ABOVE = "*a trivial answer*", "*models above it*"
_ABOUT_FLATTERY = """\
Points by which each seed's best step on the validation set is above the step that is best on
held-out training data; the paper reports the former for SQuAD."""
_ABOUT_PROPERTIES = """\
Violations, 0 where the property holds: of the dot products of position vectors, before and after
training; of the logits of identical words in the first layer; of the offset kernel, the mean over
layers. Local monotonicity is within 10 offsets, 0.5 without any order."""
_TITLES = {"from_scratch": "From scratch", "replaced": "Positions replaced"}


def report(config: ConfigDict, folder: Path, tables: ConfigDict, out: Path) -> str:
    """Writes the page, its tables and figures to `out`; returns the page.

    Args:
      config: that the study in `folder` was made with.
      tables: of `configs/tables.py`.

    Raises:
      ValueError: if no model of the study is pretrained yet.
    """
    plan = cells(config, folder)
    evidence = gather(plan)
    if not evidence.values:
        raise ValueError(f"No cell of the study in {folder} is done yet: see {folder}/progress.md.")
    arms = list(dict.fromkeys(cell.arm for cell in plan))
    verdicts = judge(evidence, arms)
    write_text(out / "evidence.json", json.dumps(evidence.as_json(), indent=1) + "\n")
    sections = [_head(config, plan), _claims(verdicts)]
    for arm in arms:
        own = [cell for cell in plan if cell.arm == arm]
        sections += [
            _scores(own, evidence, config.lengths),
            _paper_tables(own, tables, out / arm),
            _properties(arm, evidence),
            _figures(own, evidence, config, out),
        ]
    sections += [
        _table_1(config, plan, out),
        _flattery(evidence, arms),
        _settings(config),
        _how(config, plan),
    ]
    page = "\n".join(section for section in sections if section)
    write_text(out / "README.md", page)
    return page


def _head(config: ConfigDict, plan: Sequence[Cell]) -> str:
    done = sum(map(is_done, plan))
    arms = ["a BERT-mini from scratch"]
    arms += ["a published BERT with its positions replaced"] * bool(config.published)
    return "\n".join(
        [
            "# The paper's comparison, on a small scale",
            "",
            f"Models: {' and '.join(arms)}; {len(config.glue.seeds)} seeds of fine-tuning. "
            "**No number here is comparable with the paper's**: its models are BERT-base and "
            "BERT-medium, trained on all of Wikipedia and BooksCorpus for days and fine-tuned for "
            f"epochs; its questions are SQuAD's own, ours `{config.squad.data.train}`. What can be "
            "compared is the direction of differences between encodings that were all trained "
            "alike, on tasks that these models learn at all: the last row of each table of scores "
            "says how many are above a trivial answer.",
            "",
            f"{done:,} of {len(plan):,} cells are done"
            + (f"; left out below: {open_cells(plan)}." if done < len(plan) else "."),
            "",
        ]
    )


def _claims(verdicts: Sequence[Verdict]) -> str:
    rows = [
        [one.claim.says, one.claim.place, _TITLES[one.arm].lower(), str(one.claim.effect),
         _of(one), _number(one.effect), _interval(one), str(one.n or "–"),
         _probability(one.p), _probability(one.q), f"**{one.says}**"]
        for one in verdicts
    ]  # fmt: skip
    counts = Counter(one.says for one in verdicts)
    leaning = Counter(one.agrees for one in verdicts if one.leans)
    header = ["claim", "where", "arm", "effect", "of", "mean", "95 % interval", "seeds", "p", "q",
              "verdict"]  # fmt: skip
    return "\n".join(
        [
            "## Claims",
            "",
            ", ".join(f"{count} {says}" for says, count in counts.items())
            + f". Of the undecided, {leaning[True]} would be reproduced and {leaning[False]} "
            "contradicted without the correction: p < 0.05, q not.",
            "",
            _ABOUT_CLAIMS,
            "",
            *table(header, rows),
            "",
        ]
    )


def _scores(own: Sequence[Cell], evidence: Evidence, lengths: Sequence[int]) -> str:
    arm, trivial = own[0].arm, trivial_scores(own)
    longer = map(CHANGE.format, lengths)
    measures = [LOSS, "masked-LM accuracy", LOSS_UNSEEN, SQUAD_F1, SQUAD_EXACT, *longer,
                *GLUE, GLUE_MEAN]  # fmt: skip
    models = evidence.models(arm)
    shown = [one for one in measures if any(evidence.of(arm, model, one) for model in models)]
    rows = [
        [model, *(_score(evidence.of(arm, model, one), one) for one in shown)] for model in models
    ]
    if trivial:
        above = lambda one: "{} of {}".format(*models_above(evidence, arm, one, trivial[one]))
        rows += [
            [_TRIVIAL, *(f"{trivial[one]:.1f}" if one in trivial else "–" for one in shown)],
            [_ABOVE, *(above(one) if one in trivial else "–" for one in shown)],
        ]
    return "\n".join(
        [
            f"## {_TITLES[arm]}: scores",
            "",
            _ABOUT_SCORES,
            "",
            *table(["model", *shown], rows),
            "",
        ]
    )


def _properties(arm: str, evidence: Evidence) -> str:
    """Violations: of position vectors before and after training, and of what attention makes."""
    shown = [
        f"{probe}, {name}"
        for probe in ("vectors at the start", "vectors trained", "words", "kernel")
        for name in PROPERTIES
        if name != "symmetry" or not probe.startswith("vectors")  # Dot products are symmetric.
    ]
    rows = [
        [model, *(_mean(values, 3) for values in found)]
        for model in evidence.models(arm)
        if any(found := [evidence.of(arm, model, one) for one in shown])
    ]
    if not rows:
        return ""
    heading = f"## {_TITLES[arm]}: properties once trained"
    return "\n".join([heading, "", _ABOUT_PROPERTIES, "", *table(["model", *shown], rows), ""])


def _figures(own: Sequence[Cell], evidence: Evidence, config: ConfigDict, out: Path) -> str:
    arm = own[0].arm
    drawn = figures.draw(own, evidence, config.measures, out / arm)
    lines = [*figures.gallery(out / arm, drawn)]
    if not lines:
        return ""
    words = f"In words and numbers: `report.md` in each model's folder of `{arm}`."
    return "\n".join([f"## {_TITLES[arm]}: figures", "", words, "", *lines])


def _table_1(config: ConfigDict, plan: Sequence[Cell], out: Path) -> str:
    """Of the encodings of the models that are done, as they are before training."""
    measures = config.measures.copy_and_resolve_references()
    measures.size = config.from_scratch.pretraining.model.size
    done = [cell.position for cell in plan if cell.kind == PRETRAINING and is_done(cell)]
    fresh = [from_name(position, measures, seed=0) for position in dict.fromkeys(done)]
    made = table1(fresh, Settings(measures, out))
    return "\n".join(["## The paper's table 1", "", *made.lines, ""]) if made else ""


def _paper_tables(own: Sequence[Cell], tables: ConfigDict, out: Path) -> str:
    """Tables 2 and 3, without the model that kept its positions: its encoding is there as well."""
    runs = [
        cell.folder
        for cell in own
        if cell.kind in TASKS and is_done(cell) and KEPT not in cell.model
    ]
    if not runs:
        return ""
    heading = f"## {_TITLES[own[0].arm]}: the paper's tables"
    return f"{heading}\n\n{re.sub('^#', '###', write_tables(runs, tables, out), flags=re.M)}"


def _flattery(evidence: Evidence, arms: Sequence[str]) -> str:
    rows = []
    for arm in arms:
        for task in GLUE:
            gains = [
                best[seed] - chosen[seed]
                for model in evidence.models(arm)
                if (best := evidence.of(arm, model, BEST.format(task)))
                and (chosen := evidence.of(arm, model, task))
                for seed in chosen
            ]
            if gains:
                rows.append([_TITLES[arm].lower(), task, f"{np.mean(gains):.2f}",
                             f"{np.max(gains):.2f}", str(len(gains))])  # fmt: skip
    if not rows:
        return ""
    return "\n".join(
        [
            "## What choosing the best step on the reported set is worth",
            "",
            _ABOUT_FLATTERY,
            "",
            *table(["arm", "task", "mean", "greatest", "runs"], rows),
            "",
        ]
    )


def _settings(config: ConfigDict) -> str:
    rows = [[one.name, one.ours(config), one.paper, one.reason] for one in SETTINGS]
    return "\n".join(["## Settings", "", *table(["setting", "here", "paper", "why"], rows), ""])


def _how(config: ConfigDict, plan: Sequence[Cell]) -> str:
    values = lambda some: flatten(json.loads(some.to_json_best_effort()))
    own, shipped = values(config), values(study_config.get_config())
    given = [f"--config.{key}={value}" for key, value in own.items() if value != shipped.get(key)]
    done = [cell for cell in plan if is_done(cell)]
    facts = [read_json(cell.folder / DONE, "Remove it, and start again.") for cell in done]
    hours = sum(map(seconds, done)) / 3600
    where = Counter(f"{counted(one['cores'], 'core')} of {one['device']}" for one in facts)
    code = Counter(one["code"] for one in facts)
    count = lambda counts: ", ".join(f"{name} ({counted(n, 'cell')})" for name, n in counts.items())
    return "\n".join(
        [
            "## How it was made",
            "",
            f"{hours:.1f} hours of all processes together, on {count(where)}; code "
            f"{count(code)}. [configs/study.py](../../pe_jax/configs/study.py) has every setting, "
            "[evidence.json](evidence.json) every value by seed. A model whose weights were not "
            "kept is pretrained again, with the same seed and settings, for what still starts from "
            "it: its numbers may then come of two pretrainings, which do not agree in every digit.",
            "",
            "```sh",
            " \\\n    ".join(
                ["python train.py --config=configs/study.py --workdir=S", *map(shlex.quote, given)]
            ),
            "python eval.py --config=configs/study.py --workdir=S --out=docs/study",
            "```",
            "",
        ]
    )


def _score(values: BySeed, measure: str) -> str:
    if measure in (LOSS, LOSS_UNSEEN):
        return _mean(values, 3)
    scale = 100 if measure == "masked-LM accuracy" else 1
    return _mean({seed: scale * value for seed, value in values.items()}, 1)


def _mean(values: BySeed, digits: int) -> str:
    """With the sample standard deviation over seeds, where there are several."""
    if not values:
        return "–"
    numbers = np.array([*values.values()])
    spread = f" ± {numbers.std(ddof=1):.{digits}f}" if len(numbers) > 1 else ""
    return f"{numbers.mean():.{digits}f}{spread}"


def _probability(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if value >= 0.0005 else "<0.001"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 9):+.3g}"


def _of(one: Verdict) -> str:
    if one.influence:
        return "{} models; without `{}` {:+.3g}".format(*one.influence)
    return "–" if one.between is None else "{:.3g} and {:.3g}".format(*one.between)


def _interval(one: Verdict) -> str:
    return "–" if one.low is None else f"{_number(one.low)} to {_number(one.high)}"
