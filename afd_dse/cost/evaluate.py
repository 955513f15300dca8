"""The evaluator: candidates in, latency, throughput, memory, slacks and reasons out. One function serves all modes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.cost.columns import POLICIES, TILE_SHARED, Candidates
from afd_dse.cost.engines import Engines, FirstToken, first_token, separate, shared_steps
from afd_dse.cost.memory import TERMS, GroupMemory, group_memory, kv_bytes_of_request
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.sharing import shared_side
from afd_dse.network.traffic import kv_transfer_seconds
from afd_dse.operators.latency import FloatArray, IntArray, Provenance
from afd_dse.spec.cells import PARTITIONS, Cell, Partition, Phase, phase_of

# A prefill queue above this utilisation is not offered: beyond it the wait depends on details that no mean-value
# model knows, and any burst overloads it.
MAX_UTILIZATION = 0.95

# What can make a candidate infeasible; the order is the order of the slack columns.
CONSTRAINTS = (
    "memory",
    "gpus",
    "prefill capacity",
    "shared capacity",
    "KV transfer",
    "TTFT",
    "TPOT",
    "request latency",
    "demand",
)
METRICS = (
    "ttft_s",
    "ttft_percentile_s",
    "tpot_s",
    "itl_tail_s",
    "latency_s",
    "requests_per_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "tokens_per_s_per_user",
    "concurrency",
    "gpus",
    "usd_per_mtok",
    "joules_per_token",
    "prefill_utilization",
    "wait_s",
    "prefill_service_s",
    "prefill_full_service_s",
    "kv_transfer_s",
    "kv_link_busy",
    "decode_step_s",
    "decode_attention_s",
    "decode_ffn_s",
    "decode_link_s",
    "decode_bubble_s",
    "decode_outside_s",
    "decode_expert_imbalance",
    "decode_exposed_copy_s",
    "prefill_step_s",
    "prefill_attention_s",
    "prefill_ffn_s",
    "prefill_link_s",
    "prefill_bubble_s",
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Columns over candidates: metrics (SI), slacks [n, constraints], memory, provenance.

    ``slack`` is relative to the limit (negative: violated); ``memory`` bytes per GPU [n, 4 groups, terms] and
    ``memory_budget`` [n, 4 groups] (zero for groups that a partition lacks); ``gpus_by_pool`` [n, pools];
    ``provenance`` share of GPU time by :class:`Provenance` [n, 4].
    """

    metrics: dict[str, FloatArray]
    slack: FloatArray
    memory: FloatArray
    memory_budget: FloatArray
    gpus_by_pool: FloatArray
    provenance: FloatArray

    @property
    def feasible(self) -> npt.NDArray[np.bool_]:
        """Whether every constraint holds [n]."""
        return np.asarray((self.slack >= 0.0).all(axis=1))

    @property
    def worst(self) -> IntArray:
        """Index into :data:`CONSTRAINTS` of the constraint with the least slack [n]."""
        return np.asarray(self.slack.argmin(axis=1), dtype=np.int64)


def evaluate(scenario: Scenario, candidates: Candidates) -> Evaluation:
    """Evaluate a block of candidates (any mix of partitions and policies)."""
    kind = candidates.integer("partition") * len(POLICIES) + candidates.integer("policy")
    codes = np.unique(kind) if len(kind) and (kind != kind[0]).any() else kind[:1]
    if len(codes) == 1:
        return _evaluate_partition(scenario, PARTITIONS[int(codes[0]) // len(POLICIES)], candidates)
    n, pools = len(candidates), len(scenario.pools)
    result = Evaluation(
        {name: np.zeros(n) for name in METRICS},
        np.ones((n, len(CONSTRAINTS))),
        np.zeros((n, 4, len(TERMS))),
        np.zeros((n, 4)),
        np.zeros((n, pools)),
        np.zeros((n, len(Provenance))),
    )
    for code in codes:
        rows = np.flatnonzero(kind == code)
        partition = PARTITIONS[int(code) // len(POLICIES)]
        part = _evaluate_partition(scenario, partition, candidates.take(rows))
        for name, column in part.metrics.items():
            result.metrics[name][rows] = column
        result.slack[rows] = part.slack
        result.memory[rows] = part.memory
        result.memory_budget[rows] = part.memory_budget
        result.gpus_by_pool[rows] = part.gpus_by_pool
        result.provenance[rows] = part.provenance
    return result


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
    m = _metrics(scenario, partition, c, cuts, engines, by_pool)
    memory = group_memory(
        scenario,
        partition.groups,
        cuts,
        c.number("batch_size"),
        _prompts_in_memory(partition, cuts, engines, m),
        {Phase.PREFILL: engines.prefill.step_tokens, Phase.DECODE: engines.decode.step_tokens},
    )
    slack = _slack(scenario, engines, m, memory, by_pool)
    terms, budget = np.zeros((len(c), 4, len(TERMS))), np.zeros((len(c), 4))
    for number, group in enumerate(memory):
        terms[:, number, :] = np.stack([group.terms[term] for term in TERMS], axis=1)
        budget[:, number] = group.budget
    return Evaluation(m, slack, terms, budget, by_pool, _provenance(engines, m))


def _prompts_in_memory(
    partition: Partition, cuts: dict[Phase, Cut], engines: Engines, m: dict[str, FloatArray]
) -> FloatArray:
    """Prompts in prefill whose KV an attention rank holds, [n].

    A group that only prefills holds all that it works on at once. Where decode shares the cache the mean number counts,
    as the batch is a mean too: what prefill does not need now, decode may use.
    """
    at_once = engines.prefill.sequences * cuts[Phase.PREFILL].pp
    if partition.group_of[Cell.PA] != partition.group_of[Cell.DA]:
        return at_once
    return at_once * np.minimum(m["prefill_utilization"], 1.0)


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
    total = np.zeros((rows, len(scenario.pools)))
    for group, count in zip(partition.groups, group_gpus(partition, cuts), strict=True):
        phase = phase_of(group[0])
        if phase in phases:
            pool = cuts[phase].attention_pool if group[0] in (Cell.PA, Cell.DA) else cuts[phase].ffn_pool
            for number in range(len(scenario.pools)):
                total[:, number] += count * (pool == number)
    return total


def _metrics(
    scenario: Scenario,
    partition: Partition,
    c: Candidates,
    cuts: dict[Phase, Cut],
    engines: Engines,
    by_pool: FloatArray,
) -> dict[str, FloatArray]:
    workload, prefill, decode = scenario.workload, engines.prefill, engines.decode
    replicas = {phase: cuts[phase].replicas.astype(np.float64) for phase in Phase}
    tpot = decode.interval_s / scenario.accepted_per_step
    in_flight = c.number("batch_size") * cuts[Phase.DECODE].dp * replicas[Phase.DECODE]
    requests = in_flight / (workload.osl * tpot)

    utilization = requests / (prefill.capacity * replicas[Phase.PREFILL])
    transfer, link_busy = _kv_transfer(scenario, partition, cuts, requests)

    def first(percentile: float) -> FirstToken:
        units = replicas[Phase.PREFILL]
        return first_token(
            scenario, prefill, units, utilization, transfer, percentile, one_step=engines.one_step
        )

    mean, percentile = first(50.0), scenario.slo.percentile
    judged = first(percentile) if percentile > 50.0 else mean
    latency = mean.ttft_s + (workload.osl - 1.0) * tpot

    gpus = by_pool.sum(axis=1)
    price = by_pool @ np.array([pool.usd_per_gpu_hour for pool in scenario.pools])
    power = by_pool @ np.array([pool.power_w for pool in scenario.pools])
    tokens = requests * workload.osl
    return {
        "ttft_s": mean.ttft_s,
        "ttft_percentile_s": judged.ttft_s,
        "tpot_s": tpot,
        "itl_tail_s": decode.tail_s,
        "latency_s": latency,
        "requests_per_s": requests,
        "tokens_per_s": tokens,
        "tokens_per_s_per_gpu": tokens / gpus,
        "tokens_per_s_per_user": 1.0 / tpot,
        "concurrency": requests * latency,
        "gpus": gpus,
        "usd_per_mtok": price / 3600.0 / tokens * 1e6,
        "joules_per_token": power / tokens,
        "prefill_utilization": utilization,
        "wait_s": mean.wait_s,
        "prefill_service_s": mean.service_s,
        "prefill_full_service_s": prefill.service_s,
        "kv_transfer_s": transfer,
        "kv_link_busy": link_busy,
        "decode_step_s": decode.step.seconds,
        "decode_attention_s": decode.step.attention_s,
        "decode_ffn_s": decode.step.ffn_s,
        "decode_link_s": decode.step.link_s,
        "decode_bubble_s": decode.step.bubble_s,
        "decode_outside_s": decode.step.outside_s,
        "decode_expert_imbalance": decode.expert_imbalance,
        "decode_exposed_copy_s": decode.exposed_copy_s,
        "prefill_step_s": prefill.step.seconds,
        "prefill_attention_s": prefill.step.attention_s,
        "prefill_ffn_s": prefill.step.ffn_s,
        "prefill_link_s": prefill.step.link_s,
        "prefill_bubble_s": prefill.step.bubble_s,
    }


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
        demand = (
            m["requests_per_s"] / workload.requests_per_s - 1.0 if workload.requests_per_s else np.ones(rows)
        )
    offered = limit(m["concurrency"], workload.concurrency_limit)
    return np.stack(
        [
            np.min([group.slack for group in memory], axis=0),
            enough,
            1.0 - m["prefill_utilization"] / MAX_UTILIZATION,
            engines.slack,
            1.0 - m["kv_link_busy"],
            limit(m["ttft_percentile_s"], slo.ttft_s),
            limit(m["tpot_s"], slo.tpot_s),
            limit(m["latency_s"], slo.latency_s),
            np.minimum(demand, offered),
        ],
        axis=1,
    )


def _provenance(engines: Engines, m: dict[str, FloatArray]) -> FloatArray:
    """Share of GPU time by provenance over decode and prefill of a request, [n, 4]."""
    both = (
        engines.decode.step.by_provenance
        + engines.prefill.step.by_provenance
        * (m["decode_step_s"] / np.maximum(m["prefill_step_s"], 1e-12))[:, None]
    )
    result: FloatArray = both / np.maximum(both.sum(axis=1, keepdims=True), 1e-30)
    return result
