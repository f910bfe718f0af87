"""Keys of the config of a study: configs of runs as parts of it, and what names its runs."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from pe_jax.configs.finetuning import FinetuningConfig, SquadConfig
from pe_jax.configs.pretraining import PretrainingConfig
from pe_jax.configs.reports import PropertiesConfig
from pe_jax.configs.training import COUNT, LENGTH
from pe_jax.schema import Config, key, part
from pe_jax.values import SEED, integer, one_of, several, some_of
from pe_jax.values import text as any_text


@dataclasses.dataclass(frozen=True)
class FinetuningSteps(Config):
    """Steps of fine-tuning on each task."""

    squad: int = key(120, COUNT)
    cola: int = key(160, COUNT)
    rte: int = key(80, COUNT)
    mrpc: int = key(80, COUNT)
    sst2: int = key(120, COUNT)


@dataclasses.dataclass(frozen=True)
class ArmConfig(Config):
    """One arm of a study: encodings, and how each is pretrained."""

    first: str = key(
        "none", any_text("Give names of encodings, joined by commas."), "Encodings to begin with."
    )
    then: str = key("", any_text(), "More of them, once `first` are done, fine-tuning included.")
    kept: str = key("", any_text(), "Once more, with the published model's parameters.")
    repeats: tuple[int, ...] = key(
        (), several(SEED), "Seeds with which `first` are pretrained again in the end."
    )
    # A study sets model.position, seed, init and the text of each run.
    pretraining: PretrainingConfig = part(PretrainingConfig)


@dataclasses.dataclass(frozen=True)
class StudyConfig(Config):
    """The paper's comparison: encodings pretrained, fine-tuned and measured."""

    TASKS: ClassVar[tuple[str, ...]] = ("study",)

    task: str = key("study", one_of(TASKS))
    published: str = key(
        "", any_text(), "The folder of a published BERT; empty leaves the arm `replaced` out."
    )
    text: str = key(
        "pydoc",
        any_text("Give files to pretrain on, or another source."),
        "To pretrain on: files, or another source.",
    )
    held_out_text: str = key("", any_text(), "Another source; empty holds out documents of `text`.")
    data_dir: str = key("", any_text(), "Folder of tfds datasets; empty means tfds's default.")
    jobs: int = key(
        1, integer(1, 10**4), "Runs side by side, each on its share of the CPU's cores."
    )
    from_scratch: ArmConfig = part(ArmConfig)
    replaced: ArmConfig = part(ArmConfig)
    tasks: str = key(
        "squad,cola,rte,mrpc,sst2", some_of("pe_jax.study.plan:TASKS"), "Without one: fewer."
    )
    steps: FinetuningSteps = part(FinetuningSteps)
    glue: FinetuningConfig = part(FinetuningConfig)
    squad: SquadConfig = part(SquadConfig)
    lengths: tuple[int, ...] = key(
        (384, 512),
        several(LENGTH),
        "Of inputs, that models fine-tuned on questions are scored on too.",
    )
    measures: PropertiesConfig = part(PropertiesConfig)
    figures: str = key(
        "", any_text(), "Models of which the page shows figures; names without options."
    )
