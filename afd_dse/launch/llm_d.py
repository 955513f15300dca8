"""llm-d: LeaderWorkerSets of vLLM for Kubernetes, and what its router is told of them.

As the guides of llm-d deploy engines since 0.7 (guides/pd-disaggregation, guides/wide-ep-lws): a set a role, whose pods
the router finds by their labels; beside decode a sidecar fetches prompts from prefill.
"""

from typing import Any

from afd_dse.launch import vllm
from afd_dse.launch.plan import DECODE, PREFILL, SERVE, Engine, Plan
from afd_dse.launch.shell import Expression, Option, command, option, yaml_text

ROLES = (SERVE, PREFILL, DECODE)
"""Roles that it knows."""
IMAGE, SIDECAR = "docker.io/vllm/vllm-openai:v0.33.0", "ghcr.io/llm-d/llm-d-routing-sidecar:v0.7.1"
GUIDE_LABEL, ROLE_LABEL = "llm-d.ai/guide", "llm-d.ai/role"
PORT, _BEHIND_SIDECAR, _KV_PORT, _RPC_PORT = 8000, 8200, 5600, 5555
# Kubernetes secret with the token for gated checkpoints, as llm-d's guides name it.
_SECRET = "llm-d-hf-token"
_SHARED_MEMORY = "32Gi"
# Seconds between two looks whether an engine has started, and how many: loading takes up to an hour.
_PERIOD_S, _LOOKS = 10, 360


def manifest(plan: Plan, name: str) -> str:
    """A LeaderWorkerSet a role."""
    return yaml_text(*(_set(plan, engine, name) for engine in plan.engines))


def router_values(name: str) -> str:
    """Values for the router's chart, after those of llm-d's guide: which pods it sends requests to."""
    return yaml_text({"router": {"modelServers": {"matchLabels": {GUIDE_LABEL: name}}}})


def _set(plan: Plan, engine: Engine, name: str) -> dict[str, Any]:
    labels = {"llm-d.ai/inference-serving": "true", GUIDE_LABEL: name}
    if engine.role != SERVE:
        labels[ROLE_LABEL] = engine.role
    pod = _pod(plan, engine)
    serving = {"metadata": {"labels": labels}, "spec": pod}
    template: dict[str, Any] = {"size": engine.nodes, "workerTemplate": serving}
    if engine.nodes > 1 and not _each_node_serves(engine):
        # Only the first pod takes requests: the others are none that the router should find.
        template = {"size": engine.nodes, "leaderTemplate": serving, "workerTemplate": {"spec": pod}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": f"{name}-{engine.role}"},
        "spec": {"replicas": engine.replicas, "leaderWorkerTemplate": template},
    }


def _each_node_serves(engine: Engine) -> bool:
    """Whether every node has whole data parallel ranks, and so answers requests itself."""
    return engine.dp % engine.nodes == 0


def _port(engine: Engine) -> int:
    return _BEHIND_SIDECAR if engine.role == DECODE else PORT


def _pod(plan: Plan, engine: Engine) -> dict[str, Any]:
    gpus = {"nvidia.com/gpu": str(engine.gpus_per_node)}
    address = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    token = {"valueFrom": {"secretKeyRef": {"name": _SECRET, "key": "HF_TOKEN"}}}
    probe = {"port": _port(engine)}
    container = {
        "name": "modelserver",
        "image": IMAGE,
        "command": ["/bin/bash", "-c"],
        "args": [_start(plan, engine)],
        "env": [
            {"name": "HF_TOKEN", **token},
            *([{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", **address}] if plan.hands_over else []),
        ],
        "ports": [
            {"name": "modelserver", "containerPort": _port(engine)},
            *([{"name": "nixl", "containerPort": _KV_PORT}] if plan.hands_over else []),
        ],
        "startupProbe": {
            "httpGet": {"path": "/health", **probe},
            "periodSeconds": _PERIOD_S,
            "failureThreshold": _LOOKS,
        },
        "readinessProbe": {"httpGet": {"path": "/v1/models", **probe}, "periodSeconds": _PERIOD_S},
        "resources": {"limits": gpus, "requests": gpus},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod: dict[str, Any] = {
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}}],
    }
    if engine.role == DECODE:
        sidecar = {
            "name": "routing-proxy",
            "image": SIDECAR,
            "args": [
                f"--port={PORT}",
                f"--vllm-port={_BEHIND_SIDECAR}",
                "--connector=nixlv2",
                "--secure-proxy=false",
            ],
            "ports": [{"name": "sidecar", "containerPort": PORT}],
            "restartPolicy": "Always",
        }
        pod = {"initContainers": [sidecar], **pod}
    return pod


def _start(plan: Plan, engine: Engine) -> str:
    lines: list[str] = []
    options: list[Option] = [option("--port", _port(engine)), *vllm.options(plan, engine)]
    if engine.nodes > 1 and _each_node_serves(engine):
        local = engine.dp // engine.nodes
        options += [
            ("--data-parallel-hybrid-lb",),
            option("--data-parallel-size-local", local),
            ("--data-parallel-start-rank", Expression(f"$((LWS_WORKER_INDEX * {local}))")),
            ("--data-parallel-address", Expression('"$LWS_LEADER_ADDRESS"')),
            option("--data-parallel-rpc-port", _RPC_PORT),
        ]
    elif engine.nodes > 1:
        lines.append('NODE=(); if [ "$LWS_WORKER_INDEX" -gt 0 ]; then NODE=(--headless); fi')
        options += [
            option("--nnodes", engine.nodes),
            ("--node-rank", Expression('"$LWS_WORKER_INDEX"')),
            ("--master-addr", Expression('"$LWS_LEADER_ADDRESS"')),
            (Expression('"${NODE[@]}"'),),
        ]
    return "\n".join([*lines, command(["exec", "vllm", "serve", plan.checkpoint], options)])
