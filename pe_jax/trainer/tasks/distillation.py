"""Position distillation: a model with another position encoding imitates itself, layer by layer.

The teacher is the model at `config.init`. The student has the same parameters but for new ones of
`config.model.position`. Both read the same text, and the student learns to have the teacher's
hidden states.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.schema import changed
from pe_jax.models import BertConfig
from pe_jax.models.flops import forward_flops, train_flops
from pe_jax.trainer import data
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.configs.pretraining import StageConfig
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.data.teacher_windows import window_spec
from pe_jax.trainer.tasks import text_training
from pe_jax.trainer.tasks.imitation import (
    Statistics,
    imitation_task,
    measure,
    teacher_checksum,
)
from pe_jax.trainer.tasks.order_scores import order_scores
from pe_jax.trainer.tasks.pretrained_source import PretrainedSource
from pe_jax.trainer.tasks.run import Program
from pe_jax.trainer.tasks.student_model import (
    keep_table_mean,
    keep_windows,
    without_positions,
)
from pe_jax.trainer.tasks.text_training import TextData, TextRun
from pe_jax.trainer.tasks.train import train
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.loop import EarlyStopping, Stage, evaluate
from pe_jax.trainer.training.metrics import HELD_OUT
from pe_jax.trainer.training.optimizer import make_optimizer
from pe_jax.trainer.training.pytrees import Batch, Metrics, Params, Scalars
from pe_jax.trainer.training.step import TrainState
from pe_jax.trainer.training.transplant import transplant
from pe_jax.trainer.training.workdir import ResolvedConfig

# Begin the names of scores of a student without positions and of the teacher in a run's log.
NONE, TEACHER = "none/", "teacher/"

Run = TextRun[DistillationConfig]


def run(config: DistillationConfig, folder: Path, profile: range = range(0)) -> Run:
    """Distill what `config` describes, or resume the run in `folder`; see `pretraining.run`."""
    resolved = resolve(config)
    run = build(resolved, text_training.log_start(folder, resolved))
    train(run, folder, profile)
    return run


def teacher_model(config: DistillationConfig, student: BertConfig) -> BertConfig:
    """Return the model at `config.init`, with the dtype and the vocabulary of `student`.

    Raises:
      ValueError: if there is no such model.
    """
    return dataclasses.replace(
        PretrainedSource(config.init).model,
        vocab_size=student.vocab_size,
        dtype=student.dtype,
        implementation="auto",
    )


def resolve(config: DistillationConfig) -> ResolvedConfig[DistillationConfig]:
    """Fill in the sizes of the student, and the windows of long inputs, from the teacher.

    Raises:
      ValueError: for an invalid value, see also `text_training.resolve`; or without a teacher,
        which resuming needs as well.
    """
    if not config.init:
        raise ValueError(
            "config.init is required: the model to give other positions, a run's workdir or the "
            "folder of a published BERT, --config.init=BERT."
        )
    teacher = PretrainedSource(config.init).model
    config = dataclasses.replace(config, model=keep_windows(config.model, teacher))
    # Without the folder: resuming needs the teacher too.
    student = text_training.resolve(config).model
    layers = student.num_layers
    if config.layers and len(config.layers) != layers:
        raise ValueError(
            f"config.layers={config.layers} has {len(config.layers)} weights, and the model "
            f"{layers} layers: give one weight a layer, or none."
        )
    longest, rows = max(config.lengths), student.encoding().max_length
    if rows is not None and longest > rows:  # Those of stages were compared above.
        raise ValueError(
            f"config.test_lengths has inputs of {longest} tokens, and the student's "
            f"{student.encoding().name!r} {rows} positions. Lower it or raise "
            "config.model.max_length, or use an encoding without a maximum length."
        )
    rows = teacher.encoding().max_length
    if rows is not None and config.window > rows:
        raise ValueError(
            f"config.window={config.window} is longer than the {rows} positions of the teacher's "
            f"{teacher.encoding().name!r}. Lower it, or leave it out for windows of {rows} tokens."
        )
    if rows is not None and not config.window and longest > rows:
        config = dataclasses.replace(config, window=rows)
    return ResolvedConfig(config, student)


def make_program(
    config: DistillationConfig,
    mesh: jax.sharding.Mesh,
    model: BertConfig,
    teacher: BertConfig,
    steps: int,
    heads: tuple[str, ...] = (),
) -> Program:
    """Return what `config` runs on the devices of `mesh` in `steps` steps, without data."""
    frozen = [f"{head}/*=0" for head in heads]
    rates = (*config.optimizer.rates, *frozen)
    optimizer_config = changed(config.optimizer, {"rates": rates})
    schedule, optimizer = make_optimizer(optimizer_config, steps, model)
    task = imitation_task(
        model,
        teacher,
        mesh,
        config.parallel,
        layers=config.layers,
        attention=config.attention,
        differences=config.differences,
        heads=heads,
    )
    return Program(
        model=model,
        task=task,
        optimizer=optimizer,
        schedule=schedule,
        mesh=mesh,
        seeds=(config.seed,),
        parallel=config.parallel,
        constants=2,  # Those of `imitation_task`.
    )


def step_flops(
    config: DistillationConfig,
    student: BertConfig,
    teacher: BertConfig,
    rows: int,
    length: int,
) -> float:
    """Return the model FLOPs of a step, with shuffled rows and the teacher's windows."""
    if config.differences:
        rows *= 2
    windows = 1
    width = length
    if 0 < config.window < length:
        windows, width = window_spec(length, config.window)["windows"][0]
    teacher_flops = rows * forward_flops(teacher, windows, width, predictions=0)
    return train_flops(student, rows, length, predictions=0) + teacher_flops


def make_examples(
    config: DistillationConfig,
    vocabulary: data.Vocabulary,
    stage: StageConfig,
    corpus: data.TokenizedCorpus,
    documents: np.ndarray,
) -> data.Examples:
    """Return rows of documents of which some are shorter than the stage's inputs."""
    rows = data.PackedExamples(corpus, documents, vocabulary, stage.length)
    return data.VariableLengthExamples(
        rows, window=config.window, shuffle=config.differences > 0
    )


def read_text(
    config: DistillationConfig, tokenizer: Path | None, mesh: jax.sharding.Mesh
) -> TextData:
    """Read the text of `config`, see `text_training.read_data`."""
    stages = [*config.stages.values()]
    trained_lengths = {stage.length for stage in stages}
    test_stages = [
        changed(stages[-1], {"length": length})
        for length in config.test_lengths
        if length not in trained_lengths
    ]
    return text_training.read_data(
        config,
        tokenizer,
        mesh,
        functools.partial(make_examples, config),
        pairs=False,
        test_stages=test_stages,
    )


def build(
    resolved: ResolvedConfig[DistillationConfig], tokenizer: Path | None = None
) -> Run:
    """Build everything that a config stands for; reads text and teacher, and trains nothing.

    Args:
      tokenizer: see `text_training.read_data`.
    """
    config, mesh = resolved.config, sharding.data_mesh()
    stages = config.stages
    text_data = read_text(config, tokenizer, mesh)
    vocab_size = text_data.text.vocabulary.size
    model = dataclasses.replace(resolved.model, vocab_size=vocab_size)
    teacher = teacher_model(config, model)
    shardings_of = functools.partial(sharding.state_shardings, mesh, config.parallel)
    params = PretrainedSource(config.init).params(shardings_of)
    heads = tuple(name for name in params if name != "bert")
    program = make_program(
        config, mesh, model, teacher, steps=sum(text_data.steps), heads=heads
    )
    constants = []
    stage_statistics = measure(
        config, teacher, mesh, params["bert"], text_data.held_out
    )
    for statistics in stage_statistics:
        on_all_hosts = jax.device_put(statistics, shardings_of(statistics))
        constants.append((params["bert"], on_all_hosts))
    pair = Distillation(config, program, teacher, params, constants, text_data)
    run_stages = [pair.stage(number) for number in range(len(stages))]
    checksums = {"config.init": teacher_checksum(teacher, params["bert"])}
    return text_training.make_run(
        resolved,
        program,
        text_data,
        run_stages,
        checksums,
        start=pair.start,
        initial_scores=pair.initial_scores,
    )


@dataclasses.dataclass(frozen=True)
class Distillation:
    """A student and its teacher, on the text of a run."""

    config: DistillationConfig
    program: Program  # Of the student.
    teacher: BertConfig
    params: Params  # Of the teacher, with its heads.
    # Of `imitation_task`, for each of `data.held_out`.
    constants: list[tuple[Params, Statistics]]
    data: TextData

    def start(self, fresh: Params) -> Params:
        """Return the student's first parameters: the teacher's, and `fresh` positions."""
        # A step donates its state; the teacher stays.
        copies = jax.tree.map(jnp.copy, self.params)
        student, changes = transplant(fresh, copies, position=False)
        log(f"Parameters from {self.config.init}:\n{changes}")
        student = {**student, "bert": self._keep_mean(student["bert"])}
        return jax.device_put(student, self.program.shardings_of(student))

    def stage(self, number: int) -> Stage:
        """Return a stage of the run."""
        config = self.config
        stage = list(config.stages.values())[number]
        step = self.program.train_step(stage.accumulation)

        def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
            return step(state, batch, *self.constants[number])

        def stage_scores(step: int, params: Params) -> Scalars:
            student_order, _ = self._order
            return self.scores(number, params) | student_order(params)

        return Stage(
            name=f"length {stage.length}",
            steps=self.data.steps[number],
            batches=self.data.batches[number],
            train_step=train_step,
            evaluate=stage_scores,
            flops=functools.partial(
                step_flops, config, self.program.model, self.teacher
            ),
            early_stopping=EarlyStopping("r2", config.patience, config.min_gain),
        )

    def scores(
        self, number: int, params: Params, program: Program | None = None
    ) -> Scalars:
        """Return the held-out scores of a stage, and R² at the lengths of the others.

        Args:
          program: evaluates the parameters; by default that of the student.
        """
        eval_step = (program or self.program).eval_step()
        held_out = self.data.held_out

        def stage_scores(i: int) -> Scalars:
            def step(params: Params, batch: Batch) -> Metrics:
                return eval_step(params, batch, *self.constants[i])

            return evaluate(step, params, held_out[i])

        scores = stage_scores(number)
        lengths = [batches[0]["tokens"].shape[1] for batches in held_out]
        for i, length in enumerate(lengths):
            if length == lengths[number]:
                continue
            for name, value in stage_scores(i).items():
                if name != "loss":
                    scores[f"length_{length}/{name}"] = value
        return scores

    def initial_scores(self, params: Params) -> Scalars:
        """Return the scores before training, of a student without positions, and of the teacher."""
        bert = dict(self.params["bert"])
        bert.pop("position", None)
        # Nothing trains, and the rates may name heads that this model does not have.
        untrained = changed(self.config, {"optimizer.rates": ()})
        model = without_positions(self.program.model)
        without = make_program(
            untrained, self.program.mesh, model, self.teacher, steps=1
        )
        student_order, teacher_order = self._order
        groups = {
            HELD_OUT: self.scores(0, params) | student_order(params),
            NONE: self.scores(0, {"bert": self._keep_mean(bert)}, without),
            TEACHER: teacher_order,
        }
        named_scores = {}
        for group, scores in groups.items():
            for name, value in scores.items():
                named_scores[f"{group}{name}"] = value
        return named_scores

    @functools.cached_property
    def _order(self) -> tuple[Callable[[Params], Scalars], Scalars]:
        return order_scores(
            self.program,
            self.teacher,
            self.params["bert"],
            text=self.data.text,
            longest=self._start_length,
        )

    def _keep_mean(self, bert: Params) -> Params:
        return keep_table_mean(
            self.teacher, self.params["bert"], bert, self._start_length
        )

    @property
    def _start_length(self) -> int:
        """The most tokens that the teacher reads at a time in the first stage."""
        first = self.config.lengths[0]
        return min(first, self.config.window) if self.config.window else first
