"""Settings of a study that the paper has otherwise, or does not give, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from pe_jax.tasks.model_config import model_config, size_in_words
from pe_jax.tasks.pretraining import stage_configs


class Setting(NamedTuple):
    """A setting.

    Attributes:
      name: what is set; ours: its value, from the study's config.
      paper: the paper's; "–" where it gives none.
      reason: for ours.
    """

    name: str
    ours: Callable[[ConfigDict], str]
    paper: str
    reason: str


def _stages(config: ConfigDict, arm: str) -> str:
    own = config[arm].pretraining
    stages = stage_configs(own)
    tokens = sum(stage.steps * stage.batch_size * stage.length for stage in stages) / 1e6
    each = ", then ".join(f"{s.steps:,} × {s.batch_size} × {s.length}" for s in stages)
    return f"{each} ({tokens:.1f} million tokens)"


def _rate(config: ConfigDict, arm: str) -> str:
    return f"{config[arm].pretraining.optimizer.learning_rate:g}"


def _small_model(config: ConfigDict) -> str:
    own = config.from_scratch.pretraining
    return f"{size_in_words(model_config(own))}, {own.data.vocab_size:,} WordPieces"


_SHARED = "as BERT; the same for all"
SETTINGS: tuple[Setting, ...] = (
    Setting(
        "model from scratch",
        _small_model,
        "BERT-medium: 8 layers of 512",
        "hours on two cores",
    ),
    Setting(
        "published model",
        lambda config: Path(config.published).name or "none: that arm is left out",
        "BERT-base",
        "hours on two cores; MiniLM has been trained to match 87,599 questions of SQuAD's training "
        "set with their paragraphs, by its README: perhaps much of its lead on spans",
    ),
    Setting(
        "text to pretrain on",
        lambda config: config.text,
        "Wikipedia and BooksCorpus",
        "what is at hand",
    ),
    Setting(
        "pretraining from scratch: steps × rows × length",
        lambda config: _stages(config, "from_scratch"),
        "BERT-medium, 10 epochs of 128, 2 of 512",
        "hours on two cores; short inputs first, as positions are learned from them soonest",
    ),
    Setting(
        "its learning rate",
        lambda config: _rate(config, "from_scratch"),
        "5e-5",
        "the paper's moves so small a model little in so few steps",
    ),
    Setting(
        "pretraining further: steps × rows × length",
        lambda config: _stages(config, "replaced"),
        "BERT-base, 5 epochs of 128, 2 of 512",
        "hours on two cores; it costs more than new positions do: MiniLM as published answers with "
        "an F1 of 39, with its positions kept of 13 after these steps at 1e-4. After only 200: of "
        "12 (16 tokens, 1e-4), 13 (256 tokens, 1e-4), 14 (16 tokens, its encoder at 3e-5); its "
        "encoder held fixed while a learned relative table is trained for 500, of 9 (one or two "
        "seeds each)",
    ),
    Setting(
        "its learning rate",
        lambda config: _rate(config, "replaced"),
        "5e-5",
        "replaced positions have few steps to be learned in: at 1e-4 a learned relative table had "
        "not begun to help after 750",
    ),
    Setting(
        "size of absolute sinusoids",
        lambda config: ", ".join(sorted(set(re.findall(r"scale=([^,)]*)", config.replaced.first)))),
        "1",
        "that of learned positions: at 1 they drown words, MiniLM's too (masked-LM loss 6.8 after "
        "650 steps, without positions 5.9)",
    ),
    Setting(
        "dropout in pretraining",
        lambda config: f"{config.from_scratch.pretraining.model.dropout_rate:g}",
        "–",
        "far less than one epoch: nothing to overfit",
    ),
    Setting(
        "AdamW's b2",
        lambda config: f"{config.from_scratch.pretraining.optimizer.b2:g}",
        "–",
        "BERT's 0.999 remembers the large first gradients for 1,000 steps",
    ),
    Setting(
        "steps of fine-tuning",
        lambda config: (
            ", ".join(f"{task} {steps}" for task, steps in config.steps.items())
            + f"; {config.glue.data.batch_size} rows, questions {config.squad.data.batch_size}"
        ),
        "3 epochs of 32 rows",
        "hours on two cores",
    ),
    Setting(
        "learning rate of fine-tuning",
        lambda config: (
            f"{config.glue.optimizer.learning_rate:g}, "
            f"questions {config.squad.optimizer.learning_rate:g}"
        ),
        "2e-5, questions 3e-5",
        "fewer steps of smaller models; MiniLM as published answers with an F1 of 39 after 120 "
        "steps of 2e-4, of 18 with 5e-4 (one seed)",
    ),
    Setting(
        "inputs of fine-tuning",
        lambda config: f"{config.glue.data.length}, questions {config.squad.data.length} tokens",
        "128, questions 384",
        "pretraining's longest; 512 is for what was not trained on",
    ),
    Setting(
        "dropout in fine-tuning",
        lambda config: f"{config.glue.model.dropout_rate:g}",
        "–",
        _SHARED,
    ),
    Setting(
        "step that counts, GLUE",
        lambda config: (
            f"best on {config.glue.data.held_out:.0%} of train, of every {config.glue.eval_every}"
        ),
        "the last",
        "no choice on what is reported",
    ),
    Setting(
        "step that counts, SQuAD",
        lambda config: f"the {config.squad.select}",
        "the best on what is reported, of every 1,000",
        "no choice on what is reported",
    ),
    Setting(
        "questions to train on",
        lambda config: config.squad.data.train,
        "SQuAD's own training set",
        "the training set is not at hand",
    ),
    Setting(
        "questions to answer",
        lambda config: config.squad.data.validation,
        "all of the validation set",
        "hours on two cores; the first articles of the set, for all models alike",
    ),
)
