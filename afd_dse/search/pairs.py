"""Partitions whose phases have GPUs of their own: prefill and decode units are paired exactly under rate matching.

For every number of prefill GPUs only the largest request rate that meets the TTFT limit matters, and of all decode
units of a size only those that no other beats in both TPOT and rate: what remains is combined completely. A decode
side that could do more than the rest admits runs below its batch, at the same or a lower TPOT, so pruning by dominance
loses nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from afd_dse.cost.columns import PHASE_FIELDS, Candidates
from afd_dse.cost.evaluate import evaluate, gpus_by_pool
from afd_dse.cost.memory import kv_bytes_of_request
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.units import decode_units
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import join_rows, take_rows
from afd_dse.search.joint import refine_batch
from afd_dse.search.objective import Objective, score
from afd_dse.search.pareto import front, non_dominated
from afd_dse.search.pool import Found, keep
from afd_dse.search.sides import DecodeSide, Limits, PrefillSide, codes, limits_of, ports
from afd_dse.search.supply import RATE_MARGIN, Receivers, Supplies, Supply, links_limit
from afd_dse.spec.cells import Partition, Phase, partition_index

COMBINATION_BLOCK = 500_000
# Best pairs by the objective that are kept beside the front.
LEADING = 128
# Secant steps for a throttled batch, and the least slope of log λ over log B that they assume.
THROTTLE_STEPS = 10
LEAST_SLOPE = 0.05
# A relative change of the batch after which one more step, which is not checked, ends below rounding.
CONVERGED = 1e-8
# Rounds in which a pair is brought under a limit of requests in flight.
CONCURRENCY_STEPS = 12
# A pair found under one split of the latency limit may raise its batch by this factor at most.
LATENCY_REFINEMENT = 1.3


@dataclass(frozen=True, slots=True)
class Paired:
    """Units paired at the batch that decode could run, columns [n].

    Requests/s of a decode unit that the rest of the deployment ``admitted``, those of its ``full`` batch, and about the
    ``tpot_s`` of a batch that serves what is admitted.
    """

    candidates: Candidates
    admitted: FloatArray
    full: FloatArray
    tpot_s: FloatArray

    def take(self, rows: IntArray) -> "Paired":
        """The pairs at ``rows``."""
        return Paired(self.candidates.take(rows), self.admitted[rows], self.full[rows], self.tpot_s[rows])


@dataclass(frozen=True, slots=True)
class Combined:
    """Decode rows with ``many`` replicas and a supply, columns [n]: what is admitted to each, about the TPOT then.

    With the requests/s per GPU, and the score by the objective.
    """

    decode: IntArray
    supply: IntArray
    many: FloatArray
    admitted: FloatArray
    tpot_s: FloatArray
    per_gpu: FloatArray
    score: FloatArray

    def worth_keeping(self, best: int) -> "Combined":
        """The front, and the ``best`` by their score."""
        rows = np.union1d(_leading(self.score, best), front(-self.tpot_s, self.per_gpu))
        return take_rows(self, rows)


def decode_choices(
    scenario: Scenario, side: DecodeSide, limit: Limits
) -> Iterator[tuple[IntArray, int, int]]:
    """Decode units worth combining, by class: rows, GPUs that receive one request's KV, and their pool."""
    u, c = side.units, side.candidates
    rows = np.flatnonzero((u.memory_slack >= 0) & (u.tpot_s <= limit.tpot_s))
    if not len(rows):
        return
    receivers, pool = ports(c, Phase.DECODE)[rows], c.integer("decode_attention_pool")[rows]
    keys = [u.gpus_by_pool[rows], receivers, pool]
    slowest = scenario.tiers.scale_out_bytes_per_s.min()
    per_link = kv_bytes_of_request(scenario) / slowest * u.requests_per_s[rows] / c.number("decode_dp")[rows]
    if links_limit(per_link):
        keys.append(c.integer("decode_dp")[rows])
    columns = np.column_stack([-u.tpot_s[rows], u.requests_per_s[rows]])
    best = np.flatnonzero(non_dominated(columns, codes(np.column_stack(keys))))
    classes = codes(np.column_stack([receivers[best], pool[best]]))
    for code in np.unique(classes):
        members = best[classes == code]
        yield rows[members].astype(np.int64), int(receivers[members[0]]), int(pool[members[0]])


def paired(
    scenario: Scenario,
    partition: Partition,
    supplies: Supplies,
    decode: DecodeSide,
    objective: Objective,
    best: int = LEADING,
) -> Paired | None:
    """Pairs with integer replicas that may be on the front or among the ``best``, not yet evaluated."""
    parts: list[Paired] = []
    for limit in limits_of(scenario):
        for rows, receivers, pool in decode_choices(scenario, decode, limit):
            for supply, to in _near_and_far(supplies, limit, receivers, pool):
                parts.extend(
                    _pairs(scenario, partition, supplies.side, decode, rows, supply, to, objective, best)
                )
    return join_rows(parts) if parts else None


def narrowed(
    scenario: Scenario, partition: Partition, pairs: Paired, objective: Objective, best: int, most: int
) -> Paired:
    """The ``best`` and the front of all pairs, of it at most ``most``, as far as known without evaluating them."""
    cuts = {phase: Cut.of(pairs.candidates, phase) for phase in Phase}
    sizes = gpus_by_pool(scenario, partition, cuts)
    rates = pairs.admitted * cuts[Phase.DECODE].replicas
    speed, per_gpu = 1.0 / pairs.tpot_s, rates / sizes.sum(axis=1)
    leading = _leading(score(scenario, objective, rates, sizes), best)
    return pairs.take(np.union1d(leading, _thinned(speed, per_gpu, front(speed, per_gpu), most)))


def _thinned(x: FloatArray, y: FloatArray, rows: IntArray, most: int) -> IntArray:
    """A front without the points that it loses least area by, one after the other, until ``most`` are left."""
    while len(rows) > most:
        width = x[rows] - np.append(x[rows][1:], 0.0)
        rows = np.delete(rows, (width * (y[rows] - np.append(0.0, y[rows][:-1]))).argmin())
    return rows


def combined(scenario: Scenario, candidates: Candidates, objective: Objective) -> Found:
    """Of pairs, :func:`throttled`, what is worth keeping."""
    return keep(scenario, objective, evaluated(scenario, candidates, objective), best=LEADING)


def evaluated(scenario: Scenario, candidates: Candidates, objective: Objective) -> Found:
    """Pairs, :func:`throttled`, brought under the limits that couple the phases."""
    found = Found(candidates, evaluate(scenario, candidates))
    if np.isfinite(scenario.workload.concurrency_limit):
        found = _within_concurrency(scenario, found)
    if np.isfinite(scenario.slo.latency_s):
        # The limit was split at a few shares: what each pair could still do is found from its own latency.
        found = join_rows([found, refine_batch(scenario, objective, found, LATENCY_REFINEMENT)])
    return found


def best_rates(
    scenario: Scenario, supplies: Supplies, decode: DecodeSide, objective: Objective
) -> FloatArray:
    """Requests/s per GPU of every decode unit in its best pair [n]; 0 where it makes no pair within the limits.

    A unit counts at its own TPOT also where it is throttled.
    """
    best = np.zeros(len(decode.candidates))
    unit_gpus = decode.units.gpus_by_pool.sum(axis=1)
    for rows, supply, to in _supplied(scenario, supplies, decode):
        gpus = supply.gpus_by_pool.sum(axis=1)
        each, most, fits = _admitted(scenario, supplies.side, decode, rows, supply, to)
        for replicas in _worthwhile(scenario, objective, each, most, fits):
            rates = np.minimum(replicas * each, most)
            rates *= (replicas >= 1.0) & (rates >= scenario.workload.requests_per_s)
            per_gpu = rates / (replicas * unit_gpus[rows, None] + gpus)
            best[rows] = np.maximum(best[rows], per_gpu.max(axis=1))
    return best


def best_scores(
    scenario: Scenario, supplies: Supplies, decode: DecodeSide, objective: Objective
) -> FloatArray:
    """The best score by the objective of the pairs that every decode unit makes [n]; −∞ where it makes none."""
    best = np.full(len(decode.candidates), -np.inf)
    unit = decode.units.gpus_by_pool
    for rows, supply, to in _supplied(scenario, supplies, decode):
        for i, k, rates, many in _combinations(scenario, supplies.side, decode, rows, supply, to, objective):
            sizes = unit[rows[i]] * many[:, None] + supply.gpus_by_pool[k]
            np.maximum.at(best, rows[i], score(scenario, objective, rates, sizes))
    return best


def _supplied(
    scenario: Scenario, supplies: Supplies, decode: DecodeSide
) -> Iterator[tuple[IntArray, Supply, Receivers]]:
    """Decode units within the limits that receive KV alike: rows, and what prefill supplies them."""
    u, c = decode.units, decode.candidates
    receivers, pool = ports(c, Phase.DECODE), c.integer("decode_attention_pool")
    classes = codes(np.column_stack([receivers, pool])) if len(c) else receivers
    for limit in limits_of(scenario):
        within = (u.memory_slack >= 0.0) & (u.tpot_s <= limit.tpot_s)
        for code in np.unique(classes[within]):
            rows = np.flatnonzero(within & (classes == code))
            for supply, to in _near_and_far(supplies, limit, int(receivers[rows[0]]), int(pool[rows[0]])):
                yield rows, supply, to


def _near_and_far(
    supplies: Supplies, limit: Limits, receivers: int, pool: int
) -> Iterator[tuple[Supply, Receivers]]:
    """What prefill outside of the decode units' domain supplies, and what prefill inside does, if it does anything."""
    for inside in (False, True):
        to = Receivers(receivers, pool, inside)
        supply = supplies(limit, to)
        if len(supply.rate):
            yield supply, to


def _pairs(
    scenario: Scenario,
    partition: Partition,
    prefill: PrefillSide,
    decode: DecodeSide,
    rows: IntArray,
    supply: Supply,
    to: Receivers,
    objective: Objective,
    best: int,
) -> Iterator[Paired]:
    """The front and the best of all combinations of decode rows × prefill supplies, for each way to repeat decode."""
    u = decode.units
    per_block = max(COMBINATION_BLOCK // max(len(supply.rate), 1), 1)
    ways: dict[int, list[Combined]] = {}
    for start in range(0, len(rows), per_block):
        d = rows[start : start + per_block]
        combined = _combinations(scenario, prefill, decode, d, supply, to, objective)
        for way, (i, k, rates, many) in enumerate(combined):
            sizes = u.gpus_by_pool[d[i]] * many[:, None] + supply.gpus_by_pool[k]
            found = Combined(
                d[i],
                k,
                many,
                rates / many,
                decode.tpot_at(d[i], rates / many),
                rates / sizes.sum(axis=1),
                score(scenario, objective, rates, sizes),
            )
            ways.setdefault(way, []).append(found.worth_keeping(best))
    for parts in ways.values():
        kept = join_rows(parts).worth_keeping(best)
        pairs = assembled(
            partition,
            prefill.candidates.take(supply.unit[kept.supply]),
            supply.replicas[kept.supply],
            decode.candidates.take(kept.decode),
            kept.many.astype(np.int64),
        )
        yield Paired(pairs, kept.admitted, u.requests_per_s[kept.decode], kept.tpot_s)


def _combinations(
    scenario: Scenario,
    prefill: PrefillSide,
    decode: DecodeSide,
    d: IntArray,
    supply: Supply,
    to: Receivers,
    objective: Objective,
) -> Iterator[tuple[IntArray, IntArray, FloatArray, FloatArray]]:
    """Decode rows ``d`` × supplies with the numbers of replicas that can be best and fit the cluster.

    Columns [n]: place in ``d``, supply, requests/s in all, decode replicas.
    """
    each, most, fits = _admitted(scenario, prefill, decode, d, supply, to)
    for replicas in _worthwhile(scenario, objective, each, most, fits):
        rate = np.minimum(replicas * each, most)
        i, k = np.nonzero((replicas >= 1.0) & (rate >= scenario.workload.requests_per_s))
        if len(i):
            yield i, k, rate[i, k], replicas[i, k]


def _admitted(
    scenario: Scenario, prefill: PrefillSide, decode: DecodeSide, d: IntArray, supply: Supply, to: Receivers
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Of decode rows ``d`` × supplies: rates as :func:`paired_rates`, and how many replicas the cluster holds.

    No replicas where the pair is not as near as ``to`` says, or where nothing is admitted.
    """
    near = prefill.units.gpus_by_pool[supply.unit].sum(axis=1)
    domain = scenario.tiers.domain_gpus[prefill.candidates.integer("prefill_attention_pool")[supply.unit]]
    each, most = paired_rates(scenario, decode, d, supply)
    unit = decode.units.gpus_by_pool[d]
    inside = unit.sum(axis=1)[:, None] + near <= domain
    fits = np.where((inside == to.inside) & (most > 0.0), np.inf, 0.0)
    room = scenario.pool_counts - supply.gpus_by_pool
    for pool in range(len(scenario.pools)):
        taken = np.flatnonzero(unit[:, pool] > 0.0)
        held = np.floor(room[:, pool] / unit[taken, pool, None] + 1e-9)
        fits[taken] = np.minimum(fits[taken], held)
    return each, most, fits


def paired_rates(
    scenario: Scenario, decode: DecodeSide, d: IntArray, supply: Supply
) -> tuple[FloatArray, FloatArray]:
    """Requests/s that every replica of a decode row adds, and what a supply admits in all, [rows, supplies] each.

    A replica brings its own rate and its own links.
    """
    u, workload = decode.units, scenario.workload
    per_link = RATE_MARGIN / supply.transfer_s
    each = np.minimum(
        u.requests_per_s[d][:, None], decode.candidates.number("decode_dp")[d][:, None] * per_link[None, :]
    )
    most = np.broadcast_to(np.minimum(supply.rate, supply.links * per_link), each.shape)
    if np.isfinite(workload.concurrency_limit):
        latency = supply.served_s[None, :] + ((workload.osl - 1.0) * u.tpot_s[d])[:, None]
        most = np.minimum(most, workload.concurrency_limit / latency)
    return each, most


def _worthwhile(
    scenario: Scenario, objective: Objective, each: FloatArray, most: FloatArray, fits: FloatArray
) -> Iterator[FloatArray]:
    """Numbers of decode replicas that can be best with a supply, [rows, supplies] each; 0 where there is none.

    The rate grows by ``each`` a replica up to ``most``. Below that a further replica adds rate in a larger proportion
    than GPUs (prefill's stay), and beyond it only GPUs. So the last number below and the first one above are left;
    where only the number of GPUs counts, the fewest that serve the demand.
    """
    need = np.ceil(np.round(most / each, 9))
    yield np.minimum(need, fits)
    yield np.minimum(need - 1.0, fits - 1.0) * (need <= fits)
    if objective == "fewest_gpus":
        fewest = np.maximum(np.ceil(scenario.workload.requests_per_s / each * (1.0 - 1e-12)), 1.0)
        yield np.where(fewest <= fits, fewest, 0.0)


def _leading(values: FloatArray, count: int) -> IntArray:
    """Rows of the ``count`` largest values."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.argpartition(-values, count)[:count].astype(np.int64)


def _within_concurrency(scenario: Scenario, found: Found) -> Found:
    """Pairs with more requests in flight than there are: their batch is lowered until they fit."""
    limit = scenario.workload.concurrency_limit
    for _ in range(CONCURRENCY_STEPS):
        excess = found.evaluation.metrics["concurrency"] / limit
        rows = np.flatnonzero((excess > 1.0) & np.isfinite(excess))
        if not len(rows):
            break
        lower = found.candidates.take(rows)
        lower = lower.replace(batch_size=lower.number("batch_size") / excess[rows] * RATE_MARGIN)
        rest = np.flatnonzero(~((excess > 1.0) & np.isfinite(excess)))
        found = join_rows([found.take(rest), Found(lower, evaluate(scenario, lower))])
    return found


def assembled(
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


def throttled(scenario: Scenario, partition: Partition, pairs: Paired) -> Candidates:
    """The pairs, their batch lowered where not all of the decode units' rate is admitted.

    Those of several partitions may go together where they are alike in decode.
    Solves λ(B) = B/(OSL·TPOT(B)) = what is admitted by secant steps in the logarithms, where the slope is at most 1.
    """
    rows = np.flatnonzero(pairs.admitted < pairs.full * (1.0 - 1e-12))
    if not len(rows):
        return pairs.candidates
    start, target = pairs.candidates.take(rows), np.log(pairs.admitted[rows])

    def excess(x: FloatArray) -> FloatArray:
        rate = decode_units(scenario, partition, start.replace(batch_size=np.exp(x))).requests_per_s
        result: FloatArray = np.log(rate) - target
        return result

    about = pairs.admitted * scenario.workload.osl * pairs.tpot_s / pairs.candidates.number("decode_dp")
    x = np.log(about[rows])
    f, slope = excess(x), np.ones(len(rows))
    for _ in range(THROTTLE_STEPS):
        step = -f / slope
        if np.abs(step).max() < CONVERGED:
            break
        f_next = excess(x + step)
        moved = np.abs(step) > 1e-12
        slope = np.where(moved, np.clip((f_next - f) / np.where(moved, step, 1.0), LEAST_SLOPE, 1.5), slope)
        x, f = x + step, f_next
    batch = pairs.candidates.number("batch_size").copy()
    # Rates are met from below: a pair must not exceed what its prefill admits by a rounding error.
    batch[rows] = np.exp(x - np.maximum(f, 0.0) / slope) * RATE_MARGIN
    return pairs.candidates.replace(batch_size=batch)


def probes(
    scenario: Scenario, partition: Partition, prefill: PrefillSide, decode: DecodeSide, most: int = 12
) -> Candidates:
    """Pairs that come near to feasible when none is: extreme units of both sides, one replica each.

    For each side the units that are fastest, cheapest in memory, smallest, and strongest; of decode over the whole load
    grid, since a lower load may relax prefill. Pairs beyond the cluster are left out.
    """
    p, d = prefill.units, decode.units
    prefill_rows = _extremes(
        [p.prefill.service_s, -p.prefill.capacity, -p.memory_slack, p.gpus_by_pool.sum(axis=1)],
        p.memory_slack,
        most,
    )
    decode_rows = _extremes(
        [d.tpot_s, -d.requests_per_s, -d.memory_slack, d.gpus_by_pool.sum(axis=1), d.requests_per_s],
        d.memory_slack,
        most,
    )
    i, j = (a.reshape(-1) for a in np.meshgrid(prefill_rows, decode_rows, indexing="ij"))
    fits = (p.gpus_by_pool[i] + d.gpus_by_pool[j] <= scenario.pool_counts).all(axis=1)
    i, j = i[fits], j[fits]
    ones = np.ones(len(i), dtype=np.int64)
    return assembled(partition, prefill.candidates.take(i), ones, decode.candidates.take(j), ones)


def _extremes(keys: list[FloatArray], memory_slack: FloatArray, most: int) -> IntArray:
    """Rows that are first by some key, among those that fit into memory and among all."""
    fitting = [np.lexsort((key, memory_slack < 0))[:most] for key in keys]
    chosen = [*fitting, *(np.argsort(key, kind="stable")[:most] for key in keys)]
    result: IntArray = np.unique(np.concatenate(chosen)).astype(np.int64)
    return result
