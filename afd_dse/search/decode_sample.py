"""Decode units of a partition whose phases have GPUs of their own, sampled where they are too many to tabulate."""

import numpy as np

from afd_dse.cost.columns import Candidates
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.units import DecodeUnits, decode_units
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.layouts import enumerate_layouts
from afd_dse.search.proposals import Front, one_by_one
from afd_dse.search.sides import DecodeSide, join_units, rows_before
from afd_dse.search.space import Grid
from afd_dse.search.surrogate import Surrogate, bent, features
from afd_dse.spec.cells import Partition, Phase

# Share of the units that is drawn anywhere at first, and rounds that draw the rest.
FIRST = 0.2
ROUNDS = 25
# Units that are looked at in each round, and most that the surrogate is fitted to.
LOOKED_AT = 4000
FITTED = 700
SHORTLIST = 400


def sample_decode(scenario: Scenario, partition: Partition, grid: Grid, rows: int, seed: int) -> DecodeSide:
    """At most ``rows`` decode units of all layouts × loads: those that a surrogate expects to widen the front most.

    The front is that of speed per user against requests/s per GPU within memory and the TPOT limit, which is what a
    phase with GPUs of its own adds to a pair.
    """
    layouts = enumerate_layouts(scenario, partition, (Phase.DECODE,), grid)
    values = grid.batch.values()
    total, rng = len(layouts) * len(values), np.random.default_rng(seed)
    if not total:
        return DecodeSide(layouts, decode_units(scenario, partition, layouts), np.zeros(0, dtype=np.int64), 0)
    rows = min(rows, total)

    def at(numbers: IntArray) -> Candidates:
        return layouts.take(numbers // len(values)).replace(batch_size=values[numbers % len(values)])

    chosen = rng.permutation(total)[: max(round(FIRST * rows), 1)]
    found: list[tuple[Candidates, DecodeUnits]] = []
    numbers, x, y = np.zeros(0, dtype=np.int64), np.zeros((0, 0)), np.zeros((0, 4))
    while len(chosen):
        block = at(chosen)
        units = decode_units(scenario, partition, block)
        found.append((block, units))
        own = features(block, len(scenario.pools))
        numbers, x = np.append(numbers, chosen), np.concatenate([x.reshape(-1, own.shape[1]), own])
        y = np.concatenate([y, _targets(scenario, units)])
        left = rows - len(numbers)
        looked_at = np.setdiff1d(
            np.append(rng.integers(total, size=LOOKED_AT), _loads_of(numbers, y, len(values))), numbers
        )
        if left <= 0 or not len(looked_at):
            break
        chosen = looked_at[
            _best(x, y, features(at(looked_at), len(scenario.pools)), min(left, max(rows // ROUNDS, 10)))
        ]
    return DecodeSide(
        Candidates.concatenate([block for block, _ in found]),
        join_units([part for _, part in found]),
        rows_before(numbers // len(values), values[numbers % len(values)]),
        len(numbers),
    )


def _targets(scenario: Scenario, units: DecodeUnits) -> FloatArray:
    """Logarithms of speed and of requests/s per GPU, and the bent slacks of memory and TPOT [n, 4]."""
    slack = np.column_stack([units.memory_slack, 1.0 - units.tpot_s / min(scenario.slo.tpot_s, 1e3)])
    per_gpu = units.requests_per_s / units.gpus_by_pool.sum(axis=1)
    return np.column_stack([-np.log(units.tpot_s), np.log(per_gpu), bent(slack)])


def _front_of(y: FloatArray) -> tuple[Front, IntArray]:
    """The front of what holds both limits, and its rows."""
    held = np.flatnonzero((y[:, 2:] >= 0.0).all(axis=1))
    speed, rate = np.exp(y[held, 0]), np.exp(y[held, 1])
    reached = Front.of(speed, rate)
    on = np.flatnonzero(np.isin(speed, reached.speed) & np.isin(rate, reached.throughput))
    return reached, held[on]


def _loads_of(numbers: IntArray, y: FloatArray, loads: int) -> IntArray:
    """All loads of the layouts on the front."""
    layouts = np.unique(numbers[_front_of(y)[1]] // loads)
    every: IntArray = (layouts[:, None] * loads + np.arange(loads)).reshape(-1)
    return every


def _best(x: FloatArray, y: FloatArray, at: FloatArray, count: int) -> list[int]:
    """Rows of ``at`` [n, features] that are expected to widen the front of ``y`` most."""
    reached, _ = _front_of(y)
    missing = np.clip(-y[:, 2:], 0.0, None).sum(axis=1)
    if len(reached.speed):
        speed, rate = np.log(reached.speed), np.log(reached.throughput)
        missing = missing + np.abs(np.maximum(speed - y[:, :1], rate - y[:, 1:2]).min(axis=1))
    near = np.sort(np.argsort(missing, kind="stable")[:FITTED])
    expected = Surrogate(x[near], y[near]).expected(at)
    gain = reached.gain(expected.speed, expected.throughput) * expected.chance
    short = np.argsort(-gain, kind="stable")[:SHORTLIST]
    best = [int(short[n]) for n in one_by_one(expected.at(short), reached, count)]
    return best + [int(n) for n in short if n not in set(best)][: count - len(best)]


__all__ = ["sample_decode"]
