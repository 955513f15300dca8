"""Pareto fronts of two or more columns, larger is better."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray

# Rows that are compared with those kept so far at once.
CHUNK = 128
# Of more rows than this every so-manieth is looked at first: most others are beaten by those.
MANY, SAMPLED = 20_000, 32


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
    order = np.lexsort((-y, -x))
    ranked = y[order]
    best_before = np.concatenate([[-np.inf], np.maximum.accumulate(ranked)[:-1]]) if len(x) else ranked
    result: IntArray = order[ranked > best_before].astype(np.int64)
    return result


def non_dominated(columns: FloatArray) -> npt.NDArray[np.bool_]:
    """Mask of rows [n, k] that no other row beats: ≥ in every column and different; of equal rows the first is kept.

    Quadratic in the rows that survive; meant for a few thousand.
    """
    order = np.lexsort(tuple(-columns[:, k] for k in reversed(range(columns.shape[1]))))
    mask = np.zeros(len(columns), dtype=bool)
    # Only rows that come before a row in this order can beat it, and those are as large in the first column.
    ranked = np.ascontiguousarray(columns[order, 1:].T)
    kept = ranked[:, :0]
    for start in range(0, len(order), CHUNK):
        chunk = ranked[:, start : start + CHUNK]
        left = np.flatnonzero(~_beaten(kept, chunk).any(axis=0))
        chunk = chunk[:, left]
        unbeaten = ~np.triu(_beaten(chunk, chunk), 1).any(axis=0)
        mask[order[start + left[unbeaten]]] = True
        kept = np.concatenate([kept, chunk[:, unbeaten]], axis=1)
    return mask


def _beaten(by: FloatArray, rows: FloatArray) -> npt.NDArray[np.bool_]:
    """Whether each of ``by`` [k, m] is at least as large as each of ``rows`` [k, n] in every column, [m, n]."""
    result = np.ones((by.shape[1], rows.shape[1]), dtype=bool)
    for mine, theirs in zip(by, rows, strict=True):
        result &= mine[:, None] >= theirs
    return result


def front_by_group(group: npt.NDArray[np.int64], x: FloatArray, y: FloatArray) -> IntArray:
    """Indices of the fronts of ``x`` and ``y`` inside every group, all groups at once."""
    order = np.lexsort((-y, -x, group))
    g, ranked = group[order], y[order]
    bounds = [0, *(np.flatnonzero(g[1:] != g[:-1]) + 1), len(g)]
    keep = np.zeros(len(order), dtype=bool)
    for start, stop in pairwise(bounds):
        part = ranked[start:stop]
        keep[start:stop] = part > np.concatenate([[-np.inf], np.maximum.accumulate(part)[:-1]])
    result: IntArray = order[keep].astype(np.int64)
    return result
