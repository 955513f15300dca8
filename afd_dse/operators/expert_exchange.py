"""Dispatch of tokens to expert ranks and combine of their results: measured exchanges inside a node or domain.

Tables count the tokens *of one rank*. They come in three kinds: DeepEP (``deepep_ll``, ``deepep_normal``), the
frameworks' exchanges on HGX and one tray (``moe_a2a``), and TensorRT-LLM's all-to-all over NVLink.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.operators.borrowing import provenance, rates_of, sources
from afd_dse.operators.fastest import Kernel, curve_of, fastest
from afd_dse.operators.interpolation import CurveSet
from afd_dse.operators.latency import FloatArray, IntArray, Latency, Provenance
from afd_dse.operators.store import ALL_ROWS, load_table
from afd_dse.rows import distinct_keys, distinct_rows, take_rows
from afd_dse.spec.accelerator import Accelerator

# NOTE: on NVL72 TensorRT-LLM exchanges tokens over NVLink by a kernel of its own. It was timed on one such machine; on
# another it says more than DeepEP's kernels, which take 200 µs in one tray of a GB300 and 20 µs on anything else.
_OVER_NVLINK = ("trtllm",)
DEEPEP_SMS = 20  # DeepEP's default number of SMs for its normal kernels
# Bytes an element of each exchange type takes on the wire, scales included. NOTE: what vLLM's `default` moves is not
# stated; on the same kernels it takes longer than TensorRT-LLM's bfloat16 rows, so it cannot be a narrower type.
WIRE_BYTES = {
    "bfloat16": 2.0,
    "default": 2.0,
    "fp8": 1.0 + 4.0 / 128,
    "fp8_block": 1.0 + 4.0 / 128,
    "nvfp4": 0.5 + 1.0 / 16,
    "fp4": 0.5 + 1.0 / 16,
}
MAX_EFFICIENCY = 1.05
PHASES = ("dispatch", "combine")
# Log distances: of equal numbers, and of wire sizes of one type counted with and without its scales.
EQUAL = 1e-6
SAME_TYPE = 0.05

# Weights of squared log distances in wire bytes, hidden, topk and experts: bytes scale, the fan-out less so.
_DISTANCE = np.array([4.0, 1.0, 1.0, 0.25])


def groups_hit(groups: npt.ArrayLike, topk: npt.ArrayLike) -> FloatArray:
    """Expected number of ``groups`` of experts that a token's ``topk`` experts fall into."""
    n = np.asarray(groups, dtype=np.float64)
    with np.errstate(divide="ignore"):
        missed = np.exp(np.asarray(topk, dtype=np.float64) * np.log1p(-1.0 / np.maximum(n, 1.0)))
    return np.asarray(n * (1.0 - missed), dtype=np.float64)


def exchange_light(
    accelerator: Accelerator,
    *,
    tokens: npt.ArrayLike,
    hidden: npt.ArrayLike,
    topk: npt.ArrayLike,
    ep: npt.ArrayLike,
    wire_bytes: npt.ArrayLike,
    low_latency: bool,
) -> FloatArray:
    """Link latency plus a rank's bytes over the slower tier.

    Inside a domain a token goes once to every other rank it needs. Between domains low-latency kernels send one copy
    per expert, the others one per domain, fanned out there over scale-up.
    """
    t, h, k, n, b = (np.asarray(value, dtype=np.float64) for value in (tokens, hidden, topk, ep, wire_bytes))
    domain = float(accelerator.scale_up_gpus)
    domains = np.maximum(n / domain, 1.0)
    token = t * h * b
    up = token * groups_hit(n, k) * (n - 1.0) / n / accelerator.scale_up_bytes_per_s
    copies = k if low_latency else groups_hit(domains, k)
    out = token * copies * (domains - 1.0) / domains / accelerator.scale_out_bytes_per_s
    latency = np.where(domains > 1.0, accelerator.scale_out_latency_s, accelerator.scale_up_latency_s)
    return np.asarray(latency + np.maximum(up * np.where(domains > 1.0, 1.0 / domains, 1.0), out))


@dataclass(frozen=True, slots=True)
class Measured:
    """Exchanges that were timed, columns [n]: name of the kernel, shape (wire bytes an element), group, time."""

    kernel: npt.NDArray[np.object_]
    wire: FloatArray
    hidden: FloatArray
    topk: FloatArray
    experts: FloatArray
    ep: FloatArray
    tokens: FloatArray
    seconds: FloatArray

    @classmethod
    def of(cls, rows: pd.DataFrame, names: Mapping[str, str], **known: object) -> "Measured":
        """Columns of a table by their ``names`` there, and those ``known``."""
        columns = {ours: rows[theirs].to_numpy() for ours, theirs in names.items()} | known
        kernel = np.full(len(rows), columns.pop("kernel"), dtype=object)
        numbers = {name: np.full(len(rows), column, dtype=np.float64) for name, column in columns.items()}
        return cls(kernel, **numbers)


# Names of the columns in DeepEP's tables, and in the frameworks'.
_DEEPEP = {"hidden": "hidden_size", "topk": "num_topk", "experts": "num_experts", "tokens": "num_token"}
_OWN = {"hidden": "hidden_size", "topk": "topk", "experts": "num_experts", "tokens": "num_tokens"}


def _wire_bytes(dtypes: pd.Series) -> FloatArray:
    code, names = pd.factorize(dtypes)
    return np.array([WIRE_BYTES.get(name, np.nan) for name in names])[code]


def _deepep(rows: pd.DataFrame, phase: str, rates: Accelerator, low_latency: bool) -> Measured:
    if low_latency:
        kernel, time_us = "deepep_ll", rows[f"{phase}_avg_t_us"]
    else:
        rows = rows[rows[f"{phase}_sms"] == DEEPEP_SMS]
        kernel, time_us = "deepep_normal", rows[f"{phase}_transmit_us"] + rows[f"{phase}_notify_us"]
    return Measured.of(
        rows,
        _DEEPEP,
        kernel=kernel,
        wire=WIRE_BYTES["fp8" if phase == "dispatch" else "bfloat16"],
        ep=rows["node_num"].to_numpy() * rates.node_gpus,
        seconds=time_us.to_numpy() * 1e-6,
    )


def _moe_a2a(rows: pd.DataFrame, suffix: str) -> Measured:
    code, backends = pd.factorize(rows["comm_backend"])
    ours = np.array([backend.endswith(suffix) for backend in backends], dtype=bool)
    rows = rows[ours[code]]
    return Measured.of(
        rows,
        _OWN | {"kernel": "comm_backend", "ep": "ep_size"},
        wire=_wire_bytes(rows["comm_dtype"]),
        seconds=rows["latency_ms"].to_numpy() * 1e-3,
    )


def _alltoall(rows: pd.DataFrame, phase: str) -> Measured:
    """Exchange over NVLink; the two-sided kernel's preparation counts to the dispatch, its combine is bfloat16."""
    key = ["kernel_source", "moe_dtype", "hidden_size", "topk", "num_experts", "moe_ep_size", "num_tokens"]
    main = rows[rows["op_name"] == f"alltoall_{phase}"].set_index(key)["latency_ms"]
    if phase == "dispatch":
        prepare = rows[rows["op_name"] == "alltoall_prepare"].set_index(key)["latency_ms"]
        main = main + prepare.reindex(main.index).fillna(0.0)
    flat = main.reset_index()
    return Measured.of(
        flat,
        _OWN | {"ep": "moe_ep_size"},
        # The combine's rows differ by the dispatch's type only in name: keep the types apart as kernels.
        kernel=(flat["kernel_source"] + "/" + flat["moe_dtype"]).to_numpy(object),
        wire=_wire_bytes(flat["moe_dtype"]) if phase == "dispatch" else WIRE_BYTES["bfloat16"],
        seconds=flat["latency_ms"].to_numpy() * 1e-3,
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """Kernels that could exchange a shape; the fastest is taken. ``same_key`` if the shape itself was measured."""

    kernels: tuple[Kernel, ...]
    same_key: bool


@dataclass(frozen=True, slots=True)
class _Series:
    """The curves of a table, and of each its kernel, expert group and shape, and the largest group of its kernel."""

    curves: CurveSet
    kernel: npt.NDArray[np.object_]
    ep: FloatArray
    shape: FloatArray
    reach: FloatArray


class ExchangeTable:
    """One phase measured at one place; ``rows`` are those of what was timed that can be right."""

    def __init__(self, timed: Measured, rates: Accelerator, low_latency: bool, own: bool) -> None:
        self.rates = rates
        self.low_latency = low_latency
        self.own = own
        light = exchange_light(
            rates,
            tokens=timed.tokens,
            hidden=timed.hidden,
            topk=timed.topk,
            ep=timed.ep,
            wire_bytes=timed.wire,
            low_latency=low_latency,
        )
        efficiency = light / timed.seconds
        good = np.flatnonzero(np.isfinite(efficiency) & (efficiency > 0.0) & (efficiency <= MAX_EFFICIENCY))
        self.rows = take_rows(timed, good)
        self._efficiency = efficiency[good]
        self._plans: dict[tuple[tuple[float, ...], float], Plan] = {}
        # Largest expert group measured.
        self.largest_ep = float(self.rows.ep.max(initial=0))

    @cached_property
    def _series(self) -> _Series:
        """Most tables are only asked how far they reach."""
        rows = self.rows
        code, kernels = pd.factorize(rows.kernel)
        keys = [rows.wire, rows.hidden, rows.topk, rows.experts]
        first, curve = distinct_rows([code, *keys, rows.ep])
        reach = np.zeros(len(kernels))
        np.maximum.at(reach, code, rows.ep)
        return _Series(
            CurveSet(curve, rows.tokens, self._efficiency),
            rows.kernel[first],
            rows.ep[first],
            np.column_stack(keys)[first],
            reach[code[first]],
        )

    def plan(self, shape: tuple[float, ...], ep: float) -> Plan:
        """Curves that answer for a shape (wire bytes, hidden, topk, experts): of the nearest measured one."""
        if (shape, ep) not in self._plans:
            self._plans[shape, ep] = self._resolve(np.array(shape), ep)
        return self._plans[shape, ep]

    def _resolve(self, shape: FloatArray, ep: float) -> Plan:
        series = self._series
        apart = np.log(series.shape / shape)
        distance = (apart**2 * _DISTANCE).sum(axis=1)
        enough = series.reach >= ep
        usable = enough if enough.any() else np.ones(len(distance), dtype=bool)
        nearest = usable & (distance <= distance[usable].min() + 1e-12)
        gap = np.abs(apart[nearest]).max(axis=0)
        equal = bool((gap < EQUAL).all())
        found = [
            self._along_ep(np.flatnonzero(nearest & (series.kernel == kernel)), ep, equal)
            for kernel in dict.fromkeys(series.kernel[nearest])
        ]
        inside = any(within for _, within in found)
        same_key = inside and bool(gap[0] < SAME_TYPE and (gap[1:] < EQUAL).all())
        return Plan(tuple(kernel for kernel, _ in found), same_key)

    def _along_ep(self, curves: npt.NDArray[np.intp], ep: float, equal: bool) -> tuple[Kernel, bool]:
        """A kernel at ``ep``, and whether that lies within its measured ones; ``equal``: of the very shape."""
        curves = curves[np.argsort(self._series.ep[curves])]
        known = self._series.ep[curves]
        position = int(np.searchsorted(known, ep))
        if position < len(known) and known[position] == ep:
            return curve_of(int(curves[position]), at_point=equal), True
        if position in (0, len(known)):
            return curve_of(int(curves[min(position, len(known) - 1)]), at_point=False), False
        weight = float(np.log(ep / known[position - 1]) / np.log(known[position] / known[position - 1]))
        low, high = (int(curve) for curve in curves[position - 1 : position + 1])
        return Kernel((low, high), (1.0 - weight, weight), (1.0, 1.0), at_point=False), True

    def efficiency(
        self, plans: Sequence[Plan], which: IntArray, tokens: FloatArray
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Efficiency of the fastest kernel at ``tokens`` [q], by the plan ``which`` [q]; and whether it is a point."""
        return fastest(self._series.curves, [plan.kernels for plan in plans], which, tokens)


class ExchangeFamily:
    """Dispatch and combine of one accelerator and framework; tables are read when a phase is first asked for."""

    def __init__(self, accelerator: Accelerator, framework: str, reference: Accelerator) -> None:
        self._accelerator = accelerator
        self._framework = framework
        self._reference = reference
        self._tables: dict[tuple[str, bool], tuple[list[ExchangeTable], Iterator[ExchangeTable]]] = {}

    def tables(self, phase: str, low_latency: bool) -> Iterator[ExchangeTable]:
        """Tables to try in order: the framework's own, other frameworks' on this accelerator, other accelerators'.

        Each is read when it is first come to.
        """
        key = (phase, low_latency)
        if key not in self._tables:
            self._tables[key] = [], self._load(phase, low_latency)
        read, unread = self._tables[key]
        yield from read
        for table in unread:
            read.append(table)
            yield table

    def _load(self, phase: str, low_latency: bool) -> Iterator[ExchangeTable]:
        readers: dict[str, Callable[[pd.DataFrame, Accelerator], Measured]] = {
            "trtllm_alltoall": lambda rows, _: _alltoall(rows, phase),
            "deepep_ll" if low_latency else "deepep_normal": lambda rows, rates: _deepep(
                rows, phase, rates, low_latency
            ),
            "moe_a2a": lambda rows, _: _moe_a2a(rows, "_ll" if low_latency else "_ht"),
        }
        order = sources(self._accelerator, self._framework, "bfloat16")
        places = dict.fromkeys((source.accelerator, source.framework) for source in order)
        tables = [(place, framework, op) for place, framework in places for op in readers]
        if self._framework in _OVER_NVLINK:
            tables.sort(key=lambda table: table[2] != "trtllm_alltoall")
        for place, framework, op in tables:
            rates = rates_of(place, self._reference)
            # A fabric of another reach says nothing here: NVL72 exchanges don't stand for those of an HGX node.
            if rates.scale_up_gpus != self._accelerator.scale_up_gpus:
                continue
            frame = load_table(place, framework, op, only={"phase": phase} if op == "moe_a2a" else ALL_ROWS)
            timed = None if frame is None else readers[op](frame, rates)
            if timed is not None and len(timed.ep):
                own = place == self._accelerator.tables and framework == self._framework
                yield ExchangeTable(timed, rates, low_latency, own)

    def latency(
        self,
        phase: str,
        *,
        tokens: FloatArray,
        hidden: FloatArray,
        topk: FloatArray,
        experts: FloatArray,
        ep: FloatArray,
        wire_bytes: FloatArray,
        low_latency: bool,
    ) -> tuple[Latency, npt.NDArray[np.bool_]]:
        """Seconds [q] of ``phase`` and whether tables reach that ``ep``; where not, an estimate at the largest one.

        ``ep`` below the smallest measured holds that one's efficiency (BORROWED, covered: the same kernel and links).
        """
        keys, which = distinct_keys(wire_bytes, hidden, topk, experts, ep)
        tables = [self._table_for(phase, low_latency, key[-1]) if key[-1] > 1.0 else None for key in keys]
        seconds = np.zeros(len(tokens))
        levels = np.full(len(tokens), Provenance.MEASURED, dtype=np.int8)
        covered = np.ones(len(tokens), dtype=bool)
        for table in dict.fromkeys(tables):
            mine = [number for number, one in enumerate(tables) if one is table and keys[number][-1] > 1.0]
            place = np.full(len(keys), -1, dtype=np.int64)
            place[mine] = np.arange(len(mine))
            rows = np.flatnonzero(place[which] >= 0)
            if not len(rows):
                continue
            light = exchange_light(
                self._accelerator,
                tokens=tokens[rows],
                hidden=hidden[rows],
                topk=topk[rows],
                ep=ep[rows],
                wire_bytes=wire_bytes[rows],
                low_latency=low_latency,
            )
            if table is None:
                seconds[rows], levels[rows], covered[rows] = light, Provenance.SPEED_OF_LIGHT, False
                continue
            plans = [table.plan(keys[number][:-1], keys[number][-1]) for number in mine]
            efficiency, exact = table.efficiency(plans, place[which[rows]], tokens[rows])
            same_key = np.array([plan.same_key for plan in plans])[place[which[rows]]]
            seconds[rows] = light / efficiency
            levels[rows] = np.where(same_key, provenance(table.own, exact), Provenance.BORROWED)
            covered[rows] = ep[rows] <= table.largest_ep
        return Latency(seconds, levels), covered

    def _table_for(self, phase: str, low_latency: bool, ep: float) -> ExchangeTable | None:
        """The first table that reaches ``ep``, else the one that reaches farthest; None where there is none."""
        reaching = (table for table in self.tables(phase, low_latency) if table.largest_ep >= ep)
        farthest = (table for table in self.tables(phase, low_latency))
        return next(reaching, None) or max(farthest, key=lambda table: table.largest_ep, default=None)
