"""A plan: deployments found for every class and hardware, then the cheapest schedule that serves the demand."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import afd_dse
from afd_dse.errors import InputError, Problem
from afd_dse.operators.latency import FloatArray
from afd_dse.planning.load import demand_of
from afd_dse.planning.options import Options as Choices
from afd_dse.planning.options import Supply, cheapest, useful
from afd_dse.planning.program import Schedule, Terms, most_load, solve
from afd_dse.planning.report import bill, break_even, failures, gpus_by_hardware, totals, usd_by_period
from afd_dse.planning.sensitivity import other_demands, other_estimates
from afd_dse.results.api import optimize
from afd_dse.results.files import write_files
from afd_dse.results.simulate import Options, simulate
from afd_dse.results.words import moment, number, percent
from afd_dse.spec.demand import DemandFile, Hardware, RequestClass
from afd_dse.spec.job import Job

CAPACITY = "capacity.json"
RATES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""Shares of its estimated rate at which a deployment is simulated until it keeps the SLO."""
_KEPT = 2  # deployments of a class on one hardware, besides the smallest
_SIMULATED = 4000  # requests of such a simulation
# Deployments of this size and smaller are searched for on their own: small copies follow the demand closely.
_NODE = 8
_FORMAT = 3
_USED = (
    "label",
    "mode",
    "partition",
    "gpus",
    "requests_per_s",
    "tokens_per_s",
    "tokens_per_s_per_user",
    "tokens_per_s_per_gpu",
    "ttft_ms",
)
_MORE = (
    "quantization",
    "intervals",
    "ttft_percentile_ms",
    "tpot_ms",
    "usd_per_mtok",
    "batch_size",
    "chunk_tokens",
    "policy",
    "groups",
)


def plan(
    file: DemandFile, *, folder: Path | None = None, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Plan the demand of ``file``.

    What the searches find is kept in ``folder``, if given, so that an interrupted plan goes on where it was. A demand
    that the hardware cannot serve gives a document with ``feasible`` False, and what share of it can be served.
    """
    tell = progress or (lambda text: None)
    demand = demand_of(file)
    if not demand.any():
        message, remedy = (
            "no request falls into the horizon",
            "lengthen horizon.hours, or raise the factors there",
        )
        raise InputError(Problem("demand", file.demand.model_dump(exclude_none=True), message, remedy))
    options, without = _options(file, folder, tell)
    supply = supply_of(file)
    terms = Terms(file.horizon.period_hours, file.rules.headroom, file.rules.redundancy)
    classes = tuple(entry.name for entry in file.classes)
    peak = int(demand.sum(axis=0).argmax())
    document: dict[str, Any] = {
        "version": afd_dse.__version__,
        "rating": {"requests": _SIMULATED, "seed": Options().seed, "shares": list(RATES)},
        "demand": file.model_dump(mode="json"),
        "classes": list(classes),
        "requests_per_s": demand.tolist(),
        "peak_period": peak,
        "without_deployment": without,
        "options": [
            {"class": classes[k], "hardware": supply.names[h], **deployment}
            for k, h, deployment in zip(options.of_class, options.hardware, options.deployments, strict=True)
        ],
    }
    served = {entry["class"] for entry in document["options"]}
    missing = [name for name in classes if name not in served]
    if missing:
        reason = f"no deployment on any hardware meets the SLO of {', '.join(missing)}"
        return document | {"feasible": False, "reason": reason, "most_load": 0.0}
    tell("solving the schedule")
    most = most_load(options, supply, demand[:, peak], terms)
    schedule = solve(options, supply, demand, terms)
    document["most_load"] = most
    document["inverse"] = {name: float(most * demand[k, peak]) for k, name in enumerate(classes)}
    document["break_even"] = break_even(options, supply, classes)
    if schedule is None:
        busiest = moment(peak * terms.period_hours)
        reason = f"all the hardware serves {percent(most)} of the demand of the busiest period ({busiest})"
        return document | {"feasible": False, "reason": reason}
    tell("what if the demand were another")
    return document | {
        "feasible": True,
        "reason": None,
        "totals": totals(options, supply, demand, terms, schedule),
        "hardware": bill(options, supply, terms, schedule),
        "periods": [
            row | {"usd": float(usd)}
            for row, usd in zip(
                _periods(file, options, supply, demand, schedule),
                usd_by_period(options, supply, terms, schedule),
                strict=True,
            )
        ],
        "gpus": {
            name: row.astype(int).tolist()
            for name, row in zip(supply.names, gpus_by_hardware(options, supply, schedule), strict=True)
        },
        "failures": failures(options, supply, demand, schedule, classes),
        "sensitivity": other_demands(options, supply, demand, terms, schedule.usd),
        "estimates": other_estimates(options, supply, demand, terms, schedule.usd),
    }


def supply_of(file: DemandFile) -> Supply:
    """The hardware of a demand file as columns."""
    kinds = file.hardware
    accelerators = [entry.resolved for entry in kinds]
    return Supply(
        names=tuple(entry.name for entry in kinds),
        available=np.array([entry.count for entry in kinds], dtype=np.int64),
        usd_per_gpu_hour=np.array([a.usd_per_gpu_hour for a in accelerators]),
        power_w=np.array([a.power_w for a in accelerators]),
        reserved=np.array([entry.billing == "reserved" for entry in kinds]),
        start_hours=np.array([entry.start_hours for entry in kinds]),
        start_usd_per_gpu=np.array([entry.start_usd_per_gpu for entry in kinds]),
        domain_gpus=np.array([a.scale_up_gpus for a in accelerators], dtype=np.int64),
    )


def _options(
    file: DemandFile, folder: Path | None, tell: Callable[[str], None]
) -> tuple[Choices, list[dict[str, str]]]:
    """Deployments of every class on every hardware, and where there is none."""
    known = _Kept(folder)
    found: list[tuple[int, int, dict[str, Any]]] = []
    without = []
    for k, entry in enumerate(file.classes):
        for h, kind in enumerate(file.hardware):
            deployments: list[dict[str, Any]] = []
            reason = ""
            for size in sorted({min(_NODE, kind.count), kind.count}):
                tell(f"deployments of {entry.name} on {size} × {kind.name}")
                answer = known.answer(file, entry, kind, size)
                deployments += answer["deployments"]
                reason = answer["reason"] or reason
            found += [(k, h, deployment) for deployment in deployments]
            if not deployments:
                without.append({"class": entry.name, "hardware": kind.name, "reason": reason})
    options = cheapest(useful(_as_columns(found)), _KEPT)
    rated = []
    for row, deployment in enumerate(options.deployments):
        k, h = int(options.of_class[row]), int(options.hardware[row])
        tell(f"simulating {deployment['label']} of {file.hardware[h].name} with {file.classes[k].name}")
        share = known.rate(file.job(file.classes[k], file.hardware[h], deployment["gpus"]), deployment)
        if share > 0.0:
            less = {name: share * deployment[name] for name in ("requests_per_s", "tokens_per_s")}
            less["usd_per_mtok"] = deployment["usd_per_mtok"] / share
            rated.append((k, h, deployment | less | {"rated": share}))
    for k, entry in enumerate(file.classes):
        for h, kind in enumerate(file.hardware):
            if not any((k, h) == (a, b) for a, b, _ in rated) and any((k, h) == (a, b) for a, b, _ in found):
                reason = f"in simulation no deployment keeps the SLO at {RATES[-1]:.0%} of its estimated rate"
                without.append({"class": entry.name, "hardware": kind.name, "reason": reason})
    return useful(_as_columns(rated)), without


def _as_columns(found: Sequence[tuple[int, int, dict[str, Any]]]) -> Choices:
    columns = list(zip(*found, strict=True)) if found else [(), (), ()]
    return Choices(
        np.array(columns[0], dtype=np.int64),
        np.array(columns[1], dtype=np.int64),
        np.array([d["requests_per_s"] for d in columns[2]], dtype=np.float64),
        np.array([d["tokens_per_s"] for d in columns[2]], dtype=np.float64),
        np.array([d["gpus"] for d in columns[2]], dtype=np.int64),
        tuple(columns[2]),
    )


class _Kept:
    """Answers of searches, remembered in a file of ``folder`` by what they depend on."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._answers: dict[str, dict[str, Any]] = {}
        path = None if folder is None else folder / CAPACITY
        if path is not None and path.is_file():
            try:
                self._answers = dict(json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError):
                # A file that cannot be read only means that everything is searched again.
                self._answers = {}

    def answer(self, file: DemandFile, entry: RequestClass, kind: Hardware, size: int) -> dict[str, Any]:
        job = file.job(entry, kind, size)
        text = json.dumps([_FORMAT, job.model_dump(mode="json")], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        if key not in self._answers:
            result = optimize(job, confirm=0)
            rows = [*result.ranking, *(best for best in result.best_per_mode.values() if best["feasible"])]
            reason = "" if rows else _why(result.document)
            self._keep(key, {"deployments": [_short(row) for row in rows], "reason": reason})
        found: dict[str, Any] = self._answers[key]
        return found

    def rate(self, job: Job, deployment: Mapping[str, Any]) -> float:
        """The share of a deployment's estimated rate at which it keeps the SLO in simulation; 0 where it never does."""
        text = json.dumps([_FORMAT, job.model_dump(mode="json"), deployment], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        if key not in self._answers:
            self._keep(key, {"rate": _rated(job, deployment)})
        return float(self._answers[key]["rate"])

    def _keep(self, key: str, answer: dict[str, Any]) -> None:
        self._answers[key] = answer
        if self._folder is not None:
            write_files(self._folder, {CAPACITY: json.dumps(self._answers, allow_nan=False).encode()})


def _rated(job: Job, deployment: Mapping[str, Any]) -> float:
    for share in RATES:
        rate = share * deployment["requests_per_s"]
        if simulate(job, deployment, Options(requests=_SIMULATED, requests_per_s=rate))["met"]:
            return share
    return 0.0


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in (*_USED, *_MORE)}


def _why(document: Mapping[str, Any]) -> str:
    misses = document["nearest_misses"]
    return str(misses[-1]["reason"]) if misses else "no layout fits"


def _periods(
    file: DemandFile, options: Choices, supply: Supply, demand: FloatArray, schedule: Schedule
) -> list[dict[str, Any]]:
    """The schedule period by period: what runs, what starts and stops, how loaded each class is."""
    rows = []
    before = np.zeros(len(options), dtype=np.int64)
    for t in range(demand.shape[1]):
        copies = schedule.copies[:, t]
        capacity = np.zeros(demand.shape[0])
        np.add.at(capacity, options.of_class, options.requests_per_s * copies)
        rows.append(
            {
                "start_hours": t * file.horizon.period_hours,
                "gpus": int((copies * options.gpus).sum()),
                "running": [_copies(file, options, int(o), int(copies[o])) for o in np.flatnonzero(copies)],
                "starts": [
                    _copies(file, options, int(o), int(copies[o] - before[o]))
                    for o in np.flatnonzero(copies > before)
                ],
                "stops": [
                    _copies(file, options, int(o), int(before[o] - copies[o]))
                    for o in np.flatnonzero(copies < before)
                ],
                "load": {
                    entry.name: float(demand[k, t] / capacity[k]) if capacity[k] > 0.0 else 0.0
                    for k, entry in enumerate(file.classes)
                },
            }
        )
        before = copies
    return rows


def _copies(file: DemandFile, options: Choices, option: int, copies: int) -> dict[str, Any]:
    return {
        "option": option,
        "class": file.classes[options.of_class[option]].name,
        "hardware": file.hardware[options.hardware[option]].name,
        "label": options.deployments[option]["label"],
        "mode": options.deployments[option]["mode"],
        "copies": copies,
    }


def break_even_rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Class, hardware, deployment, mode, tokens/s/GPU, $/Mtok, $/GPU-hour and the price that breaks even, as text."""
    numbers = ("tokens_per_s_per_gpu", "usd_per_mtok", "usd_per_gpu_hour", "break_even_usd_per_gpu_hour")
    return [
        (
            *(str(row[name]) for name in ("class", "hardware", "label", "mode")),
            *("–" if row[name] is None else number(row[name]) for name in numbers),
        )
        for row in document["break_even"]
    ]
