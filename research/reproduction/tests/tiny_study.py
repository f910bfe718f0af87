"""A study of one small encoding, two tasks and a few steps of training."""

from helpers import tiny_run
from helpers.finetuning_data import questions

from pe_jax.common.schema import from_values
from research.reproduction import config as study_config
from research.reproduction.config import ReproductionConfig


def config(folder, **changes):
    """`changes` by dotted key."""
    return from_values(config_dict(folder, **changes), ReproductionConfig)


def config_dict(folder, **changes):
    """The same as a config file has it."""
    c = study_config.get_config()
    c.text = str(tiny_run.write_books(folder))
    own = c.from_scratch
    own.first, own.then, own.repeats = "learned_absolute", "", (1,)
    sizes = tiny_run.config_dict(folder)
    own.training.model.update(sizes.model.to_dict())
    own.training.model.update(
        dropout_rate=0.0, attention_dropout_rate=0.0, max_length=48
    )
    own.training.data.update(sizes.data.to_dict())
    own.training.stage1.update(length=16, batch_size=8, max_predictions=3, steps=4)
    own.training.stage2.update(length=24, batch_size=8, max_predictions=3, steps=2)
    own.training.stage3.steps = 0
    own.training.update(checkpoint_every=2, eval_examples=8, log_every=2)
    own.tasks = "squad,cola"
    c.steps.update(squad=2, cola=4)
    for part in (c.glue, c.squad):
        part.seeds = (0, 1)
        part.data.update(batch_size=8, eval_batch_size=8)
        part.model.update(dropout_rate=0.0, attention_dropout_rate=0.0)
    c.glue.eval_every = 2
    # Without buckets: each is one more shape for which the step is compiled.
    c.glue.data.update(length=16, buckets=(), held_out=0.25)
    c.squad.data.update(length=24, buckets=(), stride=8, max_query=6)
    c.squad.data.train = questions(folder / "train.json", 40, 0)
    c.squad.data.validation = questions(folder / "dev.json", 10, 1)
    c.lengths = (32,)
    c.measures.update(length=16, windows=(5, 10), words=4, score_examples=8)
    c.update_from_flattened_dict(changes)
    return c


def entry(run):
    """What the result.json of a run holds."""
    measures = {"squad": ["squad f1", "squad exact"]}.get(run.kind, [run.kind])
    origin = {"settings": run.settings, "code": "", "jax": "", "device": "", "cores": 1}
    task = {"dataset": "", "trained_on": "", "select": "", "metric": "f1", "steps": [1]}
    values = {name: {"0": 1.0} for name in measures}
    return {**origin, **task, "baseline": {"f1": 0.0, "exact": 0.0}, "values": values}
