"""Reading a job: a YAML or JSON file, or a mapping, in the words of a job file or of a Dynamo deployment request."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from afd_dse.errors import InputError, Problem
from afd_dse.spec import dgdr
from afd_dse.spec.document import plain, read_document
from afd_dse.spec.job import Job
from afd_dse.spec.problems import as_input_error, shown_value


def load_job(
    source: str | Path | Mapping[str, Any], *, folder: str | Path | None = None, check_model: bool = False
) -> Job:
    """Read and validate a job.

    ``source`` is the path of a file or the job itself as a mapping. Relative paths in the job start at ``folder``,
    by default the file's own, for a mapping the working directory. ``check_model`` also reads the model and reports
    what is wrong with it under ``model``. Raises :class:`InputError` that lists every problem found.
    """
    try:
        return _load(source, folder, check_model)
    except InputError as error:
        short = [replace(problem, value=shown_value(problem.value)) for problem in error.problems]
        raise InputError(short) from None


def _load(source: str | Path | Mapping[str, Any], folder: str | Path | None, check_model: bool) -> Job:
    if isinstance(source, Mapping):
        data, start = plain(source), Path(folder) if folder is not None else Path.cwd()
    else:
        path = _expanded(source)
        data, start = read_document(path), Path(folder) if folder is not None else path.resolve().parent
    context = {"folder": start.resolve()}
    data, prefix = dgdr.unwrap(data)
    if dgdr.is_request(data):
        # NOTE: checks every field under the request's own name, so that no problem of the job made of it is new.
        data = dgdr.job_mapping(data, prefix=prefix, context=context)
    try:
        job = Job.model_validate(data, context=context)
    except ValidationError as error:
        raise as_input_error(error, Job, prefix=prefix) from None
    except OSError as error:
        remedy = "check the permissions of the files and folders that the job names"
        raise InputError(
            Problem("job", str(error.filename), f"unreadable ({error.strerror})", remedy)
        ) from None
    if check_model:
        _check_model(job, prefix)
    return job


def _expanded(source: str | Path) -> Path:
    try:
        return Path(source).expanduser()
    except RuntimeError:  # ~ of an unknown user
        return Path(source)


def _check_model(job: Job, prefix: str) -> None:
    # NOTE: reading a model belongs to the next room; loaded only on demand, so that validation alone stays light.
    from afd_dse.architecture.catalogue import load_model

    try:
        load_model(job.model)
    except InputError as error:
        raise InputError([_below_model(problem, prefix) for problem in error.problems]) from None


def _below_model(problem: Problem, prefix: str) -> Problem:
    field = problem.field if problem.field.startswith("model") else f"model.{problem.field}"
    return replace(problem, field=f"{prefix}{field}")
