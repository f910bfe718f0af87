"""Checks the attention of common libraries and writes the table of docs/own-attention.md.

    pip install equinox
    pip install --no-deps git+https://github.com/jax-ml/bonsai
    python tools/write_attention_table.py

The checks are those of `pe_jax.testing.foreign`. It takes about a minute on two cores.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

import pe_jax.linen
import pe_jax.nnx
from pe_jax import encodings
from pe_jax.testing.foreign import Attend, Attention, Step, table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/own-attention.md"
START, END = "<!-- table -->\n", "<!-- end of table -->\n"
LIBRARIES = ("jax", "flax", "equinox", "jax-bonsai")

WIDTH, HEADS, SIZE = 8, 2, 4
KEY = jax.random.key(0)
Array = jax.Array


def jax_nn(is_causal: bool = False) -> Attention:
    """JAX's function with projections before it and a cache."""
    weights = np.random.default_rng(0).normal(size=(3, WIDTH, HEADS, SIZE)) / WIDTH**0.5

    def heads(x: Array) -> Array:
        return jnp.einsum("bld,ndhf->nblhf", x, weights.astype(x.dtype))

    def attend(x: Array, positions: Array, mask: Array) -> Array:
        return jax.nn.dot_product_attention(*heads(x), mask=mask, is_causal=is_causal)

    def decode(rows: int, length: int) -> Step:
        cache, tokens = jnp.zeros((2, rows, length, HEADS, SIZE)), 0

        def step(x: Array, positions: Array, mask: Array) -> Array:
            nonlocal cache, tokens
            q, *new = heads(x)
            cache = cache.at[:, :, tokens : tokens + x.shape[1]].set(jnp.stack(new))
            tokens += x.shape[1]
            return jax.nn.dot_product_attention(
                q, *cache, mask=mask, is_causal=is_causal
            )

        return step

    name = "jax.nn.dot_product_attention" + (", is_causal" if is_causal else "")
    return Attention(name, attend, decode, lambda dtype: attend)


def one_at_a_time(token: Callable[[Array, Array], Array]) -> Step:
    """Flax's caches take one token in a call."""

    def step(x: Array, positions: Array, mask: Array) -> Array:
        outputs = [
            token(x[:, t : t + 1], mask[:, :, t : t + 1]) for t in range(x.shape[1])
        ]
        return jnp.concatenate(outputs, axis=1)

    return step


def flax_linen() -> Attention:
    def layer(**options: object) -> nn.MultiHeadDotProductAttention:
        return nn.MultiHeadDotProductAttention(HEADS, **options)

    params = layer().init(KEY, jnp.ones((1, 1, WIDTH)))["params"]

    def with_dtype(dtype: object) -> Attend:
        return lambda x, positions, mask: layer(dtype=dtype).apply(
            {"params": params}, x, mask=mask
        )

    def decode(rows: int, length: int) -> Step:
        model = layer(decode=True)
        cache = model.init(KEY, jnp.ones((rows, length, WIDTH)))["cache"]

        def token(x: Array, mask: Array) -> Array:
            nonlocal cache
            variables = {"params": params, "cache": cache}
            out, changed = model.apply(variables, x, mask=mask, mutable=["cache"])
            cache = changed["cache"]
            return out

        return one_at_a_time(token)

    name = "flax.linen.MultiHeadDotProductAttention"
    return Attention(name, with_dtype(None), decode, with_dtype)


def flax_nnx(is_causal: bool = False) -> Attention:
    def layer(dtype: object = None) -> nnx.MultiHeadAttention:
        return nnx.MultiHeadAttention(
            HEADS, WIDTH, dtype=dtype, decode=False, rngs=nnx.Rngs(0)
        )

    def with_dtype(dtype: object) -> Attend:
        model = layer(dtype)
        return lambda x, positions, mask: model(x, mask=mask, is_causal=is_causal)

    def decode(rows: int, length: int) -> Step:
        model = layer()
        model.init_cache((rows, length, WIDTH))
        return one_at_a_time(
            lambda x, mask: model(x, mask=mask, is_causal=is_causal, decode=True)
        )

    name = "flax.nnx.MultiHeadAttention" + (", is_causal" if is_causal else "")
    return Attention(name, with_dtype(None), decode, with_dtype)


def equinox(rotary: bool = False) -> Attention:
    import equinox as eqx

    layer = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=KEY)

    def rotate(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        rope = jax.vmap(eqx.nn.RotaryPositionalEmbedding(SIZE), in_axes=1, out_axes=1)
        return rope(q), rope(k), v

    def with_dtype(dtype: object) -> Attend:
        model = jax.tree.map(lambda x: x.astype(dtype) if eqx.is_array(x) else x, layer)

        def attend(x: Array, mask: Array) -> Array:
            return model(x, x, x, mask[0], process_heads=rotate if rotary else None)

        return lambda x, positions, mask: jax.vmap(attend)(x, jnp.asarray(mask))

    name = "equinox.nn.MultiheadAttention" + (
        ", RotaryPositionalEmbedding" if rotary else ""
    )
    return Attention(name, with_dtype(jnp.float32), None, with_dtype)


def bonsai_qwen3() -> Attention:
    """Its layer takes a cache, and which tokens are no padding, in place of a mask."""
    from bonsai.models.qwen3 import modeling

    config = modeling.ModelConfig(
        num_layers=1, vocab_size=8, emb_dim=WIDTH, mlp_dim=8, num_heads=HEADS, head_dim=SIZE,
        num_kv_heads=1, rope_theta=1_000_000, rope_scaling_factor=1, local_rope_theta=1e4,
        norm_eps=1e-6, tie_word_embeddings=True,
    )  # fmt: skip
    graph, state = nnx.split(modeling.Attention(config, rngs=nnx.Rngs(0)))

    def layer(dtype: object) -> modeling.Attention:
        return nnx.merge(graph, jax.tree.map(lambda x: x.astype(dtype), state))

    def tokens(mask: Array, first: int) -> Array:
        """1 for tokens, which see themselves, and 0 for padding."""
        return jnp.diagonal(
            jnp.asarray(mask)[:, 0, :, first:], axis1=1, axis2=2
        ).astype(int)

    def with_dtype(dtype: object) -> Attend:
        def attend(x: Array, positions: Array, mask: Array) -> Array:
            cache = modeling.LayerCache(config, *x.shape[:2], dtype)
            return layer(dtype)(x, cache, tokens(mask, 0))

        return attend

    def decode(rows: int, length: int) -> Step:
        model = layer(jnp.float32)
        cache, first = modeling.LayerCache(config, rows, length, jnp.float32), 0
        run = nnx.jit(lambda model, cache, x, valid: model(x, cache, valid))

        def step(x: Array, positions: Array, mask: Array) -> Array:
            nonlocal first
            valid = tokens(mask, first)
            first += x.shape[1]
            return run(model, cache, x, valid)

        return step

    return Attention(
        "bonsai.models.qwen3 Attention", with_dtype(jnp.float32), decode, with_dtype
    )


ENCODING = encodings.rope(head_size=SIZE) + encodings.causal()


def our_linen() -> Attention:
    layer = pe_jax.linen.MultiHeadAttention(HEADS, ENCODING)
    params = layer.init(KEY, jnp.ones((1, 1, WIDTH)))["params"]

    def with_dtype(dtype: object) -> Attend:
        model = layer.clone(dtype=dtype)
        return lambda x, positions, mask: model.apply(
            {"params": params}, x, positions_q=positions, mask=mask
        )

    def decode(rows: int, length: int) -> Step:
        cache = layer.init(KEY, jnp.ones((rows, length, WIDTH)), decode=True)["cache"]

        @jax.jit
        def run(
            cache: dict, x: Array, positions: Array, mask: Array
        ) -> tuple[Array, dict]:
            variables = {"params": params, "cache": cache}
            return layer.apply(
                variables,
                x,
                positions_q=positions,
                mask=mask,
                decode=True,
                mutable=["cache"],
            )

        def step(x: Array, positions: Array, mask: Array) -> Array:
            nonlocal cache
            out, changed = run(cache, x, positions, mask)
            cache = changed["cache"]
            return out

        return step

    name = "pe_jax.linen.MultiHeadAttention, rope"
    return Attention(name, with_dtype(None), decode, with_dtype)


def our_nnx() -> Attention:
    """With the implementation that has second derivatives."""

    def layer(dtype: object = None) -> pe_jax.nnx.MultiHeadAttention:
        return pe_jax.nnx.MultiHeadAttention(
            HEADS,
            WIDTH,
            ENCODING,
            dtype=dtype,
            implementation="naive",
            rngs=nnx.Rngs(0),
        )

    def with_dtype(dtype: object) -> Attend:
        model = layer(dtype)
        return lambda x, positions, mask: model(x, positions_q=positions, mask=mask)

    def decode(rows: int, length: int) -> Step:
        model = layer()
        model.init_cache(rows, length)
        return lambda x, positions, mask: model(
            x, positions_q=positions, mask=mask, decode=True
        )

    name = "pe_jax.nnx.MultiHeadAttention, rope, implementation=naive"
    return Attention(name, with_dtype(None), decode, with_dtype)


def attentions() -> Iterator[Attention]:
    """The rows of the table."""
    for is_causal in (False, True):
        yield jax_nn(is_causal)
    yield flax_linen()
    for is_causal in (False, True):
        yield flax_nnx(is_causal)
    for rotary in (False, True):
        yield equinox(rotary)
    yield bonsai_qwen3()
    yield our_linen()
    yield our_nnx()


def version(package: str) -> str:
    """The version of a package, and its commit where it was installed from one."""
    package_files = importlib.metadata.distribution(package)
    origin = json.loads(package_files.read_text("direct_url.json") or "{}")
    commit = origin.get("vcs_info", {}).get("commit_id", "")
    return f"{package} {package_files.version}" + (
        f" (commit {commit[:8]})" if commit else ""
    )


def main() -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    _, after = rest.split(END)
    rows, _, notes = table(attentions()).partition("\n\n")
    versions = ", ".join(map(version, LIBRARIES))
    PAGE.write_text(
        f"{before}{START}\n{rows}\n\n{versions}.\n\n{END}{after}", encoding="utf-8"
    )
    print(notes)


if __name__ == "__main__":
    main()
