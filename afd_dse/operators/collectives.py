"""Collectives inside a scale-up domain: measured curves over the message, one for every kernel and GPU count."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.errors import InputError, Problem
from afd_dse.operators.borrowing import provenance, rates_of, sources
from afd_dse.operators.interpolation import CurveSet
from afd_dse.operators.latency import FloatArray, Latency, Provenance
from afd_dse.operators.store import load_table
from afd_dse.rows import distinct_rows
from afd_dse.spec.accelerator import Accelerator

# Our names and those of the NCCL tables.
OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
}
ELEMENT_BYTES = 2.0  # the tables count a message in elements of bfloat16 or half
NCCL_DTYPE = "half"
MAX_EFFICIENCY = 1.05


def collective_light(
    accelerator: Accelerator, operation: str, message_bytes: npt.ArrayLike, gpus: npt.ArrayLike
) -> FloatArray:
    """Link latency plus the least a GPU must send over scale-up bandwidth.

    ``message_bytes`` is the full vector: what every GPU holds before an all-reduce, reduce-scatter or all-to-all and
    after an all-gather. An all-reduce sends it once (switches reduce), the others all but the GPU's own part.
    """
    size, count = np.asarray(message_bytes, dtype=np.float64), np.asarray(gpus, dtype=np.float64)
    share = 1.0 if operation == "all_reduce" else (count - 1.0) / count
    return accelerator.scale_up_latency_s + size * share / accelerator.scale_up_bytes_per_s


@dataclass(frozen=True, slots=True)
class _Curve:
    kernel: str
    gpus: int
    low: float
    high: float


class CollectiveTable:
    """One operation measured at one place; ``rows`` hold kernel_source, num_gpus, message_size and latency_ms."""

    def __init__(self, rows: pd.DataFrame, rates: Accelerator, operation: str, own: bool) -> None:
        self.rates = rates
        self.operation = operation
        self.own = own
        size = rows["message_size"].to_numpy(np.float64) * ELEMENT_BYTES
        light = collective_light(rates, operation, size, rows["num_gpus"].to_numpy())
        efficiency = light / (rows["latency_ms"].to_numpy() * 1e-3)
        good = np.isfinite(efficiency) & (efficiency > 0.0) & (efficiency <= MAX_EFFICIENCY)
        size, gpus = size[good], rows["num_gpus"].to_numpy()[good]
        code, kernels = pd.factorize(rows["kernel_source"])
        first, curve = distinct_rows([code[good], gpus])
        self._curves = CurveSet(curve, size, efficiency[good])
        self._known = []
        for number, row in enumerate(first):
            mine = size[curve == number]
            kernel = str(kernels[code[good][row]])
            self._known.append(_Curve(kernel, int(gpus[row]), float(mine.min()), float(mine.max())))

    @property
    def gpus(self) -> tuple[int, ...]:
        """GPU counts that were measured."""
        return tuple(sorted({curve.gpus for curve in self._known}))

    def at(self, gpus: int, size: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Efficiency [q] at a measured GPU count: the fastest kernel measured around each size.

        A kernel counts only where it was run (one-shot kernels stop at small messages); where none was, the one
        whose range ends nearest is held.
        """
        chosen = [i for i, curve in enumerate(self._known) if curve.gpus == gpus]
        best, exact = np.zeros(len(size)), np.zeros(len(size), dtype=bool)
        away = [
            np.maximum(np.log(self._known[i].low / size), np.log(size / self._known[i].high)).clip(0.0)
            for i in chosen
        ]
        nearest = np.min(away, axis=0)
        for i, distance in zip(chosen, away, strict=True):
            found = self._curves(np.full(len(size), i, dtype=np.int64), size)
            value = np.where(distance == nearest, found.value, 0.0)
            exact = np.where(value > best, found.exact, exact)
            best = np.maximum(best, value)
        return best, exact

    def __call__(self, gpus: float, size: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_], bool]:
        """Efficiency [q], whether each is a measured point, and whether ``gpus`` lies within the counts measured."""
        known = np.array(self.gpus, dtype=np.float64)
        if gpus in known:
            return *self.at(int(gpus), size), True
        position = int(np.searchsorted(known, gpus))
        if position in (0, len(known)):
            value, _ = self.at(int(known[min(position, len(known) - 1)]), size)
            return value, np.zeros(len(size), dtype=bool), False
        low, high = known[position - 1], known[position]
        weight = float(np.log(gpus / low) / np.log(high / low))
        shared = [
            (a, b)
            for a, first in enumerate(self._known)
            for b, second in enumerate(self._known)
            if first.kernel == second.kernel and first.gpus == low and second.gpus == high
        ]
        if not shared:  # no kernel ran on both sides: the larger count's, which is the slower one
            value, _ = self.at(int(high), size)
            return value, np.zeros(len(size), dtype=bool), True
        best = np.zeros(len(size))
        for a, b in shared:
            left = self._curves(np.full(len(size), a, dtype=np.int64), size).value
            right = self._curves(np.full(len(size), b, dtype=np.int64), size).value
            best = np.maximum(best, np.exp((1.0 - weight) * np.log(left) + weight * np.log(right)))
        return best, np.zeros(len(size), dtype=bool), True


class CollectiveFamily:
    """Collectives of one accelerator and framework; tables are read when an operation is first asked for."""

    def __init__(self, accelerator: Accelerator, framework: str, reference: Accelerator) -> None:
        self._accelerator = accelerator
        self._framework = framework
        self._reference = reference
        self._tables: dict[str, tuple[CollectiveTable, ...]] = {}

    def tables(self, operation: str) -> tuple[CollectiveTable, ...]:
        """Tables to try in order: the framework's own all-reduce, then NCCL's, then those of other accelerators."""
        if operation not in OPERATIONS:
            known = ", ".join(OPERATIONS)
            raise InputError(Problem("operation", operation, "unknown collective", f"use one of {known}"))
        if operation not in self._tables:
            self._tables[operation] = tuple(self._load(operation))
        return self._tables[operation]

    def _load(self, operation: str) -> list[CollectiveTable]:
        order = sources(self._accelerator, self._framework, "bfloat16")
        names = dict.fromkeys(source.accelerator for source in order)
        domain = self._accelerator.scale_up_gpus
        # A fabric of the same reach is nearer than one of the same chip; the first place is home in any case.
        home, *others = [(name, rates_of(name, self._reference)) for name in names]
        places = [home, *sorted(others, key=lambda place: place[1].scale_up_gpus != domain)]
        found = []
        for place, rates in places:
            at_home = place == self._accelerator.tables
            if operation == "all_reduce":
                custom = load_table(place, self._framework, "custom_allreduce")
                if custom is not None:
                    # Decode runs in CUDA graphs, prefill messages are too long for launching to matter.
                    rows = custom[~custom["kernel_source"].str.endswith("_eager")]
                    found.append(CollectiveTable(rows, rates, operation, at_home))
            only = {"op_name": OPERATIONS[operation], "nccl_dtype": NCCL_DTYPE}
            nccl = load_table(place, "nccl", "nccl", only=only)
            if nccl is not None and len(nccl):
                found.append(CollectiveTable(nccl, rates, operation, at_home))
        return found

    def covered(self, operation: str, gpus: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether each GPU count lies within those measured on this accelerator (or on the one it borrows from)."""
        count = np.asarray(gpus, dtype=np.float64)
        inside = count <= 1.0
        home = [table.rates.name for table in self.tables(operation)][:1]
        for table in self.tables(operation):
            if table.rates.name in home:
                inside |= (count >= table.gpus[0]) & (count <= table.gpus[-1])
        return np.asarray(inside, dtype=bool)

    def _choose(self, tables: tuple[CollectiveTable, ...], count: float) -> CollectiveTable:
        if count <= self._accelerator.scale_up_gpus:
            for table in tables:
                if table.gpus[0] <= count <= table.gpus[-1]:
                    return table
        near = [table for table in tables if table.rates.scale_up_gpus == self._accelerator.scale_up_gpus]
        return max(near or tables, key=lambda table: table.gpus[-1])

    def latency(self, operation: str, message_bytes: FloatArray, gpus: FloatArray) -> Latency:
        """Seconds [q] of a collective over ``gpus`` GPUs of one domain; nothing for one GPU or an empty message.

        A count outside those measured at home takes the efficiency of the next place that has it (BORROWED); if there
        is none, or it exceeds the domain, that of the largest count (the caller may model it better: ``covered``).
        """
        seconds = np.zeros(len(message_bytes))
        levels = np.full(len(message_bytes), Provenance.MEASURED, dtype=np.int8)
        tables = self.tables(operation)
        active = (gpus > 1.0) & (message_bytes > 0.0)
        for count in np.unique(gpus[active]):
            rows = np.flatnonzero(active & (gpus == count))
            size = message_bytes[rows]
            light = collective_light(self._accelerator, operation, size, count)
            if not tables:
                seconds[rows], levels[rows] = light, Provenance.SPEED_OF_LIGHT
                continue
            table = self._choose(tables, float(count))
            efficiency, exact, within = table(float(count), size)
            seconds[rows] = light / efficiency
            levels[rows] = provenance(table.own and within, exact)
        return Latency(seconds, levels)
