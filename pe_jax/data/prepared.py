"""Prepared tfds datasets, opened without TensorFlow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder


def open_prepared(name: str, split: str, data_dir: str = "") -> DatasetBuilder:
    """The tfds builder of a dataset that is on disk as array_record files.

    `builder.as_data_source(split)` is then a sequence of examples, text as bytes.

    Args:
      name: as tfds writes it, e.g. `squad/v1.1`.
      split: may be a slice, `train[:10%]`, or a sum of splits, `train+test`.
      data_dir: the folder of tfds datasets; empty means tfds's own default.

    Raises:
      ValueError: if tfds is not installed, or there is no such dataset or split.
    """
    try:
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise ValueError(
            f"The dataset {name!r} needs tensorflow-datasets (the extra tfds): {error}."
        ) from error
    try:
        builder = tfds.builder(name, data_dir=data_dir or None, file_format="array_record")
    except tfds.core.DatasetNotFoundError as error:  # Its message lists every dataset of tfds.
        raise ValueError(
            f"No tfds dataset {name!r}: tfds does not know the name, and it is not in "
            f"{data_dir or 'the default folder of tfds'}. Check the name, or point "
            "--config.data.data_dir at a folder that has it."
        ) from error
    try:
        builder.info.splits[split]
    except (KeyError, ValueError) as error:  # tfds's own message does not say what to do.
        known = ", ".join(builder.info.splits) or "none, it is not prepared there"
        raise ValueError(
            f"{name!r}: no split {split!r} in {builder.data_dir} (splits: {known}). Prepare it "
            "with tfds.builder(name, file_format='array_record').download_and_prepare(), or point "
            "--config.data.data_dir at a folder that has it."
        ) from error
    return builder
