"""The evaluator: candidates in, latency, throughput, memory, slacks and reasons out. One function serves all modes."""

from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np

from afd_dse.cost.columns import TILE_SHARED, Candidates
from afd_dse.cost.engines import (
    Engines,
    FirstToken,
    Prefill,
    first_token,
    imbalance_of,
    separate,
    shared_steps,
)
from afd_dse.cost.evaluation import CONSTRAINTS, EXPLAINED, JUDGED, Breakdown, Evaluation
from afd_dse.cost.memory import TERMS, GroupMemory, group_memory, kv_bytes_of_request, kv_cache
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.sharing import shared_side
from afd_dse.network.traffic import kv_transfer_seconds
from afd_dse.operators.latency import FloatArray, IntArray, Provenance
from afd_dse.rows import distinct_rows, take_rows
from afd_dse.spec.cells import PARTITIONS, Cell, Partition, Phase, phase_of

# A prefill queue above this utilisation is not offered: beyond it the wait depends on details that no mean-value
# model knows, and any burst overloads it.
MAX_UTILIZATION = 0.95


def evaluate(scenario: Scenario, candidates: Candidates) -> Evaluation:
    """Evaluate a block of candidates (any mix of partitions and policies)."""
    candidates = candidates.compact
    partition = candidates.integer("partition")
    first, found = distinct_rows([partition, candidates.integer("policy")])
    if len(first) == 1:
        return _evaluate_partition(scenario, PARTITIONS[int(partition[0])], candidates)
    rows_of = [np.flatnonzero(found == number) for number in range(len(first))]
    parts = [
        _evaluate_partition(scenario, PARTITIONS[int(partition[example])], candidates.take(rows))
        for example, rows in zip(first, rows_of, strict=True)
    ]
    return _mixed(scenario, parts, rows_of, found)


def _mixed(
    scenario: Scenario, parts: list[Evaluation], rows_of: list[IntArray], part_of: IntArray
) -> Evaluation:
    """One evaluation of which each of ``parts`` has the rows ``rows_of`` it; ``part_of`` every row [n]."""
    n, groups = len(part_of), max((part.memory.shape[1] for part in parts), default=0)
    whole = Evaluation(
        {name: np.empty(n) for name in JUDGED},
        np.empty((len(CONSTRAINTS), n)).T,
        np.zeros((groups, len(TERMS), n)).transpose(2, 0, 1),
        np.zeros((groups, n)).T,
        np.empty((len(scenario.pools), n)).T,
        lambda rows: _explained(parts, rows_of, part_of, rows),
    )
    for part, rows in zip(parts, rows_of, strict=True):
        for name, column in whole.judged.items():
            column[rows] = part.judged[name]
        _put(whole.slack, rows, part.slack)
        _put(whole.memory, rows, part.memory)
        _put(whole.memory_budget, rows, part.memory_budget)
        _put(whole.gpus_by_pool, rows, part.gpus_by_pool)
    return whole


def _put(whole: FloatArray, rows: IntArray, part: FloatArray) -> None:
    """Write ``part`` [r, k, …] at ``rows`` of ``whole`` [n, k or more, …], column by column, as both lie in memory."""
    for column in np.ndindex(part.shape[1:]):
        whole[:, *column][rows] = part[:, *column]


def _explained(
    parts: list[Evaluation], rows_of: list[IntArray], part_of: IntArray, asked: IntArray
) -> Breakdown:
    """Breakdown of the rows ``asked`` for of a block that ``parts`` share."""
    whole = Breakdown(
        {name: np.empty(len(asked)) for name in EXPLAINED}, np.empty((len(asked), len(Provenance)))
    )
    for number, (part, rows) in enumerate(zip(parts, rows_of, strict=True)):
        here = np.flatnonzero(part_of[asked] == number)
        if not len(here):
            continue
        found = part.explain(np.searchsorted(rows, asked[here]))
        for name, column in whole.metrics.items():
            column[here] = found.metrics[name]
        whole.provenance[here] = found.provenance
    return whole


def engines_of(scenario: Scenario, partition: Partition, c: Candidates) -> Engines:
    """The engines of candidates of one partition and one policy."""
    if not partition.is_joint:
        return separate(scenario, partition, c)
    together = partition.shares_steps and not (c.integer("policy") == TILE_SHARED).any()
    return (shared_steps if together else shared_side)(scenario, partition, c)


def _evaluate_partition(scenario: Scenario, partition: Partition, c: Candidates) -> Evaluation:
    engines = engines_of(scenario, partition, c)
    cuts = {phase: Cut.of(c, phase) for phase in Phase}
    by_pool = gpus_by_pool(scenario, partition, cuts)
    prefill = engines.prefill_units.rows_of(engines.prefill)
    load = _load_of(scenario, partition, c, cuts, engines, prefill)
    m = _judged(scenario, engines, prefill, load, by_pool)
    memory = [_memory_of(scenario, group, engines, load.utilization) for group in partition.groups]
    slack = _slack(scenario, engines, load, m, memory, by_pool)
    terms = np.array([[group.terms[term] for term in TERMS] for group in memory]).transpose(2, 0, 1)
    budget = np.array([group.budget for group in memory]).T
    return Evaluation(
        m, slack, terms, budget, by_pool, partial(_breakdown, scenario, engines, load, m, by_pool)
    )


@dataclass(frozen=True, slots=True)
class _Load:
    """What a deployment serves, columns [n]: ``requests`` a second, and how busy that keeps prefill and KV links.

    ``first`` token in the mean; ``transfer_s`` of one request's KV cache.
    """

    tpot_s: FloatArray
    requests: FloatArray
    prefill_units: FloatArray
    utilization: FloatArray
    transfer_s: FloatArray
    link_busy: FloatArray
    first: FirstToken


def _memory_of(
    scenario: Scenario, group: tuple[Cell, ...], engines: Engines, utilization: FloatArray
) -> GroupMemory:
    """Memory of ``group``, columns [n].

    A group that only prefills holds all prompts that it works on at once. Where decode shares the cache the mean number
    counts, as the batch is a mean too: what prefill does not need now, decode may use.
    """
    units = engines.prefill_units if phase_of(group[0]) == Phase.PREFILL else engines.decode_units
    cuts = {phase: Cut.of(units.distinct, phase) for phase in Phase}
    prompts = engines.prefill.sequences * engines.prefill_units.distinct.integer("prefill_pp")
    batch = units.distinct.number("batch_size")
    tokens = {Phase.PREFILL: engines.prefill.step_tokens, Phase.DECODE: engines.decode.step_tokens}
    if not {Cell.PA, Cell.DA} <= set(group):
        [memory] = group_memory(scenario, [group], cuts, batch, prompts, tokens)
        return units.rows_of(memory)
    [quiet] = group_memory(scenario, [group], cuts, batch, np.zeros_like(prompts), tokens)
    of_prompts = kv_cache(scenario, group, cuts, batch, prompts) - quiet.terms["kv_cache"]
    memory = units.rows_of(quiet)
    cache = memory.terms["kv_cache"] + units.rows_of(of_prompts) * np.minimum(utilization, 1.0)
    return replace(memory, terms=memory.terms | {"kv_cache": cache})


def group_gpus(partition: Partition, cuts: dict[Phase, Cut]) -> list[FloatArray]:
    """GPUs of every group over all replicas, [n] each: Σ over groups is the deployment's GPU count."""
    found = []
    for group in partition.groups:
        cell = group[0]
        phase = phase_of(cell)
        cut = cuts[phase]
        attention = [p for p in Phase if Cell(2 * p) in group]
        per_unit = cuts[attention[0]].attention_gpus if attention else cut.ffn_gpus
        found.append((per_unit * cut.replicas).astype(np.float64))
    return found


def gpus_by_pool(
    scenario: Scenario,
    partition: Partition,
    cuts: dict[Phase, Cut],
    phases: tuple[Phase, ...] = tuple(Phase),
) -> FloatArray:
    """GPUs of the groups that ``phases`` come first in, over all replicas, [n, pools]."""
    rows = len(cuts[phases[0]].tp)
    total = np.zeros((len(scenario.pools), rows))
    for group, count in zip(partition.groups, group_gpus(partition, cuts), strict=True):
        phase = phase_of(group[0])
        if phase in phases:
            pool = cuts[phase].attention_pool if group[0] in (Cell.PA, Cell.DA) else cuts[phase].ffn_pool
            for number in range(len(scenario.pools)):
                total[number] += count * (pool == number)
    return total.T


def _load_of(
    scenario: Scenario,
    partition: Partition,
    c: Candidates,
    cuts: dict[Phase, Cut],
    engines: Engines,
    prefill: Prefill,
) -> _Load:
    replicas = {phase: cuts[phase].replicas.astype(np.float64) for phase in Phase}
    tpot = engines.decode_units.rows_of(engines.decode.interval_s) / scenario.accepted_per_step
    in_flight = c.number("batch_size") * cuts[Phase.DECODE].dp * replicas[Phase.DECODE]
    requests = in_flight / (scenario.workload.osl * tpot)
    units = replicas[Phase.PREFILL]
    utilization = requests / (prefill.capacity * units)
    transfer, busy = _kv_transfer(scenario, partition, cuts, requests)
    first = first_token(scenario, prefill, units, utilization, transfer, 50.0, one_step=engines.one_step)
    return _Load(tpot, requests, units, utilization, transfer, busy, first)


def served(scenario: Scenario, requests: FloatArray, by_pool: FloatArray) -> dict[str, FloatArray]:
    """The metrics that follow from ``requests``/s on GPUs ``by_pool`` [n, pools] alone, [n] each."""
    gpus, tokens = by_pool.sum(axis=1), requests * scenario.workload.osl
    price = by_pool @ np.array([pool.usd_per_gpu_hour for pool in scenario.pools])
    return {
        "tokens_per_s": tokens,
        "tokens_per_s_per_gpu": tokens / gpus,
        "gpus": gpus,
        "usd_per_mtok": price / 3600.0 / tokens * 1e6,
    }


def _judged(
    scenario: Scenario, engines: Engines, prefill: Prefill, load: _Load, by_pool: FloatArray
) -> dict[str, FloatArray]:
    """The metrics of :data:`JUDGED`."""
    workload, percentile, tpot = scenario.workload, scenario.slo.percentile, load.tpot_s
    judged = load.first
    if percentile > 50.0:
        judged = first_token(
            scenario,
            prefill,
            load.prefill_units,
            load.utilization,
            load.transfer_s,
            percentile,
            one_step=engines.one_step,
        )
    latency = load.first.ttft_s + (workload.osl - 1.0) * tpot
    return served(scenario, load.requests, by_pool) | {
        "ttft_s": load.first.ttft_s,
        "ttft_percentile_s": judged.ttft_s,
        "tpot_s": tpot,
        "latency_s": latency,
        "requests_per_s": load.requests,
        "tokens_per_s_per_user": 1.0 / tpot,
        "concurrency": load.requests * latency,
        "prefill_utilization": load.utilization,
    }


def _breakdown(
    scenario: Scenario,
    engines: Engines,
    load: _Load,
    m: dict[str, FloatArray],
    by_pool: FloatArray,
    rows: IntArray,
) -> Breakdown:
    """Where the time of the candidates at ``rows`` goes."""
    units = {"decode": engines.decode_units.which[rows], "prefill": engines.prefill_units.which[rows]}
    decode, prefill = (
        take_rows(engines.decode, units["decode"]),
        take_rows(engines.prefill, units["prefill"]),
    )
    stations = take_rows(engines.decode_stations.distinct, engines.decode_stations.which[units["decode"]])
    power = by_pool[rows] @ np.array([pool.power_w for pool in scenario.pools])
    steps = {"decode": decode.step, "prefill": prefill.step}
    found = {
        "itl_tail_s": decode.tail_s,
        "joules_per_token": power / m["tokens_per_s"][rows],
        "wait_s": load.first.wait_s[rows],
        "prefill_service_s": load.first.service_s[rows],
        "prefill_full_service_s": prefill.service_s,
        "kv_transfer_s": load.transfer_s[rows],
        "kv_link_busy": load.link_busy[rows],
        "decode_outside_s": steps["decode"].outside_s,
        "decode_expert_imbalance": imbalance_of(scenario, stations),
        "decode_exposed_copy_s": stations.exposed_copy_s,
    }
    for name, step in steps.items():
        found |= {
            f"{name}_step_s": step.seconds,
            f"{name}_attention_s": step.attention_s,
            f"{name}_ffn_s": step.ffn_s,
            f"{name}_link_s": step.link_s,
            f"{name}_bubble_s": step.bubble_s,
        }
    # A request's share of prefill counts with decode's as one step of each.
    weight = steps["decode"].seconds / np.maximum(steps["prefill"].seconds, 1e-12)
    every = np.arange(len(rows))
    both = decode.step.by_provenance(every) + prefill.step.by_provenance(every) * weight[:, None]
    shares: FloatArray = both / np.maximum(both.sum(axis=1, keepdims=True), 1e-30)
    return Breakdown(found, shares)


def _unit_gpus(partition: Partition, cuts: dict[Phase, Cut]) -> FloatArray:
    """GPUs of one prefill and one decode unit together, [n].

    A router hands a request over inside a scale-up domain wherever two units fit into one.
    """
    total = np.zeros(len(cuts[Phase.PREFILL].tp))
    for group, gpus in zip(partition.groups, group_gpus(partition, cuts), strict=True):
        total += gpus / cuts[phase_of(group[0])].replicas
    return total


def _kv_transfer(
    scenario: Scenario,
    partition: Partition,
    cuts: dict[Phase, Cut],
    requests: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Time to hand one request's KV over, and the share of the links' time that this takes; zero in one group."""
    if partition.group_of[Cell.PA] == partition.group_of[Cell.DA]:
        return np.zeros_like(requests), np.zeros_like(requests)
    source, target = cuts[Phase.PREFILL], cuts[Phase.DECODE]
    size = kv_bytes_of_request(scenario)
    pool = source.attention_pool
    once = kv_transfer_seconds(
        scenario.tiers,
        from_pool=pool,
        to_pool=target.attention_pool,
        senders=source.tp * source.cp * source.pp,
        receivers=target.tp * target.cp * target.pp,
        fits_domain=_unit_gpus(partition, cuts) <= scenario.tiers.domain_gpus[pool],
        kv_bytes=np.full(len(requests), size),
    )
    links = np.minimum(source.dp * source.replicas, target.dp * target.replicas)
    busy = requests * once / links
    return once, busy


def _slack(
    scenario: Scenario,
    engines: Engines,
    load: _Load,
    m: dict[str, FloatArray],
    memory: list[GroupMemory],
    by_pool: FloatArray,
) -> FloatArray:
    slo, workload = scenario.slo, scenario.workload
    rows = len(by_pool)
    enough = (1.0 - by_pool / scenario.pool_counts).min(axis=1)

    def limit(value: FloatArray, bound: float) -> FloatArray:
        if not np.isfinite(bound):
            return np.ones(rows)
        result: FloatArray = 1.0 - np.where(np.isfinite(value), value, 1e9) / bound
        return result

    with np.errstate(divide="ignore"):
        demand = load.requests / workload.requests_per_s - 1.0 if workload.requests_per_s else np.ones(rows)
    offered = limit(m["concurrency"], workload.concurrency_limit)
    return np.array(
        [
            reduce(np.minimum, [group.slack for group in memory]),
            enough,
            1.0 - load.utilization / MAX_UTILIZATION,
            engines.decode_units.rows_of(engines.slack),
            1.0 - load.link_busy,
            limit(m["ttft_percentile_s"], slo.ttft_s),
            limit(m["tpot_s"], slo.tpot_s),
            limit(m["latency_s"], slo.latency_s),
            np.minimum(demand, offered),
        ]
    ).T
