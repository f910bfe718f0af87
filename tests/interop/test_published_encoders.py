"""What the importer makes of config.json files as they were published, and the page about them."""

import re
from pathlib import Path

import pytest
from helpers import published_configs
from helpers.published_configs import DECODERS, ENCODERS, imported, outcome


def windows(base, local=10_000):
    sliding = (
        "rope" if local == 10_000 else f"rope(base={local})"
    ) + "+window(max_distance=64)"
    return f"cycle(rope(base={base}), {sliding}, {sliding})"


EXPECTED = {
    **dict.fromkeys(
        (
            *("all-minilm-l6-v2", "bert-base-chinese", "bert-base-uncased", "bge-m3"),
            *(
                "bge-small-en-v1.5",
                "distilbert-base-uncased",
                "e5-small-v2",
                "indobert-base-p1",
            ),
            "roberta-base",
            *("paraphrase-multilingual-minilm-l12-v2", "xlm-roberta-base-classifier"),
            *("albert-base-v2-classifier", "camembert-base-classifier"),
        ),
        "learned_absolute",
    ),
    **dict.fromkeys(
        ("modernbert-base-classifier", "modernbert-large", "ruri-v3-30m"),
        windows(160_000),
    ),
    **dict.fromkeys(("all-mpnet-base-v2", "mpnet-base"), "learned_absolute+t5"),
    "embeddinggemma-300m-halved-window": "refused: sliding_window",
    "granite-embedding-small-english-r2": windows(80_000),
    "mmbert-small": windows(160_000, 160_000),
    "eurobert-210m": "rope(base=250000)",
    "nomic-embed-text-v1.5": "rope(base=1000)",
    "gte-multilingual-base": "rope_linear(factor=1.0671404006768237, base=160000)",
    "roformer-chinese-base": "rope(layout='interleaved')",
    "nomic-embed-text-v2-moe": "refused: activation_function",
    **dict.fromkeys(
        ("dnabert-2", "mosaic-bert", "jina-embeddings-v2-base-en"), "alibi"
    ),
    **dict.fromkeys(("deberta-v3-base-questions", "deberta-v2-xxlarge"), "deberta"),
    "electra-small-discriminator": "learned_absolute",
    "esm2-t6-8m": "rope",
    **dict.fromkeys(("t5-small", "mt5-small", "flan-t5-base"), "t5"),
    "umt5-base": "per_layer(t5)",
    "t5-v1.1-xxl-4bit": "refused: quantization_config",
    "nezha-cn-base": "nezha",
    "modernbert-large-own-code": "refused: model_type",
}


@pytest.mark.parametrize("name", ENCODERS)
def test_what_a_published_config_gives(name):
    assert outcome(imported, ENCODERS[name]) == EXPECTED[name]


def test_each_config_has_a_source():
    text = (published_configs.FOLDER / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\S+)` \| \S.* \|$", text, re.M)
    encoders = [f"encoders/{name}" for name in ENCODERS]
    decoders = [f"decoders/{name}" for name in DECODERS]
    assert named == sorted(decoders + encoders)


def test_the_page_says_what_published_files_give():
    page = Path(__file__).parents[2] / "docs/modern-details.md"
    table = published_configs.table()
    assert table in page.read_text(encoding="utf-8"), f"The table is now:\n{table}"
