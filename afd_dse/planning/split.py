"""The split of a cluster among models: of each one's choices one is taken, by small integer programs (HiGHS)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp

from afd_dse.errors import AfdDseError
from afd_dse.operators.latency import FloatArray, IntArray

SECONDS = 60.0
_INFEASIBLE, _LIMIT = 2, 1
# Values closer than this (relative) are equal.
_SAME = 1e-9
NOTHING = -1
"""The choice of a model that gets no GPUs."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Deployments to choose from, columns [choices].

    ``of_model`` by number; ``gpus`` [choices, pools] that it takes from the cluster; ``requests_per_s`` and
    ``tokens_per_s`` that it serves within its model's SLO.
    """

    of_model: IntArray
    gpus: FloatArray
    requests_per_s: FloatArray
    tokens_per_s: FloatArray

    def __len__(self) -> int:
        return len(self.of_model)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is shared, columns [pools]: GPUs, and USD per GPU-hour."""

    counts: FloatArray
    usd_per_gpu_hour: FloatArray


@dataclass(frozen=True, slots=True)
class Split:
    """The choice of every model, [models]; :data:`NOTHING` where it gets no GPUs.

    ``gap`` is how far the objective may be from the optimum, relative: 0 where the solver proved it.
    """

    choice: IntArray
    gap: float


def fewest(
    choices: Choices, cluster: Cluster, demand: FloatArray, objective: str = "fewest_gpus"
) -> Split | None:
    """Every model's ``demand`` [models], requests/s, on the fewest GPUs (``usd_per_hour``: at the least cost).

    Of equal splits the cheapest (the smallest). None where the cluster does not serve all of it.
    """
    usable = choices.requests_per_s >= demand[choices.of_model] * (1.0 - _SAME)
    gpus = choices.gpus.sum(axis=1)
    usd = choices.gpus @ cluster.usd_per_gpu_hour
    first, second = (usd, gpus) if objective == "usd_per_hour" else (gpus, usd)
    best = _solved(choices, cluster, usable, first, len(demand), all_served=True)
    if best is None:
        return None
    limit = (first, -np.inf, float(first[best.choice].sum()) * (1.0 + _SAME) + _SAME)
    tied = _solved(choices, cluster, usable, second, len(demand), all_served=True, limit=limit)
    return best if tied is None else Split(tied.choice, best.gap)


def growth(choices: Choices, cluster: Cluster, demand: FloatArray) -> tuple[float, Split | None]:
    """The largest factor by which every demand can grow at once, and the fewest GPUs that serve it.

    It is one of the ratios of a choice's rate to its model's demand: found by bisection over them. 0 and None where
    some model has no choice that fits beside the others.
    """
    ratio = choices.requests_per_s / demand[choices.of_model]
    levels = np.unique(ratio)
    gpus = choices.gpus.sum(axis=1)
    low, high = -1, len(levels) - 1
    while low < high:
        middle = (low + high + 1) // 2
        usable = ratio >= levels[middle] * (1.0 - _SAME)
        if _solved(choices, cluster, usable, gpus, len(demand), all_served=True) is None:
            high = middle - 1
        else:
            low = middle
    if low < 0:
        return 0.0, None
    return float(levels[low]), fewest(choices, cluster, demand * levels[low])


def weighted(choices: Choices, cluster: Cluster, weight: FloatArray, demand: FloatArray) -> Split | None:
    """The most tokens/s, each times its model's ``weight`` [models], on the fewest GPUs that reach it.

    A ``demand`` [models] above 0 is the least that a model must serve; None where the cluster does not serve all of it.
    """
    usable = choices.requests_per_s >= demand[choices.of_model] * (1.0 - _SAME)
    value = weight[choices.of_model] * choices.tokens_per_s
    must = demand > 0.0
    best = _solved(choices, cluster, usable, -value, len(demand), all_served=False, must=must)
    if best is None:
        return None
    reached = float(value[best.choice[best.choice != NOTHING]].sum())
    limit = (value, reached * (1.0 - _SAME), np.inf)
    gpus = choices.gpus.sum(axis=1)
    tied = _solved(choices, cluster, usable, gpus, len(demand), all_served=False, must=must, limit=limit)
    return best if tied is None else Split(tied.choice, best.gap)


def _solved(
    choices: Choices,
    cluster: Cluster,
    usable: npt.NDArray[np.bool_],
    cost: FloatArray,
    models: int,
    *,
    all_served: bool,
    must: npt.NDArray[np.bool_] | None = None,
    limit: tuple[FloatArray, float, float] | None = None,
) -> Split | None:
    """One choice a model at the least ``cost`` within the cluster; None where there is none.

    ``must`` [models] get GPUs (``all_served``: all do); ``limit`` bounds the sum of another column.
    """
    rows = np.flatnonzero(usable & (choices.gpus <= cluster.counts + _SAME).all(axis=1))
    least = np.ones(models) if all_served or must is None else must.astype(np.float64)
    of_model = choices.of_model[rows]
    if (np.bincount(of_model, minlength=models)[:models] < least).any():
        return None
    if not len(rows):
        return Split(np.full(models, NOTHING, dtype=np.int64), 0.0)
    one_each = (np.arange(models)[:, None] == of_model[None, :]).astype(np.float64)
    constraints = [
        LinearConstraint(one_each, least, 1.0),
        LinearConstraint(choices.gpus[rows].T, -np.inf, cluster.counts),
    ]
    if limit is not None:
        column, low, high = limit
        constraints.append(LinearConstraint(column[rows][None, :], low, high))
    found = milp(
        cost[rows],
        constraints=constraints,
        bounds=Bounds(0.0, 1.0),
        integrality=np.ones(len(rows), dtype=np.int64),
        options={"time_limit": SECONDS, "mip_rel_gap": 0.0},
    )
    if found.status == _INFEASIBLE:
        return None
    if found.x is None:
        why = "no split found in its time" if found.status == _LIMIT else found.message
        raise AfdDseError(f"the solver failed ({why})")
    taken = rows[found.x > 0.5]
    choice = np.full(models, NOTHING, dtype=np.int64)
    choice[choices.of_model[taken]] = taken
    return Split(choice, float(found.mip_gap or 0.0) if found.status == _LIMIT else 0.0)
