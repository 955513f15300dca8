"""Dense GEMMs [m, k] x [k, n]: measured sites (n, k), each a ragged curve over m.

The latency of one site has a sawtooth in m: a GEMM of 16 j + 1 rows pays for another tile. A site therefore has two
curves of efficiency, one through the aligned m and one through those just over; between 16 j + 1 and 16 (j + 1) the
two are blended, so that an aligned m never sees the points just over and the other way round. Between sites the
*latency* is bilinear in (n, k): every term of it (launch, operands, FLOP) is, within one regime.
"""

from collections.abc import Sequence
from functools import cached_property

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
# NOTE: per-tensor scales of activations are static in the published checkpoints, so that engines fuse the
# quantisation into the norm or activation before the GEMM. Block scales are computed from the activations.
STATIC_SCALES = ("fp8",)
# Wider than any n or k: keeps the axes of two tables apart.
_AXIS_STRIDE = 1e9


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


class GemmTable:
    """Measured GEMMs of one accelerator, framework and data type; ``rows`` as :func:`clean_rows` gives them.

    ``aligned`` and ``over``: sites, m and efficiency of the points of both curves. ``cell_site``: the site of every
    cell of the grid of all ``n`` and all ``k``; one that was not measured borrows its nearest site's efficiency.
    """

    def __init__(self, rows: pd.DataFrame, rates: Accelerator, dtype: str) -> None:
        self.dtype = dtype
        self.rates = rates
        m, n, k = (rows[name].to_numpy(np.float64) for name in ("m", "n", "k"))
        efficiency = rows["efficiency"].to_numpy()
        self.floor_s = float(rows["seconds"].min())
        self.n, n_code = np.unique(n, return_inverse=True)
        self.k, k_code = np.unique(k, return_inverse=True)
        sites, site = np.unique(n_code * len(self.k) + k_code, return_inverse=True)
        self.site_n, self.site_k = self.n[sites // len(self.k)], self.k[sites % len(self.k)]
        cells = np.arange(len(self.n) * len(self.k))
        self.cell_n, self.cell_k = self.n[cells // len(self.k)], self.k[cells % len(self.k)]
        self.cell_site = np.full(len(cells), -1, dtype=np.int64)
        self.cell_site[sites] = np.arange(len(sites))
        missing = np.flatnonzero(self.cell_site < 0)
        apart = np.log(self.cell_n[missing, None] / self.site_n) ** 2
        apart += np.log(self.cell_k[missing, None] / self.site_k) ** 2
        self.cell_site[missing] = np.argmin(apart, axis=1)
        order = np.lexsort((m, site))
        last = np.append(site[order][1:] != site[order][:-1], True)
        first = np.roll(last, 1)
        self.lowest, self.highest = m[order][first], m[order][last]
        self.m_low = float(self.lowest.min())
        small = m <= TILE
        aligned = small | (m % TILE == 0)
        over = small | (m % TILE == 1)
        # Beyond the last point just over (a partial tile is nothing there) both curves run through the aligned ones.
        last_over = np.zeros(len(sites))
        np.maximum.at(last_over, site[over], m[over])
        over |= aligned & (m > last_over[site] + TILE)
        other = ~(aligned | over)
        self.aligned, self.over = (
            (site[points], m[points], efficiency[points]) for points in (aligned | other, over | other)
        )

    @cached_property
    def _alone(self) -> "GemmLookup":
        """An engine that chooses among tables looks them up together."""
        return GemmLookup([self])

    def __call__(
        self, m: FloatArray, n: FloatArray, k: FloatArray
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Efficiency [q] and whether a row is a measured point, as :class:`GemmLookup` gives them."""
        efficiency, exact = self._alone(m, n, k)
        return efficiency[0], exact[0]

    def raised(
        self, m: FloatArray, n: FloatArray, k: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Shapes lifted to the smallest measured ones, below which the latency is held."""
        return np.maximum(m, self.m_low), np.maximum(n, self.n[0]), np.maximum(k, self.k[0])


class _Axis:
    """One axis (n or k) of several tables, one after the other."""

    def __init__(self, axes: Sequence[FloatArray]) -> None:
        lengths = np.array([len(axis) for axis in axes])
        self.first = np.cumsum(lengths) - lengths
        self.length = lengths
        self._values = np.concatenate(axes)
        self._keys = np.repeat(np.arange(len(axes)), lengths) * _AXIS_STRIDE + self._values
        self._low, self._high = (np.array([axis[end] for axis in axes]) for end in (0, -1))

    def inside(self, table: IntArray, value: FloatArray) -> FloatArray:
        """``value`` [q] held within the axis of ``table`` [q]."""
        return np.clip(value, self._low[table], self._high[table])

    def around(self, table: IntArray, value: FloatArray) -> tuple[IntArray, FloatArray]:
        """Places on the axis of ``table`` of both neighbours of ``value`` inside it, and their weights, [q, 2] each."""
        first = self.first[table]
        last = first + self.length[table] - 1
        left = np.searchsorted(self._keys, table * _AXIS_STRIDE + value, side="right") - 1
        left = np.clip(left, first, last)
        right = np.minimum(left + 1, last)
        span = self._values[right] - self._values[left]
        share = np.clip((value - self._values[left]) / np.where(span > 0.0, span, 1.0), 0.0, 1.0)
        places = np.stack([left - first, right - first], axis=1)
        return places, np.stack([1.0 - share, share], axis=1)


class GemmLookup:
    """Several tables looked up at once: for few rows a call costs as much for one of them as for all."""

    def __init__(self, tables: Sequence[GemmTable]) -> None:
        self._count = len(tables)
        self._n, self._k = _Axis([table.n for table in tables]), _Axis([table.k for table in tables])
        cells, sites = (
            np.array([len(getattr(table, name)) for table in tables]) for name in ("cell_n", "site_n")
        )
        self._first_cell, first_site = np.cumsum(cells) - cells, np.cumsum(sites) - sites

        def joined(name: str) -> FloatArray:
            return np.concatenate([getattr(table, name) for table in tables])

        self._cell_table = np.repeat(np.arange(len(tables)), cells)
        self._cell_n, self._cell_k = joined("cell_n"), joined("cell_k")
        self._cell_site = joined("cell_site").astype(np.int64) + first_site[self._cell_table]
        self._site_n, self._site_k = joined("site_n"), joined("site_k")
        self._lowest, self._highest = joined("lowest"), joined("highest")
        self._m_low = np.array([table.m_low for table in tables])
        self._aligned, self._over = (
            CurveSet(
                np.concatenate(
                    [getattr(t, name)[0] + first for t, first in zip(tables, first_site, strict=True)]
                ),
                *(np.concatenate([getattr(t, name)[column] for t in tables]) for column in (1, 2)),
            )
            for name in ("aligned", "over")
        )
        # Tables of equal rates and data type have one speed of light.
        kinds = [(table.rates, table.dtype) for table in tables]
        self._lights = [kind for place, kind in enumerate(kinds) if kind not in kinds[:place]]
        self._light_of = np.array([self._lights.index(kind) for kind in kinds])

    def __call__(
        self, m: FloatArray, n: FloatArray, k: FloatArray
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Efficiency against the speed of light at the reference rates, and whether a row is a measured point.

        ``m``, ``n``, ``k`` [q]; both results [tables, q]. Above the measured shapes the efficiency is held; below them
        the latency is (a smaller GEMM is no faster than the launch of the smallest), so the speed of light to divide
        is that of :meth:`GemmTable.raised`.
        """
        asked, count = len(m), self._count
        table = np.repeat(np.arange(count), asked)
        m, n, k = (np.tile(value, count) for value in (m, n, k))
        inside_n, inside_k = self._n.inside(table, n), self._k.inside(table, k)
        cells, weights = self._corners(table, inside_n, inside_k)
        row, corner = np.nonzero(weights > 0.0)
        place, share, held_m = cells[row, corner], weights[row, corner], m[row]
        site = self._cell_site[place]
        held = np.minimum(held_m, self._highest[site])
        value, measured = self._cell_seconds(place, held)
        # Above its largest m a site is held at its efficiency: its latency grows with the speed of light.
        total = np.bincount(row, share * value * self._growth(place, held_m, held), len(m))
        here = (self._site_n[site] == n[row]) & (self._site_k[site] == k[row]) & (held == held_m)
        exact = np.zeros(len(m), dtype=bool)
        exact[row[measured & here & (share == 1.0)]] = True
        light = self._light(table, np.maximum(m, self._m_low[table]), inside_n, inside_k)
        return (light / total).reshape(count, asked), exact.reshape(count, asked)

    def _light(self, table: IntArray, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
        """Speed of light [q] of GEMMs at the reference rates of their ``table`` [q]."""
        parts = []
        for rates, dtype in self._lights:
            work = gemm_work(dtype, m, n, k)
            parts.append(seconds(rates, dtype, work.flop, work.bytes))
        return parts[0] if len(parts) == 1 else np.choose(self._light_of[table], parts)

    def _corners(self, table: IntArray, n: FloatArray, k: FloatArray) -> tuple[IntArray, FloatArray]:
        """Four cells around each (n, k) and their bilinear weights, [q, 4] each."""
        row, row_weight = self._n.around(table, n)
        column, column_weight = self._k.around(table, k)
        cells = row[:, :, None] * self._k.length[table][:, None, None] + column[:, None, :]
        cells += self._first_cell[table][:, None, None]
        weights = row_weight[:, :, None] * column_weight[:, None, :]
        return cells.reshape(-1, 4), weights.reshape(-1, 4)

    def _cell_seconds(self, cell: IntArray, m: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Latency [q] of cells at the reference rates, and whether each is a measured point."""
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
        return value, exact

    def _latency(self, cell: IntArray, m: FloatArray, efficiency: FloatArray) -> FloatArray:
        return self._light(self._cell_table[cell], m, self._cell_n[cell], self._cell_k[cell]) / efficiency

    def _growth(self, cell: IntArray, m: FloatArray, held: FloatArray) -> FloatArray:
        growth = np.ones(len(m))
        beyond = np.flatnonzero(m > held)
        if len(beyond):
            ones = np.ones(len(beyond))
            where = cell[beyond]
            growth[beyond] = self._latency(where, m[beyond], ones) / self._latency(where, held[beyond], ones)
        return growth


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
        return self.ours(dtype, (m, n, k), *found[0](m, n, k))

    def ours(
        self,
        dtype: str,
        shape: tuple[FloatArray, FloatArray, FloatArray],
        efficiency: FloatArray,
        exact: npt.NDArray[np.bool_],
    ) -> Latency:
        """Latency of GEMMs (m, n, k) [q] by the ``efficiency`` that the table for ``dtype`` gives them."""
        found = self.table(dtype)
        assert found is not None
        table, source = found
        raised = table.raised(*shape)
        work = gemm_work(dtype, *raised)
        light = seconds(self._accelerator, dtype, work.flop, work.bytes)
        if source.dtype == dtype and source.accelerator == self._accelerator.tables:
            return Latency(light / efficiency, provenance(source.own, exact))
        theirs = gemm_work(table.dtype, *raised)
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


class EngineGemms:
    """GEMMs as an engine runs them: by the fastest of ``families``' kernels, quantisation fused where that is possible.

    Of equally fast kernels the first one answers.
    """

    def __init__(self, families: Sequence[GemmFamily]) -> None:
        self._families = families
        self._lookups: dict[str, GemmLookup] = {}

    def latency(self, dtype: str, m: FloatArray, n: FloatArray, k: FloatArray) -> Latency:
        """Latency of GEMMs [q]."""
        best: Latency | None = None
        for family, one in zip(self._families, self._each(dtype, m, n, k), strict=True):
            if dtype in STATIC_SCALES:
                one = Latency(one.seconds - family.quantization_s(dtype), one.provenance)
            best = one if best is None else best.faster(one)
        assert best is not None
        return best

    def _each(self, dtype: str, m: FloatArray, n: FloatArray, k: FloatArray) -> list[Latency]:
        """By every family, in its order."""
        found = [family.table(dtype) for family in self._families]
        tables = [one[0] for one in found if one is not None]
        # Families without a table have one formula.
        if len(tables) < len(found):
            return [family.latency(dtype, m, n, k) for family in self._families]
        if dtype not in self._lookups:
            self._lookups[dtype] = GemmLookup(tables)
        answers = zip(self._families, *self._lookups[dtype](m, n, k), strict=True)
        return [family.ours(dtype, (m, n, k), efficiency, exact) for family, efficiency, exact in answers]
