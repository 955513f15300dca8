"""The form of a job: its fields, the job that they describe, and what is wrong with each, in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from afd_dse.architecture.catalogue import model_names
from afd_dse.errors import InputError, Problem
from afd_dse.spec.catalogue import accelerator_names
from afd_dse.spec.document import parse_document
from afd_dse.spec.job import Job
from afd_dse.spec.load import load_job
from afd_dse.spec.modes import named_modes

Value = str | float | None


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the form: ``path`` is where it stands in a job; ``closed`` ``choices`` are all there are."""

    path: str
    label: str
    help: str
    kind: str = "number"
    choices: tuple[str, ...] = ()
    closed: bool = False
    default: Value = None


# A choice of two as the form shows it, and as the job has it.
_SWITCH = {"false": False, "true": True}


@lru_cache(maxsize=1)
def fields() -> tuple[Field, ...]:
    """All fields in the order of the form."""
    accelerators = tuple(accelerator_names())
    spaces = ("quick", "default", "wide")
    modes = ("all", *(mode.name for mode in named_modes()), "all_partitions")
    objectives = ("throughput_per_gpu", "total_throughput", "usd_per_mtok", "fewest_gpus")
    return (
        Field(
            "model",
            "Model",
            "catalogue name, or path of a Hugging Face config.json",
            "text",
            model_names(),
            default="deepseek-ai/DeepSeek-V3",
        ),
        Field(
            "framework",
            "Framework",
            "whose measured kernels",
            "text",
            ("trtllm", "sglang", "vllm"),
            True,
            "trtllm",
        ),
        Field(
            "cluster.pools[0].accelerator",
            "Accelerator",
            "of the first pool",
            "text",
            accelerators,
            default="b200_sxm",
        ),
        Field("cluster.pools[0].count", "GPUs", "in the first pool: a budget", default=64),
        Field("cluster.pools[0].usd_per_gpu_hour", "Price", "$ per GPU hour; empty: reference price"),
        Field(
            "cluster.pools[1].accelerator", "Second accelerator", "empty: a single pool", "text", accelerators
        ),
        Field("cluster.pools[1].count", "GPUs of the second pool", "a budget"),
        Field(
            "cluster.pools[1].usd_per_gpu_hour",
            "Price of the second pool",
            "$ per GPU hour; empty: reference price",
        ),
        Field("workload.input_tokens", "Input tokens", "new prompt tokens of a request", default=4096),
        Field("workload.output_tokens", "Output tokens", "generated tokens of a request", default=1024),
        Field("workload.prefix_tokens", "Cached prefix", "prompt tokens that are in the cache already"),
        Field("slo.ttft_ms", "TTFT limit", "ms; empty: none", default=2000),
        Field("slo.tpot_ms", "TPOT limit", "ms; empty: none", default=30),
        Field("slo.request_latency_ms", "Latency limit", "ms of the whole request; empty: none"),
        Field("slo.percentile", "Percentile", "of the requests, for TTFT; empty: 50"),
        Field("demand.requests_per_s", "Demand", "requests/s that must be served; empty: none"),
        Field(
            "search.objective", "Objective", "what is best", "text", objectives, True, "throughput_per_gpu"
        ),
        Field("search.modes", "Modes", "all, or names separated by commas", "text", modes, default="all"),
        Field("search.space", "Space", "quick for a first look; or a file", "text", spaces, default="quick"),
        Field(
            "search.launchable",
            "Launchable only",
            "true: what a release of the framework runs today",
            "text",
            tuple(_SWITCH),
            True,
            "false",
        ),
    )


def job_text(values: Mapping[str, Value], text: str = "") -> str:
    """The job file of the form's values, as a change of ``text`` where that is a job already.

    Empty fields are left out, so that the job's own defaults hold; what the form has no field for stays as it is.
    """
    job = _parsed(text)
    known = form_values(job)
    for path, value in values.items():
        if _same(value, known.get(path)):
            continue
        if value is None or value == "":
            _remove(job, path)
        else:
            _put(job, path, _modes(str(value)) if path == "search.modes" else _whole(value))
    pools = job.get("cluster", {}).get("pools", [])
    for index, pool in enumerate(pools):
        pool.setdefault("name", ("main", "second")[index] if index < 2 else f"pool{index}")
    return yaml.safe_dump(job, sort_keys=False, allow_unicode=True, width=100)


def _parsed(text: str) -> dict[str, Any]:
    try:
        return dict(parse_document(text, "job")) if text.strip() else {}
    except InputError:
        return {}


def _modes(text: str) -> str | list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    return names[0] if len(names) == 1 and names[0].startswith("all") else names


def _same(one: Value, other: Value) -> bool:
    return _spelt(one) == _spelt(other)


def _spelt(value: Value) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, int | float) else value.strip()


def _remove(job: dict[str, Any], path: str) -> None:
    """Drop a field, and a second pool of which nothing but its name is left."""
    *parents, last = path.split(".")
    at: Any = _get(job, ".".join(parents)) if parents else job
    if isinstance(at, dict):
        at.pop(last, None)
    pools = job.get("cluster", {}).get("pools", [])
    while len(pools) > 1 and not set(pools[-1]) - {"name"}:
        pools.pop()


def _whole(value: Value) -> Value:
    if isinstance(value, str):
        return _SWITCH.get(value, value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _put(job: dict[str, Any], path: str, value: Value | list[str]) -> None:
    """Set ``cluster.pools[1].count`` and the like, making what stands above it."""
    *parents, last = path.split(".")
    at: Any = job
    for step in parents:
        name, _, index = step.partition("[")
        if index:
            pools = at.setdefault(name, [])
            while len(pools) <= int(index.rstrip("]")):
                pools.append({})
            at = pools[int(index.rstrip("]"))]
        else:
            at = at.setdefault(name, {})
    at[last] = value


def form_values(job: Mapping[str, Any]) -> dict[str, Value]:
    """The form's values for a job, as far as the form has fields for them; the text holds the rest."""
    return {field.path: _simple(_get(job, field.path)) for field in fields()}


def _get(job: Any, path: str) -> Any:
    at = job
    for step in path.replace("]", "").replace("[", ".").split("."):
        if isinstance(at, Mapping):
            at = at.get(step)
        elif isinstance(at, Sequence) and not isinstance(at, str) and step.isdecimal():
            at = at[int(step)] if int(step) < len(at) else None
        else:
            return None
    return at


def _simple(value: Any) -> Value:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str | int | float) or value is None else None


def stored_text(job: Mapping[str, Any]) -> str:
    """The job of a result as a job file, without what is absent."""
    return yaml.safe_dump(_without_nothing(job), sort_keys=False, allow_unicode=True, width=100)


def _without_nothing(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {key: _without_nothing(item) for key, item in value.items() if item is not None}
        return {key: item for key, item in kept.items() if item not in ({}, [], ())}
    if isinstance(value, list | tuple):
        return [_without_nothing(item) for item in value]
    return value


def checked(text: str) -> tuple[Job | None, tuple[Problem, ...]]:
    """The job of a text, or everything that is wrong with it."""
    try:
        return load_job(parse_document(text, "job"), check_model=True), ()
    except InputError as error:
        return None, error.problems


def by_field(problems: Sequence[Problem]) -> tuple[dict[str, str], list[str]]:
    """Problems in words: those that belong to a field of the form, by its path, and the others."""
    at: dict[str, str] = {}
    others: list[str] = []
    paths = [field.path for field in fields()]
    for problem in problems:
        inside = (path for path in paths if f"{problem.field}.".startswith((f"{path}.", f"{path}[")))
        home = next(inside, None)
        words = f"{problem.message}; {problem.remedy}"
        if home is None:
            others.append(f"{problem.field}: {words}")
        else:
            at[home] = f"{at[home]} {words}" if home in at else words
    return at, others
