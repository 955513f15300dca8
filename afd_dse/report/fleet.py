"""The files of a fleet: its document and page, and a folder for every model with job, result and report."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afd_dse.report.fleet_page import fleet_page
from afd_dse.report.html import page
from afd_dse.results.analysis import analysed
from afd_dse.results.files import write_files, write_result
from afd_dse.results.fleet_file import FLEET
from afd_dse.results.result import Result
from afd_dse.spec.load import load_job

PAGE, JOB = "fleet.html", "job.json"


def write_fleet(document: Mapping[str, Any], results: Mapping[str, Result], folder: str | Path) -> list[Path]:
    """Write ``fleet.json`` and ``fleet.html``, and for every model with GPUs ``job.json`` and what a search writes.

    Returns the paths. Raises :class:`InputError` when the folder cannot be written.
    """
    where = Path(folder).expanduser()
    written = write_files(where, {FLEET: _text(document), PAGE: fleet_page(document).encode()})
    for name, result in results.items():
        written += write_files(where / name, {JOB: _text(result.document["job"])})
        rich = analysed(load_job(result.document["job"]), result)
        written += write_result(rich, where / name, page(rich.document, rich.candidates))
    return written


def _text(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
