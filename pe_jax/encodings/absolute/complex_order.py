"""Complex-order embeddings: each token has frequencies of its own.

Wang et al. 2020, "Encoding word order in complex embeddings", arXiv 1912.12333.
"""

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

    in D/2 complex coordinates: neighbouring numbers of an embedding are the real and imaginary
    part of one. A word embedding is r·e^(iθ) already, so it is rotated by ω x and nothing else is
    learned. (The authors' model is complex throughout, D coordinates of two numbers; its code
    leaves θ out.) Position 0 leaves embeddings as they are.

    Params: `{"frequencies": [V, D/2]}` in radians per position, starting at the sinusoid's for
    every token, as in the authors' code.

    Args:
      vocab_size: V, by default BERT's.
      base: of the initial frequencies.

    Raises:
      ValueError: for an odd hidden size, a vocabulary below 1, or a base that is not positive; at
        the input, without `Context.tokens`, or for ids past the vocabulary (traced ones give NaN).
    """
    initial_frequencies = default_frequencies(hidden_size, base)
    check_at_least(1, vocab_size=vocab_size)

    def embed(
        params: Params, x: Float[Array, "B L D"], context: HookContext
    ) -> Float[Array, "B L D"]:
        if context.tokens is None:
            raise ValueError(
                "complex_order has frequencies for each token, so it needs tokens: pass "
                "Context(tokens=tokens)."
            )
        frequencies = look_up(params["frequencies"], context.tokens)  # [B, L, D/2]
        positions = jnp.asarray(as_array(context.positions_q))
        positions = jnp.broadcast_to(positions, frequencies.shape[:-1])  # [B, L]
        token_angles = jax.vmap(jax.vmap(angles))(positions, frequencies)
        # The rotation takes heads, of which an embedding is one.
        heads = x[:, :, None]
        return rotate_by(heads, token_angles[:, :, None], "interleaved")[:, :, 0]

    def init(rng: jax.Array) -> Params:
        return {"frequencies": jnp.array(np.tile(initial_frequencies, (vocab_size, 1)))}

    return Part(
        init=init,
        embed=embed,
        traits=Traits(frequency_params=("frequencies",)),
        metadata=Metadata(
            formula="E(w)·e^(iω_w x)",
            source="Wang et al. 2020",
            parameters="V·D/2",
            monotone=False,
        ),
    )
