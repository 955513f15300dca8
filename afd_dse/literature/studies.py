"""Searches that papers report: which modes are feasible or best, how the best one splits, what fits into memory."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from afd_dse.architecture.catalogue import resolve_name
from afd_dse.errors import DatabaseError, InputError, Problem
from afd_dse.literature.answer import Answer, evaluator
from afd_dse.literature.cases import accelerator_of, cache_type, framework_of, job_of
from afd_dse.literature.names import ORDERED, preset_of
from afd_dse.literature.rows import Inputs, Row
from afd_dse.resources import operator_db_root, parse_yaml
from afd_dse.results.api import optimize
from afd_dse.results.result import Result
from afd_dse.spec.catalogue import load_accelerator
from afd_dse.spec.cells import ATTENTION_CELL, FFN_CELL, Partition, Phase, parse_partition
from afd_dse.spec.job import Job
from afd_dse.spec.modes import resolve_mode

_EIGHT_BIT = {"gemm": "fp8_block", "moe": "fp8_block"}
# AIC++ extends a planner that takes a cache of eight bits for every checkpoint of eight bits (aiconfigurator 0.12).
_PLANNED = _EIGHT_BIT | {"kv_cache": "fp8"}
_GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Requests:
    """A workload with its limits, as a job's sections."""

    workload: Mapping[str, Any]
    slo: Mapping[str, Any]


def _requests(inputs: Inputs) -> Requests:
    """The workload that a row states itself."""
    workload: dict[str, Any] = {
        "input_tokens": _lengths(inputs, "isl", "input_tokens"),
        "output_tokens": _lengths(inputs, "osl", "output_tokens"),
        "prefix_tokens": inputs.number("prefix", "prefix_tokens", default=0.0),
    }
    if inputs.has("prefix_sharing"):
        workload["prefix_sharing"] = inputs.text("prefix_sharing")
    slo = {name: inputs.positive(name) for name in ("ttft_ms", "tpot_ms", "percentile") if inputs.has(name)}
    return Requests(workload, slo)


def _lengths(inputs: Inputs, name: str, other: str) -> Any:
    mean = inputs.positive(name, f"{name}_mean", other)
    return {"mean": mean, "cv": inputs.number(f"{name}_cv")} if inputs.has(f"{name}_cv") else mean


@lru_cache(maxsize=1)
def _published_workloads() -> dict[str, Requests]:
    """Workloads of the papers by name."""
    path = operator_db_root() / "catalogue" / "published_workloads.yaml"
    try:
        entries = parse_yaml(path.read_text(encoding="utf-8"))
        found = {name: figures for entry in entries.values() for name, figures in entry["workloads"].items()}
        limits = ("ttft_ms", "tpot_ms")
        return {
            name: Requests(
                {key: float(value) for key, value in figures.items() if key not in limits},
                {key: float(figures[key]) for key in limits},
            )
            for name, figures in found.items()
        }
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise DatabaseError(f"{path}: unusable catalogue of published workloads ({error})") from error


def _workload_named(text: str) -> Requests | None:
    """The published workload whose name ends ``text`` or stands in it."""
    for name, requests in _published_workloads().items():
        if re.search(rf"\b{name}\b", text, re.IGNORECASE):
            return requests
    return None


def _model_in(text: str) -> str | None:
    """The first word of ``text`` that names a catalogued model."""
    for word in re.findall(r"[\w./-]+", text):
        if not re.search(r"[A-Za-z]", word) or len(word) < 4:
            continue
        try:
            return resolve_name(word)
        except InputError:
            continue
    return None


def _model(row: Row) -> str:
    if row.inputs.has("model"):
        return row.inputs.text("model")
    named = _model_in(row.quantity)
    if named is None:
        raise InputError(Problem("inputs.model", None, "is missing", "name a model of the catalogue"))
    return named


def _gpus(row: Row, default: int | None = None) -> int:
    found = row.stated(r"(\d+)\s*[x×]\s*[A-Z]+\d+")
    return row.inputs.whole("gpus", default=int(found.group(1)) if found else default)


def _job(
    row: Row,
    model: str,
    requests: Requests,
    *,
    gpus: int,
    modes: Any = "all",
    space: str = "default",
    dtypes: dict[str, str] = _PLANNED,
) -> Job:
    """The job of one search; eight-bit weights, as these studies use them. ``inputs.space`` names another space."""
    return job_of(
        model,
        accelerator_of(row, "hardware"),
        framework=framework_of(row, model),
        gpus=gpus,
        workload=requests.workload,
        slo=requests.slo,
        quantization=dtypes | cache_type(row.inputs),
        search={
            "modes": modes,
            "objective": "total_throughput",
            "space": row.inputs.text("space", default=space),
        },
    )


def splits_a_layer(partition: Partition) -> bool:
    """Whether some phase has attention and FFN in different groups."""
    return any(partition.splits(phase) for phase in Phase)


def _afd(name: str) -> bool:
    return splits_a_layer(parse_partition(resolve_mode(name)[1]))


def _feasible(result: Result) -> dict[str, Mapping[str, Any]]:
    """The best feasible deployment of each mode."""
    found = result.document["best_per_mode"]
    return {name: row for name, row in found.items() if row is not None and row["feasible"]}


@evaluator
def mode_feasibility(row: Row) -> Answer:
    """Which modes meet the limits, and system tokens/s of the best one that splits attention from FFN (0: none)."""
    job = _job(row, _model(row), _requests(row.inputs), gpus=_gpus(row, 128))
    result = optimize(job)
    feasible = _feasible(result)
    split = {name: deployment for name, deployment in feasible.items() if _afd(name)}
    best = max((float(d["cluster_tokens_per_s"]) for d in split.values()), default=0.0)
    if not feasible:
        words = "none feasible"
    elif not split:
        words = "AFD not feasible, others are"
    else:
        words = "AFD feasible only" if len(split) == len(feasible) else "AFD and others feasible"
    shown = [
        f"{name} {float(d['cluster_tokens_per_s']):.0f} tok/s ({d['label']})" for name, d in feasible.items()
    ]
    missed = [
        f"{name}: {d['reason']}"
        for name, d in result.document["best_per_mode"].items()
        if d is not None and not d["feasible"]
    ]
    return Answer.of(words, best, note="; ".join([*shown, *missed]))


@evaluator
def mode_order(row: Row) -> Answer:
    """Modes by goodput on one workload; or over several, how often which mode is best and which is fastest."""
    return _best_modes(row) if row.inputs.has("workloads") else _goodput_order(row)


def _goodput_order(row: Row) -> Answer:
    names = row.inputs.texts("modes", default=list(ORDERED))
    compared = {name: preset_of(name) for name in names}
    modes = list(dict.fromkeys(compared.values()))
    job = _job(row, _model(row), _requests(row.inputs), gpus=_gpus(row), modes=modes, dtypes=_EIGHT_BIT)
    best = optimize(job).document["best_per_mode"]
    rates: dict[str, float] = {}
    notes = []
    for name, preset in compared.items():
        deployment = best[preset]
        if deployment is None or not deployment["feasible"]:
            notes.append(f"{name}: {'no layout' if deployment is None else deployment['reason']}")
            continue
        rates[name] = float(deployment["requests_per_s"]) * int(deployment["cluster_copies"])
        notes.append(f"{name} {rates[name]:.2f} requests/s ({deployment['label']})")
    if not rates:
        raise InputError(Problem("inputs", None, "no mode meets the limits", "; ".join(notes)))
    order = sorted(rates, key=rates.__getitem__, reverse=True)
    row.inputs.used.add("note")
    return Answer.of(" > ".join(order), note="; ".join(notes))


def _best_modes(row: Row) -> Answer:
    inputs = row.inputs
    models, workloads = inputs.items("models"), inputs.items("workloads")
    throughput: list[str] = []
    fastest: list[str] = []
    notes = []
    for model in models:
        for name in workloads:
            requests = _workload_named(str(name))
            if requests is None:
                known = ", ".join(_published_workloads())
                raise InputError(Problem("inputs.workloads", name, "is not known", f"use one of {known}"))
            unlimited = Requests(requests.workload, {})
            # Without limits nothing is pruned: a small space keeps the many searches short.
            result = optimize(_job(row, str(model), unlimited, gpus=_gpus(row, 128), space="quick"))
            best, front = result.document["best"], result.document["pareto"]
            if best is None:
                message = f"no layout holds {name}"
                raise InputError(Problem("inputs.models", model, message, "give more GPUs or memory"))
            quick = max(front, key=lambda point: float(point["tokens_per_s_per_user"]))
            throughput.append(best["mode"])
            fastest.append("AFD" if _afd(quick["mode"]) else quick["mode"])
            notes.append(
                f"{model} {name}: {best['mode']} {float(best['cluster_tokens_per_s']):.0f} tok/s; "
                f"{quick['mode']} {float(quick['tokens_per_s_per_user']):.0f} tok/s/user"
            )
    return Answer.of(_most(throughput), _most(fastest), note="; ".join(notes))


def _most(names: Sequence[str]) -> str:
    """``colocated on 4 of 6``: the most frequent name."""
    best = max(dict.fromkeys(names), key=list(names).count)
    return f"{best} on {list(names).count(best)} of {len(names)}"


# The ways to split decode that this literature compares; pools shared in other ways are not among them.
_DECODE_AFD = ["afd", "pd_afd", "pd_afd_both"]


@evaluator
def best_split(row: Row) -> Answer:
    """Decode attention and FFN GPUs of the deployment with the most system tokens/s that splits decode.

    Within the TPOT that the workload asks for; its TTFT is a matter of prefill.
    """
    found, notes = [], []
    for model, requests, stated in _split_cases(row):
        limits = {key: value for key, value in requests.slo.items() if key == "tpot_ms"}
        job = _job(row, model, Requests(requests.workload, limits), gpus=_gpus(row, 128), modes=_DECODE_AFD)
        best = optimize(job).document["best"]
        if best is None:
            found.append("none")
            notes.append(f"{stated}: no layout fits")
            continue
        sizes = [_cell_gpus(best, cells[Phase.DECODE].name) for cells in (ATTENTION_CELL, FFN_CELL)]
        found.append(f"{sizes[0]}A{sizes[1]}F")
        notes.append(
            f"{stated}: {best['label']} ({best['mode']}) {float(best['cluster_tokens_per_s']):.0f} tok/s"
        )
    return Answer.of(*found, note="; ".join(notes))


def _cell_gpus(deployment: Mapping[str, Any], cell: str) -> int:
    return sum(int(group["gpus"]) for group in deployment["groups"] if cell in group["cells"])


def _split_cases(row: Row) -> list[tuple[str, Requests, str]]:
    """Model and workload of each case: ``cases``, the row's, or the description's; the last workload named goes on."""
    if row.inputs.has("cases"):
        cases = [row.inputs.part("cases", case) for case in row.inputs.items("cases")]
        return [(case.text("model"), _requests(case), case.text("model")) for case in cases]
    if row.inputs.has("isl") or row.inputs.has("input_tokens"):
        alone = _model(row)
        return [(alone, _requests(row.inputs), alone)]
    found: list[tuple[str, Requests, str]] = []
    current: Requests | None = None
    for part in row.quantity.split(";"):
        model, lengths = _model_in(part), re.search(r"ISL\s*(\d+)(k?)\s*/\s*OSL\s*(\d+)(k?)", part)
        if lengths:
            isl, osl = (float(lengths.group(i)) * (1000.0 if lengths.group(i + 1) else 1.0) for i in (1, 3))
            current = Requests({"input_tokens": isl, "output_tokens": osl}, {})
        else:
            current = _workload_named(part) or current
        if model is not None and current is not None:
            found.append((model, current, part.strip()))
    if not found:
        raise InputError(Problem("inputs.cases", None, "is missing", "list models with isl, osl and prefix"))
    return found


@evaluator
def feasibility(row: Row) -> Answer:
    """Whether weights (``weights_gb`` in a mode) or a whole workload (colocated, then AFD) fit into memory."""
    return _weights_fit(row) if row.inputs.has("weights_gb") else _workload_fits(row)


def _weights_fit(row: Row) -> Answer:
    """Every group that holds FFN needs a copy of the experts; attention weights apart count as nothing."""
    inputs = row.inputs
    name, partition = resolve_mode(inputs.text("mode", default=_mode_in(row.quantity)), "inputs.mode")
    hardware = accelerator_of(row, "hardware")
    accelerator = load_accelerator(hardware if isinstance(hardware, str) else str(hardware["base"]))
    memory = inputs.positive("hbm_gib") * _GIB if inputs.has("hbm_gib") else accelerator.hbm_bytes
    groups = parse_partition(partition).groups
    copies = sum(any(cell in FFN_CELL for cell in group) for group in groups)
    needed, there = copies * inputs.positive("weights_gb") * 1e9, _gpus(row) * memory
    note = f"{copies} cop{'y' if copies == 1 else 'ies'} take {needed / 1e9:.0f} GB of {there / 1e9:.0f} GB in {name}"
    return Answer.of("feasible" if needed <= there else "infeasible (memory)", note=note)


def _mode_in(text: str) -> str | None:
    """The longest of up to three words of ``text`` that names a way to serve."""
    words = re.findall(r"[\w+-]+", text)
    for length in (3, 2, 1):
        for start in range(len(words) - length + 1):
            name = " ".join(words[start : start + length])
            try:
                preset_of(name)
            except InputError:
                continue
            return name
    return None


def _workload_fits(row: Row) -> Answer:
    requests, model = _requests(row.inputs), _model(row)
    modes = row.inputs.items("modes", default=["colocated", "afd"])
    found, notes = [], []
    for mode in modes:
        unlimited = Requests(requests.workload, {})
        job = _job(row, model, unlimited, gpus=_gpus(row, 128), modes=[mode])
        best = optimize(job).document["best_per_mode"][resolve_mode(mode)[0]]
        fits = best is not None and best["feasible"]
        found.append("feasible" if fits else "infeasible")
        if best is None or not best.get("groups"):
            notes.append(f"{mode}: {'no layout' if best is None else best['reason']}")
            continue
        fullest = max(float(group["memory_gib"]["total"]) for group in best["groups"])
        notes.append(
            f"{mode}: {best['label']} holds {fullest:.0f} GiB a GPU"
            + (f", {best['reason']}" if not fits else "")
        )
    return Answer.of(*found, note="; ".join(notes))
