"""The three properties of any encoding, by name or as an object, by P·Pᵀ or by logits."""

import json

import catalogue
import jax
import numpy as np
import pytest

from pe_jax import encodings, properties

SIZES = {"hidden_size": 16, "head_size": 8, "num_heads": 2}


def small(name, max_length=32):
    return encodings.from_name(name, **SIZES, max_length=max_length)


def of_properties(found):
    return [
        found.translation_invariance,
        found.monotonicity,
        found.monotonicity_near,
        found.symmetry,
    ]


def test_absolute_encodings_are_measured_by_their_vectors():
    """As the metrics give for P·Pᵀ: of a sinusoid, and of a table of these parameters."""
    found = properties.measure(small("sinusoidal_absolute"), length=12)
    assert (found.by, found.turning_point, found.parameter_count) == ("P·Pᵀ", 3, 0)
    assert found.translation_invariance < 1e-6 and found.symmetry == 0
    table = jax.random.normal(jax.random.key(0), (12, 16))
    params = {"learned_absolute": {"table": table}}
    found = properties.measure(small("learned_absolute", 12), params, length=12)
    phi = properties.proximity(table)
    expected = (
        properties.translation_invariance(phi),
        properties.monotonicity(phi),
        properties.monotonicity(phi, 10),
        properties.symmetry(phi),
    )
    assert (
        found.by == "P·Pᵀ"
        and found.turning_point is None
        and found.parameter_count == 12 * 16
    )
    np.testing.assert_allclose(of_properties(found), expected, rtol=1e-5)


def test_other_encodings_are_measured_by_logits():
    alibi = properties.measure(small("alibi"), length=12)
    assert alibi.by == "logits" and max(of_properties(alibi)) < 1e-6
    rope = properties.measure(small("rope"), length=12)
    assert rope.translation_invariance < 1e-6 and 0 < rope.monotonicity < 1
    assert rope.turning_point is not None
    both = properties.measure(small("learned_absolute+alibi"), length=12)
    assert both.by == "logits" and both.translation_invariance > 1e-3
    masked = properties.measure(small("learned_absolute+causal"), length=12)
    assert masked.by == "P·Pᵀ" and masked.symmetry is None


def test_encodings_for_causal_attention_are_joined_with_causal():
    found, same = (
        properties.measure(small(n), length=12) for n in ("xpos", "xpos+causal")
    )
    assert found == same and found.symmetry is None


def test_a_layer_of_an_encoding_whose_layers_differ():
    layered = small("cycle(alibi, learned_relative)")
    alibi, learned = (properties.measure(layered, length=12, layer=i) for i in (0, 1))
    assert alibi.monotonicity < 1e-6 < learned.monotonicity
    assert alibi.parameter_count == learned.parameter_count


def test_what_cannot_be_measured():
    with pytest.raises(ValueError, match="rope"):
        properties.measure("ropee")
    message = "length must be at most 32, the positions of learned_absolute, got 33"
    with pytest.raises(ValueError, match=message):
        properties.measure(small("learned_absolute"), length=33)


@pytest.mark.slow
@pytest.mark.parametrize("row", catalogue.rows(), ids=lambda row: row.title)
def test_every_encoding_of_the_catalogue(row):
    found = properties.measure(row.name, length=24)
    assert all(np.isfinite(x) for x in found[1:] if x is not None)


def test_the_numbers_of_a_picture():
    found = properties.picture(small("rope+window(max_distance=3)"), lengths=[8, 12])
    heat, curve = np.array(found["heat"], float), found["curve"]
    reach = abs(np.arange(8) - np.arange(8)[:, None]) <= 3
    assert found["by"] == "logits" and (np.isnan(heat) == ~reach).all()
    assert curve["offset"] == list(range(-7, 8)) and curve["mean"].count(None) == 8
    at = [curve["mean"][7 + m] for m in range(4)]  # Offsets alone matter.
    np.testing.assert_allclose(heat[2, 2:6], at, atol=6e-3)
    assert abs(heat[reach].mean()) < 0.01 and abs(heat[reach].std() - 1) < 0.01
    assert found["psi"][0] == 1 and json.loads(json.dumps(found)) == found
    same = properties.measure(small("rope+window(max_distance=3)"), length=12)
    assert found["properties"]["12"]["monotonicity"] == round(same.monotonicity, 3)


def test_pictures_of_what_is_constant_or_one_sided_or_short():
    flat = properties.picture(small("none"), lengths=[8])
    assert flat["sigma"] == 0 and not np.any(flat["heat"]) and flat["psi"] is None
    causal = properties.picture(small("learned_absolute+causal", 12), lengths=[12, 64])
    assert causal["by"] == "P·Pᵀ" and set(causal["properties"]) == {"12"}
    assert causal["heat"][0][1:] == [None] * 11
    assert causal["properties"]["12"]["symmetry"] is None
    directed = properties.picture(small("alibi(directed=True)"), lengths=[8])
    assert (np.diff(directed["heat"][0]) < 0).all() and (
        np.diff(directed["heat"][7]) > 0
    ).all()
    assert directed["sigma"] > 0 and set(directed["properties"]["8"].values()) == {None}
    with pytest.raises(ValueError, match=r"lengths must be at most 12 .*, got \[64\]"):
        properties.picture(small("learned_absolute", 12), lengths=[64])
