"""Prefill and decode units of partitions whose phases have GPUs of their own, tabulated before they are paired."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from afd_dse.cost.columns import PHASES, Candidates
from afd_dse.cost.evaluate import gpus_by_pool
from afd_dse.cost.memory import kv_bytes_of_request
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.units import DecodeUnits, PrefillUnits, decode_units, prefill_units
from afd_dse.network.traffic import kv_transfer_seconds
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import distinct_rows, join_rows, take_rows
from afd_dse.search.descent import TPOT_MARGIN, BoolArray, Points, descend, refine
from afd_dse.search.layouts import Sharing, blocks, enumerate_layouts, expand
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
    """The decode units of one structure over the batch grid, and how many were evaluated.

    ``before`` [n] is the row of the same layout at the next smaller batch, −1 where there is none.
    """

    candidates: Candidates
    units: DecodeUnits
    before: IntArray
    evaluated: int

    def tpot_at(self, rows: IntArray, requests: FloatArray) -> FloatArray:
        """About the TPOT, seconds, of units whose batch is lowered until they serve ``requests``/s.

        ``rows`` of the table; interpolated between them and the next smaller batch, whose own TPOT counts below it.
        """
        u, before = self.units, self.before[rows]
        low = np.where(before >= 0, before, rows)
        span = u.requests_per_s[rows] - u.requests_per_s[low]
        beyond = requests - u.requests_per_s[low]
        share = np.clip(np.divide(beyond, span, out=np.ones_like(span), where=span > 0.0), 0.0, 1.0)
        result: FloatArray = u.tpot_s[low] + share * (u.tpot_s[rows] - u.tpot_s[low])
        return result


class Rivals(Protocol):
    """What decode units have to compare with, whatever their size."""

    def learn(self, units: DecodeUnits, candidates: Callable[[IntArray], Candidates]) -> None:
        """Decode units [n] within all limits were found; ``candidates`` are those at some rows."""

    def hopeless(self, tpot_s: FloatArray, requests_per_s: FloatArray, gpus: FloatArray) -> BoolArray:
        """Whether units of ``gpus`` that are no faster and serve no more need not be looked at, [n]."""


def units_apart(candidates: Candidates, units: DecodeUnits) -> DecodeSide:
    """Units of which none is known to be another one under a smaller load."""
    return DecodeSide(candidates, units, np.full(len(candidates), -1), len(candidates))


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


def ports(c: Candidates, phase: Phase) -> IntArray:
    """GPUs that hold one request's KV in ``phase``, [n]."""
    tp, cp, pp = (c.integer(f"{PHASES[phase]}_{cut}") for cut in ("tp", "cp", "pp"))
    return tp * cp * pp


def codes(keys: FloatArray) -> IntArray:
    """One integer per distinct row of ``keys``."""
    return distinct_rows(list(keys.T))[1]


@dataclass(frozen=True, slots=True)
class _Tried:
    """Layouts under a batch, by their number, and what they are as decode units; columns [n]."""

    layout: IntArray
    batch_size: FloatArray
    units: DecodeUnits

    def candidates(self, layouts: Candidates) -> Candidates:
        """Them as candidates."""
        return layouts.take(self.layout).replace(batch_size=self.batch_size)


def tabulate_decode(
    scenario: Scenario,
    partition: Partition,
    grid: Grid,
    progress: Callable[[int], None],
    *,
    whole: bool = False,
    rivals: Rivals | None = None,
) -> DecodeSide:
    """Evaluate the decode units of ``partition`` over the batch grid, from coarse to fine.

    Unless the ``whole`` grid is asked for, batches are left out whose units others beat that take equal GPUs of every
    pool and receive KV alike, or that are hopeless beside ``rivals``; hopeless units are not in the table either. A
    layout is given up above a batch that is clearly beyond memory or limits. Between the last batch that holds them and
    the next one, the largest that holds is added.
    """
    layouts = enumerate_layouts(scenario, partition, (Phase.DECODE,), grid)
    if not len(layouts):
        return DecodeSide(layouts, decode_units(scenario, partition, layouts), np.zeros(0, dtype=np.int64), 0)
    limits = [limit.tpot_s for limit in limits_of(scenario)]
    carried = layouts.number("decode_dp") / _slowest_transfer_s(scenario)
    used = gpus_by_pool(
        scenario, partition, {phase: Cut.of(layouts, phase) for phase in Phase}, (Phase.DECODE,)
    )
    table: list[_Tried] = []

    def at(rows: IntArray, batch_size: FloatArray) -> Points:
        parts = []
        for block in blocks(layouts.take(rows).replace(batch_size=batch_size)):
            parts.append(decode_units(scenario, partition, block))
            progress(len(block))
        units = join_rows(parts)
        table.append(_Tried(rows, batch_size, units))
        holds, grows = (_within(units, max(limits) * (1.0 + margin)) for margin in (0.0, TPOT_MARGIN))
        if rivals is not None:
            found = take_rows(table[-1], np.flatnonzero(holds))
            rivals.learn(found.units, lambda some: take_rows(found, some).candidates(layouts))
        # Handing KV over may limit a unit: what its links carry at the slowest is certain.
        rate = units.requests_per_s
        sure = np.minimum(rate, carried[rows])
        return Points(units.tpot_s, rate[:, None], sure[:, None], holds, grows)

    def hopeless(rows: IntArray, tpot_s: FloatArray, rates: FloatArray) -> BoolArray:
        return rivals.hopeless(tpot_s, rates[:, 0], used[rows].sum(axis=1)) if rivals else rows < 0

    alike = [used, ports(layouts, Phase.DECODE), layouts.integer("decode_attention_pool")]
    group = codes(np.column_stack(alike))
    found = descend(grid.batch.values(), group, at, whole=whole, hopeless=hopeless)
    useful = refine(found, at, limits)
    evaluated = sum(len(tried.layout) for tried in table)
    kept = take_rows(join_rows(table), useful)
    if rivals is not None:
        kept = take_rows(kept, _promising(kept, rivals, max(limits)))
    before = rows_before(kept.layout, kept.batch_size)
    return DecodeSide(kept.candidates(layouts), kept.units, before, evaluated)


def _within(units: DecodeUnits, tpot_s: float) -> BoolArray:
    """Whether units [n] fit into memory and are as fast as a TPOT."""
    return (units.memory_slack >= 0.0) & (units.tpot_s <= tpot_s)


def _promising(tried: _Tried, rivals: Rivals, tpot_s: float) -> IntArray:
    """Rows within the limits that rivals leave some hope, and those before them; all where there is no such row.

    A unit that is throttled is as fast as that before it at most.
    """
    units, before = tried.units, rows_before(tried.layout, tried.batch_size)
    fastest_s = units.tpot_s[np.where(before >= 0, before, np.arange(len(before)))]
    hopeless = rivals.hopeless(fastest_s, units.requests_per_s, units.gpus_by_pool.sum(axis=1))
    rows = np.flatnonzero(_within(units, tpot_s) & ~hopeless)
    return np.union1d(rows, before[rows][before[rows] >= 0]) if len(rows) else np.arange(len(before))


def rows_before(layout: IntArray, batch: FloatArray) -> IntArray:
    """For every row that of the same layout at the next smaller batch, −1 where there is none, [n]."""
    order = np.lexsort((batch, layout))
    same = np.append(False, layout[order][1:] == layout[order][:-1])
    before = np.full(len(order), -1, dtype=np.int64)
    before[order] = np.where(same, np.append(-1, order[:-1]), -1)
    return before


def _slowest_transfer_s(scenario: Scenario) -> float:
    """Longest time that handing a request's KV over can keep a link busy, seconds: one port, between any two pools."""
    source, target = np.indices((len(scenario.pools),) * 2).reshape(2, -1)
    one = np.ones(len(source), dtype=np.int64)
    size = np.full(len(source), kv_bytes_of_request(scenario))
    found = kv_transfer_seconds(
        scenario.tiers,
        from_pool=source,
        to_pool=target,
        senders=one,
        receivers=one,
        fits_domain=one < 1,
        kv_bytes=size,
    )
    return float(found.max())
