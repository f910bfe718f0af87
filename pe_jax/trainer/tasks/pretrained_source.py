"""The trained model that `config.init` names: a run of this project, or a published BERT."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TypeVar

import jax

from pe_jax.common.files import parse_json, reachable_path
from pe_jax.models import with_tokens
from pe_jax.models.config import BertConfig
from pe_jax.trainer.configs.all_tasks import ENCODERS, TRAINING
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.configs.pretraining import EncoderTrainingConfig
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.data import load_tokenizer
from pe_jax.trainer.tasks.run import model_size, saved_tokenizer
from pe_jax.trainer.training.checkpointing import newest_params, saved_steps
from pe_jax.trainer.training.pytrees import Params, ShardingsOf
from pe_jax.trainer.training.workdir import load_config

C = TypeVar("C", bound=EncoderTrainingConfig)


class PretrainedSource:
    """A trained model to start from; its parameters are not read yet.

    Args:
      init: the workdir of a run of pretraining or distillation, or a published BERT, see
        `open_checkpoint`.

    Attributes:
      model: its config, whose `position` is a name.

    Raises:
      ValueError: if there is neither.
    """

    def __init__(self, init: str):
        if not init:
            raise ValueError(
                "config.init must not be empty, got ''. Fine-tuning starts from a pretrained "
                "model: set --config.init to the workdir of a run, or to the folder of a "
                "published BERT."
            )
        self._path = reachable_path(init)
        self._is_run = _is_run(self._path)
        if self._is_run:
            self.model = load_config(self._path, ENCODERS).model
            return
        from pe_jax.interop.bert_import import read_config

        try:
            bert = read_config(self._path)
        except ValueError as error:
            what = f"config.init={init!r} is neither a run nor a published BERT."
            raise ValueError(f"{what} {error}") from error
        try:
            tokens = load_tokenizer(self.tokenizer()).get_vocab_size()
        except ValueError:  # `tokenizer_file` raises it again where a run needs one.
            tokens = bert.vocab_size
        try:
            bert = with_tokens(bert, tokens)
        except ValueError as error:
            raise ValueError(f"config.init={init!r}: {error}") from error
        self.model = dataclasses.replace(bert, position=bert.encoding().name)

    def params(
        self, shardings_of: ShardingsOf, max_length: int | None = None, resize: str = ""
    ) -> Params:
        """Read the encoder, under "bert", and the pretraining heads that exist.

        Args:
          max_length: of the model that takes them, to which tables of positions are resized.
          resize: the method for tables that limit positions; empty leaves them as they are.

        Raises:
          ValueError: for a run without a checkpoint, or weights that cannot be read or resized.
        """
        if self._is_run:
            params = newest_params(self._path, shardings_of)[1]
        else:
            from pe_jax.interop import load_encoder
            from pe_jax.interop.bert_import import PRETRAINING_HEADS

            encoder = load_encoder(self._path, heads=PRETRAINING_HEADS)
            if encoder.unread:
                log(f"Not read from {self._path}: {', '.join(encoder.unread)}")
            params = jax.device_get(encoder.params)
        bert = params["bert"]
        if max_length is None:
            max_length = self.model.max_length
        if max_length != self.model.max_length and "position" in bert:
            encoding = self.model.encoding()
            position = encoding.resize(bert["position"], max_length, resize)
            params = {**params, "bert": {**bert, "position": position}}
        return jax.device_put(params, shardings_of(params))

    def tokenizer(self) -> Path:
        """Return the file of its tokenizer; raises as `published_tokenizer`."""
        if self._is_run:
            return saved_tokenizer(self._path)
        return published_tokenizer(self._path)


def start_model(
    config: EncoderTrainingConfig | FinetuningConfig, folder: Path | None
) -> BertConfig:
    """Return the config of the model at `config.init`.

    A run with a checkpoint in `folder` resumes without that model: where it is gone, the run's own
    config describes it.

    Raises:
      ValueError: if there is no such model, and no such run.
    """
    try:
        return PretrainedSource(config.init).model
    except ValueError:
        if folder is None or not (folder / "config.json").exists():
            raise
        if not saved_steps(folder):
            raise
        log(
            f"config.init={config.init} cannot be read: the run in {folder} resumes without it."
        )
        return load_config(folder, TRAINING).model


def model_of(
    config: EncoderTrainingConfig, longest: int, folder: Path | None = None
) -> BertConfig:
    """Return the model at `config.init`, see `start_model`, with the values that `config.model`
    gives.

    A learned table of positions that is kept keeps its length, if inputs of length `longest` fit.

    Raises:
      ValueError: if the values do not fit each other, or as `start_model`.
    """
    start = start_model(config, folder)
    model = config.model.resolve(start)
    has_table = start.encoding().max_length and model.encoding().max_length
    if has_table and longest <= start.max_length:
        model = dataclasses.replace(model, max_length=start.max_length)
    log(
        f"From the model at {config.init}: {model_size(model)}, {model.encoding().name}"
    )
    return model


def tokenizer_file(config: EncoderTrainingConfig) -> str:
    """Return the tokenizer for a run of `config`, empty where the run trains its own.

    Raises:
      ValueError: if the run starts from a model with another vocabulary, or without a tokenizer.
    """
    vocab = config.data.vocab
    if not config.init:
        return vocab
    start = PretrainedSource(config.init).tokenizer()
    if vocab:
        tokens = load_tokenizer(vocab).get_vocab()
        if tokens != load_tokenizer(start).get_vocab():
            raise ValueError(
                f"config.data.vocab={vocab} has other tokens than {start}, which the model at "
                f"{config.init} was trained with. Leave config.data.vocab empty."
            )
    return str(start)


def _is_run(path: Path) -> bool:
    """Return whether the folder has a config of this project; Hugging Face's has no task."""
    try:
        return "task" in parse_json((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def published_tokenizer(path: Path) -> Path:
    """Return the tokenizer file of a published checkpoint.

    Raises:
      ValueError: if there is none.
    """
    from pe_jax.interop.checkpoint_files import open_checkpoint

    folder = open_checkpoint(path).folder
    for name in ("tokenizer.json", "vocab.txt"):
        if (folder / name).is_file():
            return folder / name
    raise ValueError(
        f"{path} has no tokenizer.json or vocab.txt next to it. Put one there."
    )
