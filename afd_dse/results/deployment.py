"""One candidate with its evaluation as a document: what is printed, stored, and can be fed back to ``estimate``."""

import math
from typing import Any

from afd_dse.cost.columns import EXPERT_POLICIES, TILE_SHARED
from afd_dse.cost.memory import TERMS
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import Provenance
from afd_dse.results.certainty import certainty
from afd_dse.results.layout import Group, describe, groups_of, label
from afd_dse.results.policies import launchable, policy_name
from afd_dse.results.reasons import binding, reason, slacks
from afd_dse.search.objective import Objective
from afd_dse.search.pool import Found
from afd_dse.spec.cells import PARTITIONS, Cell, Partition, Phase

Deployment = dict[str, Any]

GIB = 2.0**30
# Metrics of the document: name, metric of the evaluator, factor from SI.
METRIC_NAMES: tuple[tuple[str, str, float], ...] = (
    ("ttft_ms", "ttft_s", 1e3),
    ("ttft_percentile_ms", "ttft_percentile_s", 1e3),
    ("tpot_ms", "tpot_s", 1e3),
    ("itl_tail_ms", "itl_tail_s", 1e3),
    ("request_latency_ms", "latency_s", 1e3),
    ("tokens_per_s_per_user", "tokens_per_s_per_user", 1.0),
    ("tokens_per_s_per_gpu", "tokens_per_s_per_gpu", 1.0),
    ("tokens_per_s", "tokens_per_s", 1.0),
    ("requests_per_s", "requests_per_s", 1.0),
    ("concurrency", "concurrency", 1.0),
    ("usd_per_mtok", "usd_per_mtok", 1.0),
    ("joules_per_token", "joules_per_token", 1.0),
    ("prefill_utilization", "prefill_utilization", 1.0),
)
# Keys of a group that say what it is; the rest follows from them.
ATTENTION_DEGREES = ("tp", "dp", "cp", "pp")
FFN_DEGREES = ("moe_tp", "ep", "redundant_experts")


def types_of(scenario: Scenario) -> dict[str, str]:
    """The data types that a scenario computes in and stores, by role."""
    q = scenario.quantization
    return {"gemm": q.gemm, "moe": q.moe, "attention": q.attention, "kv_cache": q.kv_cache}


def finite(value: float) -> float | None:
    """``value`` as JSON has it: None where it has no bound."""
    return value if math.isfinite(value) else None


def deployment_of(
    scenario: Scenario, found: Found, row: int, mode: str, objective: Objective = "throughput_per_gpu"
) -> Deployment:
    """The document of one candidate. ``mode`` is the name of its partition; a metric without bound is None."""
    c, m = found.candidates, found.evaluation.metrics
    partition = PARTITIONS[int(c.integer("partition")[row])]
    policy = int(c.integer("policy")[row])
    groups = groups_of(scenario, c, row)
    _check_expressible(
        partition, c.integer("prefill_micro_batches")[row], c.integer("decode_micro_batches")[row]
    )
    slack_percent = slacks(scenario, found, row)
    why_not = reason(scenario, found, row)
    copies = _cluster_copies(scenario, found, row)
    tokens = finite(float(m["tokens_per_s"][row]))
    document: Deployment = {
        "mode": mode,
        "partition": partition.text,
        "label": label(scenario, partition, groups),
        "description": describe(scenario, partition, groups),
        "feasible": why_not is None,
        "reason": why_not,
        "binding": binding(slack_percent, objective) if why_not is None else None,
        "slack": slack_percent,
        "launchable": launchable(scenario, c, row),
        "gpus": round(float(m["gpus"][row])),
    }
    document |= {name: finite(factor * float(m[metric][row])) for name, metric, factor in METRIC_NAMES}
    document |= certainty(scenario, found, row)
    document |= {
        "batch_size": float(c.number("batch_size")[row]),
        "chunk_tokens": float(c.number("chunk_tokens")[row]),
        "quantization": types_of(scenario),
        "policy": policy_name(partition, policy),
        "decode_share": float(c.number("decode_share")[row]) if policy == TILE_SHARED else None,
        "breakdown": _breakdown(scenario, partition, found, row),
        "provenance": {
            kind.name.lower(): float(found.evaluation.provenance[row, kind]) for kind in Provenance
        },
        "groups": [_group(scenario, found, row, number, group) for number, group in enumerate(groups)],
        "cluster_copies": copies,
        "cluster_tokens_per_s": None if tokens is None else copies * tokens,
    }
    return document


def _check_expressible(partition: Partition, prefill: int, decode: int) -> None:
    # A group that serves both phases names one number of micro-batches, and one step carries both phases.
    if partition.is_joint and prefill != decode:
        raise ValueError(f"{partition.text}: both phases must use the same number of micro-batches")


def _cluster_copies(scenario: Scenario, found: Found, row: int) -> int:
    """How often the whole deployment fits into the cluster."""
    used = found.evaluation.gpus_by_pool[row]
    return int(min(pool.count // used[i] for i, pool in enumerate(scenario.pools) if used[i] > 0))


def _breakdown(scenario: Scenario, partition: Partition, found: Found, row: int) -> dict[str, Any]:
    m = {name: float(column[row]) for name, column in found.evaluation.metrics.items()}
    step, outside = m["decode_step_s"], m["decode_outside_s"]
    attention, ffn, links = m["decode_attention_s"], m["decode_ffn_s"], m["decode_link_s"]
    # Attention and FFN on the same GPUs take turns. A bubble is time in which the busiest GPUs wait for others.
    busiest = max(attention, ffn) if partition.splits(Phase.DECODE) else attention + ffn
    return {
        "decode": _milliseconds(
            step_ms=step,
            attention_ms=attention,
            ffn_ms=ffn,
            links_ms=links,
            outside_ms=outside,
            bubble_ms=_excess(step, outside + busiest),
            interference_ms=_excess(m["tpot_s"] * scenario.accepted_per_step, step),
        ),
        "prefill": _milliseconds(
            wait_ms=m["wait_s"],
            service_ms=m["prefill_service_s"],
            kv_transfer_ms=m["kv_transfer_s"],
            step_ms=m["prefill_step_s"],
            attention_ms=m["prefill_attention_s"],
            ffn_ms=m["prefill_ffn_s"],
            links_ms=m["prefill_link_s"],
        ),
    }


def _excess(whole_s: float, part_s: float) -> float:
    """What ``whole_s`` exceeds ``part_s`` by; zero where it does so by rounding only."""
    excess = whole_s - part_s
    return excess if excess > 1e-9 * whole_s else 0.0


def _milliseconds(**seconds: float) -> dict[str, float | None]:
    return {name: finite(1e3 * value) for name, value in seconds.items()}


def _group(scenario: Scenario, found: Found, row: int, number: int, group: Group) -> dict[str, Any]:
    """The document of one group; degrees that do not apply to it are None."""
    pool = scenario.pools[group.pool]
    terms, budget = found.evaluation.memory[row, number], found.evaluation.memory_budget[row, number]
    memory = {term: float(value) / GIB for term, value in zip(TERMS, terms, strict=True)}
    attention = dict.fromkeys(ATTENTION_DEGREES) | (
        {"tp": group.tp, "dp": group.dp, "cp": group.cp, "pp": group.pp} if group.attention else {}
    )
    ffn = dict.fromkeys((*FFN_DEGREES, "expert_policy")) | (
        {
            "moe_tp": group.moe_tp,
            "ep": group.ep,
            "redundant_experts": group.redundant,
            "expert_policy": None if group.dense else EXPERT_POLICIES[group.expert_policy],
        }
        if group.ffn
        else {}
    )
    decodes_experts = Cell.DF in group.cells and not group.dense
    m = found.evaluation.metrics
    return {
        "cells": [cell.name for cell in group.cells],
        "label": group.cut,
        "pool": pool.name,
        "accelerator": pool.accelerator.name,
        "gpus": group.gpus,
        "replicas": group.replicas,
        "gpus_total": group.gpus * group.replicas,
        **attention,
        **ffn,
        "expert_imbalance": float(m["decode_expert_imbalance"][row]) if decodes_experts else None,
        "exposed_copy_ms": 1e3 * float(m["decode_exposed_copy_s"][row]) if decodes_experts else None,
        "batch_size": float(found.candidates.number("batch_size")[row]) if Cell.DA in group.cells else None,
        "micro_batches": group.micro_batches,
        "memory_gib": memory | {"total": float(terms.sum()) / GIB, "budget": float(budget) / GIB},
    }
