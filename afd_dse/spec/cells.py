"""The four cells of serving (phase × side) and their set partitions: what a deployment mode is.

A partition is written ``"PA PF | DA | DF"``: groups of cells, each group on GPUs of its own.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from afd_dse.errors import InputError, Problem


class Cell(IntEnum):
    """One phase of one side; the order is the canonical order of cells."""

    PA = 0
    PF = 1
    DA = 2
    DF = 3


class Phase(IntEnum):
    """Phase of a request."""

    PREFILL = 0
    DECODE = 1


ATTENTION_CELL = (Cell.PA, Cell.DA)
FFN_CELL = (Cell.PF, Cell.DF)


def phase_of(cell: Cell) -> Phase:
    """The phase that a cell belongs to."""
    return Phase.PREFILL if cell in (Cell.PA, Cell.PF) else Phase.DECODE


@dataclass(frozen=True, slots=True)
class Partition:
    """A set partition of the cells; ``group_of[cell]`` is the group's number in order of first appearance."""

    group_of: tuple[int, int, int, int]

    @property
    def groups(self) -> tuple[tuple[Cell, ...], ...]:
        """The groups, each a tuple of cells."""
        return _groups(self.group_of)

    @property
    def text(self) -> str:
        """Canonical spelling, e.g. ``"PA PF | DA | DF"``."""
        return " | ".join(" ".join(cell.name for cell in group) for group in self.groups)

    @property
    def is_joint(self) -> bool:
        """Whether some group serves both phases, so that the phases must be evaluated together."""
        return any(len({phase_of(cell) for cell in group}) == 2 for group in self.groups)

    def splits(self, phase: Phase) -> bool:
        """Whether attention and FFN of ``phase`` are in different groups (AFD in that phase)."""
        return self.group_of[ATTENTION_CELL[phase]] != self.group_of[FFN_CELL[phase]]

    @property
    def shares_steps(self) -> bool:
        """Whether both sides of both phases share their groups, so that one step can carry both phases."""
        a, f, b, g = self.group_of
        return a == b and f == g


@cache
def _groups(group_of: tuple[int, ...]) -> tuple[tuple[Cell, ...], ...]:
    """Results ask for the groups of every candidate."""
    return tuple(
        tuple(cell for cell in Cell if group_of[cell] == group) for group in range(max(group_of) + 1)
    )


def _all_partitions() -> tuple[Partition, ...]:
    """All 15 set partitions as restricted growth strings, in lexicographic order."""
    found: list[tuple[int, ...]] = [(0,)]
    for _ in range(3):
        found = [(*head, group) for head in found for group in range(max(head) + 2)]
    return tuple(Partition((a, b, c, d)) for a, b, c, d in found)


PARTITIONS = _all_partitions()


def partition_index(partition: Partition) -> int:
    """Position of ``partition`` in :data:`PARTITIONS`."""
    return PARTITIONS.index(partition)


def parse_partition(text: str, field: str = "partition") -> Partition:
    """Read ``"PA PF | DA | DF"`` in any order, case and spacing.

    Raises :class:`InputError` naming ``field`` when a cell is missing, repeated or unknown.
    """
    remedy = "write the four cells PA PF DA DF once each, groups separated by '|', e.g. 'PA PF | DA | DF'"
    groups = [group.replace(",", " ").split() for group in text.upper().split("|")]
    names = [name for group in groups for name in group]
    unknown = [name for name in names if name not in Cell.__members__]
    if unknown:
        raise InputError(Problem(field, text, f"unknown cell {unknown[0]!r}", remedy))
    if sorted(names) != sorted(Cell.__members__) or not all(groups):
        raise InputError(Problem(field, text, "every cell must stand in exactly one group", remedy))
    group_of = {Cell[name]: number for number, group in enumerate(groups) for name in group}
    order: dict[int, int] = {}
    a, b, c, d = (order.setdefault(group_of[cell], len(order)) for cell in Cell)
    return Partition((a, b, c, d))
