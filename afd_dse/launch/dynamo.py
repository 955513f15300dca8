"""Dynamo: a DynamoGraphDeployment for Kubernetes, whatever engine runs in it.

``nvidia.com/v1beta1`` as Dynamo serves it since 1.2 (deploy/operator/api/v1beta1). What an engine of several nodes
takes to find its peers is the operator's business.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from afd_dse.launch import sglang, trtllm, vllm
from afd_dse.launch.plan import DECODE, PREFILL, SERVE, Engine, Plan
from afd_dse.launch.shell import Option, option, yaml_text

# Its images hold vLLM 0.31, SGLang 0.5.21 and TensorRT-LLM 1.3.0rc29.
VERSION = "1.6.0"
ROLES = (SERVE, PREFILL, DECODE)
"""Roles that it knows."""
_REGISTRY = "nvcr.io/nvidia/ai-dynamo"
_IMAGES = {"vllm": "vllm-runtime", "sglang": "sglang-runtime", "trtllm": "tensorrtllm-runtime"}
# Kubernetes secret with the token for gated checkpoints, as Dynamo's guides name it.
_SECRET = "hf-token-secret"
_FOLDER, _CONFIGURATIONS = "/engine_configs", "engine-configs"


def manifest(plan: Plan, framework: str, name: str) -> str:
    """The resource, with the engines' configurations where they are files."""
    image = f"{_REGISTRY}/{_IMAGES[framework]}:{VERSION}"
    frontend = {
        "name": "Frontend",
        "type": "frontend",
        "replicas": 1,
        "podTemplate": {"spec": {"containers": [{"name": "main", "image": image}]}},
    }
    resource = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {
            "backendFramework": framework,
            "components": [frontend, *(_component(plan, e, framework, image, name) for e in plan.engines)],
        },
    }
    if framework != "trtllm":
        return yaml_text(resource)
    files = {f"{engine.role}.yaml": yaml_text(trtllm.configuration(plan, engine)) for engine in plan.engines}
    metadata = {"name": _volume(name)}
    return yaml_text({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files}, resource)


def _volume(name: str) -> str:
    return f"{name}-{_CONFIGURATIONS}"


def _component(plan: Plan, engine: Engine, framework: str, image: str, name: str) -> dict[str, Any]:
    environment = sglang.environment(plan, engine) if framework == "sglang" else {}
    variables = {"env": [{"name": key, "value": value} for key, value in environment.items()]}
    container: dict[str, Any] = {
        "name": "main",
        "image": image,
        "command": ["python3", "-m", f"dynamo.{framework}"],
        "args": [word for one in _OPTIONS[framework](plan, engine) for word in one],
        **(variables if environment else {}),
        "envFrom": [{"secretRef": {"name": _SECRET}}],
        "resources": {"limits": {"nvidia.com/gpu": str(engine.gpus_per_node)}},
    }
    pod: dict[str, Any] = {"containers": [container]}
    if framework == "trtllm":
        container["volumeMounts"] = [{"name": _CONFIGURATIONS, "mountPath": _FOLDER, "readOnly": True}]
        pod["volumes"] = [{"name": _CONFIGURATIONS, "configMap": {"name": _volume(name)}}]
    several = {"multinode": {"nodeCount": engine.nodes}} if engine.nodes > 1 else {}
    return {
        "name": engine.role,
        "type": "worker" if engine.role == SERVE else engine.role,
        "replicas": engine.replicas,
        **several,
        "podTemplate": {"spec": pod},
    }


def _of_vllm(plan: Plan, engine: Engine) -> list[Option]:
    return [option("--model", plan.checkpoint), *vllm.options(plan, engine), *_role(engine)]


def _of_sglang(plan: Plan, engine: Engine) -> list[Option]:
    names = [option("--model-path", plan.checkpoint), option("--served-model-name", plan.checkpoint)]
    # The role is among SGLang's own options.
    return [*names, *sglang.options(plan, engine, before_0_5_22=True)]


def _of_trtllm(plan: Plan, engine: Engine) -> list[Option]:
    names = [option("--model-path", plan.checkpoint), option("--served-model-name", plan.checkpoint)]
    return [*names, option("--extra-engine-args", f"{_FOLDER}/{engine.role}.yaml"), *_role(engine)]


def _role(engine: Engine) -> Sequence[Option]:
    return [] if engine.role == SERVE else [option("--disaggregation-mode", engine.role)]


_OPTIONS: Mapping[str, Callable[[Plan, Engine], list[Option]]] = {
    "vllm": _of_vllm,
    "sglang": _of_sglang,
    "trtllm": _of_trtllm,
}
