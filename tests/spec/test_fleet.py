from pathlib import Path
from typing import Any

import pytest

from afd_dse.errors import InputError
from afd_dse.spec.fleet import load_fleet

ROOT = Path(__file__).resolve().parents[2]
CHAT: dict[str, Any] = {
    "name": "chat",
    "model": "Qwen/Qwen3-30B-A3B-FP8",
    "workload": {"input_tokens": 1024, "output_tokens": 256},
    "slo": {"ttft_ms": 1000, "tpot_ms": 20},
    "demand": {"requests_per_s": 20.0},
}
CLOSED = {"kind": "closed_loop", "concurrency": 8}
DENSE: dict[str, Any] = {
    "name": "dense",
    "model": "Qwen/Qwen3-32B-FP8",
    "workload": {"input_tokens": 2000, "output_tokens": 200},
    "slo": {"ttft_ms": 3000, "tpot_ms": 60},
    "demand": {"requests_per_s": 1.0},
}
SMALL: dict[str, Any] = {
    "cluster": {"pools": [{"name": "main", "accelerator": "h100_sxm", "count": 8, "usd_per_gpu_hour": 2.0}]},
    "models": [CHAT, DENSE],
    "search": {"space": "quick", "modes": ["colocated", "pd"]},
}


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "fleets").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_example_is_valid(path: Path) -> None:
    file = load_fleet(path)
    for entry in file.models:
        job = file.job(entry)
        assert job.search.objective == "total_throughput"
        assert job.cluster.gpus == file.cluster.gpus


def test_a_share_of_the_cluster_leaves_out_pools_of_which_a_model_gets_nothing() -> None:
    pools = [{"name": name, "accelerator": name, "count": 8} for name in ("h100_sxm", "h200_sxm")]
    file = load_fleet(SMALL | {"cluster": {"scale_out_gb_s": 25.0, "pools": pools}})
    job = file.job(file.models[0], {"h100_sxm": 0, "h200_sxm": 3})
    assert [(pool.name, pool.count) for pool in job.cluster.pools] == [("h200_sxm", 3)]
    assert job.cluster.pools[0].resolved.scale_out_bytes_per_s == 25e9


def test_a_model_may_have_a_framework_of_its_own() -> None:
    file = load_fleet(SMALL | {"models": [CHAT | {"framework": "vllm"}, DENSE], "framework": "sglang"})
    assert [file.job(entry).framework for entry in file.models] == ["vllm", "sglang"]


@pytest.mark.parametrize(
    ("change", "field", "text"),
    [
        ({"models": [CHAT, CHAT]}, "models[1].name", "same name"),
        ({"models": []}, "models", "empty"),
        ({"models": [CHAT | {"name": "a/b"}]}, "models[0].name", "pattern"),
        ({"models": [CHAT | {"name": "staircases"}]}, "models[0].name", "choose another"),
        ({"models": [CHAT | {"name": "fleet.json"}]}, "models[0].name", "choose another"),
        ({"models": [CHAT | {"demand": None}]}, "models[0].demand", "needs the demand of every model"),
        ({"models": [CHAT | {"demand": {"requests_per_s": 0}}]}, "models[0].demand.requests_per_s", "greater"),
        ({"models": [CHAT | {"weight": -1}]}, "models[0].weight", "greater than 0"),
        ({"models": [CHAT | {"clusters": 1}]}, "models[0].clusters", "unknown key"),
        ({"objective": "growht"}, "objective", "growth"),
        ({"search": {"method": "optuna"}}, "search.method", "sampling does not find"),
        ({"search": {"objective": "usd_per_mtok"}}, "search.objective", "top of the file"),
        ({"search": {"trials": 5}}, "search.trials", "leave it out"),
        ({"cluster": {"pools": []}}, "cluster.pools", "empty"),
        (
            {"models": [CHAT | {"workload": CHAT["workload"] | {"arrival": CLOSED}}]},
            "models[0].workload.arrival.kind",
            "closed loop",
        ),
    ],
)  # fmt: skip
def test_a_wrong_fleet_is_told_by_field_and_remedy(change: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(InputError) as error:
        load_fleet(SMALL | change)
    (problem,) = error.value.problems
    assert problem.field == field
    assert text in f"{problem.message} {problem.remedy}"


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("cluster: 3\nmodels: [{name: a}]\nobjective: none\n")
    with pytest.raises(InputError) as error:
        load_fleet(tmp_path / "fleet.yaml")
    fields = {problem.field for problem in error.value.problems}
    assert {"cluster", "models[0].model", "models[0].workload", "objective"} <= fields
