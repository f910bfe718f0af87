"""Properties of position encodings: metrics as pure jitted functions, sweeps, and probes.

The modules are imported when they are first used: a training run needs few of them.
"""

import typing

from pe_jax.common.lazy import lazy_attributes

__all__ = [
    "MINIMUM_RUNS",
    "SHUFFLES",
    "Basis",
    "Correlation",
    "Estimate",
    "Fit",
    "Measures",
    "OrderSensitivity",
    "Probe",
    "Toeplitz",
    "attention_sinks",
    "bin_edges",
    "chen_locality",
    "chen_symmetry",
    "compile_sweep",
    "correlate",
    "cosines",
    "decompose",
    "distinctness",
    "effective_keys",
    "forward_share",
    "frequency_bands",
    "identical_words",
    "in_batches",
    "is_massive",
    "linear_probe",
    "losses_by_place",
    "massive_overlap",
    "mean_distance",
    "mean_over_texts",
    "measure",
    "mixture_shares",
    "mlp_probe",
    "monotonicity",
    "norm_growth",
    "offset_curve",
    "offset_fit",
    "offset_kernel",
    "offset_variance",
    "order_sensitivity",
    "pair_norms",
    "peak_to_mean",
    "picture",
    "position_products",
    "positional_basis",
    "profile_correlation",
    "proximity",
    "psi",
    "random_other_dimensions",
    "random_texts",
    "random_words",
    "regress",
    "relative_change",
    "rollout",
    "saponati_directionality",
    "saponati_symmetry",
    "shift_curve",
    "shuffled_orders",
    "state_change",
    "states_by_order",
    "sweep",
    "symmetry",
    "translation_invariance",
    "turning_point",
]

# Measures that docs/stability.md covers. The others are experimental: any release may change them.
_STABLE = (
    "Correlation",
    "Measures",
    "OrderSensitivity",
    "Probe",
    "correlate",
    "identical_words",
    "linear_probe",
    "measure",
    "monotonicity",
    "order_sensitivity",
    "picture",
    "proximity",
    "psi",
    "shuffled_orders",
    "states_by_order",
    "sweep",
    "symmetry",
    "translation_invariance",
    "turning_point",
)
EXPERIMENTAL = tuple(name for name in __all__ if name not in _STABLE)

# A name is looked for in one after the other.
_MODULES = (
    "metrics",
    "toeplitz",
    "estimates",
    "probing",
    "sweeps",
    "attention_flow",
    "basis",
    "encoding_measures",
    "head_dimensions",
    "literature",
    "offset_share",
    "pictures",
    "position_probe",
    "position_regression",
    "requirements",
    "score_correlation",
    "word_order",
)

# isort: off
if typing.TYPE_CHECKING:
    from pe_jax.properties.attention_flow import (
        attention_sinks,
        effective_keys,
        mean_distance,
        mixture_shares,
        rollout,
    )
    from pe_jax.properties.basis import Basis, decompose, positional_basis
    from pe_jax.properties.encoding_measures import Measures, measure
    from pe_jax.properties.estimates import (
        Estimate,
        bin_edges,
        in_batches,
        losses_by_place,
        mean_over_texts,
        shift_curve,
        state_change,
    )
    from pe_jax.properties.head_dimensions import (
        frequency_bands,
        is_massive,
        massive_overlap,
        pair_norms,
        peak_to_mean,
        profile_correlation,
        random_other_dimensions,
    )
    from pe_jax.properties.literature import (
        chen_locality,
        chen_symmetry,
        saponati_directionality,
        saponati_symmetry,
    )
    from pe_jax.properties.metrics import (
        forward_share,
        monotonicity,
        proximity,
        symmetry,
        translation_invariance,
    )
    from pe_jax.properties.offset_share import offset_fit, offset_variance
    from pe_jax.properties.pictures import picture
    from pe_jax.properties.position_probe import Probe, linear_probe, mlp_probe
    from pe_jax.properties.position_regression import Fit, regress
    from pe_jax.properties.probing import (
        identical_words,
        offset_curve,
        offset_kernel,
        position_products,
        random_texts,
        random_words,
    )
    from pe_jax.properties.requirements import (
        distinctness,
        norm_growth,
        relative_change,
    )
    from pe_jax.properties.score_correlation import MINIMUM_RUNS, Correlation, correlate
    from pe_jax.properties.sweeps import compile_sweep, sweep
    from pe_jax.properties.toeplitz import Toeplitz, cosines, psi, turning_point
    from pe_jax.properties.word_order import (
        SHUFFLES,
        OrderSensitivity,
        order_sensitivity,
        shuffled_orders,
        states_by_order,
    )
else:
    __getattr__, __dir__ = lazy_attributes(__name__, __all__, _MODULES)
