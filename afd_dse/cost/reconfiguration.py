"""Copies of hot experts while the pipeline runs: what is hidden, what is exposed, what the balance is worth."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from afd_dse.cost.pipeline import step_time
from afd_dse.operators.latency import FloatArray


def exposed_copy(copy: npt.ArrayLike, window: npt.ArrayLike, *, overlapped: bool = True) -> FloatArray:
    """Time [n] of copying an expert that a step feels: what exceeds ``window``, or all of it without overlap.

    The window opens when a micro-batch's routing is known and closes when its expert work begins (AFORE,
    arXiv 2610.03203).
    """
    seconds, free = np.broadcast_arrays(
        np.asarray(copy, dtype=np.float64), np.asarray(window, dtype=np.float64)
    )
    return np.maximum(seconds - free, 0.0) if overlapped else seconds.astype(np.float64)


def imbalanced_step(
    before: Sequence[FloatArray],
    experts: FloatArray,
    after: Sequence[FloatArray],
    *,
    max_over_mean: npt.ArrayLike,
    exposed: npt.ArrayLike = 0.0,
    layers: FloatArray,
    micro_batches: FloatArray,
) -> FloatArray:
    """Step time [n] when the busiest expert rank has ``max_over_mean`` [n] times the mean load.

    ``before``, ``experts`` and ``after`` are the stations of :func:`afd_dse.cost.pipeline.step_time`, [n, kinds], with
    the experts' time at mean load; ``exposed`` copy time [n] is spent at the experts in every layer.
    """
    factor = np.asarray(max_over_mean, dtype=np.float64).reshape(-1, 1)
    extra = np.asarray(exposed, dtype=np.float64).reshape(-1, 1)
    return step_time([*before, experts * factor + extra, *after], layers, micro_batches)


def worth_copying(
    time_static: npt.ArrayLike, time_balanced: npt.ArrayLike, exposed: npt.ArrayLike
) -> npt.NDArray[np.bool_]:
    """Whether the bottleneck's gain exceeds the exposed copy time, [n]."""
    gain = np.asarray(time_static, dtype=np.float64) - np.asarray(time_balanced, dtype=np.float64)
    return np.asarray(gain > np.asarray(exposed, dtype=np.float64))
