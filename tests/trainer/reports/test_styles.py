"""Colours and dashes of encodings in figures."""

import pytest

from pe_jax import encodings
from pe_jax.encodings.parser import PAPER
from pe_jax.trainer.figures import style


def test_an_encoding_looks_the_same_in_every_figure():
    names = [*encodings.ENCODINGS, *PAPER[7:]]
    alone = {name: style.encoding_styles([name])[0] for name in names}
    paper = style.encoding_styles(PAPER)
    assert paper == [alone[name] for name in PAPER]
    assert len({str(look) for look in paper}) == len(paper)
    some = ["t5", "rope", "none", "alibi", "learned_relative"]
    assert style.encoding_styles(some) == [alone[name] for name in some]
    assert len({str(look) for look in alone.values()}) > 65


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("none", "none"),
        ("causal", "modifiers"),
        ("rope(base=500)", "rotary"),
        ("cycle(rope, rope+window(radius=5), none)", "rotary"),
        ("interpolated(learned_relative, factor=4)", "relative"),
        ("own(t5)+causal", "bias"),
        ("learned_absolute+rope", "joined"),
        ("a run's name", "own"),
        ("", "own"),
    ],
)
def test_families(name, family):
    assert style._family(name)[0] == family


def test_lines_that_would_look_the_same_get_other_dashes():
    names = ["rope", "rope+causal", *(f"rope(base={n})" for n in range(2, 7))]
    looks = style.encoding_styles(names)
    assert len({str(look["linestyle"]) for look in looks}) == len(looks) == 7
    assert len({look["color"] for look in looks}) == 1
    assert looks[0] == style.encoding_styles(["rope"])[0]
