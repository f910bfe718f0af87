"""Length generalisation: models trained on short strings, tested on longer ones.

Ruoss et al. 2023, "Randomized Positional Encodings Boost Length Generalization of Transformers".
Kazemnejad et al. 2023, "The Impact of Positional Encoding on Length Generalization in
Transformers".
"""

from pe_jax.length_generalisation.cell import Cell, Score, run
from pe_jax.length_generalisation.context_free import CONTEXT_FREE
from pe_jax.length_generalisation.context_sensitive import CONTEXT_SENSITIVE
from pe_jax.length_generalisation.generation import GENERATION
from pe_jax.length_generalisation.regular import REGULAR
from pe_jax.length_generalisation.rows import Rows, row_length, rows, vocabulary_size
from pe_jax.length_generalisation.task import AlgorithmicTask, Level, Strings

TASKS: dict[str, AlgorithmicTask] = REGULAR | CONTEXT_FREE | CONTEXT_SENSITIVE | GENERATION

__all__ = [
    "TASKS",
    "AlgorithmicTask",
    "Cell",
    "Level",
    "Rows",
    "Score",
    "Strings",
    "row_length",
    "rows",
    "run",
    "vocabulary_size",
]
