r"""Give all-mpnet-base-v2 other positions, and measure what it keeps: a check at 110 M parameters.

    python research/base_size/run.py --mpnet=MPNET --text='wikitext-2/*.txt' \
        --questions=dev-v1.1.json --workdir=W

Copies of the encoder with other encodings imitate it on a million tokens of text, by the recipe of
configs/distill_positions.py in bfloat16. The encoder as published and the one without its positions
are controls that need no training. Measured are R² of the last states on held-out text, R² of their
changes when words or sentences are shuffled, and retrieval: the place of the paragraph of SQuAD
that answers a question, among 500.

Each model is a line of results.jsonl. The same command resumes, also within a model; several
processes may share the work: --encodings=rope,alibi. Models stay in W.

Hardware: any; about two hours for each model on a core of a CPU with bfloat16 instructions.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from absl import app, flags

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pe_jax import interop
from pe_jax.common.schema import changed, from_values
from pe_jax.interop import PublishedEncoder
from pe_jax.trainer import load_run
from pe_jax.trainer.configs import distill_positions
from pe_jax.trainer.configs.all_tasks import TRAINING
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.console import huge_pages
from pe_jax.trainer.disk_cache import cache_compiled_programs
from pe_jax.trainer.tasks import distillation
from pe_jax.trainer.training.metrics import read_evaluations
from research.base_size import retrieval
from research.flag_values import chosen, required
from research.json_files import append_json_line, has_json_line

RESULTS = Path(__file__).resolve().parent / "results.jsonl"
PUBLISHED, UNTRAINED = "published", "none"  # Controls, without training.
ENCODINGS = ("learned_absolute", "rope", "learned_relative", "t5", "alibi")
STEPS, EVERY = 1_000, 250  # Of 4 rows of 256 tokens; between evaluations.
PAIRS = 500
SCORES = ("r2", "r2_mean", "order/words/token_r2", "order/sentences/token_r2")

_MPNET = flags.DEFINE_string("mpnet", None, "Folder of all-mpnet-base-v2.")
_TEXT = flags.DEFINE_string("text", None, "Source of text to distil on.")
_QUESTIONS = flags.DEFINE_string("questions", None, "File of SQuAD's questions.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the distilled models.")
_ENCODINGS = flags.DEFINE_list("encodings", [], "Names without commas; default: all.")


def distil(position: str, mpnet: Path, text: str, folder: Path) -> dict[str, object]:
    """Distil the encoder into another encoding in a folder, or resume; return time and scores."""
    changes: dict[str, object] = {
        "init": str(mpnet),
        "model.position": position,
        "model.dtype": "bfloat16",
        "data.source": text,
        "stage1.steps": STEPS,
        "eval_every": EVERY,
        "eval_examples": 32,
        "patience": 0,  # All have as many steps.
        "checkpoint_every": EVERY,
    }
    shipped: DistillationConfig = from_values(distill_positions.get_config(), TRAINING)
    config = changed(shipped, changes)
    start = time.monotonic()
    distillation.run(config, folder)
    seconds = round(time.monotonic() - start, 1)
    evaluations = read_evaluations(folder)
    tokens = config.stage1.batch_size * config.stage1.length
    last = evaluations[max(evaluations)]
    return {
        "seconds": seconds,
        "tokens": STEPS * tokens,
        "curve": [
            (step * tokens, round(scores["r2"], 5))
            for step, scores in evaluations.items()
        ],
        **{name: round(last[name], 5) for name in SCORES},
    }


def trained(encoder: PublishedEncoder, folder: Path) -> PublishedEncoder:
    """Return the encoder with the positions and parameters of a distilled model."""
    config, params = load_run(folder)
    return encoder.replace(config=config, params=params)


def main(_: list[str]) -> None:
    mpnet, text, questions_file, workdir = required(_MPNET, _TEXT, _QUESTIONS, _WORKDIR)
    cache_compiled_programs()
    published = interop.load_encoder(mpnet)
    questions, paragraphs = retrieval.pairs(Path(questions_file), PAIRS)
    for position in chosen(_ENCODINGS, (PUBLISHED, UNTRAINED, *ENCODINGS)):
        about: dict[str, object] = {"position": position, "seed": 0}
        if has_json_line(RESULTS, about):
            continue
        print(f"== {position}", flush=True)
        encoder, scores = published, {}
        if position == UNTRAINED:
            encoder = published.with_position("none")
        elif position != PUBLISHED:
            folder = Path(workdir) / position
            scores = distil(position, Path(mpnet), text, folder)
            encoder = trained(published, folder)
        found = retrieval.places(encoder, questions, paragraphs)
        append_json_line(RESULTS, about | scores | {"places": found})


if __name__ == "__main__":
    huge_pages.use()
    app.run(main)
