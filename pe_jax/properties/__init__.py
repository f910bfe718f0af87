"""Properties of position encodings: metrics as pure jitted functions, sweeps, and probes."""

from pe_jax.properties.literature import (
    chen_locality,
    chen_symmetry,
    saponati_directionality,
    saponati_symmetry,
)
from pe_jax.properties.massive_values import (
    agreement,
    is_massive,
    largest_ratio,
    overlap,
    random_others,
)
from pe_jax.properties.metrics import (
    forward_share,
    monotonicity,
    proximity,
    symmetry,
    translation_invariance,
)
from pe_jax.properties.offset_kernel import (
    Curve,
    Kernel,
    offset_curve,
    offset_kernel,
    random_texts,
    random_words,
)
from pe_jax.properties.position_probe import Probe, Tokens, linear_probe, mlp_probe
from pe_jax.properties.position_regression import Fit, regress
from pe_jax.properties.positional_basis import Basis, Decomposition, decompose, positional_basis
from pe_jax.properties.probing import identical_words, position_products
from pe_jax.properties.requirements import change, distinctness, growth
from pe_jax.properties.rotary_frequencies import bands, pair_norms
from pe_jax.properties.score_correlation import MINIMUM_RUNS, Correlation, correlate
from pe_jax.properties.sweeps import compile_sweep, sweep
from pe_jax.properties.toeplitz import cosines, monotonicity_of_psi, psi, turning_point

__all__ = [
    "MINIMUM_RUNS",
    "Basis",
    "Correlation",
    "Curve",
    "Decomposition",
    "Fit",
    "Kernel",
    "Probe",
    "Tokens",
    "agreement",
    "bands",
    "change",
    "chen_locality",
    "chen_symmetry",
    "compile_sweep",
    "correlate",
    "cosines",
    "decompose",
    "distinctness",
    "forward_share",
    "growth",
    "identical_words",
    "is_massive",
    "largest_ratio",
    "linear_probe",
    "mlp_probe",
    "monotonicity",
    "monotonicity_of_psi",
    "offset_curve",
    "offset_kernel",
    "overlap",
    "pair_norms",
    "position_products",
    "positional_basis",
    "proximity",
    "psi",
    "random_others",
    "random_texts",
    "random_words",
    "regress",
    "saponati_directionality",
    "saponati_symmetry",
    "sweep",
    "symmetry",
    "translation_invariance",
    "turning_point",
]
