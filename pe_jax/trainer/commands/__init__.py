"""The commands of `pe-jax`; train.py and eval.py of a checkout are two of them."""

import importlib
import os
import sys

from pe_jax import __version__
from pe_jax.common.errors import did_you_mean, extra
from pe_jax.common.markdown import printable
from pe_jax.trainer.console import huge_pages, stopping, terminal

_COMMANDS = {
    "train": "Train or fine-tune.",
    "eval": "Measure, compare and export what was trained.",
    "explore": "Write a page that compares runs and encodings.",
    "golden": "Write golden vectors of position code, or check code.",
    "prepare": "Tokenize a text into a folder.",
}


def main() -> None:
    """`pe-jax COMMAND ...`, the script that an installed package has."""
    stopping.catch()
    if os.path.basename(sys.argv[0]) == "pe-jax":
        huge_pages.use()  # Another script may have done something before, which must not be twice.
    terminal.prepare_streams()
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in _COMMANDS:
        sys.argv = [f"pe-jax {name}", *arguments]
        with extra("train", SystemExit):
            command = importlib.import_module(f"{__name__}.{name}")
        command.main()
        return
    if name == "--version":
        terminal.show(__version__)
        return
    lines = [f"  pe-jax {each:9}{purpose}" for each, purpose in _COMMANDS.items()]
    lines += ["", "pe-jax COMMAND --help says more; pe-jax --version."]
    usage = "\n".join(lines)
    if name not in ("--help", "-h"):
        hint = did_you_mean(name, _COMMANDS)
        raise SystemExit(
            f"error: {printable(name)} is not a command of pe-jax.{hint}\n{usage}"
        )
    terminal.show(usage)
