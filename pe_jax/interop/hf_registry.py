"""Registry of Hugging Face's families, by `model_type`: facts that their configs leave out.

Encoders of text are here, other rows in `hf_decoders`, `hf_towers` and `hf_refused`.

`from_hf` reads all of them. `load_position_table` reads the `table` of a family that has one, and
`load_bert` and `save_bert` its `encoder`. Keys and defaults are those of the configs' classes in
transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping

from pe_jax.interop import hf_encoders as encoders
from pe_jax.interop.encoder_format import EncoderFormat
from pe_jax.interop.hf_decoders import DECODERS, GEMMA4, GPT_OSS, MODERNBERT
from pe_jax.interop.hf_family import FULL, SLIDING, HFFamily, by_pattern, every
from pe_jax.interop.hf_sizes import SIZES
from pe_jax.interop.hf_towers import TOWERS

_TABLES = ("absolute", "relative_key", "relative_key_query")

# Names that the learned table has in files, by the encoder's prefix.
_BERT_TABLE, _ROBERTA_TABLE = (
    tuple(f"{prefix}{encoders.POSITION_TABLE}.weight" for prefix in prefixes)
    for prefixes in (("", "bert.", "distilbert.", "electra."), ("", "roberta."))
)
_ROBERTA = HFFamily(
    defaults={"pad_token_id": 1}, encodings=_TABLES, padded_table=True, table=_ROBERTA_TABLE
)

_ENCODERS: Mapping[str, HFFamily] = {
    # A learned table at the input, or tables of offsets.
    "bert": HFFamily(
        # With ALiBi: of MosaicBERT and DNABERT-2, and of Jina, whose code is their own.
        defaults={"alibi_starting_size": None},
        encodings=(*_TABLES, "alibi"),
        table=_BERT_TABLE,
        encoder=encoders.BERT,
    ),
    "distilbert": HFFamily(encodings=("absolute",), table=_BERT_TABLE, encoder=encoders.DISTILBERT),
    "electra": HFFamily(defaults={"embedding_size": 128}, encodings=_TABLES, table=_BERT_TABLE),
    "roberta": _ROBERTA._replace(encoder=encoders.ROBERTA),
    "xlm-roberta": _ROBERTA._replace(encoder=encoders.XLM_ROBERTA),
    "camembert": _ROBERTA,
    "gpt2": HFFamily(encodings=("absolute",), table=("wpe.weight", "transformer.wpe.weight")),
    "albert": HFFamily(defaults={"embedding_size": 128}, encodings=_TABLES),
    **dict.fromkeys(("gpt_bigcode", "opt"), HFFamily(encodings=("absolute",))),
    "mpnet": HFFamily(
        encodings=("absolute+t5",),
        defaults={"pad_token_id": 1},
        padded_table=True,
        encoder=encoders.MPNET,
    ),
    "esm": HFFamily(encodings=("absolute", "rotary"), padded_table=True),
    # Encoders with RoPE that are read and written.
    "modernbert": MODERNBERT._replace(encoder=encoders.MODERNBERT),
    "eurobert": HFFamily(encoder=encoders.EUROBERT),
    "roformer": HFFamily(layout="interleaved", encodings=("rotary",), encoder=encoders.ROFORMER),
    "nomic_bert": HFFamily(1e3, {"partial_rotary_factor": None}, encoder=encoders.NOMIC),
    "gte": HFFamily(1.6e5, encoder=encoders.GTE),
    "jina_embeddings_v3": HFFamily(2e4),
    # Encoders, whose window is the reach itself.
    "embedding_gemma2": HFFamily(
        defaults=GEMMA4 | {"sliding_window_pattern": 6},
        is_full=by_pattern,
        reach=lambda size: size,
        settings={FULL: {"rope_theta": 1e6}, SLIDING: {"rope_theta": 1e4}},
    ),
    "openai_privacy_filter": HFFamily(
        1.5e5,
        {"head_dim": 64, "sliding_window": 128},
        "interleaved",
        slides=True,
        reach=lambda size: size,
        settings=GPT_OSS,
    ),
    "ultrabert": HFFamily(
        defaults={"sliding_window": 128},
        is_full=every(3),
        reach=lambda size: size,
        settings={FULL: {"rope_theta": 2_560_000.0}, SLIDING: {"rope_theta": 1e4}},
    ),
}
FAMILIES: Mapping[str, HFFamily] = {
    name: family._replace(sizes=SIZES[name])
    for name, family in {**_ENCODERS, **DECODERS, **TOWERS}.items()
}
# Those whose encoders are read and written; an export tries them in this order.
ENCODERS: Mapping[str, EncoderFormat] = {
    name: family.encoder for name, family in FAMILIES.items() if family.encoder is not None
}
# Names in the first configs of a family.
FIRST_NAMES = {"new": "gte"}
