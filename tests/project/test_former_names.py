"""Former names of arguments and functions are errors that give the new name."""

import jax
import jax.numpy as jnp
import pytest

from pe_jax import attention, encodings, interop, properties

X = jnp.zeros((1, 2, 4, 8))
SIZES = dict(head_size=8, hidden_size=32)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (
            lambda: attention.init_cache(encodings.causal(), rows=1, length=2, **SIZES),
            "init_cache() has no argument 'rows'. It is batch_size now.",
        ),
        (
            lambda: attention.init_cache(
                encodings.causal(), 1, 2, num_heads=4, **SIZES
            ),
            "init_cache() has no argument 'num_heads'. It is num_kv_heads now.",
        ),
        (
            lambda: attention.attention(X, X, X, platform="tpu"),
            "attention() has no argument",
        ),
        (
            lambda: encodings.embed(X[0], encodings.none(), positions=jnp.arange(4)),
            "embed() has no argument 'positions'. Pass Context(positions_q=...).",
        ),
        (
            lambda: properties.sweep(fn=jnp.sum, settings=jnp.zeros(3)),
            "sweep() has no argument 'fn'. It is function now.",
        ),
    ],
)
def test_arguments(call, advice):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value).startswith(advice)


def test_functions():
    with pytest.raises(
        AttributeError, match=r"Use pe_jax\.encodings\.registry\.register_wrapper"
    ):
        _ = encodings.wrapper
    with pytest.raises(AttributeError, match="Did you mean define_encoding"):
        _ = encodings.named


def test_a_function_with_former_arguments_is_traced_as_before():
    assert jax.eval_shape(attention.attention, X, X, X).shape == X.shape


@pytest.mark.parametrize(
    ("package", "name", "hint"),
    [
        (interop, "load_bert", "It is load_encoder now."),
        (properties, "turning", "Did you mean turning_point?"),
    ],
)
def test_names_of_packages(package, name, hint):
    with pytest.raises(AttributeError) as error:
        getattr(package, name)
    message = f"module {package.__name__!r} has no attribute {name!r}. {hint}"
    assert str(error.value) == message
