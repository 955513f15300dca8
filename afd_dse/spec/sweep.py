"""The sweep file: a base job, axes of what varies, and the jobs that they make."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from afd_dse.errors import InputError, Problem
from afd_dse.spec.base import Spec, complaint, refuse_equal_names
from afd_dse.spec.document import plain, read_document
from afd_dse.spec.job import Job
from afd_dse.spec.load import load_job
from afd_dse.spec.problems import as_input_error
from afd_dse.spec.suggest import choose

MOST_POINTS = 20_000
_PATH = re.compile(r"[A-Za-z_]\w*(\[\d+\])*(\.[A-Za-z_]\w*(\[\d+\])*)*")
_STEP = re.compile(r"[A-Za-z_]\w*|\[\d+\]")
_SHOWN = 20  # problems of a sweep that are listed; the same mistake may stand in thousands of points


def _field_path(text: str) -> str:
    if not _PATH.fullmatch(text):
        message = "this is not the path of a field"
        raise complaint(message, "write it as in `slo.tpot_ms` or `cluster.pools[0].count`")
    return text


def _value_name(value: Any) -> str | None:
    """What a plain value is called, None where it needs a name."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:,g}" if abs(value) < 1e5 else f"{value:,}"
    return "none" if value is None else None


def _named(values: Any) -> Any:
    """A list of plain values as a mapping from their names."""
    if not isinstance(values, list | tuple) or not values:
        raise complaint("values are needed", "write a list, or a mapping from names to values")
    found: dict[str, Any] = {}
    for index, value in enumerate(values):
        name = _value_name(value)
        if name is None:
            remedy = "write the axis as `name: value` lines"
            raise complaint("a mapping or a list needs a name", remedy, field=f"[{index}]", value=None)
        if name in found:
            raise complaint("this stands twice", "keep one of them", field=f"[{index}]", value=value)
        found[name] = value
    return found


def _axis_form(value: object) -> str:
    return "<named>" if isinstance(value, dict) and value else "<list>"


def _base_form(value: object) -> str:
    return "<inline>" if isinstance(value, dict) else "<path>"


FieldPath = Annotated[str, AfterValidator(_field_path)]
Axis = Annotated[
    Annotated[dict[str, Any], BeforeValidator(_named), Tag("<list>")]
    | Annotated[dict[str, Any], Tag("<named>")],
    Discriminator(_axis_form),
]


def _as_names(value: Any) -> Any:
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(_value_name(one) or one for one in values)


Names = Annotated[tuple[str, ...], BeforeValidator(_as_names), Field(min_length=1)]


class ExtraJob(Spec):
    """A job besides those of the axes: the base with some fields changed."""

    name: str = Field(min_length=1, examples=["today"])
    """What it is called in the summary; unique."""
    set: dict[FieldPath, Any] = Field({}, examples=[{"slo.tpot_ms": 50}])
    """By path of a field what stands there instead; empty: the base itself."""


class SweepFile(Spec):
    """A matrix of jobs: `afd-dse sweep SWEEP`."""

    base: Annotated[
        Annotated[str, Field(min_length=1), Tag("<path>")] | Annotated[dict[str, Any], Tag("<inline>")],
        Discriminator(_base_form),
    ] = Field(examples=["job.yaml"])
    """The job that all others are made of: the path of a job file relative to the sweep file, or (parts of) a job as a
    mapping."""
    axes: dict[FieldPath, Axis] = Field(
        {}, examples=[{"slo.tpot_ms": [10, 20, 50], "cluster.pools[0].count": [32, 64]}]
    )
    """By path of a job's field the values that it takes: a list of texts and numbers, or a mapping from names to values
    of any kind. Every combination is a job."""
    exclude: tuple[dict[str, Names], ...] = Field(
        (), strict=False, examples=[[{"cluster.pools[0].count": 32, "slo.tpot_ms": [10, 20]}]]
    )
    """Combinations to leave out: by axis one or several of its values; what matches all of a rule is left out."""
    jobs: tuple[ExtraJob, ...] = Field((), strict=False)
    """Jobs besides those of the axes."""
    processes_per_study: int = Field(1, ge=1, le=10_000, examples=[4])
    """Processes that work together on each job; needs `search.method: optuna` and a `search.storage` that all reach."""

    @field_validator("jobs")
    @classmethod
    def _distinct_names(cls, jobs: tuple[ExtraJob, ...]) -> tuple[ExtraJob, ...]:
        refuse_equal_names(jobs)
        return jobs

    @model_validator(mode="after")
    def _has_points(self) -> Self:
        if not self.axes and not self.jobs:
            raise complaint("there is nothing to sweep", "add axes, or jobs", field="axes", value=None)
        points = math.prod(len(values) for values in self.axes.values())
        if points > MOST_POINTS:
            message = f"the axes make {points:,} jobs"
            remedy = f"give at most {MOST_POINTS:,}; several sweeps may share a folder"
            raise complaint(message, remedy, field="axes", value=None)
        return self

    @model_validator(mode="after")
    def _rules_name_values(self) -> Self:
        for index, rule in enumerate(self.exclude):
            for axis, names in rule.items():
                field = f"exclude[{index}].{axis}"
                if axis not in self.axes:
                    raise complaint("no such axis", choose(axis, self.axes), field=field, value=list(names))
                for name in names:
                    if name not in self.axes[axis]:
                        remedy = choose(name, self.axes[axis])
                        raise complaint("the axis has no such value", remedy, field=field, value=name)
        return self


@dataclass(frozen=True, slots=True)
class Point:
    """One job of a sweep: its name, the names of its values by axis, and the job, None where it has ``problems``."""

    name: str
    labels: Mapping[str, str]
    job: Job | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep file and all of its points, in the order of the file."""

    file: SweepFile
    points: Sequence[Point]

    @property
    def axes(self) -> list[str]:
        """Paths of the fields that vary."""
        return list(self.file.axes)


def load_sweep(source: str | Path | Mapping[str, Any], *, folder: str | Path | None = None) -> Sweep:
    """Read a sweep and make its jobs.

    ``source`` is the path of a file or the sweep itself as a mapping; relative paths start at ``folder``, by default
    the file's own, for a mapping the working directory. A job that is not valid is a point with problems. Raises
    :class:`InputError` where the sweep itself is not valid, where all jobs of the axes have a problem in common, and
    where no job is valid.
    """
    if isinstance(source, Mapping):
        data, start = plain(source, "sweep"), Path(folder) if folder is not None else Path.cwd()
    else:
        path = Path(source).expanduser()
        data, start = read_document(path), Path(folder) if folder is not None else path.resolve().parent
    try:
        file = SweepFile.model_validate(data)
    except ValidationError as error:
        raise as_input_error(error, SweepFile) from None
    base = _base(file, start)
    points = [_point(name, labels, base, changes, start) for name, labels, changes in _changes(file)]
    _check(points, len(points) - len(file.jobs))
    _check_sharing(file, points)
    return Sweep(file, points)


def _check_sharing(file: SweepFile, points: Sequence[Point]) -> None:
    """Raise where processes are to share a study that a job does not have."""
    for search in (point.job.search for point in points if point.job and file.processes_per_study > 1):
        if search.method != "optuna" or not (search.storage or search.journal):
            message = "only a sampled job with a storage can be shared"
            remedy = "set search.method: optuna and search.storage in the base"
            raise InputError(Problem("processes_per_study", file.processes_per_study, message, remedy))


def _base(file: SweepFile, folder: Path) -> dict[str, Any]:
    """The base as a job document; that of another file with its paths made absolute."""
    if isinstance(file.base, dict):
        return file.base
    try:
        return load_job(folder / Path(file.base).expanduser()).model_dump(mode="json")
    except InputError as error:
        raise InputError(
            [Problem(f"base: {p.field}", p.value, p.message, p.remedy) for p in error.problems]
        ) from None


def _changes(file: SweepFile) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    """Name, names of values and changed fields of every job."""
    # NOTE: a section is replaced before a field in it is, in whichever order they are written.
    paths = sorted(file.axes, key=lambda path: len(_STEP.findall(path)))
    for names in itertools.product(*file.axes.values()) if file.axes else ():
        labels = dict(zip(file.axes, names, strict=True))
        if not any(all(labels[axis] in chosen for axis, chosen in rule.items()) for rule in file.exclude):
            yield " · ".join(names), labels, {path: file.axes[path][labels[path]] for path in paths}
    for job in file.jobs:
        ordered = sorted(job.set, key=lambda path: len(_STEP.findall(path)))
        labels = {path: _label(file, path, job.set[path]) for path in file.axes if path in job.set}
        yield job.name, labels, {path: job.set[path] for path in ordered}


def _label(file: SweepFile, path: str, value: Any) -> str:
    known = next((name for name, other in file.axes[path].items() if other == value), None)
    return known or _value_name(value) or "other"


def _point(
    name: str, labels: dict[str, str], base: Mapping[str, Any], changes: Mapping[str, Any], folder: Path
) -> Point:
    try:
        document: Any = plain(base)
        for path, value in changes.items():
            document = _replaced(document, _STEP.findall(path), value, path)
        return Point(name, labels, load_job(document, folder=folder, check_model=True))
    except InputError as error:
        return Point(name, labels, None, error.problems)


def _replaced(document: Any, steps: Sequence[str], value: Any, path: str) -> Any:
    """``document`` with ``value`` at ``steps``; sections on the way there are made, elements of lists are not."""
    if not steps:
        return value
    step, below = steps[0], steps[1:]
    if step.startswith("["):
        index = int(step[1:-1])
        if not isinstance(document, list) or index >= len(document):
            have = f"has {len(document)}" if isinstance(document, list) else "has no list there"
            raise InputError(Problem(path, None, f"the base {have}", "add it to the base, or mend the path"))
        return [*document[:index], _replaced(document[index], below, value, path), *document[index + 1 :]]
    if document is not None and not isinstance(document, dict):
        message = f"the base has no fields where {step} should be"
        raise InputError(Problem(path, None, message, "mend the path, or the base"))
    inside = document or {}
    return inside | {step: _replaced(inside.get(step), below, value, path)}


def _same(one: Problem, other: Problem) -> bool:
    """Whether two problems are one mistake, at whatever value."""
    return (one.field, one.message, one.remedy) == (other.field, other.message, other.remedy)


def _check(points: Sequence[Point], of_axes: int) -> None:
    """Raise what is wrong with the sweep rather than with one of its jobs."""
    matrix = points[:of_axes]
    if not points:
        remedy = "keep one combination, or add jobs"
        raise InputError(Problem("exclude", None, "every combination is left out", remedy))
    shared = [
        problem
        for problem in (matrix[0].problems if matrix else ())
        if all(any(_same(problem, other) for other in point.problems) for point in matrix)
    ]
    everything = () if any(point.job for point in points) else itertools.chain(*(p.problems for p in points))
    found = list({str(problem): problem for problem in [*shared, *everything]}.values())
    if found:
        more = len(found) - _SHOWN
        rest = [Problem("sweep", None, f"{more:,} more problems", "mend these first")] if more > 0 else []
        raise InputError([*found[:_SHOWN], *rest])
