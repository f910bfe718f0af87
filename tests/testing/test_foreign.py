"""Checks of attention that is not ours: each finds some mistake; the page's table still holds."""

import functools
import importlib.util
import re
from pathlib import Path

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import write_attention_table as tool

from pe_jax.testing import foreign
from pe_jax.testing.foreign import CHECKS, Attention

PAGE = (Path(__file__).parents[2] / "docs/own-attention.md").read_text(encoding="utf-8")
W = np.random.default_rng(0).normal(size=(3, 8, 2, 4)).astype(np.float32) / 8**0.5


def rope(x, positions, angle_dtype=jnp.float32):
    frequencies = jnp.asarray([1.0, 0.1], angle_dtype)
    angle = (positions[..., None, None].astype(angle_dtype) * frequencies).astype(
        jnp.float32
    )
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x.dtype)


def no_rope(x, positions):
    return x


def weigh(logits, mask):
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, logits, -1e9)), 0)


def with_sink(logits, mask, sink):
    """Softmax with one more logit, whose weight is dropped."""
    wide = jnp.concatenate(
        [jnp.where(mask, logits, -1e9), jnp.full_like(logits[..., :1], sink)], -1
    )
    return jnp.where(mask, jax.nn.softmax(wide)[..., :-1], 0)


def with_cap(logits, mask, cap):
    return weigh(cap * jnp.tanh(logits / cap), mask)


def attention(
    name, rotate=rope, weigh=weigh, counts_positions=False, window=None, keys=None,
    with_sink=with_sink, with_cap=with_cap,
):  # fmt: skip
    """Two heads of size 4; with `counts_positions` a cache takes its index for the position; with a
    `window` of `keys`, which it says to be of `window`."""

    @jax.jit
    def heads(x, positions):
        q, k, v = jnp.einsum("bld,ndhf->nblhf", x, W.astype(x.dtype))
        return rotate(q, positions), rotate(k, positions), v

    @functools.partial(jax.jit, static_argnames="weigh")
    def product(q, k, v, mask, weigh=weigh):
        weights = weigh(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2, mask)
        return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v)

    def attend(x, positions, mask, weigh=weigh):
        if keys is not None:
            mask = mask & (
                positions[:, None, :, None] - positions[:, None, None] < keys
            )
        return product(*heads(x, positions), mask, weigh)

    def changed(weigh):
        return lambda number: functools.partial(
            attend, weigh=lambda *x: weigh(*x, number)
        )

    def decode(rows, length):
        cache, index = np.zeros((2, rows, length, 2, 4), np.float32), 0

        def step(x, positions, mask):
            nonlocal cache, index
            if counts_positions and index:
                positions = np.full_like(positions, index)
            q, *new = heads(x, positions)
            cache = cache.copy()  # The product of the last step may still read it.
            cache[:, :, index : index + x.shape[1]] = new
            index += x.shape[1]
            return product(q, *cache, mask)

        return step

    return Attention(
        name, attend, decode, lambda dtype: attend, window=window,
        with_sink=changed(with_sink), with_cap=changed(with_cap),
    )  # fmt: skip


def absolute(x, positions):
    return x + 0.01 * positions[..., None, None].astype(x.dtype)


def bfloat16_angles(x, positions):
    return rope(x, positions, x.dtype)


def without_mask(logits, mask):
    queries, keys = logits.shape[-2:]
    return weigh(logits, np.tril(np.ones((queries, keys), bool)))


def by_number_of_keys(logits, mask):
    return weigh(logits * logits.shape[-1] ** 0.5, mask)


def minus_infinity(logits, mask):
    return jax.nn.softmax(jnp.where(mask, logits, -jnp.inf))


def mean(logits, mask):
    return jax.nn.softmax(jnp.where(mask, logits, -1e9))


def causal_by_index(logits, mask):
    queries, keys = logits.shape[-2:]
    return weigh(logits, mask & np.tril(np.ones((queries, keys), bool)))


def stopped(logits, mask):
    return jax.lax.stop_gradient(weigh(logits, mask))


@jax.custom_vjp
def reverse_only(logits, mask):
    return weigh(logits, mask)


reverse_only.defvjp(
    lambda logits, mask: (weigh(logits, mask), (logits, mask)),
    lambda saved, g: (jax.vjp(lambda x: weigh(x, saved[1]), saved[0])[1](g)[0], None),
)


def sink_as_a_key(logits, mask, sink):
    """The sink's weight goes to the first key."""
    weights = with_sink(logits, mask, sink)
    return weights.at[..., 0].add(1 - weights.sum(-1))


def no_sink(logits, mask, sink):
    return weigh(logits, mask)


def cap_of_masked(logits, mask, cap):
    return jax.nn.softmax(cap * jnp.tanh(jnp.where(mask, logits, -1e9) / cap))


def clipped(logits, mask, cap):
    return weigh(jnp.maximum(logits, -cap), mask)


BROKEN = {
    "absolute positions": (dict(rotate=absolute), ["shift"]),
    "no mask": (dict(weigh=without_mask), ["packing", "left_padding"]),
    "number of keys": (dict(weigh=by_number_of_keys), ["packing", "right_padding"]),
    "minus infinity": (dict(weigh=minus_infinity), ["left_padding", "masked_queries"]),
    "mean of values": (dict(weigh=mean), ["masked_queries"]),
    "causal by index": (dict(weigh=causal_by_index), ["decoding", "padded_decoding"]),
    "positions by index": (dict(counts_positions=True), ["padded_decoding"]),
    "bfloat16 angles": (dict(rotate=bfloat16_angles), ["precision"]),
    "weights without gradient": (dict(weigh=stopped), ["derivatives"]),
    "no forward mode": (dict(weigh=reverse_only), ["derivatives"]),
    "window one longer": (dict(window=3, keys=4), ["window"]),
    "window one shorter": (dict(window=3, keys=2), ["window"]),
    "sink as a key": (dict(with_sink=sink_as_a_key), ["sinks"]),
    "no sink": (dict(with_sink=no_sink), ["sinks"]),
    "cap after the mask": (dict(with_cap=cap_of_masked), ["capping"]),
    "clipped on one side": (dict(with_cap=clipped), ["capping"]),
}
CAUGHT = [(name, check) for name, (_, checks) in BROKEN.items() for check in checks]
SUBJECTS = {
    name: attention(name, **arguments) for name, (arguments, _) in BROKEN.items()
}


@pytest.mark.parametrize(("name", "check"), CAUGHT)
def test_a_mistake_is_found(name, check):
    with pytest.raises(
        AssertionError, match=re.escape(f"{name}: {CHECKS[check].__doc__}")
    ):
        CHECKS[check](SUBJECTS[name])


def test_every_check_finds_some_mistake():
    assert {check for _, check in CAUGHT} == set(CHECKS)


def test_a_right_one_passes():
    results = foreign.check(attention("right"))
    assert results == dict.fromkeys(CHECKS, "ok") | {"window": "no window was given"}
    assert CHECKS["window"](attention("right", window=3, keys=3)) == "ok"


def test_checks_that_do_not_apply():
    bare = Attention("bare", attention("", rotate=no_rope).attend)
    assert CHECKS["shift"](bare) == "positions make no difference"
    assert (
        CHECKS["decoding"](bare)
        == CHECKS["padded_decoding"](bare)
        == "no decode was given"
    )
    assert CHECKS["precision"](bare) == "no with_dtype was given"
    assert CHECKS["sinks"](bare) == "no with_sink was given"
    assert CHECKS["capping"](bare) == "no with_cap was given"
    with pytest.raises(AssertionError, match="window must be from 1 to 7 keys, got 8"):
        CHECKS["window"](attention("", window=8))


def test_a_dtype_that_is_lost():
    attend = attention("").attend
    wider = lambda x, positions, mask: attend(x.astype(np.float32), positions, mask)
    wide = Attention("wide", attend, with_dtype=lambda _: wider)
    with pytest.raises(AssertionError, match="bfloat16 in, float32 out"):
        CHECKS["precision"](wide)


def test_table_and_excuses(monkeypatch):
    monkeypatch.setattr(foreign, "CHECKS", {"masked_queries": CHECKS["masked_queries"]})
    wrong = attention("mean of values", weigh=mean)
    lines = foreign.table([wrong]).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        "`mean of values`",
        "WRONG",
    ]
    assert "has no gradient to other tokens. But:" in lines[4]
    reason = "as Flax has it"
    assert foreign.check(wrong, {"masked_queries": reason}) == {
        "masked_queries": reason
    }
    with pytest.raises(ValueError, match=r"checks that do not exist, \['mask'\]"):
        foreign.check(wrong, {"mask": reason})


# --- docs/own-attention.md ------------------------------------------------------------------------


# The version of Flax that the page was measured with; 0.12.8 does not decode with `is_causal`.
IS_OF_THE_PAGE = (
    flax.__version__ == re.search(r"^jax .*, flax ([\d.]+),", PAGE, re.M)[1]
)


def test_the_page_runs():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        if "equinox" not in block or importlib.util.find_spec("equinox"):
            exec(block, names)
    assert names["results"]["packing"] == "ok"
    if "same" in names:
        np.testing.assert_array_equal(*names["same"])  # Equinox ignores theta.


ROWS = {
    line.split("|")[1].strip(" `"): [cell.strip() for cell in line.split("|")[2:-1]]
    for line in PAGE.partition(tool.START)[2].partition(tool.END)[0].splitlines()
    if line.startswith("| `")
}


CELLS = [
    (tool.jax_nn(), "left_padding"),
    (tool.jax_nn(is_causal=True), "decoding"),
    (tool.flax_linen(), "masked_queries"),
    (tool.flax_nnx(is_causal=True), "decoding"),
]


@pytest.mark.parametrize(
    ("subject", "check"), CELLS, ids=lambda x: getattr(x, "name", x)
)
def test_the_table_still_holds(subject, check, monkeypatch):
    """Some cells of what is installed; the script checks all of them."""
    if (
        "is_causal" in subject.name
        and subject.name.startswith("flax")
        and not IS_OF_THE_PAGE
    ):
        pytest.skip(
            f"flax {flax.__version__} is not the version of docs/own-attention.md"
        )
    monkeypatch.setattr(foreign, "CHECKS", {check: CHECKS[check]})
    cell = foreign.table([subject]).splitlines()[2].split("|")[2].strip()
    assert cell == ROWS[subject.name][[*CHECKS].index(check)], (
        "python tools/write_attention_table.py"
    )
