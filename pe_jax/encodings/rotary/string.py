"""STRING: RoPE in a basis of the head that is learned, for positions of one axis or several."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.dtypes import at_least_float32
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.part import QKV, HookContext, Metadata, Params, Part, Traits
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.rotary.rope import check_per_head
from pe_jax.encodings.rotary.rotation import rotate_by
from pe_jax.encodings.rotary.several_axes import by_share
from pe_jax.encodings.rotary.skew import skew_matrix
from pe_jax.encodings.sinusoid import angles


@register_encoding
def string(
    *,
    head_size: int,
    num_heads: int | None = None,
    axes: int = 1,
    base: float = 10_000.0,
    per_head: bool = False,
) -> Part:
    """Separable translationally invariant position encoding, the Cayley form (Schenck et al. 2025,
    arXiv 2502.02562, section 3).

        q_i -> R(i) P q_i,   k_j -> R(j) P k_j,   P = (I - S) (I + S)^-1,   S = -Sᵀ

    R rotates pair m by Σ_a ω_am x_a. The paper shows that exp(Σ_a x_a L_a) with skew-symmetric L_a
    that commute, the most general rotation whose products depend on differences of positions, is
    Pᵀ R(x) P with an orthogonal P; the Pᵀ on the left cancels in q·k. The paper's circulant form is
    not here. GRAPE's commuting planes in a learned basis (arXiv 2512.07805, section 3.1) are this
    encoding with one axis.

    Params: `{"skew": [d(d-1)/2], "frequencies": [A, d/2]}`, with `per_head` `[H, ...]` and
    `[A, H, d/2]`. S starts at 0, so that P = I. With one axis ω_m starts at base^(-2m/d), as
    `rope`; with several the first d/2A pairs belong to the first axis, and so on, as in
    `rope_axial`, with base^(-2tA/d) for pair t of each.

    Args:
      axes: Number A of axes. For more than one, positions are `[L, A]` or `[B, L, A]`, integer or
        real.
      base: of the frequencies at the start; 100 suits images of some dozen patches a side.
      per_head: each head learns its own; needs `num_heads`.

    Raises:
      ValueError: for a head that the axes cannot share, or one of `per_head` and `num_heads`
        without the other.
    """
    check_per_head(num_heads, per_head)
    heads_shape = (num_heads,) if num_heads else ()
    share = by_share(head_size, axes, base)
    start = np.kron(np.eye(axes, dtype=np.float32), share)  # [A, d/2]
    pairs = start.shape[1]

    def init(rng: jax.Array) -> Params:
        entries = head_size * (head_size - 1) // 2
        w = start[:, None] if per_head else start
        return {
            "skew": jnp.zeros((*heads_shape, entries)),
            "frequencies": jnp.broadcast_to(w, (axes, *heads_shape, pairs)),
        }

    def map_qkv(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        skew = skew_matrix(params["skew"], head_size)
        identity = jnp.eye(head_size)
        # The factors commute.
        basis = jnp.linalg.solve(identity + skew, identity - skew)
        indices = "blhd,hed->blhe" if per_head else "blhd,ed->blhe"
        w = params["frequencies"].reshape(axes, -1, pairs)

        def rotate(x: Array, positions: Real[Array, "..."]) -> Float[Array, "B L H d"]:
            by_axis = [positions]
            if axes > 1:
                by_axis = [positions[..., axis] for axis in range(axes)]
            # A TPU rounds products unless told not to.
            in_basis = jnp.einsum(
                indices, at_least_float32(x), basis, precision="highest"
            )
            angle = sum(map(angles, by_axis, w))
            return rotate_by(in_basis.astype(x.dtype), angle)

        i, j = context.arrays()
        return rotate(q, i), rotate(k, j), v

    sizes = "H·" if per_head else ""
    return Part(
        init=init,
        map_qkv=map_qkv,
        traits=Traits(frequency_params=("frequencies",), axes=axes),
        metadata=Metadata(
            formula="R(Σ_a ω_a x_a) P, P = (I − S)(I + S)⁻¹, ω and S free",
            source="Schenck et al. 2025 (STRING), 3",
            parameters=f"{sizes}d·(d−1)/2 + A·{sizes}d/2",
            invariant=True,
            monotone=False,
            frequencies=lambda params: params["frequencies"].reshape(-1),
        ),
    )
