"""Remembers station times by shape, so that later blocks of a search look up only shapes that are new."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import row_codes

# Shapes held at most (about 200 bytes each); beyond it the memory starts anew.
MOST_SHAPES = 2_000_000
# Sorted runs of codes that are searched one after the other before they are merged.
MOST_RUNS = 8


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
    """Distinct shapes seen so far and their station times; found by code in a few sorted runs."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._known = 0
        # Codes ascending, and the positions of their shapes. New shapes are a run of their own until the runs are
        # many: merging them one by one would cost more than looking the shapes up.
        self._runs: list[tuple[npt.NDArray[np.uint64], IntArray]] = []
        self._columns: tuple[_Growing, _Growing, _Growing] | None = None

    @property
    def arrays(self) -> tuple[FloatArray, FloatArray]:
        """Seconds [shapes, kinds] and seconds by provenance [shapes, kinds, 4] of all known shapes."""
        assert self._columns is not None
        _, seconds, by_provenance = self._columns
        return seconds.values, by_provenance.values

    def rows(self, shapes: FloatArray, look_up: Callable[[FloatArray], _Station]) -> IntArray:
        """Positions in :attr:`arrays` of ``shapes`` [n, k], distinct rows; those not yet known are looked up first."""
        if self._known + len(shapes) > MOST_SHAPES:
            self._forget()
        codes = row_codes(shapes)
        position = self._find(shapes, codes)
        fresh = np.flatnonzero(position < 0)
        if len(fresh):
            position[fresh] = self._known + np.arange(len(fresh))
            self._append(shapes[fresh], codes[fresh], look_up(shapes[fresh]))
        return position

    def _find(self, shapes: FloatArray, codes: npt.NDArray[np.uint64]) -> IntArray:
        """Position of every shape, -1 of those that are not known."""
        position = np.full(len(codes), -1, dtype=np.int64)
        if self._columns is None:
            return position
        left, known = np.arange(len(codes)), self._columns[0].values
        for run, positions in self._runs:
            slot = np.minimum(np.searchsorted(run, codes[left]), len(run) - 1)
            hit = np.flatnonzero(run[slot] == codes[left])
            at = positions[slot[hit]]
            # Codes may collide: a hit is one only when the whole shape is equal.
            same = (known[at] == shapes[left[hit]]).all(axis=1)
            position[left[hit[same]]] = at[same]
            left = np.delete(left, hit[same])
            if not len(left):
                break
        return position

    def _append(self, shapes: FloatArray, codes: npt.NDArray[np.uint64], station: _Station) -> None:
        order = np.argsort(codes)
        self._runs.append((codes[order], self._known + order))
        if len(self._runs) > MOST_RUNS:
            merged, positions = (np.concatenate(parts) for parts in zip(*self._runs, strict=True))
            order = np.argsort(merged, kind="stable")
            self._runs = [(merged[order], positions[order])]
        self._known += len(codes)
        parts = (shapes, station.seconds, station.by_provenance)
        if self._columns is None:
            shapes_, seconds, by_provenance = (_Growing(part) for part in parts)
            self._columns = (shapes_, seconds, by_provenance)
        else:
            for column, part in zip(self._columns, parts, strict=True):
                column.append(part)
