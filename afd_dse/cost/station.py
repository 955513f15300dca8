"""A station of the pipeline: its time per kind of layer, looked up once per distinct shape."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.model import LayerKind
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.shape_memory import ShapeMemory
from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.latency import FloatArray, IntArray, Latency, Provenance
from afd_dse.rows import Column, distinct_rows


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator's share of a station: seconds and provenance per row, for the layers of kind ``kind``."""

    name: str
    kind: int
    latency: Latency


@dataclass(slots=True)
class StationTable:
    """Station times while they are looked up: seconds [n, kinds] of one layer, and by provenance [n, kinds, 4].

    For a single row also its operators.
    """

    seconds: FloatArray
    by_provenance: FloatArray
    operations: list[Operation] = field(default_factory=list)

    @classmethod
    def zeros(cls, rows: int, kinds: int) -> "StationTable":
        """An empty station."""
        return cls(np.zeros((rows, kinds)), np.zeros((rows, kinds, len(Provenance))))

    def add(self, part: "PartTable", rows: IntArray | slice, kinds: Sequence[int]) -> None:
        """Add operators that run on ``rows``, the same ones for every one of ``kinds``."""
        for kind in kinds:
            self.seconds[rows, kind] += part.seconds
            self.by_provenance[rows, kind] += part.by_provenance
            self.operations += [Operation(name, kind, latency) for name, latency in part.operations]

    @property
    def time(self) -> "StationTime":
        """What is read of the station once it is complete."""
        return StationTime(self.seconds, trust_in(self.by_provenance), self.operations)


# Seconds by provenance [r, 4] of some rows [r] of a station, given how often each kind of layer counts ([kinds] or
# [r, kinds]).
Trust = Callable[[FloatArray, IntArray], FloatArray]


def trust_in(by_provenance: FloatArray, found: IntArray | None = None) -> Trust:
    """Trust in stations whose seconds by provenance are those of ``by_provenance`` [m, kinds, 4], at ``found`` [n]."""

    def trust(weights: FloatArray, rows: IntArray) -> FloatArray:
        how = "nkp,k->np" if weights.ndim == 1 else "nkp,nk->np"
        at = rows if found is None else found[rows]
        return np.asarray(np.einsum(how, by_provenance[at], weights))

    return trust


@dataclass(frozen=True, slots=True)
class StationTime:
    """Seconds [n, kinds] of one layer, and on demand how many of them have which provenance.

    Few ask for provenance, and it is twice as many numbers as the seconds: ``trust`` computes it when asked, for the
    rows that are asked for. For a single row also the operators.
    """

    seconds: FloatArray
    trust: Trust
    operations: list[Operation] = field(default_factory=list)

    def plus(self, other: "StationTime") -> "StationTime":
        """Both stations' work on the same GPUs, one after the other."""
        return StationTime(
            self.seconds + other.seconds,
            lambda weights, rows: self.trust(weights, rows) + other.trust(weights, rows),
            [*self.operations, *other.operations],
        )

    def where(self, mask: npt.NDArray[np.bool_], other: "StationTime") -> "StationTime":
        """The station where ``mask`` [n, kinds] is true, ``other`` elsewhere."""
        operations = [op for op in self.operations if mask[0, op.kind]]
        operations += [op for op in other.operations if not mask[0, op.kind]]

        def trust(weights: FloatArray, rows: IntArray) -> FloatArray:
            mine = mask[rows]
            return self.trust(weights * mine, rows) + other.trust(weights * ~mine, rows)

        return StationTime(np.where(mask, self.seconds, other.seconds), trust, operations)

    def times(self, factor: FloatArray) -> "StationTime":
        """Every row ``factor`` [n] times as long."""
        operations = [
            Operation(op.name, op.kind, Latency(op.latency.seconds * factor, op.latency.provenance))
            for op in self.operations
        ]
        return StationTime(
            self.seconds * factor[:, None],
            lambda weights, rows: self.trust(weights, rows) * factor[rows, None],
            operations,
        )

    def take(self, rows: IntArray) -> "StationTime":
        """Repeat rows by index (from distinct rows back to candidates), without their operators."""
        return StationTime(
            np.take(self.seconds, rows, axis=0), lambda weights, some: self.trust(weights, rows[some])
        )


@dataclass(slots=True)
class PartTable:
    """Some operators of a station while they are looked up: seconds [n], and by provenance [n, 4].

    For a single row also the operators themselves, for those who can read them.
    """

    seconds: FloatArray
    by_provenance: FloatArray
    operations: list[tuple[str, Latency]] = field(default_factory=list)

    @classmethod
    def zeros(cls, rows: int) -> "PartTable":
        """No operators yet."""
        return cls(np.zeros(rows), np.zeros((rows, len(Provenance))))

    def add(self, name: str, latency: Latency, active: npt.NDArray[np.bool_] | None = None) -> None:
        """Add an operator on all rows, or on the ``active`` ones that ``latency`` is for."""
        if not latency.seconds.size:
            return
        rows = slice(None) if active is None else np.flatnonzero(active)
        self.seconds[rows] += latency.seconds
        level = latency.provenance
        if (level == level[0]).all():
            self.by_provenance[rows, level[0]] += latency.seconds
        else:
            each = np.arange(len(self.seconds)) if active is None else rows
            self.by_provenance[each, level] += latency.seconds
        if len(self.seconds) == 1:
            self.operations.append((name, latency))


@dataclass(frozen=True, slots=True)
class Lookup:
    """Shapes of one pool whose operators are to be added for one kind of layer; ``columns`` the shapes' [n]."""

    scenario: Scenario
    pool: int
    kind: LayerKind
    columns: dict[str, FloatArray]
    table: PartTable

    @property
    def rows(self) -> int:
        """How many shapes there are."""
        return len(self.table.seconds)

    @property
    def database(self) -> OperatorDatabase:
        """The pool's operator database."""
        return self.scenario.databases[self.pool]

    def add(self, name: str, latency: Latency, active: npt.NDArray[np.bool_] | None = None) -> None:
        """Add an operator on all shapes, or on the ``active`` ones that ``latency`` is for."""
        self.table.add(name, latency, active)


@dataclass(frozen=True, slots=True)
class Part:
    """Operators of a station, by ``add``: the same for kinds of layers that are equal in what they depend ``on``.

    So they are looked up once for all of them.
    """

    add: Callable[[Lookup], None]
    on: Callable[[LayerKind], Hashable]


class Shapes:
    """The distinct rows of some columns [n] (one of them ``pool``), to look stations up for."""

    def __init__(self, scenario: Scenario, columns: Mapping[str, Column]) -> None:
        self._scenario = scenario
        self._rows = len(columns["pool"])
        self._first, self._inverse = distinct_rows(list(columns.values()))
        self._columns = {
            name: np.asarray(column[self._first], dtype=np.float64) for name, column in columns.items()
        }

    def station(self, parts: Sequence[Part], side: str | None = None) -> StationTime:
        """Station of every row: all ``parts``, for each pool and kind of layer.

        Distinct shapes are looked up once, and remembered under the name ``side`` for later blocks of the scenario;
        without a name they are not: formulas cost less than remembering.
        """
        if self._rows <= 1 or side is None:
            time = self._look_up(self._columns, parts).time
            return time if len(self._first) == self._rows else time.take(self._inverse)
        memory: ShapeMemory = self._scenario.shape_memory.setdefault(side, ShapeMemory())
        table = np.stack(list(self._columns.values()), axis=1)
        found = memory.rows(
            table,
            lambda shapes: self._look_up(dict(zip(self._columns, shapes.T, strict=True)), parts),
        )
        seconds, by_provenance = memory.arrays
        at = found if len(self._first) == self._rows else found[self._inverse]
        return StationTime(np.take(seconds, at, axis=0), trust_in(by_provenance, at))

    def _look_up(self, shapes: dict[str, FloatArray], parts: Sequence[Part]) -> StationTable:
        scenario, kinds = self._scenario, self._scenario.model.kinds
        station = StationTable.zeros(len(shapes["pool"]), len(kinds))
        pools = np.unique(shapes["pool"]).astype(int)
        for pool in pools:
            # NOTE: a slice instead of indices spares a copy of every column and makes adding several times faster.
            members = slice(None) if len(pools) == 1 else np.flatnonzero(shapes["pool"] == pool)
            columns = {name: column[members] for name, column in shapes.items()}
            for part in parts:
                alike: dict[Hashable, list[int]] = {}
                for number, kind in enumerate(kinds):
                    alike.setdefault(part.on(kind), []).append(number)
                for numbers in alike.values():
                    found = PartTable.zeros(len(columns["pool"]))
                    part.add(Lookup(scenario, int(pool), kinds[numbers[0]], columns, found))
                    station.add(found, members, numbers)
        return station


def shapes_of(scenario: Scenario, shape: Any) -> Shapes:
    """The distinct rows of a dataclass of columns, one of them ``pool``."""
    return Shapes(scenario, {name: getattr(shape, name) for name in shape.__slots__})
