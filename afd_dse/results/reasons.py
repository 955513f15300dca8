"""What stands in the way of a deployment, and what limits one that works: constraints and their slack, in words."""

import math

import numpy as np

from afd_dse.cost.columns import PRIORITIZED
from afd_dse.cost.evaluate import MAX_UTILIZATION
from afd_dse.cost.evaluation import CONSTRAINTS
from afd_dse.cost.memory import TERMS
from afd_dse.cost.scenario import Scenario, Slo
from afd_dse.results.words import number, percent
from afd_dse.search.objective import Objective
from afd_dse.search.pool import Found
from afd_dse.spec.cells import PARTITIONS, Cell, Partition

TERM_WORDS = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "activations": "activations",
    "framework": "framework reserve",
}
_GIB = 2.0**30


def applicable(scenario: Scenario, partition: Partition, policy: int) -> dict[str, bool]:
    """Which constraints say anything about this partition under this job."""
    slo, workload = scenario.slo, scenario.workload
    return {
        "memory": True,
        "gpus": True,
        "prefill capacity": True,
        "shared capacity": partition.is_joint and not (partition.shares_steps and policy == PRIORITIZED),
        "KV transfer": partition.group_of[Cell.PA] != partition.group_of[Cell.DA],
        "TTFT": math.isfinite(slo.ttft_s),
        "TPOT": math.isfinite(slo.tpot_s),
        "request latency": math.isfinite(slo.latency_s),
        "demand": workload.requests_per_s > 0 or math.isfinite(workload.concurrency_limit),
    }


def slacks(scenario: Scenario, found: Found, row: int) -> dict[str, float]:
    """Slack of every constraint that applies, per cent of its limit; negative where it is violated."""
    partition = PARTITIONS[int(found.candidates.integer("partition")[row])]
    applies = applicable(scenario, partition, int(found.candidates.integer("policy")[row]))
    values = found.evaluation.slack[row]
    return {
        name: 100.0 * float(value)
        for name, value in zip(CONSTRAINTS, values, strict=True)
        if applies[name] or value < 0.0
    }


def binding(
    slack_percent: dict[str, float], objective: Objective = "throughput_per_gpu"
) -> dict[str, str | float] | None:
    """The constraint with the least slack, None where nothing limits.

    The size of the cluster binds only where the objective could use more GPUs.
    """
    limits = {
        name: slack
        for name, slack in slack_percent.items()
        if name != "gpus" or objective == "total_throughput"
    }
    if not limits:
        return None
    name = min(limits, key=limits.__getitem__)
    return {"constraint": name, "slack_percent": limits[name]}


def reason(scenario: Scenario, found: Found, row: int) -> str | None:
    """Why a candidate is not feasible: its most violated constraint with numbers; None when it is feasible."""
    slack = found.evaluation.slack[row]
    if (slack >= 0.0).all():
        return None
    m = {name: float(column[row]) for name, column in found.evaluation.metrics.items()}
    slo, workload = scenario.slo, scenario.workload
    match CONSTRAINTS[int(slack.argmin())]:
        case "memory":
            return _memory(scenario, found, row)
        case "gpus":
            return _gpus(scenario, found, row)
        case "prefill capacity":
            used = percent(m["prefill_utilization"])
            return (
                f"prefill is used to {used} of its capacity, more than the {percent(MAX_UTILIZATION)} allowed"
            )
        case "shared capacity":
            return _shared(scenario, found, row)
        case "KV transfer":
            return f"the links that carry the KV cache would be busy {percent(m['kv_link_busy'])} of the time"
        case "TTFT":
            at = f" at percentile {slo.percentile:g}" if slo.percentile != 50.0 else ""
            return _late(f"TTFT{at}", m["ttft_percentile_s"], slo.ttft_s) + _sure(slo, "ttft_s")
        case "TPOT":
            return _late("TPOT", m["tpot_s"], slo.tpot_s) + _sure(slo, "tpot_s")
        case "request latency":
            return _late("request latency", m["latency_s"], slo.latency_s) + _sure(slo, "latency_s")
        case _:
            if m["concurrency"] > workload.concurrency_limit:
                held, limit = number(m["concurrency"]), number(workload.concurrency_limit)
                return f"{held} requests in flight are more than the closed loop's {limit}"
            served, wanted = m["requests_per_s"], workload.requests_per_s
            short = percent(1.0 - served / wanted)
            return f"{number(served)} requests/s are {short} short of the {number(wanted)} demanded"


def _sure(slo: Slo, limit: str) -> str:
    """Why a limit is tighter than the one asked for."""
    if slo.asked is None:
        return ""
    asked = 1e3 * getattr(slo.asked, limit)
    return f", which keeps {number(asked)} ms with {percent(slo.confidence or 0.0)} confidence"


def _late(name: str, seconds: float, limit_s: float) -> str:
    if not math.isfinite(seconds):
        return f"{name} has no bound: requests arrive faster than prefill serves them"
    over = percent(seconds / limit_s - 1.0)
    return f"{name} {number(1e3 * seconds)} ms exceeds {1e3 * limit_s:,g} ms by {over}"


def _memory(scenario: Scenario, found: Found, row: int) -> str:
    terms, budget = found.evaluation.memory[row], found.evaluation.memory_budget[row]
    groups = PARTITIONS[int(found.candidates.integer("partition")[row])].groups
    used = terms.sum(axis=1)[: len(groups)]
    worst = int((used / budget[: len(groups)]).argmax())
    largest = int(terms[worst].argmax())
    over = (used[worst] - budget[worst]) / _GIB
    cells = " ".join(cell.name for cell in groups[worst])
    part, size = TERM_WORDS[TERMS[largest]], number(terms[worst, largest] / _GIB)
    return (
        f"memory of group {cells} is {number(over)} GiB over the {number(budget[worst] / _GIB)} GiB of a GPU "
        f"that it may fill; the largest part is its {part} ({size} GiB)"
    )


def _gpus(scenario: Scenario, found: Found, row: int) -> str:
    used = found.evaluation.gpus_by_pool[row]
    worst = int((used / scenario.pool_counts).argmax())
    pool = scenario.pools[worst]
    return f"needs {used[worst]:.0f} GPUs of pool {pool.name}, which has {pool.count}"


def _shared(scenario: Scenario, found: Found, row: int) -> str:
    c = found.candidates
    partition = PARTITIONS[int(c.integer("partition")[row])]
    over = percent(1.0 - float(found.evaluation.slack[row, CONSTRAINTS.index("shared capacity")]))
    if not partition.shares_steps:
        return f"the groups that serve both phases would be busy {over} of the time"
    tokens = (
        float(c.number("batch_size")[row]) / float(c.number("decode_pp")[row]) * scenario.tokens_per_sequence
    )
    chunk = float(c.number("chunk_tokens")[row])
    if tokens + 1.0 > chunk:
        return f"{number(tokens)} decode tokens leave no room for prefill in a step of {number(chunk)}"
    return f"prefill needs {over} of the room that decode leaves in the steps"


def violated(slack: np.ndarray) -> str:
    """Name of the most violated constraint of one row of slacks."""
    return CONSTRAINTS[int(slack.argmin())]
