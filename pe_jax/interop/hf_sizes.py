"""Sizes of models whose configs leave them out, from the classes of transformers 5.24."""

from __future__ import annotations

from collections.abc import Mapping

# Layers, hidden size, heads and longest input.
_SIZES = """
    llama=32/4096/32/2048 arcee=32/2560/32/4096 diffllama=16/2048/32/2048
    eurobert=12/768/12/8192 falcon=32/4544/71/2048 falcon_h1=32/4096/32/8192
    granite=32/4096/32/2048 granitemoe=32/4096/32/2048 granitemoeshared=32/4096/32/2048
    hunyuan_v1_dense=32/4096/32/2048 olmo=32/4096/32/2048 olmo2=32/4096/32/2048
    olmoe=16/2048/16/4096 gemma=28/3072/16/8192 seed_oss=64/4096/80/524288 gte=12/768/12/8192
    nomic_bert=12/768/12/2048 roformer=12/768/12/1536 jina_embeddings_v3=24/1024/16/8194
    bitnet=30/2560/20/2048 flex_olmo=32/4096/32/4096 apertus=32/4096/32/65536
    cohere=40/8192/64/8192 ernie4_5=18/1024/16/131072 ernie4_5_moe=28/2560/20/131072
    helium=24/2560/20/4096 gpt_neox=44/6144/64/2048 stablelm=32/2560/32/4096 phi=24/2048/32/2048
    persimmon=36/4096/64/16384 nemotron=32/6144/48/4096 glm=40/4096/32/131072
    glm4=40/4096/32/131072 glm4_moe=46/4096/96/131072 gptj=28/4096/16/2048
    codegen=28/4096/16/2048 minimax_m2=62/3072/48/196608 deepseek_v2=32/4096/32/2048
    deepseek_v3=61/7168/128/4096 qwen2_vl=80/8192/64/32768 qwen2_5_vl=80/8192/64/32768
    qwen3_vl=32/4096/32/128000 qwen3_vl_moe=24/2048/16/128000 mistral=32/4096/32/131072
    mixtral=32/4096/32/131072 ministral3=34/4096/32/262144 phi3=32/3072/32/4096
    phimoe=32/4096/32/131072 starcoder2=30/3072/24/4096 qwen3_moe=24/2048/32/32768
    ministral=32/4096/32/131072 qwen2=32/4096/32/32768 qwen2_moe=24/2048/16/32768
    qwen3=32/4096/32/32768 dots1=62/4608/32/2048 gemma2=26/2304/8/8192 vaultgemma=26/2304/8/8192
    gemma3=26/2304/8/131072 gemma3n=35/2048/8/32768 gemma4=30/2304/8/131072
    gpt_oss=36/2880/64/131072 olmo3=32/4096/32/2048 modernbert=22/768/12/8192
    modernbert-decoder=22/768/12/8192 embedding_gemma2=24/512/4/262144
    openai_privacy_filter=8/640/14/131072 ultrabert=32/4096/32/32768 afmoe=32/2048/16/16384
    cohere2=40/8192/64/8192 exaone4=32/4096/32/2048 smollm3=36/2048/16/32768
    llama4=48/5120/40/131072 bamba=32/4096/32/262144 granitemoehybrid=32/4096/32/2048
    jamba=32/4096/32/262144 lfm2=32/2560/32/128000 qwen3_next=48/2048/16/32768
    qwen3_5=32/4096/16/32768 qwen3_5_moe=40/2048/16/32768 albert=12/4096/64/512
    bert=12/768/12/512 distilbert=6/768/12/512 electra=12/256/4/512 gpt2=12/768/12/1024
    gpt_bigcode=12/768/12/1024 opt=12/768/12/2048 camembert=12/768/12/512 esm=12/768/12/1026
    roberta=12/768/12/512 xlm-roberta=12/768/12/512 bloom=2/64/8 mpt=24/2048/16/2048
    granite_swa=24/2560/20/8192 granitemoe_swa=32/4096/32/2048 youtu=32/2048/16/131072
    glm4_moe_lite=47/2048/20/202752 mllama_text_model=40/4096/32/131072 kimi_k2=61/7168/128/4096
    exaone4_5=32/4096/32/2048
    aria=32/4096/32/2048 chameleon=32/4096/32/4096
    deepseek_ocr2=32/4096/32/2048 deepseek_ocr2_encoder=32/4096/32/32768
    granite4_vision=32/4096/32/2048 granite_docling=28/1024/16/32768
    hunyuan_v1_moe=32/4096/32/2048 idefics=32/4096/32/2048 kyutai_speech_to_text=48/2048/32/750
    moshi=32/4096/32/3000 hrm_text=128/1536/12/2048 hyperclovax=32/4096/32/2048
    jais2=32/3328/26/8192
    gradium_phonon_tts=6/768/12/8192 pocket_tts=6/1024/16/8192 timesfm2_5=20/1280/16/16384
    jetmoe=12/2048/32/4096 csm=16/2048/32/2048 evolla=32/4096/32/8192
    csm_depth_decoder_model=4/1024/8/33 emu3_text_model=32/4096/32/9216 molmo2=36/4096/32/36864
    solar_open=48/4096/64/131072 hy_v3=80/4096/64/131072 apertus1p5=32/4096/32/65536
    higgs_audio_v2=28/3072/24/2048 blt_global_transformer=25/2048/16/4096
    blt_local_decoder=9/1024/16/24576 blt_local_encoder=1/1024/16/24576
    blt_patcher=14/768/12/8192 gpt_neox_japanese=32/2560/32/2048 moonshine=6/288/8/512
    moonshine_streaming=6/320/8/4096 axk1=61/7168/64/32768 mistral4=36/4096/32/1048576
    axk2=48/2048/32/131072 deepseek_v32=61/7168/128/163840 glm_moe_dsa=78/6144/64/202752
    longcat_flash=56/6144/64/131072 minicpm3=62/2560/40/32768 hy_v4=34/2816/32/262144
    qwen2_5_omni=28/3584/28/32768 qwen2_5_omni_talker=28/3584/28/32768
    paddleocr_vl=18/1024/16/131072 qwen3_omni_moe=28/2048/28/32768
    qwen3_omni_moe_talker=20/1024/16/32768 cosmos3_edge=28/2048/16/131072 glm4v=40/4096/32/32768
    glm_ocr=16/1024/16/131072 glm4v_moe=46/4096/96/65536 glm_image=40/4096/32/131072
    phi4_multimodal=32/3072/32/131072 doge=32/1024/8/2048 mimi=8/512/8/8000
    pocket_tts_audio_tokenizer=2/512/8/8000 voxtral_realtime=32/4096/32/131072
    voxtral_realtime_encoder=32/1280/32/1500
    qwen3_omni_moe_talker_code_predictor=5/1024/16/32768 cwm=64/6144/48/131072
    step3p5=45/4096/64/128000 laguna=40/2048/48/131072 mellum=28/2304/32/131072
    mimo_v2_flash=48/4096/64/131072 zaya=40/2048/8/131072 t5_gemma_module=26/2304/8/8192
    diffusion_gemma=30/2304/8/131072 gemma4_unified=30/2304/8/262144 exaone_moe=32/4096/32/2048
    flint=49/2048/32/262144 kolibri1=50/2560/48/262144 muse_glimmer=52/6656/32/131072
    muse_spark=62/8192/128/1048576 bailing_hybrid=42/2560/32/262144 glm5_next=45/4096/64/1048576
    kimi_linear=27/2304/32/1048576 nemotron_h=4/4096/32/4096 lara_mini=34/1024/16/131072
    lfm2_moe=32/2048/32/128000 lfm3=24/2048/16/128000 minimax=32/4096/32/131072
    olmo_hybrid=32/3840/30/65536 recurrent_gemma=26/2560/10 zamba2=54/2560/32/4096
    qwen4_exp=40/2048/16/32768 inkling=66/6144/64/131072 cohere_compass_vision=27/1152/16
    dots3_note_vision_encoder=42/1536/24 ernie4_5_vl_moe_vision=32/1280/16
    glm4v_moe_vision=24/1536/12 glm4v_vision=24/1536/12 glm5_next_vision=24/1024/16
    glm_ocr_vision=24/1024/16 paddleocr_vl_vision=27/1152/16 qwen3_5_moe_vision=27/1152/16
    qwen3_5_vision=27/1152/16 qwen3_omni_moe_vision_encoder=27/1152/16
    qwen3_vl_moe_vision=27/1152/16 qwen3_vl_vision=27/1152/16 qwen4_exp_vision=27/1152/16
    video_llama_3_vision=12/768/12 qwen2_vl_vision=32/1280/16 gemma4_vision=16/768/12/131072
    lfm3_vl_vision=14/1024/16 minimax_m3_vl=60/6144/64/524288
    esmc=80/2560/40/2048 lasr_encoder=17/512/8/10000 dia_decoder=18/2048/16/3072
    dia_encoder=12/1024/16/1024 dots3_note_audio_encoder=32/1280/20/6000
    glmasr_encoder=32/1280/20/1500 nemotron3_5_transcribe_asr_audio=32/1280/10/5000
    nemotron3_5_transcribe_word_timestamp=2/1280/16/5000
    nemotron3_diarization_audio=31/512/8/5000 pe_audio_encoder=6/1792/14/10000
    pe_audio_video_encoder=6/1792/14/10000 pe_video_encoder=6/1792/14/10000
    muse_glimmer_assistant=5/6656/32/131072 mpnet=12/768/12/512
"""
SIZES: Mapping[str, tuple[int, ...]] = {
    name: tuple(map(int, sizes.split("/")))
    for name, _, sizes in (entry.partition("=") for entry in _SIZES.split())
}
