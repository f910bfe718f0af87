"""What all-mpnet-base-v2 keeps with other positions: README.md beside this file.

python research/base_size/report.py
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pe_jax.common.files import write_text
from pe_jax.common.markdown import raw_table
from research.json_files import read_json_lines

FOLDER = Path(__file__).resolve().parent
REFERENCE = "rope"
_ABOUT = """\
# Other positions in a published encoder of base size

all-mpnet-base-v2 (12 layers of 768, 110 million parameters) has a table of absolute positions and a
bias for offsets as T5 has. Copies with other positions imitate it on a million tokens of WikiText-2
([distillation](../../docs/distillation.md), bfloat16). One distillation each.

```sh
python research/base_size/run.py --mpnet=MPNET --text=wikitext-2/train.txt \\
    --questions=dev-v1.1.json --workdir=W
python research/base_size/report.py
```

- *R²*: of the last states on held-out text; 1 is the published encoder. *Half way*: after half of
  the tokens. *Shuffled*: of the changes of the states when the words or the sentences of a text are
  shuffled.
- *MRR*: mean of 1 over the place of the paragraph that answers a question, among {count} paragraphs
  of SQuAD, in points; *first*: how often it has place 1.
- *Difference*: of MRR to `{reference}` over the same questions, with an interval of 95 % of each
  row alone. It includes the choice of questions, not the spread between distillations: small
  differences stay undecided.
- `published` and `none` were not trained: `none` is the published encoder without its positions.

"""

Line = Mapping[str, Any]


def reciprocals(line: Line) -> np.ndarray:
    """Return 1 over the place of each question's paragraph."""
    return 1 / np.array(line["places"], np.float64)


def difference(line: Line, reference: Line) -> tuple[float, float]:
    """Return the difference of MRR to that of `reference`, and half the width of its interval."""
    by_question = reciprocals(line) - reciprocals(reference)
    error = by_question.std(ddof=1) / len(by_question) ** 0.5
    return float(by_question.mean()), 1.96 * float(error)


def difference_cell(line: Line, reference: Line | None) -> str:
    if reference is None or line is reference:
        return ""
    value, width = difference(line, reference)
    return f"{100 * value:+.1f} ± {100 * width:.1f}"


def half_way_cell(line: Line) -> str:
    """Return R² at the evaluation in the middle of training."""
    if "curve" not in line:
        return "–"
    _, r2 = line["curve"][len(line["curve"]) // 2]
    return f"{r2:.3f}"


def table(lines: Sequence[Line]) -> list[str]:
    """Return the lines of the table of results, the highest MRR first."""
    by_position = {line["position"]: line for line in lines}
    reference = by_position.get(REFERENCE)
    rows = []
    for line in sorted(lines, key=lambda line: -reciprocals(line).mean()):
        mrr = reciprocals(line)
        cells = [f"`{line['position']}`", half_way_cell(line)]
        for name in ("r2", "order/words/token_r2", "order/sentences/token_r2"):
            cells.append(f"{line[name]:.3f}" if name in line else "–")
        cells += [f"{100 * mrr.mean():.1f}", f"{100 * (mrr == 1).mean():.1f}"]
        rows.append([*cells, difference_cell(line, reference)])
    header = [
        "encoding", "R², half way", "R²", "words shuffled", "sentences shuffled", "MRR", "first",
        "difference",
    ]  # fmt: skip
    return raw_table(header, rows)


def page(lines: Sequence[Line]) -> str:
    """Return README.md."""
    count = len(lines[0]["places"])
    about = _ABOUT.format(count=count, reference=REFERENCE)
    return "\n".join([about, *table(lines)]) + "\n"


def main() -> None:
    write_text(FOLDER / "README.md", page(read_json_lines(FOLDER / "results.jsonl")))


if __name__ == "__main__":
    main()
