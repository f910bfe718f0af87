"""`jax.export` of programs whose batch and length are symbolic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import ShapeDtypeStruct, export

from pe_jax import encodings
from pe_jax.attention import attention

H, d = 2, 4
SIZES = dict(hidden_size=H * d, head_size=d, num_heads=H, max_length=16)


def named(name):
    encoding = encodings.from_name(name, **SIZES)
    return encoding, encoding.init(jax.random.key(0))


def exported(function, *constraints):
    shape = *export.symbolic_shape("b, l", constraints=constraints), H, d
    return export.export(jax.jit(function))(ShapeDtypeStruct(shape, jnp.float32))


def layer(name, implementation="auto"):
    """Attention to hidden states themselves, after what an encoding does to them."""
    encoding, params = named(name)

    def apply(q):
        x = encodings.embed(q.reshape(*q.shape[:2], H * d), encoding, params)
        q, context = x.reshape(q.shape), encodings.Context(x_q=x, x_k=x)
        acting = encoding.in_attention
        return attention(
            q,
            q,
            q,
            acting if acting.parts else None,
            params,
            context,
            implementation=implementation,
        )

    return apply


def test_the_numbers_are_those_of_known_sizes():
    names = [
        "none",
        "sinusoidal_absolute+rope+t5+learned_relative(max_distance=2)",
        "learned_absolute+alibi+sinusoidal_relative(max_distance=2)+window(max_distance=2)",
        "fox",
    ]
    layers = [layer(name) for name in names]

    def all_layers(q):
        return [apply(q) for apply in layers]

    program = exported(all_layers, "l <= 16")
    for shape in (2, 3, H, d), (1, 6, H, d):
        q = jax.random.normal(jax.random.key(1), shape)
        for name, out, expected in zip(
            names, program.call(q), jax.jit(all_layers)(q), strict=True
        ):
            np.testing.assert_allclose(out, expected, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("name", "implementation", "message"),
    [
        (
            "learned_absolute",
            "auto",
            r"length l is unbounded.* 16 positions.*'l <= 16'",
        ),
        ("tupe", "auto", r"length l is unbounded.* 16 positions.*'l <= 16'"),
        ("selective_rope", "auto", "short convolution needs a length that is known"),
        ("rope", "fused", "implementation='fused' needs a length that is known.*got l"),
        ("rope", "cudnn", "implementation='cudnn' needs a length that is known.*got l"),
    ],
)
def test_what_needs_a_length_says_so(name, implementation, message):
    with pytest.raises(ValueError, match=message):
        exported(layer(name, implementation))


def test_randomized_positions_need_a_length():
    with pytest.raises(
        ValueError, match=r"randomized\(rope\) needs a length that is known"
    ):
        exported(layer("randomized(rope, num_positions=16)"), "l <= 16")


def test_positions_of_each_row():
    """Of the same symbolic batch, or one row for all."""
    encoding, _ = named("rope+causal")
    batch, length = export.symbolic_shape("b, l")

    def apply(q, positions):
        return attention(
            q, q, q, encoding, context=encodings.Context(positions_q=positions)
        )

    q = jax.random.normal(jax.random.key(1), (2, 3, H, d))
    for rows, positions in ((batch, [[0, 1, 2], [5, 7, 9]]), (1, [[2, 4, 5]])):
        shapes = [((batch, length, H, d), jnp.float32), ((rows, length), jnp.int32)]
        program = export.export(jax.jit(apply))(
            *(ShapeDtypeStruct(*shape) for shape in shapes)
        )
        x = np.array(positions, np.int32)
        np.testing.assert_allclose(program.call(q, x), apply(q, x), atol=1e-5)
