"""Logits against float64 formulas written from released code, to 1e-9.

The formulas are ours, from reading the code that each function names. Bases are chosen so that all
frequencies are powers of 4, which float32 holds exactly.
"""

import jax
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits

from pe_jax import encodings
from pe_jax.encodings import Context

B, L, H, d, D = 1, 50, 2, 8, 16
FREQUENCIES = 4.0 ** -np.arange(d // 2)
SIZES = {"hidden_size": D, "head_size": d, "num_heads": H, "max_length": 64}


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


Q, K, X = draw(B, L, H, d), draw(B, L, H, d, seed=1), draw(B, L, D, seed=2)


def check(name, expected, params=None, positions=None):
    """Compare the logits of keys up to each query: the released code is causal."""
    encoding = encodings.from_name(name, **SIZES)
    positions = np.arange(L) if positions is None else positions
    context = Context(positions_q=positions, x_q=X, x_k=X)
    found = attention_logits(Q, K, encoding, params or {}, context)
    assert found.dtype == np.float64
    np.testing.assert_allclose(np.tril(found), np.tril(expected), rtol=0, atol=1e-9)


def rotary_logits(q, k, angle):
    """q·R(angle·ω) k / sqrt(d): heads `[B, L, H, d]`, the query's angle less the key's `[L, L]`."""
    pairs_q, pairs_k = (x[..., : d // 2] + 1j * x[..., d // 2 :] for x in (q, k))
    turn = np.exp(1j * np.asarray(angle, float)[..., None] * FREQUENCIES)
    products = np.einsum("bqhm,bkhm,qkm->bhqk", pairs_q, pairs_k.conj(), turn)
    return products.real / np.sqrt(d)


def chunk_angle(i, j, chunk_size, local_window):
    """HKUNLP/ChunkLlama, chunkllama_attn_replace.py."""
    chunk_len = chunk_size - local_window
    same = i % chunk_len
    successive = np.minimum(i % chunk_len + chunk_len, chunk_size)
    distant = np.minimum((chunk_len - 1) + chunk_len, chunk_size)
    apart = i // chunk_len - j // chunk_len
    query = np.where(apart == 0, same, np.where(apart == 1, successive, distant))
    return query - j % chunk_len


@pytest.mark.parametrize(
    ("chunk_size", "local_window"), [(12, 2), (12, 4), (12, 5), (24, 1)]
)
def test_dual_chunk_is_chunkllamas(chunk_size, local_window):
    """chunk is chunk_size - local_window, and length is chunk_size + 1."""
    i, j = np.arange(L)[:, None], np.arange(L)
    expected = rotary_logits(Q, K, chunk_angle(i, j, chunk_size, local_window))
    options = (
        f"chunk={chunk_size - local_window}, original_length={chunk_size + 1}, base=256"
    )
    check(f"dual_chunk({options})", expected)


@pytest.mark.parametrize(
    ("divisor", "options"),
    [(8, "chunk=2560, original_length=3073"), (16, "chunk=2816, original_length=3073")],
    ids=["ChunkLlama", "ChunkQwen"],
)
def test_dual_chunk_with_the_released_defaults(divisor, options):
    """`replace_with_chunkllama(pretraining_length=4096)`: positions around the ends of chunks."""
    pretraining_length = 4096
    chunk_size, local_window = (
        pretraining_length * 3 // 4,
        pretraining_length // divisor,
    )
    ends = (chunk_size - local_window) * np.arange(1, 4)
    near = np.unique(
        [ends + shift for shift in (-1, 0, 1, local_window, local_window + 1)]
    )
    positions = np.sort(np.concatenate([near, np.arange(L - near.size) * 301 + 7]))
    assert np.unique(positions).size == L
    i, j = positions[:, None], positions
    expected = rotary_logits(Q, K, chunk_angle(i, j, chunk_size, local_window))
    check(f"dual_chunk({options}, base=256)", expected, positions=positions)


@pytest.mark.parametrize(("window", "group"), [(8, 4), (6, 3), (10, 1)])
def test_self_extend_is_longlms(window, group):
    """datamllab/LongLM, self_extend_patch/Llama.py: group_size_2 is window, group_size_1 is group,
    which divides it."""
    i, j = np.arange(L)[:, None], np.arange(L)
    grouped = i // group + window - window / group - j // group
    expected = rotary_logits(Q, K, np.where(i - j < window, i - j, grouped))
    check(f"self_extend(window={window}, group={group}, base=256)", expected)


@pytest.mark.parametrize("scaling_factor", [None, 1, 16])
def test_rerope_with_log_n_is_the_authors(scaling_factor):
    """bojone/rerope, rerope_patch.py and leaky_rerope_patch.py, which scale the queries as well."""
    window, training_length = 6, 20
    i, j = np.arange(L)[:, None], np.arange(L)
    if scaling_factor is None:
        far, options = np.full((L, L), window), f"window={window}"
    else:
        offset = window * (scaling_factor - 1)
        far = ((i + offset) - j) / scaling_factor
        options = f"window={window}, factor={scaling_factor}"
    scale = np.maximum(np.log(np.arange(L) + 1) / np.log(training_length), 1)
    scaled = Q * scale[None, :, None, None]
    expected = rotary_logits(scaled, K, np.where(abs(i - j) < window, i - j, far))
    check(
        f"rerope({options}, base=256)+log_n(original_length={training_length})",
        expected,
    )


def test_fope_is_the_authors():
    """The `FourierEmbedding` of the authors' OLMo: of four frequencies, two have a turn within 30
    tokens, and make two pairs; the other pairs have sine and cosine of 1."""
    length, pairs = 30, min(2, d // 4)
    kept = FREQUENCIES[2 * np.pi / length <= FREQUENCIES]
    assert kept.size == 2
    cosine, sine = draw(H, 2, pairs, seed=3), draw(H, 2, pairs, seed=4)

    def rotated(x):
        angle = np.arange(L)[:, None] * kept
        cos, sin = np.ones((2, L, H, d // 2))
        cos[..., :pairs] = np.einsum("lD,hDd->lhd", np.cos(angle), cosine)
        sin[..., :pairs] = np.einsum("lD,hDd->lhd", np.sin(angle), sine)
        half = np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], axis=-1)
        return x * np.tile(cos, 2) + half * np.tile(sin, 2)

    expected = np.einsum("bqhd,bkhd->bhqk", rotated(Q), rotated(K)) / np.sqrt(d)
    params = {"fope": {"cosine": cosine, "sine": sine}}
    check(f"fope(original_length={length}, base=256)", expected, params)


def test_repo_is_the_authors():
    """SakanaAI/repo: RoPE at positions that a gated network reads from each token."""
    rank = 3
    gate, content, out = draw(D, rank), draw(D, rank, seed=5), draw(rank, H, seed=6)
    opened = X @ gate
    hidden = opened / (1 + np.exp(-opened)) * (X @ content)
    at = (hidden @ out)[0].T  # [H, L]
    of_heads = [
        rotary_logits(Q[:, :, [h]], K[:, :, [h]], at[h][:, None] - at[h])
        for h in range(H)
    ]
    params = {"repo": {"gate": gate, "content": content, "out": out}}
    check(f"repo(rank={rank}, base=256)", np.concatenate(of_heads, axis=1), params)


def test_wall_is_that_of_flash_linear_attention():
    """fla/ops/wall_attn/naive.py: prefix sums of log2 of the gates, and 2 to their differences."""
    kernel, bias = draw(D, H, d, seed=7) / 4, draw(H, d, seed=8) + 2
    gates = np.einsum("blD,Dhd->blhd", X, kernel) + bias
    sums = np.cumsum(-np.log1p(np.exp(-gates)) / np.log(2), axis=1)
    decay = np.exp2(sums[:, :, None] - sums[:, None])
    expected = np.einsum("bqhd,bkhd,bqkhd->bhqk", Q, K, decay) / np.sqrt(d)
    check("wall+causal", expected, {"wall": {"kernel": kernel, "bias": bias}})


def test_rope_centered_is_dinov3s():
    """`dinov3_vit` of transformers: the centres of 4 × 8 patches after two tokens, by row and then
    by column, each with half of the frequencies."""
    height, width, prefix = 4, 8, 2
    patch = np.arange(height * width)
    rows = 2 * (patch // width + 0.5) / height - 1
    columns = 2 * (patch % width + 0.5) / width - 1
    frequencies = 4.0 ** -np.arange(d // 4)
    angle = (
        2
        * np.pi
        * np.concatenate(
            [np.outer(rows, frequencies), np.outer(columns, frequencies)], 1
        )
    )
    angle = np.concatenate([np.zeros((prefix, d // 2)), angle])
    length = len(angle)
    q, k = Q[:, :length], K[:, :length]
    turned_q, turned_k = (
        (x[..., : d // 2] + 1j * x[..., d // 2 :]) * np.exp(1j * angle)[:, None]
        for x in (q, k)
    )
    expected = np.einsum("bqhm,bkhm->bhqk", turned_q, turned_k.conj()).real / np.sqrt(d)
    name = f"rope_centered(height={height}, width={width}, prefix={prefix}, base=16)"
    found = attention_logits(q, k, encodings.from_name(name, **SIZES), {})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_lerope_is_mistral_large_4s():
    """`mistral_large4` of transformers: frequencies times e^α, without YaRN."""
    alpha = 0.3 * draw(d // 2, seed=9)
    positions = np.arange(L) * 40
    turn = (positions[:, None] - positions)[..., None] * (FREQUENCIES * np.exp(alpha))
    pairs_q, pairs_k = (x[..., 0::2] + 1j * x[..., 1::2] for x in (Q, K))
    products = np.einsum(
        "bqhm,bkhm,qkm->bhqk", pairs_q, pairs_k.conj(), np.exp(1j * turn)
    )
    params = {"rope": {"log_factors": alpha}}
    name = "lerope(rope(base=256, layout='interleaved'))"
    check(name, products.real / np.sqrt(d), params, positions)


def test_inkling_is_inkling_2s():
    """`inkling2` of transformers: the projected states of a query are rescaled by a weight, and are
    shortened to the clip where they are longer."""
    extent, rank, clip = 7, 4, 6.0
    projection, table = draw(D, H, rank, seed=10), draw(extent, rank, seed=11)
    scale = draw(H, rank, seed=12)
    states = np.einsum("blD,Dhr->blhr", X, projection) * scale
    size = np.linalg.norm(states, axis=-1, keepdims=True)
    states = states * np.minimum(clip / (size + 1e-6), 1)
    distance = np.arange(L)[:, None] - np.arange(L)
    near = (distance >= 0) & (distance < extent)
    vectors = np.where(near[..., None], table[np.clip(distance, 0, extent - 1)], 0)
    bias = np.einsum("bqhr,qkr->bhqk", states, vectors)
    expected = np.einsum("bqhd,bkhd->bhqk", Q, K) / np.sqrt(d) + bias
    params = {"projection": projection, "table": table[::-1], "scale": scale}
    options = (
        f"max_distance={extent - 1}, rank={rank}, bidirectional=False, max_norm={clip}"
    )
    check(f"inkling({options})", expected, {"inkling": params})
    assert 0.1 < (size < clip).mean() < 0.9


def test_rove_of_a_slice_is_deepseek_v4s():
    """`deepseek_v4` of transformers: one head of keys that are the values as well, whose last
    dimensions rotate in neighbouring pairs, and outputs are rotated back."""
    size, kv = 4, K[:, :, :1]
    turn = np.exp(1j * np.arange(L)[:, None] * 4.0 ** -np.arange(size // 2))[:, None]

    def rotated(x, turn):
        still, pairs = x[..., : d - size], x[..., d - size :]
        turned = (pairs[..., 0::2] + 1j * pairs[..., 1::2]) * turn
        mixed = np.stack([turned.real, turned.imag], axis=-1).reshape(
            *x.shape[:-1], size
        )
        return np.concatenate([still, mixed], axis=-1)

    keys = rotated(kv, turn)[:, :, 0]
    logits = np.einsum("bqhd,bkd->bhqk", rotated(Q, turn), keys) / np.sqrt(d)
    weights = np.exp(np.where(np.tri(L, dtype=bool), logits, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    expected = rotated(np.einsum("bhqk,bkd->bqhd", weights, keys), turn.conj())
    inside = encodings.rope_slice(
        head_size=d, size=size, base=16.0, layout="interleaved"
    )
    found = attention(Q, kv, kv, encodings.rove(inside) + encodings.causal())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
