"""Trains what a config says: python train.py --config=configs/quickstart.py --workdir=W."""

from pathlib import Path

from absl import flags
from ml_collections import config_flags

from pe_jax.command import main
from pe_jax.tasks import pretraining
from pe_jax.tasks.report import report

_CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment, a file in configs/.")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the run; one that exists goes on.", required=True
)
flags.mark_flag_as_required("config")


def train() -> None:
    folder = Path(_WORKDIR.value).expanduser()
    experiment = pretraining.run(_CONFIG.value, folder)
    print("\n" + report(folder, folder / "report", experiment).text)
    print(f"Written to {folder / 'report'}")


if __name__ == "__main__":
    main(train)
