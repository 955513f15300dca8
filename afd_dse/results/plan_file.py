"""A stored plan, read back."""

import json
from pathlib import Path
from typing import Any

from afd_dse.errors import InputError, Problem
from afd_dse.results.result import read_json

PLAN = "plan.json"
_KEYS = ("demand", "classes", "options", "feasible", "most_load", "rating", "version")
_SCHEDULED = ("totals", "hardware", "periods", "gpus", "failures", "sensitivity", "estimates", "break_even")


def plan_at(path: str | Path) -> Path | None:
    """The file of a plan that ``path`` names: itself, or ``plan.json`` in a folder without a ``result.json``."""
    where = Path(path).expanduser()
    if where.is_dir():
        file = where / PLAN
        return file if file.is_file() and not (where / "result.json").is_file() else None
    if where.is_file():
        try:
            return where if is_plan(json.loads(where.read_text(encoding="utf-8"))) else None
        except (OSError, ValueError, RecursionError):
            return None
    return None


def read_plan(file: Path) -> dict[str, Any]:
    """The document of a stored plan. Raises :class:`InputError` where it is none, or one of an older version."""
    remedy = "give a plan.json or the folder that `afd-dse plan --out` wrote, made by this version"
    document = read_json(file, remedy)
    if not is_plan(document):
        raise InputError(Problem(str(file), None, "is not a plan", remedy))
    if missing := [
        key for key in (*_KEYS, *(_SCHEDULED if document["feasible"] else ())) if key not in document
    ]:
        raise InputError(Problem(str(file), None, f"lacks {', '.join(missing)}", remedy))
    found: dict[str, Any] = document
    return found


def is_plan(document: object) -> bool:
    """Whether a JSON document is a plan."""
    return isinstance(document, dict) and all(key in document for key in ("demand", "most_load", "feasible"))
