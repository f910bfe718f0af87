"""A published encoder, with what it was published for: vectors of texts and scores of pairs."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import warnings
from collections.abc import Sequence
from typing import Any

import flax.traverse_util
import jax
import numpy as np
from tokenizers import Tokenizer

from pe_jax.common.errors import check_at_least, did_you_mean
from pe_jax.common.records import Record
from pe_jax.common.shapes import Float
from pe_jax.common.values import shown
from pe_jax.encodings import Params, PositionEncoding, parameter_count
from pe_jax.interop import sentence_vectors
from pe_jax.interop.sentence_files import (
    EncoderFolder,
    SentenceSettings,
    check_pooling,
    transformer_folder,
)
from pe_jax.interop.sentence_vectors import ACTIVATIONS, Text
from pe_jax.interop.special_tokens import special_tokens
from pe_jax.interop.tokenizer_config import read_object
from pe_jax.models import BertConfig

_POSITION = "position"  # The key of the parameters of positions, in those of `Bert`.


class PublishedEncoder(
    Record,
    pytree=True,
    static=("config", "absent", "unread", "labels", "folder", "untrained"),
):
    """An encoder from a checkpoint.

    It is a pytree of its params: `jax.device_put(encoder, device)` moves it to a device, where
    `encode` and `predict` then run.

    Attributes:
      config: its sizes and constants.
      params: float32; the encoder under "bert", and the heads that the checkpoint has under their
        names in `pe_jax.models`: "pooler", "masked_lm", "next_sentence", "classifier", "spans",
        "tokens".
      absent: the heads of `BertForPretraining` that the checkpoint lacks.
      unread: the names of tensors that belong to none of these, such as those of a head for
        multiple choice.
      labels: the names of the classes of "classifier" or "tokens", as `id2label` has them; empty
        where there is neither.
      folder: the folder of its files, where `encode` reads the tokenizer and the pooling; None for
        an encoder that has none.
      untrained: the paths of position parameters that are new, see `with_position`.
    """

    config: BertConfig
    params: Params
    absent: tuple[str, ...]
    unread: tuple[str, ...]
    labels: tuple[str, ...] = ()
    folder: EncoderFolder | None = None
    untrained: tuple[str, ...] = ()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which puts special tokens around a text and cuts none.

        Raises:
          ValueError: if the encoder was not loaded from a folder, or the folder has no tokenizer.
        """
        return self._folder().tokenizer()

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        pooling: str | None = None,
        normalize: bool = False,
        batch_size: int = 32,
        max_length: int | None = None,
        dtype: str | None = None,
        progress: bool | None = None,
    ) -> Float[np.ndarray, "*N E"]:
        """Return the vectors of texts, pooled as published.

        Prompts, pooling, the layers after it and the longest input are those of the files that
        sentence-transformers writes: `modules.json`, the folders of the modules, and
        `config_sentence_transformers.json`. Longer texts are cut. As there, a text may contain
        special tokens by their names.

        Each shape is compiled once in a process, about 20 of them for texts of all lengths up to
        512 tokens. With JAX_COMPILATION_CACHE_DIR, the next process reads them from a folder.

        Args:
          texts: a text, or a sequence of texts.
          prompt_name: a prompt of the files, which is put before each text; by default the one
            that they name, if any.
          prompt: the prompt itself; "" for none.
          pooling: "mean", "cls", "max" or another of sentence-transformers, for a folder without
            `modules.json`; elsewhere it replaces the published pooling.
          normalize: whether to scale the vectors to a length of 1, where the model does not.
          batch_size: rows of a batch; those of more than 64 tokens make batches of fewer.
          max_length: the longest input in tokens, instead of the published one.
          dtype: of the computation, "float32" or "bfloat16"; by default that of the config.
          progress: whether to show a progress bar; by default for many texts, on a terminal.

        Returns:
          float32 [N, E], or [E] for a single text.

        Raises:
          TypeError: for texts that are not strings.
          ValueError: for files that describe modules that are not supported, a prompt that they do
            not have, or options that are not accepted.
        """
        folder = self._folder()
        settings = folder.settings
        listed = [texts] if isinstance(texts, str) else list(texts)
        for number, text in enumerate(listed):
            if not isinstance(text, str):
                raise TypeError(
                    f"texts[{number}] must be a str, got {type(text).__name__}. For the scores of "
                    "pairs, use predict."
                )
        if pooling is not None:
            check_pooling(pooling)
        modes = settings.pooling if pooling is None else (pooling,)
        if not modes:
            raise ValueError(
                f"{folder.path} has no modules.json, so nothing says how its hidden states become "
                'one vector. Pass pooling="mean" (the default of sentence-transformers), "cls" or '
                "another one."
            )
        prompt = _prompt(settings, prompt_name, prompt)
        longest = self._longest(settings, max_length)
        tokenizer = folder.tokenizer(longest)
        skipped = 0
        if prompt and not settings.include_prompt:
            skipped = sentence_vectors.prompt_length(tokenizer, prompt)
        pipeline = sentence_vectors.Pipeline(
            modes, skipped, settings.steps, settings.dimensions, normalize
        )
        config = self._inference_config(dtype)
        params = self.params["bert"]
        if not listed:
            size = sentence_vectors.output_size(
                params, settings.weights, config, pipeline
            )
            return np.empty((0, size), np.float32)
        function = functools.partial(
            sentence_vectors.vectors,
            params,
            settings.weights,
            config=config,
            pipeline=pipeline,
        )
        prompted = [f"{prompt}{text}" for text in listed] if prompt else listed
        result = self._run(function, tokenizer, prompted, longest, batch_size, progress)
        return result[0] if isinstance(texts, str) else result

    def predict(
        self,
        inputs: Text | Sequence[Text],
        *,
        activation: str | None = None,
        batch_size: int = 32,
        max_length: int | None = None,
        dtype: str | None = None,
        progress: bool | None = None,
    ) -> Float[np.ndarray, "*N"]:
        """Return the scores of pairs of texts, or of texts, by the head "classifier".

        Scores are those of CrossEncoder in sentence-transformers: with one label the sigmoid of
        the logit, with several the logits, unless the files name an activation.

        Args:
          inputs: a pair, which is a tuple of two texts, or one text; or a sequence of them.
          activation: of the logits, instead of the published one: "identity", "sigmoid", "tanh",
            "relu", "gelu" or "silu".
          batch_size, max_length, dtype, progress: as of `encode`.

        Returns:
          float32 [N], or [N, C] with C labels; without the first axis for a single input.

        Raises:
          TypeError: for inputs that are neither texts nor pairs of texts.
          ValueError: if the checkpoint has no such head; the message names the one that it has.
        """
        folder = self._folder()
        if "classifier" not in self.params:
            raise ValueError(self._no_classifier())
        is_pair = isinstance(inputs, tuple) and len(inputs) == 2
        is_single = isinstance(inputs, str) or (
            is_pair and all(isinstance(text, str) for text in inputs)
        )
        listed: Sequence[Any] = [inputs] if is_single else inputs
        texts = [_pair(number, item) for number, item in enumerate(listed)]
        settings = folder.settings
        labels = len(self.params["classifier"]["bias"])
        if activation is None:
            default = "sigmoid" if labels == 1 else "identity"
            activation = settings.score_activation or default
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, got {shown(activation)}."
            )
        if not texts:
            return np.empty((0,) if labels == 1 else (0, labels), np.float32)
        longest = self._longest(settings, max_length)
        function = functools.partial(
            sentence_vectors.scores,
            self.params,
            config=self._inference_config(dtype),
            activation=activation,
        )
        tokenizer = folder.tokenizer(longest)
        result = self._run(function, tokenizer, texts, longest, batch_size, progress)
        result = result[:, 0] if labels == 1 else result
        return result[0] if is_single else result

    def with_position(
        self,
        position: str | PositionEncoding,
        *,
        seed: int = 0,
        keep_windows: bool = True,
    ) -> PublishedEncoder:
        """Return the encoder with another position encoding, and its other weights unchanged.

        Position parameters of the same path and shape are kept, as in training with
        `--config.init`. All others are newly initialized, and `untrained` names them. Until it is
        trained, the encoder computes other vectors than the published one: `training_commands`
        returns two ways on.

        Layers that attend within a window, as most of ModernBERT do, keep it: their weights were
        trained with it. The windows become a part of the name of the new encoding.

        Args:
          position: the name of an encoding, with its options, such as "rope(fraction=0.5)".
          seed: of the new parameters.
          keep_windows: whether layers keep their windows. An encoding that has windows of its own
            replaces them in any case.

        Raises:
          ValueError: for a name or an option that is not known; or for an encoding that differs
            between layers without windows, where some of this model's layers have them.
        """
        config = dataclasses.replace(self.config, position=position)
        if keep_windows:
            config = _with_windows(config, _windows(self.config.encoding()))
        encoding = config.encoding()
        fresh: Params = {}
        if parameter_count(encoding, config.num_layers):
            fresh = encoding.init(jax.random.key(seed), config.num_layers)
        bert = {**self.params["bert"]}
        new = flax.traverse_util.flatten_dict(fresh, sep="/")
        old = flax.traverse_util.flatten_dict(bert.pop(_POSITION, {}), sep="/")
        kept = {
            path: old[path]
            for path, leaf in new.items()
            if path in old and old[path].shape == leaf.shape
        }
        if new:
            merged = {**new, **kept}
            bert[_POSITION] = flax.traverse_util.unflatten_dict(merged, sep="/")
        untrained = [f"bert/{_POSITION}/{path}" for path in new if path not in kept]
        if encoding.name != self.config.encoding().name:
            # The other weights were trained with other positions, whatever has parameters.
            untrained = untrained or [encoding.name]
        return self.replace(
            config=config,
            params={**self.params, "bert": bert},
            untrained=tuple(untrained),
        )

    def training_commands(self, *, text: str = "pydoc", workdir: str = "W") -> str:
        """Return two shell commands that train the positions of this encoder, from its folder.

        Run them in a checkout of pe_jax. The first distills the positions from the published
        encoder, on text alone. The second trains all weights as a masked language model.

        Args:
          text: what to train on, as `config.data.source` takes it: a pattern of files in the
            model's language. The default is a small English text that comes with Python.
          workdir: where the runs are written; each gets a folder there.

        Raises:
          ValueError: if the encoder was not loaded from a folder.
        """
        folder = self._folder().path
        position = self.config.position
        name = position if isinstance(position, str) else position.name
        settings = [
            f"--config.init={folder}",
            f"--config.model.position={name}",
            f"--config.data.source={text}",
        ]
        train = ["python", "train.py"]
        distill = [*train, "--config=configs/distill_positions.py", *settings]
        # Of a small text the config's 0.1 % is nothing.
        held_out = "--config.data.held_out=0.05"
        pretrain = [*train, "--config=configs/pretrain_base.py", *settings, held_out]
        return (
            f"{shlex.join([*distill, f'--workdir={workdir}/distilled'])}\n"
            f"{shlex.join([*pretrain, f'--workdir={workdir}/pretrained'])}"
        )

    def _folder(self) -> EncoderFolder:
        if self.folder is None:
            raise ValueError(
                "This encoder was not loaded from a folder, so its tokenizer and pooling are not "
                "known. Take folder= from one that was: encoder.replace(folder=other.folder)."
            )
        return self.folder

    def _no_classifier(self) -> str:
        """Return an error that names the head that the checkpoint has instead of a classifier."""
        folder = self._folder().path
        config = read_object(transformer_folder(folder) / "config.json")
        architectures = config.get("architectures") or [
            "a class that config.json does not name"
        ]
        heads = [name for name in self.params if name != "bert"]
        parts = [
            f"{folder} has no head that scores whole inputs: it was saved as "
            f"{', '.join(map(str, architectures))}, and its heads are {', '.join(heads) or 'none'}."
        ]
        if self.unread:
            parts.append(
                f"Tensors of other heads were not read: {', '.join(self.unread[:4])}."
            )
        parts.append(
            "predict needs a class that ends with ForSequenceClassification, and its head. For "
            "vectors of texts, use encode."
        )
        return " ".join(parts)

    def _longest(
        self, settings: SentenceSettings, max_length: int | None
    ) -> int | None:
        """Return the longest input in tokens; None if nothing limits it."""
        check_at_least(3, max_length=max_length)
        lengths = [max_length or settings.max_length, self.config.encoding().max_length]
        return min((length for length in lengths if length), default=None)

    def _inference_config(self, dtype: str | None) -> BertConfig:
        config = dataclasses.replace(
            self.config, dropout_rate=0.0, attention_dropout_rate=0.0
        )
        return config if dtype is None else dataclasses.replace(config, dtype=dtype)

    def _run(
        self,
        function: Any,
        tokenizer: Tokenizer,
        texts: Sequence[Text],
        longest: int | None,
        batch_size: int,
        progress: bool | None,
    ) -> np.ndarray:
        check_at_least(1, batch_size=batch_size)
        if self.untrained:
            warnings.warn(
                f"The positions of this encoder ({self.config.encoding().name}) are untrained, so "
                "its outputs are not those of the published model. Train them first, with one of\n"
                f"{self.training_commands()}",
                stacklevel=3,
            )
        has_types = self._folder().settings.has_token_types
        tokenized = sentence_vectors.tokenize(tokenizer, texts, has_types=has_types)
        pad = special_tokens(tokenizer)["pad"]
        all_batches = sentence_vectors.batches(
            tokenized,
            batch_size,
            pad=tokenizer.token_to_id(pad) or 0,  # 0 where it has no padding.
            longest=longest,
        )
        return sentence_vectors.run(
            function,
            all_batches,
            texts=len(texts),
            progress=progress,
        )


def _windows(encoding: PositionEncoding) -> PositionEncoding:
    """Return the windows of an encoding alone."""

    def alone(encoding: PositionEncoding) -> PositionEncoding:
        parts = tuple(part for part in encoding.parts if part.key == "window")
        return PositionEncoding(parts=parts)

    layers = tuple(alone(layer) for layer in encoding.layers)
    if not any(layer.parts for layer in layers):
        layers = ()
    return dataclasses.replace(alone(encoding), layers=layers)


def _with_windows(config: BertConfig, windows: PositionEncoding) -> BertConfig:
    """Return a config whose position encoding has `windows`, unless it has some already.

    Raises:
      ValueError: for layers with encodings of their own, and without windows.
    """
    encoding = config.encoding()
    own = _windows(encoding)
    has_windows = bool(windows.parts or windows.layers)
    if not has_windows or own.parts or own.layers:
        return config
    if encoding.layers and windows.layers:
        raise ValueError(
            f"position {encoding.name!r} differs between layers, and has none of the windows of "
            f"the published model ({windows.name}). Join them to its layers, as in "
            "'cycle(rope, rope+window(max_distance=64))', or pass keep_windows=False."
        )
    joined = encoding + windows
    is_name = isinstance(config.position, str)
    return dataclasses.replace(config, position=joined.name if is_name else joined)


def _prompt(
    settings: SentenceSettings, prompt_name: str | None, prompt: str | None
) -> str:
    """Return the prompt of a call, "" for none."""
    if prompt is not None:
        if prompt_name is not None:
            raise ValueError("Pass either prompt or prompt_name, not both.")
        return prompt
    if prompt_name is None:
        prompt_name = settings.default_prompt_name
    if prompt_name is None:
        return ""
    if prompt_name not in settings.prompts:
        known = ", ".join(settings.prompts) or "there are none"
        hint = did_you_mean(prompt_name, settings.prompts)
        raise ValueError(
            f"prompt_name must be one of the model's prompts ({known}), got {prompt_name!r}.{hint} "
            "To use a prompt of your own, pass prompt."
        )
    return settings.prompts[prompt_name]


def _pair(number: int, item: object) -> Text:
    """Return an input of `predict` as a text, or a tuple of two."""
    if isinstance(item, str):
        return item
    if isinstance(item, tuple | list) and len(item) == 2:
        first, second = item
        if isinstance(first, str) and isinstance(second, str):
            return first, second
    raise TypeError(
        f"inputs[{number}] must be a text or a pair of texts, got {shown(item)}."
    )
