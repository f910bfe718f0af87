"""Position code of other libraries as functions for `pe-jax golden --check`; see docs/golden.md.

pe-jax golden --check=tools/golden_foreign.py:transformers --golden=GOLDEN

Each needs its library: transformers and torch, x-transformers, flax 0.12.12, equinox.
"""

import functools
import importlib
import inspect

import numpy as np


@functools.cache
def _rotary(model_type):
    """A model type's module, rotary embedding and text config with the class's defaults."""
    from transformers import AutoConfig

    text = AutoConfig.for_model(model_type).get_text_config()
    name = type(text).__module__.rsplit(".", 1)[0]
    module = importlib.import_module(f"{name}.modeling_{name.rsplit('.', 1)[1]}")
    classes = [c for n, c in vars(module).items() if n.endswith("RotaryEmbedding")]
    made = next(
        c for c in classes if "Vision" not in c.__name__ and "Audio" not in c.__name__
    )
    return module, made(text), text


def _rotates(model_type, text, layer):
    """Whether a layer rotates: the attention class decides, not the rotary embedding."""
    if model_type in ("afmoe", "cohere2", "exaone4", "exaone4_5"):
        return text.layer_types[layer] == "sliding_attention"
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * (layer + 1)
    without = layer in getattr(text, "cross_attention_layers", ())
    listed = getattr(text, "no_rope_layers", None)
    return (
        not without
        and kinds[layer] != "linear_attention"
        and bool(not listed or listed[layer])
    )


def transformers(q, k, positions_q, positions_k, layer, config):
    """The rotation of the class that the config's `model_type` names."""
    import torch

    module, rotary, text = _rotary(config["model_type"])
    if not _rotates(config["model_type"], text, layer):
        return q, k
    by_type = "layer_type" in inspect.signature(rotary.forward).parameters
    kind = {"layer_type": text.layer_types[layer]} if by_type else {}
    names = ["apply_rotary_pos_emb", "apply_rotary_emb"]
    if getattr(
        text, "rope_interleave", True
    ):  # Where both are there, halves are the indexer's.
        names.insert(0, "apply_rotary_pos_emb_interleave")
    apply = next(getattr(module, name) for name in names if hasattr(module, name))
    rotated = []
    for x, positions in ((q, positions_q), (k, positions_k)):
        heads = torch.tensor(x.astype(np.float32)).transpose(1, 2)
        axes = positions if positions.ndim == 2 else np.moveaxis(positions, -1, 0)
        tables = rotary(heads, torch.tensor(axes), **kind)
        if not isinstance(tables, tuple):  # Complex numbers: DeepSeek V2, Llama 4.
            at = heads.transpose(1, 2) if "llama4" in module.__name__ else heads
            turned = apply(at, at, tables)[0]
            rotated.append(turned if at is not heads else turned.transpose(1, 2))
            continue
        halves = "gpt_oss" in module.__name__ or "privacy_filter" in module.__name__
        size = tables[0].shape[-1] * (1 + halves)
        part, rest = heads[..., :size], heads[..., size:]
        single = "q" not in inspect.signature(apply).parameters
        turned = apply(part, *tables) if single else apply(part, part, *tables)[0]
        rotated.append(torch.cat([turned, rest], -1).transpose(1, 2))
    return [x.detach().numpy() for x in rotated]


def x_transformers(q, k, positions_q, positions_k, config):
    """`RotaryEmbedding` with the config's base."""
    import torch
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    from pe_jax.interop import from_hf

    (part, *_) = from_hf(config).parts
    base = part.constructor.keywords.get("base", 10_000.0)
    rotary = RotaryEmbedding(q.shape[-1], base=base)
    rotated = []
    for x, positions in ((q, positions_q), (k, positions_k)):
        heads = torch.tensor(x.astype(np.float32)).transpose(1, 2)
        angles, _ = rotary(torch.tensor(positions, dtype=torch.float32))
        rotated.append(apply_rotary_pos_emb(heads, angles).transpose(1, 2).numpy())
    return rotated


def flax_nnx(q, k, positions_q, positions_k):
    """`nnx.RoPE` with positions, on heads `[1, H, L, d]`: it takes those of one row alone."""
    import jax.numpy as jnp
    from flax import nnx

    rope = nnx.RoPE()
    rotated = []
    for x, positions in ((q, positions_q), (k, positions_k)):
        heads = jnp.swapaxes(x, 1, 2)
        rows = [
            rope(row[None], input_positions=at[None, None])
            for row, at in zip(heads, positions)
        ]
        rotated.append(jnp.swapaxes(jnp.concatenate(rows), 1, 2))
    return rotated


def flax_nnx_by_index(q, k):
    """`nnx.RoPE` as `nnx.dot_product_attention_with_rope` calls it while decoding."""
    import jax.numpy as jnp
    from flax import nnx

    rope = nnx.RoPE()
    return [jnp.swapaxes(rope(jnp.swapaxes(x, 1, 2)), 1, 2) for x in (q, k)]


def equinox(q, k):
    """`RotaryPositionalEmbedding`, which takes no positions."""
    import equinox as eqx
    import jax

    rope = eqx.nn.RotaryPositionalEmbedding(q.shape[-1])
    heads = jax.vmap(rope, in_axes=1, out_axes=1)
    return [jax.vmap(heads)(x) for x in (q, k)]
