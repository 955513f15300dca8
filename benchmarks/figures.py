"""One figure of the table: a name, what was measured, what it should be, and whether it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Relation = Literal["at most", "at least"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should be: at most or at least ``value``, in the figure's unit."""

    relation: Relation
    value: float

    def met_by(self, measured: float) -> bool:
        """Whether ``measured`` keeps it."""
        return measured <= self.value if self.relation == "at most" else measured >= self.value


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured: ``value`` in ``unit``, None where nothing could be measured and ``note`` says why.

    ``facts`` holds what stands behind it (all repeats, processor seconds, counts) and goes into the JSON only.
    """

    group: str
    name: str
    value: float | None
    unit: str
    target: Target | None = None
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the target is kept; None without a target or a value."""
        if self.target is None or self.value is None:
            return None
        return self.target.met_by(self.value)

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "group": self.group,
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "target": None if self.target is None else {self.target.relation: self.target.value},
            "met": self.met,
            "note": self.note,
            **self.facts,
        }


@dataclass(frozen=True, slots=True)
class Options:
    """How thoroughly to measure: ``quick`` in sizes for continuous integration; ``limit_s`` for one process.

    ``repeats`` of what is cheap (absent: five cold starts, three answers, one of what takes long; one each when quick).
    """

    quick: bool = False
    limit_s: float = 1800.0
    repeats: int | None = None
    aic_python: str | None = None

    def times(self, usual: int) -> int:
        """How often to measure what is usually measured ``usual`` times."""
        return self.repeats or (1 if self.quick else usual)

    @property
    def space(self) -> str:
        """The search space of an ordinary answer."""
        return "quick" if self.quick else "default"


def busy(wall_s: float, cpu_s: float) -> str:
    """A note on what of ``wall_s`` was computing: on a busy machine the rest is waiting for others."""
    return f"{cpu_s:.3g} s of processor time" if cpu_s < 0.9 * wall_s or cpu_s > 1.1 * wall_s else ""
