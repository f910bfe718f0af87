"""Types of layers, and which type each layer of a family has where its configs do not list them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
NO_ATTENTION = "linear_attention"
LAYER_TYPES = {
    FULL: FULL,
    SLIDING: SLIDING,
    CHUNKED: CHUNKED,
    NO_ATTENTION: NO_ATTENTION,
    # Of all keys, some are chosen by their content.
    "indexed_attention": FULL,
    "deepseek_sparse_attention": FULL,
    "qwen_sparse_attention": FULL,
    "minimax_m3_sparse": FULL,
    # Attention and a convolution or a recurrence.
    "hybrid": FULL,
    "hybrid_sliding": SLIDING,
    "attention": FULL,
    "conv": NO_ATTENTION,
    "mamba": NO_ATTENTION,
    "mlp": NO_ATTENTION,
    "moe": NO_ATTENTION,
    "recurrent": NO_ATTENTION,
}
# `(config, layer) ->` full attention or not, or the layer's type.
IsFull = Callable[[Config, int], bool | str]


def required(config: Config, key: str) -> Any:
    """Return the value of a key.

    Raises:
      ValueError: if the key is missing or None.
    """
    if config.get(key) is None:
        raise ValueError(
            f"{key} is missing from the config; its position encoding needs it."
        )
    return config[key]


def has_window(config: Config) -> bool:
    if config.get("local_attention"):
        return True
    # Qwen, which has `max_window_layers`, uses its window only where it says so.
    used = config.get("use_sliding_window", "max_window_layers" not in config)
    return bool(config.get("sliding_window")) and bool(used)


def has_rope(config: Config, layer: int) -> bool:
    """Return whether the config lets a layer rotate; the layer's type may forbid it."""
    if config.get("use_mem_rope") is False:
        return False
    if config.get("layer_rope_theta"):
        return bool(config["layer_rope_theta"][layer])
    if config.get("no_rope_layers"):
        return bool(config["no_rope_layers"][layer])
    interval = config.get("no_rope_layer_interval")
    return not interval or (layer + 1) % interval != 0


_NAMED: dict[str, IsFull] = {}  # The rules that `hf_families.json` has by name.


def _rule(name: str) -> Callable[[IsFull], IsFull]:
    """Register a rule under the name that `hf_families.json` has for it."""

    def register(rule: IsFull) -> IsFull:
        _NAMED[name] = rule
        return rule

    return register


@_rule("before max_window_layers")
def before_window(config: Config, layer: int) -> bool:
    """Qwen 2: the first `max_window_layers` layers, or all."""
    return not has_window(config) or layer < required(config, "max_window_layers")


@_rule("by sliding_window_pattern")
def by_pattern(config: Config, layer: int) -> bool:
    """A period, or letters `L` and `G` (EXAONE 4), with which the last layer has full attention."""
    pattern = config["sliding_window_pattern"]
    if not has_window(config) or not pattern:
        return True
    if isinstance(pattern, str):
        is_last = layer == config["num_hidden_layers"] - 1
        return is_last or pattern[layer % len(pattern)] == "G"
    return (layer + 1) % pattern == 0


@_rule("inkling")
def _inkling(config: Config, layer: int) -> bool:
    local = config["local_layer_ids"]
    if local is None:
        return (layer + 1) % 6 == 0
    return layer not in local


@_rule("lfm3")
def _lfm3(config: Config, layer: int) -> str:
    if layer % 4 == 2:
        return FULL
    if layer % 4 == 0 and layer > 0:
        return SLIDING
    return NO_ATTENTION


@_rule("all")
def _all(config: Config, layer: int) -> bool:
    return True


@_rule("none")
def _none(config: Config, layer: int) -> bool:
    return False


@_rule("all without a window")
def _all_without_window(config: Config, layer: int) -> bool:
    return not has_window(config)


@_rule("every 4 from the last")
def _every_4_from_last(config: Config, layer: int) -> bool:
    distance_to_last = config["num_hidden_layers"] - 1 - layer
    return distance_to_last % 4 == 0


@_rule("flint")
def _flint(config: Config, layer: int) -> bool:
    is_last = layer == config["num_hidden_layers"] - 1
    return layer < 2 or layer % 4 == 1 or is_last


@_rule("lara_mini")
def _lara_mini(config: Config, layer: int) -> str:
    period = (NO_ATTENTION, SLIDING, NO_ATTENTION, FULL, SLIDING)
    return period[layer % 5]


@_rule("lfm3_vl_vision")
def _lfm3_vl_vision(config: Config, layer: int) -> bool:
    return layer > 0 and layer % 2 == 0


@_rule("llama4")
def _llama4(config: Config, layer: int) -> bool:
    return config["attention_chunk_size"] is None or not has_rope(config, layer)


@_rule("mimo_v2_flash")
def _mimo_v2_flash(config: Config, layer: int) -> bool:
    return layer == 0 or (layer + 1) % 6 == 0


@_rule("mllama_text_model")
def _mllama(config: Config, layer: int) -> bool:
    crossing = config["cross_attention_layers"] or range(3, 39, 5)
    return layer not in crossing


@_rule("qwen2_moe")
def _qwen2_moe(config: Config, layer: int) -> bool:
    if not has_window(config) or layer % 2 == 1:
        return True
    return not before_window(config, layer)


@_rule("block_types")
def _block_types(config: Config, layer: int) -> bool:
    types = config["block_types"]
    return types[layer % len(types)] == "attention"


@_rule("smollm3")
def _smollm3(config: Config, layer: int) -> bool:
    return not has_window(config) or has_rope(config, layer)


REACHES: Mapping[str, Callable[[int], int]] = {
    "size": lambda size: size,
    "size // 2 - 1": lambda size: size // 2 - 1,
}


def layer_rule(text: str) -> IsFull:
    """Return the rule that `hf_families.json` writes as `text`.

    That is a key of `_NAMED`, or one of these, where N is a number or the key of one:

        every N, every N from 0    the last or the first in N layers
        listed in KEY              the layers of a list, all if there is none
        only listed in KEY         the layers of a list, none if there is none
    """
    match text.split():
        case ["every", n, *start] if start in ([], ["from", "0"]):
            period = lambda config: int(n) if n.isdigit() else required(config, n)
            offset = 0 if start else 1
            return lambda config, layer: (layer + offset) % period(config) == 0
        case ["listed", "in", key]:
            return lambda config, layer: config.get(key) is None or layer in config[key]
        case ["only", "listed", "in", key]:
            return lambda config, layer: layer in (config[key] or ())
    return _NAMED[text]
