"""Text of `--help`: usage, flags, shipped configs, and the keys of a config."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

from absl import flags

from pe_jax.common.markdown import WIDTH
from pe_jax.common.schema import Classes, Config, fields_of_task
from pe_jax.trainer.console.config_files import config_values, shipped

_COLUMN = 32  # Where descriptions begin.


def help_text(
    usage: str,
    command_flags: flags.FlagValues,
    script: str,
    config: str,
    classes: Classes[Config],
) -> str:
    """Return the help of a command.

    Args:
      script: its name in the docstrings of configs, such as `train.py`; empty if it takes none.
      config: the value of `--config`, whose keys are listed; empty lists the configs instead.
      classes: of configs, which describe the keys.
    """
    lines = [usage.strip(), "", "Flags:"]
    for name in command_flags:
        default, description = command_flags[name].default, command_flags[name].help
        if default not in (None, "", [], False):
            description += f" Default {default}."
        lines += _entry(f"--{name}", description)
    if config:
        lines += ["", f"Keys of {config}, each set with --config.KEY=VALUE:"]
        values = config_values(command_flags, config)
        fields = fields_of_task(values.get("task"), classes)
        for key, value in values.items():
            description = fields[key].metadata["description"] if key in fields else ""
            lines += _entry(f"{key} = {value!r}", description)
    elif script:
        lines += [
            "",
            "Configs, by name or as files; --config=NAME --help lists the keys of one:",
        ]
        for name, purpose in _purposes(script):
            lines += _entry(name, purpose)
    return "\n".join(lines)


def _entry(name: str, description: str) -> list[str]:
    """Return the lines of a name and its description; a long name has a line to itself."""
    margin = " " * _COLUMN
    wrapped = textwrap.wrap(description, WIDTH - _COLUMN) or [""]
    if len(name) + 4 > _COLUMN:
        return [f"  {name}", *(margin + line for line in wrapped if line)]
    first, *rest = wrapped
    return [
        f"  {name:{_COLUMN - 2}}{first}".rstrip(),
        *(margin + line for line in rest),
    ]


def _purposes(script: str) -> Iterator[tuple[str, str]]:
    """Yield the names of the shipped configs for a script, with the first line of each."""
    for name, path in shipped().items():
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if script in text:
            yield name, text.partition("\n")[0]
