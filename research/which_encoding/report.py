"""The encodings that were compared: README.md beside this file, docs/figures/which_encoding.png.

python research/which_encoding/report.py
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox
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
from research.which_encoding.names import OPTIONS, encodings_to_compare
from research.which_encoding.results import FOLDER, Lines, read_lines

ROOT = Path(__file__).resolve().parents[2]
_ABOUT = """\
# Which encodings learn most in a million tokens?

{count} of {planned} candidates: the encodings of texts that an encoder can use, and usual
combinations. The conclusions are in [Which encoding?](../../docs/which-encoding.md).

Each is a BERT-mini (4 layers of 256, a vocabulary of 2,048, bfloat16) from scratch on books, with
AdamW at 1e-3: 500 steps of 64 rows of 16 tokens, then 500 of 16 rows of 64, a million tokens in
all. Models with the same seed see the same text in the same order. *Loss*: of masked words, in
nats, on 1,024 held-out rows of 64, 128 of 256 and 64 of 512, whose last positions no model was
trained on; *then 256*: after 60 more steps of 4 rows of 256. *Time of attention*: 512 tokens,
forward and backward, over that of `none`, on two CPU cores
([catalogue](../../docs/catalogue.md)).

The standard deviation over seeds of the loss at 64 is {sd:.3f} (pooled over {several} encodings
with two or more, {freedom} degrees of freedom). Two encodings with one seed each differ at the 5 %
level if their losses are {least:.2f} or more apart (t test, not corrected for the many encodings).
"None seen": no such difference to the best one.
"""
_COMMANDS = """\
The learning rate, 1e-3, is that of configs/pretrain_books.py. 5e-4 was worse for `rope` (4.81
against 4.60 with the same seed) and `learned_absolute` (5.59 and 5.37; `rates.jsonl`),
2e-3 for `rope` after the first half (4.99 against 4.71 on rows of 16). Absolute sinusoids have
`scale=0.03`: at their default, 1, they drown the token embeddings of a model this small. `rerope`,
`self_extend` and `dual_chunk` are `rope` up to 512 tokens, and differ from it for longer inputs
only. `rope_slice`, `decoupled_rope` and `xpos` were trained with `layout='interleaved'`, their
default then; the layout permutes dimensions that are drawn at random, so it changes nothing but
the draw. Encodings that need `causal` predict a masked word from the words before it alone.

## Run it

```sh
python research/which_encoding/run.py --books=BOOKS --out=research/which_encoding/results.jsonl
python research/which_encoding/time_attention.py
python research/which_encoding/report.py && python tools/write_catalogue.py
```

The first command goes on from the lines that there are, about five minutes for a model on one core.
"""
_LOSSES = ("loss/64", "loss/256", "loss/512", "loss/256 after 60 steps")
# Offsets of a name from its mark, in points: the first that is free.
_PLACES = sorted(
    itertools.product((6, -6, -25, 25, -50, 50, 75), range(-56, 57, 7)),
    key=lambda at: math.hypot(*at),
)


def scores() -> Lines:
    """Return the results, the lowest loss at 64 tokens first."""
    by_name = read_lines("results.jsonl")
    return dict(sorted(by_name.items(), key=lambda item: mean(item[1], "loss/64")))


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


def deviation(by_name: Lines) -> tuple[float, int]:
    """Return the standard deviation of a loss at 64 tokens over seeds, pooled over encodings, and
    its degrees of freedom."""
    several = [
        [r["loss/64"] for r in records]
        for records in by_name.values()
        if len(records) > 1
    ]
    squares = sum((len(values) - 1) * statistics.variance(values) for values in several)
    freedom = sum(len(values) - 1 for values in several)
    return (squares / freedom) ** 0.5, freedom


def page(by_name: Lines, times: Mapping[str, float]) -> str:
    """Return README.md: which encodings learned most, and which do not differ from the best."""
    (sd, freedom), best = deviation(by_name), next(iter(by_name.values()))
    t = float(stats.t.ppf(0.975, freedom))
    rows = []
    for name, records in by_name.items():
        losses = [mean(records, loss) for loss in _LOSSES]
        error = sd * (1 / len(records) + 1 / len(best)) ** 0.5
        differs = losses[0] - mean(best, "loss/64") >= t * error
        rows.append([
            f"`{name}`", str(len(records)), *(f"{loss:.2f}" for loss in losses),
            f"{mean(records, 'accuracy/64'):.1%}", f"{times[name]:.2f}" if name in times else "–",
            "" if records is best else "yes" if differs else "none seen",
        ])  # fmt: skip
    header = [
        "encoding", "seeds", "loss, 64 tokens", "256", "512", "then 256", "accuracy, 64",
        "time of attention", "difference to the best",
    ]  # fmt: skip
    several = sum(len(records) > 1 for records in by_name.values())
    about = _ABOUT.format(
        count=len(by_name), planned=len(encodings_to_compare()), several=several, sd=sd,
        freedom=freedom, least=t * 2**0.5 * sd,
    )  # fmt: skip
    return "\n".join([about, *raw_table(header, rows), "", _COMMANDS])


def label(
    axes: Axes, marks: dict[str, tuple[float, float]], canvas: FigureCanvasAgg
) -> None:
    """Write each name beside its mark, where no other name or mark is."""
    renderer = canvas.get_renderer()
    at = axes.transData.transform(list(marks.values()))
    taken = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in at]
    limits = axes.get_window_extent(renderer)
    for name, place in marks.items():
        for x, y in _PLACES:
            line = {
                "arrowstyle": "-",
                "color": "0.7",
                "lw": 0.5,
                "relpos": (float(x < 0), 0.5),
            }
            text = axes.annotate(
                name, place, (x, y), textcoords="offset points", fontsize=9, va="center",
                ha="left" if x > 0 else "right",
                arrowprops=line if math.hypot(x, y) > 10 else None,
            )  # fmt: skip
            text.update_positions(renderer)
            box = Text.get_window_extent(text, renderer)  # Without the line.
            inside = limits.x0 < box.x0 and box.x1 < limits.x1 and limits.y0 < box.y0
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def marks_of(
    by_name: Lines, times: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Return cost and loss of the encodings in the figure: without the options of others, and of
    those that learn at least as much as `none`."""
    plain = {options: name for name, options in OPTIONS.items()}
    losses = {
        plain.get(name, name): mean(records, "loss/64")
        for name, records in by_name.items()
    }
    return {
        name: (times[name], loss)
        for name, loss in losses.items()
        if "(" not in name and name in times and loss <= losses["none"]
    }


def draw(marks: dict[str, tuple[float, float]]) -> None:
    """Draw costs and losses by name."""
    title = "What a small encoder learns in a million tokens, and what attention costs"
    figure = new(8.5, 7.5, title)
    axes = figure.subplots()
    axes.set_xscale("log")
    ticks = [1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    shown = {}
    for name, (cost, loss) in marks.items():
        family = encoding_family(name)
        shown[family] = axes.plot(
            cost, loss, "o", color=FAMILIES[family], markersize=6
        )[0]
    axes.set_xlabel(
        "time of attention (one CPU, 512 tokens, with gradients) over that without positions"
    )
    axes.set_ylabel("masked-LM loss in nats, 64 tokens: lower is better")
    axes.set_xlim(0.7, max(cost for cost, _ in marks.values()) * 1.6)
    axes.margins(y=0.14)
    legend_below(figure, {name: shown[name] for name in FAMILIES if name in shown})
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # Names are placed by the sizes that it finds.
    figure.set_layout_engine("none")
    label(axes, marks, canvas)
    save(figure, ROOT / "docs/figures/which_encoding.png")


def main() -> None:
    by_name, times = scores(), costs()
    write_text(FOLDER / "README.md", page(by_name, times))
    draw(marks_of(by_name, times))


if __name__ == "__main__":
    main()
