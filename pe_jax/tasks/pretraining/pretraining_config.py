"""What a pretraining config leaves open: sizes and tokenizer of the model that it starts from."""

from __future__ import annotations

from ml_collections import ConfigDict

from pe_jax.console.terminal import say
from pe_jax.data import load_tokenizer
from pe_jax.models import BertConfig
from pe_jax.schema import check
from pe_jax.tasks.model_config import model_config
from pe_jax.tasks.pretraining.pretraining_schema import PRETRAINING, STAGES
from pe_jax.tasks.start import open_start

# A model that starts from another must match it in these; the constants have no config keys.
_SIZES = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
_CONSTANTS = ("num_segments", "layer_norm_epsilon")


def resolve(config: ConfigDict) -> ConfigDict:
    """`config` with what it leaves open of its model filled in from the one that it starts from.

    These are the sizes that `config.model` does not give one by one, and constants that it has no
    keys for. A learned table of positions that is kept keeps its length, if the inputs fit it.

    Raises:
      ValueError: for a key or value that is not right, or if there is nothing to start from at
        `config.init`.
    """
    check(config, PRETRAINING)
    own = model_config(config)
    if not config.init:
        _check_positions(config, own)
        return config
    start = open_start(config.init).model
    open_sizes = [name for name in _SIZES if config.model[name] is None]
    longest = max(stage.length for stage in stage_configs(config))
    learned = [model.encoding().longest is not None for model in (start, own)]
    length = ["max_length"] if all(learned) and longest <= start.max_length else []
    taken = {
        name: getattr(start, name)
        for name in (*open_sizes, *_CONSTANTS, *length)
        if getattr(start, name) != getattr(own, name)
    }
    if taken:
        say(f"From the model at {config.init}: {', '.join(f'{k} {v}' for k, v in taken.items())}")
    resolved = config.copy_and_resolve_references()
    resolved.model = ConfigDict({**resolved.model.to_dict(), **taken})
    _check_positions(resolved, model_config(resolved))
    return resolved


def _check_positions(config: ConfigDict, model: BertConfig) -> None:
    """Raises ValueError where inputs are longer than a learned table of positions."""
    rows = model.encoding().longest
    for name in STAGES:
        stage = config[name]
        if rows is not None and (stage.steps or stage.epochs) and stage.length > rows:
            raise ValueError(
                f"config.{name}.length={stage.length} does not fit the {rows} positions of "
                f"{config.model.position!r}: raise config.model.max_length, or take a sinusoidal "
                "or relative encoding, which have no maximum length."
            )


def stage_configs(config: ConfigDict) -> list[ConfigDict]:
    """The stages that a config gives steps or epochs; at least one."""
    stages = [config[name] for name in STAGES if name in config]  # Older runs have two.
    return [stage for stage in stages if stage.steps or stage.epochs]


def tokenizer_file(config: ConfigDict) -> str:
    """The tokenizer for a run of `config`; empty where the run trains its own.

    Raises:
      ValueError: if the run starts from a model with another vocabulary.
    """
    vocab = config.data.vocab
    if not config.init:
        return vocab
    started = open_start(config.init).tokenizer()
    if vocab and load_tokenizer(vocab).get_vocab() != load_tokenizer(started).get_vocab():
        raise ValueError(
            f"The tokens of config.data.vocab={vocab} are not those of {started}, which the model "
            f"at {config.init} was trained with: leave config.data.vocab empty."
        )
    return str(started)
