"""The steps of a staircase: of deployments by GPUs and rate those that no other beats in both."""

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.objective import TIE_TOLERANCE
from afd_dse.search.pareto import front, non_dominated
from afd_dse.search.sides import codes

# Entries of a comparison of all with all that are held at once.
COMPARED_AT_ONCE = 4_000_000


def steps(gpus_by_pool: npt.ArrayLike, rate: FloatArray) -> IntArray:
    """Rows that serve more than every other row on no more GPUs of any pool; of equal rows the first one.

    ``gpus_by_pool`` [n, pools], ``rate`` [n], requests/s. Rates within the tolerance of a tie count as equal.
    """
    sizes = np.asarray(gpus_by_pool, dtype=np.float64)
    with np.errstate(divide="ignore"):
        level = np.floor(np.log(rate) / TIE_TOLERANCE)
    if sizes.shape[1] == 1:
        return front(level, -sizes[:, 0])
    rows = largest_of_each(sizes, level)
    return rows[non_dominated(np.column_stack([level[rows], -sizes[rows]]))]


def largest_of_each(gpus_by_pool: FloatArray, rate: FloatArray) -> IntArray:
    """Of all rows on the same GPUs the one with the largest rate, the first of equal ones."""
    if not len(rate):
        return np.zeros(0, dtype=np.int64)
    code = codes(gpus_by_pool)
    order = np.lexsort((-rate, code))
    first = np.flatnonzero(np.diff(code[order], prepend=-1))
    result: IntArray = order[first].astype(np.int64)
    return result


def best_within(gpus_by_pool: FloatArray, rate: FloatArray, room: FloatArray) -> FloatArray:
    """The largest rate [m] of rows [n] that fit into ``room`` [m, pools]; 0 where none does."""
    if gpus_by_pool.shape[1] == 1:
        order = np.argsort(gpus_by_pool[:, 0], kind="stable")
        reached = np.concatenate([[0.0], np.maximum.accumulate(rate[order])])
        result: FloatArray = reached[np.searchsorted(gpus_by_pool[order, 0], room[:, 0], side="right")]
        return result
    at_once = max(COMPARED_AT_ONCE // max(len(rate), 1), 1)
    parts = []
    for start in range(0, len(room), at_once):
        fits = (gpus_by_pool[None, :, :] <= room[start : start + at_once, None, :]).all(axis=2)
        parts.append(np.where(fits, rate[None, :], 0.0).max(axis=1, initial=0.0))
    return np.concatenate(parts) if parts else np.zeros(0)
