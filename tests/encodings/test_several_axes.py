"""Rotary encodings of several axes: by hand, against one another and Qwen's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import build, draw, grid, logits_at, made
from helpers.torch_modules import HEADS, build_as_theirs, needs

from pe_jax import encodings
from pe_jax.encodings import Context, HookContext


def qkv(length=6, seed=0):
    return [draw(2, length, 2, 8, seed=seed + i) for i in range(3)]


def test_axial_rope_rotates_one_share_for_each_axis():
    # w = [1] on each axis.
    encoding, _ = made("rope_axial(layout='interleaved')", head_size=4)
    q = k = np.array([1.0, 0.0, 0.0, 2.0], np.float32).reshape(1, 1, 1, 4).repeat(2, 1)
    at = np.array([[0.0, 0.0], [0.3, -1.5]], np.float32)  # Real positions.
    found = attention_logits(q, k, encoding, None, Context(positions_q=at))[0, 0, 0]
    np.testing.assert_allclose(
        found, [5 / 2, (np.cos(0.3) + 4 * np.cos(1.5)) / 2], atol=1e-6
    )
    part = encoding.parts[0]
    rotated, _, _ = part.map_qkv(
        {}, q, k, q, HookContext(positions_q=at, positions_k=at)
    )
    expected = [np.cos(0.3), np.sin(0.3), -2 * np.sin(-1.5), 2 * np.cos(-1.5)]
    np.testing.assert_allclose(rotated[0, 1, 0], expected, atol=1e-6)


def test_axial_rope_depends_on_differences_far_out():
    encoding, _ = made("rope_axial")
    q, k, _ = qkv()
    near, far = (
        attention_logits(q, k, encoding, None, Context(positions_q=grid(2, 3) + shift))
        for shift in (0, np.array([2**17, -(2**16)]))
    )
    np.testing.assert_allclose(far, near, atol=2e-3)


def test_axial_rope_counts_the_patches_of_an_image_by_rows():
    axes, _ = made("rope_axial")
    flat, _ = made("rope_axial(width=3)")
    q, k, v = qkv()
    expected = attention(q, k, v, axes, None, Context(positions_q=grid(2, 3)))
    np.testing.assert_array_equal(attention(q, k, v, flat), expected)
    with pytest.raises(ValueError, match=r"Pass an array \[L, 2\]"):
        attention(q, k, v, axes)
    with pytest.raises(ValueError, match="multiple of 6 .*got 8"):
        made("rope_axial(axes=3)")
    with pytest.raises(ValueError, match="axes=1, width=3"):
        made("rope_axial(axes=1, width=3)")


@pytest.mark.parametrize(
    ("layout", "order"),
    [("half", [0, 4, 1, 5, 2, 6, 3, 7]), ("half_by_axis", [0, 2, 1, 3, 4, 6, 5, 7])],
)
def test_layouts_of_axial_rope_are_orders_of_dimensions(layout, order):
    """Of heads of 8: two pairs for rows, then two for columns."""
    q, k, _ = qkv()
    at = np.array([[0, 0], [1, 5], [2, 3], [40, 7], [9, 9], [3, 0]])
    made_of = lambda name: made(name)[0]
    expected = attention_logits(
        q[..., order],
        k[..., order],
        made_of("rope_axial(layout='interleaved')"),
        None,
        Context(positions_q=at),
    )
    found = attention_logits(
        q, k, made_of(f"rope_axial(layout={layout!r})"), None, Context(positions_q=at)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match="'layout' takes"):
        made_of("rope_axial(layout='halves')")


def test_layout_of_mrope_is_an_order_of_dimensions():
    q, k, _ = qkv()
    at = np.array([[0, 0, 0], [1, 5, 2], [2, 3, 9], [40, 7, 1], [9, 9, 9], [3, 0, 5]])
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    half, neighbours = (
        made(f"mrope(layout={name!r})")[0] for name in ("half", "interleaved")
    )
    expected = attention_logits(
        q[..., order], k[..., order], neighbours, None, Context(positions_q=at)
    )
    found = attention_logits(q, k, half, None, Context(positions_q=at))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_mixed_rope_starts_with_directions_at_right_angles():
    params = jax.jit(build("rope_mixed(base=16)").init)(jax.random.key(0))
    w = np.asarray(params["rope_mixed"]["frequencies"])
    assert w.shape == (2, 2, 4)  # Two pairs in each of two directions, 16^(-4t/8) long.
    np.testing.assert_allclose(np.hypot(*w), [[1, 0.25, 1, 0.25]] * 2, rtol=1e-6)
    np.testing.assert_allclose((w[..., :2] * w[..., 2:]).sum(0), 0, atol=1e-6)
    assert abs(w[0, 0, 0] - w[0, 1, 0]) > 1e-3  # Each head has its own.
    with pytest.raises(ValueError, match="multiple of 6 .*got 8"):
        build("rope_mixed(axes=3)")


def test_mixed_rope_on_one_axis_each_is_axial():
    """Directions along the axes: half of the pairs go by rows, half by columns."""
    w = encodings.default_frequencies(4, 100.0)
    frequencies = np.stack([np.append(w, 0 * w), np.append(0 * w, w)])[:, None].repeat(
        2, 1
    )
    at = np.array([[0, 0], [1, 5], [2, 3]])
    mixed = logits_at(
        "rope_mixed", at, params={"rope_mixed": {"frequencies": frequencies}}
    )
    np.testing.assert_allclose(
        mixed, logits_at("rope_axial(layout='interleaved')", at), atol=1e-5
    )
    far = logits_at("rope_mixed", at + np.array([2**17, -(2**16)]))
    np.testing.assert_allclose(far, logits_at("rope_mixed", at), atol=4e-3)


@pytest.mark.parametrize(
    "name", ["mrope", "mrope(interleaved=True)", "mrope(sections=(4, 0, 12))"]
)
def test_mrope_is_rope_where_the_axes_agree(name):
    at = np.array([3, 0, 70, 12])
    same = logits_at(name, np.tile(at[:, None], 3), head_size=32)
    np.testing.assert_allclose(same, logits_at("rope", at, head_size=32), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "axis_of_pair"),
    [
        ("mrope", [0] * 16 + [1] * 24 + [2] * 24),  # Qwen2-VL.
        ("mrope(interleaved=True)", [0, 1, 2] * 20 + [0] * 4),  # Qwen3-VL.
        ("mrope(sections=(60, 4))", [0] * 60 + [1] * 4),
    ],
)
def test_which_axis_a_pair_goes_by(name, axis_of_pair):
    (part,) = build(name, head_size=128).parts
    x = np.ones((1, part.traits.axes, 1, 128), np.float32)
    at = 1000 * np.eye(part.traits.axes, dtype=int)  # Token a moves on axis a alone.
    rotated = jax.jit(
        lambda x: part.map_qkv(
            {}, x, x, x, HookContext(positions_q=at, positions_k=at)
        )[0]
    )(x)
    moves = np.abs(np.asarray(rotated)[0, :, 0, :64] - 1) > 1e-6
    np.testing.assert_array_equal(moves.sum(0), 1)
    np.testing.assert_array_equal(moves.argmax(0), axis_of_pair)


def test_sections_of_mrope_are_checked():
    with pytest.raises(
        ValueError, match=r"up to 4, .* head of size 8; got \(1, 1, 1\), .* 3"
    ):
        build("mrope(sections=(1, 1, 1))")
    with pytest.raises(ValueError, match=r"\(1, 3\) cannot be interleaved"):
        build("mrope(sections=(1, 3), interleaved=True)")


@needs("torch", "transformers")
@pytest.mark.parametrize(
    ("model", "config", "rotary", "interleaved"),
    [
        ("qwen2_vl", "Qwen2VLTextConfig", "Qwen2VLRotaryEmbedding", False),
        ("qwen3_vl", "Qwen3VLTextConfig", "Qwen3VLTextRotaryEmbedding", True),
    ],
)
@pytest.mark.parametrize("sections", [None, (40, 12, 12), (22, 21, 21)])
def test_mrope(torch, model, config, rotary, interleaved, sections):
    theirs = pytest.importorskip(f"transformers.models.{model}.modeling_{model}")
    settings = {"rope_type": "default", "rope_theta": 1e6}
    if sections:
        settings["mrope_section"] = list(sections)
    made = getattr(theirs, config)(
        hidden_size=HEADS * 128,
        num_attention_heads=HEADS,
        head_dim=128,
        rope_parameters=settings,
    )
    q, k = torch.randn(2, 2, HEADS, 30, 128)
    positions = torch.randint(0, 200, (3, 2, 30))
    cos, sin = getattr(theirs, rotary)(made)(q, positions)
    wanted = theirs.apply_rotary_pos_emb(q, k, cos, sin)

    options = f"interleaved={interleaved}, base=1000000"
    name = f"mrope(sections={sections}, {options})" if sections else f"mrope({options})"
    (part,) = build_as_theirs(name, head=128).parts
    ours = (jnp.asarray(x.transpose(1, 2).numpy()) for x in (q, k))
    at = np.moveaxis(positions.numpy(), 0, -1)
    q, k = ours
    found = part.map_qkv({}, q, k, k, HookContext(positions_q=at, positions_k=at))[:2]
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(one, other.transpose(1, 2).numpy(), atol=1e-4)
