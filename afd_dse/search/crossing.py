"""The largest batch between two that still holds: many layouts at once, in few calls."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray

# Rounds, and batches tried in each: 5³ sections of the step. A call costs little more for many rows than for few, and
# what ends holding (a queue, a page of the cache) is too bent to be found faster by its slope.
ROUNDS = 3
TRIED = 4

# Whether layouts ``rows`` [n] hold at ``batch`` [n].
Holds = Callable[[IntArray, FloatArray], npt.NDArray[np.bool_]]


def largest_holding(low: FloatArray, high: FloatArray, holds: Holds) -> FloatArray:
    """The largest batch found in [``low``, ``high``) that holds, [n]; ``low`` itself is taken to hold.

    Sections in the logarithm: the result is within (high/low)^(1/125) of the largest where holding ends once. Where it
    ends more than once (kernels have steps), the last end among those tried is narrowed.
    """
    rows = np.arange(len(low))
    for _ in range(ROUNDS if len(low) else 0):
        ratio = (high / low) ** (1.0 / (TRIED + 1))
        tried = low[:, None] * ratio[:, None] ** np.arange(1, TRIED + 1)
        ok = holds(np.repeat(rows, TRIED), tried.reshape(-1)).reshape(tried.shape)
        last = last_true(ok)
        edges = np.column_stack([low, tried, high])
        low, high = edges[rows, last], edges[rows, last + 1]
    return low


def last_true(table: npt.NDArray[np.bool_]) -> IntArray:
    """How many columns of ``table`` [n, k] come up to the last true one of each row, 0 without any, [n]."""
    last = table.shape[1] - np.argmax(table[:, ::-1], axis=1)
    return np.asarray(np.where(table.any(axis=1), last, 0), dtype=np.int64)


def evaluations(rows: int) -> int:
    """How many candidates :func:`largest_holding` evaluates for ``rows`` layouts."""
    return rows * TRIED * ROUNDS
