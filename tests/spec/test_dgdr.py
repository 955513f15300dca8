"""Jobs in the words of a Dynamo deployment request."""

import copy
from typing import Any

import pytest

from afd_dse.errors import InputError
from afd_dse.spec import job_warnings, load_job

REQUEST: dict[str, Any] = {
    "model": "Qwen/Qwen3-32B",
    "backend": "vllm",
    "hardware": {"gpuSku": "h200_sxm", "totalGpus": 16},
    "workload": {"isl": 4000, "osl": 500},
    "sla": {"ttft": 1500, "itl": 25},
}


def with_(**sections: Any) -> dict[str, Any]:
    return {**copy.deepcopy(REQUEST), **sections}


def wrapped(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeploymentRequest",
        "metadata": {"name": "mine"},
        "spec": spec,
    }


def test_it_is_the_same_job_as_in_our_own_words() -> None:
    own = {
        "model": "Qwen/Qwen3-32B",
        "framework": "vllm",
        "cluster": {"pools": [{"name": "gpus", "accelerator": "h200_sxm", "count": 16}]},
        "workload": {"input_tokens": 4000, "output_tokens": 500},
        "slo": {"ttft_ms": 1500, "tpot_ms": 25},
    }
    assert load_job(REQUEST) == load_job(wrapped(REQUEST)) == load_job(own)
    assert job_warnings(load_job(REQUEST)) == []


def test_it_round_trips_as_a_job() -> None:
    job = load_job(with_(backend="auto", workload={"requestRate": 3.5}, autoApply=False))
    assert job.notes
    assert load_job(job.model_dump(mode="json")) == job


def test_request_latency_and_concurrency_are_read() -> None:
    job = load_job(with_(sla={"e2eLatency": 20000}, workload={"isl": 10, "osl": 10, "concurrency": 64}))
    assert (job.slo.request_latency_ms, job.slo.ttft_ms, job.slo.tpot_ms) == (20000, None, None)
    assert (job.workload.arrival.kind, job.workload.arrival.concurrency) == ("closed_loop", 64)


def test_a_request_rate_asks_for_the_fewest_gpus_unless_the_request_says_otherwise() -> None:
    workload = {"isl": 10, "osl": 10, "requestRate": 12.5}
    job = load_job(with_(workload=workload))
    assert job.demand is not None
    assert job.demand.requests_per_s == 12.5
    assert job.search.objective == "fewest_gpus"
    assert any("requestRate" in note for note in job_warnings(job))
    other = load_job(with_(workload=workload, search={"objective": "usd_per_mtok", "modes": ["pd"]}))
    assert (other.search.objective, other.search.modes) == ("usd_per_mtok", ("pd",))


def test_what_is_assumed_or_ignored_is_said() -> None:
    request = with_(backend="auto", image="registry/x:1", autoApply=True, searchStrategy="rapid")
    del request["workload"]
    request["hardware"]["rdma"] = True
    request["sla"]["optimizationType"] = "latency"
    job = load_job(request)
    said = "\n".join(job_warnings(job))
    assert (job.framework, job.workload.isl, job.workload.osl) == ("trtllm", 4000, 1000)
    for field in (
        "backend",
        "workload.isl",
        "workload.osl",
        "image",
        "autoApply",
        "searchStrategy",
        "hardware.rdma",
    ):
        assert field in said
    assert "sla.optimizationType" in said


def test_a_node_size_that_is_the_catalogues_changes_nothing() -> None:
    same = with_(hardware={"gpuSku": "h200_sxm", "totalGpus": 16, "numGpusPerNode": 8})
    assert load_job(same) == load_job(REQUEST)


def test_another_node_size_bounds_the_scale_up_domain_of_an_hgx_but_not_of_a_rack() -> None:
    small = load_job(with_(hardware={"gpuSku": "h200_sxm", "totalGpus": 16, "numGpusPerNode": 4}))
    resolved = small.cluster.pools[0].resolved
    assert (resolved.node_gpus, resolved.scale_up_gpus) == (4, 4)
    rack = load_job(with_(hardware={"gpuSku": "gb200", "totalGpus": 16, "numGpusPerNode": 2}))
    resolved = rack.cluster.pools[0].resolved
    assert (resolved.node_gpus, resolved.scale_up_gpus) == (2, 72)


def test_memory_that_the_request_states_is_used() -> None:
    job = load_job(with_(hardware={"gpuSku": "h200_sxm", "totalGpus": 8, "vramMb": 100 * 1024}))
    assert job.cluster.pools[0].resolved.hbm_bytes == 100 * 2**30


@pytest.mark.parametrize(
    ("sections", "field", "message", "remedy"),
    [
        ({"backend": "tgi"}, "backend", "unknown value", "vllm, sglang, trtllm"),
        ({"hardware": {"gpuSku": "h300", "totalGpus": 1}}, "hardware.gpuSku", "unknown accelerator", "b300_sxm"),
        ({"hardware": {"gpuSku": "h200"}}, "hardware.totalGpus", "needed", "totalGpus: 16"),
        ({"hardware": {"totalGpus": 8}}, "hardware.gpuSku", "needed", "gpuSku: h200_sxm"),
        ({"hardware": {"gpuSku": "h200", "totalGpus": 0}}, "hardware.totalGpus", "at least 1", "totalGpus: 16"),
        ({"hardware": {"gpuSku": "h200", "totalGpus": True}}, "hardware.totalGpus", "not true or false", "16"),
        ({"hardware": {"gpuSku": "h200", "totalGpus": 8, "count": 8}}, "hardware.count", "unknown key", "totalGpus"),
        ({"hardware": None}, "hardware", "needed", "gpuSku"),
        ({"hardware": "h200"}, "hardware", "a mapping is needed", "gpuSku"),
        ({"workload": {"isl": 0}}, "workload.isl", "at least 1", "isl: 4000"),
        ({"workload": {"osl": "many"}}, "workload.osl", "a number is needed", "osl: 1000"),
        ({"workload": {"input_tokens": 5, "osl": 5}}, "workload.input_tokens", "unknown key", "did you mean isl?"),
        (
            {"workload": {"concurrency": 5, "requestRate": 5}},
            "workload.requestRate",
            "given together with concurrency",
            "keep one",
        ),
        ({"workload": {"requestRate": -1}}, "workload.requestRate", "greater than 0", "requestRate: 10"),
        ({"sla": {"itl": 0}}, "sla.itl", "greater than 0", "itl: 30"),
        ({"sla": {"tpot_ms": 30}}, "sla.tpot_ms", "unknown key", "did you mean itl?"),
        ({"sla": {"ttft": float("nan")}}, "sla.ttft", "finite", "ttft: 2000"),
        ({"modle": "x"}, "modle", "unknown key", "did you mean model?"),
        ({"model": ""}, "model", "empty", "catalogue name"),
        ({"model": None}, "model", "needed", "model: Qwen/Qwen3-32B"),
        ({"search": {"modes": ["pdd"]}}, "search.modes[0]", "unknown mode", "did you mean pd"),
        ({"demand": {"requests_per_s": 1}, "workload": {"requestRate": 1}}, "demand", "given together", "keep one"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["", "spec."])
def test_errors_speak_the_words_of_the_request(
    sections: dict[str, Any], field: str, message: str, remedy: str, prefix: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_job(wrapped(with_(**sections)) if prefix else with_(**sections))
    (problem,) = caught.value.problems
    assert problem.field == prefix + field
    assert message in problem.message
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    ("changes", "field", "remedy"),
    [
        ({"kind": "DynamoGraphDeployment"}, "kind", "DynamoGraphDeploymentRequest"),
        ({"apiVersion": "nvidia.com/v1alpha1"}, "apiVersion", "nvidia.com/v1beta1"),
        ({"spec": None}, "spec", "under spec"),
        ({"spec": [1]}, "spec", "under spec"),
        ({"hardware": {}}, "hardware", "under spec"),
    ],
)
def test_another_kubernetes_object_is_told_apart(changes: dict[str, Any], field: str, remedy: str) -> None:
    with pytest.raises(InputError) as caught:
        load_job({**wrapped(REQUEST), **changes})
    (problem,) = caught.value.problems
    assert problem.field == field
    assert remedy in problem.remedy


def test_a_job_file_with_one_foreign_word_stays_a_job_file() -> None:
    job = {
        "model": "x",
        "cluster": {"pools": [{"name": "a", "accelerator": "h200", "count": 8}]},
        "workload": {"input_tokens": 5, "output_tokens": 5},
        "sla": {"itl": 5},
    }
    with pytest.raises(InputError) as caught:
        load_job(job)
    assert [problem.field for problem in caught.value.problems] == ["sla"]
    assert "did you mean slo?" in caught.value.problems[0].remedy
