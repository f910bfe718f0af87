"""Golden vectors as files: NAME.safetensors, NAME.json and a README, readable without pe_jax."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from pe_jax import __version__
from pe_jax.files import write_bytes, write_text
from pe_jax.golden import vectors
from pe_jax.interop.hf_registry import FAMILIES


def model_types() -> list[str]:
    """Return the model types whose default config determines all of its positions' numbers."""
    found = []
    for name in FAMILIES:
        try:
            vectors.golden_vectors({"model_type": name}, cases=())
        except ValueError:
            continue
        found.append(name)
    return found


def write(
    configs: Iterable[Mapping[str, Any]],
    out: Path,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write the golden vectors of each config to `out`; files of the same name are replaced.

    Each gets the name of its `model_type`, and a number from the second one of a type on.

    Raises:
      ValueError: for a config without golden vectors, before any file is written.
      OSError: if something cannot be written.
    """
    names: list[str] = []
    goldens = [vectors.golden_vectors(config) for config in configs]
    for golden in goldens:
        name = re.sub(r"[^\w.-]", "_", str(golden.config.get("model_type") or "config"))
        same = sum(other.split("~")[0] == name for other in names)
        names.append(f"{name}~{same + 1}" if same else name)
    files = []
    for name, golden in zip(names, goldens, strict=True):
        tensors = out / f"{name}.safetensors"
        write_bytes(tensors, save(_tensors(golden)))
        write_text(out / f"{name}.json", _description(golden))
        files += [tensors]
        progress(f"{name}: {tensors.stat().st_size / 1000:.0f} kB")
    write_text(out / "README.md", Path(__file__).with_name("README.md").read_text("utf-8"))
    return files


def _tensors(golden: vectors.Golden) -> dict[str, np.ndarray]:
    """Return all arrays by name; results are float32, as no reader needs more of them."""
    arrays = {"q": golden.q, "k": golden.k, "v": golden.v}
    arrays |= {f"tables/{name}": array for name, array in vectors.tables(golden).items()}
    for name, case in golden.cases.items():
        arrays[f"{name}/positions"] = case.positions.astype(np.int32)
        arrays[f"{name}/mask"] = case.mask
        for kind, layer in golden.results[name].items():
            arrays[f"{name}/{kind}/logits"] = layer.logits.astype(np.float32)
            arrays[f"{name}/{kind}/allowed"] = layer.allowed
            arrays[f"{name}/{kind}/out"] = layer.out.astype(np.float32)
    return {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}


def _description(golden: vectors.Golden) -> str:
    layers = {
        kind: {
            "encoding": layer.name,
            "head_size": vectors.head_size(layer) or golden.q.shape[-1],
            "attention_factor": vectors.attention_factor(layer),
            "window": layer.reach._asdict(),
        }
        for kind, layer in golden.layers.items()
    }
    cases = {
        name: {
            "what": case.what,
            "queries": case.queries.indices(len(golden.q))[:2],
            "one_query_at_a_time": case.steps,
            "inputs": case.dtype,
            "tolerance": {dtype: case.tolerance(dtype) for dtype in ("float32", "bfloat16")},
        }
        for name, case in golden.cases.items()
    }
    values = {
        "format": vectors.FORMAT,
        "pe_jax": __version__,
        "config": dict(golden.config),
        "trained_length": golden.trained_length,
        "pattern": golden.pattern,
        "layers": layers,
        "cases": cases,
    }
    return json.dumps(values, indent=1) + "\n"
