"""The command ``report``: a stored result in another form."""

from pathlib import Path

from afd_dse.errors import InputError, Problem
from afd_dse.spec.suggest import choose


def write(source: Path, form: str | None, out: Path | None) -> Path:
    """Write the report of a result and return its path.

    ``form`` absent is taken from the ending of ``out``, else HTML; ``out`` absent is ``report.<form>`` beside the
    result. Raises :class:`InputError` for an unknown form or an unusable result, before anything is written.
    """
    from afd_dse import load_job
    from afd_dse.cli.progress import waiting
    from afd_dse.report.formats import FORMATS, write_report
    from afd_dse.results.analysis import ADDED, analysed
    from afd_dse.results.result import read_result

    form = form or (out.suffix.removeprefix(".").lower() if out is not None else "") or "html"
    if form not in FORMATS:
        raise InputError(Problem("--format", form, "no such format", choose(form, FORMATS)))
    result = read_result(source)
    source = source.expanduser()
    folder = source if source.is_dir() else source.parent
    target = folder / f"report.{form}" if out is None else out.expanduser()
    if target.is_dir():
        target = target / f"report.{form}"
    with waiting("writing the report"):
        if not all(key in result.document for key in ADDED):
            result = analysed(load_job(result.document["job"]), result)
        write_report(result, form, target)
    return target
