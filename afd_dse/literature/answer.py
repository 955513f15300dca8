"""What an evaluator gives back, and the evaluators by name."""

from collections.abc import Callable
from dataclasses import dataclass

from afd_dse.literature.rows import Row

Value = float | str


@dataclass(frozen=True, slots=True)
class Answer:
    """Our values in the order and units of the row, and what a reader must know about them."""

    values: tuple[Value, ...]
    note: str = ""

    @classmethod
    def of(cls, *values: Value, note: str = "") -> "Answer":
        """An answer of some values."""
        return cls(tuple(v if isinstance(v, str) else float(v) for v in values), note)


Evaluator = Callable[[Row], Answer]

EVALUATORS: dict[str, Evaluator] = {}


def evaluator(function: Evaluator) -> Evaluator:
    """Register ``function`` under its own name."""
    EVALUATORS[function.__name__] = function
    return function
