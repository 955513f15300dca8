"""What a trial of a sampled search is: a whole deployment, or a decode unit that counts by the best pair it makes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from afd_dse.cost.columns import Candidates
from afd_dse.cost.evaluate import evaluate, gpus_by_pool
from afd_dse.cost.evaluation import CONSTRAINTS
from afd_dse.cost.launching import BoolArray, runs
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.units import DecodeUnits, decode_units
from afd_dse.operators.latency import FloatArray
from afd_dse.rows import distinct_rows, join_rows, take_rows
from afd_dse.search.objective import Objective
from afd_dse.search.pairs import best_rates, best_scores, evaluated, narrowed, paired, probes, throttled
from afd_dse.search.pool import Found, keep, scores
from afd_dse.search.sides import DecodeSide, rows_before, units_apart
from afd_dse.search.supply import Supplies
from afd_dse.search.surrogate import bent
from afd_dse.spec.cells import Partition, Phase

# Best deployments by the objective that are kept of all.
BEST = 256
# Best pairs by the objective that are evaluated beside the front.
BEST_PAIRS = 8
# Most pairs of the front that are evaluated, as share of the trials, and at least.
PAIRED = 0.2
LEAST_PAIRED = 20
_TINY = 1e-9
# Whether a unit fits into the cluster, and a release runs it, is known without evaluating it; its speed tells of the
# limit on TPOT.
_TOLD = [number for number, name in enumerate(CONSTRAINTS) if name not in ("gpus", "TPOT")]


@dataclass(frozen=True, slots=True)
class Measured:
    """Trials that have been evaluated [n].

    ``speed`` per user, ``throughput`` per GPU and ``score`` by the objective; ``slack`` [n, constraints]; ``targets``
    [n, 1 + slacks] are what a surrogate learns: the logarithm of the speed, and bent slacks.
    """

    speed: FloatArray
    throughput: FloatArray
    score: FloatArray
    slack: FloatArray
    targets: FloatArray


class Trials(Protocol):
    """How candidates are evaluated, what they would reach at another speed, and what they lead to."""

    def measure(self, block: Candidates) -> Measured:
        """Evaluate candidates [n]."""

    def reach(self, block: Candidates, speed: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Speed and throughput of candidates [n] if they had that speed; 0 and 0 beyond the limit on TPOT."""

    def found(self) -> tuple[Found | None, int]:
        """What is worth keeping of all that was evaluated, and how many more evaluations that took."""


def most_pairs(trials: int) -> int:
    """How many pairs are evaluated at most of so many decode units."""
    return max(round(PAIRED * trials), LEAST_PAIRED) + BEST_PAIRS


def _released(
    scenario: Scenario, partition: Partition, block: Candidates, phases: Sequence[Phase]
) -> BoolArray:
    """Which candidates [n] a release runs, where only such are searched; else all."""
    if not scenario.only_launchable:
        return np.ones(len(block), dtype=bool)
    return runs(scenario, partition, block, phases)


def _without(slack: FloatArray, out: BoolArray) -> FloatArray:
    """``slack`` [n, constraints] with candidates left ``out`` [n] as if they did not fit into the cluster."""
    if not out.any():
        return slack
    found = slack.copy()
    found[out, CONSTRAINTS.index("gpus")] = -1.0
    return found


class Deployments:
    """Trials are whole deployments."""

    def __init__(self, scenario: Scenario, partition: Partition, objective: Objective) -> None:
        self._scenario, self._partition, self._objective = scenario, partition, objective
        self._kept: list[Found] = []

    def measure(self, block: Candidates) -> Measured:
        """Evaluate candidates [n]."""
        found = Found(block, evaluate(self._scenario, block))
        ok = _released(self._scenario, self._partition, block, tuple(Phase))
        if ok.any():
            some = found if ok.all() else found.take(np.flatnonzero(ok))
            self._kept.append(keep(self._scenario, self._objective, some))
        m, slack = found.evaluation.metrics, _without(found.evaluation.slack, ~ok)
        speed = m["tokens_per_s_per_user"]
        return Measured(
            speed,
            m["tokens_per_s_per_gpu"],
            scores(self._scenario, self._objective, found),
            slack,
            np.column_stack([np.log(np.maximum(speed, _TINY)), bent(slack[:, _TOLD])]),
        )

    def reach(self, block: Candidates, speed: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Every sequence of the batch gets a token a step."""
        cuts = {phase: Cut.of(block, phase) for phase in Phase}
        gpus = gpus_by_pool(self._scenario, self._partition, cuts).sum(axis=1)
        sequences = block.number("batch_size") * cuts[Phase.DECODE].dp * cuts[Phase.DECODE].replicas
        within = speed * self._scenario.slo.tpot_s >= 1.0
        return speed * within, speed * within * sequences / gpus

    def found(self) -> tuple[Found | None, int]:
        """The front, the best and the near misses."""
        if not self._kept:
            return None, 0
        return keep(self._scenario, self._objective, join_rows(self._kept), best=BEST), 0


class DecodeTrials:
    """Trials are decode units; each counts by its best pair with what prefill supplies."""

    def __init__(
        self, scenario: Scenario, partition: Partition, objective: Objective, supplies: Supplies
    ) -> None:
        self._scenario, self._partition, self._objective = scenario, partition, objective
        self._supplies = supplies
        self._units: list[tuple[Candidates, DecodeUnits]] = []

    def measure(self, block: Candidates) -> Measured:
        """Evaluate decode units [n]."""
        units = decode_units(self._scenario, self._partition, block)
        ok = _released(self._scenario, self._partition, block, (Phase.DECODE,))
        some = np.flatnonzero(ok)
        self._units += [(block.take(some), take_rows(units, some))] if len(some) else []
        side = units_apart(block, units)
        rate = best_rates(self._scenario, self._supplies, side, self._objective)
        score = best_scores(self._scenario, self._supplies, side, self._objective)
        slack = np.ones((len(block), len(CONSTRAINTS)))
        slack[:, CONSTRAINTS.index("memory")] = units.memory_slack
        slack[:, CONSTRAINTS.index("TPOT")] = 1.0 - units.tpot_s / min(self._scenario.slo.tpot_s, 1e3)
        slack[:, CONSTRAINTS.index("prefill capacity")] = np.where(rate > 0.0, 1.0, -1.0)
        return Measured(
            1.0 / units.tpot_s,
            rate * self._scenario.workload.osl,
            score,
            _without(slack, ~ok),
            np.column_stack([-np.log(units.tpot_s), bent(units.memory_slack)]),
        )

    def reach(self, block: Candidates, speed: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The best pair of units that have this speed."""
        cuts = {phase: Cut.of(block, phase) for phase in Phase}
        osl = self._scenario.workload.osl
        units = DecodeUnits(
            1.0 / speed,
            block.number("batch_size") * cuts[Phase.DECODE].dp * speed / osl,
            np.ones(len(block)),
            gpus_by_pool(self._scenario, self._partition, cuts, (Phase.DECODE,)),
        )
        side = units_apart(block, units)
        rate = best_rates(self._scenario, self._supplies, side, self._objective)
        return speed * (rate > 0.0), rate * osl

    def found(self) -> tuple[Found | None, int]:
        """All that has been evaluated, paired exactly."""
        if not self._units:
            return None, 0
        candidates = Candidates.concatenate([block for block, _ in self._units])
        decode = self._side(candidates, join_rows([units for _, units in self._units]))
        pairs = paired(self._scenario, self._partition, self._supplies, decode, self._objective, BEST_PAIRS)
        if pairs is None:
            near = probes(self._scenario, self._partition, self._supplies.side, decode)
            found = Found(near, evaluate(self._scenario, near)) if len(near) else None
        else:
            most = most_pairs(len(candidates)) - BEST_PAIRS
            few = narrowed(self._scenario, self._partition, pairs, self._objective, BEST_PAIRS, most)
            lowered = throttled(self._scenario, self._partition, few)
            found = evaluated(self._scenario, lowered, self._objective)
        if found is None:
            return None, 0
        return keep(self._scenario, self._objective, found, best=BEST), len(found)

    def _side(self, candidates: Candidates, units: DecodeUnits) -> DecodeSide:
        """The units as a table in which each knows that of the same layout under the next smaller load."""
        layout = distinct_rows(list(candidates.replace(batch_size=1.0).columns.values()))[1]
        before = rows_before(layout, candidates.number("batch_size"))
        return DecodeSide(candidates, units, before, len(candidates))


__all__ = ["DecodeTrials", "Deployments", "Measured", "Trials", "most_pairs"]
