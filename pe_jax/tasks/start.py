"""What `config.init` names, a trained model to start from: a run of ours, or a published BERT."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from pe_jax.console.terminal import say
from pe_jax.data import load_tokenizer
from pe_jax.data.tokenizer import SPECIAL_TOKENS
from pe_jax.encodings import PositionEncoding
from pe_jax.files import to_path
from pe_jax.interop import PRETRAINING, load_bert, open_checkpoint, read_config
from pe_jax.models import BertConfig
from pe_jax.tasks.model_config import model_config
from pe_jax.tasks.run import saved_tokenizer
from pe_jax.training import workdir
from pe_jax.training.checkpointing import Place, newest_params


@dataclasses.dataclass(frozen=True)
class Start:
    """A trained model to start from.

    Attributes:
      config: with a `model` such as a run's config has, which describes it.
      params: `params(place)` reads the encoder, under "bert", and the pretraining heads that there
        are.
      tokenizer: `tokenizer()` is the file of its tokenizer.
    """

    config: ConfigDict
    params: Callable[[Place], Any]
    tokenizer: Callable[[], Path]

    @property
    def model(self) -> BertConfig:
        """Its sizes; those of the vocabulary are not known before the tokenizer is."""
        return model_config(self.config)

    @property
    def encoding(self) -> PositionEncoding:
        return self.model.encoding()


def open_start(init: str) -> Start:
    """What lies at `init`; parameters are not read yet.

    Args:
      init: the workdir of a pretraining run, or a published BERT, see `interop.open_checkpoint`.

    Raises:
      ValueError: if there is neither.
    """
    path = to_path(init)
    if _is_run(path):
        return Start(
            config=workdir.load_config(path, "pretraining"),
            params=lambda place: newest_params(path, place)[1],
            tokenizer=lambda: saved_tokenizer(path),
        )
    try:
        model = read_config(path)
    except ValueError as error:
        raise ValueError(f"{path} holds no run and no published BERT. {error}") from error
    return Start(
        config=ConfigDict({"model": _as_config(model)}),
        params=lambda place: _published(path, place),
        tokenizer=lambda: _whole_tokenizer(path, model.vocab_size),
    )


def _is_run(path: Path) -> bool:
    """Whether a config of ours lies there; Hugging Face's has no task."""
    try:
        return "task" in json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def _as_config(model: BertConfig) -> dict[str, Any]:
    """A model as `config.model` has it: a named size, and what differs from it."""
    fields = dataclasses.asdict(model)
    for of_the_data_or_devices in ("vocab_size", "platform"):
        del fields[of_the_data_or_devices]
    return {"size": "base", **fields}


def _published(path: Path, place: Place) -> Any:
    bert = load_bert(path, heads=PRETRAINING)
    if bert.unread:
        say(f"Not read from {path}: {', '.join(bert.unread)}")
    params = jax.device_get(bert.params)
    return jax.device_put(params, place(params))


def tokenizer_beside(path: Path) -> Path:
    """The tokenizer's file of a published checkpoint.

    Raises:
      ValueError: if there is none, or it does not say whether case counts.
    """
    folder = open_checkpoint(path).folder
    if (folder / "tokenizer.json").is_file():
        return folder / "tokenizer.json"
    words = folder / "vocab.txt"
    if not words.is_file():
        raise ValueError(f"{path} has no tokenizer.json or vocab.txt beside it: put one there.")
    text = words.read_text(encoding="utf-8")
    if any(word != word.lower() for word in text.split("\n") if word not in SPECIAL_TOKENS):
        raise ValueError(
            f"{words} has words in upper case, and a vocab.txt alone is taken to be of a model "
            "that knows none. Make a tokenizer.json beside it:\n"
            '  python -c "from tokenizers import BertWordPieceTokenizer as T; '
            f"T('{words}', lowercase=False).save('{folder / 'tokenizer.json'}')\""
        )
    return words


def _whole_tokenizer(path: Path, vocab_size: int) -> Path:
    file = tokenizer_beside(path)
    words = load_tokenizer(file).get_vocab_size()
    if words != vocab_size:
        raise ValueError(
            f"{file} has {words:,} tokens, the model beside it {vocab_size:,} rows of embeddings: "
            "they are not of one model, or the rows were padded."
        )
    return file
