"""The encodings of the comparison can be built, each once, controls first; trained models leave
pictures."""

import json

from helpers import tiny_run

from pe_jax import encodings
from pe_jax.trainer.tasks import pretraining
from research.which_encoding.names import NOT_POSITIONS, encodings_to_compare
from research.which_encoding.results import FOLDER
from research.which_encoding.trained_model import trained_picture


def test_every_name_is_an_encoding():
    names = encodings_to_compare()
    assert names[:3] == ["none", "learned_absolute", "rope"] and len(names) == len(
        set(names)
    )
    built = [
        encodings.from_name(
            name, hidden_size=256, head_size=64, num_heads=4, max_length=1024
        )
        for name in names
    ]
    times = json.loads((FOLDER / "times.json").read_text(encoding="utf-8"))
    assert set(times) <= set(names) and min(times.values()) > 0.5
    assert all(encoding.axes == 1 for encoding in built) and not NOT_POSITIONS & set(
        names
    )


def test_a_trained_model_leaves_its_picture(tmp_path):
    changes = {"model.position": "rope", "model.max_length": 64, "stage1.steps": 0}
    changes |= {"stage2.steps": 1, "stage2.length": 64, "stage2.max_predictions": 9}
    pretraining.run(tiny_run.config(tmp_path, **changes), tmp_path / "run")
    numbers = trained_picture(tmp_path / "run")
    assert (
        numbers["by"] == "logits"
        and len(numbers["heat"]) == 32
        and numbers["sigma"] > 0
    )
    assert len(json.dumps(numbers)) < 10_000


def test_the_picture_of_a_table_is_that_of_its_trained_vectors(tmp_path):
    config = tiny_run.config(tmp_path, **{"model.max_length": 64})
    tiny_run.save_untrained(config, tmp_path / "run")
    numbers = trained_picture(tmp_path / "run")
    assert numbers["by"] == "P·Pᵀ" and set(numbers["properties"]) == {"64"}
