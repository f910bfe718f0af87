"""train.py and eval.py within this process: no interpreter to start, nothing to import again."""

import contextlib
import io
import runpy
import sys
from pathlib import Path
from unittest import mock

from absl import flags, logging

from pe_jax.console import stopping

ROOT = Path(__file__).parent.parent


def call(script, *args):
    """Exit status, standard output and standard error of a command, as a shell would see them."""
    path, verbosity = str(ROOT / script), logging.get_verbosity()
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch("sys.argv", [path, *args]),
    ):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            status = end.code or 0
        finally:
            stopping.end()
            # The command's own flags are gone with its module; absl's are as before.
            sys.modules.pop(f"pe_jax.commands.{Path(script).stem}")
            flags.FLAGS.unparse_flags()
            logging.set_verbosity(verbosity)
    if isinstance(status, str):  # As the interpreter does.
        err.write(f"{status}\n")
        status = 1
    return status, out.getvalue(), err.getvalue()
