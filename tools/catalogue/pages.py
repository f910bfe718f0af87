"""The pages: the table of all encodings with the meaning of its numbers, and the cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from catalogue import card, entries, formatting, trained
from catalogue.cost import LONG, ROWS
from catalogue.drawings import PARTNERS
from catalogue.entries import SIZES, WRAPPED, Entry, rows
from catalogue.measured import CHECKS, LENGTH, Measured, Results
from pe_jax.encodings import parameter_count
from pe_jax.properties.encoding_measures import WORDS
from research.which_encoding.results import Lines, read_lines

_D, _HEAD, _H, _L = SIZES.values()

_ABOUT = f"""# All position encodings

This page lists every position encoding of the package. Each name leads to a card with its formula,
when to use it, code, a picture of its logits, results and options.
[Which encoding?](which-encoding.md) recommends one for each situation, and the
[explorer](explore.md) shows up to four side by side.

{{loss}}- *time*, *memory*: of [attention](#in-attention), divided by those of attention without
  positions. Differences in time below about 10 % are noise.
- *parameters*, *longest input*: for the sizes of BERT-base, hidden size D = {_D}, H = {_H} heads of
  d = {_HEAD}, and L = {_L} positions.
- *acts on*: where positions enter the model. *q, k* and *v* are queries, keys and values, *logits*
  the scores before the softmax, *temperature* a factor of them, and *mask* the choice of keys.
- *invariant*: attention depends on positions by their differences alone.
- *packs*: packing several documents into one row does not change their outputs. *caches*: decoding
  with a cache of keys and values gives the same as causal attention over the whole input.
- *TPU kernel*: whether it supports the encoding. In brackets, without it: the estimated time of
  attention at {_L} tokens on a TPU, divided by that of `none` in the kernel, where it was
  [compiled](tpu-estimates.md#encodings-without-the-kernel).
- *export*: what a model can be [exported](serving.md) to; ONNX always means StableHLO too.

`(…)` stands for options that an encoding requires. Wrappers, such as `shifted`, are shown around
`{WRAPPED}`, and encodings that need causal attention are joined with `causal`. The table has more
rows than there are [encodings](encodings.md#how-many-are-there): `none`, modifiers, wrappers and
some options have rows of their own.
"""

_LOSS = """- *loss*: masked-LM loss of a small BERT [trained with the encoding](#trained-models), on
  held-out rows of 64 tokens and of 512, which are longer than those in training. *≤*: an upper
  bound, since the learning rate of the encoding's parameters was not chosen for it.
"""

_REST = f"""
[Names of encodings](encodings.md) explains how to write and join names. To measure the properties
of other encodings, or of your own:

```sh
python eval.py --config=configs/properties.py --encodings=rope,alibi --out=R
```

## Cards

In formulas x is a position, m = j − i the offset of key j from query i, S the sinusoid
[…, sin ωx, cos ωx, …], and R a rotation by an angle. Cards of scaled RoPE have the rotation of a
query at position i alone; that of the key at j is the same with j. There s is the option `factor`,
r the number of dimensions that rotate, L the trained length, and n the length of the input.

The picture shows the first 32 positions on the left (red is above the mean, blue below). On the
right is the mean over pairs of the same offset, less the mean of all and divided by their standard
deviation, with the spread over positions as a band. So a nearly flat encoding looks as strong as a
steep one. Windows and similar lengths are reduced to fit into 32 positions. Before training,
queries and keys have the same projection (W_Q = W_K); a trained model has learned two different
ones.

**Load it** lists [published encoders](huggingface.md#published-encoders) with this encoding, by
their names on the Hugging Face Hub, and in brackets their `model_type`. A card without it has none.

The sections below define the rows of a card.

## Properties

A cell has what the encoding declares ("depends": on its parameters, or on the tokens), and in
brackets how much the property was violated before training: 0 if it holds exactly, up to 1.

- **properties of**: the proximities Φ that were measured. *P·Pᵀ* are products of the position
  vectors that are added to the input. *logits* are the attention logits of {LENGTH} copies of one
  word with equal random projections of queries and keys, mean over {WORDS} words and the heads.
  Windows are left out. Of causal encodings, the side to the left is mirrored. Positions of several
  axes are equal on all of them. The pictures show Φ too.
- **translation invariant**: attention depends on differences of positions alone. "no
  (0.000)" means that the vectors are invariant and logits are not: products of sinusoids depend on
  the offset alone, but not once queries and keys are projected.
- **symmetric**: Φ[i, j] = Φ[j, i].
- **monotone**: proximities strictly decrease with the distance, on either side and without end.
  The violation is the share of pairs of distances in the wrong order, ties counting half.
  **violation within 10 tokens**: the same share for distances up to 10.

## Requirements

Points should be distinct, bounded, and independent of the length and of a shift
([formulas](measures/requirements.md)).

- **points**: the numbers that stand for a position. *P_x* are vectors of positions, *P_m* vectors
  of offsets, and *logits* what positions add to the logits of one query, with random projections
  ({WORDS} words × {_H} heads).
- **smallest distance** between two of {_L} points, over the root mean square of all distances. 0:
  two positions look the same, as do offsets beyond `max_distance`, in one bucket, or on both sides
  of a symmetric bias.
- **size**: root mean square of the numbers in the points of {LENGTH // 2} positions. Word
  embeddings of a fresh BERT have 0.02.
- **growth**: the longest point of {_L} positions over that of {LENGTH // 2}. 1: it does not grow.
- **change in a longer input**: how much proximities change in an input twice as long, as a share of
  their variance. 0: not at all; about 2: unrelated. **change at a later position**: the same at
  positions {_L // 2} further on.

## In attention

- **offset terms**: how terms of the offset are computed at consecutive positions, and at those of
  **packed** documents. *tables* looks offsets up, *rotation* rotates the queries, and *pair by
  pair* computes the formula for every query and key. *none*: there are no such terms.
- **kernels**: those of a TPU and of cuDNN that support it at consecutive positions; cuDNN's in
  bfloat16.
- **linear memory**: no array of a forward and backward pass in blocks has two axes of the length,
  at consecutive positions or at those of packed documents.
- **time**: of a forward and backward pass of attention over {ROWS} × {_L} tokens in float32,
  without projections, over that of `none` in the same round: median (quartiles).
- **memory**: temporary memory of such a pass of {LONG["num_heads"]} heads and
  {LONG["max_length"]:,} tokens, as compiled for a CPU, over that of `none`.
- **exports to**: [ONNX and StableHLO](serving.md) for an encoder, and
  [families of transformers](checkpoints.md#export). ONNX and StableHLO were tried for positions of
  one axis.
"""

_CHECKED = """
## Checks

These checks of `python -m pe_jax.testing` have a name on the cards:

- **packing**: documents packed into a row give what each gives alone.
- **padding** changes nothing.
- **cache**: decoding with a cache gives what causal attention gives. Encodings whose keys change as
  the sequence grows have no cache.
- **bfloat16**: results in bfloat16 and float16 stay near those in float32.

All other checks of the suite pass too, except those that a card names with the reason.
"""

_TRAINED = """
## Trained models

`python research/which_encoding/run.py` pretrains a BERT-mini (4 layers of 256) in bfloat16 on books
with every encoding: a million tokens, in rows of 16 and then of 64. Absolute sinusoids have
`scale=0.03`. A card has

- the ratio of the learning rate of the encoding's parameters to that of all others, chosen among
  four for this encoding; where it has parameters and no ratio, they are the same, and losses are
  upper bounds (≤);
- the masked-LM loss on held-out rows of 64 tokens, mean over seeds ± standard deviation, and its
  accuracy;
- the loss on rows of 256 and of 512, which are longer than in training;
- the loss on rows of 256 after 60 more steps of such rows.

The picture after training is of the first layer: P·Pᵀ of vectors that are added to the input, else
the logits of copies of one word, mean over 50 words and the heads.
"""

HEADER = (
    "encoding", "family", "loss, 64 tokens", "loss, 512 tokens", "time", "memory", "parameters",
    "longest input", "acts on", "invariant", "packs", "caches", "TPU kernel", "export",
)  # fmt: skip


def _catalogue_page(
    rows: Sequence[Entry],
    results: Mapping[str, Measured],
    none_ms: Mapping[str, float],
    scores: Lines,
) -> str:
    """Return the page.

    Args:
      results: by the row's title.
      none_ms: milliseconds of `none` by machine.
      scores: of trained models.
    """
    lines = [
        _ABOUT.format(loss=_LOSS if scores else ""),
        *card.filled_columns(
            HEADER, [_row(row, results[row.title], scores) for row in rows]
        ),
        _REST
        + _machines(rows, results, none_ms)
        + _CHECKED
        + (_TRAINED if scores else ""),
    ]
    return "\n".join(lines).strip() + "\n"


def _row(row: Entry, found: Measured, scores: Lines) -> list[str]:
    family, longest = card.family(row.key), row.encoding.max_length
    names = {row.name, *([] if row.name != row.key else trained.defaults_of(row.key))}
    cells = dict.fromkeys(trained.SCORES, "")
    for name in names:
        if scores.get(name):
            cells = dict(zip(trained.SCORES, trained.cells(name, scores[name])))
            break
    return [
        f"[`{row.title}`](gallery/{family}.md#{row.key})",
        family,
        cells["loss/64"],
        cells["loss/512"],
        f"{found.cost.ratio:.2f}",
        card.ratio(found.memory),
        f"{parameter_count(row.encoding):,}",
        "any" if longest is None else f"{longest:,}",
        entries.acts(row),
        "yes" if entries.invariant(row) else "no",
        *("yes" if found.checks[CHECKS[n]] == "ok" else "no" for n in (0, 2)),
        card.kernel_cell(row),
        ", ".join(found.exports).replace(", StableHLO", "") or "no",
    ]


def _machines(
    rows: Sequence[Entry], results: Mapping[str, Measured], none_ms: Mapping[str, float]
) -> str:
    """Return sentences on the machines of the times; only the first one's rows are not listed."""
    first, *others = none_ms
    text = f"\nTimes are of {first}, where `none` takes {none_ms[first]:.0f} ms."
    for machine in others:
        titles = [
            f"`{row.title}`" for row in rows if results[row.title].machine == machine
        ]
        text += f" Those of {', '.join(titles)}: {machine}, {none_ms[machine]:.0f} ms."
    return text + "\n"


def pages(entries: Sequence[Entry], results: Results) -> dict[str, str]:
    """Return pages by their path in docs/.

    Args:
      entries: rows of the table.
    """
    scores, pictures = (read_lines(f"{name}.jsonl") for name in ("results", "pictures"))
    keys = {row.key for row in entries}
    first = {
        row.key: row for row in reversed(rows(formatting.SIZES)) if row.key in keys
    }
    code = {
        key: formatting.snippet(row, PARTNERS.get(key, ""))
        for key, row in first.items()
    }
    families = dict.fromkeys(card.family(row.key) for row in entries)
    return {
        "catalogue.md": _catalogue_page(entries, results.rows, results.none_ms, scores),
        **{
            f"gallery/{name}.md": card.family_page(
                name, entries, results.rows, code, scores, pictures
            )
            for name in families
        },
    }
