"""Plans over made-up deployments: everything but the search and the rating is real."""

from typing import Any
from unittest.mock import patch

import numpy as np

from afd_dse.planning.options import Options
from afd_dse.results import plan as planner
from afd_dse.spec.demand import DemandFile

DEMAND: dict[str, Any] = {
    "model": "Qwen/Qwen3-30B-A3B-FP8",
    "hardware": [
        {"name": "h200", "accelerator": "h200_sxm", "count": 32, "usd_per_gpu_hour": 3.0},
        {
            "name": "own",
            "accelerator": "h100_sxm",
            "count": 8,
            "usd_per_gpu_hour": 1.5,
            "billing": "reserved",
        },
    ],
    "classes": [
        {
            "name": "chat",
            "share": 0.75,
            "workload": {"input_tokens": 1000, "output_tokens": 200},
            "slo": {"ttft_ms": 1000, "tpot_ms": 40},
        },
        {
            "name": "<code>",
            "share": 0.25,
            "workload": {"input_tokens": 8000, "output_tokens": 400},
            "slo": {"request_latency_ms": 60_000},
        },
    ],
    "demand": {"requests_per_s": 20.0, "daily": [0.3] * 8 + [1.35] * 16},
    "horizon": {"hours": 48, "period_hours": 4},
    "rules": {"headroom": 0.1, "redundancy": "deployment"},
}


def _deployment(gpus: int, rate: float) -> dict[str, Any]:
    return {
        "label": f"TP{gpus}",
        "mode": "colocated",
        "gpus": gpus,
        "requests_per_s": rate,
        "tokens_per_s": 200.0 * rate,
        "tokens_per_s_per_gpu": 200.0 * rate / gpus,
        "ttft_percentile_ms": 400.0,
        "tpot_ms": 30.0,
        "rated": 0.9,
        "intervals": {"tokens_per_s_per_gpu": [160.0 * rate / gpus, 260.0 * rate / gpus]},
    }


def plan_of(**changes: Any) -> dict[str, Any]:
    """The plan of :data:`DEMAND`, sections of it replaced, over a small deployment of every class and hardware."""
    rows = [(0, 0, 1, 4.0), (0, 1, 1, 2.5), (1, 0, 2, 1.5), (1, 1, 4, 1.2)]
    of_class, hardware, gpus, rate = zip(*rows, strict=True)
    made = tuple(_deployment(size, served) for _, _, size, served in rows)
    choices = Options(
        np.array(of_class), np.array(hardware), np.array(rate), 200.0 * np.array(rate), np.array(gpus), made
    )
    with patch.object(planner, "_options", return_value=(choices, [])):
        return planner.plan(DemandFile.model_validate(DEMAND | changes))
