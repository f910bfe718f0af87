"""Entry point of the commands: flags, errors in one line, exit statuses."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable

from absl import app, flags, logging
from ml_collections import ConfigDict

from pe_jax.configs.all_tasks import CONFIGS
from pe_jax.console import stopping
from pe_jax.console.help import HELP, help_text
from pe_jax.console.terminal import say
from pe_jax.errors import Interrupted, extra
from pe_jax.schema import Classes, Config, flatten, unknown_key


def main(
    command: Callable[[], None],
    command_flags: flags.FlagValues,
    usage: str,
    script: str = "",
    classes: Classes[Config] = CONFIGS,
) -> None:
    """Parse the flags and run `command`; `--verbosity=1` adds the traceback of an error.

    What takes long to import, JAX included, is imported by the command: `--help` and a mistake in a
    flag need none of it.

    Args:
      command_flags: the flags of the command.
      usage, script, classes: for `help_text`.
    """

    def parse(args: list[str]) -> list[str]:
        if HELP & set(args):
            _print_help(args)
        command_flags.append_flag_values(flags.FLAGS)  # absl's: --verbosity and others.
        try:
            rest = command_flags(args)
        except flags.Error as error:  # Of absl: they name the flag, its value, and similar flags.
            message = str(error)
        except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
            # Of ml_collections, for an unknown key among others.
            message = _unknown_key(args) or str(error)
        else:
            flags.FLAGS.mark_as_parsed()
            return rest
        raise SystemExit(f"error: in the flags: {' '.join(message.split())}")

    def _print_help(args: list[str]) -> None:
        try:
            print(help_text(usage, command_flags, script, _config_in(args), classes))
        except ValueError as error:
            raise SystemExit(f"error: in the flags: {error}") from None
        raise SystemExit(0)

    def _unknown_key(args: list[str]) -> str:
        """Return the message for the first `--config.KEY` that the config file lacks, if any."""
        path = _config_in(args)
        config = command_flags["config"].parser.parse(path) if path else None
        if not isinstance(config, ConfigDict):
            return ""
        keys = flatten(config.to_dict())
        for arg in args:
            match = re.match(r"--?(?:no)?config\.([^=]+)", arg)
            if match and not any(f"{key}.".startswith(f"{match[1]}.") for key in keys):
                return unknown_key(match[1], keys, path)
        return ""

    def run(args: list[str]) -> None:
        if len(args) > 1:
            raise SystemExit(f"error: arguments not understood: {' '.join(args[1:])}")
        # Hides the libraries' own progress messages; warnings still show.
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)
        try:
            with extra("train", SystemExit):
                from pe_jax.console.compile_cache import cache_compiled_programs

                cache_compiled_programs()
                command()
            stopping.done()
        except Interrupted as stopped:
            say(str(stopped))
            if not stopped.on_all_hosts:
                _leave(stopped.code)
            raise
        except Exception as error:
            mistake = isinstance(error, ValueError | OSError | FloatingPointError)
            if mistake and logging.get_verbosity() <= logging.INFO:
                print(f"error: {error}", file=sys.stderr)
            else:
                traceback.print_exc()
            _leave(1)
            raise SystemExit(1) from None

    stopping.catch()
    app.run(run, argv=sys.argv, flags_parser=parse)


def _config_in(args: list[str]) -> str:
    """Return the value of `--config`, empty if it is not given."""
    for arg, following in zip(args, [*args[1:], ""]):
        if match := re.fullmatch("--?config(=(.*))?", arg):
            return match[2] or following
    return ""


def _leave(status: int) -> None:
    """End this process if it is one of several hosts, without waiting for the others: they would
    wait for it in the middle of a step, and are notified that it is lost."""
    jax = sys.modules.get("jax")
    if jax and jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
