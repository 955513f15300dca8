"""What a sweep found: one row for every job and mode, and which modes win where."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from afd_dse.results.result import COMPARED
from afd_dse.spec.sweep import Point
from afd_dse.sweeps.work import METRICS, Row, Status

COUNTED: tuple[str, ...] = ("feasible", "infeasible", "bad_input", "failed", "missing")
"""What can become of a job; ``missing``: not computed, because the sweep was interrupted."""
_TEXT = ("name", "status", "address", "mode", "partition", "deployment", "binding", "reason")


@dataclass(frozen=True, slots=True)
class Entry:
    """A job of a sweep and what became of it; ``rows`` one a mode, ``seconds`` of the computation."""

    point: Point
    address: str | None
    status: Status | str
    reason: str
    rows: Sequence[Row] = ()
    seconds: float | None = None

    @property
    def best(self) -> Row | None:
        """The row of the best mode, None where nothing is feasible."""
        return next((row for row in self.rows if row["best"]), None)

    @property
    def lead(self) -> float | None:
        """How far the best mode is ahead of the next one by the job's own objective, as a share; None without one."""
        if self.best is None or self.point.job is None:
            return None
        metric, _, less = COMPARED[self.point.job.search.objective]
        others = [row[metric] for row in self.rows if row["feasible"] and not row["best"] and row[metric]]
        if not others or not self.best[metric]:
            return None
        return float(min(others) / self.best[metric] - 1.0 if less else self.best[metric] / max(others) - 1.0)


def summary_table(entries: Iterable[Entry], axes: Sequence[str]) -> pd.DataFrame:
    """One row a job and mode: number and name of the job, its values by axis, metrics as results have them.

    A job without a result has one row, with its ``status`` and ``reason``.
    """
    rows = []
    for number, entry in enumerate(entries, start=1):
        head: Row = {"point": number, "name": entry.point.name}
        head |= {axis: entry.point.labels.get(axis) for axis in axes}
        head |= {"status": entry.status, "address": entry.address, "reason": entry.reason}
        rows += [head | row for row in entry.rows] or [head]
    columns = ["point", "name", *axes, "status", "mode", "best", "deployment", "feasible", *METRICS]
    columns += ["binding", "reason", "partition", "address"]
    table = pd.DataFrame(rows, columns=columns)
    types: dict[str, str] = dict.fromkeys((*_TEXT, *axes), "str")
    types |= dict.fromkeys(METRICS, "float64") | {"best": "boolean", "feasible": "boolean", "gpus": "Int64"}
    return table.astype(types)


def winners(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Every mode that is best somewhere: how often, and by how much (median of the leads), most wins first."""
    leads: dict[str, list[float | None]] = {}
    for entry in entries:
        if entry.best is not None:
            leads.setdefault(str(entry.best["mode"]), []).append(entry.lead)
    found = []
    for mode, of_mode in leads.items():
        known = [lead for lead in of_mode if lead is not None]
        found.append(
            {"mode": mode, "wins": len(of_mode), "lead": statistics.median(known) if known else None}
        )
    return sorted(found, key=lambda row: (-row["wins"], row["mode"]))


def point_document(entry: Entry) -> dict[str, Any]:
    """An entry as JSON has it."""
    best: Mapping[str, Any] | None = entry.best
    return {
        "name": entry.point.name,
        "labels": dict(entry.point.labels),
        "address": entry.address,
        "status": entry.status,
        "reason": entry.reason,
        "seconds": entry.seconds,
        "best": None if best is None else dict(best),
        "best_per_mode": {row["mode"]: dict(row) for row in entry.rows},
    }
