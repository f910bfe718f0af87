"""Subjects of a report: a run, an untrained encoding, a published BERT, or a position table."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tokenizers import Tokenizer

from pe_jax.configs.all_tasks import ENCODERS
from pe_jax.configs.pretraining import EncoderTrainingConfig, PretrainingConfig
from pe_jax.configs.properties import PropertiesConfig
from pe_jax.data import load_tokenizer
from pe_jax.encodings import PUBLISHED, Metadata, PositionEncoding, learned_absolute
from pe_jax.models import Bert, BertConfig, preset, with_tokens
from pe_jax.tasks.pretraining import pretraining_task
from pe_jax.tasks.run import run_config, saved_tokenizer
from pe_jax.training.checkpointing import newest_params
from pe_jax.training.pytrees import Params
from pe_jax.training.step import init_state

_FRESH_WORDS = 1_000  # Rows of the token embedding of a model that was never trained.

P = ParamSpec("P")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A position encoding with parameters, and the BERT around it if there is one.

    Attributes:
      name: in tables and figures; empty if it is the only one.
      encoding, position: the encoding over all layers, and its parameters.
      length: the longest input it supports.
      model, heads: sizes of the BERT, and its parameters with the heads that it has; None and empty
        for a position table alone.
      tokenizer: its own; an untrained model has none.
      folder, step: those of a run and its newest checkpoint.
      untrained: whether the parameters are random.
      start: the position parameters that the run drew before its first step; None if it drew none.
      results: of functions decorated with `once`.
    """

    name: str
    encoding: PositionEncoding
    position: Params
    length: int
    model: BertConfig | None = None
    heads: Params = dataclasses.field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    folder: Path | None = None
    step: int | None = None
    untrained: bool = False
    start: Params | None = None
    results: dict[Hashable, Any] = dataclasses.field(default_factory=dict, init=False)

    @property
    def label(self) -> tuple[str, str]:
        """Its name and that of its encoding, as curves have them."""
        return self.name, self.encoding.name

    @property
    def bert(self) -> BertConfig:
        """The model of a subject that has one."""
        assert self.model is not None
        return self.model

    @property
    def params(self) -> Params:
        """The parameters of the BERT without its heads."""
        return self.heads["bert"]

    @functools.cached_property
    def words(self) -> np.ndarray:
        """Ids of whole words of two letters or more to probe with, of all tokens where there is no
        tokenizer; none without a model."""
        if self.tokenizer is not None:
            ids = self.tokenizer.get_vocab()
            return np.array(sorted(ids[word] for word in ids if word.isalpha() and len(word) > 1))
        return np.arange(self.model.vocab_size if self.model else 0)

    def components(self, position: Params | None = None) -> list[Component]:
        """Return the single encodings that have position vectors or frequencies.

        Args:
          position: parameters of the whole encoding at some step; default the subject's.
        """
        bound = self.encoding.bind(self.position if position is None else position)
        described = [
            (place, part, params, part.metadata)
            for place, (part, params) in bound.items()
            if part.metadata and (part.metadata.vectors or part.metadata.frequencies)
        ]
        components = []
        for place, part, params, metadata in described:
            label = f"{self.name}: {place}" if self.name and len(described) > 1 else self.name
            clip = part.offsets.clip if part.offsets else None
            longest = self.length if metadata.kind == "absolute" else clip
            components.append(Component(label or place, part.name, metadata, params, longest))
        return components

    def with_vectors(self, position: Params | None = None) -> list[Component]:
        """Return the single encodings that have position vectors; `position` as above."""
        return [component for component in self.components(position) if component.metadata.vectors]


def once(
    function: Callable[Concatenate[Subject, PropertiesConfig, P], Result],
) -> Callable[Concatenate[Subject, PropertiesConfig, P], Result]:
    """Decorate `function(subject, config, *args)`: a subject keeps its results."""

    @functools.wraps(function)
    def stored(
        subject: Subject, config: PropertiesConfig, *args: P.args, **kwargs: P.kwargs
    ) -> Result:
        key = (function.__name__, config, *args)
        if key not in subject.results:
            subject.results[key] = function(subject, config, *args, **kwargs)
        return subject.results[key]

    return stored


class Component(NamedTuple):
    """A single encoding of a subject.

    Attributes:
      label: the subject's name, with the encoding's if there are several.
      name: the encoding's.
      longest: positions of an absolute encoding; the farthest offset that a relative one
        distinguishes, None for no limit.
    """

    label: str
    name: str
    metadata: Metadata
    params: Params
    longest: int | None

    @property
    def axis(self) -> str:
        """Name of the index of its vectors."""
        return "offset" if self.metadata.kind == "relative" else "position"

    def positions(self, length: int) -> np.ndarray:
        """Return the positions 0 .. length - 1 of an absolute encoding, or the offsets that a
        relative one distinguishes, at most ±(length - 1)."""
        if self.metadata.kind == "absolute":
            return np.arange(length if self.longest is None else min(length, self.longest))
        reach = length - 1 if self.longest is None else self.longest
        return np.arange(-reach, reach + 1)

    def vectors(self, x: np.ndarray) -> jax.Array:
        """Return P(x), `[len(x), D or d]`."""
        assert self.metadata.vectors
        return self.metadata.vectors(self.params, x)

    @property
    def frequencies(self) -> jax.Array | None:
        """ω `[F]` of a sinusoidal or rotary encoding, in radians per position."""
        function = self.metadata.frequencies
        return None if function is None else function(self.params).ravel()


def from_run(folder: Path) -> Subject:
    """The newest checkpoint of a run, named as its folder.

    Raises:
      ValueError: if the folder holds no run, or none with a checkpoint yet.
    """
    config: EncoderTrainingConfig = run_config(folder, ENCODERS)
    step, params = newest_params(folder)
    tokenizer = load_tokenizer(saved_tokenizer(folder))
    return trained(folder.name, folder, config, tokenizer, step, params)


def trained(
    name: str,
    folder: Path,
    config: EncoderTrainingConfig,
    tokenizer: Tokenizer,
    step: int,
    params: Params,
) -> Subject:
    """A run that is already read: `params` are those of the model with its heads."""
    model = dataclasses.replace(config.model, vocab_size=tokenizer.get_vocab_size())
    position, start = params["bert"].get("position", {}), None
    keeps_position = isinstance(config, PretrainingConfig) and config.keep_position
    # A run that starts from another's positions does not draw its own.
    if position and not (config.init and keeps_position):
        task = pretraining_task(model)
        # Only what is returned of the state is compiled.
        draw = lambda rng: init_state(task, optax.identity(), rng).params["bert"]["position"]
        start = jax.jit(draw)(jax.random.key(config.seed))
    return Subject(
        name=name,
        encoding=model.encoding(),
        # Measured on one device, whatever the model's shardings.
        position=jax.device_put(position, jax.local_devices()[0]),
        length=max(stage.length for stage in config.stages.values()),
        model=model,
        heads=params,
        tokenizer=tokenizer,
        folder=folder,
        step=step,
        start=start,
    )


def from_name(name: str, config: PropertiesConfig, seed: int) -> Subject:
    """An encoding in a BERT of random parameters: one layer of `config.size`.

    Raises:
      ValueError: for an encoding or size that is not known.
    """
    model = fresh_model(name, config)
    params = _init(model)(jax.random.key(seed))
    return Subject(
        name=f"{name} (untrained)",
        encoding=model.encoding(),
        position=params.get("position", {}),
        length=config.length,
        model=model,
        heads={"bert": params},
        untrained=True,
    )


def fresh_model(name: str, config: PropertiesConfig) -> BertConfig:
    """Return the BERT of `from_name`; raises as it does."""
    sizes = {"num_layers": 1, "vocab_size": _FRESH_WORDS, "max_length": config.length}
    return dataclasses.replace(preset(config.size, **sizes), position=name)


@functools.cache
def _init(model: BertConfig) -> Callable[[jax.Array], Params]:
    """Return `init(rng)` of a BERT, compiled once for all seeds."""
    return jax.jit(lambda rng: Bert(model).init(rng, jnp.zeros((1, 2), jnp.int32))["params"])


def from_checkpoint(path: Path, family: str, name: str = "") -> Subject:
    """A published BERT, or only the position table of another family (RoBERTa, GPT-2).

    Args:
      family: of the table, if the file does not say; see `pe_jax.interop`.
      name: default the name of the folder or file.

    Raises:
      ValueError: for a file that cannot be read, or lacks what a BERT or a position table needs.
    """
    from pe_jax.interop import ENCODERS, load_bert, load_position_table, open_checkpoint
    from pe_jax.interop.position_tables import MODEL_TYPES
    from pe_jax.tasks.pretrained_source import published_tokenizer

    name = name or (path.stem if path.is_file() else path.name)
    kind = open_checkpoint(path).config.get("model_type")
    is_encoder = kind == "bert" or (kind in ENCODERS and kind not in MODEL_TYPES)
    if family in ("", "bert") and is_encoder:
        model, params, *_ = load_bert(path, heads=("masked_lm",))
        tokenizer = load_tokenizer(published_tokenizer(path))
        return Subject(
            name=name,
            encoding=model.encoding(),
            position=params["bert"].get("position", {}),
            length=model.max_length,
            model=with_tokens(model, tokenizer.get_vocab_size()),
            heads=params,
            tokenizer=tokenizer,
        )
    vectors = load_position_table(path, family).vectors
    length, hidden_size = vectors.shape
    return Subject(
        name=name,
        encoding=learned_absolute(max_length=length, hidden_size=hidden_size),
        position={PUBLISHED[0]: {PUBLISHED[1]: vectors}},
        length=length,
    )
