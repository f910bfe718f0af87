"""Entry point of the commands: flags, errors in one line, exit statuses."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import traceback
from collections.abc import Callable

from absl import app, flags, logging

from pe_jax.common.errors import Interrupted, extra
from pe_jax.common.markdown import printable
from pe_jax.common.schema import Classes, Config, fields_of_task, unknown_key
from pe_jax.common.values import shown
from pe_jax.trainer.configs.all_tasks import CONFIGS
from pe_jax.trainer.console import stopping, terminal
from pe_jax.trainer.console.config_files import config_values
from pe_jax.trainer.console.help import help_text
from pe_jax.trainer.console.terminal import log

_HELP = {"--help", "-help", "-h", "--helpshort"}
_LONGEST_LINE = 2_000  # Characters, of an error.
# EX_UNAVAILABLE of sysexits.h: another host was lost, and the same command resumes.
LOST_HOST = 69
# Errors that need no traceback.
_MISTAKES = ValueError | OSError | FloatingPointError | ModuleNotFoundError


def main(
    command: Callable[[], None],
    command_flags: flags.FlagValues,
    usage: str,
    script: str = "",
    classes: Classes[Config] = CONFIGS,
) -> None:
    """Parse the flags and run `command`; `--verbosity=1` adds the traceback of an error.

    What takes long to import, JAX included, is imported by the command: `--help` and a mistake in a
    flag need none of it. `usage` and `script` are for `help_text`.
    """

    def parse(args: list[str]) -> list[str]:
        config = _config_in(args)
        try:
            if _HELP & set(args):
                terminal.show(
                    help_text(as_called(usage), command_flags, script, config, classes)
                )
                raise SystemExit(0)
            return _parse(args, command_flags, config, classes)
        except ValueError as error:
            message = " ".join(str(error).split())
            raise SystemExit(_error(message)) from None

    stopping.catch()
    terminal.prepare_streams()
    app.run(functools.partial(_run, command), argv=sys.argv, flags_parser=parse)


def as_called(usage: str) -> str:
    """Write `usage` with `pe-jax train` for `train.py`, and configs by name, if that was called: a
    wheel has no train.py and no folder of configs."""
    if not sys.argv[0].startswith("pe-jax "):
        return re.sub(r"^(\w+\.py)\b", r"python \1", usage, flags=re.MULTILINE)
    usage = re.sub(r"^(\w+)\.py\b", r"pe-jax \1", usage, flags=re.MULTILINE)
    return re.sub(r"configs/(\w+)\.py", r"\1", usage)


def _run(command: Callable[[], None], args: list[str]) -> None:
    if len(args) > 1:
        raise SystemExit(_error(f"arguments not understood: {' '.join(args[1:])}"))
    # Hides the libraries' own progress messages; warnings still show.
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    try:
        with extra("train", SystemExit):
            from pe_jax.trainer.disk_cache import cache_compiled_programs

            cache_compiled_programs()
            command()
        stopping.done()
    except Interrupted as stopped:
        log(str(stopped))
        if not stopped.on_all_hosts:
            _leave(stopped.code)
        raise
    except Exception as error:
        message = str(error) if isinstance(error, _MISTAKES) else ""
        lost_host = _transfer_failure(error)
        message = lost_host or message
        status = LOST_HOST if lost_host else 1
        one_line = message and logging.get_verbosity() <= logging.INFO
        lines = _error(message) if one_line else traceback.format_exc()
        with contextlib.suppress(OSError):  # Standard error may be closed.
            print(printable(lines, keep="\n\t"), file=sys.stderr)
        _leave(status)
        raise SystemExit(status) from None


def _parse(
    args: list[str],
    command_flags: flags.FlagValues,
    config: str,
    classes: Classes[Config],
) -> list[str]:
    """Parse the flags; return the other arguments, or raise a ValueError for a mistake in one."""
    command_flags.append_flag_values(flags.FLAGS)  # absl's: --verbosity and others.
    try:
        rest = command_flags(args)
    except flags.Error as error:
        # Of absl: they name the flag, its value, and similar flags.
        message = str(error)
        accepted = _unparsed_value(args, message, command_flags, config, classes)
        message = accepted or message
    except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        # Of ml_collections, for an unknown key among others.
        message = _unknown_key(args, command_flags, config) or str(error)
    else:
        flags.FLAGS.mark_as_parsed()
        return rest
    raise ValueError(message)


def _unknown_key(args: list[str], command_flags: flags.FlagValues, config: str) -> str:
    """Return the message for the first `--config.KEY` that the config file lacks, if any."""
    values = config_values(command_flags, config)
    if not values:
        return ""
    for arg in args:
        match = re.match(r"--?(?:no)?config\.([^=]+)", arg)
        if not match:
            continue
        name = match[1]
        if not any(f"{key}.".startswith(f"{name}.") for key in values):
            return unknown_key(name, values, config)
    return ""


def _unparsed_value(
    args: list[str],
    message: str,
    command_flags: flags.FlagValues,
    config: str,
    classes: Classes[Config],
) -> str:
    """Return what a flag accepts, if absl's message is that of Python's int, float or bool."""
    match = re.match(
        r"flag --([\w.]+)=.*: (?:\('Non-bool|could not conv|invalid lit)", message
    )
    if not match:
        return ""
    name = match[1]
    value = None
    for arg in args:
        flag, equals, text = arg.partition("=")
        if equals and flag in (f"-{name}", f"--{name}"):
            value = text
    words = {"int": "an integer", "float": "a number"}
    accepted = words.get(command_flags[name].flag_type(), "True or False")
    if name.startswith("config."):
        task = config_values(command_flags, config).get("task")
        field = fields_of_task(task, classes).get(name.removeprefix("config."))
        if field:
            accepted = field.metadata["kind"].describe()
    return f"--{name} must be {accepted}, got {shown(value)}."


def _config_in(args: list[str]) -> str:
    for arg, following in zip(args, [*args[1:], ""]):
        if match := re.fullmatch("--?config(=(.*))?", arg):
            return match[2] or following
    return ""


def _error(message: str) -> str:
    """Return the line of an error; a value of megabytes in it is cut."""
    lines = printable(message, keep="\n\t").split("\n")
    for number, line in enumerate(lines):
        if len(line) > _LONGEST_LINE:
            lines[number] = f"{line[: _LONGEST_LINE // 2]} ... {line[-200:]}"
    return "error: " + "\n".join(lines)


def _transfer_failure(error: Exception) -> str:
    """Return the message for an error that another host has caused; empty for other errors."""
    hosts = sys.modules.get("pe_jax.trainer.training.hosts")  # Absent on a single host.
    return hosts.transfer_failure(error) if hosts else ""


def _leave(status: int) -> None:
    """End this process if it is one of several hosts, without waiting for the others.

    They would wait for it in the middle of a step; JAX's coordinator notifies them that it is lost.
    """
    jax = sys.modules.get("jax")
    if jax and jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
