"""What the parts of a property report share, and what each returns."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax.typing import ArrayLike
from ml_collections import ConfigDict

from pe_jax.files import Json, file_name
from pe_jax.properties import Kernel
from pe_jax.reports.property_report.subjects import Subject

if TYPE_CHECKING:
    from pe_jax.reports.property_report.hidden import Hidden
    from pe_jax.reports.property_report.texts import Texts


@dataclasses.dataclass(frozen=True)
class Section:
    """Numbers for the JSON file, lines of Markdown, and the files of the figures."""

    title: str
    numbers: Json
    lines: list[str]
    figures: list[Path] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The config, the folder for figures, and the probes that several parts use.

    Attributes:
      probes: Ā `[H, L, L]`, attention among identical words, by subject and kind; filled as it is
        measured, and dropped with the subject: table 1 makes many.
      kernels, texts, hidden: offset kernels, what trained models read, and what they make of it,
        likewise.
    """

    config: ConfigDict
    out: Path
    probes: WeakKeyDictionary[Subject, dict[str, jax.Array]] = dataclasses.field(
        default_factory=WeakKeyDictionary
    )
    kernels: WeakKeyDictionary[Subject, Kernel] = dataclasses.field(
        default_factory=WeakKeyDictionary
    )
    texts: WeakKeyDictionary[Subject, Texts] = dataclasses.field(default_factory=WeakKeyDictionary)
    hidden: WeakKeyDictionary[Subject, Hidden] = dataclasses.field(
        default_factory=WeakKeyDictionary
    )

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(self.config.windows)

    def figure(self, name: str) -> Path:
        """The path of the figure of this name."""
        return self.out / f"{file_name(name.replace(': ', '_'))}.png"


def for_json(values: ArrayLike) -> Any:
    """A number or nested lists of numbers; None for what JSON has not, NaN and infinity."""
    values = np.asarray(values, np.float64)
    if values.ndim:
        return [for_json(one) for one in values]
    return float(values) if np.isfinite(values) else None
