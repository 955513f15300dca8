"""What a command is given: a job with the changes of its options, and a deployment from wherever it lies."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afd_dse import Job, load_job
from afd_dse.errors import InputError, Problem
from afd_dse.results.result import is_result
from afd_dse.spec.document import parse_document, read_document
from afd_dse.spec.suggest import choose

_WHOLE = ("all", "all_partitions")


def read_job(path: Path, changes: Mapping[str, Any]) -> Job:
    """The job of a file, its ``search`` section and ``calibration`` changed where an option says so (None: as it is).

    Options are checked like the file; paths in them are relative to the working directory.
    """
    job = load_job(path)
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        return job
    modes = given.get("modes")
    if isinstance(modes, str):
        names = [name.strip() for name in modes.split(",") if name.strip()]
        given["modes"] = names[0] if len(names) == 1 and names[0] in _WHOLE else names
    document = job.model_dump(mode="json")
    if "calibration" in given:
        document["calibration"] = given.pop("calibration")
    if "storage" in given:
        document["search"]["journal"] = None
    document["search"] |= given
    return load_job(document, folder=Path.cwd())


def schema_of(document: str) -> dict[str, Any]:
    """JSON schema of a kind of document: ``job``, ``sweep`` or ``fleet``."""
    from afd_dse.spec.fleet import FleetFile
    from afd_dse.spec.sweep import SweepFile

    schemas = {
        "job": Job.model_json_schema,
        "sweep": SweepFile.model_json_schema,
        "fleet": FleetFile.model_json_schema,
    }
    if document not in schemas:
        raise InputError(Problem("DOCUMENT", document, "no such document", choose(document, schemas)))
    return schemas[document]()


def read_deployment(source: str, mode: str | None, rank: int | None) -> dict[str, Any]:
    """A deployment document: of a file, of stdin (``-``), or picked from a result.

    Of a result the best one is taken, or the best of ``mode``, or the layout at ``rank`` (from 1).
    """
    path = Path(source).expanduser()
    if source == "-":
        document = parse_document(sys.stdin.read(), "stdin")
    else:
        document = read_document(path / "result.json" if path.is_dir() else path)
    if is_result(document):
        return _pick(document, mode, rank)
    for option, value in (("--mode", mode), ("--rank", rank)):
        if value is not None:
            message = f"{source} is one deployment, not a result"
            raise InputError(Problem(option, value, message, "leave it out, or give a result.json"))
    return document


def _pick(result: Mapping[str, Any], mode: str | None, rank: int | None) -> dict[str, Any]:
    entries = {entry["name"]: entry for entry in result["modes"]}
    if mode is not None and mode not in entries:
        raise InputError(Problem("--mode", mode, "the result has no such mode", choose(mode, entries)))
    if rank is not None:
        ranking: list[dict[str, Any]] = result["ranking"] if mode is None else entries[mode]["ranking"]
        if rank > len(ranking):
            remedy = f"choose 1 to {len(ranking)}" if ranking else "leave it out: nothing is feasible"
            raise InputError(Problem("--rank", rank, f"the result ranks {len(ranking)} layouts", remedy))
        return ranking[rank - 1]
    best: dict[str, Any] | None = result["best"] if mode is None else result["best_per_mode"][mode]
    if best is None and result["nearest_misses"]:
        best = result["nearest_misses"][-1]
    if best is None or not best["groups"]:
        why = "" if best is None else f": {best['reason']}"
        message = f"the result has no deployment to estimate{why}"
        raise InputError(Problem("DEPLOYMENT", mode, message, "choose another mode, or change the job"))
    return best
