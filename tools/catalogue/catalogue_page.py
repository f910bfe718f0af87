"""The page of all encodings: one table, and what the numbers on cards mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from catalogue import card, declared, trained
from catalogue.cost import LONG, ROWS
from catalogue.entries import SIZES, WRAPPED, Entry
from catalogue.measured import LENGTH
from catalogue.results import CHECKS, Measured
from pe_jax.console.markdown import table
from pe_jax.encodings import parameter_count
from pe_jax.properties.encoding_measures import WORDS

_D, _HEAD, _H, _L = SIZES.values()

_ABOUT = f"""# All position encodings

For finding an encoding. Each name leads to its card: formula, when to use it, code, a picture of
its logits, results and options. [Which encoding?](which-encoding.md) has a pick for each situation,
and the [explorer](explore.md) shows up to four side by side.

The loss is that of a small BERT [trained with the encoding](#trained-models), on held-out rows of
128 tokens, and of 512, which it has not seen; empty: {trained.NOT_MEASURED}. Time and memory are
those of attention over attention without positions, and numbers those of BERT-base: D = {_D},
H = {_H} heads of d = {_HEAD}, L = {_L} positions. What exports to ONNX exports to StableHLO.
"""

_REST = f"""
`(…)` stands for options that an encoding requires. Wrappers are around `{WRAPPED}`; an encoding for
causal attention is joined with `causal`. [encodings.md](encodings.md) says how to write and join
names. `python tools/write_catalogue.py` writes this page and the cards, and measures encodings that
are new; do not edit them by hand. To measure others or your own as here:

```sh
python eval.py --config=configs/properties.py --encodings=rope,alibi --out=R
```

## Cards

x is a position, m = j − i the offset of a key from its query, S the sinusoid
[…, sin ωx, cos ωx, …], R a rotation by the angle. *Acts on* is the input of the model, queries and
keys (and values), logits, values that weights sum, the reach of a query, the temperature of the
softmax, or positions before another encoding sees them.

The picture has the first 32 positions (red is above the mean, blue below), and offsets up to 32, in
standard deviations from the mean; the band is the spread over positions. Windows and other lengths
are small in it, so that they can be seen.

## Properties

The declared property ("depends": on parameters or tokens), and next to it the violation measured
on the untrained encoding, from 0 (the property holds exactly) to 1.

- *Of*: P·Pᵀ of position vectors that are added to the input; for others the logits of {LENGTH}
  copies of one word, with equal random projections of queries and keys ({WORDS} words, mean over
  words and heads). Windows are left out; where queries attend to the left only, Φ is that side
  mirrored; positions of several axes are equal on all of them. The pictures show the same.
- *Invariant*, *TI*: does attention depend on differences of positions alone? A sinusoid's P·Pᵀ
  does, but not what W_Q and W_K make of it: hence "no" next to 0.
- *Symmetric*: Φ[i, j] = Φ[j, i].
- *Monotone*: do proximities strictly decrease with distance, on either side and without end?
  Measured over *all* offsets and *to 10*; ties count half.

## Requirements

- *Points* stand for positions: vectors of positions P_x or offsets P_m, or the logits that
  positions add for one query, with random projections ({WORDS} words × {_H} heads).
- *Distinct*: the smallest distance of two points over the root mean square, among {_L} positions.
  0: two coincide, as offsets do past a clip, in one bucket, or on both sides of a symmetric bias.
- *Size*: root mean square of a point's numbers for {LENGTH // 2} positions; a fresh BERT's word
  embeddings have 0.02. *Growth*: of the largest point from {LENGTH // 2} to {_L} positions; 1 is
  bounded.
- *Change by length, shift*: of proximities, as a share of their variance, in an input twice as long
  and at positions {_L // 2} further on. 0: none; about 2: unrelated.

## In attention

- *Fast at ranges, packed*: how terms of the offset are computed, at consecutive positions and at
  those of packed documents: from tables of offsets, or by rotation of queries. "any": there are no
  such terms. "–": only as the formula stands, which every encoding supports.
- *TPU kernel*, *cuDNN*: their kernels support it at ranges; cuDNN's in bfloat16.
- *Linear memory*: no array of a forward and backward pass in blocks has two axes of the length.
- *Time*: of a forward and backward pass of attention, {ROWS} × {_L} tokens in float32, over that of
  `none` in the same round: median (quartiles), without projections.
- *Memory*: temporary memory of the same for {LONG["num_heads"]} heads and {LONG["max_length"]:,}
  tokens, as compiled for a CPU, over that of `none`.
- *Export*: ONNX and StableHLO of an encoder ([serving](serving.md)), and families of transformers
  ([checkpoints](checkpoints.md#export)).
"""

_CHECKED = """
## Checks

Of `python -m pe_jax.testing`: documents packed into a row give what each gives alone; padding
changes nothing; decoding with a cache gives what causal attention gives ("–": keys change when the
sequence grows); bfloat16 and float16 stay near float32. All other checks of the suite pass, but for
those that a card names with the reason.

## Trained models

BERT-mini (4 layers of 256) from scratch on books, two million tokens, with
`python research/which_encoding/run.py`: mean over seeds (± standard deviation) of the masked-LM
loss on held-out rows of 128 tokens, its accuracy, and the loss on rows of 512 and 1,024, which it
has not seen, and of 512 after 200 steps on such rows. *Step*: time of a training step over that of
`none`.
The picture after training is of the first layer: P·Pᵀ for vectors that are added to the input, else
the logits of copies of one word, mean over 50 words and the heads.
"""

HEADER = (
    "encoding", "family", "loss at 128", "at 512", "time", "memory", "parameters", "positions",
    "acts on", "invariant", "packs", "caches", "TPU kernel", "export",
)  # fmt: skip


def page(
    rows: Sequence[Entry],
    results: Mapping[str, Measured],
    none_ms: Mapping[str, float],
    scores: trained.Lines,
) -> str:
    """Return the page.

    Args:
      results: by the row's title.
      none_ms: milliseconds of `none` by machine.
      scores: of trained models.
    """
    lines = [
        _ABOUT,
        *table(HEADER, [_row(row, results[row.title], scores) for row in rows]),
        _REST + _machines(rows, results, none_ms) + _CHECKED,
    ]
    return "\n".join(lines).strip() + "\n"


def _row(row: Entry, found: Measured, scores: trained.Lines) -> list[str]:
    family, longest = card.family(row.key), row.encoding.max_length
    names = {row.name, *([] if row.name != row.key else trained.defaults_of(row.key))}
    known = next((scores[name] for name in names if scores.get(name)), None)
    cells = dict(zip(trained.SCORES, trained.cells(known) if known else [""] * len(trained.SCORES)))
    return [
        f"[`{row.title}`](gallery/{family}.md#{row.key})",
        family,
        cells["loss/128"],
        cells["loss/512"],
        f"{found.cost.ratio:.2f}",
        card.ratio(found.memory),
        f"{parameter_count(row.encoding):,}",
        "any" if longest is None else f"{longest:,}",
        declared.acts(row),
        "yes" if declared.invariant(row) else "no",
        *("yes" if found.checks[CHECKS[n]] == "ok" else "no" for n in (0, 2)),
        "yes" if declared.term_forms(row.encoding).kernel else "no",
        ", ".join(found.exports).replace(", StableHLO", "") or "no",
    ]


def _machines(
    rows: Sequence[Entry], results: Mapping[str, Measured], none_ms: Mapping[str, float]
) -> str:
    """Return sentences on the machines of the times; only the first one's rows are not listed."""
    first, *others = none_ms
    text = f"\nTimes are of {first}, where `none` takes {none_ms[first]:.0f} ms."
    for machine in others:
        titles = [f"`{row.title}`" for row in rows if results[row.title].machine == machine]
        text += f" Those of {', '.join(titles)}: {machine}, {none_ms[machine]:.0f} ms."
    return text + "\n"
