"""Dense GEMMs [m, k] x [k, n]: measured sites (n, k), each a ragged curve over m.

The latency of one site has a sawtooth in m: a GEMM of 16 j + 1 rows pays for another tile. A site therefore has two
curves of efficiency, one through the aligned m and one through those just over; between 16 j + 1 and 16 (j + 1) the
two are blended, so that an aligned m never sees the points just over and the other way round. Between sites the
*latency* is bilinear in (n, k): every term of it (launch, operands, FLOP) is, within one regime.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.operators.borrowing import Source, provenance, rates_of, rescaled, sources
from afd_dse.operators.interpolation import CurveSet
from afd_dse.operators.latency import FloatArray, IntArray, Latency, Provenance
from afd_dse.operators.speed_of_light import gemm_work, seconds
from afd_dse.operators.store import load_table
from afd_dse.spec.accelerator import Accelerator

# Granularity of m at which kernels change their tile counts; the tables sample m = 16 j and 16 j + 1.
TILE = 16
MAX_EFFICIENCY = 1.05  # a measured row beyond it is wrong: it beats the speed of light
# NOTE: eager timings of kernels whose host side takes longer than the kernel show the host, which CUDA graphs hide.
# A table whose 5 % fastest rows take longer than this (device-bound ones: 2 to 15 us) says nothing of the GPU.
HOST_BOUND_S = 30e-6
# Where nothing at all is measured: the median over all tables of the rows with m, n and k of 1024 or more (0.49).
DEFAULT_EFFICIENCY = 0.5
LAUNCH_S = 3e-6


def clean_rows(frame: pd.DataFrame, rates: Accelerator, dtype: str) -> pd.DataFrame:
    """Rows of one data type, of its best-covered kernel, with ``seconds`` and ``efficiency``; bad rows left out."""
    rows = frame[frame["gemm_dtype"] == dtype]
    if rows.empty:
        return rows
    rows = rows[rows["kernel_source"] == rows["kernel_source"].value_counts().idxmax()]
    measured = rows["latency_ms"].to_numpy() * 1e-3
    work = gemm_work(dtype, rows["m"].to_numpy(), rows["n"].to_numpy(), rows["k"].to_numpy())
    with np.errstate(divide="ignore", invalid="ignore"):
        efficiency = seconds(rates, dtype, work.flop, work.bytes) / measured
    good = np.isfinite(efficiency) & (efficiency > 0.0) & (efficiency <= MAX_EFFICIENCY)
    rows = rows.assign(seconds=measured, efficiency=efficiency)[good]
    if len(rows) and float(np.quantile(rows["seconds"], 0.05)) > HOST_BOUND_S:
        return rows.iloc[:0]
    return rows


@dataclass(frozen=True, slots=True)
class CellLatency:
    """Latency [q] at the reference rates, and whether each is a measured point."""

    seconds: FloatArray
    exact: npt.NDArray[np.bool_]


class GemmTable:
    """Measured GEMMs of one accelerator, framework and data type; ``rows`` as :func:`clean_rows` gives them."""

    def __init__(self, rows: pd.DataFrame, rates: Accelerator, dtype: str) -> None:
        self.dtype = dtype
        self.rates = rates
        m, n, k = (rows[name].to_numpy(np.float64) for name in ("m", "n", "k"))
        efficiency = rows["efficiency"].to_numpy()
        self.floor_s = float(rows["seconds"].min())
        self._n, n_code = np.unique(n, return_inverse=True)
        self._k, k_code = np.unique(k, return_inverse=True)
        sites, site = np.unique(n_code * len(self._k) + k_code, return_inverse=True)
        self._site_n, self._site_k = self._n[sites // len(self._k)], self._k[sites % len(self._k)]
        # The cells of the grid of all n and all k; one that was not measured borrows its nearest site's efficiency.
        cells = np.arange(len(self._n) * len(self._k))
        self._cell_n, self._cell_k = self._n[cells // len(self._k)], self._k[cells % len(self._k)]
        self._cell_site = np.full(len(cells), -1, dtype=np.int64)
        self._cell_site[sites] = np.arange(len(sites))
        missing = np.flatnonzero(self._cell_site < 0)
        apart = np.log(self._cell_n[missing, None] / self._site_n) ** 2
        apart += np.log(self._cell_k[missing, None] / self._site_k) ** 2
        self._cell_site[missing] = np.argmin(apart, axis=1)
        order = np.lexsort((m, site))
        last = np.append(site[order][1:] != site[order][:-1], True)
        first = np.roll(last, 1)
        self._lowest, self._highest = m[order][first], m[order][last]
        self._m_low = float(self._lowest.min())
        small = m <= TILE
        aligned = small | (m % TILE == 0)
        over = small | (m % TILE == 1)
        # Beyond the last point just over (a partial tile is nothing there) both curves run through the aligned ones.
        last_over = np.zeros(len(sites))
        np.maximum.at(last_over, site[over], m[over])
        over |= aligned & (m > last_over[site] + TILE)
        other = ~(aligned | over)
        self._aligned = CurveSet(site[aligned | other], m[aligned | other], efficiency[aligned | other])
        self._over = CurveSet(site[over | other], m[over | other], efficiency[over | other])

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Smallest and largest n, smallest and largest k."""
        return float(self._n[0]), float(self._n[-1]), float(self._k[0]), float(self._k[-1])

    def _cell_seconds(self, cell: IntArray, m: FloatArray) -> CellLatency:
        site = self._cell_site[cell]
        m = np.maximum(m, self._lowest[site])
        low = np.floor(m / TILE) * TILE
        high = np.ceil(m / TILE) * TILE
        before = (m > low) & (m < low + 1.0)  # fractional m between an aligned point and the one just over
        small = m <= TILE
        upper_at = np.where(small, m, np.where(before, low, high))
        upper = self._aligned(site, upper_at)
        value = self._latency(cell, upper_at, upper.value)
        exact = upper.exact & (m == upper_at)
        blend = np.flatnonzero(~small & (m != high))
        if len(blend):
            inside, over_at = m[blend] - low[blend], low[blend] + 1.0
            over = self._over(site[blend], over_at)
            lower = self._latency(cell[blend], over_at, over.value)
            share = np.where(before[blend], 1.0 - inside, (inside - 1.0) / (TILE - 1.0))
            value[blend] = share * value[blend] + (1.0 - share) * lower
            exact[blend] |= over.exact & (m[blend] == over_at)
        return CellLatency(value, exact)

    def _latency(self, cell: IntArray, m: FloatArray, efficiency: FloatArray) -> FloatArray:
        work = gemm_work(self.dtype, m, self._cell_n[cell], self._cell_k[cell])
        return seconds(self.rates, self.dtype, work.flop, work.bytes) / efficiency

    def _corners(self, n: FloatArray, k: FloatArray) -> tuple[IntArray, FloatArray]:
        """Four cells around each (n, k) and their bilinear weights, [q, 4] each."""
        axes = []
        for axis, value in ((self._n, n), (self._k, k)):
            left = np.clip(np.searchsorted(axis, value, side="right") - 1, 0, len(axis) - 1)
            right = np.minimum(left + 1, len(axis) - 1)
            span = axis[right] - axis[left]
            share = np.clip((value - axis[left]) / np.where(span > 0.0, span, 1.0), 0.0, 1.0)
            axes.append((np.stack([left, right], axis=1), np.stack([1.0 - share, share], axis=1)))
        (row, row_weight), (column, column_weight) = axes
        cells = row[:, :, None] * len(self._k) + column[:, None, :]
        weights = row_weight[:, :, None] * column_weight[:, None, :]
        return cells.reshape(-1, 4), weights.reshape(-1, 4)

    def __call__(
        self, m: FloatArray, n: FloatArray, k: FloatArray
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Efficiency against the speed of light at the reference rates, and whether a row is a measured point.

        ``m``, ``n``, ``k`` [q]. Above the measured shapes the efficiency is held; below them the latency is (a
        smaller GEMM is no faster than the launch of the smallest), so the speed of light to divide is that of
        :meth:`raised`.
        """
        n_low, n_high, k_low, k_high = self.bounds
        inside_n, inside_k = np.clip(n, n_low, n_high), np.clip(k, k_low, k_high)
        cells, weights = self._corners(inside_n, inside_k)
        row, corner = np.nonzero(weights > 0.0)
        place, share, held_m = cells[row, corner], weights[row, corner], m[row]
        site = self._cell_site[place]
        held = np.minimum(held_m, self._highest[site])
        one = self._cell_seconds(place, held)
        # Above its largest m a site is held at its efficiency: its latency grows with the speed of light.
        total = np.bincount(row, share * one.seconds * self._growth(place, held_m, held), len(m))
        here = (self._site_n[site] == n[row]) & (self._site_k[site] == k[row]) & (held == held_m)
        exact = np.zeros(len(m), dtype=bool)
        exact[row[one.exact & here & (share == 1.0)]] = True
        work = gemm_work(self.dtype, self.raised(m, n, k)[0], inside_n, inside_k)
        return seconds(self.rates, self.dtype, work.flop, work.bytes) / total, exact

    def _growth(self, cell: IntArray, m: FloatArray, held: FloatArray) -> FloatArray:
        growth = np.ones(len(m))
        beyond = np.flatnonzero(m > held)
        if len(beyond):
            ones = np.ones(len(beyond))
            where = cell[beyond]
            growth[beyond] = self._latency(where, m[beyond], ones) / self._latency(where, held[beyond], ones)
        return growth

    def raised(
        self, m: FloatArray, n: FloatArray, k: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Shapes lifted to the smallest measured ones, below which the latency is held."""
        n_low, _, k_low, _ = self.bounds
        return np.maximum(m, self._m_low), np.maximum(n, n_low), np.maximum(k, k_low)


class GemmFamily:
    """GEMMs of one accelerator and framework; a table is read when its data type is first asked for."""

    def __init__(self, accelerator: Accelerator, framework: str, reference: Accelerator) -> None:
        self._accelerator = accelerator
        self._framework = framework
        self._reference = reference
        self._tables: dict[str, tuple[GemmTable, Source] | None] = {}

    def table(self, dtype: str) -> tuple[GemmTable, Source] | None:
        """Table that answers for ``dtype`` and where it is from; None where nothing was measured."""
        if dtype not in self._tables:
            self._tables[dtype] = self._find(dtype)
        return self._tables[dtype]

    def _find(self, dtype: str) -> tuple[GemmTable, Source] | None:
        for source in sources(self._accelerator, self._framework, dtype):
            frame = load_table(
                source.accelerator, source.framework, "gemm", only={"gemm_dtype": source.dtype}
            )
            if frame is None:
                continue
            rates = rates_of(source.accelerator, self._reference)
            rows = clean_rows(frame, rates, source.dtype)
            if len(rows):
                return GemmTable(rows, rates, source.dtype), source
        return None

    def latency(self, dtype: str, m: FloatArray, n: FloatArray, k: FloatArray) -> Latency:
        """Latency of GEMMs [q]: speed of light of ``dtype`` on this accelerator over the table's efficiency."""
        found = self.table(dtype)
        if found is None:
            work = gemm_work(dtype, m, n, k)
            value = seconds(self._accelerator, dtype, work.flop, work.bytes) / DEFAULT_EFFICIENCY + LAUNCH_S
            return Latency(value, np.full(m.shape, Provenance.SPEED_OF_LIGHT, dtype=np.int8))
        table, source = found
        efficiency, exact = table(m, n, k)
        shape = table.raised(m, n, k)
        work = gemm_work(dtype, *shape)
        light = seconds(self._accelerator, dtype, work.flop, work.bytes)
        if source.dtype == dtype and source.accelerator == self._accelerator.tables:
            return Latency(light / efficiency, provenance(source.own, exact))
        theirs = gemm_work(table.dtype, *shape)
        base = seconds(table.rates, table.dtype, theirs.flop, theirs.bytes)
        return Latency(rescaled(base / efficiency, base, light, table.floor_s), provenance(source.own, exact))

    def quantization_s(self, dtype: str) -> float:
        """Seconds that quantising the activations adds to every measured row of ``dtype``; zero where nothing does.

        The tables time the quantisation kernel with the GEMM. Its launch is what the fastest row takes longer than
        that of bfloat16, which needs none.
        """
        found, plain = self.table(dtype), self.table("bfloat16")
        if found is None or plain is None or found[1].dtype != dtype:
            return 0.0
        return max(found[0].floor_s - plain[0].floor_s, 0.0)
