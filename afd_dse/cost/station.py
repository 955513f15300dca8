"""A station of the pipeline: its time per kind of layer, looked up once per distinct shape."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.model import LayerKind
from afd_dse.cost.columns import Column, distinct_rows
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.shape_memory import ShapeMemory
from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.latency import FloatArray, Latency, Provenance


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator's share of a station: seconds and provenance per row, for the layers of kind ``kind``."""

    name: str
    kind: int
    latency: Latency


@dataclass(slots=True)
class StationTime:
    """Seconds [n, kinds] of one layer and how many of them have which provenance [n, kinds, 4].

    For a single row also its operators.
    """

    seconds: FloatArray
    by_provenance: FloatArray
    operations: list[Operation] = field(default_factory=list)

    @classmethod
    def zeros(cls, rows: int, kinds: int) -> "StationTime":
        """An empty station."""
        return cls(np.zeros((rows, kinds)), np.zeros((rows, kinds, len(Provenance))))

    def add(self, name: str, kind: int, latency: Latency, rows: npt.NDArray[np.int64]) -> None:
        """Add an operator that runs on ``rows``."""
        self.seconds[rows, kind] += latency.seconds
        self.by_provenance[rows, kind, latency.provenance] += latency.seconds
        # Operators are kept where someone can read them: for a single shape.
        if len(self.seconds) == 1 and len(rows):
            self.operations.append(Operation(name, kind, latency))

    def plus(self, other: "StationTime") -> "StationTime":
        """Both stations' work on the same GPUs, one after the other."""
        return StationTime(
            self.seconds + other.seconds,
            self.by_provenance + other.by_provenance,
            [*self.operations, *other.operations],
        )

    def where(self, mask: npt.NDArray[np.bool_], other: "StationTime") -> "StationTime":
        """The station where ``mask`` [n, kinds] is true, ``other`` elsewhere."""
        operations = [op for op in self.operations if mask[0, op.kind]]
        operations += [op for op in other.operations if not mask[0, op.kind]]
        return StationTime(
            np.where(mask, self.seconds, other.seconds),
            np.where(mask[:, :, None], self.by_provenance, other.by_provenance),
            operations,
        )

    def times(self, factor: FloatArray) -> "StationTime":
        """Every row ``factor`` [n] times as long."""
        operations = [
            Operation(op.name, op.kind, Latency(op.latency.seconds * factor, op.latency.provenance))
            for op in self.operations
        ]
        return StationTime(
            self.seconds * factor[:, None], self.by_provenance * factor[:, None, None], operations
        )

    def at(self, rows: npt.NDArray[np.int64], length: int) -> "StationTime":
        """The station on ``rows`` of ``length`` rows, nothing on the others."""
        if len(rows) == length:
            return self
        whole = StationTime.zeros(length, self.seconds.shape[1])
        whole.seconds[rows], whole.by_provenance[rows] = self.seconds, self.by_provenance
        return whole

    def take(self, rows: npt.NDArray[np.int64]) -> "StationTime":
        """Repeat rows by index (from distinct rows back to candidates), without their operators."""
        return StationTime(self.seconds[rows], self.by_provenance[rows])


@dataclass(frozen=True, slots=True)
class Lookup:
    """Shapes of one pool and one kind of layer whose operators are to be added to a station.

    ``columns`` the shapes' columns [n]; ``members`` their rows in ``station``; ``number`` that of the kind.
    """

    scenario: Scenario
    pool: int
    number: int
    kind: LayerKind
    columns: dict[str, FloatArray]
    station: StationTime
    members: npt.NDArray[np.int64]

    @property
    def database(self) -> OperatorDatabase:
        """The pool's operator database."""
        return self.scenario.databases[self.pool]

    def add(self, name: str, latency: Latency, active: npt.NDArray[np.bool_] | None = None) -> None:
        """Add an operator on all shapes, or on the ``active`` ones that ``latency`` is for."""
        rows = self.members if active is None else self.members[active]
        self.station.add(name, self.number, latency, rows)


OfKind = Callable[[Lookup], None]


def looked_up(scenario: Scenario, side: str, columns: dict[str, Column], of_kind: OfKind) -> StationTime:
    """Station of every row of ``columns`` (one of them ``pool``), by ``of_kind`` for each pool and kind of layer.

    Distinct shapes are looked up once, and remembered under the name ``side`` for later blocks of the scenario.
    """
    names = list(columns)
    table = np.stack([np.asarray(column, dtype=np.float64) for column in columns.values()], axis=1)
    if len(table) <= 1:
        return _station(scenario, names, table, of_kind)
    first, inverse = distinct_rows(table)
    memory: ShapeMemory = scenario.shape_memory.setdefault(side, ShapeMemory())
    found = memory.rows(table[first], lambda shapes: _station(scenario, names, shapes, of_kind))
    return StationTime(*memory.arrays).take(found[inverse])


def _station(scenario: Scenario, names: list[str], table: FloatArray, of_kind: OfKind) -> StationTime:
    station = StationTime.zeros(len(table), len(scenario.model.kinds))
    rows = dict(zip(names, table.T, strict=True))
    for pool in np.unique(rows["pool"]).astype(int):
        members = np.flatnonzero(rows["pool"] == pool)
        part = {name: column[members] for name, column in rows.items()}
        for number, kind in enumerate(scenario.model.kinds):
            of_kind(Lookup(scenario, int(pool), number, kind, part, station, members))
    return station
