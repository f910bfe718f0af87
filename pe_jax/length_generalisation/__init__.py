"""Length generalisation: models trained on short strings, tested on longer ones.

Ruoss et al. 2023, "Randomized Positional Encodings Boost Length Generalization of Transformers".
Kazemnejad et al. 2023, "The Impact of Positional Encoding on Length Generalization in
Transformers".
"""

from pe_jax.length_generalisation.cell import Cell, run
from pe_jax.length_generalisation.rows import row_length, rows, vocabulary_size
from pe_jax.length_generalisation.tasks import TASKS, AlgorithmicTask, Level, Strings

__all__ = [
    "TASKS",
    "AlgorithmicTask",
    "Cell",
    "Level",
    "Strings",
    "row_length",
    "rows",
    "run",
    "vocabulary_size",
]
