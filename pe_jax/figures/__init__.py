"""Figures of given matrices and tables (matplotlib) as PNG, on request also PDF or SVG.

Every function draws one figure: `draw(panels, path, title=..., vector="")`, and returns `path`.
"""

from pe_jax.figures.curves import (
    CurvePanel,
    LengthPanel,
    Line,
    OffsetPanel,
    PsiCurve,
    cosine_curves,
    layer_shares,
    length_curves,
    model_curves,
    offset_curves,
    prediction_plot,
    psi_curves,
    score_curves,
)
from pe_jax.figures.maps import (
    Panel,
    correlation_map,
    head_maps,
    head_profiles,
    matrix_grid,
    score_map,
    sweep_map,
)

__all__ = [
    "CurvePanel", "LengthPanel", "Line", "OffsetPanel",
    "Panel", "PsiCurve", "correlation_map",
    "cosine_curves", "head_maps", "head_profiles", "layer_shares", "length_curves", "matrix_grid",
    "model_curves", "offset_curves", "prediction_plot", "psi_curves", "score_curves", "score_map",
    "sweep_map",
]  # fmt: skip
