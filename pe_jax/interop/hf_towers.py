"""Encoders of images, speech and others inside models of transformers, by `model_type`.

Keys and defaults are those of the configs' classes in transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping

from pe_jax.interop.hf_family import AXIAL, NO_ATTENTION, HFFamily

_IMAGES = HFFamily(encodings=(AXIAL,))
_HEADS_OF_128 = {"head_dim": 128}
_HALF = {"partial_rotary_factor": 0.5}

TOWERS: Mapping[str, HFFamily] = {
    # Images: rows rotate the first half of the pairs of each head, columns the others.
    **dict.fromkeys(
        "cohere_compass_vision dots3_note_vision_encoder ernie4_5_vl_moe_vision glm4v_moe_vision "
        "glm4v_vision glm5_next_vision glm_ocr_vision paddleocr_vl_vision qwen3_5_moe_vision "
        "qwen3_5_vision qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision qwen3_vl_vision "
        "qwen4_exp_vision video_llama_3_vision".split(),
        _IMAGES,
    ),
    "qwen2_vl_vision": _IMAGES._replace(renamed={"embed_dim": "hidden_size"}),
    "lfm3_vl_vision": _IMAGES._replace(
        theta=1e6,
        is_full=lambda config, layer: layer > 0 and layer % 2 == 0,
        other=NO_ATTENTION,
    ),
    "gemma4_vision": HFFamily(100.0, {"head_dim": 64}, layout="half_by_axis", encodings=(AXIAL,)),
    # Speech and proteins: one axis.
    **dict.fromkeys(("esmc", "lasr_encoder"), HFFamily()),
    **dict.fromkeys(("dia_decoder", "dia_encoder"), HFFamily(defaults=_HEADS_OF_128)),
    **dict.fromkeys(
        "dots3_note_audio_encoder glmasr_encoder nemotron3_5_transcribe_asr_audio "
        "nemotron3_5_transcribe_word_timestamp".split(),
        HFFamily(defaults=_HALF),
    ),
    "nemotron3_diarization_audio": HFFamily(defaults={"partial_rotary_factor": 1.0}),
    **dict.fromkeys(
        ("pe_audio_encoder", "pe_audio_video_encoder", "pe_video_encoder"),
        HFFamily(2e4, _HEADS_OF_128, "interleaved"),
    ),
    # A draft model, which attends to the states of the model that it drafts for.
    "muse_glimmer_assistant": HFFamily(
        5e5,
        _HEADS_OF_128 | {"sliding_window": 2048},
        is_full=lambda config, layer: False,
        reach=lambda size: size,
    ),
}
