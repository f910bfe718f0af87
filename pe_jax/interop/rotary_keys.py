"""Rotary encodings as keys of a config.json, the inverse of `from_hf`."""

from __future__ import annotations

import re
from typing import Any

from pe_jax.interop.hf_layers import FULL, SLIDING
from pe_jax.models import BertConfig

_LAYER = re.compile(r"rope(?:\(base=([0-9.e+]+)\))?(?:\+window\(reach=(\d+)\))?")
_BASE = "10000"


def rotary_keys(config: BertConfig, by_layer: bool) -> dict[str, Any]:
    """Return the keys of `rope`, the same in all layers or, with a window, in some.

    Args:
      by_layer: the family tells layers with a window from the others.

    Raises:
      ValueError: for other encodings.
    """
    encoding = config.encoding()
    names = [encoding.layer(i).name for i in range(config.num_layers)]
    matches = [_LAYER.fullmatch(name) for name in names]
    layers = [(match[1] or _BASE, match[2]) for match in matches if match]
    bases = {reach is not None: float(base) for base, reach in layers}
    windows = {reach for _, reach in layers if reach}
    distinct = len(set(layers))
    several = distinct != len(bases) or len(windows) > 1
    if len(layers) < len(names) or several or (windows and not by_layer):
        raise ValueError(
            f"No model of transformers that is known here has the positions {encoding.name!r}: it "
            "has rope, of one base in all layers, and of another in those with a window."
        )
    if not by_layer:
        return {"rope_theta": bases[False]}
    kinds = {FULL: False, SLIDING: True}
    return {
        "layer_types": [SLIDING if reach else FULL for _, reach in layers],
        **({"local_attention": 2 * int(windows.pop())} if windows else {}),
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": bases.get(windowed, float(_BASE))}
            for kind, windowed in kinds.items()
        },
    }
