"""Time of embeddings of texts, beside sentence-transformers with PyTorch, and their difference.

    pip install '.[parity]' sentence-transformers
    python benchmarks/sentence_embeddings.py --model=FOLDER --text='text/*.txt'

Both encode the same texts in turn, several times, in float32. The texts are paragraphs of files,
half of them cut into sentences. Compilation is the difference between the first and the second run
of pe_jax.
"""

from __future__ import annotations

import glob
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from absl import app, flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from pe_jax import interop

_MODEL = flags.DEFINE_string("model", None, "Folder of a model.", required=True)
_TEXT = flags.DEFINE_list("text", None, "Patterns of text files.", required=True)
_COUNT = flags.DEFINE_integer("count", 1000, "How many texts.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Of each library, in turn.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Of both libraries.")


def read_texts(patterns: list[str], count: int) -> list[str]:
    """Return texts of mixed length: paragraphs of the files, and sentences of other paragraphs."""
    files = [Path(file) for pattern in patterns for file in sorted(glob.glob(pattern))]
    lines = [line.strip() for file in files for line in file.open(encoding="utf-8")]
    paragraphs = [line for line in lines if len(line) > 60]
    draw = random.Random(0)
    draw.shuffle(paragraphs)
    texts: list[str] = []
    for paragraph in paragraphs:
        if len(texts) >= count:
            break
        if len(texts) % 2:
            texts.append(paragraph)
        else:
            sentences = re.split(r"(?<=[.!?]) ", paragraph)
            texts += [sentence for sentence in sentences if len(sentence) > 20][:3]
    return texts[:count]


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def spread(times: list[float]) -> str:
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


def main(_) -> None:
    from sentence_transformers import SentenceTransformer

    texts = read_texts(_TEXT.value, _COUNT.value)
    load_theirs = seconds(lambda: SentenceTransformer(_MODEL.value, device="cpu"))
    load_ours = seconds(lambda: interop.load_encoder(_MODEL.value, heads=()))
    theirs = SentenceTransformer(_MODEL.value, device="cpu")
    ours = interop.load_encoder(_MODEL.value, heads=())

    def encode_ours() -> np.ndarray:
        return ours.encode(texts, batch_size=_BATCH_SIZE.value, progress=False)

    def encode_theirs() -> np.ndarray:
        return theirs.encode(
            texts, batch_size=_BATCH_SIZE.value, show_progress_bar=False
        )

    first = seconds(lambda: ours.encode("Where is the exit?"))
    first_theirs = seconds(lambda: theirs.encode("Where is the exit?"))
    compiling = seconds(encode_ours)
    encode_theirs()
    times_ours, times_theirs = [], []
    for _ in range(_ROUNDS.value):
        times_ours.append(seconds(encode_ours))
        times_theirs.append(seconds(encode_theirs))
    ratios = [b / a for a, b in zip(times_ours, times_theirs)]
    difference = np.abs(encode_ours() - encode_theirs()).max()
    lengths = [len(encoding) for encoding in ours.tokenizer.encode_batch(texts)]
    low, median, high = np.percentile(lengths, [10, 50, 90])
    print(
        f"{len(texts)} texts of {low:.0f} / {median:.0f} / {high:.0f} tokens (10, 50, 90 %), "
    )
    print(f"batches of {_BATCH_SIZE.value}, float32, {jax.devices()[0].device_kind}")
    print("| | pe_jax | sentence-transformers |")
    print("|---|---|---|")
    print(f"| load, s | {load_ours:.2f} | {load_theirs:.2f} |")
    print(f"| first text, s | {first:.2f} | {first_theirs:.2f} |")
    print(f"| all texts, s | {spread(times_ours)} | {spread(times_theirs)} |")
    print(f"| compilation for all texts, s | {compiling - min(times_ours):.2f} | |")
    print(f"times as fast: {spread(ratios)}; largest difference {difference:.1e}")


if __name__ == "__main__":
    app.run(main)
