"""Routed experts of one rank: measured curves over tokens, one for every (shape, sharding, routing, kernel)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.errors import InputError, Problem
from afd_dse.operators.borrowing import Source, provenance, rates_of, rescaled, sources
from afd_dse.operators.fastest import Kernel, curve_of, fastest
from afd_dse.operators.interpolation import CurveSet
from afd_dse.operators.latency import FloatArray, IntArray, Latency, Provenance
from afd_dse.operators.speed_of_light import moe_work, seconds
from afd_dse.operators.store import ALL_ROWS, load_table
from afd_dse.rows import distinct_keys, distinct_rows
from afd_dse.spec.accelerator import Accelerator

BALANCED = "balanced"
UNIFORM = (
    "uniform"  # independent random routing: the efficiency of `balanced`, the expert count that chance leaves
)
DISTRIBUTIONS = (BALANCED, UNIFORM, "power_law_1.01", "power_law_1.2")

MAX_EFFICIENCY = 1.05
# Where nothing at all is measured: the median over all tables of even routing at 1024 tokens (0.30).
DEFAULT_EFFICIENCY = 0.3
LAUNCH_S = 30e-6  # routing, permutation and grouped GEMMs of the smallest measured shapes
# NOTE: at the same tokens per expert a rank with E / ep experts takes 1 / ep of what one with all E takes, plus the
# handling of all tokens (routing, permutation), which does not shrink and shows in the largest ep. Some `balanced`
# series defy this because their tokens did not fall evenly: the collectors' scores tie under DeepSeek's group-limited
# routing. Two signs: half of the experts take more than MAX_HALF of the time of all, in which case no ep > 1 of the
# shape is used; and a single series takes more than MAX_RANK_EXCESS times its part.
MAX_HALF = 0.75
MAX_RANK_EXCESS = 2.0
NEIGHBOURS = 4  # measured shapes whose efficiencies a missing shape blends

_WIDE_EP = {"wideep_generation_moe": "deepep_masked", "wideep_context_moe": "deepep_contiguous"}
_SHAPE = ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size"]
_KEY = [*_SHAPE, "moe_ep_size", "distribution", "kernel_source"]
# Weights of the squared log distances in hidden, width per GPU, local experts, topk, and tokens that a rank handles for
# each one that it computes (ep / topk: it permutes the tokens of all ranks); fitted by leaving shapes out.
_DISTANCE = np.array([1.0, 1.0, 0.5, 1.0, 0.5])


def is_gated(kernel: str) -> bool:
    """Whether a kernel runs gated experts (three matrices); the tables mark the others by name."""
    return "nongated" not in kernel


def load_frame(accelerator: str, framework: str, dtype: str | None = None) -> pd.DataFrame | None:
    """MoE rows of one place, all or of one data type: the general table and, where there is one, that of wide EP.

    SGLang's wide-EP kernels (DeepGEMM on DeepEP's masked or contiguous layout) stand in tables of their own, where
    even routing is called uniform; both layouts become kernels among which the fastest is taken.
    """
    only = ALL_ROWS if dtype is None else {"moe_dtype": dtype}
    frames = [load_table(accelerator, framework, "moe", only=only)]
    if framework == "sglang":
        for op, kernel in _WIDE_EP.items():
            wide = load_table(accelerator, framework, op, only=only)
            if wide is not None:
                wide = wide.assign(
                    kernel_source=kernel, distribution=wide["distribution"].replace({"uniform": BALANCED})
                )
            frames.append(wide)
    found = [frame for frame in frames if frame is not None]
    return pd.concat(found, ignore_index=True) if found else None


def clean_rows(frame: pd.DataFrame, rates: Accelerator, dtype: str) -> pd.DataFrame:
    """Rows of one data type with ``efficiency`` against ``rates``, without rows that cannot be right.

    ``uneven`` marks rows of `balanced` series whose tokens did not fall evenly: what the busiest rank took is no less
    than what even tokens take.
    """
    rows = frame[frame["moe_dtype"] == dtype]
    if rows.empty:
        return rows.assign(efficiency=[], gated=[], uneven=[])
    kernel, kernels = pd.factorize(rows["kernel_source"])
    gated = np.array([is_gated(name) for name in kernels], dtype=bool)[kernel]
    work = moe_work(
        dtype,
        tokens=rows["num_tokens"].to_numpy(),
        hidden=rows["hidden_size"].to_numpy(),
        intermediate=rows["inter_size"].to_numpy(),
        topk=rows["topk"].to_numpy(),
        experts=rows["num_experts"].to_numpy(),
        moe_tp=rows["moe_tp_size"].to_numpy(),
        local_experts=np.ceil(rows["num_experts"].to_numpy() / rows["moe_ep_size"].to_numpy()),
        gated=gated,
        spread=(rows["distribution"] == BALANCED).to_numpy(),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        efficiency = seconds(rates, dtype, work.flop, work.bytes) / (rows["latency_ms"].to_numpy() * 1e-3)
    good = np.isfinite(efficiency) & (efficiency > 0.0) & (efficiency <= MAX_EFFICIENCY)
    rows = rows.assign(efficiency=efficiency, gated=gated)[good]
    return rows.assign(uneven=_uneven(rows))


def _uneven(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Rows of `balanced` series whose tokens cannot have fallen evenly on the ranks."""
    balanced = np.flatnonzero((rows["distribution"] == BALANCED).to_numpy(bool))
    shape = [rows[name].to_numpy()[balanced] for name in _SHAPE]
    tokens, ep, latency = (
        rows[name].to_numpy()[balanced] for name in ("num_tokens", "moe_ep_size", "latency_ms")
    )
    series = distinct_rows([*shape, pd.factorize(rows["kernel_source"])[0][balanced]])[1]
    # Kernels were measured up to different token counts: every series is judged at the top of its own kernel.
    top = tokens == -_least(series, -tokens)
    alone = _least(series, latency, top & (ep == 1))
    any_kernel = _least(distinct_rows([*shape, tokens])[1], latency, ep == 1)
    alone = np.where(np.isnan(alone), any_kernel, alone)
    half = _least(series, latency, top & (ep == 2))
    handling = _least(series, latency, top)
    bad = (half > MAX_HALF * alone) | ((latency - handling) * ep > MAX_RANK_EXCESS * alone)
    first, sharded = distinct_rows([series, ep])
    flagged = np.zeros(len(first), dtype=bool)
    flagged[sharded[top & (ep > 1) & bad]] = True
    result = np.zeros(len(rows), dtype=bool)
    result[balanced] = flagged[sharded]
    return result


def _least(
    group: IntArray, values: npt.NDArray[np.number[Any]], rows: npt.NDArray[np.bool_] | slice = slice(None)
) -> FloatArray:
    """Least of the ``values`` [n] of each one's group, of some ``rows``; NaN where these have none of it."""
    least = np.full(int(group.max(initial=-1)) + 1, np.inf)
    np.minimum.at(least, group[rows], values[rows])
    return np.where(np.isinf(least), np.nan, least)[group]


@dataclass(frozen=True, slots=True)
class Plan:
    """Kernels that could run a shape; the fastest is taken. ``known`` if the shape itself was measured."""

    kernels: tuple[Kernel, ...]
    known: bool


class MoeTable:
    """Measured experts of one accelerator, framework and data type; ``rows`` as :func:`clean_rows` gives them."""

    def __init__(self, rows: pd.DataFrame, rates: Accelerator, dtype: str) -> None:
        self.dtype = dtype
        self.rates = rates
        text = {name: pd.factorize(rows[name])[0] for name in ("distribution", "kernel_source")}
        keys = [text[name] if name in text else rows[name].to_numpy() for name in (*_KEY, "uneven")]
        first, curve = distinct_rows(keys)
        latency_s = rows["latency_ms"].to_numpy(np.float64) * 1e-3
        tokens, efficiency = (rows[name].to_numpy(np.float64) for name in ("num_tokens", "efficiency"))
        self._curves = CurveSet(curve, tokens, efficiency)
        self.floor_s = float(latency_s.min())
        self._floor_s = _least(curve, latency_s)[first]
        series = rows.iloc[first]
        self._uneven = series["uneven"].to_numpy(bool)
        self._shape = series[_SHAPE].to_numpy(np.float64)
        self._ep = series["moe_ep_size"].to_numpy(np.float64)
        self._kernel = series["kernel_source"].to_numpy(object)
        self._distribution = series["distribution"].to_numpy(object)
        self._gated = np.array([is_gated(kernel) for kernel in self._kernel], dtype=bool)
        self._features = _features(self._shape, self._shape[:, 3] / self._ep)
        self._plans: dict[tuple[float | str | bool, ...], Plan] = {}

    def plan(self, shape: tuple[float, ...], local: float, distribution: str, gated: bool) -> Plan:
        """Curves that answer for a shape (hidden, intermediate, topk, experts, moe_tp) with ``local`` experts."""
        key: tuple[float | str | bool, ...] = (*shape, local, distribution, gated)
        if key not in self._plans:
            self._plans[key] = self._resolve(np.asarray(shape), local, distribution, gated)
        return self._plans[key]

    def _resolve(self, shape: FloatArray, local: float, distribution: str, gated: bool) -> Plan:
        alike = (self._gated == gated) & (self._distribution == distribution)
        if not alike.any():
            alike = self._distribution == distribution if gated not in self._gated else self._gated == gated
        ep = shape[3] / local
        here = alike & (self._shape == shape).all(axis=1)
        at_point = np.flatnonzero(here & (self._ep == ep))
        even = at_point[~self._uneven[at_point]]
        # A series with uneven tokens bounds its kernel from above; alone it says too little.
        exact = tuple(curve_of(int(curve), at_point=bool(len(even))) for curve in at_point)
        if len(even):
            return Plan(exact, known=True)
        alike = alike & ~self._uneven
        same = np.flatnonzero(here & ~self._uneven)
        between = [
            found
            for kernel in dict.fromkeys(self._kernel[same])
            if (found := self._between(same[self._kernel[same] == kernel], ep)) is not None
        ]
        if between:
            return Plan((*between, *exact), known=True)
        return Plan((self._nearest(np.flatnonzero(alike), shape, local),), known=False)

    def _between(self, curves: IntArray, ep: float) -> Kernel | None:
        below, above = curves[self._ep[curves] < ep], curves[self._ep[curves] > ep]
        if not len(below) or not len(above):
            return None
        low, high = below[np.argmax(self._ep[below])], above[np.argmin(self._ep[above])]
        share = float(np.log(ep / self._ep[low]) / np.log(self._ep[high] / self._ep[low]))
        return Kernel((int(low), int(high)), (1.0 - share, share), (1.0, 1.0), at_point=False)

    def _nearest(self, curves: IntArray, shape: FloatArray, local: float) -> Kernel:
        wanted = _features(shape[None, :], np.array([local]))[0]
        distance = ((self._features[curves] - wanted) ** 2 * _DISTANCE).sum(axis=1)
        order = np.argsort(distance, kind="stable")
        nearest = curves[order]
        same_kernel = self._kernel[nearest] == self._kernel[nearest[0]]
        chosen, near = nearest[same_kernel][:NEIGHBOURS], distance[order][same_kernel][:NEIGHBOURS]
        weights = 1.0 / (near + 1e-3)
        load = self._shape[chosen, 2] / self._shape[chosen, 3]
        scale = (shape[2] / shape[3]) / load
        weights = weights / weights.sum()
        return Kernel(tuple(chosen.tolist()), tuple(weights.tolist()), tuple(scale.tolist()), at_point=False)

    def efficiency(
        self, plans: Sequence[Plan], which: IntArray, tokens: FloatArray
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Efficiency of the fastest kernel at ``tokens`` [q], by the plan ``which`` [q]; and whether it is a point."""
        return fastest(self._curves, [plan.kernels for plan in plans], which, tokens)

    def transferred(
        self, plan: Plan, tokens: FloatArray, efficiency: FloatArray, light: FloatArray
    ) -> FloatArray:
        """Efficiency [q] of an unmeasured shape at ``tokens``, given the ``efficiency`` of the shapes next to it.

        ``light`` its speed of light on the table's accelerator. A launch costs the same whatever is computed: what a
        neighbour's latency exceeds its fastest row by scales with the speed of light, the rest stays.
        """
        option = plan.kernels[0]
        log_light, log_floor = np.zeros(len(tokens)), 0.0
        for curve, weight, scale in zip(option.curves, option.weights, option.scale, strict=True):
            hidden, intermediate, topk, experts, moe_tp = self._shape[curve]
            work = moe_work(
                self.dtype,
                tokens=tokens * scale,
                hidden=hidden,
                intermediate=intermediate,
                topk=topk,
                experts=experts,
                moe_tp=moe_tp,
                local_experts=np.ceil(experts / self._ep[curve]),
                gated=self._gated[curve],
                spread=self._distribution[curve] == BALANCED,
            )
            log_light += weight * np.log(seconds(self.rates, self.dtype, work.flop, work.bytes))
            log_floor += weight * np.log(self._floor_s[curve])
        theirs = np.exp(log_light)
        return light / rescaled(theirs / efficiency, theirs, light, float(np.exp(log_floor)))


def _features(shape: FloatArray, local: FloatArray) -> FloatArray:
    hidden, inter, topk, experts, tp = shape.T
    handled = experts / local / topk
    return np.asarray(np.log(np.stack([hidden, inter / tp, local, topk, handled], axis=1)), dtype=np.float64)


def busiest_share(experts: FloatArray, ep: FloatArray, local_experts: FloatArray) -> FloatArray:
    """Share of all token-expert pairs on the busiest rank under even popularity.

    Without redundant slots that rank holds ceil(E / ep) of E experts; with more, replicas even the ranks out.
    """
    return np.where(local_experts > np.ceil(experts / ep), 1.0 / ep, local_experts / experts)


class MoeFamily:
    """Routed experts of one accelerator and framework; a table is read when its data type is first asked for."""

    def __init__(self, accelerator: Accelerator, framework: str, reference: Accelerator) -> None:
        self._accelerator = accelerator
        self._framework = framework
        self._reference = reference
        self._tables: dict[str, tuple[MoeTable, Source] | None] = {}

    def table(self, dtype: str) -> tuple[MoeTable, Source] | None:
        """Table that answers for ``dtype`` and where it is from; None where nothing was measured."""
        if dtype not in self._tables:
            self._tables[dtype] = self._find(dtype)
        return self._tables[dtype]

    def _find(self, dtype: str) -> tuple[MoeTable, Source] | None:
        for source in sources(self._accelerator, self._framework, dtype):
            frame = load_frame(source.accelerator, source.framework, source.dtype)
            if frame is None or frame.empty:
                continue
            rates = rates_of(source.accelerator, self._reference)
            rows = clean_rows(frame, rates, source.dtype)
            if len(rows):
                return MoeTable(rows, rates, source.dtype), source
        return None

    def latency(
        self,
        dtype: str,
        tokens: FloatArray,
        shape: Sequence[FloatArray],
        ep: FloatArray,
        local_experts: FloatArray,
        distribution: str,
        gated: npt.NDArray[np.bool_],
        imbalance: FloatArray,
    ) -> Latency:
        """Latency [q] of one rank's experts; ``shape`` is hidden, intermediate, topk, experts, moe_tp, each [q].

        ``imbalance`` is the load of the rank that is waited for over the mean one's; NaN: even popularity, in which a
        rank may only hold one expert more than another.
        """
        if distribution not in DISTRIBUTIONS:
            known = ", ".join(DISTRIBUTIONS)
            raise InputError(Problem("distribution", distribution, "unknown routing", f"use one of {known}"))
        hidden, intermediate, topk, experts, moe_tp = shape
        even = busiest_share(experts, ep, local_experts)
        share = np.where(np.isnan(imbalance), even, imbalance / ep)
        # Tokens that give each of the rank's slots its load if the slots were all the experts there are.
        load = tokens * experts * share / local_experts
        arguments = {
            "tokens": load,
            "hidden": hidden,
            "intermediate": intermediate,
            "topk": topk,
            "experts": experts,
            "moe_tp": moe_tp,
            "local_experts": local_experts,
            "gated": gated,
        }
        spread = distribution == BALANCED
        work = moe_work(dtype, **arguments, spread=spread)
        light = seconds(self._accelerator, dtype, work.flop, work.bytes)
        found = self.table(dtype)
        if found is None:
            bare = np.full(tokens.shape, Provenance.SPEED_OF_LIGHT, dtype=np.int8)
            return Latency(light / DEFAULT_EFFICIENCY + LAUNCH_S, bare)
        table, source = found
        theirs = moe_work(table.dtype, **arguments, spread=spread)
        base = seconds(table.rates, table.dtype, theirs.flop, theirs.bytes)
        measured_as = BALANCED if distribution == UNIFORM else distribution
        keys, which = distinct_keys(*shape, local_experts, gated.astype(np.int64))
        plans = [table.plan(one[:5], one[5], measured_as, bool(one[6])) for one in keys]
        efficiency, exact = table.efficiency(plans, which, load)
        for number, plan in enumerate(plans):
            if not plan.known:
                rows = np.flatnonzero(which == number)
                efficiency[rows] = table.transferred(plan, load[rows], efficiency[rows], base[rows])
        own = np.array([source.own and plan.known for plan in plans], dtype=bool)[which]
        exact = exact & (distribution != UNIFORM)
        levels = np.where(own, provenance(True, exact), provenance(False, exact))
        if source.dtype == dtype and source.accelerator == self._accelerator.tables:
            return Latency(light / efficiency, levels)
        return Latency(rescaled(base / efficiency, base, light, table.floor_s), levels)
