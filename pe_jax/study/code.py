"""Which code made a number."""

from __future__ import annotations

import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
# What scores and measures depend on; not how they are shown.
_PARTS = (
    "attention", "data", "encodings", "interop", "models", "properties", "tasks", "training"
)  # fmt: skip


def code_digest() -> str:
    """A digest of the sources that the numbers of a study depend on."""
    digest = hashlib.sha256()
    for path in sorted(path for part in _PARTS for path in (_PACKAGE / part).rglob("*.py")):
        digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
