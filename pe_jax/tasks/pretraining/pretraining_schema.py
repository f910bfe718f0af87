"""What a pretraining config may hold: every key, its values, their relations.

`config.model.position` is read with the sizes of the model, see `BertConfig`.
"""

from __future__ import annotations

from pe_jax.models.config import FIELDS, PRESETS
from pe_jax.schema import Relation, Schema, within
from pe_jax.tasks.training_schema import (
    CADENCE,
    COUNT,
    COUNT_OR_ZERO,
    EPOCHS,
    FREQUENCY_RATE,
    MODEL_KEYS,
    OPTIMIZER,
    POSITION,
    ROWS,
    SIZES,
    divides,
)
from pe_jax.training.sharding import PARALLEL
from pe_jax.values import FLAG, SEED, Kind, integer, number, one_of, optional, text

STAGES = ("stage1", "stage2", "stage3")
_STAGE: dict[str, Kind] = {
    "length": integer(8, 10**6),  # Room for two sentences.
    "batch_size": ROWS,
    "max_predictions": integer(1, 10**6),
    "steps": COUNT_OR_ZERO,
    "epochs": EPOCHS,
    "accumulation": ROWS,
}


def _stage_relations(stage: str) -> tuple[Relation, ...]:
    return (
        Relation(
            (f"{stage}.steps", f"{stage}.epochs"),
            lambda steps, epochs: not (steps and epochs),
            f"config.{stage} takes steps or epochs, not both: set one of them to 0.",
        ),
        Relation(
            (f"{stage}.max_predictions", f"{stage}.length"),
            lambda predictions, length: predictions <= length,
            f"config.{stage}.max_predictions is at most the length of its inputs.",
        ),
        Relation(
            (f"{stage}.batch_size", f"{stage}.accumulation"),
            divides,
            f"config.{stage}.batch_size is a multiple of config.{stage}.accumulation.",
        ),
    )


_SCHEMA = Schema(
    kinds={
        "seed": SEED,
        "init": text(),
        "keep_position": FLAG,
        "parallel": one_of(PARALLEL),
        **within(
            "model",
            {
                "size": one_of(PRESETS),
                "position": POSITION,
                **{name: optional(FIELDS[name]) for name in SIZES},
                **{name: FIELDS[name] for name in MODEL_KEYS},
            },
        ),
        **within(
            "data",
            {
                "source": text("Give files, pydoc, tfds:NAME:SPLIT or shards:FOLDER."),
                "validation": text(),
                "held_out": number(0, 0.5),
                "feature": text("Give the key of the text in each record."),
                "data_dir": text(),
                "vocab": text(),
                "vocab_size": integer(6, 10**7),  # Five special tokens, and one.
                "mask_rate": number(0, 1, "(]"),
                "short_probability": number(0, 1),
                "workers": integer(0, 128),
                "cache_dir": text(),
            },
        ),
        **{key: kind for name in STAGES for key, kind in within(name, _STAGE).items()},
        **within("optimizer", OPTIMIZER),
        **CADENCE,
        "eval_examples": COUNT,
    },
    relations=(
        Relation(
            tuple(f"{name}.{amount}" for name in STAGES for amount in ("steps", "epochs")),
            lambda *amounts: any(amounts),
            "Nothing to train: give config.stage1, 2 or 3 steps or epochs.",
        ),
        *(relation for name in STAGES for relation in _stage_relations(name)),
        Relation(
            ("data.held_out", "data.validation"),
            lambda held_out, validation: bool(held_out or validation),
            "config.data.held_out is above 0 where no config.data.validation is given.",
        ),
        FREQUENCY_RATE,
    ),
    filled_in=within(
        "model", {name: FIELDS[name] for name in ("num_segments", "layer_norm_epsilon")}
    ),
)
PRETRAINING: dict[str, Schema] = {"pretraining": _SCHEMA}
