"""Names of encodings: what they mean, how they are written, which mean nothing."""

import pytest
from helpers.small_encodings import SIZES, SMALL

from pe_jax import encodings
from pe_jax.common.values import split_names
from pe_jax.encodings.parser import PAPER, without_options


def test_the_paper_has_13():
    assert len(PAPER) == len(set(PAPER)) == 13


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("learned_absolut", "Did you mean learned_absolute"),
        (
            "learned_absolute+relative",
            "'relative' is unknown.*in 'learned_absolute\\+relative'",
        ),
        ("", "Cannot read the position encoding ''"),
        ("+".join(["rope"] * 1_000), r"has 999 '\+' and '\(', but at most 100"),
        ("per_layer(" * 1_000 + ")" * 1_000, r"has 1,000 '\+' and '\('"),
        ("-" * 100_000 + "rope", "Cannot read the position encoding '----"),
        ("rope" + ".a" * 100_000, "Cannot read the position encoding 'rope.a"),
        ("rope(base=" + "9" * 5_000 + ")", "Cannot read the position encoding"),
        ("rope\ud83d", "Cannot read the position encoding"),
        ("rope\0", "Cannot read the position encoding"),
        ("learned_absolute+", "Cannot read the position encoding"),
        ("learned_relative+learned_relative", "Use each family once"),
        (
            "learned_relative(max_distance=4)+learned_relative(max_distance=8)",
            "Use each family once",
        ),
        ("learned_relative(clip=3)", "has no option 'clip'. Did you mean max_distance"),
        ("inkling(clip=8)", "has no option 'clip'. Did you mean max_norm"),
        ("inkling(extent=8)", "Did you mean max_distance, which is one less"),
        ("learned_relative(max_distance=3, max_distance=4)", "given twice"),
        (
            "learned_relative(max_distance='three')",
            "'max_distance' takes int, got 'three'",
        ),
        ("learned_relative(max_distance=2.5)", "'max_distance' takes int, got 2.5"),
        ("learned_relative(max_distance=True)", "'max_distance' takes int, got True"),
        ("learned_relative(max_distance=0)", "must be at least 1, got 0"),
        ("sinusoidal_relative(base=0)", "base must be positive, got 0"),
        ("learned_relative(3)", "must be written NAME=VALUE"),
        ("learned_relative(max_distance=1 + 2)", "is not a number, a word or a tuple"),
        ("1+none", "'1' is not an encoding"),
        ("none.x", "'none.x' is not an encoding"),
        (
            "__import__('os')",
            "'__import__' is unknown. Among others there are none, .* lists all names",
        ),
    ],
)
def test_names_that_mean_nothing(name, message):
    with pytest.raises(ValueError, match=message):
        encodings.from_name(name, **SMALL)


@pytest.mark.parametrize(
    "name",
    [
        "learned_relative(max_distance=16)",
        "learned_relative(max_distance=16, separate=True)",
        "sinusoidal_absolute(base=500, scale=0.03)",
        "sinusoidal_relative(max_distance=None)+learned_absolute",
        "pope(random_phases=True)",
        "fox(gate_bias=2)",
        "rope_axial(base=10000, axes=4)",
        "rope_axial(width=3)",
        "tupe(untied_cls=False)",
        "complex_order(vocab_size=7)",
        "randomized(pope, num_positions=50)",
        "randomized(learned_absolute, num_positions=12)"
        "+randomized(pope, num_positions=12, real=True)",
    ],
)
def test_names_parse_back(name):
    assert encodings.from_name(name, **SIZES).name == name


def test_a_default_that_is_written_out_is_left_out():
    assert encodings.from_name(
        "sinusoidal_relative( max_distance = 64 )", **SMALL
    ).name == ("sinusoidal_relative")


def test_lists_of_names_are_cut_outside_parentheses():
    text = "none, learned_relative(max_distance=4, separate=True),cycle(none, none)"
    assert split_names(text) == [
        "none", "learned_relative(max_distance=4, separate=True)", "cycle(none, none)"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("none", "none"),
        ("rope(base=500) + alibi", "rope+alibi"),
        ("none+learned_absolute+rope(base=5)", "none+learned_absolute+rope"),
        ("interpolated(rope(base=500), factor=2)", "interpolated(rope)"),
        ("cycle(rope(base=500), none)", "cycle(rope, none)"),
    ],
)
def test_names_without_options(name, bare):
    assert without_options(name) == bare


def test_a_name_that_cannot_be_read_has_none_without_options():
    with pytest.raises(
        ValueError, match="Cannot read the position encoding 'learned kept'"
    ):
        without_options("learned kept")
