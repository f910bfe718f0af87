"""Attention of published models in NumPy, with rotations of complex numbers, and mistakes in it.

A function of `code` takes the arguments that `golden.check` gives. Changes of its settings make
mistakes.
"""

import numpy as np
from references.rope import powers

SIZES = {"head_dim": 8, "num_attention_heads": 2, "hidden_size": 16}
SHORT, LONG = (1.0, 1.5, 2.0, 3.0), (2.0, 5.0, 20.0, 40.0)
CONFIGS = {
    "llama": {"model_type": "llama", **SIZES},
    "linear": {"model_type": "llama", **SIZES, "rope_scaling": {"type": "linear", "factor": 4.0}},
    # A quarter of each head.
    "gpt_neox": {"model_type": "gpt_neox", "hidden_size": 64, "num_attention_heads": 2},
    # YaRN, a window in every other layer.
    "gpt_oss": {"model_type": "gpt_oss", **SIZES},
    # An encoder with two bases and a window.
    "modernbert": {"model_type": "modernbert", "hidden_size": 16, "num_attention_heads": 2},
    "bloom": {"model_type": "bloom", "hidden_size": 16, "n_head": 4},
    "bloom of 6 heads": {"model_type": "bloom", "hidden_size": 48, "n_head": 6},
    "alibi encoder": {
        "model_type": "bert", "hidden_size": 16, "num_attention_heads": 2,
        "alibi_starting_size": 512,
    },
    # Chunks, layers without rotation, a temperature.
    "llama4": {"model_type": "llama4", **SIZES},
    "ministral3": {"model_type": "ministral3", **SIZES},
    "phi3": {
        "model_type": "phi3", "hidden_size": 16, "num_attention_heads": 2,
        "max_position_embeddings": 131_072, "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
    },
}  # fmt: skip


def yarn(r, base, factor, length, truncate):
    """Frequencies of YaRN."""
    w = powers(r, base)
    start, end = (
        r * np.log(length / (2 * np.pi * n)) / (2 * np.log(base)) for n in (32.0, 1.0)
    )
    if truncate:
        start, end = np.floor(start), np.ceil(end)
    start, end = max(start, 0), min(end, r - 1)
    ramp = np.clip((np.arange(r // 2) - start) / (end - start), 0, 1)
    return w * (1 - ramp) + w / factor * ramp


YARN_SCALE = 0.1 * np.log(32.0) + 1


def settings_of(model, layer, longest):
    """What a layer of a model does, for an input whose largest position is `longest`."""
    plain = {"w": powers(8), "scale": 1.0, "window": (None, None), "chunk": None, "slopes": None,
             "temperature": lambda x: np.ones(x.shape), "layout": "halves"}  # fmt: skip
    match model:
        case "linear":
            return plain | {"w": powers(8) / 4}
        case "gpt_neox":
            return plain
        case "gpt_oss":
            w = yarn(8, 150_000.0, 32.0, 4096, truncate=False)
            window = (127, None) if layer % 2 == 0 else (None, None)
            return plain | {"w": w, "scale": YARN_SCALE, "window": window}
        case "modernbert":
            full = layer % 3 == 0
            window = (None, None) if full else (64, 64)
            return plain | {
                "w": powers(8, 160_000.0 if full else 10_000.0),
                "window": window,
            }
        case "bloom":
            return plain | {"w": None, "slopes": 2.0 ** (-2 * np.arange(1, 5))}
        case "bloom of 6 heads":
            slopes = 2.0 ** -np.array([2, 4, 6, 8, 1, 3])
            return plain | {"w": None, "slopes": slopes}
        case "alibi encoder":
            return plain | {"w": None, "slopes": 2.0 ** -np.array([4, 8])}
        case "llama4":
            if layer % 4 == 3:
                temperature = lambda x: 1 + 0.1 * np.log(np.floor((x + 1) / 8192) + 1)
                return plain | {"w": None, "temperature": temperature}
            return plain | {
                "w": powers(8, 500_000.0),
                "chunk": 8192,
                "layout": "neighbours",
            }
        case "ministral3":
            temperature = lambda x: 1 + 0.1 * np.log(np.floor(x / 16_384) + 1)
            w = yarn(8, 1_000_000.0, 16.0, 16_384, truncate=True)
            return plain | {"w": w, "temperature": temperature}
        case "phi3":
            factors = LONG if longest + 1 > 4096 else SHORT
            scale = np.sqrt(1 + np.log(32) / np.log(4096))
            return plain | {"w": powers(8) / np.array(factors), "scale": scale}
    return plain


def exactly(x):
    return x


def turn(
    x,
    positions,
    *,
    w,
    scale,
    layout,
    first=0,
    round_angles=exactly,
    round_tables=exactly,
):
    """Rotate `[B, L, H, d]`, 2F dimensions from `first` on."""
    count = len(w)
    angles = round_angles(positions[:, :, None, None] * w)
    factor = scale * (round_tables(np.cos(angles)) + 1j * round_tables(np.sin(angles)))
    turned = x.copy()
    part = x[..., first : first + 2 * count]
    if layout == "halves":
        z = factor * (part[..., :count] + 1j * part[..., count:])
        turned[..., first : first + 2 * count] = np.concatenate([z.real, z.imag], -1)
    else:
        z = factor * (part[..., ::2] + 1j * part[..., 1::2])
        turned[..., first : first + 2 * count] = np.stack([z.real, z.imag], -1).reshape(
            part.shape
        )
    return turned


def repeated(x, heads):
    return np.repeat(x, heads // x.shape[2], axis=2)


def alibi(slopes, positions_q, positions_k):
    offsets = np.abs(positions_k[:, None, :] - positions_q[:, :, None])
    return -slopes[:, None, None] * offsets[:, None]


def code(model, *, change_positions=None, change_mask=exactly, change_longest=exactly,
         heads=repeated, bias=alibi, divisor=np.sqrt, rotation=None, **changes):  # fmt: skip
    """Return position code of a model, a function for `golden.check`.

    Args:
      change_positions: `(q, k) -> (q, k)`.
      change_mask, change_longest: of the mask, and of the largest position.
      heads: repeats keys and values for all heads.
      bias, divisor: of the logits.
      rotation: options of `turn`.
      changes: `setting -> setting`, see `settings_of`.
    """

    def function(q, k, v, positions_q, positions_k, mask, layer):
        q, k, v = (x.astype(np.float64) for x in (q, k, v))
        if change_positions is not None:
            positions_q, positions_k = change_positions(positions_q, positions_k)
        allowed = change_mask(mask)
        settings = settings_of(model, layer, change_longest(positions_k.max()))
        for name, change in changes.items():
            settings[name] = change(settings[name])
        if settings["w"] is not None:
            options = {key: settings[key] for key in ("w", "scale", "layout")}
            options |= rotation or {}
            q = turn(q, positions_q, **options)
            k = turn(k, positions_k, **options)
        k, v = (heads(x, q.shape[2]) for x in (k, v))
        logits = np.einsum("bqhd,bkhd->bhqk", q, k) / divisor(q.shape[3])
        logits = logits * settings["temperature"](positions_q)[:, None, :, None]
        if settings["slopes"] is not None:
            logits = logits + bias(settings["slopes"], positions_q, positions_k)
        offsets = (positions_k[:, None, :] - positions_q[:, :, None])[:, None]
        left, right = settings["window"]
        if left is not None:
            allowed = allowed & (offsets >= -left)
        if right is not None:
            allowed = allowed & (offsets <= right)
        if size := settings["chunk"]:
            same = positions_k[:, None, :] // size == positions_q[:, :, None] // size
            allowed = allowed & same[:, None]
        logits = logits - np.max(
            logits, axis=-1, keepdims=True, where=allowed, initial=-1e30
        )
        weights = np.where(allowed, np.exp(np.minimum(logits, 0)), 0)
        weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
        return np.einsum("bhqk,bkhd->bqhd", weights, v)

    return function
