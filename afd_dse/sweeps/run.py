"""A sweep from file to summary: what is stored is taken, what lacks is computed by an engine and stored."""

import json
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from afd_dse.errors import InputError, Problem
from afd_dse.spec.suggest import choose
from afd_dse.spec.sweep import Sweep, load_sweep
from afd_dse.sweeps.address import address, fingerprint
from afd_dse.sweeps.engines import Engine, LocalEngine, Lost
from afd_dse.sweeps.store import ASKED, SUMMARY, SUMMARY_CSV, Store
from afd_dse.sweeps.summary import COUNTED, Entry, point_document, summary_table, winners
from afd_dse.sweeps.work import Outcome, Status, Task, compute, rows_of, why_not

ENGINES = ("local", "ray")


@dataclass(frozen=True, slots=True)
class Step:
    """How far a sweep is: jobs done of all, ``reused`` of them stored before; the last one's name and status."""

    done: int
    total: int
    reused: int
    name: str = ""
    status: str = ""


@dataclass(frozen=True)
class SweepResult:
    """What :func:`sweep` returns: ``document`` as ``--json`` prints it, ``table`` with one row a job and mode."""

    document: Mapping[str, Any]
    table: pd.DataFrame

    @property
    def counts(self) -> dict[str, int]:
        """Number of jobs by what became of them."""
        return dict(self.document["counts"])


def sweep(
    source: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    engine: Literal["local", "ray"] | Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    progress: Callable[[Step], None] | None = None,
) -> SweepResult:
    """Compute all jobs of a sweep (a file or a mapping).

    ``out`` is the folder that results are kept in: what it holds already is not computed again. ``engine`` is ``local``
    (processes), ``ray`` (the cluster at ``address``), or an object of your own; ``workers`` bounds how many jobs run at
    once. Raises :class:`InputError` for a sweep that is not valid, before anything is written; a job that is not valid,
    not feasible or fails is recorded with the reason and stops nothing.
    """
    asked = load_sweep(source)
    chosen = engine_named(engine, workers, address) if isinstance(engine, str) else engine
    began = time.monotonic()
    with _store(out) as store:
        found = _Run(asked, store, progress or (lambda step: None))
        try:
            found.compute(chosen)
        finally:
            table = summary_table(found.entries(), asked.axes)
            written = store.write_summary(
                {SUMMARY_CSV: table.to_csv(index=False).encode(), SUMMARY: table.to_parquet(index=False)}
            )
    entries = found.entries()
    counts = Counter(entry.status for entry in entries)
    document = {
        "axes": asked.axes,
        "engine": chosen.name,
        "out": None if out is None else str(store.folder),
        "counts": {"points": len(entries)} | {status: counts[status] for status in COUNTED},
        "computed": found.computed,
        "reused": found.reused,
        "seconds": time.monotonic() - began,
        "fingerprint": fingerprint(),
        "winners": winners(entries),
        "points": [point_document(entry) for entry in entries],
        "written": [] if out is None else [str(path) for path in written],
    }
    return SweepResult(document, table)


def engine_named(name: str, workers: int | None = None, address: str | None = None) -> Engine:
    """The engine that a user asks for. Raises :class:`InputError` for an unknown name, or one that is not installed."""
    if workers is not None and workers < 1:
        raise InputError(Problem("--workers", workers, "at least one is needed", "give 1 or more"))
    if name == "local":
        if address is not None:
            remedy = "leave it out, or choose the engine ray"
            raise InputError(Problem("--address", address, "the local engine has no address", remedy))
        return LocalEngine(workers)
    if name == "ray":
        from afd_dse.sweeps.ray_engine import RayEngine

        return RayEngine(workers, address)
    raise InputError(Problem("--engine", name, "no such engine", choose(name, ENGINES)))


@contextmanager
def _store(out: str | Path | None) -> Iterator[Store]:
    """The store in a folder, or in one that ends with the sweep."""
    if out is not None:
        store = Store(Path(out).expanduser())
        with store.opened():
            yield store
        return
    with tempfile.TemporaryDirectory(prefix="afd-dse-sweep-") as folder:
        store = Store(Path(folder))
        with store.opened():
            yield store


class _Run:
    """The state of a sweep: what is known of every job."""

    def __init__(self, asked: Sweep, store: Store, progress: Callable[[Step], None]) -> None:
        self._asked, self._store, self._progress = asked, store, progress
        self._addresses = [None if point.job is None else address(point.job) for point in asked.points]
        self._names: dict[str, str] = {}
        self._outcomes: dict[str, Outcome] = {}
        for point, at in zip(asked.points, self._addresses, strict=True):
            if at is not None and at not in self._names:
                self._names[at] = point.name
                if (stored := store.read(at)) is not None:
                    status: Status = "infeasible" if stored["best"] is None else "feasible"
                    self._outcomes[at] = Outcome(at, status, tuple(rows_of(stored)), b"", why_not(stored))
        self.reused, self.computed = len(self._outcomes), 0
        self._store.write_summary({ASKED: _asked_document(asked, self._addresses)})
        self._tell()

    def compute(self, engine: Engine) -> None:
        """Compute and store what lacks."""
        marks = fingerprint()
        jobs = {at: p.job for at, p in zip(self._addresses, self._asked.points, strict=True) if at and p.job}
        lacking = [(at, job) for at, job in jobs.items() if at not in self._outcomes]
        helpers = range(self._asked.file.processes_per_study)
        tasks = [
            Task(at, job.model_dump(mode="json"), marks, helper) for at, job in lacking for helper in helpers
        ]
        left = Counter(task.address for task in tasks)
        for task, result in engine.run(compute, tasks) if tasks else ():
            outcome = (
                Outcome(task.address, "failed", reason=result.reason) if isinstance(result, Lost) else result
            )
            left[task.address] -= 1
            # Processes that share a study have the same answer: the first one counts, one that died does not.
            if task.address not in self._outcomes and (outcome.result or not left[task.address]):
                self._keep(outcome)

    def _keep(self, outcome: Outcome) -> None:
        if outcome.result:
            self._store.write(outcome.address, zlib.decompress(outcome.result))
            outcome = replace(outcome, result=b"")  # what is stored need not be held
        self._outcomes[outcome.address] = outcome
        self.computed += 1
        name = self._names[outcome.address]
        entry: dict[str, Any] = {
            "address": outcome.address,
            "name": name,
            "status": outcome.status,
            "host": outcome.host,
        }
        entry["seconds"] = round(outcome.seconds, 3)
        entry |= {key: text for key, text in (("reason", outcome.reason), ("trace", outcome.trace)) if text}
        self._store.log(entry)
        self._tell(name, outcome.status)

    def _tell(self, name: str = "", status: str = "") -> None:
        self._progress(Step(len(self._outcomes), len(self._names), self.reused, name, status))

    def entries(self) -> list[Entry]:
        """Every job with what is known of it by now."""
        return [self._entry(number, at) for number, at in enumerate(self._addresses)]

    def _entry(self, number: int, at: str | None) -> Entry:
        point = self._asked.points[number]
        if at is None:
            return Entry(point, None, "bad_input", "; ".join(map(str, point.problems)))
        outcome = self._outcomes.get(at)
        if outcome is None:
            return Entry(point, at, "missing", "the sweep was interrupted")
        return Entry(point, at, outcome.status, outcome.reason, outcome.rows, outcome.seconds or None)


def _asked_document(asked: Sweep, addresses: Sequence[str | None]) -> bytes:
    points = [
        {"name": point.name, "labels": dict(point.labels), "address": at}
        for point, at in zip(asked.points, addresses, strict=True)
    ]
    document = {"sweep": asked.file.model_dump(mode="json"), "fingerprint": fingerprint(), "points": points}
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"
