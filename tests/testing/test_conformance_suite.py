"""Every encoding through every check of `pe_jax.testing`, and that the checks find mistakes."""

import dataclasses
import functools
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import EXCUSED, REFERENCES

from pe_jax import encodings, testing
from pe_jax.attention import attention, attention_logits
from pe_jax.encodings import Metadata, OffsetTerms, Part, PositionEncoding, Traits
from pe_jax.encodings.parser import PAPER
from pe_jax.encodings.positions import as_array
from pe_jax.testing import CHECKS, Reference, Subject
from pe_jax.testing.reference import joined
from pe_jax.testing.subject import SIZES

# What options, and encodings joined, could break; the rest was checked of what they are made from.
# `implementations` is added where a name differs from all before it in what attention can see.
OF_OPTIONS = ("formula", "parameters", "name")
OF_JOINED = ("formula", "limit", "parameters", "name")


@functools.cache
def build(name):
    return encodings.from_name(name, **SIZES)


# What each reference is of, wrappers included, and the first name of that: an option may be
# required.
PARTS = {
    name: tuple(part.name.partition("(")[0] for part in build(name).parts)
    for name in REFERENCES
}
FIRST = {parts: name for name, parts in reversed(PARTS.items())}


def seen_by_implementations(name):
    """What decides how attention computes an encoding. Parts that act on embeddings, and options
    that only change numbers, of tables, biases, positions or mapped vectors, make no difference to
    an implementation."""
    seen = []
    for part in build(name).in_attention.parts:
        terms = part.offsets or OffsetTerms()
        has = [
            part.positions,
            part.map_qkv,
            part.map_output,
            part.sink,
            *list(vars(terms).values())[:-2],
        ]
        learned = part.init is not encodings.part.no_parameters
        # These return arrays of several kinds, which options may choose.
        own = part.name if part.logits or part.scale or part.map_logits else part.key
        seen.append(
            (
                own,
                learned,
                *(hook is not None for hook in has),
                terms.max_distance,
                terms.window,
            )
        )
    return tuple(seen)


SEEN = {name: seen_by_implementations(name) for name in REFERENCES}
FIRST_SEEN = {seen: name for name, seen in reversed(SEEN.items())}


def checks(name):
    parts = PARTS[name]
    new = not set(parts) <= set(REFERENCES) and FIRST[parts] == name
    if name in parts or new:
        return CHECKS
    implementations = (
        ("implementations",) if FIRST_SEEN[SEEN[name]] == name or not parts else ()
    )
    return (*(OF_JOINED if len(parts) > 1 else OF_OPTIONS), *implementations)


@functools.lru_cache(
    maxsize=2
)  # Tests of one encoding follow one another and share programs.
def subject(name):
    return Subject(build(name), REFERENCES[name])


def hooks(name):
    """The hooks that the parts of an encoding have."""

    def present(owner, fields):
        return tuple(field for field in fields if getattr(owner, field) is not None)

    return tuple(
        present(part, HOOKS)
        + present(part.offsets or OffsetTerms(), vars(OffsetTerms()))
        for part in build(name).parts
    )


# Without `positions`, which all others see alike.
HOOKS = "embed", "map_qkv", "logits", "map_logits", "scale", "map_output", "sink"
HAS = {name: hooks(name) for name in REFERENCES if checks(name) is CHECKS}
FIRST_WITH = {has: name for name, has in reversed(HAS.items())}
# What depends on the numbers that a hook computes, and what takes no time. The rest is of what JAX,
# attention and caches do with hooks.
OF_NUMBERS = ("formula", "limit", "parameters", "name")
# JAX transforms each hook by itself: these are checked where a hook occurs for the first time.
OF_TRANSFORMATIONS = ("jit", "vmap", "scan", "derivatives")


def first_with_a_hook():
    """The names of encodings that have a hook which no encoding before them has."""
    names, known = set(), set()
    for name, parts in HAS.items():
        hooks_of_name = {hook for part in parts for hook in part}
        if not hooks_of_name <= known:
            names.add(name)
        known |= hooks_of_name
    return names


FIRST_WITH_A_HOOK = first_with_a_hook()


def case(name, check):
    """By default run all checks of the first encoding with certain hooks, `OF_TRANSFORMATIONS` if
    one of the hooks is new, and `OF_NUMBERS` of every encoding without options."""
    first = name in HAS and FIRST_WITH[HAS[name]] == name
    if check in OF_TRANSFORMATIONS:
        first = name in FIRST_WITH_A_HOOK
    fast = first or (check in OF_NUMBERS and name in PARTS[name])
    return pytest.param(name, check, marks=() if fast else pytest.mark.slow)


CASES = [case(name, check) for name in REFERENCES for check in checks(name)]


@pytest.mark.parametrize(("name", "check"), CASES)
def test_every_encoding(name, check):
    told = CHECKS[check](subject(name), EXCUSED.get(name, {}).get(check, ""))
    assert told


def test_every_registered_encoding_has_a_reference():
    known = set(
        re.findall(r"\w+(?=[(+]|$)", " ".join(f"{name}+" for name in REFERENCES))
    )
    assert not {*encodings.ENCODINGS, *encodings.WRAPPERS} - known
    assert set(PAPER) <= set(REFERENCES)
    assert set(EXCUSED) <= set(REFERENCES)


# --- encodings with a mistake ---------------------------------------------------------------------


def decay(wanted=lambda bias: bias, **changes):
    """-rate·|j - i| with a learned rate for each head, and something wrong with it."""
    offsets = OffsetTerms(
        bias=lambda params, x, _: wanted(-jnp.abs(x)[..., None] * params["rate"]),
    )
    part = Part(
        name="decay",
        init=lambda key: {"rate": jnp.full(2, 0.3)},
        offsets=offsets,
        metadata=Metadata(
            formula="-r·|m|", source="here", parameters="H", invariant=True
        ),
    )
    return PositionEncoding(parts=(part.replace(**changes),))


def rotation(dtype=None):
    """RoPE, whose angles are computed in a dtype, by default that of queries and keys."""

    def rotate(x, positions):
        angle_dtype = dtype or x.dtype
        w = jnp.asarray([1.0, 0.1], angle_dtype)
        angle = (jnp.asarray(as_array(positions), angle_dtype)[..., None] * w).astype(
            jnp.float32
        )
        angle = angle[..., None, :] if angle.ndim == 3 else angle[None, :, None, :]
        a, b = x[..., :2].astype(jnp.float32), x[..., 2:].astype(jnp.float32)
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(
            x.dtype
        )

    def heads(params, q, k, v, context):
        return rotate(q, context.positions_q), rotate(k, context.positions_k), v

    metadata = Metadata(formula="R(w m)", source="here", invariant=True)
    return PositionEncoding(
        parts=(Part(name="rotation", map_qkv=heads, metadata=metadata),)
    )


def clamped():
    """A table whose last row stands for every position after it."""

    def embed(params, x, context):
        return x + params["table"][jnp.clip(as_array(context.positions_q), 0, 15)]

    part = build("learned_absolute").parts[0]
    return PositionEncoding(parts=(part.replace(embed=embed),))


def unclaimed():
    """Reads hidden states, without saying so: a cache does not keep them."""
    part = build("fox").parts[0]
    return PositionEncoding(parts=(part.replace(traits=Traits()),))


def by_order():
    """Takes the place in memory for the position."""
    part = build("learned_absolute").parts[0]
    embed = lambda params, x, _: x + params["table"][: x.shape[1]]
    return PositionEncoding(parts=(part.replace(embed=embed, traits=Traits()),))


def without_gradient():
    stopped = lambda bias: jax.lax.stop_gradient(bias)
    return decay(stopped)


def by_number_of_keys():
    """Frequencies that follow the length of the input, in a cache or padded as well."""
    factor = lambda params, context: len(as_array(context.positions_k).T) ** 0.5
    return decay(scale=factor)


def clip_that_is_none():
    offsets = build("sinusoidal_relative(max_distance=None)").parts[0].offsets
    return decay(
        init=encodings.part.no_parameters, offsets=offsets.replace(max_distance=2)
    )


def shape_of_jit():
    """Another answer where positions are traced."""

    def embed(params, x, context):
        return x if isinstance(context.positions_q, jax.core.Tracer) else x + 1.0

    return decay(embed=embed)


def future():
    """What is cached for a key changes with every token."""
    return decay(
        map_qkv=lambda params, q, k, v, context: (q, k * k.sum(1, keepdims=True), v)
    )


def one_sided_derivative():
    """A backward pass written by hand: no forward mode."""

    @jax.custom_vjp
    def same(x):
        return x

    same.defvjp(lambda x: (x, None), lambda _, g: (g,))
    return decay(same)


CARD = decay().parts[0].metadata
FORMULA = Reference(
    score=lambda params, p: p.q @ p.k / 2 - params["rate"][p.head] * jnp.abs(p.j - p.i)
)
BROKEN = {
    "bias scaled": (decay(lambda bias: bias / 2), ["formula"]),
    "no gradient": (without_gradient(), ["formula"]),
    "clip that is none": (clip_that_is_none(), ["implementations"]),
    "order in memory": (by_order(), ["permutation", "packing", "padding", "decoding"]),
    "number of keys": (by_number_of_keys(), ["packing", "padding"]),
    "looks ahead": (future(), ["decoding"]),
    "bfloat16 angles": (rotation(jnp.bfloat16), ["shift"]),
    "angles of the input's dtype": (rotation(), ["shift", "precision"]),
    "invariance not claimed": (
        decay(metadata=CARD.replace(invariant=False)),
        ["shift"],
    ),
    "clamped positions": (clamped(), ["limit"]),
    "jit": (shape_of_jit(), ["jit"]),
    "no forward mode": (one_sided_derivative(), ["derivatives"]),
    "hidden states not claimed": (unclaimed(), ["decoding"]),
    "unknown frequencies": (
        decay(traits=Traits(frequency_params=("rates",))),
        ["parameters"],
    ),
    "low parameters": (
        decay(init=lambda rng: {"rate": jnp.ones(2, jnp.bfloat16)}),
        ["parameters"],
    ),
    "another's name": (
        decay(name="learned_relative(max_distance=3)", params_key="learned_relative"),
        ["name"],
    ),
}
CAUGHT = [(name, check) for name, (_, checks) in BROKEN.items() for check in checks]


@functools.lru_cache(maxsize=2)
def broken(name):
    return Subject(BROKEN[name][0], FORMULA)


@pytest.mark.parametrize(("name", "check"), CAUGHT)
def test_a_mistake_is_found(name, check):
    with pytest.raises(AssertionError, match=re.escape(CHECKS[check].__doc__)):
        CHECKS[check](broken(name))


def test_every_check_that_compares_finds_some_mistake():
    """vmap and scan are JAX's own; nothing here is drawn."""
    assert set(CHECKS) - {check for _, check in CAUGHT} == {"vmap", "scan", "draws"}


def test_what_is_not_broken_passes():
    told = testing.check(decay(), FORMULA)
    assert list(told) == list(CHECKS)
    reasons = {name: reason for name, reason in told.items() if reason != "ok"}
    assert set(reasons) == {"draws", "name"} and "not registered" in reasons["name"]


def test_drawn_positions():
    """All positions later by as much as a key says, while training."""

    def positions(x, context):
        rng = context.position_rng
        return x if rng is None else as_array(x) + jax.random.randint(rng, (), 0, 99)

    part = build("sinusoidal_absolute").parts[0]
    drawing = Subject(PositionEncoding(parts=(part.replace(positions=positions),)))
    assert CHECKS["draws"](drawing) == "ok"


# --- the page of results --------------------------------------------------------------------------


@pytest.fixture
def two_checks(monkeypatch):
    """`check` and `table` with the cheap ones only."""
    some = {name: CHECKS[name] for name in ("parameters", "name")}
    monkeypatch.setattr(testing, "CHECKS", some)


@pytest.mark.usefixtures("two_checks")
def test_check_lists_every_failure():
    low = {"rate": jnp.ones(2, jnp.bfloat16)}
    bad = decay(init=lambda rng: low, traits=Traits(frequency_params=("rates",)))
    with pytest.raises(AssertionError, match=r"(?s)bfloat16, not float32.*\['rates'\]"):
        testing.check(bad)
    reason = "the paper has bfloat16"
    assert testing.check(bad, excused={"parameters": reason})["parameters"] == reason
    with pytest.raises(AssertionError, match=f"excused .*{reason}.*but has it"):
        testing.check(decay(), excused={"parameters": reason})
    with pytest.raises(
        ValueError,
        match=r"checks that do not exist, \['count'\]. The checks are parameters",
    ):
        testing.check(decay(), excused={"count": reason})


@pytest.mark.usefixtures("two_checks")
def test_table(capsys, monkeypatch):
    bad = decay(traits=Traits(frequency_params=("rates",)))
    lines = testing.table([build("learned_absolute"), bad]).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[:4]]
    assert cells[0] == ["encoding", "parameters", "name"]
    assert cells[2:] == [["`learned_absolute`", "ok", "ok"], ["`decay`", "WRONG", "–"]]
    assert "frequency_params has ['rates']" in "\n".join(lines[4:])

    monkeypatch.setattr(
        sys, "argv", ["pe_jax.testing", "none+learned_relative(max_distance=3)"]
    )
    runpy.run_module("pe_jax.testing", run_name="__main__")
    out = capsys.readouterr().out
    assert "| `learned_relative(max_distance=3)` | ok         | ok   |" in out
    assert "- name: The name parses back" in out


def test_sizes_that_do_not_fit():
    with pytest.raises(
        ValueError, match=r"hidden_size = num_heads \* head_size .* got"
    ):
        Subject(build("none"), sizes={**SIZES, "hidden_size": 10})


@pytest.mark.parametrize(
    ("encoding", "sizes"),
    [
        (encodings.none(), (8, 4, 2, 16)),
        (encodings.alibi(num_heads=8) + encodings.rope(head_size=16), (128, 16, 8, 16)),
        (encodings.learned_absolute(hidden_size=32, max_length=64), (32, 16, 2, 64)),
    ],
)
def test_sizes_are_those_of_the_encoding(encoding, sizes):
    assert tuple(Subject(encoding).sizes[name] for name in SIZES) == sizes


def test_joined_references():
    """Two biases add up; the content is counted once."""
    add = lambda c: Reference(score=lambda params, p: p.q @ p.k / 2 + c * params["by"])
    both = joined({"one": add(1.0), "two": add(10.0)})
    zeros = {field.name: np.zeros(4) for field in dataclasses.fields(testing.Pair)}
    pair = testing.Pair(**zeros).replace(q=np.ones(4), k=np.ones(4), v=np.ones(4))
    params = {"one": {"by": 2.0}, "two": {"by": 3.0}}
    assert float(both.score(params, pair)) == 2 + 2 + 30
    np.testing.assert_array_equal(both.value(params, pair), pair.v)


def test_nothing_but_jax_and_numpy():
    code = (
        "import sys, pe_jax.testing; "
        "assert not {'flax', 'pytest', 'hypothesis', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- docs/own-encoding.md -------------------------------------------------------------------------


def blocks():
    """The page's code by headline."""
    page = (Path(__file__).parents[2] / "docs/own-encoding.md").read_text()
    return {
        section.partition("\n")[0]: "\n".join(
            re.findall(r"```python\n(.*?)```", section, re.S)
        )
        for section in page.split("\n## ")[1:]
    }


@pytest.fixture(scope="module")
def page():
    """What the page defines first."""
    names = {}
    exec(blocks()["Write it"], names)
    return names


def test_the_page_writes_an_encoding(page):
    assert (
        page["distance_decay"](num_heads=4, start=1.0).name == "distance_decay(start=1)"
    )
    body = blocks()["Write it"].partition("@define_encoding")[2].partition("\n\n\n")[0]
    assert len([line for line in body.splitlines() if line.strip()]) <= 10


def test_the_page_checks_it(page):
    exec(blocks()["Check it"], names := dict(page))
    told = names["results"]
    assert told["formula"] == told["packing"] == "ok"
    assert told["name"] == "not registered with pe_jax.encodings.register_encoding"


def test_the_pages_vectors_that_meet_hidden_states(page):
    """They are Inkling's, where no offset is clipped."""
    own = page["projected_relative"](hidden_size=6, num_heads=2, max_distance=4, rank=3)
    params = own.init(jax.random.key(0))["projected_relative"]
    inkling = encodings.inkling(hidden_size=6, num_heads=2, max_distance=4, rank=3)
    q, k = jax.random.normal(jax.random.key(0), (2, 2, 5, 2, 4))
    x = jax.random.normal(jax.random.key(1), (2, 5, 6))
    for positions in (range(5), np.array([[0, 1, 2, 3, 4], [1, 0, 2, 4, 3]])):
        context = encodings.Context(positions_q=positions, x_q=x)
        found = attention_logits(q, k, own, {"projected_relative": params}, context)
        expected = attention_logits(q, k, inkling, {"inkling": params}, context)
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_page_measures_it(page):
    exec(blocks()["Measure it"], names := dict(page))
    phi, metrics = names["phi"], names["properties"]
    assert phi.shape == (4, 64, 64)
    np.testing.assert_allclose(metrics.translation_invariance(phi), 0, atol=1e-6)
    np.testing.assert_allclose(metrics.monotonicity(phi), 0, atol=1e-6)
    assert (metrics.symmetry(phi) > 1e-4).all()


def test_the_pages_encoding_is_learned(page):
    """By attention alone: gradient descent finds the rates that made the outputs."""
    encoding = page["distance_decay"](num_heads=2)
    true = {"distance_decay": {"rate": jnp.array([[0.2, 1.5], [1.0, 0.3]])}}
    q, k, v = jax.random.normal(jax.random.key(0), (3, 4, 9, 2, 4))
    wanted = attention(q, k, v, encoding, true)
    loss = lambda params: ((attention(q, k, v, encoding, params) - wanted) ** 2).mean()
    descend = lambda params, _: (
        jax.tree.map(lambda p, g: p - 3.0 * g, params, jax.grad(loss)(params)),
        None,
    )
    run = jax.jit(lambda params: jax.lax.scan(descend, params, None, length=200)[0])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=0.02),
        run(encoding.init(jax.random.key(1))),
        true,
    )


@pytest.mark.slow
def test_the_page_trains_it(page):
    exec(blocks()["Train it"], names := dict(page))
    assert names["own_loss"] < 0.7 and names["none_loss"] > 1.9
