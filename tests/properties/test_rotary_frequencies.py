"""Use of rotary frequencies: norms by pair, bands, rotations switched off, and the report."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tiny_subject

from pe_jax import encodings, properties
from pe_jax.encodings import HookContext, with_factors
from pe_jax.models import (
    BertForPretraining,
    queries_keys_values,
    rotations,
    with_constants,
)
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report import rotary_frequencies
from pe_jax.trainer.reports.property_report.render import render
from pe_jax.trainer.reports.property_report.report import measure_properties
from pe_jax.trainer.reports.property_report.subjects import from_name
from pe_jax.trainer.reports.property_report.texts import (
    by_text,
    changed_losses,
    loss_changes,
)

LENGTH = 6
SCALED = dict(factor=2.0, original_length=4)
LISTS = dict(short=(1.0, 1.5, 2.0, 3.0), long=(2.0, 3.0, 4.0, 5.0))


def test_norms_and_bands_by_hand():
    x = np.array([[3.0, 1.0, 4.0, 2.0], [0.0, 0.0, 0.0, 5.0]])
    np.testing.assert_allclose(properties.pair_norms(x, np.array([[0, 2], [1, 3]])), [
        [5, np.sqrt(5)], [0, 5],
    ])  # fmt: skip
    w = np.array([[0.1, -3.0, 0.0, 1.0, 0.0], [5.0, 4.0, 3.0, 2.0, 1.0]])
    np.testing.assert_array_equal(
        properties.frequency_bands(w, count=2), [[0, 0, 1, 0, 1], [0, 0, 0, 1, 1]]
    )
    np.testing.assert_array_equal(
        properties.frequency_bands(w[0], count=5), [2, 0, 3, 1, 4]
    )
    for count in (1, 3, 4):
        found = properties.frequency_bands(np.geomspace(1, 1e-4, 32), count=count)
        np.testing.assert_array_equal(found, np.arange(32) * count // 32)


def rotated(x, positions, w, pairs, scale):
    """R(ω · position) of x `[L, H, d]`, float64, pair by pair; w `[H, F]`."""
    x = np.array(x, np.float64)
    for head in range(x.shape[1]):
        for (a, b), one in zip(pairs, w[head], strict=True):
            angle = one * positions
            u, v = x[:, head, a].copy(), x[:, head, b].copy()
            x[:, head, a] = scale * (u * np.cos(angle) - v * np.sin(angle))
            x[:, head, b] = scale * (u * np.sin(angle) + v * np.cos(angle))
    return x


def changed(context, factors):
    """The context that multiplies frequencies."""
    return context.replace(frequency_factors=lambda w: factors)


@pytest.mark.parametrize(
    ("encoding", "pairs", "scale"),
    [
        (encodings.rope(head_size=8), [(0, 4), (1, 5), (2, 6), (3, 7)], 1),
        (
            encodings.rope(head_size=8, layout="interleaved", fraction=0.5),
            [(0, 1), (2, 3)],
            1,
        ),
        (
            encodings.rope(head_size=8, proportional=0.5),
            [(0, 4), (1, 5), (2, 6), (3, 7)],
            1,
        ),
        (
            encodings.rope(
                head_size=8, num_heads=2, learnable=True, per_head=True, fraction=0.75
            ),
            [(0, 3), (1, 4), (2, 5)],
            1,
        ),
        (
            encodings.rope_yarn(
                head_size=8, layout="interleaved", attention_factor=1.5, **SCALED
            ),
            [(0, 1), (2, 3), (4, 5), (6, 7)],
            1.5,
        ),
        (
            encodings.rope_dynamic_ntk(head_size=8, **SCALED),
            [(0, 4), (1, 5), (2, 6), (3, 7)],
            1,
        ),
        (
            encodings.rope_longrope(
                head_size=8, attention_factor=1.0, **LISTS, **SCALED
            ),
            [(0, 4), (1, 5), (2, 6), (3, 7)],
            1,
        ),
    ],
)
def test_a_card_says_what_rotates(encoding, pairs, scale):
    """Pairs, frequencies and factors explain what `heads` does, in every option of RoPE."""
    (part,) = encoding.parts
    params = jax.tree.map(np.asarray, part.init(jax.random.key(0)))
    if params:
        params = {"frequencies": params["frequencies"] * np.float32([[1.0], [-0.7]])}
    assert list(part.metadata.pairs) == pairs
    count = len(pairs)
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 1, LENGTH, 2, 8)).astype(np.float32)
    factors = rng.uniform(0, 2, (2, count)).astype(np.float32)
    w = np.broadcast_to(part.metadata.frequencies(params), (2, count))
    # Where frequencies depend on the length, the metadata has those of short inputs.
    grows = "ntk" in encoding.name or "longrope" in encoding.name
    at = np.arange(4 if grows else LENGTH)
    context = HookContext(positions_q=range(len(at)), positions_k=range(len(at)))
    q, k = q[:, : len(at)], k[:, : len(at)]
    assert part.map_qkv(params, q, k, v, changed(context, factors))[2] is v

    @jax.jit
    def heads(at, factor=None):
        context = HookContext(positions_q=at, positions_k=at)
        return part.map_qkv(
            params, q, k, v, context if factor is None else changed(context, factor)
        )

    ones = np.ones_like(factors)
    for factor in (ones, np.zeros_like(factors), factors):
        for one, x in zip(heads(at, factor), (q, k), strict=False):
            expected = rotated(x[0], at, w * factor, pairs, scale)
            np.testing.assert_allclose(one[0], expected, atol=1e-5)
    for one, other in zip(heads(at, ones), heads(at), strict=True):
        np.testing.assert_array_equal(one, other)


def test_xpos_decays_without_rotation():
    (part,) = encodings.xpos(head_size=8).parts
    assert part.metadata.pairs == ((0, 4), (1, 5), (2, 6), (3, 7))
    q = np.random.default_rng(0).normal(size=(1, LENGTH, 2, 8)).astype(np.float32)
    context = HookContext(positions_q=range(LENGTH), positions_k=range(LENGTH))
    still, _, _ = part.map_qkv(
        {}, q, q, q, changed(context, np.zeros((1, 4), np.float32))
    )
    ratio = np.asarray(still) / q
    np.testing.assert_allclose(ratio[..., :4], ratio[..., 4:], rtol=1e-5)
    turned, _, _ = part.map_qkv({}, q, q, q, context)
    size = lambda x: np.linalg.norm(np.reshape(x, (LENGTH, 2, 2, 4)), axis=2)
    np.testing.assert_allclose(size(still), size(turned), rtol=1e-5)


def logits(position, params, tokens):
    return np.asarray(_forward(position)(params, tokens))


@functools.cache
def _forward(position):
    def run(params, tokens):
        everywhere = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        model = BertForPretraining(tiny_subject.config(position))
        return model.apply(
            {"params": params}, tokens, masked_positions=everywhere
        ).masked_lm

    return jax.jit(run)


@pytest.mark.parametrize(
    "name", ["cycle(rope, none)", "per_layer(rope(learnable=True), rope(base=50))"]
)
def test_no_rotation_is_no_encoding(name):
    """Whatever the stack: names and parameters stay, and factors of 1 change nothing."""
    params, tokens = tiny_subject.parameters(name), tiny_subject.texts().tokens
    stack = tiny_subject.config(name).encoding()
    changed = lambda factor: with_factors(stack, lambda w: jnp.full(w.shape, factor))
    assert changed(0.0).name == stack.name
    none = {
        **params,
        "bert": {k: v for k, v in params["bert"].items() if k != "position"},
    }
    expected = logits("none", none, tokens)
    np.testing.assert_allclose(
        logits(changed(0.0), params, tokens), expected, atol=1e-5
    )
    as_it_is = logits(name, params, tokens)
    np.testing.assert_array_equal(logits(changed(1.0), params, tokens), as_it_is)
    assert abs(as_it_is - expected).max() > 1e-2


def test_constants_in_some_dimensions():
    config, bert = tiny_subject.config("rope"), tiny_subject.parameters("rope")["bert"]
    tokens = tiny_subject.texts().tokens
    rng = np.random.default_rng(0)
    shape = (2, 2, 2, 8)
    which, values = rng.random(shape) < 0.3, rng.normal(size=shape).astype(np.float32)
    inside = jax.jit(lambda params: queries_keys_values(config, params, tokens))
    change = jax.jit(with_constants)
    before, after = (np.asarray(inside(p)) for p in (bert, change(bert, which, values)))
    assert before.shape == (3, 2, tiny_subject.TEXTS, tiny_subject.LENGTH, 2, 8)
    spread = lambda x: np.broadcast_to(x[:, :, None, None], after[:2].shape)
    np.testing.assert_allclose(
        after[:2][spread(which)], spread(values)[spread(which)], rtol=1e-6
    )
    kept = ~spread(which)[:, 0]  # Of the first layer: those above read another input.
    np.testing.assert_array_equal(after[:2, 0][kept], before[:2, 0][kept])
    np.testing.assert_array_equal(after[2, 0], before[2, 0])
    nothing = change(bert, np.zeros(shape, bool), values)
    jax.tree.map(np.testing.assert_array_equal, nothing, bert)


def test_all_texts_in_batches():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 7, 400)).astype(np.float32)  # Two of them at a time.
    found = by_text(lambda a, pair: (a * pair[0].sum(1), pair[1] * 2), (x, y), 3.0)
    np.testing.assert_allclose(found[0], 3 * x.sum(1), rtol=1e-4)
    np.testing.assert_array_equal(found[1], 2 * y)


def reference_loss(position, params, texts):
    """The mean loss of the masked tokens of each text, float64."""
    z = logits(position, params, texts.masked).astype(np.float64)
    log_p = (
        z
        - np.log(np.exp(z - z.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - z.max(-1, keepdims=True)
    )
    each = -np.take_along_axis(log_p, texts.tokens[..., None], -1)[..., 0]
    return (each * texts.where).sum(1) / texts.where.sum(1)


def test_losses_without_bands():
    """Slow bands that do not rotate are p-RoPE; dropped ones are zeros in W_Q and W_K."""
    params, texts = tiny_subject.parameters("rope"), tiny_subject.texts()
    loss = rotary_frequencies._loss_without_bands(tiny_subject.config("rope"), 4)
    still = np.array([[0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]], bool)
    dropped = np.array([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]], bool)
    found = changed_losses(loss, params, (still, dropped), texts)
    without = jax.tree.map(np.array, params)
    for layer in ("layer_0", "layer_1"):
        qkv = without["bert"][layer]["attention"]["qkv"]
        for leaf in (qkv["kernel"], qkv["bias"]):  # Of 8 dimensions pair 1 is 1 and 5.
            leaf[..., :2, :, [1, 5]] = 0
    expected = [
        reference_loss("rope", params, texts),
        reference_loss("rope(proportional=0.5)", params, texts),
        reference_loss("none", params, texts),
        reference_loss("rope", without, texts),
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    changes = loss_changes(found)
    assert changes.mean[0] == pytest.approx((found[1] - found[0]).mean(), abs=1e-6)
    spread = np.std(found[1].astype(float) - found[0], ddof=1)
    assert changes.error[0] == pytest.approx(
        spread / np.sqrt(tiny_subject.TEXTS), rel=1e-4
    )


@pytest.fixture
def config():
    return PropertiesConfig(
        parts="rotary_frequencies",
        length=tiny_subject.LENGTH,
        texts=tiny_subject.TEXTS,
        size="tiny",
    )


def test_the_report(config, tmp_path):
    names = ["rope", "cycle(rope(fraction=0.5), none)+learned_absolute"]
    subjects = [tiny_subject.subject(name) for name in names]
    subjects.append(tiny_subject.subject("alibi"))
    config, tokens = dataclasses.replace(config, bands=2), tiny_subject.texts().tokens
    tiny_subject.give(config, *subjects)
    part = rotary_frequencies.rotary_frequencies
    numbers, lines, pictures = render(part, subjects, config, tmp_path)
    assert set(numbers) == set(names)
    one, other = (numbers[name] for name in names)
    run = jax.jit(
        lambda params: queries_keys_values(tiny_subject.config("rope"), params, tokens)
    )
    inside = run(subjects[0].params)
    pair = np.asarray(inside, np.float64)[1, 1, :, :, 0][..., [2, 6]]
    norms = np.sqrt((pair**2).sum(-1)).mean()
    assert one["layers"][1]["keys"][0][2] == pytest.approx(norms, rel=1e-5)
    by_head = np.array([layer["keys"] for layer in one["layers"]])
    assert one["bands"][1]["keys"] == pytest.approx(by_head[..., 2:].mean(), rel=1e-6)
    assert one["bands"][0]["fastest"] == 1 and one["bands"][1][
        "slowest"
    ] == pytest.approx(1e-3)
    changes = reference_loss(
        "rope(proportional=0.5)", subjects[0].heads, tiny_subject.texts()
    ).mean()
    assert one["still"]["change"][1] == pytest.approx(changes - one["loss"], abs=1e-5)
    assert (
        len(one["still"]["change"]) == len(one["dropped"]["error"]) == 3
    )  # The last is of all bands.
    assert [layer["layer"] for layer in other["layers"]] == [0]
    json.dumps(numbers)
    assert all(path.exists() for path in pictures) and len(pictures) == 3
    assert "| all " in "\n".join(lines)
    assert render(part, subjects[2:], config, tmp_path) is None
    config = dataclasses.replace(config, bands=3)
    with pytest.raises(
        ValueError, match="config.bands must be at most the 2 frequencies"
    ):
        render(part, subjects[1:2], config, tmp_path)


def test_the_report_without_a_head(config, tmp_path):
    """An untrained encoding reads random words and has no masked-LM head."""
    subjects = [from_name("rope", config, 0)]
    text = measure_properties(subjects, config, tmp_path)
    assert (
        "Without a masked-LM head: rope (untrained)." in text and "| all " not in text
    )
    assert "rotary_frequencies_loss" not in text
    ((_, frequencies),) = rotations(subjects[0].model, subjects[0].params)
    assert frequencies.shape == (1, 32)
    with pytest.raises(ValueError, match="rotary_frequencies needs a run"):
        measure_properties([from_name("alibi", config, 0)], config, tmp_path)
