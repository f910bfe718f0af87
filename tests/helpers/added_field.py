"""Give every public record another field, as a later version may: nothing may break.

`PE_JAX_ADDED_FIELD=1 python -m pytest` runs any tests so.
"""

import os
from typing import Any

from pe_jax.common.records import Record

NAME = "added_later"


def add_if_asked():
    """Add the field to the records that are defined from now on, if the environment says so."""
    if not os.environ.get("PE_JAX_ADDED_FIELD"):
        return
    define = Record.__init_subclass__.__func__

    def with_field(cls, **options):
        if not hasattr(cls, NAME):  # A record that extends another inherits its field.
            cls.__annotations__[NAME] = Any
            setattr(cls, NAME, None)
        define(cls, **options)

    Record.__init_subclass__ = classmethod(with_field)
