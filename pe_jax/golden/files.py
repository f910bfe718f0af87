"""Golden vectors as files: NAME.safetensors, NAME.json and a README, readable without pe_jax."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from pe_jax import __version__
from pe_jax.common.files import Json, parse_json, read_json, write_bytes, write_text
from pe_jax.common.values import shown
from pe_jax.golden import vectors
from pe_jax.golden.cases import LENGTH
from pe_jax.interop.hf_registry import FAMILIES

_README = Path(__file__).with_name("README.md")
_AGAIN = "Write it again with pe-jax golden."


def model_types() -> list[str]:
    """Return the model types whose default config determines all of its positions' numbers."""
    found = []
    for name in FAMILIES:
        try:
            vectors.golden_inputs({"model_type": name})
        except ValueError:
            continue
        found.append(name)
    return found


def write(
    configs: Iterable[Mapping[str, Any]],
    out: Path,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write the golden vectors of each config to `out`; those of the same config are replaced.

    Each gets the name of its `model_type`, and a number from the second one of a type on.

    Args:
      configs: the contents of config.json files; one with `model_type` alone has its defaults.
      out: a folder, which is made if it is missing.
      progress: called with a line about each file.

    Returns:
      The .safetensors files; each has a .json file of the same name beside it.

    Raises:
      ValueError: for a config without golden vectors, and for a folder that has files of the same
        names with other contents; before any file is written.
      OSError: if something cannot be written.
    """
    goldens: list[vectors.Golden] = []
    for config in configs:
        if config not in [golden.config for golden in goldens]:
            goldens.append(vectors.golden_vectors(config))
    names: list[str] = []
    for golden in goldens:
        name = re.sub(r"[^\w.-]", "_", str(golden.config.get("model_type") or "config"))
        same = sum(other.split("~")[0] == name for other in names)
        names.append(f"{name}~{same + 1}" if same else name)
    readme = _README.read_text("utf-8")
    _check_readme(out / "README.md", readme)
    for name, golden in zip(names, goldens, strict=True):
        _check_config(out / f"{name}.json", golden.config)
    files = []
    for name, golden in zip(names, goldens, strict=True):
        tensors = out / f"{name}.safetensors"
        data = save(_tensors(golden))
        write_bytes(tensors, data)
        write_text(out / f"{name}.json", _description(golden, data))
        files.append(tensors)
        progress(f"{name}: {len(data) / 1000:.0f} kB")
    write_text(out / "README.md", readme)
    return files


def _check_readme(path: Path, readme: str) -> None:
    """Raise a ValueError if the README of something else is in the folder."""
    title = readme.partition("\n")[0].encode()
    if path.exists() and not path.read_bytes().startswith(title):
        raise ValueError(
            f"{path} is not of golden vectors and would be lost. Pass another folder."
        )


def _check_config(path: Path, config: Mapping[str, Any]) -> None:
    """Raise a ValueError if a description of something else is in the folder."""
    if not path.exists():
        return
    try:
        about = parse_json(path.read_text(encoding="utf-8"))
    except ValueError:  # Damaged, as a run that writes it again finds it.
        return
    if not isinstance(about, dict) or "format" not in about:
        raise ValueError(
            f"{path} is not of golden vectors and would be lost. Pass another folder."
        )
    if about.get("config") != json.loads(json.dumps(dict(config))):
        raise ValueError(
            f"{path} is of another config, whose golden vectors would be lost. Pass another folder."
        )


def read(path: Path) -> vectors.Golden:
    """Read golden vectors from NAME.safetensors and NAME.json.

    Raises:
      ValueError: for a file that is missing, damaged, or of another format; it names the file.
    """
    if path.suffix != ".safetensors":
        raise ValueError(
            f"{path} must be a .safetensors file that pe-jax golden wrote."
        )
    sidecar = path.with_suffix(".json")
    for file, other in ((path, sidecar), (sidecar, path)):
        if not file.is_file():
            raise ValueError(
                f"{file} is missing; {other.name} is of no use alone. {_AGAIN}"
            )
    about = read_json(sidecar, _AGAIN)
    if about.get("format") != vectors.FORMAT:
        raise ValueError(
            f"{sidecar} has format {shown(about.get('format'))}; this version reads "
            f"{vectors.FORMAT}. {_AGAIN}"
        )
    golden = _inputs(sidecar, about)
    arrays = _arrays(path, about)
    _check_arrays(path, golden, arrays)
    results: dict[str, dict[str, vectors.Layer]] = {}
    for name in golden.cases:
        results[name] = {}
        for kind in golden.layers:
            fields = [arrays[f"{name}/{kind}/{key}"] for key in vectors.Layer._fields]
            results[name][kind] = vectors.Layer(*fields)
    return golden._replace(q=arrays["q"], k=arrays["k"], v=arrays["v"], results=results)


def _inputs(sidecar: Path, about: Json) -> vectors.Golden:
    """Return the inputs of the config in NAME.json, if all else in it fits them."""
    config = about.get("config")
    if not isinstance(config, dict):
        raise ValueError(f"{sidecar} is damaged (config is {shown(config)}). {_AGAIN}")
    try:
        golden = vectors.golden_inputs(config)
    except ValueError as error:
        raise ValueError(f"{sidecar} is damaged (config: {error}). {_AGAIN}") from error
    for key, expected in _facts(golden).items():
        value = about.get(key)
        names = list(value) if isinstance(value, dict) else value
        if names != expected:
            raise ValueError(
                f"{sidecar} is damaged ({key} must be {shown(expected)} for its config, got "
                f"{shown(names)}). {_AGAIN}"
            )
    return golden


def _facts(golden: vectors.Golden) -> Json:
    """Return what NAME.json says besides the config; of dicts the keys."""
    return {
        "trained_length": golden.trained_length,
        "attention": "causal" if golden.causal else "bidirectional",
        "pattern": golden.pattern,
        "layers": list(golden.layers),
        "cases": list(golden.cases),
    }


def _arrays(path: Path, about: Json) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != about.get("sha256"):
        raise ValueError(
            f"{path} is damaged (its SHA-256 is not that of {path.stem}.json). {_AGAIN}"
        )
    try:
        return load(data)
    except Exception as error:
        # Of safetensors: classes of its own, KeyError for a new dtype.
        reason = shown(str(error))
        raise ValueError(f"{path} is damaged ({reason}). {_AGAIN}") from error


def _check_arrays(
    path: Path, golden: vectors.Golden, arrays: dict[str, np.ndarray]
) -> None:
    """Raise a ValueError for arrays that are missing or that do not fit the config."""
    for name, (shape, dtype) in _specification(golden).items():
        array = arrays.get(name)
        if array is None:
            raise ValueError(f"{path} is damaged ({name} is missing). {_AGAIN}")
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(
                f"{path} is damaged ({name} must be {dtype} {list(shape)}, got {array.dtype} "
                f"{list(array.shape)}). {_AGAIN}"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"{path} is damaged ({name} is not finite). {_AGAIN}")
    for name, case in golden.cases.items():
        for key, expected in (("positions", case.positions), ("mask", case.mask)):
            if not (arrays[f"{name}/{key}"] == expected).all():
                raise ValueError(
                    f"{path} is damaged ({name}/{key} is not that of its config). {_AGAIN}"
                )


def _specification(golden: vectors.Golden) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of the arrays that `read` needs, by name."""
    needed = {
        "q": (golden.q.shape, "float32"),
        "k": (golden.k.shape, "float32"),
        "v": (golden.v.shape, "float32"),
    }
    rows, _, heads, _ = golden.q.shape
    value_size = golden.v.shape[-1]
    for name, case in golden.cases.items():
        needed[f"{name}/positions"] = (case.positions.shape, "int32")
        needed[f"{name}/mask"] = (case.mask.shape, "bool")
        queries = len(range(LENGTH)[case.queries])
        logits = (rows, heads, queries, LENGTH)
        allowed = (rows, 1, queries, LENGTH)
        out = (rows, queries, heads, value_size)
        for kind in golden.layers:
            needed[f"{name}/{kind}/logits"] = (logits, "float32")
            needed[f"{name}/{kind}/allowed"] = (allowed, "bool")
            needed[f"{name}/{kind}/out"] = (out, "float32")
    return needed


def _tensors(golden: vectors.Golden) -> dict[str, np.ndarray]:
    """Return all arrays by name; results are float32, as no reader needs more of them."""
    arrays = {"q": golden.q, "k": golden.k, "v": golden.v}
    for name, array in vectors.tables(golden).items():
        arrays[f"tables/{name}"] = array
    for name, case in golden.cases.items():
        arrays[f"{name}/positions"] = case.positions.astype(np.int32)
        arrays[f"{name}/mask"] = case.mask
        for kind, layer in golden.results[name].items():
            arrays[f"{name}/{kind}/logits"] = layer.logits.astype(np.float32)
            arrays[f"{name}/{kind}/allowed"] = layer.allowed
            arrays[f"{name}/{kind}/out"] = layer.out.astype(np.float32)
    return {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}


def _description(golden: vectors.Golden, data: bytes) -> str:
    """Return the text of NAME.json, next to these bytes of NAME.safetensors."""
    layers = {}
    for kind, layer in golden.layers.items():
        layers[kind] = {
            "encoding": layer.name,
            "head_size": vectors.head_size(layer) or golden.q.shape[-1],
            "attention_factor": vectors.attention_factor(layer),
            "window": vars(layer.window),
        }
    cases = {}
    for name, case in golden.cases.items():
        first, end, _ = case.queries.indices(LENGTH)
        cases[name] = {
            "what": case.what,
            "queries": [first, end],
            "one_query_at_a_time": case.steps,
            "inputs": case.dtype,
            "tolerance": {
                "float32": case.tolerance("float32"),
                "bfloat16": case.tolerance("bfloat16"),
            },
        }
    values = {
        "format": vectors.FORMAT,
        "pe_jax": __version__,
        "sha256": hashlib.sha256(data).hexdigest(),
        "config": dict(golden.config),
        **_facts(golden),
        "layers": layers,
        "cases": cases,
    }
    return json.dumps(values, indent=1) + "\n"
