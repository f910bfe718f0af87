"""The checks of array shapes that jaxtyping's import hook has beartype make."""

from beartype import beartype

_checks = {}


def beartype_once(function):
    """Return beartype's check of a signature, made once.

    jaxtyping asks again whenever a nested function is defined, and compiling the check took a
    tenth of the tests' time.
    """
    key = (function.__module__, function.__qualname__, repr(function.__annotations__))
    if key not in _checks:
        _checks[key] = beartype(function)
    return _checks[key]
