"""One job of a sweep, computed in whichever process it lands: a result, or the reason why there is none."""

import json
import platform
import time
import traceback
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from afd_dse.errors import InputError
from afd_dse.results.api import optimize
from afd_dse.results.deployment import METRIC_NAMES
from afd_dse.spec.load import load_job
from afd_dse.sweeps.address import fingerprint

Row = dict[str, Any]
Status = Literal["feasible", "infeasible", "bad_input", "failed"]
METRICS = ("gpus", *(name for name, _, _ in METRIC_NAMES))


@dataclass(frozen=True, slots=True)
class Task:
    """A job (as a document) to compute, under its address, by the package with this fingerprint.

    ``helper`` numbers the tasks of one job whose processes share its study.
    """

    address: str
    job: Mapping[str, Any]
    fingerprint: Mapping[str, str]
    helper: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a task.

    ``result`` is the text of ``result.json``, compressed with zlib, empty where there is none; ``rows`` its summary,
    one a mode. ``reason`` says in one line why there is no result, or why nothing is feasible, ``trace`` where an
    unexpected error came from.
    """

    address: str
    status: Status
    rows: tuple[Row, ...] = ()
    result: bytes = b""
    reason: str = ""
    trace: str = ""
    seconds: float = 0.0
    host: str = ""


def compute(task: Task) -> Outcome:
    """Compute a task. Never raises: one job must not stop the others."""
    began, host = time.monotonic(), platform.node()

    def without(status: Status, reason: str, trace: str = "") -> Outcome:
        seconds = time.monotonic() - began
        line = " ".join(reason.split())
        return Outcome(task.address, status, (), b"", line, trace, seconds, host)

    if different := [name for name, value in fingerprint().items() if task.fingerprint.get(name) != value]:
        return without(
            "failed", f"{host} has another afd-dse ({', '.join(different)} differ); install the same"
        )
    try:
        document = optimize(load_job(task.job), processes=1).document
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    except InputError as error:
        return without("bad_input", "; ".join(str(problem) for problem in error.problems))
    except Exception as error:
        return without("failed", f"{type(error).__name__}: {error}", traceback.format_exc())
    status: Status = "infeasible" if document["best"] is None else "feasible"
    result = zlib.compress(text.encode())
    rows, seconds = tuple(rows_of(document)), time.monotonic() - began
    return Outcome(task.address, status, rows, result, why_not(document), "", seconds, host)


def why_not(document: Mapping[str, Any]) -> str:
    """Of a result without a feasible deployment what breaks the nearest miss, else nothing."""
    if document["best"] is not None:
        return ""
    misses = document["nearest_misses"]
    return str(misses[-1]["reason"] if misses else document["modes"][0]["reason"])


def rows_of(document: Mapping[str, Any]) -> Iterator[Row]:
    """The summary of a result: for every mode its best deployment, or nearest miss, in the words of the result."""
    winner = document["best"]["mode"] if document["best"] is not None else None
    for entry in document["modes"]:
        d = document["best_per_mode"][entry["name"]]
        yield {
            "mode": entry["name"],
            "partition": entry["partition"],
            "best": entry["name"] == winner,
            "deployment": d.get("label"),
            "feasible": bool(d["feasible"]),
            **{name: d.get(name) for name in METRICS},
            "binding": (d.get("binding") or {}).get("constraint"),
            "reason": entry["reason"] or "",
        }
