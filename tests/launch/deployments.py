"""Deployments of DeepSeek-V3 that the tests of launch files share, as documents and as plans."""

from functools import lru_cache
from typing import Any

from afd_dse import estimate, load_job
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.launch.plan import Plan, plan_of

JOB: dict[str, Any] = {
    "model": "deepseek-ai/DeepSeek-V3",
    "quantization": {"kv_cache": "fp8"},
    "cluster": {"pools": [{"name": "main", "accelerator": "h200_sxm", "count": 128}]},
    "workload": {"input_tokens": 4096, "output_tokens": 1024},
    "slo": {"ttft_ms": 5000, "tpot_ms": 100},
}
SPREAD = {"tp": 1, "dp": 16, "moe_tp": 1, "ep": 16}
SMALL = {"tp": 1, "dp": 8, "moe_tp": 1, "ep": 8}
COLOCATED: dict[str, Any] = {
    "groups": [{"cells": ["PA", "PF", "DA", "DF"], "replicas": 3, **SPREAD}],
    "batch_size": 25,
    "chunk_tokens": 2048,
}
PD: dict[str, Any] = {
    "groups": [
        {"cells": ["PA", "PF"], "replicas": 2, **SMALL},
        {"cells": ["DA", "DF"], "replicas": 1, **SPREAD},
    ],
    "batch_size": 25,
    "chunk_tokens": 8192,
}
AFD: dict[str, Any] = {
    "groups": [
        {"cells": ["PA", "PF"], "replicas": 2, **SMALL},
        {"cells": ["DA"], "replicas": 2, "tp": 1, "dp": 16, "micro_batches": 2},
        {"cells": ["DF"], "replicas": 2, "moe_tp": 1, "ep": 8, "micro_batches": 2},
    ],
    "batch_size": 16,
    "chunk_tokens": 8192,
}
# Decode whose sequences lie on two GPUs each.
CONTEXT: dict[str, Any] = {
    "groups": [
        {"cells": ["PA", "PF"], "replicas": 2, **SMALL},
        {"cells": ["DA", "DF"], "replicas": 1, "tp": 1, "dp": 8, "cp": 2, "moe_tp": 1, "ep": 16},
    ],
    "batch_size": 25,
    "chunk_tokens": 8192,
}
OVERLAPPED = PD | {"groups": [group | {"micro_batches": 2} for group in PD["groups"]]}
# Engines of six GPUs, of which nodes of eight hold one each.
UNEVEN: dict[str, Any] = {
    "groups": [{"cells": ["PA", "PF", "DA", "DF"], "replicas": 17, "tp": 1, "dp": 6, "moe_tp": 1, "ep": 6}],
    "batch_size": 4,
    "chunk_tokens": 2048,
}
NAMED = {
    "uneven": UNEVEN,
    "overlapped": OVERLAPPED,
    "colocated": COLOCATED,
    "pd": PD,
    "afd": AFD,
    "context": CONTEXT,
}


def job(framework: str, **changes: Any) -> dict[str, Any]:
    return JOB | {"framework": framework} | changes


@lru_cache(maxsize=32)
def deployment(framework: str, name: str) -> dict[str, Any]:
    """The document of a deployment, estimated for a framework."""
    return {**estimate(load_job(job(framework)), NAMED[name])}


def result(framework: str, *names: str) -> dict[str, Any]:
    """What is read of a result that ranks these deployments."""
    ranking = [deployment(framework, name) for name in names]
    runs = next((one for one in ranking if one["launchable"]), None)
    return {"job": job(framework), "best": ranking[0], "best_launchable": runs, "ranking": ranking}


def plan(framework: str, name: str, **changes: Any) -> Plan:
    document = deployment(framework, name)
    scenario = scenario_from_job(load_job(job(framework, **changes)))
    return plan_of(scenario, document, "deepseek-ai/DeepSeek-V3")
