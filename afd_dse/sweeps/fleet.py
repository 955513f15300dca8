"""A fleet from file to answer: the staircase of every model, kept or searched anew, then the split."""

import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Scenario
from afd_dse.errors import InputError
from afd_dse.resources import keep_freed_memory
from afd_dse.results.api import optimize
from afd_dse.results.files import check_folder, write_files
from afd_dse.results.fleet import STEP, Stairs, fleet_document, model_result, nearest_miss
from afd_dse.results.result import Result, model_facts
from afd_dse.results.table import candidate_table
from afd_dse.search.pool import pareto_rows, ranking
from afd_dse.search.run import Progress
from afd_dse.search.space import load_space
from afd_dse.search.staircase import staircase
from afd_dse.spec.cells import parse_partition
from afd_dse.spec.fleet import FleetFile, load_fleet
from afd_dse.spec.job import Job, job_warnings
from afd_dse.spec.presets import grids_of
from afd_dse.sweeps.address import address

KEPT = "staircases"
# Sections of a job that are the model's own; the others are the fleet's.
_OWN = ("model", "quantization", "speculative", "workload", "slo")


@dataclass(frozen=True)
class FleetResult:
    """What :func:`fleet` returns: ``document`` as ``--json`` prints it, and a result of its own for every model served.

    A deployment in it, or a model's result, can be fed back to ``estimate`` with the model's ``job``.
    """

    document: Mapping[str, Any]
    results: Mapping[str, Result]

    @property
    def feasible(self) -> bool:
        """Whether every demand is met within every SLO."""
        return bool(self.document["feasible"])


def fleet(
    source: str | Path | Mapping[str, Any] | FleetFile,
    *,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> FleetResult:
    """Split the cluster of a fleet (a file, a mapping, or read already) among its models.

    Staircases are kept in the folder ``out``, if given, under what they depend on: what is there is not searched again.
    ``progress`` is told model and mode, and how many more candidates have been evaluated. Raises :class:`InputError`
    for a fleet that is not valid, before anything is written; demands that the cluster cannot meet give a document with
    ``feasible`` False and the reason.
    """
    file = source if isinstance(source, FleetFile) else load_fleet(source)
    scenarios = _scenarios(file)
    folder = None if out is None else Path(out).expanduser() / KEPT
    if folder is not None:
        check_folder(folder)
    keep_freed_memory()
    tell = progress or (lambda mode, rows: None)
    found: list[Stairs] = []
    reused = 0
    for entry, scenario in zip(file.models, scenarios, strict=True):
        job = file.job(entry)
        at = address(job)
        known = None if folder is None else _read(folder, at)
        reused += known is not None
        if known is None:
            known = _searched(job, scenario, partial(_named, tell, entry.name))
            if folder is not None:
                _write(folder, at, known)
        found.append(replace(known, facts={**known.facts, "warnings": job_warnings(job)}))
    document = fleet_document(file, found) | {"reused": reused}
    results = {
        entry.name: result
        for number, entry in enumerate(file.models)
        if (result := model_result(file, number, found[number], document)) is not None
    }
    return FleetResult(document, results)


def _named(tell: Progress, name: str, mode: str, rows: int) -> None:
    tell(f"{name}: {mode}", rows)


def _scenarios(file: FleetFile) -> list[Scenario]:
    """The scenarios of all models. Raises :class:`InputError` with the problems of all that have none."""
    scenarios, problems = [], []
    for number, entry in enumerate(file.models):
        try:
            scenarios.append(scenario_from_job(file.job(entry)))
        except InputError as error:
            for problem in error.problems:
                own = problem.field.startswith(_OWN)
                problems.append(
                    replace(problem, field=f"models[{number}].{problem.field}") if own else problem
                )
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return scenarios


def _searched(job: Job, scenario: Scenario, progress: Progress) -> Stairs:
    asked = job.search
    began = time.monotonic()
    stairs = staircase(
        scenario,
        load_space(asked.space_path),
        [(name, parse_partition(text)) for name, text in asked.partitions],
        grids={name: grids_of(name) for name, _ in asked.partitions},
        progress=progress,
    )
    table = pd.DataFrame()
    if stairs.found is not None:
        names = [stairs.modes[number].name for number in stairs.mode_of]
        ranked = ranking(scenario, job.search.objective, stairs.found)
        table = candidate_table(scenario, stairs.found, names, ranked, pareto_rows(stairs.found))
        table[STEP] = np.isin(np.arange(len(table)), stairs.steps)
    miss = None if stairs.found is not None else nearest_miss(optimize(job, progress=progress, confirm=0))
    facts = {
        "model": model_facts(scenario),
        "modes": [
            {
                "name": mode.name,
                "partition": mode.partition.text,
                "considered": mode.considered,
                "evaluated": mode.evaluated,
                "space": mode.space,
            }
            for mode in stairs.modes
        ],
        "exact": stairs.exact,
        "explanation": stairs.explanation,
        "seconds": time.monotonic() - began,
        "nearest_miss": miss,
    }
    return Stairs(table, facts)


def _read(folder: Path, at: str) -> Stairs | None:
    """The staircase under an address; None where there is none, or it is damaged: then it is searched again."""
    try:
        facts = json.loads((folder / f"{at}.json").read_text(encoding="utf-8"))
        return Stairs(pd.read_parquet(folder / f"{at}.parquet"), facts)
    except (OSError, ValueError):
        return None


def _write(folder: Path, at: str, stairs: Stairs) -> None:
    buffer = io.BytesIO()
    stairs.table.to_parquet(buffer, index=False)
    text = json.dumps(stairs.facts, ensure_ascii=False, allow_nan=False)
    write_files(folder, {f"{at}.parquet": buffer.getvalue(), f"{at}.json": text.encode()})
