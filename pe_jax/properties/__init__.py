"""Properties of position encodings: metrics as pure jitted functions, sweeps, and probes."""

from pe_jax.properties.attention_flow import (
    Shares,
    Sinks,
    effective_keys,
    mean_distance,
    rollout,
    shares,
    sink_mass,
)
from pe_jax.properties.estimate import Estimate, in_batches, over_texts
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
from pe_jax.properties.place import Places, bin_edges, by_place
from pe_jax.properties.position_probe import Probe, Tokens, linear_probe, mlp_probe
from pe_jax.properties.position_regression import Fit, regress
from pe_jax.properties.positional_basis import Basis, Decomposition, decompose, positional_basis
from pe_jax.properties.probing import identical_words, position_products
from pe_jax.properties.requirements import change, distinctness, growth
from pe_jax.properties.rotary_frequencies import bands, pair_norms
from pe_jax.properties.score_correlation import MINIMUM_RUNS, Correlation, correlate
from pe_jax.properties.shift import shift_curve, state_change
from pe_jax.properties.sweeps import compile_sweep, sweep
from pe_jax.properties.toeplitz import Toeplitz, cosines, psi, turning_point

__all__ = [
    "MINIMUM_RUNS",
    "Basis",
    "Correlation",
    "Curve",
    "Decomposition",
    "Estimate",
    "Fit",
    "Kernel",
    "Places",
    "Probe",
    "Shares",
    "Sinks",
    "Toeplitz",
    "Tokens",
    "agreement",
    "bands",
    "bin_edges",
    "by_place",
    "change",
    "chen_locality",
    "chen_symmetry",
    "compile_sweep",
    "correlate",
    "cosines",
    "decompose",
    "distinctness",
    "effective_keys",
    "forward_share",
    "growth",
    "identical_words",
    "in_batches",
    "is_massive",
    "largest_ratio",
    "linear_probe",
    "mean_distance",
    "mlp_probe",
    "monotonicity",
    "offset_curve",
    "offset_kernel",
    "over_texts",
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
    "rollout",
    "saponati_directionality",
    "saponati_symmetry",
    "shares",
    "shift_curve",
    "sink_mass",
    "state_change",
    "sweep",
    "symmetry",
    "translation_invariance",
    "turning_point",
]
