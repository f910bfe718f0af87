"""Train the model of a config.

train.py --config=configs/quickstart.py --workdir=W
train.py --config=configs/glue.py --config.task=cola --config.init=RUN --workdir=W
train.py --config=... --workdir=gs://... --coordinator=auto       (on each host of a pod)
train.py --config=... --workdir=W --check               (reads all, trains nothing)
"""

from __future__ import annotations

import functools
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pe_jax.common.errors import extra

if TYPE_CHECKING:
    from jax.sharding import Mesh

with extra("train", SystemExit):
    from absl import flags

    from pe_jax.common.files import reachable_path
    from pe_jax.common.markdown import for_terminal
    from pe_jax.common.schema import Config, from_values
    from pe_jax.trainer.configs.all_tasks import FINETUNING, TRAINING
    from pe_jax.trainer.console import command
    from pe_jax.trainer.console.config_files import define_config
    from pe_jax.trainer.console.terminal import be_quiet, log, show

# All else is imported where it is used: help, and mistakes in flags, are told at once.

_FLAGS = flags.FlagValues()
_CONFIG = define_config(_FLAGS, "The experiment, by name or as a file.")
_string = functools.partial(flags.DEFINE_string, flag_values=_FLAGS)
_integer = functools.partial(flags.DEFINE_integer, flag_values=_FLAGS)
_WORKDIR = _string("workdir", None, "Folder of the run; an existing run is resumed.")
_PROFILE = _string(
    "profile",
    None,
    "Steps to trace, such as 10-12; XProf reads the profile in the run's folder.",
)
_CHECK = flags.DEFINE_bool(
    "check",
    False,
    "Check the config, the folder and the data, and train nothing.",
    flag_values=_FLAGS,
)
_COORDINATOR = _string(
    "coordinator",
    None,
    "For several hosts: HOST:PORT of host 0, or 'auto' on a cluster (TPU, Slurm, ...).",
)
_HOSTS = _integer("hosts", None, "Number of hosts, with --coordinator=HOST:PORT.")
_HOST = _integer("host", None, "Index of this host, from 0.")
_LOST_AFTER = _integer(
    "lost_after", 100, "Seconds until a silent host counts as lost.", lower_bound=1
)


def _execute(config: Config, folder: Path, profile: range) -> tuple[str, Path]:
    """Train, and return the text to print and the folder of the results."""
    report = folder / "report"
    task = _CONFIG.value.task
    if task in FINETUNING:
        from pe_jax.trainer.configs.finetuning import FinetuningConfig
        from pe_jax.trainer.reports.finetuning_report import report_finetuning
        from pe_jax.trainer.tasks import finetuning

        assert isinstance(config, FinetuningConfig)
        finetuned = finetuning.run(config, folder, profile)
        return report_finetuning(finetuned, folder), folder
    if task == "distillation":
        from pe_jax.trainer.configs.distill_positions import DistillationConfig
        from pe_jax.trainer.reports.distillation_report import report_distillation
        from pe_jax.trainer.tasks import distillation

        assert isinstance(config, DistillationConfig)
        distillation.run(config, folder, profile)
        return report_distillation(folder, report), report
    from pe_jax.trainer.configs.pretraining import PretrainingConfig
    from pe_jax.trainer.reports.pretraining_report import report_pretraining
    from pe_jax.trainer.tasks import pretraining

    assert isinstance(config, PretrainingConfig)
    run = pretraining.run(config, folder, profile)
    log("Measuring what the run has learned")
    return report_pretraining(folder, report, run), report


def _next_commands(folder: str) -> list[tuple[str, str]]:
    """Return commands that show more of a trained run, each behind the name of what it shows."""
    purpose, config = "Positions", "properties"
    if _CONFIG.value.task in FINETUNING:
        purpose, config = "Table", "tables"
    evaluation = f"eval.py --config=configs/{config}.py --workdir={folder}"
    curves = f"tensorboard --logdir={folder}"
    return [(purpose, command.as_called(evaluation)), ("Curves", curves)]


def _profiled_steps() -> range:
    if not _PROFILE.value:
        return range(0)
    steps = range(0)
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", _PROFILE.value)
    if match:
        first, last = match[1], match[2] or match[1]
        steps = range(int(first), int(last) + 1)
    if not steps or not steps[0]:
        raise ValueError(
            "--profile must be a step or a range of steps, counted from 1, such as 10-12; got "
            f"{_PROFILE.value}."
        )
    return steps


def _connect(config: Config) -> None:
    """Join the other hosts of the run; only the first one prints."""
    import jax

    from pe_jax.trainer.training import hosts

    hosts.connect(_COORDINATOR.value, _HOSTS.value, _HOST.value, _LOST_AFTER.value)
    if jax.process_index() > 0:
        be_quiet()
    hosts.agree({"--workdir": _WORKDIR.value, **hosts.settings(config)})
    hosts.link(_mesh(config))
    hosts.check_shared(reachable_path(_WORKDIR.value))


def _mesh(config: Config) -> Mesh:
    """Return the mesh that a run of `config` trains on."""
    from pe_jax.trainer.configs.finetuning import FinetuningConfig
    from pe_jax.trainer.tasks.seeds import seed_mesh
    from pe_jax.trainer.training.sharding import data_mesh

    if isinstance(config, FinetuningConfig):
        return seed_mesh(len(config.seeds))
    return data_mesh()


def train() -> None:
    if _CONFIG.value is None:
        raise ValueError("--config is required; --help lists the available configs.")
    config: Config = from_values(
        _CONFIG.value, TRAINING, " Configs of reports are for eval.py."
    )
    if (_HOSTS.value, _HOST.value) != (None, None) and not _COORDINATOR.value:
        raise ValueError(
            "--hosts and --host need --coordinator=HOST:PORT, the same on every host."
        )
    if not _WORKDIR.value:
        raise ValueError("--workdir is required: the folder of the run.")
    profile = _profiled_steps()
    if _CHECK.value:
        from pe_jax.trainer.tasks.check import check_inputs

        if _COORDINATOR.value:
            raise ValueError(
                "--check runs on one host. Remove --coordinator, --hosts and --host."
            )
        check_inputs(config, reachable_path(_WORKDIR.value))
        show("Config, folder and data are fine. Nothing was trained.")
        return
    if _COORDINATOR.value:
        _connect(config)
    start = time.perf_counter()
    text, out = _execute(config, reachable_path(_WORKDIR.value), profile)
    minutes, seconds = divmod(round(time.perf_counter() - start), 60)
    show(f"\n{for_terminal(text)}")
    show(f"Written to {out}, after {minutes} min {seconds} s in all.")
    show(f"{'Report':11}{out / 'report.html'}, for a browser")
    for purpose, line in _next_commands(shlex.quote(_WORKDIR.value)):
        show(f"{purpose:11}{line}")


def main() -> None:
    command.main(train, _FLAGS, __doc__ or "", "train.py")
