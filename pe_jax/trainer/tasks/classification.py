"""Classification of your own texts: tables of CSV, TSV or JSON lines."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from pe_jax.models import BertConfig
from pe_jax.trainer.configs.finetuning import ClassificationConfig
from pe_jax.trainer.data.glue import GlueTask
from pe_jax.trainer.data.labelled_texts import (
    class_names,
    read_labelled_texts,
    to_examples,
)
from pe_jax.trainer.tasks.finetuning_task import VALIDATION, FinetuningTask, split_off
from pe_jax.trainer.tasks.glue import task_of_splits

_SCORED = 0.1  # Of the rows, where there is no table to score.


def load_classification_task(
    config: ClassificationConfig, model: BertConfig, tokenizer: Tokenizer
) -> FinetuningTask:
    """Return the data, head and scores of the tables that `config.data` names.

    Raises:
      ValueError: without a table to train on, for one that cannot be read, see
        `read_labelled_texts`, a single class, a class that the training data lacks, or inputs that
        are too short for a text.
    """
    data = config.data
    if not data.train:
        raise ValueError(
            "config.data.train is empty: give a file of .csv, .tsv or .jsonl."
        )
    columns = (data.texts, data.label)
    table = read_labelled_texts(data.train, *columns)
    labels = class_names(table.labels, data.train, data.label)
    train = to_examples(table, labels, data.train)
    dataset = Path(data.validation or data.train).name
    if data.validation:
        scored = read_labelled_texts(data.validation, *columns)
        validation = to_examples(scored, labels, data.validation)
        note = ""
    else:
        is_scored = split_off(len(train.labels), _SCORED)
        validation = train.select(is_scored)
        train = train.select(~is_scored)
        note = f"a tenth of {dataset} is scored and not trained on"
    glue = GlueTask(texts=data.texts, labels=labels, metrics=("accuracy", "f1_macro"))
    splits = {"train": train, VALIDATION: validation}
    task = task_of_splits(dataset, glue, splits, config, model, tokenizer)
    notes = [
        f"trained on {Path(data.train).name}",
        f"classes: {', '.join(labels)}",
        *task.notes,
        *([note] if note else []),
    ]
    return task._replace(notes=notes, labels=labels)
