"""RoPE: fractions, layouts, shifts, options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import build, frequencies_of, queries_keys, rotated

from pe_jax import encodings
from pe_jax.encodings import Context, HookContext
from pe_jax.encodings.sinusoid import default_frequencies


def test_a_fraction_rotates_the_first_dimensions_and_proportional_the_fastest():
    x = queries_keys()[0]
    q = np.asarray(
        rotated(build("rope(fraction=0.5)").parts[0], x, range(6), range(6))[0]
    )
    np.testing.assert_array_equal(q[..., 4:], x[..., 4:])
    assert np.abs(q - x)[:, 1:, :, :4].min() > 0
    np.testing.assert_allclose(
        frequencies_of(build("rope(fraction=0.5)")), [1, 0.01], rtol=1e-6
    )
    np.testing.assert_allclose(
        frequencies_of(build("rope(proportional=0.5)")), [1, 0.1, 0, 0], rtol=1e-6
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", ["rope", "rope(learnable=True, per_head=True)"])
def test_logits_stay_when_all_positions_shift(name, dtype):
    encoding = build(name)
    params = encoding.init(jax.random.key(0))
    q, k = queries_keys(dtype=dtype)
    logits = jax.jit(
        lambda at: attention_logits(q, k, encoding, params, Context(positions_q=at))
    )
    near, far = logits(np.arange(6)), logits(np.arange(6) + 2**17)
    np.testing.assert_allclose(near, far, atol=2e-5 if dtype == jnp.float32 else 0.05)


def test_rotated_heads_keep_their_dtype():
    for dtype in (jnp.float16, jnp.bfloat16):
        q, k = queries_keys(dtype=dtype)
        mapped = (
            build("rope")
            .parts[0]
            .map_qkv(
                {}, q, k, k, HookContext(positions_q=range(6), positions_k=range(6))
            )
        )
        assert [x.dtype for x in mapped] == [dtype] * 3


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_converted_weights_give_the_same_logits(fraction):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 6, 16)).astype(np.float32)
    kernels = [rng.normal(size=(16, 2, 8)).astype(np.float32) for _ in "qk"]

    def logits(layout, kernels):
        q, k = (np.einsum("blD,Dhd->blhd", x, kernel) for kernel in kernels)
        return attention_logits(
            q, k, encodings.rope(head_size=8, layout=layout, fraction=fraction), {}
        )

    there = [
        encodings.convert_layout(one, "interleaved", fraction=fraction)
        for one in kernels
    ]
    back = [encodings.convert_layout(one, "half", fraction=fraction) for one in there]
    np.testing.assert_allclose(
        logits("half", kernels), logits("interleaved", there), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(kernels, back)
    assert not np.array_equal(kernels, there)


def test_learnable_frequencies_are_parameters():
    for name, shape in (("", (4,)), (", per_head=True", (2, 4))):
        encoding = build(f"rope(learnable=True{name})")
        params = encoding.init(jax.random.key(0))
        w = params["rope"]["frequencies"]
        assert w.shape == shape and encodings.parameter_count(encoding) == w.size
        np.testing.assert_allclose(
            np.atleast_2d(w)[-1], [1, 0.1, 0.01, 0.001], rtol=1e-6
        )
        assert encoding.parts[0].traits.frequency_params == ("frequencies",)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("rope(fraction=1.5)", r"fraction must be a share .* \(0, 1\], got 1.5"),
        ("rope(proportional=0)", "proportional must be a share"),
        ("rope(fraction=0.4)", "even number of dimensions, got 3 .* Use fraction=0.25"),
        ("rope(per_head=True)", "needs learnable=True"),
        ("rope(base=-1)", "base must be positive"),
        ("rope(layout='llama')", "takes"),
        ("rope_linear", "needs the option 'factor'"),
        ("rope_linear(factor=0.5)", "factor must be at least 1, got 0.5"),
        (
            "rope_yarn(factor=2, original_length=8, beta_fast=0.5)",
            "beta_fast >= beta_slow > 0",
        ),
        (
            "rope_yarn(factor=2, original_length=8, scale_logits=True)",
            "needs a positive mscale_all_dim",
        ),
        (
            "rope_llama3(factor=2, original_length=8, low_frequency_factor=5)",
            "> 0 must hold",
        ),
        (
            "rope_longrope(short=(1,), long=(1, 1, 1, 1), factor=2, original_length=8)",
            "short must have a positive divisor for each of 4 frequencies, got 1",
        ),
        ("rope+rope_linear(factor=2)", "encodings of the same family"),
        ("window", "needs the option 'max_distance'"),
        ("window(max_distance=0)", "at least 1.*got 0"),
    ],
)
def test_options_out_of_range(name, match):
    with pytest.raises(ValueError, match=match):
        build(name)


def test_names_read_back():
    for name in (
        "rope(base=500, layout='interleaved', fraction=0.5)+window(max_distance=3)",
        "rope_yarn(factor=32, original_length=4096, truncate=False, base=150000)",
        "rope_longrope(short=(1, 1, 1, 1), long=(1, 1.5, 2, 4), factor=2, original_length=8)",
    ):
        assert build(name).name == name
    modern = "cycle(rope(base=160000), rope+window(max_distance=64), rope+window(max_distance=64))"
    assert build(modern).name == modern


def test_many_bases_at_once():
    """Parameters are mapped over where options cannot be."""
    bases, q = [100.0, 10_000.0], queries_keys((1, 5, 2, 4), np.float32)[0]
    learnable = encodings.rope(head_size=4, learnable=True)
    w = np.array([default_frequencies(4, base) for base in bases])

    @jax.jit
    def apply(q, w):
        many = jax.vmap(
            lambda w: attention(q, q, q, learnable, {"rope": {"frequencies": w}})
        )(w)
        each = [
            attention(q, q, q, encodings.rope(head_size=4, base=base)) for base in bases
        ]
        return many, jnp.stack(each)

    np.testing.assert_allclose(*apply(q, w), atol=1e-6)
