"""Figures of matrices and tables (matplotlib), and their files: PNG, on request also PDF or SVG.

Every function draws one figure, `save(matrix_grid(panels, title=...), path)` writes it.
"""

from pe_jax.trainer.figures.curves import (
    Curve,
    layer_shares,
    model_curves,
    offset_curves,
    prediction_plot,
)
from pe_jax.trainer.figures.maps import (
    Panel,
    correlation_map,
    head_profiles,
    matrix_grid,
    sweep_map,
)
from pe_jax.trainer.figures.style import save

__all__ = [
    "Curve",
    "Panel",
    "correlation_map",
    "head_profiles",
    "layer_shares",
    "matrix_grid",
    "model_curves",
    "offset_curves",
    "prediction_plot",
    "save",
    "sweep_map",
]
