"""Data types as a choice: the jobs that it stands for, which of them can run, and which one a deployment means."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from afd_dse.architecture.model import Gqa
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Scenario
from afd_dse.errors import InputError, Problem
from afd_dse.operators.borrowing import measured_under
from afd_dse.results.deployment import types_of
from afd_dse.results.words import types_short, types_words
from afd_dse.spec.job import Job
from afd_dse.spec.suggest import choose

_KERNELS = {"gemm": ("gemm", "gemm_dtype"), "moe": ("moe", "moe_dtype")}
_BETWEEN = " · "  # label and types
_ATTENTION = ("context_attention", "attention_dtype")


@dataclass(frozen=True, slots=True)
class Combination:
    """One combination of data types: its job, and its scenario, None where it is left out for a ``reason``."""

    job: Job
    types: Mapping[str, str | None]
    scenario: Scenario | None
    reason: str | None


def combinations(job: Job) -> list[Combination]:
    """All combinations of the data types that ``job`` lists, one job each; those that cannot run say why.

    Left out is what a pool cannot compute in, what no kernel of the framework was measured in, and what is the same as
    another combination (a dense model has no experts). Raises :class:`InputError` where none is left.
    """
    found: list[Combination] = []
    problems: list[Problem] = []
    seen: dict[tuple[str, ...], str] = {}
    for quantization in job.quantization.alternatives():
        one = job.model_copy(update={"quantization": quantization})
        asked = {role: getattr(quantization, role) for role in job.quantization.choices}
        try:
            scenario = scenario_from_job(one)
        except InputError as error:
            if any(not problem.field.startswith("quantization") for problem in error.problems):
                raise
            problems += error.problems
            why = "; ".join(
                f"{p.field.removeprefix('quantization.')} {p.value} {p.message}" for p in error.problems
            )
            found.append(Combination(one, asked, None, why))
            continue
        unknown = list(_not_run(scenario, asked))
        problems += unknown
        why_not = unknown[0].message if unknown else None
        key = tuple(dtype for role, dtype in types_of(scenario).items() if role != "moe" or scenario.moe)
        if why_not is None and key in seen:
            why_not = f"the same as {seen[key]}: the model has no routed experts"
        seen.setdefault(key, types_words(asked))
        found.append(Combination(one, asked, scenario if why_not is None else None, why_not))
    if not any(entry.scenario for entry in found):
        raise InputError(list({str(problem): problem for problem in problems}.values()))
    return found


def _not_run(scenario: Scenario, asked: Mapping[str, str | None]) -> Iterator[Problem]:
    """Of the roles with a choice those in whose type no kernel of the framework was ever measured."""
    framework = scenario.framework.name
    kernels = dict(_KERNELS)
    if all(isinstance(kind.attention, Gqa) for kind in scenario.model.kinds):
        kernels["attention"] = _ATTENTION
    for role, dtype in asked.items():
        if role not in kernels or dtype is None or (role == "moe" and scenario.moe is None):
            continue
        if not measured_under(framework, *kernels[role], dtype):
            yield Problem(
                f"quantization.{role}",
                dtype,
                f"no {role} kernel of {framework} was measured in {dtype} on any accelerator: whether it runs is not "
                "known",
                "list another type, or give this one alone to search it all the same",
            )


def narrowed(job: Job, deployment: Mapping[str, Any]) -> Job:
    """``job`` with the data types that ``deployment`` was found with, where the job lists several.

    Raises :class:`InputError` where the deployment does not say, or says what the job does not list.
    """
    choices = job.quantization.choices
    if not choices:
        return job
    given = deployment.get("quantization")
    remedy = (
        "add e.g. quantization: {" + ", ".join(f"{role}: {types[0]}" for role, types in choices.items()) + "}"
    )
    if not isinstance(given, Mapping):
        raise InputError(
            Problem("quantization", given, "the job lists several data types, this needs one", remedy)
        )
    problems = []
    for role, types in choices.items():
        value = given.get(role)
        if value is None:
            problems.append(
                Problem(f"quantization.{role}", None, "the job lists several, one is needed", remedy)
            )
        elif value not in types:
            message = "the job does not list this type"
            problems.append(Problem(f"quantization.{role}", value, message, choose(str(value), types)))
    if problems:
        raise InputError(problems)
    picked = {role: given[role] for role in choices}
    return job.model_copy(update={"quantization": job.quantization.model_copy(update=picked)})


def suffix(types: Mapping[str, str | None]) -> str:
    """What stands behind the label of a deployment found with one of several combinations of types."""
    return f"{_BETWEEN}{types_short(types)}"


def plain_label(deployment: Mapping[str, Any]) -> str:
    """The label of a deployment without its types."""
    return str(deployment["label"]).partition(_BETWEEN)[0]


def labelled(deployment: dict[str, Any], job: Job) -> dict[str, Any]:
    """``deployment`` of ``job`` with its types in its label, where the job lists several."""
    types = {role: deployment["quantization"][role] for role in job.quantization.choices}
    return deployment | {"label": deployment["label"] + suffix(types)} if types else deployment
