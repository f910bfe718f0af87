"""`from_hf` against the models of Hugging Face's transformers, layer by layer.

Each family's model is built from a small config and run once. Its own functions are watched: what
rotates queries and keys, and what attention is called with. Runs where the extra `parity` is
installed; a family that the installed version lacks is skipped.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import types
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from helpers.huggingface_configs import cases

from pe_jax.encodings import HookContext, PositionEncoding, rope
from pe_jax.interop import from_hf

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not (
            importlib.util.find_spec("torch")
            and importlib.util.find_spec("transformers")
        ),
        reason="needs the extra `parity`",
    ),
]

LENGTH = 20
# Classes of models that are parts of others, which AutoModel does not build.
PARTS = {
    "blt_global_transformer": "BltGlobalTransformer",
    "csm_depth_decoder_model": "CsmDepthDecoderModel",
    "deepseek_ocr2_text": "DeepseekOcr2TextModel",
    "diffusion_gemma_text": "DiffusionGemmaEncoderTextModel",
    "emu3_text_model": "Emu3TextModel",
    "granite4_vision_text": "Granite4VisionTextModel",
    "mimi": "MimiTransformerModel",
    "mllama_text_model": "MllamaTextModel",
    "paddleocr_vl_text": "PaddleOCRTextModel",
    "pocket_tts_audio_tokenizer": "PocketTTSAudioTokenizerTransformerModel",
    "qwen2_5_omni_talker": "Qwen2_5OmniTalkerModel",
    "qwen2_5_omni_text": "Qwen2_5OmniThinkerTextModel",
    "qwen3_omni_moe_talker_code_predictor": "Qwen3OmniMoeTalkerCodePredictorModel",
    "qwen3_omni_moe_talker_text": "Qwen3OmniMoeTalkerModel",
    "qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel",
    "step3p5": "Step3p7TextModel",
    "t5_gemma_module": "T5GemmaEncoder",
    "voxtral_realtime_encoder": "VoxtralRealtimeEncoder",
    "voxtral_realtime_text": "VoxtralRealtimeTextModel",
}


class Seen(NamedTuple):
    """What one layer's attention did.

    Attributes:
      rotated: queries and keys before and after the rotation, `[L, H, r]`; None without one.
      queries: as attention gets them, `[L, H, d]`.
      unscaled: the same before a factor that depends on positions, where that is known.
      allowed: `[L, L]`.
      scaling: of the logits.
    """

    rotated: tuple[np.ndarray, ...] | None
    queries: np.ndarray
    unscaled: np.ndarray | None
    allowed: np.ndarray
    scaling: float


@pytest.fixture(scope="module")
def transformers() -> types.ModuleType:
    return pytest.importorskip("transformers")


def heads_last(x: Any, length: int) -> np.ndarray:
    """`[L, H, d]` of `[1, H, L, d]` or `[1, L, H, d]`."""
    x = x.detach().float().numpy()[0]
    return x if x.shape[0] == length else x.swapaxes(0, 1)


def joined(rotations: list[tuple[np.ndarray, ...]]) -> list[tuple[np.ndarray, ...]]:
    """Queries and keys before and after, where each had a call of its own; keys have fewer heads or
    come second."""
    if not rotations or len(rotations[0]) == 4:
        return rotations
    pairs = zip(rotations[::2], rotations[1::2])
    ordered = (sorted(pair, key=lambda each: -each[0].shape[1]) for pair in pairs)
    return [(q, k, q_out, k_out) for (q, q_out), (k, k_out) in ordered]


@contextlib.contextmanager
def watched(model: Any, seen: dict[int, Seen]):
    """Notes every layer's attention in `seen`."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    module = sys.modules[type(model).__module__]
    rotations: list[tuple[np.ndarray, ...]] = []
    projections: list[np.ndarray] = []
    originals = {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function) and name.startswith("apply_rotary")
    }

    def watching(function):
        single = len(inspect.signature(function).parameters) and next(
            iter(inspect.signature(function).parameters)
        ) in ("x", "tensor")

        def rotate(*arguments, **keywords):
            out = function(*arguments, **keywords)
            before, after = (
                ((arguments[0],), (out,)) if single else (arguments[:2], out)
            )
            rotations.append(tuple(heads_last(x, LENGTH) for x in (*before, *after)))
            return out

        return rotate

    def attention(module, query, key, value, attention_mask, scaling=None, **keywords):
        queries = heads_last(query, LENGTH)
        rotations[:] = joined(rotations)
        allowed = np.ones((LENGTH, LENGTH), bool)
        if attention_mask is not None:
            mask = attention_mask.detach()
            allowed = (mask if mask.dtype == torch.bool else mask > -1e4).numpy()[0, 0]
        # Nothing else is done to projections of layers without rotations, but for a norm.
        normed = any("norm" in name for name, _ in module.named_children())
        if rotations and not normed and rotations[0][2].shape == queries.shape:
            unscaled = rotations[0][2]
        elif not rotations and not normed and projections:
            unscaled = projections[-1].reshape(queries.shape)
        else:
            unscaled = None
        index = getattr(module, "layer_idx", None)
        found = Seen(
            rotations[0] if rotations else None,
            queries,
            unscaled,
            allowed,
            scaling or 1.0,
        )
        seen.setdefault(len(seen) if index is None else index, found)
        rotations.clear()
        projections.clear()
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        weights = torch.softmax(query @ key.transpose(-1, -2) * (scaling or 1.0), -1)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    import torch

    def note(module, arguments, out):
        projections.append(out.detach().float().numpy()[0])

    hooks = [
        child.register_forward_hook(note)
        for name, child in model.named_modules()
        if name.endswith("q_proj")
    ]
    for name, function in originals.items():
        setattr(module, name, watching(function))
    ALL_ATTENTION_FUNCTIONS.register("watched", attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register("watched", eager_mask)
    try:
        yield rotations
    finally:
        for name, function in originals.items():
            setattr(module, name, function)
        for hook in hooks:
            hook.remove()


def build(
    transformers: types.ModuleType, model_type: str, said: dict[str, Any]
) -> tuple[Any, Any]:
    """The family's config and model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {model_type}")
    import torch

    torch.manual_seed(0)
    keywords = {key: value for key, value in said.items() if key != "model_type"}
    config = CONFIG_MAPPING[model_type](**keywords)
    if model_type in PARTS:
        name = type(config).__module__.replace("configuration_", "modeling_")
        model = getattr(importlib.import_module(name), PARTS[model_type])(config).eval()
    else:
        model = transformers.AutoModel.from_config(config).eval()
    for child in model.modules():
        if isinstance(getattr(child, "config", None), transformers.PreTrainedConfig):
            child.config._attn_implementation = "watched"
    return config, model


def run(model: Any) -> dict[int, Seen]:
    import torch

    seen: dict[int, Seen] = {}
    arguments = inspect.signature(model.forward).parameters
    if "input_ids" in arguments and "input_features" not in arguments:
        inputs = {"input_ids": torch.randint(4, 30, (1, LENGTH))}
    else:
        states = "hidden_states" if "hidden_states" in arguments else "inputs_embeds"
        inputs = {states: torch.randn(1, LENGTH, 64)}
    with watched(model, seen) as rotations, torch.inference_mode():
        model(**inputs)
    if not seen:  # A model that does not call attention by the name in its config.
        causal = np.tri(LENGTH, dtype=bool)
        layers = joined(rotations)
        seen = {
            i: Seen(each, each[2], None, causal, 1.0) for i, each in enumerate(layers)
        }
    return seen


def logits(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """`[H, L, L]`, of grouped heads."""
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    return np.einsum("ihd,jhd->hij", q, k)


def factor_of(layer: PositionEncoding, positions: np.ndarray) -> np.ndarray:
    total = np.ones(len(positions))
    for part in layer.parts:
        if part.scale:
            found = np.asarray(
                part.scale(
                    {}, HookContext(positions_q=positions, positions_k=positions)
                ),
                float,
            )
            total = total * (found.reshape(-1) if found.ndim else found)
    return total


# Their inputs are no tokens alone, or layers share attention: test_hf_tables_parity.py has them.
UNTESTED = (
    *(
        "chameleon",
        "deepseek_ocr2_text",
        "diffusion_gemma_text",
        "evolla",
        "hrm_text",
        "idefics",
    ),
    *("kyutai_speech_to_text", "qwen2_5_omni_talker", "qwen3_omni_moe_talker_text"),
    *(
        "qwen3_omni_moe_talker_code_predictor",
        "qwen4_exp_text",
        "t5_gemma_module",
        "timesfm2_5",
    ),
    *("blt_local_decoder", "blt_local_encoder", "blt_patcher", "deepseek_ocr2_encoder"),
    *("moonshine", "moonshine_streaming", "voxtral_realtime_text", "zamba2"),
)
# RoFormer rotates in a method; its hidden states are compared in tests/interop. EXAONE 4.5 has the
# text model of EXAONE 4.
ROTATED = [
    case
    for case in cases()
    if not case[2].startswith(("learned_absolute", "alibi"))
    and case[0] not in ("roformer", "exaone4_5", *UNTESTED)
]


@pytest.mark.parametrize(
    ("model_type", "said", "name"),
    ROTATED,
    ids=[f"{case[0]}-{i}" for i, case in enumerate(ROTATED)],
)
def test_layers(transformers, model_type, said, name):
    if model_type == "minimax_m2" and transformers.__version__ < "5.24":
        pytest.skip("reads no rotary_dim")
    ours = from_hf(said)
    config, model = build(transformers, model_type, said)
    again = {**config.to_dict(), "model_type": model_type}
    assert from_hf(again).name == ours.name  # As version 5 saves it.
    seen = run(model)
    assert seen
    positions = np.arange(LENGTH)
    at = np.tile(positions[:, None], ours.axes) if ours.axes > 1 else positions
    causal = not next(iter(seen.values())).allowed[0, 1]
    offsets = positions[None] - positions[:, None]
    for index in range(config.num_hidden_layers):
        layer = ours.layer(index)
        rotates = [part for part in layer.parts if part.map_qkv]
        if index not in seen:
            assert not layer.parts, index
            continue
        there = seen[index]
        allowed = np.asarray(layer.window.allows(offsets)) & (
            offsets <= 0 if causal else True
        )
        for part in layer.parts:
            if part.key == "chunks":
                x = np.zeros((1, LENGTH, 1, 2), np.float32)
                terms = part.logits(
                    {}, x, x, HookContext(positions_q=at, positions_k=at)
                )
                arrays = (terms.query_arrays, terms.key_arrays, terms.shared)
                allowed &= np.asarray(terms.function(*arrays, None))[0, 0] == 0
        np.testing.assert_array_equal(there.allowed, allowed)
        assert bool(rotates) == (there.rotated is not None), index
        factor = factor_of(layer, positions)
        if there.rotated is not None:
            q, k, q_out, k_out = there.rotated
            turned = rotates[0].map_qkv(
                {},
                q[None],
                k[None],
                k[None],
                HookContext(positions_q=at, positions_k=at),
            )
            found = logits(np.asarray(turned[0])[0], np.asarray(turned[1])[0])
            np.testing.assert_allclose(
                found, logits(q_out, k_out), atol=3e-5, rtol=3e-5
            )
        if "qk_rope_head_dim" in said:
            size = said["qk_rope_head_dim"] + said["qk_nope_head_dim"]
            np.testing.assert_allclose(there.scaling * size**0.5, factor[0], rtol=1e-6)
        elif there.unscaled is not None:
            norms = [
                np.linalg.norm(x, axis=-1) for x in (there.queries, there.unscaled)
            ]
            ratio = norms[0] / norms[1]
            wanted = np.broadcast_to(factor[:, None], ratio.shape)
            np.testing.assert_allclose(
                ratio / ratio[:1], wanted / wanted[:1], rtol=1e-4
            )


@pytest.mark.parametrize(
    ("model_type", "said"),
    [
        (model_type, said)
        for model_type, said, name in cases()
        if name == "learned_absolute"
    ],
)
def test_tables(transformers, model_type, said):
    """Rows of a learned table, from that of the first token on, and their size."""
    import torch

    _, model = build(transformers, model_type, said)
    names = ("wpe", "position_embeddings", "embed_positions")
    (table,) = (
        child for name, child in model.named_modules() if name.split(".")[-1] in names
    )
    found = {}
    look_up = torch.nn.functional.embedding

    def noted(ids, weight, *arguments, **keywords):
        if weight is table.weight:
            found["rows"] = ids
        return look_up(ids, weight, *arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(torch.nn.functional, "embedding", noted)
        model(input_ids=torch.randint(4, 30, (1, LENGTH)))
    rows = found["rows"].flatten()[:LENGTH]
    assert (rows == rows[0] + torch.arange(LENGTH)).all()
    ours = from_hf(said)
    (part,) = ours.parts
    shape = part.init(jax.random.key(0))["table"].shape
    assert shape == (table.weight.shape[0] - int(rows[0]), table.weight.shape[1])


@pytest.mark.parametrize("heads", [4, 6, 12])
def test_alibi(transformers, heads):
    """Up to a number for each query, which the softmax does not see."""
    import torch

    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    ours = from_hf(dict(model_type="bloom", n_head=heads, hidden_size=heads * 8))
    assert (
        ours.name
        == from_hf(dict(model_type="mpt", n_heads=heads, d_model=heads * 8)).name
    )
    last = np.arange(1 - LENGTH, 1)
    bias = np.asarray(
        ours.parts[0].offsets.bias(
            {}, last, HookContext(positions_q=range(0), positions_k=range(0))
        )
    ).T
    theirs = bloom.build_alibi_tensor(torch.ones(1, LENGTH), heads, torch.float32)[
        :, 0
    ].numpy()
    np.testing.assert_allclose(bias, theirs - theirs[:, -1:], rtol=1e-5)
    theirs = mpt.build_mpt_alibi_tensor(heads, LENGTH)[:, 0].numpy()
    np.testing.assert_allclose(bias, theirs, rtol=1e-6)
    steep = dict(model_type="mpt", n_heads=heads, attn_config={"alibi_bias_max": 16})
    bias = np.asarray(
        from_hf(steep)
        .parts[0]
        .offsets.bias({}, last, HookContext(positions_q=range(0), positions_k=range(0)))
    ).T
    theirs = mpt.build_mpt_alibi_tensor(heads, LENGTH, alibi_bias_max=16)[:, 0].numpy()
    np.testing.assert_allclose(bias, theirs, rtol=1e-6)


def test_nanochat(transformers):
    """Refused: it rotates in the opposite direction. Swapped halves of heads make it RoPE."""
    import torch

    nanochat = pytest.importorskip("transformers.models.nanochat.modeling_nanochat")
    generator = np.random.default_rng(0)
    q, k = (
        generator.normal(size=(1, LENGTH, 2, 8)).astype(np.float32) for _ in range(2)
    )
    angles = torch.arange(LENGTH)[:, None] * 10_000.0 ** -(torch.arange(4) / 4)
    angles = torch.cat([angles, angles], -1)[None]
    turned = nanochat.apply_rotary_pos_emb(
        *(torch.tensor(x.swapaxes(1, 2)) for x in (q, k)), angles.cos(), angles.sin()
    )
    positions = np.arange(LENGTH)
    swapped = [np.roll(x, 4, axis=-1) for x in (q, k)]
    heads = (
        rope(head_size=8)
        .parts[0]
        .map_qkv(
            {}, *swapped, k, HookContext(positions_q=positions, positions_k=positions)
        )
    )
    ours = logits(*(np.asarray(x)[0] for x in heads[:2]))
    np.testing.assert_allclose(
        ours, logits(*(heads_last(x, LENGTH) for x in turned)), atol=1e-5
    )
