"""Generated sentences with labels, tagged words, and questions with answers, to fine-tune on."""

import json
import types

import jax
import numpy as np

from helpers import tiny_run
from pe_jax.common.schema import from_values
from pe_jax.trainer.configs import glue as glue_config
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.data import glue
from pe_jax.trainer.tasks import finetuning
from pe_jax.trainer.training.checkpointing import newest_params


def examples(count, seed):
    """Two words each; the label is whether the first of them is greater."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        words = rng.choice(tiny_run.WORDS, rng.integers(2, 12))
        found.append(
            {"sentence": " ".join(words).encode(), "label": int(words[0] > words[1])}
        )
    return found


def questions(path, count, seed, answers=True):
    """Official JSON: where is a word of the context?"""
    rng = np.random.default_rng(seed)
    qas = []
    for number in range(count):
        words = [str(word) for word in rng.choice(tiny_run.WORDS, 12, replace=False)]
        at = int(rng.integers(12))
        gold = {"text": words[at], "answer_start": len(" ".join([*words[:at], ""]))}
        gold = [gold] if answers or number % 2 else []
        one = {"id": f"q{number}", "question": f"where {words[at]}", "answers": gold}
        qas.append({"context": " ".join(words), "qas": [one]})
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": qas}]}))
    return str(path)


def tagged_sentences(path, count, seed):
    """A CoNLL file: words that begin with a letter before "n" are entities, joined if adjacent."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        before = False
        for word in rng.choice(tiny_run.WORDS, rng.integers(2, 12)):
            is_entity = word < "n"
            label = ("I-x" if before else "B-x") if is_entity else "O"
            lines.append(f"{word}\t{label}")
            before = is_entity
        lines.append("")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def zero_params(program):
    """Parameters of the shapes of `program.init()`, which takes a second to compile."""
    shapes = program.state_shapes.params
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def encoders_at_the_start(run, folder, monkeypatch):
    """Return the encoders that fine-tuning from a run starts with, of its seed, and the run's."""
    sets = {"train": examples(20, 0), "validation": examples(9, 1)}
    opened = lambda *_, **__: types.SimpleNamespace(as_data_source=sets.__getitem__)
    monkeypatch.setattr(glue, "open_dataset", opened)
    c = glue_config.get_config()
    c.init, c.seeds, c.steps = str(run), (3,), 1
    c.data.update(length=16, buckets=(), batch_size=8, eval_batch_size=8)
    resolved = finetuning.resolve(from_values(c, FinetuningConfig))
    experiment = finetuning.build(resolved, folder)
    params, _ = finetuning.start_from(
        experiment.config, experiment.program, zero_params(experiment.program)
    )
    return params["bert"], newest_params(run)[1]["bert"]
