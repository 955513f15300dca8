"""A stored fleet, read back."""

from pathlib import Path
from typing import Any

from afd_dse.errors import InputError, Problem
from afd_dse.results.result import read_json

FLEET = "fleet.json"
_KEYS = ("fleet", "models", "gpus_by_pool", "growth", "objective", "explanation", "feasible")


def fleet_at(path: str | Path) -> Path | None:
    """The file of a fleet that ``path`` names: itself by its name, or ``fleet.json`` in a folder."""
    where = Path(path).expanduser()
    file = where / FLEET if where.is_dir() else where
    return file if file.name == FLEET and file.is_file() else None


def read_fleet(file: Path) -> dict[str, Any]:
    """The document of a stored fleet. Raises :class:`InputError` where it is none."""
    remedy = "give a fleet.json or the folder that `afd-dse fleet --out` wrote, made by this version"
    document = read_json(file, remedy)
    if not isinstance(document, dict) or not all(key in document for key in _KEYS):
        raise InputError(Problem(str(file), None, "is not a fleet", remedy))
    return document
