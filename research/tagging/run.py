r"""Fine-tune encoders that differ in their positions alone on tagging, and on sentence tasks.

    python research/tagging/run.py --books=BOOKS --tagging=DATA --minilm=MINILM \
        --scratch=S --workdir=W

BERT-minis from scratch are those of ten million tokens that research/which_encoding/more_tokens.py
trains in S; what is missing there is trained. The published MiniLM gets other positions by
distillation (configs/distill_positions.py). Each is fine-tuned with two seeds on NCBI disease,
WNUT-17 and UD English-EWT (XPOS), and with --tfds on CoLA and SST-2.

Each model on each task is a line of results.jsonl. The same command resumes, also within a run, and
several processes may share the work: --part=0/2 takes every second model. Distilled models stay in
W/models.

Hardware: any.
"""

from __future__ import annotations

import sys
from pathlib import Path

from absl import app, flags

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pe_jax.trainer.console import huge_pages
from pe_jax.trainer.disk_cache import cache_compiled_programs
from research.flag_values import chosen, required
from research.json_files import append_json_line, has_json_line
from research.tagging import plan, runs

RESULTS = Path(__file__).resolve().parent / "results.jsonl"

_BOOKS = flags.DEFINE_string("books", None, "Folder of books as JSON lines.")
_TAGGING = flags.DEFINE_string("tagging", None, "Folder of the files of tagged words.")
_MINILM = flags.DEFINE_string("minilm", None, "Folder of the published MiniLM.")
_SCRATCH = flags.DEFINE_string(
    "scratch", None, "Folder of models from scratch; more_tokens.py uses it too."
)
_TFDS = flags.DEFINE_string("tfds", "", "Folder of the tfds datasets of GLUE.")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of distilled models and of runs."
)
_PART = flags.DEFINE_string("part", "0/1", "Which share of the models, as 0/2 and 1/2.")
_ORIGINS = flags.DEFINE_list(
    "origins", [], "Of published, distilled and scratch; default: all."
)
_POSITIONS = flags.DEFINE_list("positions", [], "Names of encodings; default: all.")
_SEEDS = flags.DEFINE_list(
    "seeds", [], "Of pretraining or distillation, 0 and 1; default: both."
)
_TASKS = flags.DEFINE_list("tasks", [], "Names of tasks; default: all with data.")


def _chosen_models() -> list[plan.Model]:
    models = all_models = list(plan.models())
    holders = {"origin": _ORIGINS, "position": _POSITIONS, "seed": _SEEDS}
    for name, holder in holders.items():
        accepted = dict.fromkeys(str(getattr(model, name)) for model in all_models)
        values = chosen(holder, list(accepted))
        models = [model for model in models if str(getattr(model, name)) in values]
    return models


def main(_: list[str]) -> None:
    books, tagging, minilm, scratch, workdir = map(
        Path, required(_BOOKS, _TAGGING, _MINILM, _SCRATCH, _WORKDIR)
    )
    cache_compiled_programs()
    folders = runs.Folders(
        work=workdir,
        scratch=scratch,
        books=books,
        tagging=tagging,
        minilm=minilm,
        tfds=_TFDS.value,
    )
    part, parts = map(int, _PART.value.split("/"))
    tasks = chosen(_TASKS, runs.tasks(folders))
    for model in _chosen_models()[part::parts]:
        for name in tasks:
            about = model._asdict() | {"task": name}
            if has_json_line(RESULTS, about):
                continue
            print(f"== {about}", flush=True)
            record = runs.measure(model, name, folders)
            append_json_line(RESULTS, about | record)


if __name__ == "__main__":
    huge_pages.use()
    app.run(main)
