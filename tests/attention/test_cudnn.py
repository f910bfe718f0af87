"""cuDNN's attention against the formula; on a CPU, the same call runs as XLA's attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax import encodings
from pe_jax.attention import attention
from pe_jax.attention.devices import emulated_devices

B, L, H, d = 2, 8, 4, 8
SIZES = dict(hidden_size=H * d, head_size=d, num_heads=H, max_length=L)
RNG = np.random.default_rng(0)
VALID = np.array([[True] * L, [True] * 5 + [False] * 3])[:, None, None]
ROWS = np.ones((B, 1, L, L), bool)
ROWS[1, :, 2:4] = False  # Queries that may attend to nothing.
DOCUMENT_IDS = np.array([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 2, 2, 2, 3, 3, 3]])


def build(name):
    encoding = encodings.from_name(name, **SIZES)
    params = encoding.init(jax.random.key(0))
    return encoding.in_attention, jax.tree.map(
        lambda x: x + 0.3 * RNG.normal(size=x.shape), params
    )


def draw(heads, dtype=jnp.bfloat16):
    return tuple(
        jnp.asarray(RNG.normal(size=(B, L, n, d)), dtype) for n in (H, heads, heads)
    )


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("none", {}),
        ("rope", {}),
        ("alibi", {}),
        ("kerple", {"mask": VALID}),
        ("t5", {}),
        ("t5", {"mask": VALID, "heads": 2}),
        ("t5", {"positions": [0, 1, 2, 3, 5, 6, 7, 9]}),
        ("t5", {"document_ids": DOCUMENT_IDS}),
        ("none", {"mask": ROWS, "heads": 1}),
        ("causal", {"mask": ROWS}),
        ("t5+causal", {}),
        ("causal", {"positions": [0, 1, 2, 3, 5, 6, 7, 9]}),
        ("window(max_distance=2)", {}),
        ("window(max_distance=2)+causal", {"heads": 2}),
        ("rope+causal", {"document_ids": DOCUMENT_IDS}),
    ],
)
def test_outputs_and_gradients(name, case):
    encoding, params = build(name)
    context = encodings.Context(
        positions_q=None if "positions" not in case else np.array(case["positions"]),
        document_ids=case.get("document_ids"),
    )
    to = RNG.normal(size=(B, L, H, d))

    def run(implementation):
        def loss(q, k, v, params):
            out = attention(
                q,
                k,
                v,
                encoding,
                params,
                context,
                mask=case.get("mask"),
                implementation=implementation,
            )
            return (out.astype(jnp.float32) * to).sum(), out

        run = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True))
        return run(*qkv, params)

    qkv = draw(case.get("heads", H))
    with emulated_devices():
        grads, out = run("cudnn")
    expected_grads, expected = run("naive")
    np.testing.assert_allclose(
        out.astype("float32"), expected.astype("float32"), atol=0.03
    )
    nothing = (expected == 0).all(-1)
    assert (out[nothing] == 0).all() and (grads[0][nothing] == 0).all()

    def near(a, b):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        assert np.linalg.norm(a - b) <= 0.03 * np.linalg.norm(b)

    jax.tree.map(near, grads, expected_grads)


@pytest.mark.parametrize(
    ("name", "dtype", "length", "options", "needs"),
    [
        ("none", "float32", 8, {}, "queries, keys and values in bfloat16 or float16"),
        ("learned_relative", "bfloat16", 8, {}, "no terms but biases of the offset"),
        ("cope+causal", "bfloat16", 8, {}, "no terms but biases of the offset"),
        ("sink", "bfloat16", 8, {}, "no sink"),
        ("t5", "bfloat16", 7, {}, "even lengths beside a bias or a mask"),
        (
            "none",
            "bfloat16",
            8,
            {"dropout_rate": 0.1, "dropout_rng": jax.random.key(0)},
            "dropout_rate=0.0",
        ),
    ],
)
def test_what_cudnn_cannot_compute(name, dtype, length, options, needs):
    encoding, params = build(name)
    q, k, v = (x[:, :length].astype(dtype) for x in draw(H))
    with pytest.raises(
        ValueError, match=f"'cudnn' needs {needs}, .*Use 'auto', or 'naive'"
    ):
        attention(q, k, v, encoding, params, implementation="cudnn", **options)


@pytest.mark.parametrize(
    ("size", "value_size", "length", "needs"),
    [
        (4, 4, 8, "heads of one size that is a multiple of 8 up to 128"),
        (136, 136, 8, "heads of one size that is a multiple of 8 up to 128"),
        (8, 16, 8, "heads of one size that is a multiple of 8 up to 128"),
        (8, 8, 1, "more than one token"),
    ],
)
def test_heads_that_cudnn_does_not_take(size, value_size, length, needs):
    q = jnp.zeros((2, length, H, size), jnp.bfloat16)
    v = jnp.zeros((2, length, H, value_size), jnp.bfloat16)
    with pytest.raises(ValueError, match=f"'cudnn' needs {needs}"):
        attention(q, q, v, implementation="cudnn")


def test_cudnn_needs_a_gpu():
    x = jnp.zeros((2, 8, H, 8), jnp.float16)
    with pytest.raises(ValueError, match="'cudnn' needs an NVIDIA GPU, but .* for cpu"):
        attention(x, x, x, implementation="cudnn")
    with emulated_devices():
        assert attention(x, x, x, implementation="cudnn").shape == x.shape
