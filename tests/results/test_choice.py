"""Data types as a choice: the answer against that of every combination by itself, and all that is done with it."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import afd_dse
from afd_dse.errors import InputError
from afd_dse.report.html import page
from afd_dse.results.analysis import analysed
from afd_dse.results.datatypes import combinations, narrowed
from afd_dse.results.result import Result
from afd_dse.results.simulate import Options, simulate
from afd_dse.results.stored import deployment_at
from afd_dse.search.objective import TIE_TOLERANCE
from tests.results.examples import TINY

LISTED = {"moe": ["fp8_block", "bfloat16"], "kv_cache": ["bfloat16", "fp8"]}
OBJECTIVES = {"throughput_per_gpu": ("tokens_per_s_per_gpu", 1), "usd_per_mtok": ("usd_per_mtok", -1)}


def asked(quantization: dict[str, Any] | None = None, **change: Any) -> afd_dse.Job:
    base = TINY | {"slo": {"ttft_ms": 1000, "tpot_ms": 20}, "quantization": quantization or LISTED}
    search = dict(base.get("search", {})) | change.pop("search", {})
    return afd_dse.load_job(base | change | {"search": search})


@lru_cache(maxsize=8)
def answer(objective: str = "throughput_per_gpu") -> Result:
    return afd_dse.optimize(asked(search={"objective": objective}))


@lru_cache(maxsize=16)
def alone(moe: str, kv_cache: str, objective: str = "throughput_per_gpu") -> Result:
    return afd_dse.optimize(asked({"moe": moe, "kv_cache": kv_cache}, search={"objective": objective}))


def singles(objective: str = "throughput_per_gpu") -> list[Result]:
    return [alone(moe, kv, objective) for moe in LISTED["moe"] for kv in LISTED["kv_cache"]]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_answer_is_the_best_of_all_combinations(objective: str) -> None:
    metric, sign = OBJECTIVES[objective]
    found = answer(objective)
    values = [sign * result.best[metric] for result in singles(objective) if result.best]
    assert found.best is not None
    assert sign * found.best[metric] >= max(values) * (1.0 - sign * TIE_TOLERANCE)
    for name, best in found.best_per_mode.items():
        modes = [r.best_per_mode[name] for r in singles(objective) if r.best_per_mode[name]["feasible"]]
        assert best["feasible"] == bool(modes)
        if modes:
            assert sign * best[metric] >= max(sign * d[metric] for d in modes) * (1.0 - sign * TIE_TOLERANCE)
    for key in ("considered", "evaluated"):
        assert found.document[key] == sum(result.document[key] for result in singles(objective))
    assert "exact over" in found.document["explanation"]
    assert "4 combinations of data types" in found.document["explanation"]


def test_the_front_is_that_of_all_combinations_together() -> None:
    names = ("tokens_per_s_per_user", "tokens_per_s_per_gpu")
    every = np.array([[d[name] for name in names] for result in singles() for d in result.pareto])
    front = np.array([[d[name] for name in names] for d in answer().pareto])
    reached = (front[:, None, :] >= every[None, :, :] * (1.0 - 1e-12)).all(axis=2).any(axis=0)
    assert reached.all()
    assert (np.diff(front[:, 0]) < 0.0).all()
    assert (np.diff(front[:, 1]) > 0.0).all()
    table = answer().candidates
    shown = table[table["pareto"] > 0].sort_values("pareto")
    np.testing.assert_allclose(shown[list(names)].to_numpy(), front)


def test_every_deployment_says_its_types_and_estimates_to_the_same_numbers() -> None:
    found = answer()
    deployments = [*found.pareto, *found.ranking, *(d for d in found.best_per_mode.values() if d["feasible"])]
    for deployment in deployments:
        again = afd_dse.estimate(asked(), deployment)
        assert again["label"] == deployment["label"]
        assert f"KV {deployment['quantization']['kv_cache']}" in deployment["label"]
        for name in ("tokens_per_s_per_gpu", "tpot_ms", "ttft_ms", "requests_per_s"):
            assert again[name] == pytest.approx(deployment[name], rel=1e-9)
    table = found.candidates
    for row in (0, len(table) // 2, len(table) - 1):
        again = deployment_at(asked(), table, row)
        assert again["quantization"]["moe"] == table["moe_dtype"].iloc[row]
        assert again["label"] == table["label"].iloc[row]
        assert again["tpot_ms"] == pytest.approx(table["tpot_ms"].iloc[row], rel=1e-9)


def test_ranks_count_over_all_combinations() -> None:
    table = answer().candidates
    ranked = table[table["rank"] > 0].sort_values("rank")
    assert ranked["rank"].tolist() == list(range(1, len(ranked) + 1))
    assert len(ranked) == int(table["feasible"].sum())
    best = answer().best
    assert best is not None
    assert ranked["label"].iloc[0] == best["label"]
    assert [d["rank"] for d in answer().ranking] == list(range(1, len(answer().ranking) + 1))


def test_what_a_result_is_used_for_takes_the_types_of_the_deployment() -> None:
    job, found = asked(), answer()
    best = found.best
    assert best is not None
    rich = analysed(job, found)
    assert rich.document["what_if"][0]["change"] == "as asked"
    assert rich.document["utilization"]
    assert simulate(job, best, Options(requests=200))["requests_per_s"] > 0.0
    text = page(rich.document, rich.candidates)
    assert "Data types" in text
    assert "experts bfloat16, KV fp8" in text
    assert any("judge these" in warning for warning in found.warnings)


def test_what_cannot_run_is_left_out_with_the_reason() -> None:
    job = asked({"gemm": ["fp8_block", "nvfp4", "int4_wo"], "kv_cache": "fp8"})
    entries = {str(entry.types["gemm"]): entry for entry in combinations(job)}
    assert entries["fp8_block"].scenario is not None
    assert "nvfp4 does not run on hopper" in str(entries["nvfp4"].reason)
    assert "no gemm kernel of" in str(entries["int4_wo"].reason)
    found = afd_dse.optimize(job)
    rows = {row["quantization"]["gemm"]: row for row in found.document["data_types"]}
    assert rows["nvfp4"]["status"] == rows["int4_wo"]["status"] == "left_out"
    assert rows["nvfp4"]["reason"] == entries["nvfp4"].reason
    assert rows["fp8_block"]["best"] == found.best
    assert "2 combinations left out" in found.document["explanation"]


def test_experts_of_a_dense_model_are_no_choice() -> None:
    job = asked({"moe": ["fp8_block", "bfloat16"]}, model="Qwen/Qwen3-32B-FP8")
    first, second = combinations(job)
    assert first.scenario is not None
    assert second.scenario is None
    assert "no routed experts" in str(second.reason)


def test_where_no_combination_runs_the_problems_of_all_are_told() -> None:
    with pytest.raises(InputError) as error:
        afd_dse.optimize(asked({"gemm": ["nvfp4", "int4_wo"]}))
    text = str(error.value)
    assert "quantization.gemm" in text
    assert "int4_wo" in text


def test_a_deployment_of_a_job_with_a_choice_must_name_one_that_it_lists() -> None:
    best = dict(answer().best or {})
    given = best.pop("quantization")
    for wrong, field in (
        (best, "quantization"),
        (best | {"quantization": {"moe": "fp8_block"}}, "quantization.kv_cache"),
        (best | {"quantization": given | {"moe": "nvfp4"}}, "quantization.moe"),
    ):
        with pytest.raises(InputError) as error:
            afd_dse.estimate(asked(), wrong)
        assert [problem.field for problem in error.value.problems] == [field]
    # A job that leaves no choice decides by itself, whatever the deployment was found with.
    other = asked({"moe": "bfloat16", "kv_cache": "bfloat16"})
    assert narrowed(other, best | {"quantization": given}) is other
    assert afd_dse.estimate(other, best | {"quantization": given})["quantization"]["kv_cache"] == "bfloat16"


def test_an_impossible_job_has_the_nearest_miss_of_all_combinations() -> None:
    slo = {"ttft_ms": 1000, "tpot_ms": 0.5}
    found = afd_dse.optimize(asked(slo=slo))
    assert not found.feasible
    assert all(row["status"] == "infeasible" and row["reason"] for row in found.document["data_types"])
    nearest = found.nearest_misses[-1]
    values = [
        afd_dse.optimize(asked({"moe": moe, "kv_cache": kv}, slo=slo)).nearest_misses[-1]
        for moe in LISTED["moe"]
        for kv in LISTED["kv_cache"]
    ]
    assert min(nearest["slack"].values()) == pytest.approx(max(min(d["slack"].values()) for d in values))
    assert found.document["provenance"]["of"] == nearest["label"]
    assert found.document["best_per_mode"]
    assert page(found.document, found.candidates)


def test_percentiles_are_confirmed_for_every_combination() -> None:
    job = asked({"kv_cache": ["bfloat16", "fp8"]}, slo={"ttft_ms": 1000, "tpot_ms": 20, "percentile": 90})
    found = afd_dse.optimize(job, confirm=2)
    simulated = found.document["confirmation"]["simulated"]
    assert {row["quantization"]["kv_cache"] for row in simulated} == {"bfloat16", "fp8"}
