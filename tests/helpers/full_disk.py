"""A disk that is full."""

import contextlib
import resource


@contextlib.contextmanager
def files_of_at_most(size):
    """Simulates a full disk: larger files cannot be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
