"""The errors of the package: each says what is wrong, where, and what would make it work."""

from collections.abc import Sequence
from dataclasses import dataclass


class AfdDseError(Exception):
    """Base of every error that the package raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input.

    ``field`` is the dotted path of the field (``cluster.pools[0].count``), ``value`` what stood there,
    ``message`` what is wrong with it and ``remedy`` what would be right.
    """

    field: str
    value: object
    message: str
    remedy: str

    def __str__(self) -> str:
        shown = "" if self.value is None else f" (got {self.value!r})"
        return f"{self.field}: {self.message}{shown}; {self.remedy}"


class InputError(AfdDseError):
    """The input is not usable; ``problems`` lists every reason, one line each."""

    def __init__(self, problems: Sequence[Problem] | Problem) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class DatabaseError(AfdDseError):
    """The operator database is missing, damaged, or lacks what was asked for."""
