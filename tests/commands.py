"""train.py and eval.py within this process: no interpreter to start, nothing to import again."""

import contextlib
import io
import runpy
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
            _forget(path)
            flags.FLAGS.unparse_flags()
            logging.set_verbosity(verbosity)
    if isinstance(status, str):  # As the interpreter does.
        err.write(f"{status}\n")
        status = 1
    return status, out.getvalue(), err.getvalue()


def _forget(path):
    """Takes away the flags of a script, and those of its config's fields: the next has others."""
    own = {flag.name for flag in flags.FLAGS.flags_by_module_dict()[path]}
    for name in [name for name in flags.FLAGS if name in own or name.startswith("config.")]:
        delattr(flags.FLAGS, name)
