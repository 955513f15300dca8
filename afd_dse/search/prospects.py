"""What decode units can lead to: a bound on what their pairs serve per GPU, beside what other pairs reach."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from afd_dse.cost.columns import Candidates
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.units import DecodeUnits
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import take_rows
from afd_dse.search.objective import Objective
from afd_dse.search.pairs import best_rates
from afd_dse.search.pareto import NEAR, Reached, front
from afd_dse.search.sides import units_apart
from afd_dse.search.supply import Supplies


class Prospects:
    """Of the modes that share a table of decode units, what their pairs reach so far.

    With r decode units of G_D GPUs and a prefill of G_P GPUs, a pair serves λ ≤ r·λ_D and λ ≤ λ_P. So it takes
    r·G_D + G_P ≥ λ·(G_D/λ_D + G_P/λ_P) GPUs, and λ per GPU is 1/(G_D/λ_D + G_P/λ_P) at most, whatever r and G_P are.
    """

    def __init__(self, scenario: Scenario, supplies: Sequence[Supplies], objective: Objective) -> None:
        self._scenario, self._supplies, self._objective = scenario, supplies, objective
        # By mode, the rate in requests/s per GPU.
        self._reached = [Reached() for _ in supplies]

    def learn(self, units: DecodeUnits, candidates: Callable[[IntArray], Candidates]) -> None:
        """Decode units [n] within all limits were found; ``candidates`` are those at some rows."""
        rate, gpus = units.requests_per_s, units.gpus_by_pool.sum(axis=1)
        rows = front(-units.tpot_s, rate / gpus)
        rows = rows[~self._beaten(units.tpot_s[rows], rate[rows], gpus[rows], 1.0)]
        if not len(rows):
            return
        side = units_apart(candidates(rows), take_rows(units, rows))
        for mode, supplies in enumerate(self._supplies):
            found = best_rates(self._scenario, supplies, side, self._objective)
            self._reached[mode] = self._reached[mode].with_points(side.units.tpot_s, found)

    def hopeless(
        self, tpot_s: FloatArray, requests_per_s: FloatArray, gpus: FloatArray
    ) -> npt.NDArray[np.bool_]:
        """Whether no pair with a unit of ``gpus`` that is no faster and serves no more comes near the front, [n]."""
        return self._beaten(tpot_s, requests_per_s, gpus, NEAR)

    def _beaten(
        self, tpot_s: FloatArray, requests_per_s: FloatArray, gpus: FloatArray, share: float
    ) -> npt.NDArray[np.bool_]:
        """Whether ``share`` of what is reached beats units in every mode, [n]."""
        result = np.ones(len(tpot_s), dtype=bool)
        for supplies, reached in zip(self._supplies, self._reached, strict=True):
            most = requests_per_s / (gpus + requests_per_s * supplies.least_gpus_per_request)
            result &= share * reached.within(tpot_s) >= most
        return result
