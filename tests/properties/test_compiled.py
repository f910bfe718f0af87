"""Arguments of jitted functions: floating-point numbers of any width, never complex."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax import properties

# Every public function whose arrays are all of measured numbers, with their shapes.
SHAPES = {
    ((6, 6),): (
        "attention_sinks chen_locality chen_symmetry distinctness effective_keys forward_share "
        "is_massive losses_by_place mean_distance mean_over_texts mixture_shares monotonicity "
        "offset_curve offset_fit offset_variance peak_to_mean profile_correlation proximity "
        "saponati_directionality saponati_symmetry symmetry translation_invariance"
    ),
    ((6, 6), (6, 6)): "norm_growth relative_change state_change",
    ((2, 6, 6),): "decompose positional_basis rollout",
    ((6, 4), (4, 2, 2), (4, 2, 2)): "position_products",
    ((6,),): "frequency_bands turning_point",
}
FUNCTIONS = {name: shapes for shapes, names in SHAPES.items() for name in names.split()}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_are_float32_at_least_and_real(name):
    function, shapes = getattr(properties, name), FUNCTIONS[name]

    def results(dtype):
        arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
        return jax.eval_shape(lambda *arrays: function(*arrays), *arrays)

    for dtype in (jnp.bfloat16, jnp.int32, bool):
        assert results(dtype) == results(jnp.float32)
    argument = next(iter(inspect.signature(function).parameters))
    with pytest.raises(ValueError, match=f"^{argument} must be real, got complex64"):
        results(jnp.complex64)


def test_bfloat16_is_measured_in_float32():
    narrow = jnp.asarray(np.random.default_rng(0).normal(size=(6, 6)), jnp.bfloat16)
    found = properties.offset_fit(narrow)
    np.testing.assert_array_equal(
        found, properties.offset_fit(narrow.astype(jnp.float32))
    )
    assert found.dtype == jnp.float32


def test_psi_of_a_toeplitz_is_real():
    for metric in (properties.monotonicity, properties.symmetry):
        with pytest.raises(ValueError, match="^phi must be real"):
            metric(properties.Toeplitz(psi=jnp.ones(4, jnp.complex64)))


@pytest.mark.parametrize(
    ("function", "argument"),
    [(properties.frequency_bands, "frequencies"), (properties.turning_point, "values")],
)
def test_nan_has_no_integer(function, argument):
    with pytest.raises(
        ValueError, match=f"^{argument} must not contain NaN, got 1 in 3 values"
    ):
        function(np.float32([3, np.nan, 1]))
    assert jax.jit(function)(np.float32([3, 2, 1])).dtype == jnp.int32


def test_symmetry_of_chen_is_nan_where_weights_are_not_finite():
    weights = np.full((2, 6, 6), 1 / 6, np.float32)
    weights[0, 2, 0] = np.nan
    assert np.isnan(properties.chen_symmetry(weights)).tolist() == [True, False]
