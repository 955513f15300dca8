"""What all parts of a job share: strict frozen models, complaints that carry a remedy, paths relative to the job."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationInfo
from pydantic_core import PydanticCustomError

from afd_dse.errors import InputError

Framework = Literal["trtllm", "sglang", "vllm"]
_INPUT = object()
COMPLAINT = "job"  # type of the validation errors that already say what is wrong and what would be right


class Spec(BaseModel):
    """A part of a job: immutable, no unknown keys, no conversion of types, finite numbers only."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Named(Protocol):
    """What has a name."""

    @property
    def name(self) -> str:
        """The name."""


def complaint(message: str, remedy: str, *, field: str = "", value: object = _INPUT) -> PydanticCustomError:
    """Validation error for a value that has the right type but no sense.

    ``field`` is the path below the object that is validated, ``value`` what to show instead of that object.
    """
    context: dict[str, Any] = {"message": message, "remedy": remedy, "field": field}
    if value is not _INPUT:
        context["value"] = value
    return PydanticCustomError(COMPLAINT, "{message}; {remedy}", context)


def refuse_equal_names(entries: Iterable[Named]) -> None:
    """Complain about the first of ``entries`` whose name an earlier one has."""
    seen: dict[str, int] = {}
    for index, entry in enumerate(entries):
        if (first := seen.setdefault(entry.name, index)) != index:
            message = f"[{first}] has the same name"
            raise complaint(message, "give each its own", field=f"[{index}].name", value=entry.name)


def complain_about(error: InputError) -> PydanticCustomError:
    """The first problem of ``error`` as a complaint about the value that is validated."""
    problem = error.problems[0]
    return complaint(problem.message, problem.remedy, value=problem.value)


def folder_of(info: ValidationInfo) -> Path:
    """Folder that relative paths start from: that of the job file, else the working directory."""
    context = info.context or {}
    return Path(context.get("folder") or Path.cwd())


def absolute(text: str, info: ValidationInfo) -> Path:
    """Absolute path of ``text``, which may be relative to the job file or start with ``~``."""
    try:
        path = (folder_of(info) / Path(text).expanduser()).resolve()
        path.exists()  # raises for a name that no file can have
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise complaint(f"this cannot be a path ({reason})", "give a shorter or simpler one") from None
    return path
