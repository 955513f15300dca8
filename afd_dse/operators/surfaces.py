"""Efficiency surfaces of keyed tables: bands of one kernel each, blends of neighbouring keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray, Latency, Provenance, ProvenanceArray

# Rows faster than light by more than this are wrong and excluded (cost model: clip above 1.05).
FASTEST = 1.05
# A row that takes this many times as long as one with more work was disturbed while it was timed (kernel heuristics
# alone make dips of up to 1.5) and is excluded.
DISTURBED = 2.0
# Efficiency where nothing was measured at all.
DEFAULT_EFFICIENCY = 0.5

_KEY_STRIDE = 64.0


@dataclass(frozen=True, slots=True)
class Blend:
    """Which keys answer each row: ``keys`` and ``weights`` [n, c], rows of ``weights`` sum to 1, ``claim`` [n].

    ``scale`` [n, c], if given, multiplies ``u``: a key with half the heads is asked at twice the batch, equal work.
    """

    keys: IntArray
    weights: FloatArray
    claim: ProvenanceArray
    scale: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Per row: efficiency, the shortest latency ever measured on these surfaces, whether it is a measured point."""

    efficiency: FloatArray
    floor: FloatArray
    exact: npt.NDArray[np.bool_]


def preferred_kernels(
    key: IntArray, v: FloatArray, kernel: npt.NDArray[np.object_], preference: Sequence[str]
) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """Choose one kernel per key and length: (rows kept [N], band of each row [N]).

    Kernels of a key that cover disjoint ranges of ``v`` are bands of a framework's own dispatch and are all kept;
    where ranges overlap, the one first in ``preference`` (unlisted ones last, by number of points) stays.
    """
    keep = np.zeros(len(key), dtype=bool)
    band = np.zeros(len(key), dtype=np.int64)
    names, code = np.unique(kernel.astype(str), return_inverse=True)
    if len(names) == 1:
        return np.ones(len(key), dtype=bool), band
    rank = np.array([preference.index(n) if n in preference else len(preference) for n in names])
    pair, row_pair = np.unique(np.stack([key, code.astype(np.int64)]), axis=1, return_inverse=True)
    row_pair = row_pair.reshape(-1)
    count = np.bincount(row_pair)
    low, high = np.full(len(count), np.inf), np.zeros(len(count))
    np.minimum.at(low, row_pair, v)
    np.maximum.at(high, row_pair, v)
    accepted: dict[int, list[int]] = {}
    for one in np.lexsort((-count, rank[pair[1]], pair[0])):
        others = accepted.setdefault(int(pair[0, one]), [])
        if all(high[one] < low[other] or low[one] > high[other] for other in others):
            others.append(int(one))
    for chosen in accepted.values():
        for number, one in enumerate(sorted(chosen, key=lambda pair_id: low[pair_id])):
            rows = row_pair == one
            keep[rows], band[rows] = True, number
    return keep, band


def disturbed(
    key: IntArray, u: FloatArray, v: FloatArray, measured: FloatArray, kernel: npt.NDArray[np.object_]
) -> npt.NDArray[np.bool_]:
    """Rows [N] that took ``DISTURBED`` times as long as the same kernel with more work, along ``u`` or along ``v``."""
    code = np.unique(kernel.astype(str), return_inverse=True)[1]
    found = np.zeros(len(key), dtype=bool)
    for fixed, along in ((u, v), (v, u)):
        # From the most work down: the running minimum of a curve is the least that more work took.
        order = np.lexsort((-along, fixed, code, key))
        parts = (key[order], code[order], fixed[order])
        curve = np.cumsum(np.append(False, np.any([np.diff(part) != 0 for part in parts], axis=0)))
        # Falling offsets keep the minimum of one curve from reaching into the next.
        logarithm = np.log(measured[order])
        offset = curve * (logarithm.max(initial=0.0) - logarithm.min(initial=0.0) + 1.0)
        least = np.minimum.accumulate(logarithm - offset) + offset
        found[order] |= logarithm > least + np.log(DISTURBED)
    return found


class Curves:
    """Ragged curves of log latency over log v: monotone cubic (Fritsch-Carlson) inside, told apart outside.

    Rows sorted by (curve, v); ``seconds`` is measured. Inside a curve the interpolant is exact at points and monotone
    wherever the points are.
    """

    def __init__(self, curve: IntArray, v: FloatArray, seconds: FloatArray, efficiency: FloatArray) -> None:
        self._curve, self._v, self._seconds, self._efficiency = curve, v, seconds, efficiency
        self._x, self._y = np.log(v), np.log(seconds)
        self._key = curve * _KEY_STRIDE + self._x
        ids = np.arange(int(curve[-1]) + 1)
        self._first = np.searchsorted(curve, ids, side="left")
        self._last = np.searchsorted(curve, ids, side="right") - 1
        self._slope = self._slopes()

    def _slopes(self) -> FloatArray:
        inner = np.diff(self._curve) == 0
        step = np.where(inner, np.diff(self._x), 1.0)
        secant = np.where(inner, np.diff(self._y) / step, 0.0)
        before, after = np.append(0.0, secant), np.append(secant, 0.0)
        has_before, has_after = np.append(False, inner), np.append(inner, False)
        width_before, width_after = np.append(1.0, step), np.append(step, 1.0)
        near, far = 2.0 * width_after + width_before, width_after + 2.0 * width_before
        rising = before * after > 0.0
        harmonic = (near + far) / (near / np.where(rising, before, 1.0) + far / np.where(rising, after, 1.0))
        middle = np.where(rising, harmonic, 0.0)
        return np.where(has_before & has_after, middle, before + after)

    def __call__(
        self, curve: IntArray, v: FloatArray
    ) -> tuple[FloatArray, FloatArray, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """At ``v`` [n] of ``curve`` [n]: seconds, efficiency of the nearer end, whether outside, whether a point."""
        x = np.log(v)
        first, last = self._first[curve], self._last[curve]
        left = np.clip(np.searchsorted(self._key, curve * _KEY_STRIDE + x, side="right") - 1, first, last)
        right = np.minimum(left + 1, last)
        width = np.where(right > left, self._x[right] - self._x[left], 1.0)
        t = np.clip((x - self._x[left]) / width, 0.0, 1.0)
        log_seconds = (
            (2.0 * t - 3.0) * t * t * (self._y[left] - self._y[right])
            + self._y[left]
            + width * t * (1.0 - t) * ((1.0 - t) * self._slope[left] - t * self._slope[right])
        )
        at_left, at_right = self._v[left] == v, self._v[right] == v
        seconds = np.where(
            at_left, self._seconds[left], np.where(at_right, self._seconds[right], np.exp(log_seconds))
        )
        below, above = v < self._v[first], v > self._v[last]
        edge = np.where(below, self._efficiency[first], self._efficiency[last])
        return seconds, edge, below | above, at_left | at_right


Light = Callable[[IntArray, FloatArray, FloatArray], FloatArray]
"""Speed of light [n] in seconds at the reference rates, of keys [n] at u [n], v [n]."""


class Surfaces:
    """Efficiency over (u, v) for many keys, from measured latencies and their speed of light.

    ``key`` [N] ids 0..K-1, ``u``, ``v``, ``measured`` [N] > 0 (seconds), ``kernel`` [N] names. Between points it is the
    *latency* that is interpolated, monotone cubic in log v and linear in u, for a launch plus work is linear and its
    efficiency is not; outside the points efficiency is held. Along ``v`` a kernel serves up to its longest
    measured point (frameworks switch at a threshold, and it was measured), then the next one does; nothing is
    interpolated across kernels.
    """

    def __init__(
        self,
        key: IntArray,
        u: FloatArray,
        v: FloatArray,
        measured: FloatArray,
        kernel: npt.NDArray[np.object_],
        light: Light,
        preference: Sequence[str] = (),
    ) -> None:
        self.light = light
        with np.errstate(divide="ignore", invalid="ignore"):
            efficiency = light(key, u, v) / measured
        valid = np.isfinite(efficiency) & (efficiency > 0.0) & (efficiency <= FASTEST)
        rows = np.flatnonzero(valid)
        rows = rows[~disturbed(key[rows], u[rows], v[rows], measured[rows], kernel[rows])]
        self.excluded = len(key) - len(rows)
        keep, band = preferred_kernels(key[rows], v[rows], kernel[rows], preference)
        rows, band = rows[keep], band[keep]
        order = np.lexsort((v[rows], u[rows], band, key[rows]))
        rows, band = rows[order], band[order]
        key, u, v = key[rows], u[rows], v[rows]
        measured, efficiency, kernel = measured[rows], efficiency[rows], kernel[rows]
        # The rows that answer, for benchmarks and checks.
        self.key, self.u, self.v, self.measured, self.kernel = key, u, v, measured, kernel
        self.keys_present = np.unique(key)

        new_band = np.append(True, (np.diff(key) != 0) | (np.diff(band) != 0))
        row_band = np.cumsum(new_band) - 1
        bands = int(row_band[-1]) + 1 if len(row_band) else 0
        end, self._floor = np.zeros(bands), np.full(bands, np.inf)
        np.maximum.at(end, row_band, v)
        np.minimum.at(self._floor, row_band, measured)
        self._band_key = key[new_band]
        self._band_kernel = kernel[new_band].astype(str)
        self._position = self._band_key * _KEY_STRIDE + np.log(end)

        new_curve = new_band | np.append(True, np.diff(u) != 0)
        self._curves = Curves((np.cumsum(new_curve) - 1).astype(np.int64), v, measured, efficiency)
        self._curve_u = u[new_curve]
        self._curve_position = row_band[new_curve] * _KEY_STRIDE + np.log(self._curve_u)
        ids = np.arange(bands)
        self._first = np.searchsorted(row_band[new_curve], ids, side="left")
        self._last = np.searchsorted(row_band[new_curve], ids, side="right") - 1

    def _band_of(self, key: IntArray, v: FloatArray) -> IntArray:
        # The tiny allowance keeps a point at a band's end in that band in spite of rounding of the logarithm.
        found = np.searchsorted(self._position, key * _KEY_STRIDE + np.log(v) - 1e-9, side="left")
        last = np.searchsorted(self._band_key, key, side="right") - 1
        return np.minimum(found, last).astype(np.int64)

    def kernel_at(self, key: int, v: float) -> str:
        """Name of the kernel that answers ``key`` at length ``v``."""
        return str(self._band_kernel[self._band_of(np.array([key]), np.array([v]))[0]])

    def _column(
        self, key: IntArray, curve: IntArray, v: FloatArray
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Seconds at the reference rates on one measured ``u`` each, and whether that is a measured point."""
        seconds, edge, outside, exact = self._curves(curve, v)
        if outside.any():
            held = self.light(key[outside], self._curve_u[curve[outside]], v[outside]) / edge[outside]
            seconds[outside] = held
        return seconds, exact

    def _one(
        self, key: IntArray, band: IntArray, u: FloatArray, v: FloatArray
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Efficiency of ``key`` [n] in ``band`` [n] at ``u``, ``v``, and whether it is a measured point."""
        first, last = self._first[band], self._last[band]
        found = (
            np.searchsorted(self._curve_position, band * _KEY_STRIDE + np.log(u) + 1e-12, side="right") - 1
        )
        left = np.clip(found, first, last)
        right = np.minimum(left + 1, last)
        u_left, u_right = self._curve_u[left], self._curve_u[right]
        weight = np.clip((u - u_left) / np.where(u_right > u_left, u_right - u_left, 1.0), 0.0, 1.0)
        seconds, exact = self._column(key, left, v)
        between = weight > 0.0
        if between.any():
            other, _ = self._column(key[between], right[between], v[between])
            share = weight[between]
            seconds[between] = (1.0 - share) * seconds[between] + share * other
        anchor = np.clip(u, self._curve_u[first], self._curve_u[last])
        return self.light(key, anchor, v) / seconds, exact & (u_left == u)

    def __call__(self, blend: Blend, u: FloatArray, v: FloatArray) -> Estimate:
        """Efficiency at ``u``, ``v`` [n] of the blended keys (geometric mean by weight).

        A key of a blend whose kernel differs from that of the row's heaviest key there is left out.
        """
        rows, columns = blend.keys.shape
        band = self._band_of(blend.keys.reshape(-1), np.repeat(v, columns)).reshape(rows, columns)
        main = band[np.arange(rows), np.argmax(blend.weights, axis=1)]
        same = self._band_kernel[band] == self._band_kernel[main][:, None]
        weights = np.where(same, blend.weights, 0.0)
        weights /= weights.sum(axis=1, keepdims=True)
        logarithm, floor, efficiency = np.zeros(rows), np.full(rows, np.inf), np.zeros(rows)
        exact = np.zeros(rows, dtype=bool)
        for column in range(columns):
            used = np.flatnonzero(weights[:, column] > 0.0)
            if not len(used):
                continue
            share = weights[used, column]
            at = u[used] if blend.scale is None else u[used] * blend.scale[used, column]
            found, at_point = self._one(blend.keys[used, column], band[used, column], at, v[used])
            logarithm[used] += share * np.log(found)
            whole = share == 1.0
            efficiency[used[whole]] = found[whole]
            exact[used] = whole & at_point & (at == u[used])
            floor[used] = np.minimum(floor[used], self._floor[band[used, column]])
        blended = weights.max(axis=1) < 1.0
        efficiency[blended] = np.exp(logarithm[blended])
        return Estimate(efficiency, floor, exact)


def blend_counts(
    present: FloatArray, wanted: FloatArray
) -> tuple[IntArray, FloatArray, npt.NDArray[np.bool_]]:
    """Neighbours of ``wanted`` [n] in the sorted ``present`` [K]: (indices [n, 2], weights [n, 2], exact [n]).

    Weights are linear in the logarithm; outside the nearest end answers alone.
    """
    right = np.clip(np.searchsorted(present, wanted), 0, len(present) - 1)
    left = np.where(present[right] > wanted, np.maximum(right - 1, 0), right)
    right = np.where(present[left] >= wanted, left, np.minimum(left + 1, len(present) - 1))
    span = np.where(right > left, np.log(present[right] / present[left]), 1.0)
    weight = np.where(right > left, np.log(wanted / present[left]) / span, 0.0)
    return np.stack([left, right], axis=1), np.stack([1.0 - weight, weight], axis=1), present[left] == wanted


def answer(light: FloatArray, estimate: Estimate, claim: ProvenanceArray) -> Latency:
    """Latency from the asked accelerator's speed of light; never below the shortest launch that was measured.

    MEASURED needs an exact point and an unweakened ``claim``.
    """
    seconds = np.maximum(light / estimate.efficiency, estimate.floor)
    weakest = np.where(estimate.exact, Provenance.MEASURED, Provenance.INTERPOLATED)
    return Latency(seconds, np.maximum(claim, weakest).astype(np.int8))


def bare(light: FloatArray) -> Latency:
    """Latency of an operator that nobody measured: speed of light at ``DEFAULT_EFFICIENCY``."""
    return Latency(light / DEFAULT_EFFICIENCY, np.full(light.shape, Provenance.SPEED_OF_LIGHT, dtype=np.int8))


def add(*parts: Latency) -> Latency:
    """Sequence of kernels: seconds add up, the weakest provenance stays."""
    seconds = np.sum([part.seconds for part in parts], axis=0)
    return Latency(seconds, np.maximum.reduce([part.provenance for part in parts]).astype(np.int8))
