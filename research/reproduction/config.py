"""The paper's comparison: encodings trained alike, fine-tuned, measured, and its claims judged.

Command:  python research/reproduction/run.py --config=research/reproduction/config.py --workdir=S \
              --config.text=FILES --config.held_out_text=FILES --config.data_dir=TFDS \
              --config.published=BERT
          with --dry_run: what would be run, and how long it takes
          python research/reproduction/run.py --workdir=S --out=research/reproduction
Hardware: two CPU cores (--config.jobs=2, a run on each), or one GPU, whose memory the jobs
          share: 16 MiniLMs, fine-tuned with five seeds each, did not fit 141 GB.
Time:     --dry_run says it. Any number of starts: what is done is not done again.

Two arms. `replaced` gives a published BERT other positions by distillation and fine-tunes it beside
the untouched one; without `published` it is left out. `from_scratch` pretrains BERT-minis, which
are too small to fine-tune: their losses are compared; without `from_scratch.first` it is left out.
"""

from __future__ import annotations

import dataclasses

from pe_jax.common.schema import Config, config_dict, field, subconfig, task_field
from pe_jax.common.values import SEED, integer, several, some_of
from pe_jax.common.values import text as any_text
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.configs.finetuning import FinetuningConfig, SquadConfig
from pe_jax.trainer.configs.pretraining import EncoderTrainingConfig, PretrainingConfig
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.configs.training import COUNT, LENGTH

_RELATIVE = ("learned_relative", "sinusoidal_relative", "learnable_sinusoidal_relative")
# Sinusoids of size 1 drown words: new embeddings are of size 0.02, a published BERT's of 0.05.
_SINUSOIDS = "sinusoidal_absolute(scale=0.03)"
# The paper's 13: none, one of each kind, and what it combines.
_SINGLES = (
    "none",
    "learned_absolute",
    *_RELATIVE,
    _SINUSOIDS,
    f"learnable_{_SINUSOIDS}",
)
_COMBINED = tuple(
    f"{one}+{two}"
    for one in ("learned_absolute", f"learnable_{_SINUSOIDS}")
    for two in _RELATIVE
)


@dataclasses.dataclass(frozen=True)
class FinetuningSteps(Config):
    """Steps of fine-tuning on each task."""

    squad: int = field(320, COUNT)
    cola: int = field(1_000, COUNT)
    rte: int = field(80, COUNT)
    mrpc: int = field(120, COUNT)
    sst2: int = field(200, COUNT)


@dataclasses.dataclass(frozen=True)
class ArmConfig(Config):
    """One arm of a study: encodings, and how each is trained and fine-tuned."""

    first: str = field(
        "none",
        any_text(),
        "Encodings to begin with, joined by commas. Empty leaves out the arm `from_scratch`.",
    )
    then: str = field(
        "",
        any_text(),
        "Encodings that follow once `first` are done, fine-tuning included.",
    )
    repeats: tuple[int, ...] = field(
        (),
        several(SEED),
        "Seeds to train `first` again with, at the end; distilled models are fine-tuned as well.",
    )
    tasks: str = field(
        "", some_of("research.reproduction.plan:TASKS"), "Tasks to fine-tune on."
    )
    # A study sets model.position, seed, init and the text of each run.
    training: EncoderTrainingConfig = subconfig(EncoderTrainingConfig)


@dataclasses.dataclass(frozen=True)
class FromScratchConfig(ArmConfig):
    """Models pretrained from scratch."""

    training: PretrainingConfig = subconfig(PretrainingConfig)


@dataclasses.dataclass(frozen=True)
class ReplacedConfig(ArmConfig):
    """A published model, untouched and with its positions replaced by distillation."""

    text: str = field(
        "",
        any_text(),
        "Text to distil on, files or another source; a part is held out. Empty: the study's.",
    )
    training: DistillationConfig = subconfig(DistillationConfig)


@dataclasses.dataclass(frozen=True)
class ReproductionConfig(Config):
    """The paper's comparison: encodings pretrained, fine-tuned and measured."""

    task: str = task_field("reproduction")
    published: str = field(
        "",
        any_text(),
        "Folder of a published BERT, or of a run; empty: no arm `replaced`.",
    )
    text: str = field(
        "pydoc",
        any_text("Give files to pretrain on, or another source."),
        "To pretrain on: files, or another source.",
    )
    held_out_text: str = field(
        "", any_text(), "Another source; empty holds out documents of `text`."
    )
    data_dir: str = field(
        "", any_text(), "Folder of tfds datasets; empty means tfds's default."
    )
    jobs: int = field(
        1, integer(1, 10**4), "Parallel runs, each on a share of the CPU's cores."
    )
    from_scratch: FromScratchConfig = subconfig(FromScratchConfig)
    replaced: ReplacedConfig = subconfig(ReplacedConfig)
    steps: FinetuningSteps = subconfig(FinetuningSteps)
    glue: FinetuningConfig = subconfig(FinetuningConfig)
    squad: SquadConfig = subconfig(SquadConfig)
    lengths: tuple[int, ...] = field(
        (384, 512),
        several(LENGTH),
        "Further input lengths to score models fine-tuned on questions at.",
    )
    measures: PropertiesConfig = subconfig(PropertiesConfig)
    figures: str = field(
        "", any_text(), "Models whose figures the page shows, named without options."
    )


def get_config():
    config = config_dict(ReproductionConfig)
    _set_from_scratch(config.from_scratch)
    _set_replaced(config.replaced)
    _set_finetuning(config.glue)
    config.glue.data.update(length=128, buckets=(16, 32, 64, 96), batch_size=32)
    # The step that counts is chosen on training data that is held out, never on what is reported.
    config.glue.update(select="held_out", eval_every=250)
    config.glue.optimizer.learning_rate = (
        5e-5  # At 2e-4 MiniLM does not leave the plateau.
    )
    config.glue.data.held_out = 0.05
    _set_finetuning(config.squad)
    config.squad.data.train = "squad_shifts:new_wiki+reddit"
    config.squad.data.update(length=256, buckets=(), batch_size=16)
    config.squad.update(select="last", eval_every=0)  # Nothing is chosen.

    config.measures.parts = "vectors,words,offset_kernel,scores"
    config.measures.words = 100
    config.measures.score_examples = 256
    config.figures = (
        "learned_absolute,learned_relative,learnable_sinusoidal_absolute,rope,alibi,t5"
    )
    return config


def _set_from_scratch(arm):
    """Short inputs first: attention learns to use positions in a few hundred steps with 16 tokens,
    or from 16 to 64, far more slowly with more; small batches, as steps are what it takes."""
    arm.first = ",".join((*_SINGLES, "rope", "alibi", "t5"))
    arm.then = ",".join(_COMBINED)
    arm.repeats = (1, 2, 3)
    config = arm.training
    config.stage1.update(length=16, batch_size=128, max_predictions=3, steps=800)
    config.stage2.update(length=64, batch_size=32, max_predictions=10, steps=600)
    config.stage3.update(length=256, batch_size=8, max_predictions=39, steps=1000)
    config.model.size = "mini"
    config.model.max_length = 512
    config.model.dtype = "bfloat16"
    config.model.dropout_rate = 0.0  # Less than one epoch: nothing to overfit.
    config.model.attention_dropout_rate = 0.0
    config.data.vocab_size = 8192
    config.optimizer.learning_rate = 1.2e-3
    config.optimizer.b2 = 0.98  # Forgets the large first gradients within a short run.
    config.log_every = 50
    config.eval_every = 0
    config.eval_examples = 512
    config.checkpoint_every = 200
    config.keep_checkpoints = 100


def _set_replaced(arm):
    # With all dimensions rotated, fine-tuning leaves its plateau late (docs/distillation.md).
    arm.first = ",".join((*_SINGLES, "rope(fraction=0.5)", "alibi", "t5"))
    arm.then = ",".join(_COMBINED)
    arm.tasks = "squad,cola"
    config = arm.training
    config.stage1.steps = 1000


def _set_finetuning(config):
    config.optimizer.learning_rate = (
        2e-4  # Ten times the paper's, which are for BERT-base.
    )
    config.model.dropout_rate = 0.0  # One epoch at most.
    config.model.attention_dropout_rate = 0.0
