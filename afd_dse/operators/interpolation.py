"""Interpolation of measured points on ragged grids: linear in the logarithms, exact at points, held outside."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray

# Wider than any log-range of an axis (tokens, batch, context): keeps the keys of two curves apart.
_CURVE_STRIDE = 64.0


@dataclass(frozen=True, slots=True)
class Interpolated:
    """``value`` and, of the same shape, whether each query hit a measured point or lay outside the points."""

    value: FloatArray
    exact: npt.NDArray[np.bool_]
    outside: npt.NDArray[np.bool_]


class CurveSet:
    """Many curves y(x) with their own x points, queried together.

    ``curve`` [N] integer ids 0..K-1, ``x`` [N] > 0 and ``y`` [N] > 0; points of one curve need no order, but its x must
    be distinct. Between points ``log y`` is linear in ``log x``; outside it is held at the nearest point.
    """

    def __init__(self, curve: IntArray, x: FloatArray, y: FloatArray) -> None:
        order = np.lexsort((x, curve))
        self._curve = np.asarray(curve, dtype=np.int64)[order]
        self._x = np.asarray(x, dtype=np.float64)[order]
        self._y = np.asarray(y, dtype=np.float64)[order]
        self._log_x = np.log(self._x)
        self._log_y = np.log(self._y)
        self._key = self._curve * _CURVE_STRIDE + self._log_x
        count = int(self._curve[-1]) + 1 if len(self._curve) else 0
        ids = np.arange(count)
        self._first = np.searchsorted(self._curve, ids, side="left")
        self._last = np.searchsorted(self._curve, ids, side="right") - 1

    def __call__(self, curve: IntArray, x: FloatArray) -> Interpolated:
        """Interpolate ``x`` [n] on the curves ``curve`` [n]."""
        log_x = np.log(x)
        first, last = self._first[curve], self._last[curve]
        position = np.searchsorted(self._key, curve * _CURVE_STRIDE + log_x, side="right") - 1
        left = np.clip(position, first, last)
        right = np.clip(left + 1, first, last)
        span = self._log_x[right] - self._log_x[left]
        weight = np.clip((log_x - self._log_x[left]) / np.where(span > 0, span, 1.0), 0.0, 1.0)
        value = np.exp((1.0 - weight) * self._log_y[left] + weight * self._log_y[right])
        at_left, at_right = self._x[left] == x, self._x[right] == x
        value = np.where(at_left, self._y[left], np.where(at_right, self._y[right], value))
        outside = (x < self._x[first]) | (x > self._x[last])
        return Interpolated(value, at_left | at_right, outside)


class SurfaceSet:
    """Many surfaces y(u, v) on ragged grids: every u of a surface has its own points v.

    ``surface`` [N] integer ids 0..K-1, ``u``, ``v``, ``y`` [N] > 0. Each (surface, u) is a curve over v; between two
    neighbouring u the two curves are blended linearly in ``log u``; outside it is held.
    """

    def __init__(self, surface: IntArray, u: FloatArray, v: FloatArray, y: FloatArray) -> None:
        rows = np.stack([np.asarray(surface, dtype=np.float64), np.asarray(u, dtype=np.float64)], axis=1)
        knots, curve = np.unique(rows, axis=0, return_inverse=True)
        curve = curve.reshape(-1).astype(np.int64)
        self._curves = CurveSet(curve, v, y)
        self._u = knots[:, 1]
        self._log_u = np.log(self._u)
        self._surface = knots[:, 0].astype(np.int64)
        self._key = self._surface * _CURVE_STRIDE + self._log_u
        ids = np.arange(int(self._surface[-1]) + 1 if len(self._surface) else 0)
        self._first = np.searchsorted(self._surface, ids, side="left")
        self._last = np.searchsorted(self._surface, ids, side="right") - 1

    def __call__(self, surface: IntArray, u: FloatArray, v: FloatArray) -> Interpolated:
        """Interpolate at ``u``, ``v`` [n] on the surfaces ``surface`` [n]."""
        log_u = np.log(u)
        first, last = self._first[surface], self._last[surface]
        position = np.searchsorted(self._key, surface * _CURVE_STRIDE + log_u, side="right") - 1
        left = np.clip(position, first, last)
        right = np.clip(left + 1, first, last)
        span = self._log_u[right] - self._log_u[left]
        weight = np.clip((log_u - self._log_u[left]) / np.where(span > 0, span, 1.0), 0.0, 1.0)
        at_left, at_right = self._u[left] == u, self._u[right] == u
        weight = np.where(at_left, 0.0, np.where(at_right, 1.0, weight))
        low, high = self._curves(left, v), self._curves(right, v)
        blended = np.exp((1.0 - weight) * np.log(low.value) + weight * np.log(high.value))
        value = np.where(weight == 0.0, low.value, np.where(weight == 1.0, high.value, blended))
        exact = (at_left & low.exact) | (at_right & high.exact)
        outside_u = (u < self._u[first]) | (u > self._u[last])
        return Interpolated(value, exact, outside_u | np.where(weight == 1.0, high.outside, low.outside))
