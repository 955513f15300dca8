"""The questions that the benchmarks ask."""

from collections.abc import Sequence
from typing import Any

# The accelerators of one, two, three and four pools, and the models of one to four jobs.
POOLS = ("b200_sxm", "h200_sxm", "h100_sxm", "h20")
MODELS = ("deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-235B-A22B", "openai/gpt-oss-120b", "Qwen/Qwen3-30B-A3B")
# What a partition's candidates are drawn for: one group, PD, AFD without and with PD.
FAMILIES = {
    "colocated": "PA PF DA DF",
    "PD": "PA PF | DA DF",
    "AFD": "PA DA | PF DF",
    "PD + AFD": "PA PF | DA | DF",
}


def deepseek(
    *, gpus: int = 128, pools: int = 1, space: str = "default", model: str = MODELS[0], modes: Any = "all"
) -> dict[str, Any]:
    """The main job of ``examples/deepseek-v3_b200x128.yaml``, or the same of another size, model or cluster.

    With several ``pools`` the GPUs are divided evenly among accelerators of :data:`POOLS`.
    """
    types = {"gemm": "fp8_block", "moe": "fp8_block", "kv_cache": "fp8"} if model == MODELS[0] else {}
    cluster: dict[str, Any] = {
        "pools": [
            {"name": f"pool{number}", "accelerator": accelerator, "count": gpus // pools}
            for number, accelerator in enumerate(POOLS[:pools])
        ]
    }
    if pools > 1:
        cluster["scale_out_gb_s"] = 50
    return {
        "model": model,
        "quantization": types,
        "framework": "trtllm",
        "cluster": cluster,
        "workload": {"input_tokens": 4096, "output_tokens": 1024, "arrival": {"kind": "poisson"}},
        "slo": {"ttft_ms": 2000, "tpot_ms": 30, "percentile": 50},
        "search": {"modes": modes, "objective": "throughput_per_gpu", "space": space},
    }


def fleet(models: int, space: str) -> Sequence[dict[str, Any]]:
    """The main job for each of the first ``models`` models."""
    return [deepseek(model=name, space=space) for name in MODELS[:models]]


# A deployment of the main job, written by hand: what the first estimate is asked for.
DEPLOYMENT: dict[str, Any] = {
    "groups": [
        {"cells": ["PA", "PF"], "dp": 8, "ep": 8, "replicas": 8},
        {"cells": ["DA", "DF"], "dp": 64, "ep": 64, "micro_batches": 2},
    ],
    "batch_size": 48,
    "chunk_tokens": 8192,
}
