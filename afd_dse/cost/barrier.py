"""Waiting for the busiest attention rank: what uneven KV loads and prompts cost ranks that step together."""

from dataclasses import replace

import numpy as np

from afd_dse.cost.imbalance import attended_growth, barrier_overhead
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.station import StationTime
from afd_dse.cost.stations import AttentionShape, attention_growth, attention_station
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import distinct_rows, take_rows


def kv_excess(scenario: Scenario, sequences: FloatArray, ranks: IntArray) -> FloatArray:
    """How far the KV load of the busiest of ``ranks`` exceeds the mean, as a share of it, [n].

    Every rank holds ``sequences`` of independent lengths and ages, whose loads have the scenario's stationary mean and
    variance; the router evens out their number, not their lengths.
    """
    mean, variance = scenario.kv_load
    # A rank that works at all has one sequence: a mean below one says how often, not how little.
    return barrier_overhead(mean, variance, np.maximum(sequences, 1.0), ranks)


def busiest_prompts(scenario: Scenario, shape: AttentionShape, ranks: FloatArray) -> AttentionShape:
    """The prefill pieces of the busiest of ``ranks`` [n] that work on prompts: as many tokens, which attend to more.

    Fewer and longer pieces where a rank has several, then pieces with more before them. Equal prompts change nothing.
    """
    lengths, prefix = scenario.prompt_lengths, scenario.workload.prefix
    pieces, piece, before = (
        np.asarray(column, dtype=np.float64)
        for column in (shape.prefill_sequences, shape.piece, shape.piece_prefix)
    )
    if lengths is None or not (pieces > 0).any():
        return shape
    tokens = pieces * piece
    growth = attended_growth(lengths, np.maximum(tokens, 1.0), np.maximum(ranks, 1.0))
    fewer = np.where(pieces > 0, np.maximum(pieces / growth, np.minimum(pieces, 1.0)), 0.0)
    longer = np.where(pieces > 0, tokens / np.maximum(fewer, 1e-12), piece)
    attended = before + piece / 2.0 - prefix
    return replace(
        shape,
        prefill_sequences=fewer,
        piece=longer,
        piece_prefix=np.where(pieces > 0, prefix + growth * attended - longer / 2.0, before),
    )


def attention_with_barrier(
    scenario: Scenario, shape: AttentionShape, ranks: IntArray, prefilling: FloatArray | None = None
) -> StationTime:
    """The attention station of a micro-batch with its wait for the busiest rank, seconds [n, kinds].

    The station is done when the busiest of the ``ranks`` that step together is: its decode attention runs over its own
    KV load instead of the mean one, its prefill over its own prompts; ``prefilling`` ranks [n] have any.
    """
    if prefilling is not None:
        shape = busiest_prompts(scenario, shape, prefilling)
    first, inverse = distinct_rows([*(getattr(shape, name) for name in AttentionShape.__slots__), ranks])
    part, ranks = take_rows(shape, first), ranks[first]
    station = attention_station(scenario, part)
    sequences = np.asarray(part.decode_sequences, dtype=np.float64)
    waits = (ranks > 1) & (sequences > 0) & (scenario.kv_load[1] > 0)
    if waits.any():
        excess = np.where(waits, kv_excess(scenario, sequences, ranks), 0.0)
        station = station.plus(attention_growth(scenario, part).times(excess))
    return station if len(first) == len(inverse) else station.take(inverse)
