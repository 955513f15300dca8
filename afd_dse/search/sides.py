"""Prefill and decode units of partitions whose phases have GPUs of their own, tabulated before they are paired."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.cost.columns import Candidates
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.units import DecodeUnits, PrefillUnits, decode_units, prefill_units
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.crossing import evaluations, largest_holding
from afd_dse.search.joint import TPOT_MARGIN
from afd_dse.search.layouts import Sharing, blocks, enumerate_layouts, expand, loads, with_loads
from afd_dse.search.space import Grid
from afd_dse.spec.cells import Partition, Phase

# A request-latency limit couples the phases: it is split at these shares for the time to the first token.
LATENCY_SHARES = np.geomspace(0.01, 0.97, 24)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pair must meet, seconds: TTFT at the SLO's percentile, TPOT, and the mean TTFT."""

    ttft_s: float
    tpot_s: float
    mean_ttft_s: float


@dataclass(frozen=True, slots=True)
class PrefillSide:
    """All prefill units of one structure: layouts with their chunk, and their columns."""

    candidates: Candidates
    units: PrefillUnits


@dataclass(frozen=True, slots=True)
class DecodeSide:
    """All decode units of one structure that fit into memory, over the batch grid."""

    candidates: Candidates
    units: DecodeUnits
    evaluated: int


def limits_of(scenario: Scenario) -> list[Limits]:
    """The limits to combine under; several when the (mean) request latency is limited."""
    slo, decode_tokens = scenario.slo, scenario.workload.osl - 1.0
    if not np.isfinite(slo.latency_s):
        return [Limits(slo.ttft_s, slo.tpot_s, np.inf)]
    if decode_tokens <= 0.0:
        return [Limits(slo.ttft_s, slo.tpot_s, slo.latency_s)]
    return [
        Limits(
            slo.ttft_s,
            min(slo.tpot_s, float(1.0 - share) * slo.latency_s / decode_tokens),
            float(share) * slo.latency_s,
        )
        for share in LATENCY_SHARES
    ]


def tabulate_prefill(scenario: Scenario, partition: Partition, grid: Grid) -> PrefillSide:
    """Evaluate every prefill unit of ``partition`` with every chunk size."""
    layouts = enumerate_layouts(scenario, partition, (Phase.PREFILL,), grid)
    candidates = expand(layouts, np.array(grid.chunk_tokens, dtype=np.float64), [Sharing(0)])
    return PrefillSide(candidates, prefill_units(scenario, partition, candidates))


def tabulate_decode(
    scenario: Scenario, partition: Partition, grid: Grid, progress: Callable[[int], None]
) -> DecodeSide:
    """Evaluate every decode unit of ``partition`` over the batch grid.

    Between the last batch that holds the TPOT limit and memory and the next one, the largest that holds is added. A
    layout is given up once it is clearly beyond either.
    """
    layouts = enumerate_layouts(scenario, partition, (Phase.DECODE,), grid)
    limits = [limit.tpot_s for limit in limits_of(scenario)]
    found: list[tuple[Candidates, DecodeUnits]] = []
    evaluated = 0
    active = layouts
    held = np.zeros((len(limits), len(layouts)), dtype=bool)
    crossings: list[Candidates] = []
    crossed: list[float] = []
    for values in loads(grid.batch.values()):
        if not len(active):
            break
        table = [
            (block, decode_units(scenario, partition, block)) for block in blocks(with_loads(active, values))
        ]
        units = join_units([part for _, part in table])
        found.extend(table)
        evaluated += len(units.tpot_s)
        progress(len(units.tpot_s))
        shape = (len(active), len(values))
        for number, limit in enumerate(limits):
            holds = _holds(units, limit).reshape(shape)
            before = np.column_stack([held[number], holds[:, :-1]])
            row, column = np.nonzero(before & ~holds)
            crossings.append(active.take(row).replace(batch_size=values[column]))
            crossed.extend([limit] * len(row))
            held[number] = holds[:, -1]
        alive = (units.memory_slack >= 0.0) & (units.tpot_s <= max(limits) * (1.0 + TPOT_MARGIN))
        survivors = np.flatnonzero(alive.reshape(shape).all(axis=1))
        active, held = active.take(survivors), held[:, survivors]
    if not found:
        return DecodeSide(layouts, decode_units(scenario, partition, layouts), 0)
    if crossed:
        beyond = Candidates.concatenate(crossings)
        done = 0
        for block in blocks(beyond):
            limit_s = np.array(crossed[done : done + len(block)])
            found.append(_refine(scenario, partition, block, grid.batch.ratio, limit_s))
            done += len(block)
        evaluated += evaluations(done) + done
        progress(done)
    candidates = Candidates.concatenate([block for block, _ in found])
    return DecodeSide(candidates, join_units([part for _, part in found]), evaluated)


def _holds(units: DecodeUnits, tpot_limit: float | FloatArray) -> npt.NDArray[np.bool_]:
    result: npt.NDArray[np.bool_] = (units.tpot_s <= tpot_limit) & (units.memory_slack >= 0.0)
    return result


def _refine(
    scenario: Scenario, partition: Partition, beyond: Candidates, ratio: float, tpot_limit: FloatArray
) -> tuple[Candidates, DecodeUnits]:
    """For layouts that hold the limits one grid step below their batch only: the largest batch that holds them."""
    high = beyond.number("batch_size")

    def holds(rows: IntArray, batch: FloatArray) -> npt.NDArray[np.bool_]:
        tried = beyond.take(rows).replace(batch_size=batch)
        return _holds(decode_units(scenario, partition, tried), tpot_limit[rows])

    final = beyond.replace(batch_size=largest_holding(high / ratio, high, holds))
    return final, decode_units(scenario, partition, final)


def join_units(parts: list[DecodeUnits]) -> DecodeUnits:
    """One block of units after the other."""
    return DecodeUnits(
        np.concatenate([p.tpot_s for p in parts]),
        np.concatenate([p.requests_per_s for p in parts]),
        np.concatenate([p.memory_slack for p in parts]),
        np.concatenate([p.gpus_by_pool for p in parts]),
    )
