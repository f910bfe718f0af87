"""Google's BERT checkpoints (`bert_model.ckpt.index`, `.data-*`), under Hugging Face names.

TensorFlow reads them (the extra `tf`), and is imported only when one is opened.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

# Replacements that turn a TensorFlow name into Hugging Face's, applied in order.
_RENAMES = (
    (r"/", "."),
    (r"layer_(\d+)", r"layer.\1"),
    (r"_embeddings$", "_embeddings.weight"),
    (r"kernel$", "weight"),
    (r"predictions\.output_bias$", "predictions.bias"),
    (r"seq_relationship\.output_weights$", "seq_relationship.weight"),
    (r"seq_relationship\.output_bias$", "seq_relationship.bias"),
)
_OPTIMIZER_SLOT = re.compile(r"(^|/)(global_step|(adam|lamb)_[mv])$")
_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class Header(NamedTuple):
    """Shape and dtype of a tensor that is not read yet; dtype by its safetensors name, "BF16"."""

    shape: tuple[int, ...]
    dtype: str


def find_google(path: Path) -> str:
    """Return the prefix of a checkpoint's files, as TensorFlow takes it; empty if there is none.

    Args:
      path: a folder, or the prefix itself.

    Raises:
      ValueError: if the folder holds several.
    """
    if not path.is_dir():
        return str(path) if path.with_name(f"{path.name}.index").is_file() else ""
    prefixes = [str(file.with_suffix("")) for file in sorted(path.glob("*.index"))]
    if len(prefixes) > 1:
        raise ValueError(
            f"{path} holds {len(prefixes)} checkpoints. Give one of them: {' or '.join(prefixes)}."
        )
    return "".join(prefixes)


def open_google(prefix: str) -> tuple[dict[str, Header], Callable[[str], np.ndarray]]:
    """Return the headers of all tensors by name, and a function that reads one in its dtype.

    Kernels are transposed to [out, in]; tensors of the optimizer are left out.

    Raises:
      ValueError: if TensorFlow is not installed, or cannot read the files.
    """
    tf = _tensorflow(prefix)
    folder, name = os.path.split(prefix)
    if not any(Path(folder or ".").glob(f"{name}.data-*")):
        raise ValueError(f"{prefix}.index has no {name}.data-* next to it. Download it again.")
    try:
        reader = tf.train.load_checkpoint(prefix)
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except Exception as error:  # Damaged files raise IndexError, TypeError and others.
        raise _damaged(prefix, error) from error
    theirs = {_renamed(name): name for name in shapes if not _OPTIMIZER_SLOT.search(name)}

    def read(name: str) -> np.ndarray:
        try:
            tensor = reader.get_tensor(theirs[name])
        except Exception as error:
            raise _damaged(prefix, error) from error
        return tensor.T if _is_kernel(theirs[name]) else tensor

    def header(name: str) -> Header:
        shape, dtype = tuple(shapes[name]), dtypes[name].name
        return Header(shape[::-1] if _is_kernel(name) else shape, _DTYPES.get(dtype, dtype))

    return {ours: header(name) for ours, name in theirs.items()}, read


def _is_kernel(name: str) -> bool:
    return name.endswith("/kernel")


def _renamed(name: str) -> str:
    for theirs, ours in _RENAMES:
        name = re.sub(theirs, ours, name)
    return name


def _tensorflow(prefix: str) -> ModuleType:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # No banner on import.
    try:
        return importlib.import_module("tensorflow")
    except ImportError as error:
        raise ValueError(
            f"{prefix} is a TensorFlow checkpoint, which needs TensorFlow: in a checkout of "
            f"pe_jax, pip install '.[tf]' ({error})."
        ) from error


def _damaged(prefix: str, error: Exception) -> ValueError:
    first = (str(error).strip() or repr(error)).splitlines()[0]
    return ValueError(f"TensorFlow cannot read {prefix} ({first}): download it again.")
