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
    teacher_digest,
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
from pe_jax.trainer.training.pytrees import Params, Scalars
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
    """Return the model at `config.init`, with the dtype of `student`."""
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
    optimizer_config = changed(
        config.optimizer, {"rates": (*config.optimizer.rates, *frozen)}
    )
    schedule, optimizer = make_optimizer(optimizer_config, steps, model)
    weights = config.layers, config.attention, config.differences
    task = imitation_task(model, teacher, mesh, config.parallel, *weights, heads)
    seeds, constants = (config.seed,), 2  # Those of `imitation_task`.
    return Program(
        model, task, optimizer, schedule, mesh, seeds, config.parallel, constants
    )


def step_flops(
    config: DistillationConfig,
    student: BertConfig,
    teacher: BertConfig,
    rows: int,
    length: int,
) -> float:
    """Return the model FLOPs of a step, with shuffled rows and the teacher's windows."""
    rows, window = rows * (2 if config.differences else 1), config.window
    shape = (
        window_spec(length, window)["windows"][0]
        if 0 < window < length
        else (1, length)
    )
    teacher_flops = rows * forward_flops(teacher, *shape, 0)
    return train_flops(student, rows, length, 0) + teacher_flops


def make_examples(
    config: DistillationConfig,
    vocabulary: data.Vocabulary,
    stage: StageConfig,
    corpus: data.TokenizedCorpus,
    documents: np.ndarray,
) -> data.Examples:
    """Return rows of documents of which some are shorter than the stage's inputs."""
    rows = data.PackedExamples(corpus, documents, vocabulary, stage.length)
    return data.VariableLengthExamples(rows, config.window, config.differences > 0)


def build(
    resolved: ResolvedConfig[DistillationConfig], tokenizer: Path | None = None
) -> Run:
    """Build everything that a config stands for; reads text and teacher, and trains nothing.

    Args:
      tokenizer: see `text_training.read_data`.
    """
    config = resolved.config
    stages, mesh = [*config.stages.values()], sharding.data_mesh()
    lengths = {stage.length for stage in stages}
    test_stages = [
        changed(stages[-1], {"length": n})
        for n in config.test_lengths
        if n not in lengths
    ]
    make = functools.partial(make_examples, config)
    text_data = text_training.read_data(
        config, tokenizer, mesh, make, pairs=False, test_stages=test_stages
    )
    vocab_size = text_data.text.vocabulary.size
    model = dataclasses.replace(resolved.model, vocab_size=vocab_size)
    teacher = teacher_model(config, model)
    shardings_of = functools.partial(sharding.state_shardings, mesh, config.parallel)
    params = PretrainedSource(config.init).params(shardings_of)
    heads = tuple(name for name in params if name != "bert")
    program = make_program(config, mesh, model, teacher, sum(text_data.steps), heads)
    constants = [
        # On every host's devices.
        (params["bert"], jax.device_put(statistics, shardings_of(statistics)))
        for statistics in measure(
            config, teacher, mesh, params["bert"], text_data.held_out
        )
    ]
    pair = Distillation(config, program, teacher, params, constants, text_data)
    run_stages = [pair.stage(number) for number in range(len(stages))]
    digests = {"config.init": teacher_digest(teacher, params["bert"])}
    return text_training.make_run(
        resolved,
        program,
        text_data,
        run_stages,
        digests,
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
    constants: list[
        tuple[Params, Statistics]
    ]  # Of `imitation_task`, for each of `data.held_out`.
    data: TextData

    def start(self, fresh: Params) -> Params:
        """Return the student's first parameters: the teacher's, and `fresh` positions."""
        copies = jax.tree.map(
            jnp.copy, self.params
        )  # A step donates its state; the teacher stays.
        student, changes = transplant(fresh, copies, position=False)
        log(f"Parameters from {self.config.init}:\n{changes}")
        student = {**student, "bert": self._keep_mean(student["bert"])}
        return jax.device_put(student, self.program.shardings_of(student))

    def stage(self, number: int) -> Stage:
        """Return a stage of the run."""
        config, keys = self.config, [*self.config.stages.values()][number]
        step = self.program.train_step(keys.accumulation)
        return Stage(
            name=f"length {keys.length}",
            steps=self.data.steps[number],
            batches=self.data.batches[number],
            train_step=lambda state, batch: step(state, batch, *self.constants[number]),
            evaluate=lambda step, params: (
                self.scores(number, params) | self._order[0](params)
            ),
            flops=functools.partial(
                step_flops, config, self.program.model, self.teacher
            ),
            early_stopping=EarlyStopping("r2", config.patience, config.min_gain),
        )

    def scores(
        self, number: int, params: Params, program: Program | None = None
    ) -> Scalars:
        """Return the held-out scores of a stage, and R² at the lengths of the others."""
        eval_step, held_out = (program or self.program).eval_step(), self.data.held_out

        def stage_scores(i: int) -> Scalars:
            step = lambda params, batch: eval_step(params, batch, *self.constants[i])
            return evaluate(step, params, held_out[i])

        scores = stage_scores(number)
        lengths = [batches[0]["tokens"].shape[1] for batches in held_out]
        for i, length in enumerate(lengths):
            if length != lengths[number]:
                others = stage_scores(i).items()
                scores |= {
                    f"length_{length}/{name}": x for name, x in others if name != "loss"
                }
        return scores

    def initial_scores(self, params: Params) -> Scalars:
        """Return the scores before training, of a student without positions, and of the teacher."""
        bert = {
            name: leaf
            for name, leaf in self.params["bert"].items()
            if name != "position"
        }
        untrained = changed(
            self.config, {"optimizer.rates": ()}
        )  # They may name the heads.
        model = without_positions(self.program.model)
        without = make_program(untrained, self.program.mesh, model, self.teacher, 1)
        student_order, teacher_order = self._order
        groups = {
            HELD_OUT: self.scores(0, params) | student_order(params),
            NONE: self.scores(0, {"bert": self._keep_mean(bert)}, without),
            TEACHER: teacher_order,
        }
        return {
            f"{group}{name}": x
            for group, scores in groups.items()
            for name, x in scores.items()
        }

    @functools.cached_property
    def _order(self) -> tuple[Callable[[Params], Scalars], Scalars]:
        teacher, text = self.params["bert"], self.data.text
        return order_scores(
            self.program, self.teacher, teacher, text, self._start_length
        )

    def _keep_mean(self, bert: Params) -> Params:
        return keep_table_mean(
            self.teacher, self.params["bert"], bert, self._start_length
        )

    @property
    def _start_length(self) -> int:
        """The most tokens that the teacher reads at a time in the first stage."""
        return min(filter(None, (self.config.lengths[0], self.config.window)))
