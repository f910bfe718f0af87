"""The trained model that `config.init` names: a run of this project, or a published BERT."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax

from pe_jax.configs.model import ModelConfig
from pe_jax.configs.pretraining import PretrainingConfig
from pe_jax.console.terminal import say
from pe_jax.data import load_tokenizer
from pe_jax.data.tokenizer import SPECIAL_TOKENS
from pe_jax.files import reachable_path
from pe_jax.tasks.train import saved_tokenizer
from pe_jax.training import workdir
from pe_jax.training.checkpointing import newest_params
from pe_jax.training.pytrees import Params, ShardingsOf


class Start:
    """A trained model to start from; its parameters are not read yet.

    Args:
      init: the workdir of a pretraining run, or a published BERT, see `interop.open_checkpoint`.

    Attributes:
      model: the keys of a run's config that describe it.

    Raises:
      ValueError: if there is neither.
    """

    def __init__(self, init: str):
        if not init:
            raise ValueError(
                "config.init is a text that is not empty, got ''. Fine-tuning starts from a "
                "pretrained run: give its workdir, --config.init=RUN, or the folder of a published "
                "BERT."
            )
        self._path = reachable_path(init)
        self._is_run = _is_run(self._path)
        if self._is_run:
            self.model = workdir.load_config(self._path, PretrainingConfig).model
            return
        from pe_jax.interop import read_config

        try:
            bert = read_config(self._path)
        except ValueError as error:
            what = f"config.init={init!r} is neither a run nor a published BERT."
            raise ValueError(f"{what} {error}") from error
        self._rows = bert.vocab_size
        names = {field.name for field in dataclasses.fields(ModelConfig)} - {"size", "position"}
        fields = {name: getattr(bert, name) for name in names}
        self.model = ModelConfig(position=bert.encoding().name, **fields)

    def params(self, shardings_of: ShardingsOf) -> Params:
        """Read the encoder, under "bert", and the pretraining heads that exist."""
        if self._is_run:
            return newest_params(self._path, shardings_of)[1]
        from pe_jax.interop import PRETRAINING, load_bert

        bert = load_bert(self._path, heads=PRETRAINING)
        if bert.unread:
            say(f"Not read from {self._path}: {', '.join(bert.unread)}")
        params = jax.device_get(bert.params)
        return jax.device_put(params, shardings_of(params))

    def tokenizer(self) -> Path:
        """Return the file of its tokenizer.

        Raises:
          ValueError: if there is none, or it is that of another model.
        """
        if self._is_run:
            return saved_tokenizer(self._path)
        file = published_tokenizer(self._path)
        tokens = load_tokenizer(file).get_vocab_size()
        if tokens != self._rows:
            raise ValueError(
                f"{file} has {tokens:,} tokens, the model next to it {self._rows:,} rows of "
                "embeddings: they do not belong to the same model, or the rows were padded."
            )
        return file


def _is_run(path: Path) -> bool:
    """Return whether the folder has a config of this project; Hugging Face's has no task."""
    try:
        return "task" in json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def published_tokenizer(path: Path) -> Path:
    """The tokenizer file of a published checkpoint.

    Raises:
      ValueError: if there is none, or it does not tell whether the model is cased.
    """
    from pe_jax.interop import open_checkpoint

    folder = open_checkpoint(path).folder
    if (folder / "tokenizer.json").is_file():
        return folder / "tokenizer.json"
    vocab = folder / "vocab.txt"
    if not vocab.is_file():
        raise ValueError(f"{path} has no tokenizer.json or vocab.txt next to it: put one there.")
    tokens = vocab.read_text(encoding="utf-8").split("\n")
    if any(token != token.lower() for token in tokens if token not in SPECIAL_TOKENS):
        raise ValueError(
            f"{vocab} has tokens in upper case, but a vocab.txt alone is read as that of an "
            "uncased model. Make a tokenizer.json next to it:\n"
            '  python -c "from tokenizers import BertWordPieceTokenizer as T; '
            f"T('{vocab}', lowercase=False).save('{folder / 'tokenizer.json'}')\""
        )
    return vocab
