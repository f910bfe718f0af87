"""Correlations of violations of the properties with scores, over runs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from pe_jax.common.records import Record

MINIMUM_RUNS = 4  # With three points almost any two columns correlate.


class Correlation(Record):
    """The correlation of one property with one score over `n` runs; None if a column is constant.

    The p-values are two-sided and not corrected for the number of pairs: Pearson's by the t
    distribution, Spearman's by permuting the runs, all orders of up to seven of them and 9,999
    random ones of more.
    """

    violation: str
    score: str
    n: int
    pearson: float | None
    pearson_p: float | None
    spearman: float | None
    spearman_p: float | None


def correlate(
    violations: Mapping[str, ArrayLike], scores: Mapping[str, ArrayLike]
) -> list[Correlation]:
    """Return Pearson's and Spearman's correlation of each violation with each score.

    Args:
      violations, scores: columns over the same runs, in the same order. NaN stands for a missing
        value; the column's correlations then exclude that run.

    Raises:
      ValueError: for columns of different lengths, or fewer than 4 runs in any pair.
    """
    columns = {**violations, **scores}
    values = {name: np.asarray(column, float) for name, column in columns.items()}
    lengths = {name: len(column) for name, column in values.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"All columns of a table must have the same length, got {lengths}."
        )
    correlations = []
    for violation in violations:
        for score in scores:
            x = values[violation]
            y = values[score]
            correlations.append(_correlation(violation, score, x, y))
    return correlations


def _correlation(
    violation: str, score: str, x: np.ndarray, y: np.ndarray
) -> Correlation:
    from scipy import stats  # As long to import as all of JAX, and only needed here.

    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) < MINIMUM_RUNS:
        raise ValueError(
            f"The correlation of {violation} with {score} needs at least {MINIMUM_RUNS} runs that "
            f"have both, got {len(x)}. Give more runs, or a table with more of their scores."
        )
    result = Correlation(
        violation=violation,
        score=score,
        n=len(x),
        pearson=None,
        pearson_p=None,
        spearman=None,
        spearman_p=None,
    )
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return result
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        pearson = stats.pearsonr(x, y)
    ranks_x = stats.zscore(stats.rankdata(x))
    ranks_y = stats.zscore(stats.rankdata(y))

    def statistic(permuted, axis):
        return (permuted * ranks_y).mean(axis)

    spearman = stats.permutation_test(
        (ranks_x,),
        statistic,
        permutation_type="pairings",
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return result.replace(
        pearson=float(pearson.statistic),
        pearson_p=float(pearson.pvalue),
        spearman=float(spearman.statistic),
        spearman_p=float(spearman.pvalue),
    )
