"""Complex-order embeddings: each token has frequencies of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.part import HookContext, Metadata, Params, Part, Traits
from pe_jax.encodings.positions import as_array
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.rotary.rotation import rotate_by
from pe_jax.encodings.sinusoid import angles, default_frequencies
from pe_jax.encodings.tables import look_up


@register_encoding
def complex_order(
    *, hidden_size: int, vocab_size: int = 30_522, base: float = 10_000.0
) -> Part:
    """Encoding word order in complex embeddings (Wang et al. 2020, arXiv 1912.12333).

        E(token, x) = r·e^(i(ω x + θ)),   amplitude r, frequency ω and phase θ the token's own

    in D/2 complex coordinates, neighbouring numbers of an embedding. A word embedding is r·e^(iθ)
    already: it is rotated by ω x. (The authors' model is complex throughout; its code has no θ.)

    Params: `{"frequencies": [V, D/2]}` in radians per position, starting at the sinusoid's for
    every token, as in the authors' code. Ids past the vocabulary are a ValueError (see
    `tables.look_up`); `vocab_size` is BERT's by default.
    """
    start = default_frequencies(hidden_size, base)
    check_at_least(1, vocab_size=vocab_size)

    def embed(
        params: Params, x: Float[Array, "B L D"], context: HookContext
    ) -> Float[Array, "B L D"]:
        if context.tokens is None:
            raise ValueError(
                "complex_order has frequencies for each token, so it needs tokens: pass "
                "Context(tokens=tokens)."
            )
        w = look_up(params["frequencies"], context.tokens)
        positions = jnp.broadcast_to(
            jnp.asarray(as_array(context.positions_q)), w.shape[:-1]
        )
        angle = jax.vmap(jax.vmap(angles))(positions, w)
        return rotate_by(x[:, :, None], angle[:, :, None], "interleaved")[:, :, 0]

    return Part(
        init=lambda rng: {"frequencies": jnp.array(np.tile(start, (vocab_size, 1)))},
        embed=embed,
        traits=Traits(frequency_params=("frequencies",)),
        metadata=Metadata(
            formula="E(w)·e^(iω_w x)",
            source="Wang et al. 2020",
            parameters="V·D/2",
            monotone=False,
        ),
    )
