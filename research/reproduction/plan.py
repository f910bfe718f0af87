"""The runs of a study, from its config.

A run trains or measures in a folder of its own, and is complete once that has a `result.json`:

    S/from_scratch/pretraining/rope         a pretraining run
    S/from_scratch/pretraining/none, seed 1 pretrained again with another seed
    S/from_scratch/measures/rope            properties of that model
    S/replaced/distillation/rope            a published model with its positions replaced
    S/replaced/squad/rope                   fine-tuned from it, all seeds in one program
    S/replaced/squad/untouched              fine-tuned from the published model itself
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pe_jax.common.schema import changed
from pe_jax.common.values import split_names
from pe_jax.encodings.parser import expand_names, without_options
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.training import workdir
from research.reproduction.config import ReproductionConfig

SCRATCH, REPLACED = ARMS = ("from_scratch", "replaced")
TASKS = ("squad", "cola", "rte", "mrpc", "sst2")
MEASURES = "measures"
TRAINED = ("pretraining", "distillation")  # Tasks that train the models.
RESULT = "result.json"  # Written last.
UNTOUCHED = "untouched"  # The published model, as tables name it.


class Run(NamedTuple):
    """A run of a study.

    Attributes:
      arm: of `ARMS`.
      kind: of `TRAINED`, MEASURES, or of `TASKS`.
      model: the model that it trains, or starts from, as tables name it: its encoding without
        options and its seed, or UNTOUCHED.
      position: the encoding; seed: of pretraining or distillation.
      folder: where it goes.
      needs: the folder of the run that has to be complete before; None if there is none.
      config: all of it, as the tasks and the property report take it.
      lengths: other input lengths that it is scored on in the end.
    """

    arm: str
    kind: str
    model: str
    position: str
    seed: int
    folder: Path
    needs: Path | None
    config: PretrainingConfig | DistillationConfig | FinetuningConfig | PropertiesConfig
    lengths: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.arm}/{self.kind}/{self.model}"

    @property
    def settings(self) -> str:
        """A checksum of the settings that the run's numbers depend on, not of its folder."""
        config = self.config
        if isinstance(config, FinetuningConfig):
            config = changed(config, {"init": Path(config.init).name})
        return workdir.settings_checksum(config, self.lengths)


def plan(config: ReproductionConfig, folder: Path) -> list[Run]:
    """Return the runs of the study in `folder`, in the order of their execution.

    What is done at any time compares encodings: in each arm the encodings of `first` come before
    those of `then`, and repeated seeds last. All runs of a model follow its training, so that few
    weights are needed at a time.

    Raises:
      ValueError: for an encoding that is not known, or named twice, or without any run.
    """
    used = {SCRATCH: config.from_scratch.first, REPLACED: config.published}
    arms = [arm for arm in ARMS if used[arm]]
    if not arms:
        raise ValueError(
            "The study has no runs: config.from_scratch.first and config.published are both empty. "
            "Give encodings to pretrain in the first, or the folder of a BERT in the second."
        )
    rounds = [_rounds(config, arm, folder) for arm in arms]
    runs = [
        run
        for arms_round in zip(*rounds)
        for arm_runs in arms_round
        for run in arm_runs
    ]
    models = [run.name for run in runs if run.kind in TRAINED]
    if twice := sorted({name for name in models if models.count(name) > 1}):
        raise ValueError(
            f"A study can contain a model only once; {', '.join(twice)} is listed twice. Models "
            "are identified without the options of their encodings, so compare options in "
            "separate studies."
        )
    return runs


def _rounds(
    config: ReproductionConfig, arm: str, folder: Path
) -> tuple[list[Run], ...]:
    """Return the runs of `first`, of `then`, and of the repeated seeds."""
    settings = getattr(config, arm)
    first, then = expand_names(settings.first), expand_names(settings.then)
    tasks = split_names(settings.tasks)

    def trained(
        names: Sequence[str], tasks: Sequence[str], seed: int = 0
    ) -> Iterator[Run]:
        for name in names:
            model = _training(config, arm, folder, name, seed)
            yield from (model, _measures(config, model))
            yield from _finetuning(config, folder, model, tasks)

    untouched: list[Run] = []
    repeated = (
        tasks if arm == REPLACED else []
    )  # A distilled model is known by its scores.
    if arm == REPLACED:
        published = Path(config.published)
        model = Run(
            arm, "", UNTOUCHED, UNTOUCHED, 0, published, None, settings.training
        )
        untouched = [
            run._replace(needs=None)
            for run in _finetuning(config, folder, model, tasks)
        ]
    return (
        [*untouched, *trained(first, tasks)],
        [*trained(then, tasks)],
        [run for seed in settings.repeats for run in trained(first, repeated, seed)],
    )


def _training(
    config: ReproductionConfig, arm: str, folder: Path, position: str, seed: int
) -> Run:
    text, held_out = config.text, config.held_out_text
    if arm == REPLACED and config.replaced.text:
        text, held_out = config.replaced.text, ""
    changes = {
        "model.position": position,
        "seed": seed,
        "data.source": text,
        "data.validation": held_out,
        "data.data_dir": config.data_dir,
        "init": config.published if arm == REPLACED else "",
    }
    settings = changed(getattr(config, arm).training, changes)
    model = without_options(position) + f", seed {seed}" * bool(seed)
    kind = settings.task
    return Run(
        arm, kind, model, position, seed, folder / arm / kind / model, None, settings
    )


def _measures(config: ReproductionConfig, model: Run) -> Run:
    folder = model.folder.parent.parent / MEASURES / model.folder.name
    return model._replace(
        kind=MEASURES, folder=folder, needs=model.folder, config=config.measures
    )


def _finetuning(
    config: ReproductionConfig, folder: Path, model: Run, tasks: Sequence[str]
) -> Iterator[Run]:
    """Yield the runs that fine-tune a model, which lies in `model.folder`."""
    for task in tasks:
        changes = {
            "task": task,
            "steps": getattr(config.steps, task),
            "init": str(model.folder),
            "data.data_dir": config.data_dir,
        }
        yield model._replace(
            kind=task,
            folder=folder / model.arm / task / model.model,
            needs=model.folder,
            config=changed(config.squad if task == "squad" else config.glue, changes),
            lengths=config.lengths if task == "squad" else (),
        )
