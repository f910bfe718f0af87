"""The flag `--config`, which takes the name of a shipped config or the path of a file."""

from __future__ import annotations

from pathlib import Path

from absl import flags
from ml_collections import ConfigDict
from ml_collections.config_flags import config_flags

from pe_jax.common.errors import did_you_mean
from pe_jax.common.schema import flatten

_SHIPPED = Path(__file__).resolve().parent.parent / "configs"


def shipped() -> dict[str, Path]:
    """Return the files of the shipped configs by name."""
    files = sorted(_SHIPPED.glob("*.py"))
    return {
        file.stem: file for file in files if "def get_config" in file.read_text("utf-8")
    }


def find_config(given: str) -> str:
    """Return the file that `--config=given` means: a name is a shipped config, a path is a file.

    A path has a `/` or ends in `.py`. `configs/glue.py` means the shipped config where there is no
    such file.
    """
    configs, path = shipped(), Path(given)
    is_path = "/" in given or path.suffix == ".py"
    if is_path and path.is_file():
        return given
    if path.stem in configs and path in (
        Path(path.stem),
        Path(f"configs/{path.stem}.py"),
    ):
        return str(configs[path.stem])
    hint = did_you_mean(path.stem, configs) or f" Shipped: {', '.join(configs)}."
    if not is_path and path.is_file():
        hint = f" For the file in this folder, give ./{given}."
    raise ValueError(f"there is no {'file' if is_path else 'config'} {given}.{hint}")


class _ConfigParser(config_flags.ConfigFileFlagParser):
    def parse(self, path: str) -> ConfigDict:
        return super().parse(find_config(path))


def define_config(flag_values: flags.FlagValues, description: str) -> flags.FlagHolder:
    """Define the flag `--config`, whose keys `--config.KEY=VALUE` sets."""
    holder = config_flags.DEFINE_config_file("config", None, description, flag_values)
    flag_values["config"].parser = _ConfigParser("config")
    return holder


def config_values(flag_values: flags.FlagValues, config: str) -> dict[str, object]:
    """Return the values of `--config=config` by dotted key, empty if `config` is."""
    values = flag_values["config"].parser.parse(config) if config else None
    return flatten(values.to_dict()) if isinstance(values, ConfigDict) else {}
