"""The commands of `pe-jax`; train.py and eval.py of a checkout are two of them."""

import importlib
import sys

from pe_jax import __version__
from pe_jax.console import huge_pages, stopping, streams
from pe_jax.errors import extra

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
    huge_pages.use()
    streams.prepare()
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in _COMMANDS:
        sys.argv = [f"pe-jax {name}", *arguments]
        with extra("train", SystemExit):
            command = importlib.import_module(f"{__name__}.{name}")
        command.main()
        return
    if name == "--version":
        streams.show(__version__)
        return
    usage = "\n".join(f"  pe-jax {one:9}{what}" for one, what in _COMMANDS.items())
    usage += "\n\npe-jax COMMAND --help says more; pe-jax --version."
    if name not in ("--help", "-h"):
        raise SystemExit(f"error: {name} is not a command of pe-jax:\n{usage}")
    streams.show(usage)
