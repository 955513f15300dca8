"""The files of a fleet: its document, and a folder for every model with job, result and report."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afd_dse.report.html import page
from afd_dse.results.files import write_files, write_result
from afd_dse.results.result import Result

FLEET, JOB = "fleet.json", "job.json"


def write_fleet(document: Mapping[str, Any], results: Mapping[str, Result], folder: str | Path) -> list[Path]:
    """Write ``fleet.json``, and for every model that gets GPUs what ``optimize --out`` writes, with its ``job.json``.

    Returns the paths. Raises :class:`InputError` when the folder cannot be written.
    """
    where = Path(folder).expanduser()
    written = write_files(where, {FLEET: _text(document)})
    for name, result in results.items():
        written += write_files(where / name, {JOB: _text(result.document["job"])})
        written += write_result(result, where / name, page(result.document, result.candidates))
    return written


def _text(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
