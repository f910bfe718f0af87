"""Metrics of several steps: sums and counts, divided once, and the rates of the steps."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import numpy as np

from pe_jax.files import Json
from pe_jax.training.pytrees import Batch, Metrics, Scalars

# By the name of a metric, its sum and count over several steps: `[2]`, or `[2, S]` of S seeds.
Totals = dict[str, np.ndarray]


def add(totals: Totals, metrics: Metrics) -> list[str]:
    """Adds sums and counts to `totals`; returns descriptions of values that are not finite."""
    wrong = []
    for name, pair in jax.device_get(metrics).items():
        pair = np.asarray(pair, np.float64)
        totals[name] = totals.get(name, 0) + pair
        if not np.isfinite(pair).all():
            wrong.append(f"{name} {pair[0].flat[np.argmin(np.isfinite(pair[0]))]}")
    return wrong


def means(totals: Totals) -> Scalars:
    """Sums divided by counts, once; means over seeds, if any."""
    return {name: float(np.mean(s / np.maximum(n, 1))) for name, (s, n) in totals.items()}


def _means_by_seed(totals: Totals) -> Scalars:
    """Means under `name/i` for seed number i; empty without seeds."""
    return {
        f"{name}/{i}": float(sum_ / max(count, 1))
        for name, pair in totals.items()
        if pair.ndim == 2
        for i, (sum_, count) in enumerate(pair.T)
    }


class Meter:
    """The steps since the last line of the log: their metrics, their size, and their time.

    Args:
      totals: of the metrics of steps before, as JSON has them.
    """

    def __init__(self, totals: Json):
        self.totals: Totals = {name: np.array(pair) for name, pair in totals.items()}
        self._rows = self._tokens = 0
        self._flops = self._waited = 0.0
        self._start = time.perf_counter()

    def count(self, batch: Batch, flops: Callable[[int, int], float], waited: float) -> None:
        """Counts a step on a global batch, that took so many seconds to fetch; tokens `[..., L]`,
        padding included."""
        size, length = batch["tokens"].size, batch["tokens"].shape[-1]
        self._rows += size // length
        self._tokens += size
        self._flops += flops(size // length, length)
        self._waited += waited

    def scalars(self, learning_rate: float, peak: float) -> Scalars:
        """Means of the metrics, of all seeds and `name/i` of each, and rates; `peak` FLOP/s of all
        devices, 0 where not known."""
        seconds = time.perf_counter() - self._start
        scalars = {
            **means(self.totals),
            **_means_by_seed(self.totals),
            "learning_rate": learning_rate,
            "examples_per_second": self._rows / seconds,
            "tokens_per_second": self._tokens / seconds,
            "data_wait": self._waited / seconds,
        }
        return scalars | ({"mfu": self._flops / seconds / peak} if peak else {})
