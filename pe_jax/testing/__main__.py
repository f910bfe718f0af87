"""`python -m pe_jax.testing [NAME ...]`: what holds of encodings by name.

By default of all that need no option.
"""

import sys

from pe_jax.console.markdown import for_terminal
from pe_jax.encodings import from_name
from pe_jax.encodings.names import for_text
from pe_jax.testing import CHECKS, SIZES, table

if __name__ == "__main__":
    names = sys.argv[1:] or for_text()
    print(for_terminal(table([from_name(name, **SIZES) for name in names])))
    print(for_terminal("\n".join(f"- {name}: {check.__doc__}" for name, check in CHECKS.items())))
