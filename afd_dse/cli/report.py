"""The command ``report``: a stored result in another form."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from afd_dse.errors import InputError, Problem
from afd_dse.spec.suggest import choose


def write(source: Path, form: str | None, out: Path | None) -> Path:
    """Write the report of a result, a plan or a fleet and return its path.

    ``form`` absent is taken from the ending of ``out``, else HTML; ``out`` absent is ``report.<form>`` beside the
    result, ``plan.<form>`` or ``fleet.<form>`` beside those. Raises :class:`InputError` for an unknown form or an
    unusable result, before anything is written.
    """
    from afd_dse import load_job
    from afd_dse.cli.progress import waiting
    from afd_dse.report.formats import FLEET_FORMATS, FORMATS, PLAN_FORMATS, write_content
    from afd_dse.results.analysis import ADDED, analysed
    from afd_dse.results.fleet_file import fleet_at, read_fleet
    from afd_dse.results.plan_file import plan_at, read_plan
    from afd_dse.results.result import Result, read_result

    read: Callable[[], Any]
    pages: Mapping[str, Any]
    if (plan := plan_at(source)) is not None:
        name, pages, read = "plan", PLAN_FORMATS, partial(read_plan, plan)
    elif (fleet := fleet_at(source)) is not None:
        name, pages, read = "fleet", FLEET_FORMATS, partial(read_fleet, fleet)
    else:
        name, pages, read = "report", FORMATS, partial(read_result, source)
    form = form or (out.suffix.removeprefix(".").lower() if out is not None else "") or "html"
    if form not in pages:
        of = "" if name == "report" else f" of a {name}"
        raise InputError(Problem("--format", form, f"no such format{of}", choose(form, pages)))
    found: Any = read()
    source = source.expanduser()
    folder = source if source.is_dir() else source.parent
    name = f"{name}.{form}"
    target = folder / name if out is None else out.expanduser()
    if target.is_dir():
        target = target / name
    with waiting("writing the report"):
        if isinstance(found, Result) and not all(key in found.document for key in ADDED):
            found = analysed(load_job(found.document["job"]), found)
        write_content(pages[form](found), target)
    return target
