"""`python -m pe_jax.testing [NAME ...]`: what holds of encodings by name.

By default of all that need no option.
"""

import argparse

from pe_jax.common.markdown import for_terminal
from pe_jax.encodings import from_name
from pe_jax.encodings.parser import for_text
from pe_jax.testing import CHECKS, table
from pe_jax.testing.subject import SIZES

if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m pe_jax.testing", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="such as rope or alibi+causal"
    )
    names = parser.parse_args().names or for_text()
    try:
        subjects = [from_name(name, **SIZES) for name in names]
    except ValueError as error:
        parser.error(str(error))
    print(for_terminal(table(subjects)))
    for name, check in CHECKS.items():
        print(for_terminal(f"- {name}: {check.__doc__}"))
