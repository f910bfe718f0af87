"""Figures of matrices and tables that others computed (matplotlib): PNG, on request PDF or SVG."""

from pe_jax.figures.curves import prediction_plot, psi_curves, score_curves, wave_curves
from pe_jax.figures.matrices import Panel, matrix_grid
from pe_jax.figures.tables import correlation_map, sweep_map

__all__ = [
    "Panel",
    "correlation_map",
    "matrix_grid",
    "prediction_plot",
    "psi_curves",
    "score_curves",
    "sweep_map",
    "wave_curves",
]
