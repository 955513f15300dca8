"""Waiting for the busiest attention rank: what uneven KV loads cost ranks that step together."""

import numpy as np

from afd_dse.cost.imbalance import barrier_overhead
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.station import StationTime
from afd_dse.cost.stations import AttentionShape, attention_growth
from afd_dse.operators.latency import FloatArray, IntArray


def kv_excess(scenario: Scenario, sequences: FloatArray, ranks: IntArray) -> FloatArray:
    """How far the KV load of the busiest of ``ranks`` exceeds the mean, as a share of it, [n].

    Every rank holds ``sequences`` of independent lengths and ages, whose loads have the scenario's stationary mean and
    variance; the router evens out their number, not their lengths.
    """
    mean, variance = scenario.kv_load
    # A rank that works at all has one sequence: a mean below one says how often, not how little.
    return barrier_overhead(mean, variance, np.maximum(sequences, 1.0), ranks)


def attention_barrier(scenario: Scenario, shape: AttentionShape, ranks: IntArray) -> StationTime:
    """Time that the attention station of a micro-batch takes beyond the mean rank's, seconds [n, kinds].

    The station is done when the busiest of the ``ranks`` that step together is: its decode attention runs over its own
    KV load instead of the mean one.
    """
    waits = (np.asarray(ranks) > 1) & (np.asarray(shape.decode_sequences) > 0) & (scenario.kv_load[1] > 0)
    rows = np.flatnonzero(waits)
    whole = StationTime.zeros(len(waits), len(scenario.model.kinds))
    if not len(rows):
        return whole
    part = AttentionShape(*(np.asarray(getattr(shape, name))[rows] for name in AttentionShape.__slots__))
    excess = kv_excess(scenario, np.asarray(part.decode_sequences, dtype=np.float64), ranks[rows])
    return attention_growth(scenario, part).times(excess).at(rows, len(waits))
