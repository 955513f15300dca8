"""A fleet from file to answer: the staircase of every model, kept or searched anew, then the split."""

import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from afd_dse.errors import InputError
from afd_dse.resources import keep_freed_memory
from afd_dse.results.api import optimize
from afd_dse.results.datatypes import Combination, combinations, suffix
from afd_dse.results.files import check_folder, write_files
from afd_dse.results.fleet import Stairs, fleet_document, model_result, nearest_miss, with_steps
from afd_dse.results.layout import labels
from afd_dse.results.policies import modes_of
from afd_dse.results.result import Result, model_facts
from afd_dse.results.table import candidate_table
from afd_dse.results.words import types_words
from afd_dse.search.parallel import usable_processes
from afd_dse.search.pool import pareto_rows, ranking
from afd_dse.search.run import Progress
from afd_dse.search.space import load_space
from afd_dse.search.staircase import Staircase, staircase
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
    asked = _combinations(file)
    folder = None if out is None else Path(out).expanduser() / KEPT
    if folder is not None:
        check_folder(folder)
    keep_freed_memory()
    tell = progress or (lambda mode, rows: None)
    found: list[Stairs] = []
    reused = 0
    for entry, types in zip(file.models, asked, strict=True):
        job = file.job(entry)
        at = address(job)
        known = None if folder is None else _read(folder, at)
        reused += known is not None
        if known is None:
            known = _searched(job, types, partial(_named, tell, entry.name))
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


def _combinations(file: FleetFile) -> list[list[Combination]]:
    """The combinations of data types of all models. Raises :class:`InputError` with the problems of all of them."""
    found, problems = [], []
    for number, entry in enumerate(file.models):
        try:
            found.append(combinations(file.job(entry)))
        except InputError as error:
            for problem in error.problems:
                own = problem.field.startswith(_OWN)
                problems.append(
                    replace(problem, field=f"models[{number}].{problem.field}") if own else problem
                )
    if problems:
        raise InputError(list({str(problem): problem for problem in problems}.values()))
    return found


def _searched(job: Job, types: Sequence[Combination], progress: Progress) -> Stairs:
    """The staircase of one model over all combinations of its data types."""
    began = time.monotonic()
    parts = [(one, *_steps_of(one, progress)) for one in types if one.scenario is not None]
    tables = [
        table.assign(label=table["label"] + suffix(one.types)) if one.types else table
        for one, table, _ in parts
        if len(table)
    ]
    table = with_steps(pd.concat(tables, ignore_index=True)) if tables else pd.DataFrame()
    miss = None if tables else nearest_miss(optimize(job, progress=progress, confirm=0))
    scenario = parts[0][0].scenario
    assert scenario is not None
    named = [(f"{types_words(one.types)}: " if one.types else "", stairs) for one, _, stairs in parts]
    left_out = [f"{types_words(one.types)} left out: {one.reason}" for one in types if one.scenario is None]
    facts = {
        "model": model_facts(scenario),
        "modes": [
            {
                "name": name,
                "partition": partition.text,
                "considered": sum(stairs.modes[number].considered for _, _, stairs in parts),
                "evaluated": sum(stairs.modes[number].evaluated for _, _, stairs in parts),
            }
            for number, (name, partition) in enumerate((m.name, m.partition) for m in parts[0][2].modes)
        ],
        "exact": all(stairs.exact for _, _, stairs in parts),
        "explanation": "; ".join([*(f"{words}{stairs.explanation}" for words, stairs in named), *left_out]),
        "seconds": time.monotonic() - began,
        "nearest_miss": miss,
    }
    return Stairs(table, facts)


def _steps_of(one: Combination, progress: Progress) -> tuple[pd.DataFrame, Staircase]:
    """The steps of all modes with one combination of data types, as a table of candidates."""
    asked, scenario = one.job.search, one.scenario
    assert scenario is not None
    modes = modes_of(one.job, scenario)
    stairs = staircase(
        scenario,
        load_space(asked.space_path),
        modes,
        grids={name: grids_of(name) for name, _ in modes},
        progress=progress,
        processes=usable_processes(),
    )
    if stairs.found is None:
        return pd.DataFrame(), stairs
    names = [stairs.modes[number].name for number in stairs.mode_of]
    ranked = ranking(scenario, asked.objective, stairs.found)
    written = labels(scenario, stairs.found.candidates)
    front = pareto_rows(stairs.found)
    return candidate_table(scenario, stairs.found, names, written, ranked, front), stairs


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
