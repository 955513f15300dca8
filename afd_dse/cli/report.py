"""The command ``report``: a stored result in another form."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afd_dse.errors import InputError, Problem
from afd_dse.spec.suggest import choose


def write(source: Path, form: str | None, out: Path | None) -> Path:
    """Write the report of a result or a plan and return its path.

    ``form`` absent is taken from the ending of ``out``, else HTML; ``out`` absent is ``report.<form>`` beside the
    result, or ``plan.<form>`` beside the plan. Raises :class:`InputError` for an unknown form or an unusable result,
    before anything is written.
    """
    from afd_dse import load_job
    from afd_dse.cli.progress import waiting
    from afd_dse.report.formats import FORMATS, PLAN_FORMATS, write_content, write_report
    from afd_dse.results.analysis import ADDED, analysed
    from afd_dse.results.plan_file import plan_at, read_plan
    from afd_dse.results.result import Result, read_result

    plan = plan_at(source)
    forms: Mapping[str, Any] = FORMATS if plan is None else PLAN_FORMATS
    form = form or (out.suffix.removeprefix(".").lower() if out is not None else "") or "html"
    if form not in forms:
        what = "no such format" if plan is None else "no such format of a plan"
        raise InputError(Problem("--format", form, what, choose(form, forms)))
    found = read_result(source) if plan is None else read_plan(plan)
    source = source.expanduser()
    folder = source if source.is_dir() else source.parent
    name = f"{'report' if plan is None else 'plan'}.{form}"
    target = folder / name if out is None else out.expanduser()
    if target.is_dir():
        target = target / name
    with waiting("writing the report"):
        if isinstance(found, Result):
            if not all(key in found.document for key in ADDED):
                found = analysed(load_job(found.document["job"]), found)
            write_report(found, form, target)
        else:
            write_content(PLAN_FORMATS[form](found), target)
    return target
