"""Trains what a config describes, or estimates what it would take on TPUs.

python train.py --config=configs/quickstart.py --workdir=W
python train.py --config=configs/glue.py --config.task=cola --config.init=RUN --workdir=W
python train.py --config=configs/pretrain_medium.py --compile_for=v5e:4x4    (trains nothing)
python train.py --config=... --workdir=gs://... --coordinator=auto       (on each host of a pod)
"""

from collections.abc import Callable
from pathlib import Path

from pe_jax.console import stopping
from pe_jax.errors import extra

if __name__ == "__main__":
    stopping.catch()  # The imports below take seconds.

with extra("train", SystemExit):
    import flax
    import jax
    import optax
    from absl import flags
    from ml_collections import ConfigDict, config_flags

    import pe_jax
    from pe_jax.console.command import main
    from pe_jax.files import reachable_path
    from pe_jax.reports.finetuning_report import report_finetuning
    from pe_jax.reports.pretraining_report import report_pretraining
    from pe_jax.schema import check, flatten
    from pe_jax.tasks import finetuning, pretraining
    from pe_jax.tasks.finetuning.finetuning_schema import FINETUNING
    from pe_jax.tasks.pretraining.pretraining_schema import PRETRAINING
    from pe_jax.tpu.compile_report import compile_for
    from pe_jax.training import hosts, sharding

_CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment, a file in configs/.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; one that exists is resumed.")
_COMPILE_FOR = flags.DEFINE_string(
    "compile_for", None, "Only compile, for TPUs that need not be attached, such as v5e:4x4."
)
_LARGEST_BATCH = flags.DEFINE_bool(
    "largest_batch",
    False,
    "With --compile_for: find the largest batch; compiles several times.",
)
_OUT = flags.DEFINE_string("out", None, "With --compile_for: a JSON file for the numbers.")
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "On several hosts: HOST:PORT of the first, or 'auto' on pods and Slurm."
)
_HOSTS = flags.DEFINE_integer("hosts", None, "Number of hosts, with --coordinator=HOST:PORT.")
_HOST = flags.DEFINE_integer("host", None, "Index of this host, from 0.")
_LOST_AFTER = flags.DEFINE_integer(
    "lost_after", 100, "Seconds until a silent host counts as lost.", lower_bound=1
)
flags.mark_flag_as_required("config")


def _pretrain(config: ConfigDict, folder: Path) -> tuple[str, Path]:
    experiment = pretraining.run(config, folder)
    return report_pretraining(folder, folder / "report", experiment).text, folder / "report"


def _finetune(config: ConfigDict, folder: Path) -> tuple[str, Path]:
    return report_finetuning(finetuning.run(config, folder), folder), folder


TASKS: dict[str, Callable[[ConfigDict, Path], tuple[str, Path]]] = {
    "pretraining": _pretrain,
    **dict.fromkeys(finetuning.TASKS, _finetune),
}


# Where a host keeps its copy of the text, and how many processes read it, changes no result.
_OF_EACH_HOST = ("data.cache_dir", "data.workers")


def _facts(config: ConfigDict, workdir: str) -> dict[str, str]:
    """What all hosts of a run have in common."""
    versions = {one.__name__: one.__version__ for one in (pe_jax, jax, flax, optax)}
    settings = {
        f"config.{key}": repr(value)
        for key, value in flatten(config.to_dict()).items()
        if key not in _OF_EACH_HOST
    }
    return {"--workdir": workdir, **versions, **settings}


def train(workdir: str) -> None:
    config = _CONFIG.value
    if _COORDINATOR.value:
        hosts.connect(_COORDINATOR.value, _HOSTS.value, _HOST.value, _LOST_AFTER.value)
        hosts.agree(_facts(config, workdir))
    text, out = TASKS[config.task](config, reachable_path(workdir))
    if sharding.host()[0] == 0:
        print("\n" + text)
        print(f"Written to {out}")


def only_compile(topology: str) -> None:
    out = Path(_OUT.value).expanduser() if _OUT.value else None
    print(compile_for(_CONFIG.value, topology, find_largest=_LARGEST_BATCH.value, out=out))


def train_or_compile() -> None:
    if _COMPILE_FOR.value:
        check(_CONFIG.value, PRETRAINING, " --compile_for is for pretraining.")
    else:
        check(_CONFIG.value, PRETRAINING | FINETUNING, " Configs of reports are for eval.py.")
    if (_HOSTS.value, _HOST.value) != (None, None) and not _COORDINATOR.value:
        raise ValueError("--hosts and --host go with --coordinator=HOST:PORT, the same on each.")
    if _COMPILE_FOR.value:
        only_compile(_COMPILE_FOR.value)
        return
    if _LARGEST_BATCH.value or _OUT.value:
        raise ValueError("--largest_batch and --out go with --compile_for=TOPOLOGY.")
    if not _WORKDIR.value:
        raise ValueError("Where does the run go? Give --workdir.")
    train(_WORKDIR.value)


if __name__ == "__main__":
    main(train_or_compile)
