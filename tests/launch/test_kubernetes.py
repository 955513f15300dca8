"""Manifests for Dynamo and llm-d."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from afd_dse.launch import dynamo, llm_d
from afd_dse.launch.plan import Plan
from tests.launch.deployments import deployment, plan


def components(framework: str, name: str) -> dict[str, Any]:
    *_, resource = yaml.safe_load_all(dynamo.manifest(plan(framework, name), framework, "it"))
    assert resource["apiVersion"] == "nvidia.com/v1beta1"
    assert resource["spec"]["backendFramework"] == framework
    return {component["name"]: component for component in resource["spec"]["components"]}


def main_of(component: dict[str, Any]) -> dict[str, Any]:
    [container] = component["podTemplate"]["spec"]["containers"]
    assert container["name"] == "main"
    return dict(container)


def gpus(container: dict[str, Any]) -> int:
    return int(container["resources"]["limits"]["nvidia.com/gpu"])


@pytest.mark.parametrize("framework", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", ["colocated", "pd"])
def test_dynamo_gets_all_gpus_of_the_deployment(framework: str, name: str) -> None:
    found = components(framework, name)
    frontend = found.pop("Frontend")
    assert frontend["type"] == "frontend"
    total = 0
    for component in found.values():
        nodes = component.get("multinode", {"nodeCount": 1})["nodeCount"]
        total += component["replicas"] * nodes * gpus(main_of(component))
    assert total == deployment(framework, name)["gpus"]
    assert {c["type"] for c in found.values()} == (
        {"worker"} if name == "colocated" else {"prefill", "decode"}
    )


@pytest.mark.parametrize("framework", ["vllm", "sglang", "trtllm"])
def test_dynamo_tells_each_phase_its_role(framework: str) -> None:
    for role in ("prefill", "decode"):
        words = main_of(components(framework, "pd")[role])["args"]
        assert words[words.index("--disaggregation-mode") + 1] == role
        # Peers are the operator's business.
        assert not {"--nnodes", "--node-rank", "--dist-init-addr", "--headless"} & set(words)


def test_configurations_of_trtllm_come_with_the_deployment() -> None:
    files, resource = yaml.safe_load_all(dynamo.manifest(plan("trtllm", "pd"), "trtllm", "it"))
    decode = components("trtllm", "pd")["decode"]
    path = main_of(decode)["args"][main_of(decode)["args"].index("--extra-engine-args") + 1]
    [mount], [volume] = main_of(decode)["volumeMounts"], decode["podTemplate"]["spec"]["volumes"]
    assert path == f"{mount['mountPath']}/decode.yaml"
    assert volume["configMap"]["name"] == files["metadata"]["name"]
    assert yaml.safe_load(files["data"]["decode.yaml"])["tensor_parallel_size"] == 16
    assert resource["kind"] == "DynamoGraphDeployment"


def sets(found: Plan) -> dict[str, Any]:
    return {one["metadata"]["name"]: one["spec"] for one in yaml.safe_load_all(llm_d.manifest(found, "it"))}


@pytest.mark.parametrize("name", ["colocated", "pd"])
def test_llm_d_gets_all_gpus_of_the_deployment_and_labels_what_serves(name: str) -> None:
    found = sets(plan("vllm", name))
    total = 0
    for spec in found.values():
        template = spec["leaderWorkerTemplate"]
        [container] = template["workerTemplate"]["spec"]["containers"]
        total += spec["replicas"] * template["size"] * gpus(container)
        serving = template.get("leaderTemplate", template["workerTemplate"])
        assert serving["metadata"]["labels"][llm_d.GUIDE_LABEL] == "it"
    assert total == deployment("vllm", name)["gpus"]
    values = yaml.safe_load(llm_d.router_values("it"))
    assert values["router"]["modelServers"]["matchLabels"] == {llm_d.GUIDE_LABEL: "it"}


def test_decode_of_llm_d_has_a_sidecar_before_its_port_and_prefill_none() -> None:
    found = sets(plan("vllm", "pd"))
    prefill, decode = (
        found[f"it-{role}"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
        for role in ("prefill", "decode")
    )
    assert "initContainers" not in prefill
    [sidecar] = decode["initContainers"]
    [ports] = sidecar["ports"]
    assert ports["containerPort"] == prefill["containers"][0]["ports"][0]["containerPort"]
    assert f"--vllm-port={decode['containers'][0]['ports'][0]['containerPort']}" in sidecar["args"]


def test_nodes_with_ranks_of_their_own_serve_and_others_follow_the_first() -> None:
    spread = plan("vllm", "colocated")
    [engine] = spread.engines
    found = sets(spread)["it-serve"]["leaderWorkerTemplate"]
    assert "leaderTemplate" not in found
    assert "--data-parallel-hybrid-lb" in found["workerTemplate"]["spec"]["containers"][0]["args"][0]
    whole = replace(spread, engines=(replace(engine, tp=16, dp=1, moe_tp=16, ep=1),))
    found = sets(whole)["it-serve"]["leaderWorkerTemplate"]
    assert "labels" not in found["workerTemplate"].get("metadata", {})
    assert "--headless" in found["workerTemplate"]["spec"]["containers"][0]["args"][0]
