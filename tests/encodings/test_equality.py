"""Two builds of an encoding are equal, hash alike, can be pickled, and have a short repr."""

import copy
import dataclasses
import inspect
import pickle
import pydoc
import re

import jax
import jax.numpy as jnp
import pytest

from pe_jax import encodings
from pe_jax.attention import attention
from pe_jax.encodings.parameters import bind_params, frequency_mask, split_params
from pe_jax.encodings.parser import for_text

SIZES = {"hidden_size": 8, "head_size": 4, "num_heads": 2, "max_length": 8}
NAMES = (
    *for_text(),
    "interpolated(rope,factor=2)+alibi",
    "per_layer(rope(base=500))",
    "cycle(rope,alibi+window(max_distance=3))+learned_absolute",
    "rope(learnable=True,per_head=True)",
    "shifted(randomized(rope))",
    "rope_longrope(short=(1.,2.),long=(3.,4.),factor=2,original_length=8)",
    "rope_linear(factor=8)",
    "rope_axial",
    "mrope(sections=(1,1,0))",
    "learned_2d(height=2,width=3)",
    "chunks(size=4)+log_n(original_length=8)",
    "cape(rope,centered=True)",
)


def build(name):
    return encodings.from_name(name, **SIZES)


@pytest.mark.parametrize("name", NAMES)
def test_two_builds(name):
    first = build(name)
    for other in (
        build(first.name),
        pickle.loads(pickle.dumps(first)),
        copy.deepcopy(first),
    ):
        assert other == first and hash(other) == hash(first)
    assert repr(build(first.name)) == repr(first)
    assert "\n" not in repr(first) and len(repr(first)) < 120


def test_a_name_and_a_call():
    assert (
        build("rope")
        == encodings.rope(head_size=4)
        == encodings.rope(base=10_000.0, head_size=4)
    )
    assert build("rope") != encodings.rope(head_size=8)
    assert build("rope(base=500)") != build("rope")
    with pytest.raises(ValueError, match="num_heads and per_head=True need each other"):
        encodings.rope(head_size=4, num_heads=2)


def test_a_changed_part_is_another():
    rope = encodings.rope(head_size=4)
    assert encodings.with_factors(rope, jnp.zeros_like) != rope
    (part,) = rope.parts
    assert part.replace(map_qkv=None) != part
    assert part.replace(map_qkv=None) == part.replace(map_qkv=None)


def test_an_argument_without_a_hash():
    @encodings.define_encoding
    def steps(*, sizes: list[int]) -> encodings.Part:
        return encodings.Part(scale=lambda params, context: float(sum(sizes)))

    assert steps(sizes=[1, 2]).name == "steps(sizes=[1, 2])"


def test_jax_takes_an_encoding_for_a_tree_without_leaves():
    """As an argument of `jax.jit`, and as a field of a module that is a pytree."""
    traced = []

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Layer:
        encoding: encodings.PositionEncoding
        params: encodings.Params

    @jax.jit
    def loss(layer, q):
        traced.append(layer)
        return attention(q, q, q, layer.encoding, layer.params).sum()

    q, params = (
        jnp.ones((1, 3, 2, 8)),
        {"kerple": {"r1": jnp.ones(2), "r2": jnp.ones(2)}},
    )
    layers = [Layer(encodings.kerple(num_heads=2), params) for _ in range(2)]
    grads = [jax.grad(loss)(layer, q) for layer in layers]
    assert len(traced) == 1 and grads[0].encoding == layers[0].encoding
    assert jax.tree.leaves(encodings.rope(head_size=8) + encodings.causal()) == []
    assert jax.tree.structure(layers[0]) == jax.tree.structure(layers[1])


def test_repr():
    encoding = encodings.rope(head_size=64) + encodings.causal()
    assert repr(encoding) == "rope(head_size=64) + causal()"
    assert repr(encodings.none()) == "none()"
    wrapped = encodings.interpolated(encodings.rope(head_size=64), factor=4.0)
    assert (
        repr(encodings.per_layer(wrapped))
        == "per_layer(interpolated(rope(head_size=64), factor=4.0))"
    )
    assert repr(encodings.Part(name="mine")) == "Part('mine')"


def test_the_repr_of_many_factors():
    factors = tuple(1 + i / 64 for i in range(64))
    scaled = encodings.rope_longrope(
        head_size=128, short=factors, long=factors, factor=32.0, original_length=4096
    )
    assert (
        "short=(1.0, 1.015625, 1.03125, ...)" in repr(scaled)
        and len(repr(scaled)) < 170
    )
    assert encodings.from_name(scaled.name, **SIZES | {"head_size": 128}) == scaled


def help_signature(function):
    """Return the signature that help() shows, on one line: Python 3.13 breaks long ones."""
    _, page = pydoc.render_doc(function, renderer=pydoc.plaintext).split("\n\n", 1)
    lines = page.split("\n")
    last = next(index for index, line in enumerate(lines) if ") -> " in line)
    return " ".join(line.strip() for line in lines[: last + 1])


@pytest.mark.parametrize("name", [*encodings.ENCODINGS, *encodings.WRAPPERS])
def test_help_shows_what_a_call_takes_and_returns(name):
    function = getattr(encodings, name)
    signature = help_signature(function)
    assert re.fullmatch(
        rf"{name}\( ?(encoding: .*|\*.*)?\) -> .*PositionEncoding'?", signature
    )
    for parameter in inspect.signature(inspect.unwrap(function)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            assert str(parameter) in signature


@pytest.mark.parametrize(
    ("use", "hint"),
    [
        (lambda: build("RoPE"), "'RoPE' is unknown. Did you mean rope"),
        (lambda: build("Rotary"), "Did you mean rope"),
        (lambda: build("ALiBi+causal"), "Did you mean alibi"),
        (lambda: build("nope"), "Did you mean none"),
        (
            lambda: build("rope(theta=500000)"),
            "'rope' has no option 'theta'. Did you mean base",
        ),
        (lambda: build("rope(bas=500)"), "Did you mean base"),
        (
            lambda: encodings.rope(head_size=8, rope_theta=5e5),
            r"rope\(\) .* Did you mean base",
        ),
        (
            lambda: encodings.interpolated(encodings.rope(head_size=8), faktor=2),
            "mean factor",
        ),
        (lambda: encodings.make("RoPE"), "no attribute 'make'. Did you mean from_name"),
        (lambda: encodings.RoPE, "Did you mean rope"),
        (lambda: encodings.learnt_relative, "Did you mean learned_relative"),
    ],
)
def test_names_that_others_use(use, hint):
    with pytest.raises((ValueError, TypeError, AttributeError), match=hint + r"\b"):
        use()


def test_changed_layers_read_the_same_parameters():
    """Layers that share parameters still do once their parts were changed one by one."""
    rope = encodings.rope(head_size=4, learnable=True)
    encoding = encodings.cycle(rope, encodings.none(), rope)
    params = encoding.init(jax.random.key(0), 3)
    assert list(params) == ["cycle_0"]
    changed = encodings.with_factors(encoding, jnp.zeros_like)
    for layer in range(3):
        split_params(changed.layer(layer), changed.layer_params(params, layer))
    assert (
        list(bind_params(changed, params))
        == list(bind_params(encoding, params))
        == ["cycle_0/rope"]
    )
    short = encodings.cycle(rope, encodings.t5(num_heads=2))
    params = short.init(jax.random.key(0), 1)  # Fewer layers than encodings.
    assert frequency_mask(short, params) == {"cycle_0": {"rope": {"frequencies": True}}}
