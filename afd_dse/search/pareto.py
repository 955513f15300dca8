"""Pareto fronts of two or more columns, larger is better."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray


def front(x: FloatArray, y: FloatArray) -> IntArray:
    """Indices of the rows that no other row beats in both ``x`` and ``y`` (larger is better), by descending ``x``.

    Of equal rows the first is kept.
    """
    order = np.lexsort((np.arange(len(x)), -y, -x))
    ranked = y[order]
    best_before = np.concatenate([[-np.inf], np.maximum.accumulate(ranked)[:-1]]) if len(x) else ranked
    result: IntArray = order[ranked > best_before].astype(np.int64)
    return result


def non_dominated(columns: FloatArray) -> npt.NDArray[np.bool_]:
    """Mask of rows [n, k] that no other row beats: ≥ in every column and different; of equal rows the first is kept.

    Quadratic in the rows that survive; meant for a few thousand.
    """
    order = np.lexsort(tuple(-columns[:, k] for k in reversed(range(columns.shape[1]))))
    kept: list[int] = []
    for row in order:
        if not kept or not (columns[kept] >= columns[row]).all(axis=1).any():
            kept.append(int(row))
    mask = np.zeros(len(columns), dtype=bool)
    mask[kept] = True
    return mask


def front_by_group(group: npt.NDArray[np.int64], x: FloatArray, y: FloatArray) -> IntArray:
    """Indices of the fronts of ``x`` and ``y`` inside every group, all groups at once."""
    order = np.lexsort((np.arange(len(x)), -y, -x, group))
    g, ranked = group[order], y[order]
    bounds = [0, *(np.flatnonzero(g[1:] != g[:-1]) + 1), len(g)]
    keep = np.zeros(len(order), dtype=bool)
    for start, stop in pairwise(bounds):
        part = ranked[start:stop]
        keep[start:stop] = part > np.concatenate([[-np.inf], np.maximum.accumulate(part)[:-1]])
    result: IntArray = order[keep].astype(np.int64)
    return result
