"""The trainer: a `Run` trains in a folder, or resumes there if the folder holds the same run."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from pe_jax.attention import KernelCheck, check_kernel, implementations
from pe_jax.common import cpu
from pe_jax.common.files import Json, is_remote, write_text
from pe_jax.interop.tokenizer import load_tokenizer, tokenizer_files
from pe_jax.trainer.console import stopping
from pe_jax.trainer.console.terminal import Progress, log, log_field
from pe_jax.trainer.tasks.run import Program, Run, model_size, saved_tokenizer
from pe_jax.trainer.training import metrics, pytrees, sharding, workdir
from pe_jax.trainer.training.checkpointing import (
    Checkpoints,
    restore_newest,
    saved_steps,
)
from pe_jax.trainer.training.loop import Loop, last_step
from pe_jax.trainer.training.metrics import MetricsWriter
from pe_jax.trainer.training.pytrees import Params, PyTree
from pe_jax.trainer.training.step import TrainState
from pe_jax.trainer.training.workdir import ResolvedConfig

if TYPE_CHECKING:  # A run imports the config of its task alone.
    from pe_jax.trainer.configs.finetuning import FinetuningConfig
    from pe_jax.trainer.configs.pretraining import EncoderTrainingConfig


# By task, of the lines that training prints.
_SCORES = {
    "pretraining": "MLM: masked language model; NSP: next sentence; acc: accuracy; losses in nats",
    "distillation": "r2: explained share of the teacher's last states; r2 mean: of all layers'",
}


def log_run_header(
    folder: Path, resolved: ResolvedConfig[EncoderTrainingConfig | FinetuningConfig]
) -> Path | None:
    """Print where a run is, what it runs on and what it starts from, before anything takes time.

    Returns:
      The run's tokenizer, if it has one and a checkpoint: a run that was killed before may start
      from another model or text.

    Raises:
      ValueError: if the folder holds a run of another config.
    """
    config = resolved.config
    changes = workdir.check(folder, resolved)
    devices, hosts = jax.devices(), jax.process_count()
    log_field("Run", str(folder))
    found = f"{len(devices)} {devices[0].device_kind}"
    log_field("Devices", f"{found}, {hosts} hosts" if hosts > 1 else found)
    for name, (old, new) in changes.items():
        log_field("Changed", f"{name}: {old!r} there, {new!r} now")
    scratch = "from scratch: random parameters, as config.init is empty"
    log_field("Start", config.init or scratch)
    log_field("Scores", _SCORES.get(config.task, "in points, from 0 to 100"))
    tokenizer = saved_tokenizer(folder)
    return tokenizer if tokenizer.exists() and saved_steps(folder) else None


def _model_summary(program: Program, params: Params) -> Iterator[tuple[str, str]]:
    def count(tree: PyTree) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(tree)) // len(program.seeds)

    model = program.model
    yield "Model", f"{model_size(model)}, {model.dtype}: {count(params):,} parameters"
    position_params = count(params["bert"].get("position", {}))
    learned = f"{position_params:,}" if position_params else "none"
    yield "Positions", f"{model.encoding().name}; learned parameters: {learned}"
    on_cpu = model.dtype == "bfloat16" and jax.default_backend() == "cpu"
    if on_cpu and not cpu.multiplies_bfloat16():
        hint = (
            "this CPU has no instructions for bfloat16: float32 is likely to be faster"
        )
        yield "Hint", hint


def train(run: Run, folder: Path, profile: range = range(0)) -> TrainState:
    """Train to the end of the last stage. The run locks `folder` after all checks have passed.

    Args:
      profile: steps to trace, see `Loop`.

    Raises:
      ValueError: if the folder holds a run of another config or other data, another process writes
        in it, or hosts differ.
      FloatingPointError: if a loss is no longer finite.
      OSError: if something cannot be written.
      Interrupted: after SIGTERM or Ctrl-C, once the state is saved.
    """
    program = run.program
    shapes = sharding.abstract(program.state_shapes, program.shardings)
    for name, value in (*run.summary, *_model_summary(program, shapes.params)):
        log_field(name, value)
    tokenizer = run.tokenizer.to_str() if run.tokenizer else "{}"
    stop_requests = _stop_requests(tokenizer, run.checksums)
    with contextlib.ExitStack() as stack:
        check_folder = stack.enter_context(workdir.lock_workdir(folder))
        changes = workdir.check(folder, run.resolved)
        _check_vocabulary(changes, tokenizer, folder)
        checksum = workdir.run_checksum(run.resolved, tokenizer)
        state, facts = _start_or_resume(run, folder, shapes, checksum, changes)
        begin, steps = int(state.step), sum(stage.steps for stage in run.stages)
        evaluations = metrics.read_evaluations(folder, begin)
        if begin == last_step(run.stages, facts.get("ends", {})):
            log(
                f"The run has finished: all {begin:,} steps are done, so nothing is trained. Its "
                "report is written again."
            )
        if profile:
            _check_profile(profile, begin, steps, folder)
        checkpoints = Checkpoints(
            folder,
            keep=run.keep_checkpoints,
            keep_best=run.keep_best,
            run=checksum,
            origin=facts["origin"],
        )
        stack.enter_context(contextlib.closing(checkpoints))
        # Only now is the folder this run's: a config that cannot start does not occupy it.
        workdir.write_config(folder, run.resolved)
        if run.tokenizer:
            for name, content in tokenizer_files(run.tokenizer).items():
                write_text(folder / name, content)
        if _takes_kernel(program):
            stack.enter_context(implementations.kernel_in_auto())
        writer = stack.enter_context(contextlib.closing(MetricsWriter(folder, begin)))
        trace = stack.enter_context(contextlib.ExitStack())
        progress = stack.enter_context(contextlib.closing(Progress(steps, begin)))
        loop = Loop(
            run.every,
            batch_sharding=program.batch_sharding,
            schedule=program.schedule,
            checkpoints=checkpoints,
            writer=writer,
            folder=folder,
            profile=range(max(profile.start, begin + 1), profile.stop) or range(0),
            trace=trace,
            progress=progress,
            stop_requested=stack.enter_context(stop_requests),
            check_folder=check_folder,
            early_ends=facts.get("ends", {}),
        )
        if run.initial_scores and not begin:
            loop.writer.write(0, run.initial_scores(state.params))
        return loop.fit(state, run.stages, facts["totals"], evaluations)


def _takes_kernel(program: Program) -> bool:
    """Return whether `"auto"` takes the TPU kernel in this run, and print why; on all hosts the
    same. No TPU has run the kernel yet, so it is compared with XLA's form first."""
    if program.model.implementation != "auto" or not _is_on_tpu(program):
        return False
    checked = _checked_kernel()
    agrees = not checked.failures
    everywhere = agrees
    if jax.process_count() > 1:
        from pe_jax.trainer.training import hosts

        everywhere = hosts.all_true(agrees)
    if everywhere:
        count = len(checked.differences)
        text = f"TPU kernel: it agrees with XLA's form in {count} comparisons"
    elif agrees:
        text = "XLA's form: the TPU kernel differs from it on another host"
    else:
        text = "XLA's form: the TPU kernel differs from it, see check_kernel:"
    log_field("Attention", text)
    if not agrees:
        log(str(checked))
    return everywhere


def _is_on_tpu(program: Program) -> bool:
    return program.mesh.devices.flat[0].platform == "tpu"


@functools.cache
def _checked_kernel() -> KernelCheck:
    return check_kernel()


def _stop_requests(
    tokenizer: str, checksums: Mapping[str, str]
) -> contextlib.AbstractContextManager[Callable[[int], int]]:
    """Return the context of `Loop.stop_requested`, once all hosts read the same."""
    if jax.process_count() == 1:
        return stopping.deferred()
    from pe_jax.trainer.training import hosts

    checksum = hashlib.sha256(tokenizer.encode()).hexdigest()[:12]
    hosts.agree({"the tokenizer": checksum, **checksums})
    return hosts.stop_requests()


def _start_or_resume(
    run: Run, folder: Path, shapes: TrainState, checksum: str, changes: workdir.Changes
) -> tuple[TrainState, Json]:
    """Return the newest state in `folder`, or else the first one, with the facts saved with it."""
    origin: Json = {
        "data": dict(run.checksums),
        "stages": [stage.steps for stage in run.stages],
    }
    restored = restore_newest(folder, shapes, checksum)
    if restored is None:
        state = run.program.init()
        origin["start"] = ""
        if run.start:
            state = state._replace(params=run.start(state.params))
            origin["start"] = pytrees.checksum(state.params)
        return state, {"origin": origin, "totals": {}}
    state, facts = restored
    first_origin = facts["origin"]
    done = int(state.step)
    _check_data(first_origin["data"], run.checksums, folder)
    _check_steps(first_origin["stages"], origin["stages"], done, folder)
    # With "config.init" among the checksums, `_check_data` has compared the model.
    if run.start and "init" in changes and "config.init" not in run.checksums:
        start = run.start(run.program.init().params)
        if pytrees.checksum(start) != first_origin["start"]:
            raise ValueError(
                f"config.init={changes['init'][1]} is not the model that the run in {folder} "
                f"started from, {changes['init'][0]}. Give that one, or another --workdir."
            )
    if done < last_step(run.stages, facts.get("ends", {})):
        log(f"Resuming from step {done:,}.")
    return state, {**facts, "origin": {**origin, "start": first_origin["start"]}}


def _check_profile(profile: range, done: int, steps: int, folder: Path) -> None:
    """Raise ValueError if no trace can be written, or the run has no such steps."""
    # jaxlib writes the trace itself, and knows no other object store.
    if is_remote(folder) and not str(folder).startswith("gs://"):
        raise ValueError(
            f"--profile writes to a local folder or to gs:// only, but --workdir is {folder}. "
            "Remove --profile."
        )
    if profile[0] > steps:
        raise ValueError(
            f"--profile={profile[0]}-{profile[-1]} is out of range: the run has {steps:,} steps."
        )
    if profile[-1] <= done:
        log(
            f"--profile={profile[0]}-{profile[-1]}: {done:,} steps are done, so none is traced."
        )


def _check_vocabulary(changes: workdir.Changes, tokenizer: str, folder: Path) -> None:
    """Raise ValueError if `config.data.vocab` is another file now, with other tokens."""
    _, vocab = changes.get("data.vocab", (None, None))
    if vocab is not None and load_tokenizer(str(vocab)).to_str() != tokenizer:
        raise ValueError(
            f"config.data.vocab={vocab} is not the tokenizer of the run in {folder}, "
            f"{saved_tokenizer(folder)}. Give that one, or another --workdir."
        )


def _check_data(old: Mapping[str, str], new: Mapping[str, str], folder: Path) -> None:
    """Raise ValueError if a checksum differs from that of the data that a run has trained on."""
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            raise ValueError(
                f"{name} is not what the run in {folder} was trained on: its digest was "
                f"{old.get(name)} and now is {new.get(name)}. Restore it, or give another "
                "--workdir."
            )


def _check_steps(
    old: Sequence[int], new: Sequence[int], done: int, folder: Path
) -> None:
    """Raise ValueError if stages of these steps do not agree on the steps that are done."""
    ends = list(itertools.accumulate(old))
    new_ends = list(itertools.accumulate(new))
    past = [end for end in ends if end < done]
    new_past = [end for end in new_ends if end < done]
    if new_ends[-1] < done or past != new_past:
        raise ValueError(
            f"config: its stages now end after steps {new_ends}, but those of the run in {folder} "
            f"end after {ends}, and {done:,} steps are done. Change only steps that are still to "
            "come, or give another --workdir."
        )
    if ends != new_ends:
        log(
            f"The learning rate follows the schedule of {new_ends[-1]:,} steps from now on."
        )
