"""Prefill and decode units of partitions whose phases have GPUs of their own, tabulated before they are paired."""

from collections.abc import Callable
from dataclasses import dataclass

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
from afd_dse.search.descent import TPOT_MARGIN, Points, descend, refine
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


def tabulate_decode(
    scenario: Scenario,
    partition: Partition,
    grid: Grid,
    progress: Callable[[int], None],
    *,
    whole: bool = False,
) -> DecodeSide:
    """Evaluate the decode units of ``partition`` over the batch grid, from coarse to fine.

    Unless the ``whole`` grid is asked for, batches are left out whose units others beat that take equal GPUs of every
    pool and receive KV alike. A layout is given up above a batch that is clearly beyond memory or limits. Between the
    last batch that holds them and the next one, the largest that holds is added.
    """
    layouts = enumerate_layouts(scenario, partition, (Phase.DECODE,), grid)
    limits = [limit.tpot_s for limit in limits_of(scenario)]
    if not len(layouts):
        return DecodeSide(layouts, decode_units(scenario, partition, layouts), np.zeros(0, dtype=np.int64), 0)
    carried = layouts.number("decode_dp") / _slowest_transfer_s(scenario)
    table: list[tuple[Candidates, DecodeUnits]] = []
    layout: list[IntArray] = []

    def at(rows: IntArray, batch_size: FloatArray) -> Points:
        began = len(table)
        layout.append(rows)
        for block in blocks(layouts.take(rows).replace(batch_size=batch_size)):
            table.append((block, decode_units(scenario, partition, block)))
            progress(len(block))
        units = join_rows([part for _, part in table[began:]])
        fits, rate = units.memory_slack >= 0.0, units.requests_per_s
        holds, grows = (
            fits & (units.tpot_s <= max(limits) * (1.0 + margin)) for margin in (0.0, TPOT_MARGIN)
        )
        # Handing KV over may limit a unit: what its links carry at the slowest is certain.
        sure = np.minimum(rate, carried[rows])
        return Points(units.tpot_s, rate[:, None], sure[:, None], holds, grows)

    cuts = {phase: Cut.of(layouts, phase) for phase in Phase}
    used = gpus_by_pool(scenario, partition, cuts, (Phase.DECODE,))
    alike = [used, ports(layouts, Phase.DECODE), layouts.integer("decode_attention_pool")]
    group = codes(np.column_stack(alike))
    useful = refine(descend(grid.batch.values(), group, at, whole=whole), at, limits)
    candidates = Candidates.concatenate([block for block, _ in table])
    units = join_rows([part for _, part in table])
    evaluated = len(candidates)
    candidates, units = candidates.take(useful), take_rows(units, useful)
    before = rows_before(np.concatenate(layout)[useful], candidates.number("batch_size"))
    return DecodeSide(candidates, units, before, evaluated)


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
