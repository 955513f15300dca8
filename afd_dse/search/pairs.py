"""Partitions whose phases have GPUs of their own: units are tabulated once, then paired exactly under rate matching.

For every number of prefill GPUs only the largest request rate that meets the TTFT limit matters, and of all decode
units of a size only those that no other beats in both TPOT and rate: what remains is combined completely. A decode
side that could do more than prefill admits runs below its batch, at the same or a lower TPOT, so pruning by dominance
loses nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.cost.cells import Partition, Phase, partition_index
from afd_dse.cost.columns import PHASE_FIELDS, Candidates
from afd_dse.cost.evaluate import MAX_UTILIZATION, evaluate
from afd_dse.cost.memory import kv_bytes_of_request
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.units import (
    DecodeUnits,
    PrefillUnits,
    admissible_rate,
    decode_units,
    prefill_units,
)
from afd_dse.network.traffic import kv_transfer_seconds
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.joint import REFINEMENT_STEPS, TPOT_MARGIN
from afd_dse.search.layouts import blocks, chunk_choices, enumerate_layouts, expand
from afd_dse.search.objective import Objective, score
from afd_dse.search.pareto import front, front_by_group, non_dominated
from afd_dse.search.pool import Found, keep
from afd_dse.search.space import Grid

# A request-latency limit couples the phases: it is split between TTFT and decode in these shares.
LATENCY_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# Rates are met from below, so that rounding never pushes a pair over its TTFT limit.
RATE_MARGIN = 1.0 - 1e-9
COMBINATION_BLOCK = 2_000_000
# Secant steps for a throttled batch, and the least slope of log λ over log B that they assume.
THROTTLE_STEPS = 10
LEAST_SLOPE = 0.05


@dataclass(frozen=True, slots=True)
class Limits:
    """TTFT and TPOT that a pair must meet, seconds."""

    ttft_s: float
    tpot_s: float


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
    """The TTFT/TPOT limits to combine under; several when the request latency is limited."""
    slo, osl = scenario.slo, scenario.workload.osl
    if not np.isfinite(slo.latency_s):
        return [Limits(slo.ttft_s, slo.tpot_s)]
    return [
        Limits(
            min(slo.ttft_s, share * slo.latency_s),
            min(slo.tpot_s, (1.0 - share) * slo.latency_s / max(osl - 1.0, 1.0)),
        )
        for share in LATENCY_SHARES
    ]


def tabulate_prefill(scenario: Scenario, partition: Partition, grid: Grid) -> PrefillSide:
    """Evaluate every prefill unit of ``partition`` with every chunk size."""
    layouts = enumerate_layouts(scenario, partition, (Phase.PREFILL,), grid)
    candidates = expand(layouts, chunk_choices(scenario, grid), ["chunked"])
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
    for value in grid.batch.values():
        if not len(active):
            break
        table = [
            (block, decode_units(scenario, partition, block))
            for block in blocks(active.replace(batch_size=value))
        ]
        units = _join([part for _, part in table])
        found.extend(table)
        evaluated += len(active)
        progress(len(active))
        for number, limit in enumerate(limits):
            holds = _holds(units, limit)
            rows = np.flatnonzero(held[number] & ~holds)
            crossings.append(active.take(rows).replace(batch_size=value))
            crossed.extend([limit] * len(rows))
            held[number] = holds
        alive = (units.memory_slack >= 0.0) & (units.tpot_s <= max(limits) * (1.0 + TPOT_MARGIN))
        active, held = active.take(alive), held[:, alive]
    if not found:
        return DecodeSide(layouts, decode_units(scenario, partition, layouts), 0)
    if crossed:
        beyond = Candidates.concatenate(crossings)
        done = 0
        for block in blocks(beyond):
            limit_s = np.array(crossed[done : done + len(block)])
            found.append(_refine(scenario, partition, block, grid.batch.ratio, limit_s))
            done += len(block)
        evaluated += done * (REFINEMENT_STEPS + 1)
        progress(done)
    candidates = Candidates.concatenate([block for block, _ in found])
    return DecodeSide(candidates, _join([part for _, part in found]), evaluated)


def _holds(units: DecodeUnits, tpot_limit: float | FloatArray) -> npt.NDArray[np.bool_]:
    result: npt.NDArray[np.bool_] = (units.tpot_s <= tpot_limit) & (units.memory_slack >= 0.0)
    return result


def _refine(
    scenario: Scenario, partition: Partition, beyond: Candidates, ratio: float, tpot_limit: FloatArray
) -> tuple[Candidates, DecodeUnits]:
    """For layouts that fail at their batch and hold the limits one grid step below: the largest batch that holds them.

    Found by bisection to 2^-10 of the step.
    """
    high = beyond.number("batch_size")
    low = high / ratio
    for _ in range(REFINEMENT_STEPS):
        middle = np.sqrt(low * high)
        ok = _holds(decode_units(scenario, partition, beyond.replace(batch_size=middle)), tpot_limit)
        low, high = np.where(ok, middle, low), np.where(ok, high, middle)
    final = beyond.replace(batch_size=low)
    return final, decode_units(scenario, partition, final)


def _join(parts: list[DecodeUnits]) -> DecodeUnits:
    return DecodeUnits(
        np.concatenate([p.tpot_s for p in parts]),
        np.concatenate([p.requests_per_s for p in parts]),
        np.concatenate([p.memory_slack for p in parts]),
        np.concatenate([p.gpus_by_pool for p in parts]),
    )


def _take_prefill(units: PrefillUnits, rows: IntArray) -> PrefillUnits:
    return PrefillUnits(
        units.service_s[rows],
        units.gate_s[rows],
        units.servers[rows],
        units.capacity[rows],
        units.memory_slack[rows],
        units.gpus_by_pool[rows],
    )


def _size_codes(gpus_by_pool: FloatArray) -> IntArray:
    """One integer per distinct vector of GPUs by pool."""
    _, codes = np.unique(gpus_by_pool, axis=0, return_inverse=True)
    result: IntArray = codes.reshape(-1).astype(np.int64)
    return result


@dataclass(frozen=True, slots=True)
class _Supply:
    """The best prefill for every number of GPUs: rate, GPUs by pool, which unit and how many."""

    rate: FloatArray
    gpus_by_pool: FloatArray
    unit: IntArray
    replicas: IntArray


def _supply(
    scenario: Scenario,
    side: PrefillSide,
    rows: IntArray,
    limit: Limits,
    receivers: int,
    to_pool: int,
    inside: bool,
) -> _Supply:
    """Largest admissible request rate by prefill GPUs, for decode units that receive KV on ``receivers`` GPUs."""
    c, units = side.candidates, side.units
    counts = np.floor(
        np.where(
            units.gpus_by_pool > 0, scenario.pool_counts / np.maximum(units.gpus_by_pool, 1.0), np.inf
        ).min(axis=1)
    )
    number = counts[rows].astype(np.int64)
    unit = np.repeat(rows, number)
    replicas = (
        np.concatenate([np.arange(1, n + 1) for n in number]) if len(rows) else np.zeros(0, dtype=np.int64)
    )
    pool = c.integer("prefill_attention_pool")[unit]
    senders = (c.integer("prefill_tp") * c.integer("prefill_cp") * c.integer("prefill_pp"))[unit]
    transfer = kv_transfer_seconds(
        scenario.tiers,
        from_pool=pool,
        to_pool=np.full(len(unit), to_pool),
        senders=senders,
        receivers=np.full(len(unit), receivers),
        fits_domain=np.full(len(unit), inside),
        kv_bytes=np.full(len(unit), kv_bytes_of_request(scenario)),
    )
    taken = _take_prefill(units, unit)
    exposed = np.maximum(transfer - taken.service_s, transfer / scenario.model.layers)
    budget = limit.ttft_s - taken.service_s - exposed
    rate = np.minimum(
        admissible_rate(scenario, taken, replicas.astype(np.float64), budget),
        MAX_UTILIZATION * taken.capacity * replicas,
    )
    gpus = taken.gpus_by_pool * replicas[:, None]
    ok = rate > 0
    rate, gpus, unit, replicas = rate[ok], gpus[ok], unit[ok], replicas[ok]
    best = front(rate, -gpus[:, 0]) if gpus.shape[1] == 1 else non_dominated(np.column_stack([rate, -gpus]))
    return _Supply(rate[best] * RATE_MARGIN, gpus[best], unit[best], replicas[best].astype(np.int64))


def _useful_prefill(side: PrefillSide) -> IntArray:
    """Prefill units that fit into memory and that no unit of the same size and KV ports beats.

    A unit beats another that serves no faster and has no more capacity. At equal capacity a shorter service means
    fewer servers, whose longer wait never outweighs it below the utilisation limit: k + P(k)/(2(1 − ρ)) grows with k.
    """
    u, c = side.units, side.candidates
    rows = np.flatnonzero(u.memory_slack >= 0).astype(np.int64)
    if not len(rows):
        return rows
    ports = (c.integer("prefill_tp") * c.integer("prefill_cp") * c.integer("prefill_pp"))[rows]
    codes = _size_codes(np.column_stack([u.gpus_by_pool[rows], ports]))
    return rows[front_by_group(codes, -(u.service_s + u.gate_s)[rows], u.capacity[rows])]


def _decode_choices(scenario: Scenario, side: DecodeSide, limit: Limits) -> tuple[IntArray, IntArray]:
    """Decode units worth combining (rows) and their class: GPUs that receive one request's KV, and their pool."""
    u, c = side.units, side.candidates
    rows = np.flatnonzero((u.memory_slack >= 0) & (u.tpot_s <= limit.tpot_s))
    receivers = (c.integer("decode_tp") * c.integer("decode_cp") * c.integer("decode_pp"))[rows]
    classes = c.integer("decode_attention_pool")[rows] * 1_000_000 + receivers
    codes = (
        _size_codes(np.concatenate([u.gpus_by_pool[rows], classes[:, None]], axis=1))
        if len(rows)
        else classes
    )
    best = front_by_group(codes, -u.tpot_s[rows], u.requests_per_s[rows])
    return rows[best].astype(np.int64), classes[best].astype(np.int64)


def combine(
    scenario: Scenario,
    partition: Partition,
    prefill: PrefillSide,
    decode: DecodeSide,
    objective: Objective,
) -> Found | None:
    """Pair prefill and decode units with integer replicas; returns evaluated pairs worth keeping."""
    useful = _useful_prefill(prefill)
    parts: list[tuple[Candidates, FloatArray]] = []
    for limit in limits_of(scenario):
        rows, classes = _decode_choices(scenario, decode, limit)
        for code in np.unique(classes):
            chosen = rows[classes == code]
            to_pool, receivers = int(code) // 1_000_000, int(code) % 1_000_000
            for inside in (False, True):
                supply = _supply(scenario, prefill, useful, limit, receivers, to_pool, inside)
                if len(supply.rate):
                    parts.extend(
                        _pairs(scenario, partition, prefill, decode, chosen, supply, inside, objective)
                    )
    if not parts:
        return None
    pairs = Candidates.concatenate([block for block, _ in parts])
    candidates = _throttle(scenario, partition, pairs, np.concatenate([load for _, load in parts]))
    return keep(scenario, objective, Found(candidates, evaluate(scenario, candidates)), best=128)


def _pairs(
    scenario: Scenario,
    partition: Partition,
    prefill: PrefillSide,
    decode: DecodeSide,
    rows: IntArray,
    supply: _Supply,
    inside: bool,
    objective: Objective,
) -> Iterator[tuple[Candidates, FloatArray]]:
    """The front and the best of all combinations of decode rows × replicas × prefill supplies.

    With each the share of the decode units' rate that prefill admits.
    """
    u = decode.units
    fits = np.where(
        u.gpus_by_pool[rows] > 0, scenario.pool_counts / np.maximum(u.gpus_by_pool[rows], 1.0), np.inf
    ).min(axis=1)
    number = np.floor(fits + 1e-9).astype(np.int64)
    unit = np.repeat(rows, number)
    replicas = (
        np.concatenate([np.arange(1, n + 1) for n in number]) if len(rows) else np.zeros(0, dtype=np.int64)
    )
    per_block = max(COMBINATION_BLOCK // max(len(supply.rate), 1), 1)
    domain = scenario.tiers.domain_gpus.max()
    for start in range(0, len(unit), per_block):
        d, r = unit[start : start + per_block], replicas[start : start + per_block]
        gpus = (u.gpus_by_pool[d] * r[:, None])[:, None, :] + supply.gpus_by_pool[None, :, :]
        total = gpus.sum(axis=2)
        valid = (gpus <= scenario.pool_counts).all(axis=2) & ((total <= domain) == inside)
        rate = np.minimum((u.requests_per_s[d] * r)[:, None], supply.rate[None, :])
        valid &= rate >= scenario.workload.requests_per_s
        i, k = np.nonzero(valid)
        if not len(i):
            continue
        rates, sizes = rate[i, k], gpus[i, k]
        value = score(scenario, objective, rates, sizes)
        efficiency = rates / total[i, k]
        best = np.argsort(-value, kind="stable")[:128]
        chosen = np.unique(np.concatenate([best, front(-u.tpot_s[d[i]], efficiency)]))
        picked_unit, picked_replicas = d[i[chosen]], r[i[chosen]]
        load = rates[chosen] / (u.requests_per_s[picked_unit] * picked_replicas)
        pairs = _assemble(
            partition,
            prefill.candidates.take(supply.unit[k[chosen]]),
            supply.replicas[k[chosen]],
            decode.candidates.take(picked_unit),
            picked_replicas,
        )
        yield pairs, np.minimum(load, 1.0)


def _assemble(
    partition: Partition,
    prefill: Candidates,
    prefill_replicas: IntArray,
    decode: Candidates,
    decode_replicas: IntArray,
) -> Candidates:
    """Whole candidates of paired units."""
    columns = {f"prefill_{name}": prefill.columns[f"prefill_{name}"] for name in PHASE_FIELDS}
    columns |= {f"decode_{name}": decode.columns[f"decode_{name}"] for name in PHASE_FIELDS}
    columns |= {"prefill_replicas": prefill_replicas, "decode_replicas": decode_replicas}
    return Candidates.of(
        partition=partition_index(partition),
        policy=0,
        batch_size=decode.columns["batch_size"],
        chunk_tokens=prefill.columns["chunk_tokens"],
        **columns,
    )


def _throttle(scenario: Scenario, partition: Partition, pairs: Candidates, load: FloatArray) -> Candidates:
    """Lower the batch where only the share ``load`` of the decode rate is admitted.

    Solves λ(B) = B/(OSL·TPOT(B)) = load·λ(B_full) by secant steps in the logarithms, where the slope is at most 1.
    """
    rows = np.flatnonzero(load < 1.0)
    if not len(rows):
        return pairs
    start = pairs.take(rows)
    full = np.log(decode_units(scenario, partition, start).requests_per_s)
    target = full + np.log(load[rows])

    def excess(x: FloatArray) -> FloatArray:
        rate = decode_units(scenario, partition, start.replace(batch_size=np.exp(x))).requests_per_s
        result: FloatArray = np.log(rate) - target
        return result

    x = np.log(start.number("batch_size") * load[rows])
    f, slope = excess(x), np.ones(len(rows))
    for _ in range(THROTTLE_STEPS):
        step = -f / slope
        f_next = excess(x + step)
        moved = np.abs(step) > 1e-12
        slope = np.where(moved, np.clip((f_next - f) / np.where(moved, step, 1.0), LEAST_SLOPE, 1.5), slope)
        x, f = x + step, f_next
    batch = pairs.number("batch_size").copy()
    # Rates are met from below: a pair must not exceed what its prefill admits by a rounding error.
    batch[rows] = np.exp(x - np.maximum(f, 0.0) / slope) * RATE_MARGIN
    return pairs.replace(batch_size=batch)


def probes(
    scenario: Scenario, partition: Partition, prefill: PrefillSide, decode: DecodeSide, most: int = 12
) -> Candidates:
    """Pairs that come near to feasible when none is: extreme units of both sides, one replica each.

    For each side the units that are fastest, cheapest in memory, smallest, and strongest; of decode over the whole load
    grid, since a lower load may relax prefill. Pairs beyond the cluster are returned only when no pair fits it.
    """
    p, d = prefill.units, decode.units
    prefill_rows = _extremes(
        [p.service_s, -p.capacity, -p.memory_slack, p.gpus_by_pool.sum(axis=1)], p.memory_slack, most
    )
    decode_rows = _extremes(
        [d.tpot_s, -d.requests_per_s, -d.memory_slack, d.gpus_by_pool.sum(axis=1), d.requests_per_s],
        d.memory_slack,
        most,
    )
    i, j = (a.reshape(-1) for a in np.meshgrid(prefill_rows, decode_rows, indexing="ij"))
    fits = (p.gpus_by_pool[i] + d.gpus_by_pool[j] <= scenario.pool_counts).all(axis=1)
    if fits.any():
        i, j = i[fits], j[fits]
    ones = np.ones(len(i), dtype=np.int64)
    return _assemble(partition, prefill.candidates.take(i), ones, decode.candidates.take(j), ones)


def _extremes(keys: list[FloatArray], memory_slack: FloatArray, most: int) -> IntArray:
    """Rows that are first by some key, among those that fit into memory and among all."""
    fitting = [np.lexsort((key, memory_slack < 0))[:most] for key in keys]
    chosen = [*fitting, *(np.argsort(key, kind="stable")[:most] for key in keys)]
    result: IntArray = np.unique(np.concatenate(chosen)).astype(np.int64)
    return result
