"""Options that do not fit, or are too large, are errors."""

import functools
import inspect
import re
import typing

import jax
import jax.numpy as jnp
import pytest
from helpers.small_encodings import SMALL

from pe_jax import encodings

REQUIRED = {
    "factor": 2.0, "original_length": 8, "height": 4, "width": 4, "max_distance": 3,
    "size": 3, "short": (1.0, 1.0), "long": (2.0, 2.0),
}  # fmt: skip


def options_of_type(kind):
    """`(name, option, build)` of all options of numbers of a type, or of tuples of them."""
    sizes = {"hidden_size": 8, "head_size": 4, "num_heads": 2, "max_length": 16}
    makers = {
        **encodings.ENCODINGS,
        **{
            name: functools.partial(make, encodings.alibi(num_heads=2))
            for name, make in encodings.WRAPPERS.items()
        },
    }
    for name, make in makers.items():
        parameters = inspect.signature(make).parameters
        needed = {
            key: {**sizes, **REQUIRED}[key]
            for key, parameter in parameters.items()
            if parameter.default is parameter.empty
        }
        for option, parameter in parameters.items():
            if kind in str(parameter.annotation):
                share = "tuple" in str(parameter.annotation)

                def build(value, make=make, needed=needed, option=option, share=share):
                    return make(
                        **{**needed, option: (value, value) if share else value}
                    )

                yield name, option, build


def options_of_choices():
    """`(name, option, choices)` of all options with a Literal."""
    found = []
    for name, make in {**encodings.ENCODINGS, **encodings.WRAPPERS}.items():
        for option, kind in typing.get_type_hints(make).items():
            if typing.get_origin(kind) is typing.Literal:
                found.append((name, option, typing.get_args(kind)))
    return found


CHOICES = options_of_choices()


@pytest.mark.parametrize(("name", "option", "choices"), CHOICES)
def test_another_choice_is_refused_with_the_choices(name, option, choices):
    accepted = " or ".join(map(repr, choices))
    makers = {**encodings.ENCODINGS, **encodings.WRAPPERS}
    for value in ("x", choices[0].upper(), 1, None, list(choices)):
        message = f"{option} of {name} must be {accepted}, got"
        inside = [encodings.alibi(num_heads=2)] if name in encodings.WRAPPERS else []
        with pytest.raises(ValueError, match=re.escape(message)):
            makers[name](*inside, **{option: value})
    message = f"the option {option!r} takes {accepted}, got 'x'"
    with pytest.raises(ValueError, match=re.escape(message)):
        encodings.from_name(
            f"{name}({option}='x')",
            hidden_size=8,
            head_size=4,
            num_heads=2,
            max_length=16,
        )


def test_options_of_choices_are_found():
    assert len(CHOICES) > 15
    assert ("kerple", "kernel", ("log", "power")) in CHOICES
    assert {option for _, option, _ in CHOICES} >= {"layout", "gate", "count"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("t5(num_buckets=2)", "at least 4"),
        ("t5(num_buckets=7)", "even with bidirectional=True"),
        ("t5(max_distance=8)", "max_distance=8 must be greater than 8"),
        ("fire(width=0)", "width must be at least 1, got 0"),
        ("fire(threshold=0)", "threshold must be positive, got 0"),
        ("transformer_xl(max_distance=0)", "max_distance must be at least 1, got 0"),
        ("deberta(num_buckets=2)", "at least 4.*got 2"),
        ("deberta(num_buckets=7)", "even.*got 7"),
        ("deberta(num_buckets=64, max_distance=33)", "below max_distance - 1 = 32"),
        ("deberta(num_buckets=None, max_distance=0)", "must be at least 1, got 0"),
        ("kerple(kernel='exp')", "kernel"),
        ("sandwich(dim=3)", "must be even and positive, got 3"),
        ("tisa(kernels=0)", "kernels must be at least 1, got 0"),
        ("dynamic_position_bias(depth=0)", "depth must be at least 1, got 0"),
        ("dynamic_position_bias(bound=0)", "bound must be positive, got 0"),
        ("nezha(max_distance=0)", "max_distance must be at least 1, got 0"),
        ("cope(num_positions=1)", "num_positions must be at least 2, got 1"),
        ("rope_slice(size=3)", r"size \(default .*\) must be even and positive, got 3"),
        (
            "decoupled_rope(size=0)",
            r"size \(default .*\) must be even and positive, got 0",
        ),
    ],
)
def test_options_that_do_not_fit(name, message):
    with pytest.raises(ValueError, match=message):
        encodings.from_name(name, **SMALL)


@pytest.mark.parametrize("kind", [int, float])
def test_refused_options_are_documented(kind):
    makers = encodings.ENCODINGS | encodings.WRAPPERS
    undocumented = set()
    for name, option, build in options_of_type(kind.__name__):
        make = makers[name]
        if option in SMALL or "Raises:" in make.__doc__:
            continue
        for value in (0, -1):
            try:
                build(kind(value))
            except ValueError:
                undocumented.add(f"{name}({option}={value})")
    assert not undocumented


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda x: encodings.rope(head_size=4, base=x),
            r"base of rope .* float32\[\].*learnable=True",
        ),
        (
            lambda x: encodings.window(max_distance=x),
            r"max_distance of window .*of an encoding that learns",
        ),
        (
            lambda x: encodings.randomized(
                encodings.alibi(num_heads=1), num_positions=x
            ),
            "num_positions of rand",
        ),
    ],
)
def test_options_are_no_arrays(build, message):
    with pytest.raises(ValueError, match=message):
        jax.vmap(lambda x: build(x).in_attention.init(jax.random.key(0)))(jnp.ones(3))
    with pytest.raises(ValueError, match=message):
        build(jnp.float32(3))


@pytest.mark.parametrize("number", [10**9, 2**40, 10**100, -(10**9)])
def test_integers_are_bounded(number):
    """Of every encoding; refused before anything of that size is made."""
    options = list(options_of_type("int"))
    assert len(options) > 100
    for name, option, build in options:
        with pytest.raises(
            ValueError, match=f"{option} of {name} must be at most 16,777,216"
        ):
            build(number)


@pytest.mark.parametrize("number", [1e-300, 1e308, float("inf"), float("nan"), 10**400])
def test_numbers_are_float32(number):
    options = list(options_of_type("float"))
    assert len(options) > 60
    for name, option, build in options:
        with pytest.raises(
            ValueError, match=f"{option} of {name} must be a float32 number"
        ):
            build(number)


def test_parameters_are_bounded():
    message = (
        r"learned_relative\(.*\): the parameter table would have 2,147,483,776 numbers"
    )
    with pytest.raises(ValueError, match=message):
        encodings.learned_relative(head_size=128, max_distance=2**23)
    with pytest.raises(ValueError, match=r"learned_absolute.*at most 536,870,912"):
        encodings.learned_absolute(hidden_size=4096, max_length=2**20)
