"""Memory that XLA frees on a CPU stays with the process.

XLA allocates a program's temporaries anew at each call. The GNU C library gets such large blocks
from the system and gives them back at once, so that each step pays again for every page that it
touches: the system clears it. About a fifth of a training step (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import os

# Of <malloc.h>.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
    """Has `malloc` keep what is freed, for the next allocation; the process does not shrink.

    To be called before there are other threads. Nothing is changed where the C library is another
    than GNU's, or where the environment already tunes it (`MALLOC_TRIM_THRESHOLD_` and the like).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt(_TRIM_THRESHOLD, -1)  # Never gives back the end of the heap.
    mallopt(_MMAP_MAX, 0)  # Large blocks come from the heap, too.
    mallopt(_ARENA_MAX, 1)  # Only the main heap can hold large ones; XLA's threads allocate few.
