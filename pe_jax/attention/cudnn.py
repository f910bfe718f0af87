"""Attention by cuDNN's flash attention, through `jax.nn.dot_product_attention`.

The inputs of attention (see `inputs`) become queries, keys, values, one array of biases and one
mask. cuDNN adds the mask to the biases, in the dtype of the queries. With biases, its backward pass
returns the gradient of that sum too: `[1, H, Lq, Lk]`, or with all rows if the mask differs by row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.attention import devices, xla
from pe_jax.attention.inputs import AttentionInputs
from pe_jax.attention.masks import Masks
from pe_jax.attention.reverse_only import reverse_only
from pe_jax.common.mesh_axes import vary_alike
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.positions import AttentionWindow

_LARGEST_HEAD = 128  # Larger ones need a GPU of compute capability 9.0.


def unsupported_reason(x: AttentionInputs, seed: Array | None) -> str:
    """Return what `attend` needs and `x`, with dropout if there is a seed, does not have; empty if
    it computes `x`."""
    if seed is not None:
        return "dropout_rate=0.0"
    adds_logits = x.added.array is not None or x.added.terms
    if adds_logits or x.maps or x.has_vectors:
        return "no terms but biases of the offset"
    if x.sink is not None:
        return "no sink"
    dtypes = {array.dtype for array in (x.q, x.k, x.v)}
    if dtypes != {jnp.dtype("bfloat16")} and dtypes != {jnp.dtype("float16")}:
        return "queries, keys and values in bfloat16 or float16"
    _, _, heads, size = x.k.shape
    if x.v.shape[2:] != (heads, size) or size % 8 or size > _LARGEST_HEAD:
        return f"heads of one size that is a multiple of 8 up to {_LARGEST_HEAD}"
    if x.lengths == (1, 1):
        return "more than one token"
    masks = x.masks
    is_masked = (
        masks.mask is not None
        or masks.document_ids is not None
        or bool(masks.position_windows)
        or (masks.window is not None and _causal_window(x) is None)
    )
    if (is_masked or x.terms) and any(length % 2 for length in x.lengths):
        return "even lengths beside a bias or a mask"
    return ""


def attend(x: AttentionInputs) -> Float[Array, "B Lq H f"]:
    """Attention of inputs without an `unsupported_reason`; on an NVIDIA GPU, or emulated (see
    `devices`)."""
    emulated = devices.are_emulated()
    if not emulated:
        devices.check_gpu()
    window = _causal_window(x)
    masks = x.masks
    if window is not None:  # cuDNN has it by name.
        masks = masks.replace(window=None)
    mask = masks.whole(x.lengths, x.context.shift)
    added = xla.added_logits(x)
    differentiated = vary_alike((x.q, x.k, x.v, added), mask)
    q, k, v, added = jax.tree.map(reverse_only, differentiated)
    if (
        added is not None
    ):  # XLA declares the bias to cuDNN with the dtype of the queries.
        added = added.astype(q.dtype)
    pairs = mask
    if mask is not None:  # cuDNN broadcasts masks along the batch and the heads only.
        pairs = jnp.broadcast_to(mask, (*mask.shape[:2], *x.lengths))
    local_window = None
    if window is not None and window.left is not None:
        local_window = window.left, 0
    out = jax.nn.dot_product_attention(
        q,
        k,
        v,
        bias=added,
        mask=pairs,
        scale=1.0,  # The queries are scaled.
        is_causal=window is not None,
        local_window_size=local_window,
        implementation="xla" if emulated else "cudnn",
    )
    if mask is None:  # Every query may attend to itself at least.
        return out
    # A query that may attend to nothing attends to all keys alike in cuDNN.
    everything = Masks(mask=mask, window=window).whole(x.lengths, x.context.shift)
    assert everything is not None
    attends = everything.any(-1)[..., None].swapaxes(1, 2)  # [#B, #Lq, #H, 1]
    return jnp.where(attends, out, jnp.zeros_like(out))


def _causal_window(x: AttentionInputs) -> AttentionWindow | None:
    """Return the window if it is one that cuDNN has by name, causal attention or a window of it.

    cuDNN's causal mask compares indices, so queries and keys must have equal lengths and start at
    the same position.
    """
    window = x.masks.window
    if window is None or window.right != 0 or (window.left or 0) < 0:
        return None
    queries, keys = x.lengths
    return window if x.context.shift == 0 and queries == keys else None
