"""The encodings that were compared: README.md beside this file, docs/figures/which_encoding.png.

python research/which_encoding/report.py
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from matplotlib.artist import Artist
from scipy import stats

from pe_jax.common.files import write_text
from pe_jax.common.markdown import raw_table
from pe_jax.trainer.figures.style import (
    FAMILIES,
    encoding_family,
    legend_below,
    new,
    save,
)
from research.json_files import read_json_lines
from research.spread import half_width, pooled_variance
from research.which_encoding import candidates, ten_million
from research.which_encoding.names import FOLDER, OPTIONS, encodings_to_compare
from research.which_encoding.results import Lines, at_one_rate, read_lines

ROOT = Path(__file__).resolve().parents[2]
_ABOUT = """\
# Which encodings learn most in a million tokens?

For the conclusions, see [Which encoding?](../../docs/which-encoding.md). {count} of {planned}
candidates were trained: the encodings of texts that an encoder can use, and usual combinations.

Each model is a BERT-mini (4 layers of 256, a vocabulary of 2,048, bfloat16), trained from scratch
on books with AdamW at 1e-3: 500 steps of 64 rows of 16 tokens, then 500 of 16 rows of 64, a
million tokens in all. Models with the same seed see the same text in the same order.

**One learning rate does not suit all encodings.** In these 1,000 steps, Adam moves an entry of a
table by about 0.5 at most, which is too little for a bias and too much for a table of absolute
positions. So each encoding with parameters chooses the *ratio* of their learning rate to that of
all other parameters among 1, 10, 30 and 100 (0.1, 0.3, 1 and 3 for vectors that are added to the
input, and then the best of three sizes of these at the start). The loss at 64 tokens decides,
with a seed that is not reported (`selection.jsonl`).

## Compared fairly

{tuned} encodings: those without parameters, and those whose ratio was chosen.

- *Loss*: of masked words, in nats, on 1,024 held-out rows of 64 tokens, 128 of 256 and 64 of 512,
  with positions that no model saw in training. *Then 256*: after 60 more steps of 4 rows of 256.
- *Difference to `rope`*: of the loss at 64, with an interval that holds for all rows together with
  95 % confidence (Bonferroni). The standard deviation between seeds is {sd:.3f}, pooled over
  all encodings with more than one seed ({freedom} degrees of freedom), but for those that are
  *unstable*: their seeds spread more than all others' (F-test, 0.1 %), and the range is given. The
  deviation does not include other held-out rows, other sizes of models or other texts. *Is `rope`
  at 64*: differs from `rope` at longer distances only, and has its losses to five digits.
- *Time of attention*: 512 tokens, forward and backward, over that of `none`, on two CPU cores
  ([catalogue](../../docs/catalogue.md)).

"""
_SELECTION = """
## What the learning rate decides

Loss at 64 tokens with the selection's seed, by the ratio of learning rates, and at other sizes at
the start with the best ratio. The two ratios in the middle were tried first; one beyond a worse one
was not tried. "Gain" is what the choice lowers the loss by, from a ratio of 1.

"""
_RANKS = """
## One learning rate for all, and the ranking that it gave

Mean loss at 64 tokens of the reported seeds, and the place among {count} encodings, for encodings
whose choice is not a ratio of 1 and the usual size. A place now is among those that are compared
fairly.

"""
_UNTUNED = """
## Not compared fairly yet

These have parameters and were trained with one learning rate for all, so that their losses are
upper bounds. They are not ranked against the others.

"""
_COMMANDS = """
The learning rate, 1e-3, is that of configs/pretrain_books.py. 5e-4 was worse for `rope` (4.81
against 4.60 with the same seed) and `learned_absolute` (5.59 and 5.37;
`rates.jsonl`). Absolute sinusoids have scales of 0.01 to 0.1: at their default, 1, they dominate
the token embeddings of a model this small. `rope_slice`, `decoupled_rope` and `xpos` were trained
with `layout='interleaved'`, their default then; the layout permutes dimensions that are drawn at
random, so it changes nothing but the draw. Encodings that need `causal` predict a masked word from
the words before it alone.

## Run it

```sh
python research/which_encoding/choose.py --books=BOOKS
python research/which_encoding/run.py --books=BOOKS
python research/which_encoding/time_attention.py
python research/which_encoding/report.py && python tools/write_catalogue.py
```

The first two commands go on from the lines that there are, about four minutes for a model on one
core.
"""
# These are `rope` for inputs of up to 64 tokens, with the same losses to five digits.
_ROPE_AT_64 = (
    "rerope", "self_extend", "dual_chunk", "cycle(rope, rope, rope+window(max_distance=64))",
)  # fmt: skip
_LOSSES = ("loss/64", "loss/256", "loss/512", "loss/256 after 60 steps")


def scores() -> Lines:
    """Return the results, the lowest loss at 64 tokens first."""
    by_name = read_lines("results.jsonl")
    return dict(sorted(by_name.items(), key=lambda item: mean(item[1], "loss/64")))


def compared(by_name: Lines) -> Lines:
    """Return the results of the encodings that are compared fairly."""
    return {
        name: records
        for name, records in by_name.items()
        if candidates.is_compared(name, records)
    }


def mean(records: Sequence[Mapping[str, float]], score: str) -> float:
    return statistics.fmean(record[score] for record in records)


def costs() -> dict[str, float]:
    """Return times of attention, 512 tokens, forward and backward, over that of `none`."""
    rows = json.loads((ROOT / "docs/catalogue.json").read_text(encoding="utf-8"))[
        "rows"
    ]
    by_title = {title: row["cost"][0] for title, row in rows.items()}
    by_title |= {options: by_title[name] for name, options in OPTIONS.items()}
    return by_title | json.loads((FOLDER / "times.json").read_text(encoding="utf-8"))


def losses_by_treatment() -> dict[tuple[str, float], list[float]]:
    """Return the losses at 64 tokens of all seeds, by encoding and ratio, where there are several
    seeds."""
    by_treatment = defaultdict(list)
    for record in read_json_lines(FOLDER / "results.jsonl"):
        treatment = record["position"], record["ratio"]
        by_treatment[treatment].append(record["loss/64"])
    return {name: losses for name, losses in by_treatment.items() if len(losses) > 1}


def unstable() -> dict[tuple[str, float], list[float]]:
    """Return the losses of the encodings and ratios whose seeds spread more than those of all
    others, by an F-test at 0.1 %."""
    by_treatment = losses_by_treatment()
    found = {}
    for treatment, losses in by_treatment.items():
        others = [x for other, x in by_treatment.items() if other != treatment]
        variance, freedom = pooled_variance(others)
        ratio = statistics.variance(losses) / variance
        if stats.f.sf(ratio, len(losses) - 1, freedom) < 1e-3:
            found[treatment] = losses
    return found


def deviation() -> tuple[float, int]:
    """Return the standard deviation of a loss at 64 tokens between seeds, pooled over all encodings
    and learning rates with several seeds that are not unstable, and its degrees of freedom."""
    left_out = unstable()
    variance, freedom = pooled_variance(
        losses
        for treatment, losses in losses_by_treatment().items()
        if treatment not in left_out
    )
    return variance**0.5, freedom


def intervals(
    by_name: Lines, reference: str = "rope"
) -> dict[str, tuple[float, float]]:
    """Return the difference of the mean loss at 64 tokens to that of `reference`, and half the
    width of its interval, by encoding; none for those that are unstable. All intervals hold
    together with 95 % confidence."""
    sd, freedom = deviation()
    left_out = unstable()
    base = by_name[reference]
    others = [
        name
        for name, records in by_name.items()
        if name != reference and treatment_of(records) not in left_out
    ]
    found = {}
    for name in others:
        difference = mean(by_name[name], "loss/64") - mean(base, "loss/64")
        counts = len(by_name[name]), len(base)
        width = half_width(sd, freedom, counts, comparisons=len(others))
        found[name] = difference, width
    return found


def treatment_of(records: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    """Return the encoding with its options and the ratio that results are of."""
    return records[0]["position"], records[0]["ratio"]


def size_text(name: str) -> str:
    """Return the encoding with the chosen size at the start."""
    choice = candidates.best(name)
    return f"`{choice[0] if choice else name}`"


def result_cells(
    records: Sequence[Mapping[str, float]], time: float | None
) -> list[str]:
    losses = [f"{mean(records, loss):.2f}" for loss in _LOSSES]
    accuracy = f"{mean(records, 'accuracy/64'):.1%}"
    return [*losses, accuracy, "–" if time is None else f"{time:.2f}"]


def fair_table(by_name: Lines, times: Mapping[str, float]) -> list[str]:
    """Return the lines of the table of encodings that are compared fairly."""
    differences, left_out = intervals(by_name), unstable()
    rows = []
    for name, records in by_name.items():
        if name in _ROPE_AT_64:
            difference = "is `rope` at 64"
        elif name in differences:
            value, width = differences[name]
            difference = f"{value:+.2f} ± {width:.2f}"
        elif treatment_of(records) in left_out:
            losses = left_out[treatment_of(records)]
            difference = f"unstable: {min(losses):.2f} to {max(losses):.2f}"
        else:
            difference = ""
        about = [size_text(name), candidates.ratio_text(name), str(len(records))]
        rows.append([*about, *result_cells(records, times.get(name)), difference])
    header = [
        "encoding", "ratio", "seeds", "loss, 64 tokens", "256", "512", "then 256",
        "accuracy, 64", "time of attention", "difference to `rope`",
    ]  # fmt: skip
    return raw_table(header, rows)


def untuned_table(by_name: Lines, times: Mapping[str, float]) -> list[str]:
    """Return the lines of the table of encodings at one learning rate for all parameters."""
    rows = [
        [f"`{name}`", str(len(records)), *result_cells(records, times.get(name))]
        for name, records in by_name.items()
    ]
    header = [
        "encoding", "seeds", "loss, 64 tokens", "256", "512", "then 256", "accuracy, 64",
        "time of attention",
    ]  # fmt: skip
    return raw_table(header, rows)


def selection_table() -> list[str]:
    """Return the lines of the table of losses by ratio, of encodings with all candidates."""
    tried = (*candidates.RATIOS_OF_INPUTS[:2], 1.0, 3.0, *candidates.RATIOS[1:])
    rows = []
    for name in candidates.encodings_to_tune():
        losses = candidates.losses_of(name)
        choice = candidates.best(name)
        if choice is None:
            continue
        by_ratio = [
            f"{losses[name, ratio]:.3f}" if (name, ratio) in losses else ""
            for ratio in tried
        ]
        sizes = [
            f"`{position}` {loss:.3f}"
            for (position, _), loss in losses.items()
            if position != name
        ]
        gain = ""
        if (name, 1.0) in losses:
            gain = f"{losses[name, 1.0] - losses[choice]:.2f}"
        rows.append([f"`{name}`", *by_ratio, ", ".join(sizes), gain])
    header = ["encoding", *(f"× {ratio:g}" for ratio in tried), "other sizes", "gain"]
    return raw_table(header, rows)


def places(by_name: Lines) -> dict[str, int]:
    """Return the place of each encoding by its loss at 64 tokens, 1 for the lowest; those that are
    `rope` at this length are left out."""
    distinct = [name for name in by_name if name not in _ROPE_AT_64]
    distinct.sort(key=lambda name: mean(by_name[name], "loss/64"))
    return {name: place for place, name in enumerate(distinct, start=1)}


def rank_table(tuned: Lines, before: Lines) -> list[str]:
    """Return the lines of the table of losses and places at one learning rate, and at the chosen
    one, of encodings for which these differ."""
    places_before, places_now = places(before), places(tuned)
    rows = []
    for name, records in tuned.items():
        if name not in places_before or candidates.best(name) == (name, 1.0):
            continue
        loss_before = mean(before[name], "loss/64")
        losses = [f"{loss_before:.2f}", f"{mean(records, 'loss/64'):.2f}"]
        rows.append(
            [
                f"`{name}`",
                *losses,
                f"{places_before[name]} of {len(places_before)}",
                f"{places_now[name]} of {len(places_now)}",
            ]
        )
    header = ["encoding", "loss at one rate", "now", "place at one rate", "now"]
    return raw_table(header, rows)


def page(by_name: Lines, times: Mapping[str, float]) -> str:
    """Return README.md: what encodings learned, how they differ from `rope`, and what the learning
    rate decides."""
    tuned = compared(by_name)
    untuned = {name: by_name[name] for name in by_name if name not in tuned}
    sd, freedom = deviation()
    about = _ABOUT.format(
        count=len(by_name),
        planned=len(encodings_to_compare()),
        tuned=len(tuned),
        sd=sd,
        freedom=freedom,
    )
    before = at_one_rate()
    lines = [about, *fair_table(tuned, times)]
    lines += [_RANKS.format(count=len(places(before))), *rank_table(tuned, before)]
    lines += [_SELECTION, *selection_table(), *ten_million.section(by_name)]
    if untuned:
        lines += [_UNTUNED, *untuned_table(untuned, times)]
    return "\n".join([*lines, _COMMANDS])


def draw(by_name: Lines) -> None:
    """Draw the difference of each encoding to `rope`, sorted, with its interval."""
    differences = {"rope": (0.0, 0.0)} | intervals(by_name)
    distinct = [name for name in by_name if name not in _ROPE_AT_64]
    shown = [name for name in distinct if name in differences and "(" not in name]
    shown = [name for name in shown if differences[name][0] <= differences["none"][0]]
    figure = new(7.5, 0.24 * len(shown) + 1.6)
    axes = figure.subplots()
    dots: dict[str, Artist] = {}
    for row, name in enumerate(shown):
        value, width = differences[name]
        family = encoding_family(name)
        bars = axes.errorbar(
            value,
            row,
            xerr=width or None,
            fmt="o",
            color=FAMILIES[family],
            markersize=5,
        )
        dots[family] = bars.lines[0]
    axes.set_yticks(range(len(shown)), shown)
    axes.invert_yaxis()
    axes.axvline(0.0, color="0.6", linewidth=0.8, zorder=0)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.set_xlabel(
        "masked-LM loss minus that of rope, in nats: lower is better\n"
        "intervals hold together with 95 % confidence"
    )
    legend_below(figure, {name: dots[name] for name in FAMILIES if name in dots})
    save(figure, ROOT / "docs/figures/which_encoding.png")


def main() -> None:
    by_name, times = scores(), costs()
    write_text(FOLDER / "README.md", page(by_name, times))
    draw(compared(by_name))
    ten_million.draw()


if __name__ == "__main__":
    main()
