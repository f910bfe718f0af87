"""Prepared tfds datasets, opened without TensorFlow."""

from __future__ import annotations

import contextlib
import importlib
import json
import shlex
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from pe_jax.common.errors import extra
from pe_jax.common.files import Json

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder


def open_dataset(
    name: str, split: str, data_dir: str = "", extra_name: str = "tfds"
) -> DatasetBuilder:
    """Return the tfds builder of a dataset that is on disk as array_record files.

    Args:
      name: as tfds writes it, such as `squad/v1.1`.
      split: may be a slice, `train[:10%]`, or a sum of splits, `train+test`.
      data_dir: the folder of tfds datasets; empty means tfds's own default.
      extra_name: the extra of pe_jax that has tfds and what else its caller needs.

    Raises:
      ValueError: if tfds is not installed, or there is no such dataset or split.
    """

    def failure(missing: str) -> ValueError:
        return ValueError(f"The dataset {name!r}: {missing}")

    with extra(extra_name, failure):
        tfds = importlib.import_module("tensorflow_datasets")
    builder = _builder(tfds, name, data_dir)
    try:
        builder.info.splits[split]
    except (KeyError, ValueError) as error:
        # tfds's own message does not say what to do.
        splits = ", ".join(builder.info.splits)
        if splits:
            what = f"no split {split!r} in {builder.data_dir} (splits: {splits})."
        else:
            what = f"it is not prepared in {builder.data_dir}. {_how_to_prepare(name, data_dir)}"
        raise ValueError(f"{name!r}: {what}") from error
    return builder


def examples(
    builder: DatasetBuilder, name: str, split: str
) -> Iterator[tuple[str, Json]]:
    """Yield the examples of a split, each after its place, by which messages name it.

    Raises:
      ValueError: for a record that cannot be read.
    """
    place = f"{name}, {split}"
    try:
        source = builder.as_data_source(split)
        for number in range(len(source)):
            place = f"{name}, {split}, example {number}"
            yield place, source[number]
    except Exception as error:  # Of array_record, protobuf and tfds: of many types.
        raise _damaged(place, builder.data_dir, error) from error


def decode(example: Json, feature: str, place: str) -> str:
    """Return a text feature of an example as a string.

    Raises:
      ValueError: if it is missing, no text, or not UTF-8; the message begins with `place`.
    """
    if feature not in example:
        raise ValueError(f"{place} has no {feature!r}; it has {sorted(example)}.")
    text = example[feature]
    if not isinstance(text, bytes | str):
        raise ValueError(f"{place}: {feature!r} is {text!r}, not text.")
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{place}: {feature!r} is not UTF-8 ({error}).") from error


def _builder(tfds: ModuleType, name: str, data_dir: str) -> DatasetBuilder:
    """Return the builder of a dataset that is in `data_dir`, or that tfds could prepare there."""
    folder = data_dir or "the default folder of tfds"
    # tfds knows the datasets of text that it can prepare once the second module is imported.
    for module in ("tensorflow_datasets", "tensorflow_datasets.text"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
        try:
            return tfds.builder(
                name, data_dir=data_dir or None, file_format="array_record"
            )
        except tfds.core.DatasetNotFoundError:  # Its message lists all datasets.
            continue
        except Exception as error:  # Of protobuf and tfds: of many types.
            raise _damaged(name, folder, error) from error
    raise ValueError(
        f"There is no tfds dataset {name!r}: tfds does not know the name, and it is not in "
        f"{folder}. Check the name, or set --config.data.data_dir to a folder that has it."
    )


def _damaged(place: str, folder: str, error: Exception) -> ValueError:
    fault = " ".join(str(error).split())
    return ValueError(
        f"{place}: its files in {folder} are damaged ({fault}). Copy them again, or delete them "
        "and prepare the dataset again."
    )


def _how_to_prepare(name: str, data_dir: str) -> str:
    folder = f", data_dir={json.dumps(data_dir)}" if data_dir else ""
    program = (
        "import tensorflow_datasets as tfds, tensorflow_datasets.text; "
        f'tfds.builder({json.dumps(name)}{folder}, file_format="array_record")'
        ".download_and_prepare()"
    )
    return (
        "Prepare it once, where there is a network:\n"
        f"  {shlex.quote(sys.executable)} -P -c {shlex.quote(program)}\n"
        "(what it needs beyond the extra tfds it names), or point --config.data.data_dir at a "
        "folder that has it."
    )
