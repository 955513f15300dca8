"""Remembers station times by shape, so that later blocks of a search look up only shapes that are new."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from afd_dse.cost.columns import row_codes
from afd_dse.operators.latency import FloatArray, IntArray

# Shapes held at most (about 200 bytes each); beyond it the memory starts anew.
MOST_SHAPES = 2_000_000


class _Station(Protocol):
    seconds: FloatArray
    by_provenance: FloatArray


class _Growing:
    """An array whose rows are appended at amortised constant cost."""

    def __init__(self, first: FloatArray) -> None:
        self._store, self._used = first, len(first)

    def append(self, rows: FloatArray) -> None:
        need = self._used + len(rows)
        if need > len(self._store):
            grown = np.empty((2 * need, *self._store.shape[1:]), dtype=self._store.dtype)
            grown[: self._used] = self._store[: self._used]
            self._store = grown
        self._store[self._used : need] = rows
        self._used = need

    @property
    def values(self) -> FloatArray:
        return self._store[: self._used]


class ShapeMemory:
    """Distinct shapes seen so far and their station times; found by code in a sorted index."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._codes: npt.NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self._positions: IntArray = np.zeros(0, dtype=np.int64)
        self._columns: tuple[_Growing, _Growing, _Growing] | None = None

    @property
    def arrays(self) -> tuple[FloatArray, FloatArray]:
        """Seconds [shapes, kinds] and seconds by provenance [shapes, kinds, 4] of all known shapes."""
        assert self._columns is not None
        _, seconds, by_provenance = self._columns
        return seconds.values, by_provenance.values

    def rows(self, shapes: FloatArray, look_up: Callable[[FloatArray], _Station]) -> IntArray:
        """Positions in :attr:`arrays` of ``shapes`` [n, k], distinct rows; those not yet known are looked up first."""
        if len(self._codes) + len(shapes) > MOST_SHAPES:
            self._forget()
        codes = row_codes(shapes)
        position, known = self._find(shapes, codes)
        if not known.all():
            fresh = np.flatnonzero(~known)
            position[fresh] = len(self._codes) + np.arange(len(fresh))
            self._append(shapes[fresh], codes[fresh], look_up(shapes[fresh]))
        return position

    def _find(
        self, shapes: FloatArray, codes: npt.NDArray[np.uint64]
    ) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        if self._columns is None:
            return np.zeros(len(codes), dtype=np.int64), np.zeros(len(codes), dtype=bool)
        slot = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        position = self._positions[slot]
        # Codes may collide: a hit is one only when the whole shape is equal.
        return position, (self._columns[0].values[position] == shapes).all(axis=1)

    def _append(self, shapes: FloatArray, codes: npt.NDArray[np.uint64], station: _Station) -> None:
        order = np.argsort(codes)
        at = np.searchsorted(self._codes, codes[order])
        self._positions = np.insert(self._positions, at, len(self._codes) + order)
        self._codes = np.insert(self._codes, at, codes[order])
        parts = (shapes, station.seconds, station.by_provenance)
        if self._columns is None:
            shapes_, seconds, by_provenance = (_Growing(part) for part in parts)
            self._columns = (shapes_, seconds, by_provenance)
        else:
            for column, part in zip(self._columns, parts, strict=True):
                column.append(part)
