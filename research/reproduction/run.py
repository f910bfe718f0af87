"""The paper's comparison: encodings trained alike, fine-tuned, measured, and its claims judged.

python research/reproduction/run.py --config=research/reproduction/config.py --workdir=S --dry_run
python research/reproduction/run.py --config=research/reproduction/config.py --workdir=S
python research/reproduction/run.py --workdir=S --out=R      (the page of what is done)

The same command resumes a study that was stopped.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # The repository.

from pe_jax.trainer.console import stopping

if __name__ == "__main__":
    stopping.catch()  # Before the other imports: signals may come during them.

from pe_jax.common.errors import extra

with extra("train", SystemExit):
    from absl import flags

    from pe_jax.common.files import reachable_path
    from pe_jax.common.markdown import for_terminal
    from pe_jax.common.schema import from_values
    from pe_jax.trainer.console import command
    from pe_jax.trainer.console.config_files import define_config
    from pe_jax.trainer.console.terminal import show
    from research.reproduction.config import ReproductionConfig

_FLAGS = flags.FlagValues()
_CONFIG = define_config(_FLAGS, "The study, such as research/reproduction/config.py.")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the study.", flag_values=_FLAGS
)
_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Only print the plan and its time.", flag_values=_FLAGS
)
_OUT = flags.DEFINE_string(
    "out",
    None,
    "Execute nothing: write the page of the study to this folder.",
    flag_values=_FLAGS,
)


def run() -> None:
    if not _WORKDIR.value:
        raise ValueError("--workdir is required: the folder of the study.")
    workdir = out = reachable_path(_WORKDIR.value)
    if _OUT.value:
        if _CONFIG.value is not None or _DRY_RUN.value:
            raise ValueError(
                f"--out takes the study in {workdir} as it is: remove other flags."
            )
        from research.reproduction.report import report

        out = reachable_path(_OUT.value)
        text = report(workdir, out)
    else:
        if _CONFIG.value is None:
            raise ValueError("--config is required: research/reproduction/config.py.")
        config = from_values(_CONFIG.value, ReproductionConfig)
        from research.reproduction import study

        text = (study.dry_run if _DRY_RUN.value else study.execute)(config, workdir)
    show("\n" + for_terminal(text))
    if not _DRY_RUN.value:
        show(f"Written to {out}")


if __name__ == "__main__":
    command.main(run, _FLAGS, __doc__ or "", classes=ReproductionConfig)
