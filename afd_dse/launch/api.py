"""From a result to the files that start one of its deployments."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Scenario
from afd_dse.errors import InputError, Problem
from afd_dse.launch import dynamo, llm_d, sglang, trtllm, vllm
from afd_dse.launch.placement import Place, places_of
from afd_dse.launch.plan import Plan, plan_of
from afd_dse.launch.readme import readme
from afd_dse.results.datatypes import narrowed
from afd_dse.results.parse import candidates_of
from afd_dse.results.policies import RELEASED, launchable
from afd_dse.results.words import not_run
from afd_dse.spec.job import Job
from afd_dse.spec.load import load_job
from afd_dse.spec.suggest import choose

TARGETS: Mapping[str, str | None] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "trtllm",
    "dynamo": None,
    "llm-d": "vllm",
}
"""What files are written for, and the framework that runs in it; None: that of the job."""
_SCRIPTS = {"vllm": vllm.scripts, "sglang": sglang.scripts, "trtllm": trtllm.scripts}
_ROLES = {"dynamo": dynamo.ROLES, "llm-d": llm_d.ROLES}
_LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """Files that start a deployment, by name; what a release needs for it, and what to know before."""

    target: str
    framework: str
    files: Mapping[str, str]
    conditions: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def document(self) -> dict[str, Any]:
        """As a JSON document."""
        return {
            "target": self.target,
            "framework": self.framework,
            "conditions": list(self.conditions),
            "warnings": list(self.warnings),
            "files": dict(self.files),
        }


def launch_files(
    result: Mapping[str, Any],
    deployment: Mapping[str, Any],
    *,
    target: str | None = None,
    checkpoint: str | None = None,
    hosts: Mapping[str, Sequence[str]] | None = None,
) -> LaunchFiles:
    """Files for ``target`` (absent: the job's framework) that start a ``deployment`` of a result's document.

    ``checkpoint`` is the model's name or path if not that of the job, ``hosts`` addresses of nodes by pool. Raises
    :class:`InputError` where the target does not run the deployment, with the best that it does.
    """
    job, target = _job_for(result, target)
    run = _run(job, deployment, target, checkpoint)
    if run is None:
        raise _refused(result, deployment, target)
    scenario, plan, needs = run
    places = places_of(plan, hosts)
    conditions = () if needs == RELEASED else tuple(needs.split("; "))
    warnings = (
        *_warnings(str(result["job"]["framework"]), scenario, deployment, checkpoint),
        *_crowded(scenario, plan, places),
        *(vllm.warnings(plan) if job.framework == "vllm" else ()),
    )
    text = readme(deployment, plan, target, job.framework, places, conditions=conditions, warnings=warnings)
    files = {"README.md": text, **_files(plan, target, job.framework, places)}
    return LaunchFiles(target, job.framework, files, conditions, warnings)


def _crowded(scenario: Scenario, plan: Plan, places: Mapping[str, Sequence[Place]]) -> list[str]:
    """What is to be known where engines that do not fill nodes need more of these than a pool has."""
    found = []
    for pool in scenario.pools:
        mine = (place for engine in plan.engines if engine.pool == pool.name for place in places[engine.role])
        need = len({host for place in mine for host in place.hosts})
        have = -(-pool.count // pool.accelerator.node_gpus)
        if need > have:
            size = pool.accelerator.node_gpus
            found.append(
                f"its engines do not share nodes of {size} GPUs: {need} are needed, {pool.name} has {have}"
            )
    return found


def _job_for(result: Mapping[str, Any], target: str | None) -> tuple[Job, str]:
    """The result's job with the framework that runs in ``target``, and the target; absent: the job's framework."""
    asked = load_job(dict(result["job"]))
    target = target or asked.framework
    if target not in TARGETS:
        raise InputError(Problem("--target", target, "no such target", choose(target, TARGETS)))
    return asked.model_copy(update={"framework": TARGETS[target] or asked.framework}), target


def _run(
    job: Job, deployment: Mapping[str, Any], target: str, checkpoint: str | None
) -> tuple[Scenario, Plan, str] | None:
    """What a deployment is rated in under ``job``, its engines and what a release needs; None where none runs it."""
    scenario = scenario_from_job(narrowed(job, deployment))
    needs = launchable(scenario, candidates_of(deployment, scenario), 0)
    if needs is None:
        return None
    plan = plan_of(scenario, deployment, checkpoint or _checkpoint(job, scenario))
    roles = _ROLES.get(target)
    runs = roles is None or {engine.role for engine in plan.engines} <= set(roles)
    return (scenario, plan, needs) if runs else None


def _checkpoint(job: Job, scenario: Scenario) -> str:
    """The job's model as an engine takes it: its name, or the folder of the ``config.json`` that the job names."""
    path = Path(job.model) if isinstance(job.model, str) else None
    if path is None or not path.is_absolute():
        return scenario.model.name
    return str(path.parent if path.suffix == ".json" else path)


def _files(plan: Plan, target: str, framework: str, places: Mapping[str, Sequence[Place]]) -> dict[str, str]:
    name = resource_name(plan.checkpoint)
    if target == "dynamo":
        return {"deployment.yaml": dynamo.manifest(plan, framework, name)}
    if target == "llm-d":
        return {
            "modelserver.yaml": llm_d.manifest(plan, name),
            "router.values.yaml": llm_d.router_values(name),
        }
    return _SCRIPTS[target](plan, places)


def resource_name(checkpoint: str) -> str:
    """A name that Kubernetes takes, after the checkpoint's."""
    short = re.sub(r"[^a-z0-9]+", "-", checkpoint.rsplit("/", 1)[-1].lower()).strip("-")
    return short[:_LONGEST_NAME].strip("-") or "model"


def best_run(result: Mapping[str, Any], target: str | None) -> Mapping[str, Any] | None:
    """The best deployment of a result that ``target`` runs (absent: the job's framework); None where it lists none."""
    job, target = _job_for(result, target)
    listed = (result["best"], result["best_launchable"], *result["ranking"])
    return next((one for one in listed if one and _run(job, one, target, "")), None)


def _refused(result: Mapping[str, Any], deployment: Mapping[str, Any], target: str) -> InputError:
    """Why a target does not run a deployment, and the best that it does."""
    best, remedy = best_run(result, target), "search with --launchable, or choose another --target"
    if best is not None:
        known = f"{best['label']} ({best['mode']})"
        remedy = f"leave --rank and --mode out for the best listed that it runs, {known}, or {remedy}"
    name = f"{deployment['label']} ({deployment['mode']})"
    return InputError(Problem("--target", target, not_run(target, name), remedy))


def _warnings(
    estimated: str, scenario: Scenario, deployment: Mapping[str, Any], checkpoint: str | None
) -> list[str]:
    """What to know of a deployment whose latencies were ``estimated`` for a framework."""
    found, framework = [], scenario.framework.name
    if framework != estimated:
        found.append(
            f"its latencies were estimated with kernels of {estimated}: search with framework {framework} to see what "
            "its own would reach"
        )
    if not deployment["feasible"]:
        found.append(f"it breaks a limit: {deployment['reason']}")
    stored, used = scenario.model.quantization, scenario.quantization
    for role in ("gemm", "moe"):
        mine, theirs = getattr(used, role), getattr(stored, role)
        if checkpoint is None and mine != theirs and (role == "gemm" or scenario.moe):
            found.append(
                f"it was estimated with {role} in {mine}, the checkpoint stores {theirs}: name one of that type with "
                "--checkpoint"
            )
    return found
