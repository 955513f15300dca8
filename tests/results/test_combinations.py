"""Presets, pools, skew and lengths that no paper combined: every answer keeps the laws and can be fed back."""

from functools import lru_cache
from typing import Any

import pytest

from afd_dse.results.api import estimate, optimize
from afd_dse.results.result import Result
from afd_dse.spec.job import Job
from afd_dse.spec.load import load_job

PRESETS = ("megascale", "expertplex", "lamina", "sarathi", "deepseek_ep")


@lru_cache(maxsize=1)
def asked() -> Job:
    pools = [
        {"name": name, "accelerator": name, "count": 16, "usd_per_gpu_hour": price}
        for name, price in (("h20", 0.6), ("l40s", 0.35))
    ]
    return load_job(
        {
            "model": "Qwen3-30B-A3B-FP8",
            "cluster": {"pools": pools},
            "workload": {
                "input_tokens": {"mean": 1500, "cv": 1.0},
                "output_tokens": {"mean": 400, "cv": 0.7},
                "prefix_tokens": 4000,
                "prefix_sharing": "shared",
                "expert_distribution": {"kind": "power_law", "exponent": 0.7},
            },
            "slo": {"ttft_ms": 4000, "tpot_ms": 60},
            "search": {"modes": list(PRESETS), "space": "quick", "objective": "usd_per_mtok"},
        }
    )


@lru_cache(maxsize=1)
def found() -> Result:
    return optimize(asked(), confirm=0)


def best(preset: str) -> dict[str, Any]:
    modes = found().best_per_mode
    name = next(mode for mode in modes if mode.startswith(preset))
    deployment = modes[name]
    assert deployment is not None
    assert deployment["feasible"], deployment["reason"]
    return deployment


@pytest.mark.parametrize("preset", PRESETS)
def test_any_preset_over_uneven_pools_prompts_and_experts_keeps_the_laws(preset: str) -> None:
    row = best(preset)
    latency = row["ttft_ms"] + 399.0 * row["tpot_ms"]
    assert row["request_latency_ms"] == pytest.approx(latency)
    assert row["concurrency"] == pytest.approx(row["requests_per_s"] * latency * 1e-3)
    assert row["tokens_per_s"] == pytest.approx(row["requests_per_s"] * 400.0)
    assert row["tokens_per_s_per_gpu"] == pytest.approx(row["tokens_per_s"] / row["gpus"])
    prices = {"h20": 0.6, "l40s": 0.35}
    hourly = sum(prices[g["pool"]] * g["gpus"] * g["replicas"] for g in row["groups"])
    assert row["usd_per_mtok"] == pytest.approx(hourly / (row["tokens_per_s"] * 3600.0) * 1e6)
    assert sum(g["gpus"] * g["replicas"] for g in row["groups"]) == row["gpus"] <= 32
    assert all(g["memory_gib"]["total"] <= g["memory_gib"]["budget"] for g in row["groups"])


@pytest.mark.parametrize("preset", PRESETS)
def test_any_preset_fed_back_gives_the_same_numbers(preset: str) -> None:
    row = best(preset)
    again = estimate(asked(), row)
    for name in ("ttft_ms", "tpot_ms", "requests_per_s", "usd_per_mtok"):
        assert again[name] == pytest.approx(row[name], rel=1e-6)
