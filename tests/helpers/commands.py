"""Commands, run within this process or as a process of their own."""

import contextlib
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

from absl import flags, logging

from pe_jax.trainer.console import stopping

ROOT = Path(__file__).parents[2]


def call(script, *args):
    """Run a script of the repository within this process, which saves a start and its imports.

    Returns:
      Exit status, standard output and standard error, as a shell would see them.
    """
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
            sys.modules.pop(f"pe_jax.trainer.commands.{Path(script).stem}", None)
            flags.FLAGS.unparse_flags()
            logging.set_verbosity(verbosity)
    if isinstance(status, str):  # As the interpreter does.
        err.write(f"{status}\n")
        status = 1
    return status, out.getvalue(), err.getvalue()


def run(*args, seconds=300, **environment):
    """Run `python *args` in the repository root as a process of its own.

    Args:
      seconds: time after which it is killed.
      environment: variables to set; None unsets one.

    Returns:
      Exit status, standard output and standard error.
    """
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    done = subprocess.run(
        [sys.executable, *args],
        cwd=ROOT,
        env={name: value for name, value in variables.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    return done.returncode, done.stdout, done.stderr
