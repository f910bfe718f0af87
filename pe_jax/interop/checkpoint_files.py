"""Tensors by name from a published checkpoint, in one safetensors file or several.

A pickle (`pytorch_model.bin`, `.pt`) can run arbitrary code when loaded: none is ever opened here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes  # Also registers bfloat16 with NumPy, which safetensors needs to read it.
import numpy as np
from safetensors import SafetensorError, safe_open

from pe_jax.common.files import parse_json
from pe_jax.common.values import shown
from pe_jax.interop.refusals import check_no_adapter

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# clone: tied tensors of a pickle share memory, which safetensors refuses to write.
_CONVERT = (
    "import sys, torch, safetensors.torch as s; s.save_file({k: v.clone().contiguous() "
    "for f in sys.argv[2:] for k, v in "
    'torch.load(f, map_location="cpu", weights_only=True).items()}, sys.argv[1])'
)


class Header(NamedTuple):
    """Shape and dtype of a tensor that is not read yet; dtype by its safetensors name, "BF16"."""

    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint; a tensor is read from its file on request.

    Attributes:
      path: as given.
      folder: the folder of its files.
      config: the content of config.json, {} if there is none.
      headers: the header of every tensor, by name.
      values: reads a tensor in its dtype in the file; raises ValueError for a damaged file.
    """

    path: Path
    folder: Path
    config: dict[str, Any]
    headers: dict[str, Header]
    values: Callable[[str], np.ndarray]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.headers)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._header(name).shape

    def is_float(self, name: str) -> bool:
        """Return whether the values are the weights themselves, not indices or quantised codes."""
        return self._header(name).dtype in ("F64", "F32", "F16", "BF16")

    def read(self, name: str) -> np.ndarray:
        """Return a tensor in its dtype; float16 and bfloat16 become float32."""
        self._header(name)  # Raises if there is none.
        tensor = self.values(name)
        return tensor.astype(np.float32) if tensor.dtype in _NARROW else tensor

    def _header(self, name: str) -> Header:
        if name not in self.headers:
            raise ValueError(
                f"{self.path} has no tensor {name!r}; see Checkpoint.names."
            )
        return self.headers[name]


_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint: read the header of every file, but no tensor.

    Args:
      path: a folder with `model.safetensors`, or with shards and `model.safetensors.index.json`; or
        one .safetensors file. config.json is read if it is next to the tensors.

    Raises:
      ValueError: if there is nothing to read, if it is a pickle or an adapter, or a file is damaged
        or missing.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(
            f"No checkpoint at {path}. Give a folder with {_WHOLE} and config.json, or a "
            ".safetensors file. Download a model of the Hugging Face Hub with: hf download NAME "
            "--local-dir FOLDER"
        )
    if path.suffix in _PICKLES:
        raise _pickle_error([path], path.with_suffix(".safetensors"))
    check_no_adapter(path if path.is_dir() else path.parent)
    files = [path]
    file_of: dict[str, str] = {}
    if path.is_dir():
        files, file_of = _tensor_files(path)
    folder = files[0].parent
    opened = _open_files(files, file_of)
    return Checkpoint(path, folder, _config(folder / "config.json"), *opened)


def _config(file: Path) -> dict[str, Any]:
    config = _json(file) if file.is_file() else {}
    for key, kind in {"model_type": str, "architectures": list}.items():
        if not isinstance(config.get(key), kind | None):
            raise ValueError(
                f"{file}: {key} must be a {kind.__name__}, got {shown(config[key])}. Download it "
                "again."
            )
    return config


def _tensor_files(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """Return the files, and the name of each tensor's file, empty without an index."""
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE], {}
    if (folder / _INDEX).is_file():
        return _shards(folder / _INDEX)
    pickles = sorted(file for file in folder.iterdir() if file.suffix in _PICKLES)
    # Folders with weights also contain other pickles: optimizer.pt, training_args.bin.
    named = [file for file in pickles if file.name.startswith("pytorch_model")]
    weights = named or pickles
    if weights and not any(folder.glob("*.safetensors")):
        raise _pickle_error(weights, folder / _WHOLE)
    raise ValueError(
        f"{folder} has neither {_WHOLE} nor {_INDEX}. If the tensors are in a file of another "
        "name, give its path. TensorFlow's checkpoints are not read: the Hub has Google's BERTs as "
        "safetensors (google-bert/bert-base-uncased, google/bert_uncased_L-4_H-256_A-4, ...)."
    )


def _open_files(
    files: list[Path], file_of: dict[str, str]
) -> tuple[dict[str, Header], Callable[[str], np.ndarray]]:
    """Return the headers of all tensors by name, and a function that reads one in its dtype."""
    headers: dict[str, Header] = {}
    where: dict[str, Path] = {}
    for file in files:
        with _opened(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118
                if not name.isprintable():  # Messages and reports print it.
                    raise ValueError(
                        f"{file} has two tensors of the name {name!r}: it is damaged."
                    )
                if file_of and file_of.get(name) != file.name:
                    continue  # A copy that the index does not name.
                part = tensors.get_slice(name)
                headers[name] = Header(tuple(part.get_shape()), part.get_dtype())
                where[name] = file

    if missing := sorted(file_of.keys() - headers.keys()):
        raise ValueError(
            f"{files[0].parent / file_of[missing[0]]} has no tensor {missing[0]!r}, although "
            f"{_INDEX} lists it there. Download both again."
        )

    def read(name: str) -> np.ndarray:
        with _opened(where[name]) as tensors:
            return tensors.get_tensor(name)

    return headers, read


def _shards(index: Path) -> tuple[list[Path], dict[str, str]]:
    shards = _json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ValueError(
            f'{index} has no "weight_map" from tensors to files. Download it again.'
        )
    names = sorted({str(shard) for shard in shards.values()})
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise ValueError(
            f"{index} lists files outside of its own folder: {', '.join(map(repr, outside[:3]))}. "
            "All files of a checkpoint must be next to its index."
        )
    files = [index.parent / name for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(
            f"{index} lists files that are not in {index.parent}: {', '.join(missing)}. Download "
            "them into that folder."
        )
    return files, {tensor: str(shard) for tensor, shard in shards.items()}


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[safe_open]:
    try:
        with safe_open(file, framework="numpy") as tensors:
            yield tensors
    except SafetensorError as error:
        raise ValueError(
            f"{file} is not a complete safetensors file ({error}). Either its download was "
            "interrupted, or it is only a Git LFS pointer. Download it again."
        ) from error


def _json(file: Path) -> dict[str, Any]:
    try:
        return dict(parse_json(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{file} is not a JSON object ({error}). Download it again."
        ) from error


def _pickle_error(pickles: list[Path], to: Path) -> ValueError:
    command = shlex.join(["python", "-c", _CONVERT, str(to), *map(str, pickles)])
    return ValueError(
        f"{', '.join(map(str, pickles))}: a pickle can run arbitrary code when loaded and is not "
        "opened. If you trust its source, convert it (this needs torch and safetensors), "
        f"then try again:\n  {command}"
    )
