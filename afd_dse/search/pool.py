"""The candidates that a search has found worth keeping, with their evaluation: fronts, bests and near misses."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.cost.columns import Candidates
from afd_dse.cost.evaluation import CONSTRAINTS, Evaluation
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.objective import TIE_TOLERANCE, Objective, order, score
from afd_dse.search.pareto import front
from afd_dse.spec.cells import PARTITIONS, Partition

# Ten times over a limit is as far from feasible as anything: beyond it near misses are not told apart.
WORST_VIOLATION = 10.0


@dataclass(frozen=True, slots=True)
class Found:
    """Evaluated candidates."""

    candidates: Candidates
    evaluation: Evaluation

    def __len__(self) -> int:
        return len(self.candidates)

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> "Found":
        """The rows at ``rows``."""
        return Found(self.candidates.take(rows), self.evaluation.take(rows))


def simplicity(candidates: Candidates) -> FloatArray:
    """How complicated a layout is: groups first, then the degrees of its cuts. Smaller is simpler."""
    groups = np.array([max(p.group_of) + 1 for p in PARTITIONS])[candidates.integer("partition")]
    cuts = sum(
        candidates.number(f"{phase}_{name}")
        for phase in ("prefill", "decode")
        for name in ("tp", "cp", "pp", "moe_tp", "micro_batches", "redundant")
    )
    result: FloatArray = groups * 1e6 + cuts
    return result


def scores(scenario: Scenario, objective: Objective, found: Found) -> FloatArray:
    """Score of every found candidate; infeasible ones score −∞."""
    value = score(
        scenario, objective, found.evaluation.metrics["requests_per_s"], found.evaluation.gpus_by_pool
    )
    return np.where(found.evaluation.feasible, value, -np.inf)


def ranking(scenario: Scenario, objective: Objective, found: Found, best: int | None = None) -> IntArray:
    """Feasible candidates from best to worst; the ``best`` first ones only, if given."""
    value = scores(scenario, objective, found)
    rows = np.flatnonzero(np.isfinite(value))
    if best is not None and len(rows) > best:
        # Only what ties with the last one or beats it can be among the best.
        last = -np.partition(-value[rows], best - 1)[best - 1]
        rows = rows[value[rows] >= last - TIE_TOLERANCE * abs(last)]
    metrics = {name: found.evaluation.metrics[name][rows] for name in ("ttft_s", "gpus")}
    ranked: IntArray = rows[order(metrics, value[rows], simplicity(found.candidates.take(rows)))]
    return ranked[:best]


def pareto_rows(found: Found) -> IntArray:
    """Feasible rows on the front of tokens/s/GPU against tokens/s/user."""
    feasible = np.flatnonzero(found.evaluation.feasible)
    m = found.evaluation.metrics
    rows = front(m["tokens_per_s_per_user"][feasible], m["tokens_per_s_per_gpu"][feasible])
    result: IntArray = feasible[rows]
    return result


def near_misses(found: Found) -> IntArray:
    """For every constraint the row that violates only it, and by the least; then the row that violates least in all.

    What "only it" leaves out is covered by the last row, so that an infeasible search always has an answer.
    """
    slack = found.evaluation.slack
    broken = slack < 0
    only = broken.sum(axis=1) == 1
    rows = []
    for number in range(len(CONSTRAINTS)):
        only_this = np.flatnonzero(only & broken[:, number])
        if len(only_this):
            rows.append(int(only_this[slack[only_this, number].argmax()]))
    infeasible = np.flatnonzero(~found.evaluation.feasible)
    if len(infeasible):
        violation = np.clip(-slack[infeasible], 0.0, WORST_VIOLATION).sum(axis=1)
        rows.append(int(infeasible[violation.argmin()]))
    return np.array(list(dict.fromkeys(rows)), dtype=np.int64)


def keep(scenario: Scenario, objective: Objective, found: Found, best: int = 64) -> Found:
    """What of a block is worth keeping: its front, its best rows and its near misses."""
    rows = np.concatenate([ranking(scenario, objective, found, best), pareto_rows(found), near_misses(found)])
    return found.take(np.unique(rows))


def partition_of(found: Found, row: int) -> Partition:
    """The partition of one row."""
    return PARTITIONS[int(found.candidates.integer("partition")[row])]
