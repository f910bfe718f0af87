"""`python tests/suite_table.py`: the table of docs/encodings.md, encodings × checks."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from references import EXCUSED, REFERENCES

from pe_jax import testing
from pe_jax.encodings import from_name

if __name__ == "__main__":
    made = [from_name(name, **testing.SIZES._asdict()) for name in REFERENCES]
    print(testing.table(made, REFERENCES, EXCUSED))
