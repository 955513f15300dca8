"""What deployments whose phases share GPUs, but not steps, would do if neither phase disturbed the other."""

from collections.abc import Callable

import numpy as np

from afd_dse.cost.columns import Candidates
from afd_dse.cost.engines import decode_alone, distinct_units, prefill_alone
from afd_dse.cost.evaluate import MAX_UTILIZATION, gpus_by_pool, served
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import distinct_rows
from afd_dse.search.descent import TPOT_MARGIN, BoolArray, Points
from afd_dse.search.objective import Objective, rates_of
from afd_dse.search.pareto import NEAR, Reached
from afd_dse.spec.cells import Partition, Phase

# Rows that are evaluated first, at most, also as a share of all: a front that beats most of the others.
FIRST, FIRST_SHARE = 1000, 0.05


class Undisturbed:
    """Bounds of ``candidates`` [n], all replicas that they have together, under any load.

    Beside the other phase decode takes no shorter steps than alone, and prefill serves no more. So B sequences in
    flight have a TPOT of at least that of decode alone, and as λ = B/(OSL·TPOT) cannot exceed what prefill serves, one
    of at least B/(OSL·λ_P). Where what has been reached within that TPOT beats λ, nothing else need be known of them.
    """

    def __init__(
        self, scenario: Scenario, partition: Partition, objective: Objective, candidates: Candidates
    ) -> None:
        self._scenario, self._partition, self._objective = scenario, partition, objective
        cuts = {phase: Cut.of(candidates, phase) for phase in Phase}
        self._units = distinct_units(candidates, [Phase.DECODE], [])
        self._sequences = (cuts[Phase.DECODE].dp * cuts[Phase.DECODE].replicas).astype(np.float64)
        self._by_pool = gpus_by_pool(scenario, partition, cuts)
        prefill, _, _ = prefill_alone(scenario, partition, candidates)
        self._most = MAX_UTILIZATION * prefill.capacity * cuts[Phase.PREFILL].replicas
        self._reached: list[Reached] = []

    def first(self, batches: FloatArray) -> tuple[IntArray, FloatArray]:
        """Candidates and batches, of ``batches``, nearest to the front of all bounds: :data:`FIRST` at most."""
        rows = np.tile(np.arange(len(self._sequences)), len(batches))
        batch = np.repeat(batches, len(self._sequences))
        points = self.points(rows, batch)
        within = np.flatnonzero(points.tpot_s <= self._scenario.slo.tpot_s)
        tpot, nearness = points.tpot_s[within], np.zeros(len(within))
        for rate in points.rates[within].T:
            nearness = np.maximum(nearness, rate / Reached().with_points(tpot, rate).within(tpot))
        most = min(FIRST, int(FIRST_SHARE * len(rows)))
        some = np.sort(within[np.argsort(-nearness, kind="stable")[:most]])
        return rows[some], batch[some]

    def learn(self, points: Points) -> None:
        """Points were evaluated."""
        if not self._reached:
            self._reached = [Reached() for _ in points.rates.T]
        rates = points.sure[points.holds].T
        tpot = points.tpot_s[points.holds]
        self._reached = [one.with_points(tpot, rate) for one, rate in zip(self._reached, rates, strict=True)]

    def points(self, rows: IntArray, batch_size: FloatArray) -> Points:
        """The candidates at ``rows`` under a batch, as if undisturbed; none counts as holding the limits."""
        tpot = self._tpot_s(rows, batch_size)
        rates = self._rates(rows, self._in_flight(rows, batch_size) / tpot)
        grows = tpot <= self._scenario.slo.tpot_s * (1.0 + TPOT_MARGIN)
        return Points(tpot, rates, np.zeros_like(rates), np.zeros(len(rows), dtype=bool), grows)

    def hopeless(self, rows: IntArray, batch_size: FloatArray, points: Points, ratio: float) -> BoolArray:
        """Whether candidates come near to nothing that is reached under a batch, [n]; ``points`` are theirs.

        Nor up to ``ratio`` times it, where a limit may end to hold on the way: what holds there is sought from here on.
        """
        if not any(len(one.tpot_s) for one in self._reached):
            return np.zeros(len(rows), dtype=bool)
        limit = self._scenario.slo.tpot_s
        result = self._beaten(points.tpot_s, points.rates) | (points.tpot_s > limit)
        requests = self._in_flight(rows, batch_size) / points.tpot_s
        most = self._rates(rows, np.minimum(requests * ratio, self._most[rows]))
        open_ = np.flatnonzero(result & (points.tpot_s <= limit) & ~self._beaten(points.tpot_s, most))
        after = self.points(rows[open_], batch_size[open_] * ratio)
        result[open_] = self._beaten(after.tpot_s, after.rates) & (after.tpot_s <= limit)
        return result

    def _beaten(self, tpot_s: FloatArray, rates: FloatArray) -> BoolArray:
        """Whether what is reached within a TPOT beats rates [n, k] by far, [n]."""
        result = np.ones(len(tpot_s), dtype=bool)
        for one, rate in zip(self._reached, rates.T, strict=True):
            result &= NEAR * one.within(tpot_s) >= rate
        return result

    def evaluated(
        self,
        rows: IntArray,
        batch_size: FloatArray,
        ratio: float,
        evaluate: Callable[[IntArray, FloatArray], Points],
    ) -> Points:
        """Points of candidates: evaluated, or undisturbed where they are hopeless."""
        points = self.points(rows, batch_size)
        worth = np.flatnonzero(~self.hopeless(rows, batch_size, points, ratio))
        if len(worth):
            found = evaluate(rows[worth], batch_size[worth])
            self.learn(found)
            for name in Points.__slots__:
                getattr(points, name)[worth] = getattr(found, name)
        return points

    def _in_flight(self, rows: IntArray, batch_size: FloatArray) -> FloatArray:
        """Sequences in flight over OSL, [n]: requests/s × TPOT."""
        result: FloatArray = batch_size * self._sequences[rows] / self._scenario.workload.osl
        return result

    def _tpot_s(self, rows: IntArray, batch_size: FloatArray) -> FloatArray:
        first, which = distinct_rows([self._units.which[rows], batch_size])
        units = self._units.distinct.take(self._units.which[rows[first]])
        decode, _ = decode_alone(self._scenario, self._partition, units.replace(batch_size=batch_size[first]))
        alone = (decode.interval_s / self._scenario.accepted_per_step)[which]
        return np.maximum(alone, self._in_flight(rows, batch_size) / self._most[rows])

    def _rates(self, rows: IntArray, requests: FloatArray) -> FloatArray:
        """What the objective compares at ``requests``/s, [n, k]."""
        return rates_of(self._objective, served(self._scenario, requests, self._by_pool[rows]))
