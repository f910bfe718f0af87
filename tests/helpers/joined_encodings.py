"""All encodings in a few, so that a property of every hook is traced at once."""

import jax
import jax.numpy as jnp

from pe_jax import encodings
from pe_jax.attention import attention

B, L, H, d = 2, 9, 4, 8
SIZES = dict(hidden_size=16, head_size=d, num_heads=H, max_length=16)

BIDIRECTIONAL = (
    "tupe+repo+fope(original_length=64)+learned_relative+sinusoidal_relative+learnable_sinusoidal_relative+nezha+relative_key"
    "+relative_key_query+transformer_xl+deberta(num_buckets=4, max_distance=8)"
    "+inkling(max_distance=4)+alibi(learnable=True)+t5+fire+kerple+sandwich+tisa+dynamic_position_bias"
    "+grape_a+rope(learnable=True, per_head=True)+rope_slice+string+grape_m"
    "+selective_rope+tener+fox+cable+bias_2d(height=4, width=4)+decomposed_2d(height=4, width=4)"
    "+dape+dape_v2+sink"
)
CAUSAL = (
    "xpos+cope+per_row_alibi+wall+path_attention+alibi(directed=True)+decoupled_rope+window(max_distance=3)+chunks(size=4)"
    "+self_extend(window=3, group=2)+causal"
)
ROTATIONS = (
    "pope+rope_dynamic_ntk(factor=2, original_length=4)+log_n(original_length=4)+ssmax(bias=True)"
    "+rope_centered(height=4, width=4, prefix=1)"
    "+sinusoidal_relative(max_distance=None)"
)
AT_INPUT = (
    "learned_absolute+sinusoidal_absolute+learnable_sinusoidal_absolute+fourier_features+floater"
    "+complex_order(vocab_size=5)+raw_index+normalized_index+sinusoidal_concatenated"
    "+learned_2d(height=4, width=4)+convolutional(width=3)"
)
TWO_AXES = "sinusoidal_2d+rope_axial+rope_mixed+liere"
JOINED = {
    "bidirectional": BIDIRECTIONAL,
    "causal": CAUSAL,
    "rotations": ROTATIONS,
    "at input": AT_INPUT,
    "two axes": TWO_AXES,
    "three axes": "mrope(sections=(2, 1, 1))",
}


def loss(name, params, x, kernel, implementation="table"):
    """Sum of squares of an input's embedding and of a layer of attention."""
    encoding = encodings.from_name(name, **SIZES)
    places = jnp.arange(x.shape[1])
    positions = None if encoding.axes == 1 else jnp.stack([places] * encoding.axes, -1)
    x = encodings.embed(
        x,
        encoding,
        params,
        encodings.Context(
            positions_q=positions, tokens=jnp.zeros(x.shape[:2], jnp.int32)
        ),
    )
    total, acting = (x**2).sum(), encoding.in_attention
    if not acting.parts:
        return total

    def project(x):
        return jnp.einsum("...d,dhe->...he", x, kernel)

    q = project(x)
    context = encodings.Context(
        positions_q=positions,
        positions_k=positions,
        x_q=x,
        x_k=x,
        projections=(project, project),
    )
    return (
        total
        + (
            attention(q, q, q, acting, params, context, implementation=implementation)
            ** 2
        ).sum()
    )


def shapes(name, dtype=jnp.float32):
    """The arguments of `loss` after the name, as shapes."""
    params = jax.eval_shape(encodings.from_name(name, **SIZES).init, jax.random.key(0))
    x, kernel = (jax.ShapeDtypeStruct(s, dtype) for s in ((B, L, 16), (16, H, d)))
    return params, x, kernel


def draws(name, dtype=jnp.float32):
    """The arguments of `loss` after the name, drawn."""

    def draw(path, x):
        key = jax.random.key(len(jax.tree_util.keystr(path)))
        return 0.3 * jax.random.normal(key, x.shape, dtype)

    params, x, kernel = shapes(name, dtype)
    start = encodings.from_name(name, **SIZES).init(jax.random.key(0))
    moved = jax.tree_util.tree_map_with_path(draw, params)
    params = jax.tree.map(lambda a, b: jnp.asarray(a + b, dtype), start, moved)
    return (params, *jax.tree_util.tree_map_with_path(draw, (x, kernel)))
