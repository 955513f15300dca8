"""The largest batch between two that still holds: many layouts at once, in few calls."""

from collections.abc import Callable

import numpy as np

from afd_dse.operators.latency import FloatArray, IntArray

# Sections of the first round, and where the second looks around the crossing that the margins of a section point at,
# in parts of the section. A call costs little more for many rows than for few.
SECTIONS = 4
AROUND = np.array([-0.5, -0.2, -0.05, -0.005, -0.0005, 0.05, 0.3])

# Margins at ``batch`` [n] of layouts ``rows`` [n]: a layout holds where its margin is not negative.
Margins = Callable[[IntArray, FloatArray], FloatArray]


def largest_holding(low: FloatArray, high: FloatArray, margins: Margins) -> FloatArray:
    """The largest batch found in [``low``, ``high``) that holds, [n]; ``low`` itself is taken to hold.

    First at the edges of equal sections (in the logarithm), then around the point where the margin of the section in
    which holding ends is zero if it falls evenly.
    """
    if not len(low):
        return low
    rows = np.arange(len(low))
    edges = low[:, None] * (high / low)[:, None] ** (np.arange(SECTIONS + 1) / SECTIONS)
    margin = margins(np.repeat(rows, SECTIONS + 1), edges.reshape(-1)).reshape(edges.shape)
    section = _last_holding(margin[:, 1:-1])
    left, right = edges[rows, section], edges[rows, section + 1]
    start, end = margin[rows, section], margin[rows, section + 1]
    falls = np.isfinite(start) & np.isfinite(end) & (start >= 0.0) & (end < 0.0)
    crossing = np.where(falls, start / np.where(falls, start - end, 1.0), 0.5)
    place = np.clip(crossing[:, None] + AROUND, 0.0, 1.0 - 1e-9)
    tried = left[:, None] * (right / left)[:, None] ** place
    margin = margins(np.repeat(rows, len(AROUND)), tried.reshape(-1)).reshape(tried.shape)
    return np.asarray(np.column_stack([left, tried])[rows, _last_holding(margin)])


def _last_holding(margin: FloatArray) -> IntArray:
    """How many of the ascending batches of ``margin`` [n, batches] hold before the first that does not.

    What holds beyond that is a step of measured kernels.
    """
    holds = margin >= 0.0
    count: IntArray = np.where(holds.all(axis=1), margin.shape[1], np.argmin(holds, axis=1)).astype(np.int64)
    return count


def evaluations(rows: int) -> int:
    """How many candidates :func:`largest_holding` evaluates for ``rows`` layouts."""
    return rows * (SECTIONS + 1 + len(AROUND))
