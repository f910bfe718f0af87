"""Subjects of a report: a run, an untrained encoding, a published BERT, or a position table."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tokenizers import Tokenizer

from pe_jax.encodings import Metadata, PositionEncoding, learned_absolute
from pe_jax.encodings.absolute.position_vectors import LEARNED_TABLE_PATH
from pe_jax.encodings.parameters import bind_params
from pe_jax.models import Bert, BertConfig, preset, with_tokens
from pe_jax.trainer.configs.all_tasks import ENCODERS
from pe_jax.trainer.configs.pretraining import EncoderTrainingConfig, PretrainingConfig
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.data import load_tokenizer
from pe_jax.trainer.tasks.pretraining import pretraining_task
from pe_jax.trainer.tasks.run import saved_tokenizer
from pe_jax.trainer.training.checkpointing import newest_params
from pe_jax.trainer.training.pytrees import Params
from pe_jax.trainer.training.step import init_state
from pe_jax.trainer.training.workdir import ResolvedConfig, load_config

_FRESH_WORDS = 1_000  # Rows of the token embedding of a model that was never trained.

F = TypeVar("F", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredModel:
    """A position encoding with parameters, and the BERT around it if there is one.

    Attributes:
      name: in tables and figures; empty if it is the only one.
      encoding: over all layers.
      position: its parameters.
      length: the longest input it supports.
      model: None for a position table alone.
      heads: parameters of the BERT with its heads.
      tokenizer: its own; an untrained model has none.
      folder, step: of a run, and of its newest checkpoint.
      untrained: its parameters are random.
      start: the position parameters that the run drew, if it drew any.
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
        if self.tokenizer is None:
            return np.arange(self.model.vocab_size if self.model else 0)
        vocabulary = self.tokenizer.get_vocab()
        words = [word for word in vocabulary if word.isalpha() and len(word) > 1]
        return np.array(sorted(vocabulary[word] for word in words))

    def components(self, position: Params | None = None) -> list[Component]:
        """Return the single encodings that have position vectors or frequencies, with their
        parameters in `position`, of the whole encoding at some step; default the subject's."""
        if position is None:
            position = self.position
        components = []
        bound = bind_params(self.encoding, position)
        for place, (part, params) in bound.items():
            metadata = part.metadata
            if metadata and (metadata.vectors or metadata.frequencies):
                clip = part.offsets.max_distance if part.offsets else None
                longest = self.length if metadata.kind == "absolute" else clip
                components.append(
                    Component(place, part.name, metadata, params, longest)
                )
        if not self.name:
            return components
        if len(components) == 1:
            return [components[0]._replace(label=self.name)]
        return [x._replace(label=f"{self.name}: {x.label}") for x in components]

    def with_vectors(self, position: Params | None = None) -> list[Component]:
        """Return the single encodings that have position vectors; `position` as above."""
        return [x for x in self.components(position) if x.metadata.vectors]


def once(function: F) -> F:
    """Decorate `function(subject, *args)`: the `results` of a subject keep what it returned."""

    @functools.wraps(function)
    def stored(subject: MeasuredModel, *args: Hashable) -> Any:
        key = (function.__name__, *args)
        if key not in subject.results:
            subject.results[key] = function(subject, *args)
        return subject.results[key]

    return cast(F, stored)


class Component(NamedTuple):
    """A single encoding of a subject.

    Attributes:
      label: the subject's name, with the encoding's if there are several.
      name: the encoding's.
      longest: positions of an absolute encoding; the farthest offset that a relative one
        distinguishes.
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
            count = length if self.longest is None else min(length, self.longest)
            return np.arange(count)
        farthest = length - 1 if self.longest is None else self.longest
        return np.arange(-farthest, farthest + 1)

    def vectors(self, x: np.ndarray) -> jax.Array:
        """Return P(x), `[len(x), D or d]`."""
        assert self.metadata.vectors
        return self.metadata.vectors(self.params, x)

    @property
    def frequencies(self) -> jax.Array | None:
        """ω `[F]` of a sinusoidal or rotary encoding, in radians per position."""
        function = self.metadata.frequencies
        return None if function is None else function(self.params).ravel()


def from_run(folder: Path) -> MeasuredModel:
    """Read the newest checkpoint of a run, named as its folder.

    Raises:
      ValueError: if the folder holds no run, or none with a checkpoint yet.
    """
    resolved: ResolvedConfig[EncoderTrainingConfig] = load_config(folder, ENCODERS)
    step, params = newest_params(folder)
    tokenizer = load_tokenizer(saved_tokenizer(folder))
    return trained(folder.name, folder, resolved, tokenizer, step, params)


def trained(
    name: str,
    folder: Path,
    resolved: ResolvedConfig[EncoderTrainingConfig],
    tokenizer: Tokenizer,
    step: int,
    params: Params,
) -> MeasuredModel:
    """Return a run that is already read: `params` are those of the model with its heads."""
    config = resolved.config
    model = dataclasses.replace(resolved.model, vocab_size=tokenizer.get_vocab_size())
    position = params["bert"].get("position", {})
    start = None
    keeps_position = isinstance(config, PretrainingConfig) and config.keep_position
    # A run that starts from another's positions does not draw its own.
    if position and not (config.init and keeps_position):
        task = pretraining_task(model)

        @jax.jit  # Only what is returned of the state is compiled.
        def draw(rng: jax.Array) -> Params:
            return init_state(task, optax.identity(), rng).params["bert"]["position"]

        start = draw(jax.random.key(config.seed))
    return MeasuredModel(
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


def from_name(name: str, config: PropertiesConfig, seed: int) -> MeasuredModel:
    """Return an encoding in a BERT of random parameters, of one layer; see `fresh_model`.

    Raises:
      ValueError: for an encoding or a size that is not known.
    """
    model = fresh_model(name, config)
    params = _init(model)(jax.random.key(seed))
    return MeasuredModel(
        name=f"{name} (untrained)",
        encoding=model.encoding(),
        position=params.get("position", {}),
        length=config.length,
        model=model,
        heads={"bert": params},
        untrained=True,
    )


def fresh_model(name: str, config: PropertiesConfig) -> BertConfig:
    """Return the BERT of `from_name`.

    Raises:
      ValueError: for an encoding or a size that is not known.
    """
    sizes = {"num_layers": 1, "vocab_size": _FRESH_WORDS, "max_length": config.length}
    return dataclasses.replace(preset(config.size, **sizes), position=name)


@functools.cache
def _init(model: BertConfig) -> Callable[[jax.Array], Params]:
    """Return `init(rng)` of a BERT, compiled once for all seeds."""
    tokens = jnp.zeros((1, 2), jnp.int32)
    return jax.jit(lambda rng: Bert(model).init(rng, tokens)["params"])


def from_checkpoint(path: Path, family: str, name: str = "") -> MeasuredModel:
    """Read a published BERT, or only the position table of a model of another family.

    Args:
      path: a folder or a file.
      family: of the table, such as RoBERTa or GPT-2, if the file does not say.
      name: by default that of the folder or file.

    Raises:
      ValueError: for a file that cannot be read, or lacks what a BERT or a position table needs.
    """
    from pe_jax.interop import load_encoder, load_position_table
    from pe_jax.interop.checkpoint_files import open_checkpoint
    from pe_jax.interop.hf_registry import ENCODERS
    from pe_jax.interop.position_tables import MODEL_TYPES
    from pe_jax.trainer.tasks.pretrained_source import published_tokenizer

    name = name or (path.stem if path.is_file() else path.name)
    kind = open_checkpoint(path).config.get("model_type")
    is_encoder = kind == "bert" or (kind in ENCODERS and kind not in MODEL_TYPES)
    if family in ("", "bert") and is_encoder:
        encoder = load_encoder(path, heads=("masked_lm",))
        model, params = encoder.config, encoder.params
        tokenizer = load_tokenizer(published_tokenizer(path))
        return MeasuredModel(
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
    module, table = LEARNED_TABLE_PATH
    return MeasuredModel(
        name=name,
        encoding=learned_absolute(max_length=length, hidden_size=hidden_size),
        position={module: {table: vectors}},
        length=length,
    )
