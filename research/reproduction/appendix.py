"""The appendix of a study: methods, tables, verdicts and figures, from its results file."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pe_jax.common.markdown import raw_table
from pe_jax.trainer.configs.tables import TablesConfig
from pe_jax.trainer.console.terminal import counted
from pe_jax.trainer.reports import table_formats
from pe_jax.trainer.reports.paper_tables import build_all
from pe_jax.trainer.reports.tables import mean_and_spread
from research.reproduction.claims import judge, models_above
from research.reproduction.drawing import SCORES, gallery, linked
from research.reproduction.plan import REPLACED, SCRATCH, TASKS, UNTOUCHED
from research.reproduction.results import (
    ACCURACY,
    BEST,
    CHANGE,
    GLUE,
    LOSS,
    LOSS_UNSEEN,
    PROPERTIES,
    R2,
    BySeed,
    Values,
    finished,
    task_results,
    trivial_scores,
    values,
)
from research.reproduction.results_file import FILE, SQUAD_EXACT, SQUAD_F1, Results
from research.reproduction.verdict_tables import TITLES, effects, members

_COMMAND = "python research/reproduction/run.py"
SETTINGS = "settings.md"  # Beside the page: its section on settings, written by hand.
FINDINGS = "findings.toml"  # Beside the page: what opens a section, by its heading.
_ABOUT_SCORES = (
    "The table has means ± sample standard deviations over seeds, scores in points."
)
_ABOUT_MEASURE = {
    LOSS: "Losses are in nats, at the length of the last stage.",
    LOSS_UNSEEN: "*Added by unseen lengths* is the loss at that length of the last checkpoint "
    "before training there, minus its loss at the length it was trained on.",
    R2: "*R²* compares the states of the last layer with those of the untouched model, at the end "
    "of distillation.",
}
_ABOUT_TRIVIAL = """\
*A trivial answer* is the first sentence of the context, or the better of two constant labels.
*Models above it* counts those whose scores are higher by Student's one-sided t-test over seeds,
p < 0.025, not corrected."""
_TRIVIAL, _ABOVE = "*a trivial answer*", "*models above it*"
_ABOUT_SELECTION = """\
The paper reports, for SQuAD, each seed's best step on the validation set. The table has the points
by which that step is above the one that is best on held-out training data."""
_ABOUT_PROPERTIES = """\
The table has violations, 0 where the property holds. *vectors* are dot products of position
vectors before and after training, *words* the logits of identical words in the first layer, and
*kernel* the mean logits between random words by position ([offset
kernel](../../docs/measures/offset_kernel.md)), mean over layers. Local monotonicity is within 10
offsets, 0.5 without any order. Symmetry is 0.5 for noise."""
_MODELS = {
    SCRATCH: "a BERT-mini from scratch",
    REPLACED: "a published BERT with its positions replaced",
}


def appendix(results: Results, out: Path) -> str:
    """Return the text of the appendix of a study.

    Args:
      results: the content of a results file (`research.reproduction.results_file`).
      out: the folder of the page; it shows the figures in `figures/`, and the section on settings
        in `settings.md` and findings in `findings.toml`, if there are any.
    """
    every = values(results)
    arms = list(dict.fromkeys(name.partition("/")[0] for name in results["runs"]))
    verdicts = judge(every, arms)
    pictures = [line for arm in arms for line in linked(out, arm, SCORES, "Scores")]
    sections = [_head(results, arms), _section("Scores by encoding", pictures)]
    for arm in arms:
        sections += [
            _scores(arm, results, every),
            _paper_tables(arm, results),
            _properties(arm, every),
            _figures(arm, out),
        ]
    sections.append(_section("How the claims are judged", effects(verdicts, every)))
    sections.append(_section("Members of groups", members(verdicts)))
    table_1 = results["table_1"]["lines"] if results["table_1"] else []
    sections += [_section("The paper's table 1", table_1), _selection_bias(arms, every)]
    if (out / SETTINGS).is_file():
        sections.append((out / SETTINGS).read_text(encoding="utf-8"))
    sections.append(_origin(results))
    sections = [section for section in sections if section]
    sections.insert(1, _contents(sections[1:]))
    path = out / FINDINGS
    findings = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return "\n".join(_opened(section, findings) for section in sections)


def _contents(sections: Sequence[str]) -> str:
    """Return a line of links to the sections, whose anchors are GitHub's."""
    links = []
    for section in sections:
        title = section.partition("\n")[0].removeprefix("## ")
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        links.append(f"[{title}](#{anchor})")
    return f"Sections: {' · '.join(links)}\n"


def _opened(section: str, findings: Mapping[str, str]) -> str:
    """Return a section with its findings below the heading."""
    heading, _, rest = section.partition("\n")
    found = findings.get(heading.removeprefix("## "))
    return f"{heading}\n\n{found}\n{rest}" if found else section


def _section(title: str, *blocks: Sequence[str]) -> str:
    """Return a heading and blocks of lines between empty lines; nothing if a block is empty."""
    if not all(blocks):
        return ""
    return "\n".join(
        [f"## {title}", "", *(line for block in blocks for line in (*block, ""))]
    )


def _head(results: Results, arms: Sequence[str]) -> str:
    config, runs = results["config"], results["runs"]
    done = sum(entry is not None for entry in runs.values())
    return "\n".join(
        [
            "# Appendix: scores, methods and figures",
            "",
            "This appendix has all scores of a small copy of the paper's comparison, how its "
            "claims were judged, and the figures. The findings and claims are on "
            "[one page](./README.md).",
            "",
            f"The models are {' and '.join(_MODELS[arm] for arm in arms)}, with "
            f"{len(config['squad']['seeds'])} seeds of fine-tuning on questions and "
            f"{len(config['glue']['seeds'])} on other tasks. "
            "**No number here is comparable with the paper's**: its models are BERT-base and "
            "BERT-medium, trained on Wikipedia and books (16 GB); they are fine-tuned on SQuAD's "
            f"own questions, ours on `{config['squad']['data']['train']}`. Only the direction of "
            "differences between encodings that were trained alike is comparable, on tasks that "
            "these models learn.",
            "",
            f"{done:,} of {len(runs):,} runs are done"
            + (f"; left out below: {_missing(results)}." if done < len(runs) else "."),
            "",
        ]
    )


def _missing(results: Results) -> str:
    """Return a phrase for the missing runs: how many of each kind, by arm."""
    names = [
        name.split("/") for name, entry in results["runs"].items() if entry is None
    ]
    arms: dict[str, list[str]] = {}
    for (arm, kind), count in Counter((arm, kind) for arm, kind, _ in names).items():
        arms.setdefault(arm.replace("_", " "), []).append(
            f"{counted(count, 'run')} of {kind}"
        )
    return "; ".join(f"{arm}, {', '.join(kinds)}" for arm, kinds in arms.items())


def _scores(arm: str, results: Results, every: Values) -> str:
    models, trivial = every.models(arm), trivial_scores(results, arm)
    changes = [CHANGE.format(length) for length in sorted(results["config"]["lengths"])]
    measures = [R2, LOSS, ACCURACY, LOSS_UNSEEN, SQUAD_F1, SQUAD_EXACT, *changes]
    measures += every.classification_measures(arm)
    shown = [
        name
        for name in measures
        if any(every.by_seed(arm, model, name) for model in models)
    ]
    rows = [[model, *(_score(every.by_seed(arm, model, name), name) for name in shown)]
            for model in models]  # fmt: skip
    about = [
        _ABOUT_SCORES,
        *(text for name, text in _ABOUT_MEASURE.items() if name in shown),
    ]
    if trivial:
        about.append(_ABOUT_TRIVIAL)
        rows.append([_TRIVIAL, *(f"{trivial[name]:.1f}" if name in trivial else "–"
                                 for name in shown)])  # fmt: skip
        rows.append([_ABOVE, *("{} of {}".format(*models_above(every, arm, name, trivial[name]))
                               if name in trivial else "–" for name in shown)])  # fmt: skip
    return _section(
        f"{TITLES[arm]}: scores", [" ".join(about)], raw_table(["model", *shown], rows)
    )


def _properties(arm: str, every: Values) -> str:
    """Violations of position vectors before and after training, and of the attention."""
    shown = [
        f"{probe}, {name}"
        for probe in ("vectors at the start", "vectors trained", "words", "kernel")
        for name in PROPERTIES
        if name != "symmetry"
        or not probe.startswith("vectors")  # Dot products are symmetric.
    ]
    rows = [
        [model, *(_mean(column, 3) for column in columns)]
        for model in every.models(arm)
        if any(columns := [every.by_seed(arm, model, name) for name in shown])
    ]
    if not rows:
        return ""
    title = f"{TITLES[arm]}: properties once trained"
    return _section(title, [_ABOUT_PROPERTIES], raw_table(["model", *shown], rows))


def _figures(arm: str, out: Path) -> str:
    lines = list(gallery(out, arm))
    return "\n".join([f"## {TITLES[arm]}: figures", "", *lines]) if lines else ""


def _paper_tables(arm: str, results: Results) -> str:
    """Tables 2 and 3, without the untouched model: its encoding is there as well."""
    runs = [
        task_results(arm, kind, model, entry)
        for other, kind, model, entry in finished(results)
        if other == arm and kind in TASKS and model != UNTOUCHED
    ]
    if not runs:
        return ""
    config = TablesConfig()
    tables = build_all(runs, config).items()
    text = "\n".join(
        table_formats.to_markdown(*table, config.p_value) for table in tables
    )
    return f"## {TITLES[arm]}: the paper's tables\n\n{re.sub('^#', '###', text, flags=re.M)}"


def _selection_bias(arms: Sequence[str], every: Values) -> str:
    rows = []
    for arm in arms:
        for task in GLUE:
            gains = [
                best[seed] - selected[seed]
                for model in every.models(arm)
                if (best := every.by_seed(arm, model, BEST.format(task)))
                and (selected := every.by_seed(arm, model, task))
                for seed in selected
            ]
            if gains:
                rows.append([TITLES[arm].lower(), task, f"{np.mean(gains):.2f}",
                             f"{np.max(gains):.2f}", str(len(gains))])  # fmt: skip
    if not rows:
        return ""
    lines = raw_table(["arm", "task", "mean", "greatest", "runs"], rows)
    title = "What choosing the best step on the reported set is worth"
    return _section(title, [_ABOUT_SELECTION], lines)


def _origin(results: Results) -> str:
    entries = [entry for *_, entry in finished(results)]
    hours = sum(run["seconds"] for run in entries) / 3600
    machines = Counter(
        f"{run['device']} with {counted(run['cores'], 'core')}" for run in entries
    )
    code = Counter(run["code"] for run in entries)
    options = map(shlex.quote, results["options"])
    return "\n".join(
        [
            "## How it was made",
            "",
            f"{hours:.1f} hours of all processes together, on {_counts(machines)}; digests of "
            f"the sources: {_counts(code)}. "
            "[config.py](./config.py) has every setting, "
            f"[{FILE}](./{FILE}) every value by seed. A model whose weights were not kept "
            "is retrained with the same seed and settings if an unfinished run needs it; its "
            "numbers may then come from two pretrainings, which do not agree in every digit.",
            "",
            "The first command runs the study, and continues one that was stopped; `--dry_run` "
            "shows its plan and time. The second writes both pages. `config.published` is the "
            "folder of a published BERT, `config.data_dir` that of tfds datasets "
            "([checkpoints](../../docs/checkpoints.md), [data](../../docs/finetuning.md#data)).",
            "",
            "```sh",
            " \\\n    ".join(
                [
                    f"{_COMMAND} --config=research/reproduction/config.py --workdir=S",
                    *options,
                ]
            ),
            f"{_COMMAND} --workdir=S --out=research/reproduction",
            "```",
            "",
        ]
    )


def _counts(counter: Counter[str]) -> str:
    return ", ".join(
        f"{name} ({counted(number, 'run')})" for name, number in counter.items()
    )


def _score(column: BySeed, measure: str) -> str:
    if measure in (R2, LOSS, LOSS_UNSEEN):
        return _mean(column, 3)
    scale = 100 if measure == ACCURACY else 1
    return _mean({seed: scale * value for seed, value in column.items()}, 1)


def _mean(column: BySeed, digits: int) -> str:
    return mean_and_spread([*column.values()], digits) if column else "–"
