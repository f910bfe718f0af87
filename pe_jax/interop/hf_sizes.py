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
"""
SIZES: Mapping[str, tuple[int, ...]] = {
    name: tuple(map(int, sizes.split("/")))
    for name, _, sizes in (entry.partition("=") for entry in _SIZES.split())
}
