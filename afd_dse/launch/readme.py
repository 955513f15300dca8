"""What a folder of launch files says of itself: what it starts, what that takes, and in which order."""

from collections.abc import Mapping, Sequence
from typing import Any

from afd_dse.launch import dynamo, llm_d, sglang, trtllm, vllm
from afd_dse.launch.placement import Place
from afd_dse.launch.plan import ATTENTION, FFN, Engine, Plan
from afd_dse.results.words import number

_ENTRANCES = {  # ports of a router, and of an engine alone
    "vllm": (vllm.ROUTER_PORT, vllm.PORT),
    "sglang": (sglang.ROUTER_PORT, sglang.PORT),
    "trtllm": (trtllm.ROUTER_PORT, trtllm.PORT),
}
# Frameworks whose engine of several nodes is started from its first one.
_FROM_THE_FIRST = ("trtllm",)
# Frameworks that bring neither NIXL nor DeepEP, and roles that exchange tokens by means of their own.
_BARE = ("vllm", "sglang")
_SPLIT = (ATTENTION, FFN)
_GUIDES = "https://github.com/llm-d/llm-d"


def readme(
    deployment: Mapping[str, Any],
    plan: Plan,
    target: str,
    framework: str,
    places: Mapping[str, Sequence[Place]],
    *,
    conditions: Sequence[str],
    warnings: Sequence[str],
) -> str:
    """The text, in Markdown."""
    lines = [f"# {plan.checkpoint} as {deployment['label']} on {target}", "", deployment["description"], ""]
    lines += [
        f"Estimated: {number(deployment['tokens_per_s_per_gpu'])} tokens/s per GPU on {deployment['gpus']} GPUs, TPOT "
        f"{number(deployment['tpot_ms'])} ms, TTFT {number(deployment['ttft_percentile_ms'])} ms, "
        f"{number(deployment['requests_per_s'])} requests/s.",
        "",
    ]
    lines += _bullets("It takes", [*conditions, *_beside(plan, framework)])
    lines += _bullets("Before you start", warnings)
    lines += [
        f"Requests of up to {plan.longest:,} tokens are served, prompt and output; a batch may exceed its mean by "
        "three standard deviations.",
        "",
    ]
    steps = _on_kubernetes(target) if target not in _ENTRANCES else _by_hand(plan, framework, places)
    return "\n".join([*lines, "## Start", "", *steps, ""])


def _beside(plan: Plan, framework: str) -> list[str]:
    """What is installed beside a framework that does not bring it."""
    if framework not in _BARE:
        return []
    exchanges = any(engine.role not in _SPLIT and engine.dp > 1 and engine.ep > 1 for engine in plan.engines)
    found = ["NIXL, which hands the KV cache over"] if plan.hands_over else []
    return [*found, *(["DeepEP, which exchanges tokens of experts"] if exchanges else [])]


def _bullets(title: str, items: Sequence[str]) -> list[str]:
    return [f"{title}:", "", *(f"- {item}" for item in items), ""] if items else []


def _by_hand(plan: Plan, framework: str, places: Mapping[str, Sequence[Place]]) -> list[str]:
    lines = ["Copy this folder to all nodes. Then, on each of them:", "", "```"]
    for engine in plan.engines:
        lines += _commands(engine, places[engine.role], heads=framework in _FROM_THE_FIRST)
    lines += ["```", ""]
    router, alone = _ENTRANCES[framework]
    several = sum(len(found) for found in places.values())
    if several == 1:
        [(_, [place])] = places.items()
        return [*lines, f"Requests go to http://{place.address(alone)}/v1."]
    if plan.hands_over or framework in ("vllm", "sglang"):
        return [*lines, f"`bash router.sh` takes the requests, on port {router} of the node that it runs on."]
    return [
        *lines,
        "Any balancer of HTTP requests may stand in front: TensorRT-LLM has none for whole engines.",
    ]


def _commands(engine: Engine, places: Sequence[Place], *, heads: bool) -> list[str]:
    """A command a node of every engine, or one an engine from its first node."""
    return [
        f"{host}: bash {engine.role}.sh {number_}" + (f" {rank}" if engine.nodes > 1 and not heads else "")
        for number_, place in enumerate(places)
        for rank, host in enumerate(place.hosts[:1] if heads else place.hosts)
    ]


def _on_kubernetes(target: str) -> list[str]:
    if target == "dynamo":
        return [
            f"On a cluster with Dynamo {dynamo.VERSION} or newer (multi-node engines need Grove or LeaderWorkerSet):",
            "",
            "```sh",
            "kubectl apply -f deployment.yaml",
            "```",
        ]
    guide = "guides/pd-disaggregation/router/pd-disaggregation.values.yaml"
    return [
        f"On a cluster with LeaderWorkerSet; the router's chart and values are those of [llm-d]({_GUIDES}), from a "
        "checkout of it (without PD leave the second `-f` out):",
        "",
        "```sh",
        "kubectl apply -f modelserver.yaml",
        "helm install router oci://ghcr.io/llm-d/charts/llm-d-router-standalone \\",
        f"  -f guides/recipes/router/base.values.yaml -f {guide} -f router.values.yaml",
        "```",
        "",
        f"Images: {llm_d.IMAGE}, {llm_d.SIDECAR}. Add what your nodes need for RDMA (device, `NCCL_*`, `UCX_*`).",
    ]
