"""Remembers station times by shape, so that later blocks of a search look up only shapes that are new."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import row_codes

# Shapes held at most (about 200 bytes each); beyond it the memory starts anew.
MOST_SHAPES = 2_000_000
# A run of codes takes in the one before it where that is not so many times as long: so there are few, and each code
# is indexed anew only when its run has grown by as much.
RUN_RATIO = 4
# Codes up to which a search among sorted ones costs less than hashing.
FEW_CODES = 2_000
Codes = npt.NDArray[np.uint64]


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
    def array(self) -> FloatArray:
        return self._store[: self._used]


@dataclass(frozen=True)
class _Run:
    """Codes in rising order, and the ``positions`` of their shapes."""

    codes: Codes
    positions: IntArray

    @classmethod
    def of(cls, codes: Codes, positions: IntArray) -> "_Run":
        """The distinct ones of ``codes`` [n], each with the first of its positions."""
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        first = order[np.append(True, ordered[1:] != ordered[:-1])]
        return cls(codes[first], positions[first])

    @cached_property
    def _hashed(self) -> pd.Index:
        return pd.Index(self.codes)

    def find(self, codes: Codes) -> IntArray:
        """Position of each of ``codes`` [n], -1 of those that are not here."""
        if len(codes) > FEW_CODES:
            place = self._hashed.get_indexer(pd.Index(codes))
            return np.where(place >= 0, self.positions[place], -1)
        place = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return np.where(self.codes[place] == codes, self.positions[place], -1)

    def with_run(self, other: "_Run") -> "_Run":
        """Both as one."""
        codes = np.concatenate([self.codes, other.codes])
        return _Run.of(codes, np.concatenate([self.positions, other.positions]))


class ShapeMemory:
    """Distinct shapes seen so far and their station times; found by code in a few runs of them."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._known = 0
        # Codes, and the positions of their shapes. New shapes are a run of their own until it is worth merging: to
        # index all of them anew each time would cost more than looking the shapes up.
        self._runs: list[_Run] = []
        self._columns: tuple[_Growing, _Growing, _Growing] | None = None

    @property
    def arrays(self) -> tuple[FloatArray, FloatArray]:
        """Seconds [shapes, kinds] and seconds by provenance [shapes, kinds, 4] of all known shapes."""
        assert self._columns is not None
        _, seconds, by_provenance = self._columns
        return seconds.array, by_provenance.array

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

    def _find(self, shapes: FloatArray, codes: Codes) -> IntArray:
        """Position of every shape, -1 of those that are not known."""
        position = np.full(len(codes), -1, dtype=np.int64)
        if self._columns is None:
            return position
        left = np.arange(len(codes))
        for run in self._runs:
            found = run.find(codes[left])
            position[left] = found
            left = left[found < 0]
            if not len(left):
                break
        # Codes may collide: a shape is known only when the whole of it is equal.
        found = np.flatnonzero(position >= 0)
        same = np.take(self._columns[0].array, position[found], axis=0) == np.take(shapes, found, axis=0)
        if not same.all():
            position[found[~same.all(axis=1)]] = -1
        return position

    def _append(self, shapes: FloatArray, codes: Codes, station: _Station) -> None:
        run = _Run.of(codes, self._known + np.arange(len(codes)))
        while self._runs and len(self._runs[-1].codes) <= RUN_RATIO * len(run.codes):
            run = self._runs.pop().with_run(run)
        self._runs.append(run)
        self._known += len(shapes)
        parts = (shapes, station.seconds, station.by_provenance)
        if self._columns is None:
            shapes_, seconds, by_provenance = (_Growing(part) for part in parts)
            self._columns = (shapes_, seconds, by_provenance)
        else:
            for column, part in zip(self._columns, parts, strict=True):
                column.append(part)
