"""What a study runs: its cells, from its config.

A cell is one run or measurement in a folder of its own, done once that has a `done.json`:

    S/from_scratch/pretraining/rope         a pretraining run
    S/from_scratch/measures/rope            properties of that run
    S/from_scratch/squad/rope               fine-tuned from it, all seeds in one program
    S/from_scratch/pretraining/none, seed 1 pretrained again with another seed
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from pe_jax import encodings
from pe_jax.encodings import split_names, without_options
from pe_jax.training import workdir

ARMS = ("from_scratch", "replaced")
TASKS = ("squad", "cola", "rte", "mrpc", "sst2")
PRETRAINING, MEASURES = "pretraining", "measures"
KEPT = ", kept"  # After the name of an encoding: with the published model's parameters.


class Cell(NamedTuple):
    """A run of a study, or a measurement of one.

    Attributes:
      arm: of `ARMS`.
      kind: PRETRAINING, MEASURES or one of `TASKS`.
      model: the pretrained model that it is, or starts from, as tables name it: its encoding
        without options, and what else sets it apart.
      position: the encoding; seed: of pretraining.
      folder: where it goes.
      needs: the folder of the cell that has to be done before; None if there is none.
      config: all of it, as `train.py` and `eval.py` take them.
      lengths: of inputs, that it is scored on in the end as well.
    """

    arm: str
    kind: str
    model: str
    position: str
    seed: int
    folder: Path
    needs: Path | None
    config: ConfigDict
    lengths: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.arm}/{self.kind}/{self.model}"

    @property
    def settings(self) -> str:
        """A digest of what the cell's numbers depend on, wherever the study stands."""
        config = self.config.copy_and_resolve_references()
        if self.needs and "init" in config:
            config.init = self.needs.name
        return workdir.identity(config, json.dumps(self.lengths))


def cells(config: ConfigDict, folder: Path) -> list[Cell]:
    """The cells of the study in `folder`, in the order of their making, so that whatever is done at
    any time compares encodings: in each arm what its config names first, then the rest, then
    repetitions; within each model by model, whole, so that few weights are needed at a time.

    Raises:
      ValueError: for an encoding that is not known, or named twice.
    """
    arms = [arm for arm in ARMS if arm == "from_scratch" or config.published]
    rounds = [_rounds(config, arm, folder) for arm in arms]
    plan = [cell for of_all in zip(*rounds) for of_one in of_all for cell in of_one]
    models = [cell.name for cell in plan if cell.kind == PRETRAINING]
    if twice := sorted({name for name in models if models.count(name) > 1}):
        raise ValueError(
            f"A study has each model once; it has {', '.join(twice)} twice. Models are named "
            "without the options of encodings: compare options in studies of their own."
        )
    return plan


def _rounds(config: ConfigDict, arm: str, folder: Path) -> tuple[list[Cell], ...]:
    own, tasks = config[arm], split_names(config.tasks)
    model = lambda *args, **options: _pretrained(config, arm, folder, *args, **options)
    kept = [model(one, 0, kept=True) for one in positions(own.kept)]
    first = [model(one, 0) for one in positions(own.first)]
    then = [model(one, 0) for one in positions(own.then)]
    again = [model(one, seed) for seed in own.repeats for one in positions(own.first)]
    return (
        [*_whole(config, [*kept, *first], tasks)],
        [*_whole(config, then, tasks)],
        [*_whole(config, again, [])],
    )


def _whole(config: ConfigDict, models: Sequence[Cell], tasks: Sequence[str]) -> Iterator[Cell]:
    for model in models:
        yield model
        yield _measured(model, config)
        for task in tasks:
            yield _finetuned(model, task, config)


def beside(model: Cell, kind: str) -> Path:
    """The folder of the cell of another kind that starts from `model`."""
    return model.folder.parent.parent / kind / model.folder.name


def positions(text: str) -> list[str]:
    """Names of encodings joined by commas; `paper` stands for the paper's 13."""
    wanted = {"paper": encodings.PAPER}
    return [one for name in split_names(text) for one in wanted.get(name, (name,))]


def _pretrained(
    config: ConfigDict, arm: str, folder: Path, position: str, seed: int, *, kept: bool = False
) -> Cell:
    own = config[arm].pretraining.copy_and_resolve_references()
    own.model.position = position
    own.seed = seed
    own.data.source, own.data.validation = config.text, config.held_out_text
    own.data.data_dir = config.data_dir
    if arm == "replaced":
        own.init, own.keep_position = config.published, kept
    else:
        own.init = ""
    model = without_options(position) + (KEPT if kept else "") + (f", seed {seed}" * bool(seed))
    at = folder / arm / PRETRAINING / model
    return Cell(arm, PRETRAINING, model, position, seed, at, None, own)


def _measured(model: Cell, config: ConfigDict) -> Cell:
    measures = config.measures.copy_and_resolve_references()
    at = beside(model, MEASURES)
    return model._replace(kind=MEASURES, folder=at, needs=model.folder, config=measures)


def _finetuned(model: Cell, task: str, config: ConfigDict) -> Cell:
    own = (config.squad if task == "squad" else config.glue).copy_and_resolve_references()
    own.task, own.steps, own.init = task, config.steps[task], str(model.folder)
    own.data.data_dir = config.data_dir
    at = beside(model, task)
    lengths = tuple(config.lengths) if task == "squad" else ()
    return model._replace(kind=task, folder=at, needs=model.folder, config=own, lengths=lengths)
