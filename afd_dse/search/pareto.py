"""Pareto fronts of two or more columns, larger is better."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray

# Of more rows than this every so-manieth is looked at first: most others are beaten by those.
MANY, SAMPLED = 20_000, 32
# What comes so near to the front is kept beside it: the next best are told too, and simulation may prefer them.
NEAR = 0.9


def front(x: FloatArray, y: FloatArray) -> IntArray:
    """Indices of the rows that no other row beats in both ``x`` and ``y`` (larger is better), by descending ``x``.

    Of equal rows the first is kept.
    """
    if len(x) > MANY:
        some = front(x[::SAMPLED], y[::SAMPLED]) * SAMPLED
        # Of the sample's front what is as large in x: it rises in y as x falls.
        best = np.append(-np.inf, y[some])[np.searchsorted(-x[some], -x, side="right")]
        rows = np.flatnonzero(y >= best)
        return rows[_front(x[rows], y[rows])].astype(np.int64)
    return _front(x, y)


def _front(x: FloatArray, y: FloatArray) -> IntArray:
    return _rising(np.lexsort((-y, -x)), y)


def _rising(order: IntArray, y: FloatArray | IntArray) -> IntArray:
    """Those of ``order`` whose ``y`` is larger than that of all before."""
    ranked = y[order]
    result: IntArray = order[np.append(True, ranked[1:] > np.maximum.accumulate(ranked)[:-1])[: len(order)]]
    return result


def fronts(x: FloatArray, y: FloatArray, group: IntArray) -> IntArray:
    """Indices of the rows on the front of their ``group``, as :func:`front` has them, group after group."""
    order = np.lexsort((-y, -x, group))
    # Ranks, raised from group to group, keep the running maximum of one from reaching into the next.
    rank = np.unique(y, return_inverse=True)[1] + group * len(y)
    return _rising(order, rank)


@dataclass(frozen=True, slots=True)
class Reached:
    """The largest rate within a TPOT: steps at ``tpot_s``, ascending, from which on ``rate`` is reached, [n]."""

    tpot_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    rate: FloatArray = field(default_factory=lambda: np.zeros(0))

    def with_points(self, tpot_s: FloatArray, rate: FloatArray) -> "Reached":
        """With points [n] more."""
        tpot_s, rate = np.append(self.tpot_s, tpot_s), np.append(self.rate, rate)
        best = front(-tpot_s, rate)
        return Reached(tpot_s[best], rate[best])

    def within(self, tpot_s: FloatArray) -> FloatArray:
        """The largest rate within each TPOT [n]; zero where there is none."""
        result: FloatArray = np.append(0.0, self.rate)[np.searchsorted(self.tpot_s, tpot_s, side="right")]
        return result


def non_dominated(columns: FloatArray, group: IntArray | None = None) -> npt.NDArray[np.bool_]:
    """Mask of rows [n, k] that no other row (of their ``group``) beats: ≥ in every column and different.

    Of equal rows the first is kept.
    """
    if group is None:
        # Here, since estimates and reports, which need no more than :func:`front`, would load it too.
        from moocore import is_nondominated

        return np.asarray(is_nondominated(columns, maximise=True, keep_weakly=False), dtype=bool)
    order = np.argsort(group, kind="stable")
    ordered = columns[order]
    bounds = [0, *(np.flatnonzero(np.diff(group[order])) + 1), len(order)]
    mask = np.zeros(len(order), dtype=bool)
    for start, stop in pairwise(bounds):
        mask[order[start:stop]] = non_dominated(ordered[start:stop])
    return mask
