"""What each measurement of a property report gives back."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict


@dataclasses.dataclass(frozen=True)
class Section:
    """Numbers as they go to JSON, lines of Markdown to read, and the files of the figures."""

    title: str
    numbers: dict[str, Any]
    lines: list[str]
    figures: list[Path] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all measurements share: the config, the folder for their figures, and the probes.

    Attributes:
      probes: attention among identical words, by subject and kind, once it has been measured.
    """

    config: ConfigDict
    out: Path
    probes: dict[Any, Any] = dataclasses.field(default_factory=dict)

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(self.config.windows)

    def figure(self, name: str) -> Path:
        """The path of a figure; what a subject is called may hold characters that files cannot."""
        safe = "".join(c if c.isalnum() or c in "-_+." else "_" for c in name.replace(": ", "_"))
        return self.out / f"{safe}.png"
