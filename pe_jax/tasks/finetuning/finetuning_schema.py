"""What a fine-tuning config may hold: every key, its values, their relations."""

from __future__ import annotations

from pe_jax.data.glue_tasks import GLUE
from pe_jax.models.config import FIELDS, PRESETS
from pe_jax.schema import Relation, Schema, within
from pe_jax.tasks.finetuning.selection import SELECT
from pe_jax.tasks.finetuning.squad_scores import VERSIONS
from pe_jax.tasks.training_schema import (
    CADENCE,
    COUNT_OR_ZERO,
    EPOCHS,
    FREQUENCY_RATE,
    LENGTH,
    MODEL_KEYS,
    OPTIMIZER,
    POSITION,
    RESIZE,
    ROWS,
    SIZES,
    divides,
)
from pe_jax.values import SEED, Kind, integer, number, one_of, optional, several, text

_FINETUNING: dict[str, Kind] = {
    "seeds": several(SEED, least=1),
    "init": text(
        "Fine-tuning starts from a pretrained run: give its workdir, --config.init=RUN, or the "
        "folder of a published BERT."
    ),
    "resize": RESIZE,
    **within(
        "model",
        {
            "position": optional(POSITION),
            **{
                name: optional(FIELDS[name])
                for name in (
                    "dropout_rate", "attention_dropout_rate", "dtype", "attention", "scan_layers",
                    "remat",
                )
            },
        },
    ),
    **within(
        "data",
        {
            "data_dir": text(),
            "length": LENGTH,
            "buckets": several(integer(1, 10**6)),
            "batch_size": ROWS,
            "eval_batch_size": ROWS,
            "held_out": number(0, 0.5),
        },
    ),
    "epochs": EPOCHS,
    "steps": COUNT_OR_ZERO,
    "accumulation": ROWS,
    **within("optimizer", OPTIMIZER),
    "select": one_of(SELECT),
    **CADENCE,
}  # fmt: skip
_FINETUNING_RELATIONS = (
    Relation(
        ("steps", "epochs"),
        lambda steps, epochs: steps or epochs > 0,
        "Nothing to train: give config.steps or config.epochs.",
    ),
    Relation(
        ("data.batch_size", "accumulation"),
        divides,
        "config.data.batch_size is a multiple of config.accumulation.",
    ),
    Relation(
        ("data.buckets",),
        lambda buckets: list(buckets) == sorted(buckets),
        "config.data.buckets ascend: sort them.",
    ),
    Relation(
        ("select", "data.held_out"),
        lambda select, held_out: not SELECT[select].on or held_out > 0,
        "config.select=held_out chooses by training data that is kept from training: give "
        "config.data.held_out, such as 0.1.",
    ),
    FREQUENCY_RATE,
)
_RESOLVED = within(
    "model",
    {
        "size": one_of(PRESETS),
        **{name: FIELDS[name] for name in MODEL_KEYS},
        **{name: optional(FIELDS[name]) for name in (*SIZES, "num_segments", "layer_norm_epsilon")},
    },
)
_GLUE = Schema(_FINETUNING, _FINETUNING_RELATIONS, _RESOLVED)
_SQUAD = Schema(
    kinds={
        **_FINETUNING,
        "version": one_of(VERSIONS),
        "data.train": text("Give NAME:SPLIT of tfds, or a file in SQuAD's format."),
        "data.validation": text("Give NAME:SPLIT of tfds, or a file in SQuAD's format."),
        "data.stride": integer(1, 10**6),
        "data.max_query": integer(1, 10**6),
        "n_best": integer(1, 10**4),
        "max_answer_tokens": integer(1, 10**6),
        "null_threshold": number(float("-inf"), float("inf")),
    },
    relations=(
        *_FINETUNING_RELATIONS,
        Relation(
            ("data.length", "data.max_query"),
            lambda length, max_query: length >= max_query + 4,
            "config.data.length has room for a question, three special tokens and a context: at "
            "least config.data.max_query + 4.",
        ),
    ),
    filled_in=_RESOLVED,
)
FINETUNING: dict[str, Schema] = {**dict.fromkeys(GLUE, _GLUE), "squad": _SQUAD}
