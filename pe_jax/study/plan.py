"""The runs of a study, from its config.

A run trains or measures in a folder of its own, and is complete once that has a `result.json`:

    S/from_scratch/pretraining/rope         a pretraining run
    S/from_scratch/measures/rope            properties of that model
    S/from_scratch/squad/rope               fine-tuned from it, all seeds in one program
    S/from_scratch/pretraining/none, seed 1 pretrained again with another seed
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pe_jax import encodings
from pe_jax.configs.finetuning import FinetuningConfig
from pe_jax.configs.pretraining import PretrainingConfig
from pe_jax.configs.properties import PropertiesConfig
from pe_jax.configs.study import StudyConfig
from pe_jax.encodings import split_names, without_options
from pe_jax.schema import changed
from pe_jax.training import workdir

ARMS = ("from_scratch", "replaced")
TASKS = ("squad", "cola", "rte", "mrpc", "sst2")
PRETRAINING, MEASURES = "pretraining", "measures"
RESULT = "result.json"  # Written last.
KEPT = ", kept"  # After the name of an encoding: with the published model's parameters.


class Run(NamedTuple):
    """A run of a study.

    Attributes:
      arm: of `ARMS`.
      kind: PRETRAINING, MEASURES or one of `TASKS`.
      model: the pretrained model that it is, or starts from, as tables name it: its encoding
        without options, and what else sets it apart.
      position: the encoding; seed: of pretraining.
      folder: where it goes.
      needs: the folder of the run that has to be complete before; None if there is none.
      config: all of it, as `train.py` and `eval.py` take them.
      lengths: other input lengths that it is scored on in the end.
    """

    arm: str
    kind: str
    model: str
    position: str
    seed: int
    folder: Path
    needs: Path | None
    config: PretrainingConfig | FinetuningConfig | PropertiesConfig
    lengths: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.arm}/{self.kind}/{self.model}"

    @property
    def settings(self) -> str:
        """A digest of the settings that the run's numbers depend on, not of the study's folder."""
        config = self.config
        if self.needs and isinstance(config, FinetuningConfig):
            config = changed(config, {"init": self.needs.name})
        return workdir.identity(config, json.dumps(self.lengths))


def plan(config: StudyConfig, folder: Path) -> list[Run]:
    """Return the runs of the study in `folder`, in the order of their execution.

    What is done at any time compares encodings: in each arm the encodings of `first` come before
    those of `then`, and repeated seeds last. All runs of a model follow its pretraining, so that
    few weights are needed at a time.

    Raises:
      ValueError: for an encoding that is not known, or named twice.
    """
    arms = [arm for arm in ARMS if arm == "from_scratch" or config.published]
    rounds = [_rounds(config, arm, folder) for arm in arms]
    runs = [run for arms_round in zip(*rounds) for arm_runs in arms_round for run in arm_runs]
    models = [run.name for run in runs if run.kind == PRETRAINING]
    if twice := sorted({name for name in models if models.count(name) > 1}):
        raise ValueError(
            f"A study can contain a model only once; {', '.join(twice)} is listed twice. Models "
            "are identified without the options of their encodings, so compare options in "
            "separate studies."
        )
    return runs


def _rounds(config: StudyConfig, arm: str, folder: Path) -> tuple[list[Run], ...]:
    """Return the runs of `first`, of `then`, and of the repeated seeds."""
    settings, tasks = getattr(config, arm), split_names(config.tasks)
    first, then, kept = (
        positions(names) for names in (settings.first, settings.then, settings.kept)
    )

    def pretrained(position: str, seed: int = 0, keep: bool = False) -> Run:
        return _pretraining(config, arm, folder, position, seed, keep)

    models = [pretrained(position, keep=True) for position in kept]
    models += [pretrained(position) for position in first]
    repeats = [pretrained(position, seed) for seed in settings.repeats for position in first]
    return (
        [*_with_dependents(config, models, tasks)],
        [*_with_dependents(config, [pretrained(position) for position in then], tasks)],
        [*_with_dependents(config, repeats, [])],
    )


def _with_dependents(
    config: StudyConfig, models: Sequence[Run], tasks: Sequence[str]
) -> Iterator[Run]:
    """Yield each pretraining run, and the runs that measure or fine-tune its model."""
    for model in models:
        yield model
        runs = model.folder.parent.parent
        yield model._replace(
            kind=MEASURES,
            folder=runs / MEASURES / model.folder.name,
            needs=model.folder,
            config=config.measures,
        )
        for task in tasks:
            changes = {
                "task": task,
                "steps": getattr(config.steps, task),
                "init": str(model.folder),
                "data.data_dir": config.data_dir,
            }
            yield model._replace(
                kind=task,
                folder=runs / task / model.folder.name,
                needs=model.folder,
                config=changed(config.squad if task == "squad" else config.glue, changes),
                lengths=config.lengths if task == "squad" else (),
            )


def positions(text: str) -> list[str]:
    """Split names of encodings joined by commas; `paper` stands for the paper's 13."""
    groups = {"paper": encodings.PAPER}
    return [member for name in split_names(text) for member in groups.get(name, (name,))]


def _pretraining(
    config: StudyConfig, arm: str, folder: Path, position: str, seed: int, keep: bool
) -> Run:
    changes = {
        "model.position": position,
        "seed": seed,
        "data.source": config.text,
        "data.validation": config.held_out_text,
        "data.data_dir": config.data_dir,
        "init": "",
    }
    if arm == "replaced":
        changes |= {"init": config.published, "keep_position": keep}
    settings = changed(getattr(config, arm).pretraining, changes)
    model = without_options(position) + (KEPT if keep else "") + (f", seed {seed}" * bool(seed))
    path = folder / arm / PRETRAINING / model
    return Run(arm, PRETRAINING, model, position, seed, path, None, settings)
