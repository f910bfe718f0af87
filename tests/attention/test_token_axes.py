"""Axes of queries and keys that fields of records declare."""

import dataclasses

import jax
import numpy as np

from pe_jax.attention.inputs import AddedLogits
from pe_jax.attention.masks import Masks, PositionWindow
from pe_jax.attention.token_axes import PerToken, axes_of
from pe_jax.encodings import AttentionWindow, LogitTerms

L = 6


def zeros(*shape):
    return np.zeros(shape)


def test_masks_and_documents_have_axes():
    positions = PerToken(queries=zeros(2, L), keys=zeros(2, L))
    window = PositionWindow(window=AttentionWindow(right=0), positions=positions)
    masks = Masks(
        mask=zeros(2, 1, L, L),
        document_ids=PerToken(queries=zeros(2, L), keys=zeros(2, L)),
        position_windows=(window,),
    )
    queries, keys = axes_of(masks, "queries"), axes_of(masks, "keys")
    assert (queries.mask, keys.mask) == (2, 3)
    assert queries.document_ids == PerToken(queries=1, keys=None)
    assert keys.position_windows[0].positions == PerToken(queries=None, keys=1)


def test_positions_without_a_batch_have_one_axis():
    positions = PerToken(queries=zeros(L), keys=zeros(3, L))
    assert axes_of(positions, "queries") == PerToken(queries=0, keys=None)
    assert axes_of(positions, "keys") == PerToken(queries=None, keys=1)


def test_arrays_of_logit_terms_may_be_trees():
    terms = LogitTerms(
        function=lambda q, k, shared, mask: q,
        query_arrays={"a": zeros(1, L, 4), "b": (zeros(1, L),)},
        key_arrays=zeros(1, L),
        shared=zeros(5),
    )
    (axes,) = axes_of(AddedLogits(terms=(terms,)), "queries").terms
    assert axes.query_arrays == {"a": 1, "b": (1,)}
    assert axes.key_arrays is None
    assert axes.shared is None


def test_axes_fit_into_jax_vmap():
    """They are a tree like that of the arrays."""
    masks = Masks(mask=np.ones((1, 1, L, L), bool), window=AttentionWindow(right=0))
    column_sums = jax.vmap(lambda masks: masks.mask.sum(), (axes_of(masks, "keys"),))
    assert column_sums(masks).tolist() == [L] * L
    assert dataclasses.fields(masks)[0].metadata == {"queries": 2, "keys": 3}
