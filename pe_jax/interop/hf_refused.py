"""Model types of transformers 5.24 that `from_hf` refuses, and those that have nothing to read."""

from __future__ import annotations

from collections.abc import Mapping

_AXIAL = "rope_axial(base=10000, layout='half')"
_T5 = "its encoder and decoder have tables of their own: encodings.t5"
_XL = "its terms of sinusoidal offsets are those of encodings.transformer_xl, with other weights"
_BIAS_2D = "its tables are of windows or images whose size from_hf does not know: encodings.bias_2d"
_DECOMPOSED = (
    "its tables are of windows or images whose size from_hf does not know: encodings.decomposed_2d"
)
_WINDOWS_2D = f"most layers attend within windows of patches; its rotations are {_AXIAL}"
_COLUMN_FIRST = "columns come before rows: {}, with positions (column, row)"
_MEMORY = (
    "it rotates queries of an image and keys of other images, which have positions of their own"
)
_DINO = "its angles depend on the size of the image: encodings.rope_centred"
_HEAD_INDEX = "it rotates each head by the head's index, not by positions"
_INKLING2 = (
    "from_hf does not read its clipping of the numbers that meet the table: encodings.inkling"
)
_CONFORMER = {
    **dict.fromkeys(
        "fastspeech2_conformer nemotron_asr_streaming_encoder parakeet_encoder seamless_m4t "
        "wav2vec2-conformer".split(),
        _XL,
    ),
    **dict.fromkeys(
        ("gemma3n_audio", "gemma4_audio"),
        f"it attends within blocks, with a context on both sides; {_XL}",
    ),
    **dict.fromkeys(
        ("granite_speech_encoder", "granite_speech_plus_encoder", "granite_speech5_encoder"),
        "the query meets a table of offsets within blocks of the input",
    ),
    **dict.fromkeys(
        ("seamless_m4t_v2", "wav2vec2-bert"),
        "the query meets a table whose offsets reach further left than right",
    ),
}

# The reason, as the end of a sentence that names the model type.
REFUSED: Mapping[str, str] = {
    # Text.
    "beam": "its layers without RoPE multiply the logits by (1 + n/2048)^0.1",
    "blt": "its models see patches of bytes: pass part='encoder_config', 'global_config', "
    "'decoder_config' or 'patcher_config'",
    "clvp_encoder": "it rotates the values too, in a part of each head",
    "cohere2_moe": "its dense layers rotate where cohere2's do not; without any, take cohere2",
    "cohere_compass": "its rope_parameters are by layer and of three axes",
    "cpmant": "its buckets of offsets depend on the segments of the prompt",
    **dict.fromkeys(
        ("deberta", "deberta-v2", "sew-d"),
        "its tables of offsets meet queries and keys: encodings.deberta",
    ),
    "dbrx": "its base is attn_config.rope_theta, which transformers 5.24 does not use: leave out "
    "model_type and pass rope_theta",
    "deepseek_v4": "it rotates the outputs back, and compresses the keys of most layers",
    "dory": "it lists its MLPs as layers and repeats some of the layers",
    "dots3_note": "its slices of heads have other sizes in layers with a window",
    "ernie4_5_vl_moe": "height and width alternate in the fast pairs, before those of time",
    "funnel": "it shortens its input between layers; its terms are those of "
    "encodings.transformer_xl",
    "hunyuan_vl": "the two dimensions of a pair follow different axes, which is no rotation",
    "hy_v4_vl": "its slices of heads are rotated by three axes that take turns in pairs of "
    "neighbours",
    **dict.fromkeys(("inkling2", "inkling2_loop"), _INKLING2),
    **dict.fromkeys(
        ("layoutlmv2", "layoutlmv3", "pp_doclayout_v2", "udop"),
        "it adds tables of offsets between the boxes of words",
    ),
    "mistral_large4": "it learns factors of the frequencies and of the logits: encodings.lerope "
    "and encodings.ssmax",
    "nanochat": "it rotates in the opposite direction: swap the halves of each head in the weights "
    "of queries and keys, and take encodings.rope",
    "neomme": "its windows have two sizes, which alternate",
    "prophetnet": "it predicts several tokens, each with offsets of its own, in buckets",
    "speecht5": "the query meets a table of offsets, in the encoder alone: encodings.relative_key",
    **dict.fromkeys(
        ("mt5", "pop2piano", "switch_transformers", "t5"),
        _T5,
    ),
    "longt5": f"its encoder attends within blocks; {_T5}",
    "pix2struct_text_model": _T5,
    "t5gemma2": "windows of its encoder reach one key further right than left",
    "t5gemma2_decoder": "it attends to itself and to the encoder in one softmax",
    "umt5": "every layer of its encoder and decoder has a table of its own: encodings.t5",
    "unlimited_ocr": "its windows move on behind a prompt that stays in sight",
    "vits": "the query meets a table of offsets, another is added to the values, and both end at "
    "a window's edge",
    "xlnet": "it adds terms of offsets to permuted inputs: encodings.transformer_xl",
    # Images and videos.
    **dict.fromkeys(("beit", "data2vec-vision"), _BIAS_2D),
    **dict.fromkeys(("clap_audio_model", "donut-swin", "maskformer-swin", "swin"), _BIAS_2D),
    **dict.fromkeys(
        ("swin2sr", "swinv2"),
        "it adds an MLP of logarithms of offsets between rows and columns, to cosines",
    ),
    **dict.fromkeys(
        "deepseek_ocr2_sam_vision_model got_ocr2_vision pp_formulanet_vision sam_hq_vision_model "
        "sam_vision_model seggpt slanext_vision unlimited_ocr_sam_vision_model vitdet".split(),
        _DECOMPOSED,
    ),
    **dict.fromkeys(("dinov3_vit", "eomt_dinov3", "sapiens2"), _DINO),
    **dict.fromkeys(
        "exaone4_5_vision muse_glimmer_vision muse_spark_vision qwen2_5_omni_vision_encoder "
        "qwen2_5_vl_vision".split(),
        _WINDOWS_2D,
    ),
    **dict.fromkeys(("edgetam_video", "sam2_video", "sam3_tracker_video"), _MEMORY),
    "efficientloftr": "it rotates whole rows of features by rows and columns, before the heads",
    "inkling2_vision": _COLUMN_FIRST.format("rope_axial(base=10000)"),
    "kimi_k25_vision": "columns and rows take turns, at the same frequencies",
    "lightglue": "it rotates by learned features of the places of keypoints",
    "llama4_vision_model": _COLUMN_FIRST.format("rope_axial(base=10000)"),
    "minimax_m3_vl_vision": "it rotates by time, rows and columns, at the same frequencies",
    "mlcd_vision_model": f"it learns the angles of the class token; those of patches are {_AXIAL}",
    "pixtral": "rows have every other frequency and columns the rest, rows first: "
    "mrope(sections=(...), interleaved=True) has the same pairs in another order",
    "sam3_detr_decoder": "it adds an MLP of logarithms of the offsets to the edges of boxes",
    "sam3_vit_model": "most layers attend within windows of patches, and positions are scaled; its "
    "rotations are rope_axial(base=10000)",
    "step3p5_vision": _COLUMN_FIRST.format(_AXIAL),
    "vjepa2": "frames, rows and columns rotate thirds of a head, with angles that do not match "
    "their pairs",
    # Speech, music and proteins.
    **_CONFORMER,
    "esmfold2": "it rotates atoms by their places in space",
    "musicflamingo": "it rotates features of sound by seconds",
    **dict.fromkeys(("neucodec", "xcodec2"), _HEAD_INDEX),
    "phi4_multimodal_audio": "it adds a table of offsets that are not folded into buckets",
    "qwen2_5_omni_dit": "it rotates the first head alone, and attends within blocks",
    "wavlm": "gates of the hidden states multiply its buckets of offsets",
}

# Beside models that have positions of these kinds, transformers has parts that have none.
WITHOUT = tuple(
    """
    apertus1p5_vision_tokenizer chameleon_vqgan clap_text_model clip_text_model clvp_decoder
    cosmos3_edge_vision data2vec-audio data2vec-text detr edgetam_video_mask_decoder
    edgetam_video_prompt_encoder emu3_vqgan fastspeech2_conformer_hifigan gemma3n_vision
    gemma4_unified_audio gemma4_unified_vision glm_image_vision glm_image_vqmodel
    granite_docling_vision hunyuan_vl_vision hy_v4_vl_vision idefics_perciever idefics_vision
    inkling_audio inkling_vision mimi_decoder mimi_encoder minicpmv4_7_vision
    mllama_vision_model molmo2_adapter molmo2_vision moonshine_streaming_encoder moshi_depth
    muse_spark_audio phi4_multimodal_vision pix2struct_vision_model
    pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder pp_doclayout_v3
    pp_doclayout_v4 pp_formulanet_text qwen2_5_omni_audio_encoder qwen2_5_omni_bigvgan
    qwen3_omni_moe_audio_encoder sam2_video_mask_decoder sam2_video_prompt_encoder
    sam3_detr_encoder sam3_geometry_encoder sam3_mask_decoder sam3_tracker_video_mask_decoder
    sam3_tracker_video_prompt_encoder sam_hq_mask_decoder sam_hq_prompt_encoder
    sam_mask_decoder sam_prompt_encoder sapiens2_head speecht5_hifigan
    unlimited_ocr_vision_encoder
    """.split()
)
