"""Phases on the same GPUs, whichever policy they follow: who meets whom, and the rate that results."""

from collections.abc import Callable

import numpy as np

from afd_dse.cost.columns import Candidates
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.cells import ATTENTION_CELL, FFN_CELL, Partition, Phase

# A station is several kernels; work of the other phase can slip in between two of them. Half a station is the
# longest kernel of attention blocks and of grouped expert GEMMs alike (two large kernels each).
KERNEL_SHARE_OF_STATION = 0.5
# Secant steps of the fixed point of interference: converged to rounding on random candidates after five.
INTERFERENCE_ITERATIONS = 6
CONVERGED = 1e-13

CELLS = (ATTENTION_CELL, FFN_CELL)
SIDES = (0, 1)


def together(partition: Partition, phase: Phase, side: int, other: Phase, other_side: int) -> bool:
    """Whether two cells, each a phase of a side, are in one group."""
    return partition.group_of[CELLS[side][phase]] == partition.group_of[CELLS[other_side][other]]


def kernel_seconds(scenario: Scenario, station: FloatArray) -> FloatArray:
    """Length of a kernel that an arrival finds running, seconds [n]: longer kernels are found more often."""
    layers = scenario.layer_counts
    result: FloatArray = KERNEL_SHARE_OF_STATION * (station**2 @ layers) / np.maximum(station @ layers, 1e-30)
    return result


def resulting_rate(
    scenario: Scenario, c: Candidates, quiet_s: FloatArray, step_at: Callable[[FloatArray], FloatArray]
) -> FloatArray:
    """Requests/s of a unit whose decode steps take ``step_at`` of that rate, [n]; ``quiet_s`` without prefill."""
    batch = c.number("batch_size") * c.integer("decode_dp")

    def rate(step_seconds: FloatArray) -> FloatArray:
        result: FloatArray = batch * scenario.accepted_per_step / (scenario.workload.osl * step_seconds)
        return result

    return _balanced_rate(rate(quiet_s), lambda requests: rate(step_at(requests)))


def _balanced_rate(start: FloatArray, response: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Solve rate = response(rate) for a response that falls with the rate, but not faster than 1/rate, [n].

    Secant steps on f(x) = log response(e^x) − x, whose slope lies in [−2, −1]: safe without a bracket.
    """
    x = np.log(start)
    f = np.log(response(start)) - x
    slope = np.full(len(x), -1.5)
    for _ in range(INTERFERENCE_ITERATIONS):
        step = -f / slope
        if not (np.abs(step) > CONVERGED).any():
            break
        x_next = x + step
        f_next = np.log(response(np.exp(x_next))) - x_next
        moved = np.abs(step) > 1e-13
        slope = np.where(moved, np.clip((f_next - f) / np.where(moved, step, 1.0), -2.0, -1.0), slope)
        x, f = x_next, f_next
    result: FloatArray = np.exp(x - f / slope)
    return result
