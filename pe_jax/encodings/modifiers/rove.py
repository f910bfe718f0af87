"""RoVE: values are rotated as keys are, so that what a query receives depends on the distance.

García-Castellanos et al. 2026, arXiv 2606.11275.
"""

from __future__ import annotations

import jax.numpy as jnp

from pe_jax.common.shapes import Array
from pe_jax.encodings.part import QKV, HookContext, Params, Part
from pe_jax.encodings.positions import length
from pe_jax.encodings.registry import register_wrapper
from pe_jax.encodings.rotary.rope import no_rotation


@register_wrapper
def rove(part: Part) -> Part:
    """A rotary encoding that rotates values too, of the head size of the keys (RoVE:
    García-Castellanos et al. 2026, arXiv 2606.11275).

        v_j -> R(ω j) v_j,   o_i -> R(-ω i) o_i,   so that o_i = Σ_j a_ij R(ω (j - i)) v_j

    Queries, keys and logits stay those of the encoding. No further parameters. DeepSeek-V4's
    attention (transformers, `deepseek_v4`) is `rove(rope_slice(size=...))`: its values are its
    keys. A scale c of sines and cosines (YaRN) multiplies outputs by c², as there.

    Args:
      part: an encoding with `Metadata.pairs` that does not decay, such as `rope`, its scaled kin
        and `rope_slice`.

    Raises:
      ValueError: for an encoding that is no rotation of pairs, or decays (`xpos`); in attention,
        for values of another head size than the keys.
    """
    rotate = part.map_qkv
    metadata = part.metadata
    if rotate is None or metadata is None or not metadata.pairs:
        raise no_rotation("rove", part)
    if part.traits.causal_only:  # It decays.
        raise no_rotation("rove", part)
    second = [b for _, b in metadata.pairs]  # The second dimension of each pair.

    def map_qkv(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        if v.shape[-1] != k.shape[-1]:
            raise ValueError(
                f"rove rotates values as keys, so both need one head size; got {v.shape[-1]} for "
                f"values and {k.shape[-1]} for keys."
            )
        rotated_q, rotated_k, _ = rotate(params, q, k, v, context)
        _, rotated_v, _ = rotate(params, q, v, v, context)
        return rotated_q, rotated_k, rotated_v

    def map_output(params: Params, o: Array, context: HookContext) -> Array:
        """Rotate back: R(-angle) is R(angle) between two reflections of each pair."""
        keys = length(context.positions_k)
        unused = jnp.zeros((o.shape[0], keys, *o.shape[2:]), o.dtype)
        mirrored = jnp.asarray(o).at[..., second].multiply(-1)
        turned, _, _ = rotate(params, mirrored, unused, unused, context)
        return turned.at[..., second].multiply(-1)

    return part.replace(
        map_qkv=map_qkv,
        map_output=map_output,
        metadata=metadata.replace(
            formula="logits of the encoding, o_i = Σ_j a_ij R(ω (j − i)) v_j",
            source="García-Castellanos et al. 2026 (RoVE)",
        ),
    )
