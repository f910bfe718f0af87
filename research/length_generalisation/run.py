"""Train small models on short strings and test them on longer ones: a report on several encodings.

python research/length_generalisation/run.py --config=research/length_generalisation/config.py \\
    --encodings=none,rope --workdir=W

The same command resumes a suite that was stopped; encodings and tasks can be added to it.
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
    from research.length_generalisation.config import LengthGeneralisationConfig

_FLAGS = flags.FlagValues()
_CONFIG = define_config(
    _FLAGS, "The suite, such as research/length_generalisation/config.py."
)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the suite and its report.", flag_values=_FLAGS
)
_ENCODINGS = flags.DEFINE_string(
    "encodings",
    "",
    "Encodings to train; 'all', or 'paper' for its 13.",
    flag_values=_FLAGS,
)


def run() -> None:
    if _CONFIG.value is None:
        raise ValueError(
            "--config is required: research/length_generalisation/config.py."
        )
    if not _WORKDIR.value:
        raise ValueError(
            "--workdir is required: the folder of the suite and its report."
        )
    config = from_values(_CONFIG.value, LengthGeneralisationConfig)
    from pe_jax.encodings.parser import expand_names
    from research.length_generalisation.suite import run_suite

    workdir = reachable_path(_WORKDIR.value)
    show(for_terminal(run_suite(expand_names(_ENCODINGS.value), config, workdir)))
    show(f"Written to {workdir}")


if __name__ == "__main__":
    command.main(run, _FLAGS, __doc__ or "", classes=LengthGeneralisationConfig)
