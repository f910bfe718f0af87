"""Figures of given matrices and tables (matplotlib) as PNG, on request also PDF or SVG."""

from pe_jax.figures.curves import (
    OffsetPanel,
    cosine_curves,
    offset_curves,
    prediction_plot,
    psi_curves,
    score_curves,
)
from pe_jax.figures.head_maps import head_maps
from pe_jax.figures.head_profiles import HeadProfile, head_profiles
from pe_jax.figures.heatmaps import Axis, CorrelationTable, correlation_map, sweep_map
from pe_jax.figures.layers import SharePanel, layer_shares
from pe_jax.figures.lengths import LengthPanel, length_curves, score_map
from pe_jax.figures.matrices import Panel, matrix_grid
from pe_jax.figures.model_curves import CurvePanel, Line, model_curves

__all__ = [
    "Axis",
    "CorrelationTable",
    "CurvePanel",
    "HeadProfile",
    "LengthPanel",
    "Line",
    "OffsetPanel",
    "Panel",
    "SharePanel",
    "correlation_map",
    "cosine_curves",
    "head_maps",
    "head_profiles",
    "layer_shares",
    "length_curves",
    "matrix_grid",
    "model_curves",
    "offset_curves",
    "prediction_plot",
    "psi_curves",
    "score_curves",
    "score_map",
    "sweep_map",
]
