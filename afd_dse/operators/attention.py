"""Grouped-query attention kernels of both phases: measured efficiency by (heads, KV heads, head dim, window, dtype).

Which kernel answers: what the framework's own dispatch runs. Most tables hold one kernel per key and length; where
SGLang on Blackwell was measured with several, its default there (TRT-LLM's MHA kernels) comes first, then FlashInfer,
then Triton. vLLM switches kernels with the prompt length, and so do we.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.operators import speed_of_light as sol
from afd_dse.operators.borrowing import rates_of, sources, tables_of
from afd_dse.operators.latency import FloatArray, IntArray, Latency, Provenance
from afd_dse.operators.store import has_table, load_table
from afd_dse.operators.surfaces import Blend, Surfaces, answer, bare
from afd_dse.spec.accelerator import Accelerator

KERNEL_PREFERENCE = (
    "torch_flow",
    "torch_flow_flashinfer",
    "trtllm_mha",
    "fa3",
    "vllm_flash_attn_fa3",
    "vllm_flash_attn_fa4",
    "vllm_flashinfer_trtllmprefill",
    "vllm_flashinfer_trtllmdecode",
    "vllm_flashinfer",
    "flashinfer",
    "triton",
    "vllm_triton_attn",
)


READ_EFFICIENCY = 0.8
"""Share of the HBM bandwidth at which a long prefix is read (long decode contexts reach 0.75 to 0.85)."""


class OperatorSource(Protocol):
    """What the family functions need of the operator database."""

    @property
    def accelerator(self) -> Accelerator:
        """Accelerator that is asked about, with a job's overrides."""

    @property
    def reference(self) -> Accelerator:
        """Catalogue accelerator whose tables and rates give the efficiencies."""

    @property
    def framework(self) -> str:
        """Serving framework: trtllm, sglang or vllm."""

    def gemm(self, *, dtype: str, m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike) -> Latency:
        """Latency of one GEMM."""

    def elementwise(self, *, bytes_moved: npt.ArrayLike) -> Latency:
        """Latency of a memory-bound kernel."""


@dataclass(frozen=True, slots=True)
class Rates:
    """An accelerator as a key of caches: equal when what efficiencies depend on is equal."""

    identity: Hashable
    accelerator: Accelerator = field(compare=False)

    @classmethod
    def of(cls, accelerator: Accelerator) -> "Rates":
        """Wrap ``accelerator``."""
        peaks = tuple(sorted(accelerator.peak_flops.items()))
        return cls((accelerator.name, accelerator.tables, accelerator.hbm_bytes_per_s, peaks), accelerator)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table was measured; ``own`` if under the asked framework and on the asked accelerator."""

    accelerator: str
    framework: str
    own: bool

    def rates(self, database: OperatorSource) -> Rates:
        """Catalogue rates at which the table was measured."""
        return Rates.of(rates_of(self.accelerator, database.reference))


def places(database: OperatorSource) -> tuple[Place, ...]:
    """Tables to try in order: the framework's own, other frameworks on this accelerator, other accelerators."""
    return _places(tables_of(database.accelerator), Rates.of(database.accelerator), database.framework)


@lru_cache(maxsize=64)
def _places(home: str | None, asked: Rates, framework: str) -> tuple[Place, ...]:
    found: dict[tuple[str, str], Place] = {}
    for source in sources(asked.accelerator, framework, "bfloat16"):
        where = (source.accelerator, source.framework)
        own = source.framework == framework and source.accelerator == asked.accelerator.tables == home
        found.setdefault(where, Place(*where, own))
    return tuple(found.values())


def kv_compute_dtype(accelerator: Accelerator, kv_dtype: str) -> str:
    """Data type in which decode kernels multiply: Blackwell's use the cache's own, older ones widen it to bfloat16."""
    return kv_dtype if "fp4" in accelerator.peak_flops else "bfloat16"


def rows_of(*values: npt.ArrayLike) -> tuple[tuple[int, ...], list[FloatArray]]:
    """Broadcast arguments and flatten them: (shape, arrays of float64)."""
    arrays = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values))
    return arrays[0].shape, [np.ascontiguousarray(array).reshape(-1) for array in arrays]


def reshape(latency: Latency, shape: tuple[int, ...]) -> Latency:
    """Give a flat latency the shape of its arguments."""
    return Latency(latency.seconds.reshape(shape), latency.provenance.reshape(shape))


@dataclass(frozen=True, slots=True)
class AttentionTable:
    """One table's surfaces and what its keys are: columns head_dim, window, kv_heads, heads [K]."""

    surfaces: Surfaces
    keys: IntArray
    attention_dtype: str
    kv_dtype: str


_KEY = ["head_dim", "window_size", "num_key_value_heads", "num_heads"]
KV_HEADS, HEADS = 2, 3  # columns of a key: decode is proportional to its caches, prefill to its heads


def _dtype_pair(table: pd.DataFrame, attention_dtype: str, kv_dtype: str) -> tuple[str, str] | None:
    """Measured (attention, KV) types nearest to those asked: the cache's type decides bytes and comes first."""
    measured = set(zip(table["attn_dtype"], table["kv_cache_dtype"], strict=True))
    other_attention = "bfloat16" if attention_dtype == "fp8" else "fp8"
    other_kv = "bfloat16" if kv_dtype == "fp8" else "fp8"
    for pair in (
        (attention_dtype, kv_dtype),
        (other_attention, kv_dtype),
        (attention_dtype, other_kv),
        (other_attention, other_kv),
    ):
        if pair in measured:
            return pair
    return None


@lru_cache(maxsize=128)
def attention_table(
    rates: Rates, framework: str, op: str, attention_dtype: str, kv_dtype: str
) -> AttentionTable | None:
    """Surfaces of ``op`` (``generation_attention`` or ``context_attention``) over (batch, context or tokens).

    The types are the nearest measured ones; None if there is no table.
    """
    name = rates.accelerator.tables
    table = load_table(name, framework, op) if name else None
    if table is None:
        return None
    pair = _dtype_pair(table, attention_dtype, kv_dtype)
    if pair is None:
        return None
    table = table[(table["attn_dtype"] == pair[0]) & (table["kv_cache_dtype"] == pair[1])]
    keys, key = np.unique(table[_KEY].to_numpy(dtype=np.int64), axis=0, return_inverse=True)
    isl, step = table["isl"].to_numpy(dtype=np.float64), table["step"].to_numpy(dtype=np.float64)

    def light(ids: IntArray, batch: FloatArray, length: FloatArray) -> FloatArray:
        head_dim, window, kv_heads, heads = keys[ids].astype(np.float64).T
        shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "window": window, "batch": batch}
        if op == "generation_attention":
            return _generation_light(rates.accelerator, pair[1], context=length, **shape)
        return _context_light(rates.accelerator, *pair, tokens=length, prefix=np.zeros_like(length), **shape)

    surfaces = Surfaces(
        key.reshape(-1).astype(np.int64),
        table["batch_size"].to_numpy(dtype=np.float64),
        step + isl if op == "generation_attention" else isl,
        table["latency_ms"].to_numpy(dtype=np.float64) * 1e-3,
        table["kernel_source"].to_numpy(dtype=object),
        light,
        KERNEL_PREFERENCE,
    )
    return AttentionTable(surfaces, keys, *pair)


def _generation_light(accelerator: Accelerator, kv_dtype: str, **shape: FloatArray) -> FloatArray:
    work = sol.generation_attention_work(kv_dtype, **shape)
    return sol.seconds(accelerator, kv_compute_dtype(accelerator, kv_dtype), work.flop, work.bytes)


def _context_light(
    accelerator: Accelerator, attention_dtype: str, kv_dtype: str, **shape: FloatArray
) -> FloatArray:
    work = sol.context_attention_work(attention_dtype, kv_dtype, **shape)
    return sol.seconds(accelerator, attention_dtype, work.flop, work.bytes)


def _nearest(
    keys: IntArray, present: IntArray, wanted: FloatArray
) -> tuple[list[int], list[float], Provenance, bool]:
    """Keys that answer for ``wanted`` (head_dim, window, kv_heads, heads): (ids, weights, claim, own window).

    Exact key; else neighbours in head count with the same dims and group ratio, blended; else the nearest key by head
    dim, window, group ratio and head count, in this order.
    """
    table = keys[present].astype(np.float64)
    dim, window, kv_heads, heads = table.T
    d, w, kv, h = wanted
    hit = (dim == d) & (window == w) & (kv_heads == kv) & (heads == h)
    if hit.any():
        return [int(present[np.argmax(hit)])], [1.0], Provenance.MEASURED, True
    alike = np.flatnonzero((dim == d) & (window == w) & (heads * kv == h * kv_heads))
    if len(alike):
        order = alike[np.argsort(heads[alike])]
        right = int(np.searchsorted(heads[order], h))
        if right in (0, len(order)):
            return [int(present[order[min(right, len(order) - 1)]])], [1.0], Provenance.INTERPOLATED, True
        low, high = order[right - 1], order[right]
        weight = float(np.log(h / heads[low]) / np.log(heads[high] / heads[low]))
        return [int(present[low]), int(present[high])], [1.0 - weight, weight], Provenance.INTERPOLATED, True
    # Full attention resembles a window more than another window does, and a wide window full attention most.
    far = np.log(131072.0)
    window_distance = np.where(
        window == w,
        0.0,
        np.where(
            window == 0.0, 1.0, 1.0 + np.abs(np.log(np.maximum(window, 1.0)) - (np.log(w) if w else far))
        ),
    )
    ratio_distance = np.abs(np.log(heads * kv / (kv_heads * h)))
    head_distance = np.abs(np.log(heads / h))
    order = np.lexsort((head_distance, ratio_distance, window_distance, np.abs(np.log(dim / d))))
    best = int(order[0])
    return [int(present[best])], [1.0], Provenance.BORROWED, bool(window[best] == w)


def blend_keys(
    table: AttentionTable, wanted: FloatArray, own: bool, split: int, present: IntArray | None = None
) -> tuple[Blend, npt.NDArray[np.bool_]]:
    """Blend of every row of ``wanted`` [n, 4], and whether the row's own window was measured.

    Other head counts are asked at the batch of equal work: ``split`` is the column that work is proportional to
    (``KV_HEADS`` in decode, ``HEADS`` in prefill). Only keys in ``present`` answer, all of the table by default.
    """
    keys = table.surfaces.keys_present if present is None else present
    distinct, inverse = np.unique(wanted, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    ids = np.zeros((len(distinct), 2), dtype=np.int64)
    weights = np.zeros((len(distinct), 2))
    claim = np.zeros(len(distinct), dtype=np.int8)
    own_window = np.ones(len(distinct), dtype=bool)
    for number, one in enumerate(distinct):
        found, weight, level, same = _nearest(table.keys, keys, one)
        ids[number] = found[-1]
        ids[number, : len(found)] = found
        weights[number, : len(weight)] = weight
        claim[number] = level if own else Provenance.BORROWED
        own_window[number] = same
    scale = distinct[:, [split]] / table.keys[:, split].astype(np.float64)[ids]
    return Blend(ids[inverse], weights[inverse], claim[inverse], scale[inverse]), own_window[inverse]


def _first_table(
    database: OperatorSource, op: str, attention_dtype: str, kv_dtype: str
) -> tuple[AttentionTable, bool] | None:
    for place in places(database):
        if not has_table(place.accelerator, place.framework, op):
            continue
        table = attention_table(place.rates(database), place.framework, op, attention_dtype, kv_dtype)
        if table is not None:
            asked = (
                (attention_dtype, kv_dtype)
                if op == "context_attention"
                else (table.attention_dtype, kv_dtype)
            )
            return table, place.own and asked == (table.attention_dtype, table.kv_dtype)
    return None


def generation_attention(
    database: OperatorSource,
    *,
    heads: npt.ArrayLike,
    kv_heads: npt.ArrayLike,
    head_dim: npt.ArrayLike,
    window: npt.ArrayLike,
    kv_dtype: str,
    batch: npt.ArrayLike,
    context: npt.ArrayLike,
) -> Latency:
    """One decode step of the attention kernel: ``batch`` sequences that each see ``context`` tokens.

    Heads are those of one GPU; ``window`` 0 is full attention. Arrays broadcast; the result has their shape.
    """
    shape, (h, kv, d, w, b, c) = rows_of(heads, kv_heads, head_dim, window, batch, context)
    found = _first_table(database, "generation_attention", "bfloat16", kv_dtype)
    measured_kv = found[0].kv_dtype if found else kv_dtype
    light = _generation_light(
        database.accelerator, measured_kv, heads=h, kv_heads=kv, head_dim=d, window=w, batch=b, context=c
    )
    if found is None:
        return reshape(bare(light), shape)
    table, own = found
    blend, own_window = blend_keys(table, np.stack([d, w, kv, h], axis=1), own, KV_HEADS)
    seen = np.where(own_window | (w == 0.0), c, np.minimum(c, w))
    return reshape(answer(light, table.surfaces(blend, b, seen), blend.claim), shape)


def attended_pairs(tokens: npt.ArrayLike, prefix: npt.ArrayLike, window: npt.ArrayLike = 0.0) -> FloatArray:
    """Number of (query, key) pairs of one sequence: causal, after ``prefix`` cached tokens, within ``window``."""
    work = sol.context_attention_work(
        "bfloat16",
        "bfloat16",
        heads=0.25,
        kv_heads=1.0,
        head_dim=1.0,
        window=window,
        batch=1.0,
        tokens=tokens,
        prefix=prefix,
    )
    return work.flop  # 4 FLOP a pair, head and element of the head


def equal_work_tokens(tokens: FloatArray, prefix: FloatArray, window: npt.ArrayLike = 0.0) -> FloatArray:
    """Tokens without a prefix whose causal (windowed) attention has as many (query, key) pairs."""
    wide = np.broadcast_to(np.asarray(window, dtype=np.float64), tokens.shape)
    pairs = attended_pairs(tokens, prefix, wide)
    triangle = (np.sqrt(8.0 * pairs + 1.0) - 1.0) / 2.0
    sliding = (pairs - wide * (wide + 1.0) / 2.0) / np.where(wide > 0.0, wide, 1.0) + wide
    equal = np.where((wide > 0.0) & (triangle > wide), sliding, triangle)
    return np.where(prefix > 0.0, equal, tokens)


def context_attention(
    database: OperatorSource,
    *,
    heads: npt.ArrayLike,
    kv_heads: npt.ArrayLike,
    head_dim: npt.ArrayLike,
    window: npt.ArrayLike,
    attention_dtype: str,
    kv_dtype: str,
    batch: npt.ArrayLike,
    tokens: npt.ArrayLike,
    prefix: npt.ArrayLike,
) -> Latency:
    """Prefill attention of ``batch`` sequences of ``tokens`` new tokens after ``prefix`` cached ones.

    Tables have no prefix: with one, the latency is that of the prompt without a prefix that has equally many (query,
    key) pairs, and no less than reading the prefix takes (BORROWED).
    """
    shape, (h, kv, d, w, b, t, p) = rows_of(heads, kv_heads, head_dim, window, batch, tokens, prefix)
    found = _first_table(database, "context_attention", attention_dtype, kv_dtype)
    pair = (found[0].attention_dtype, found[0].kv_dtype) if found else (attention_dtype, kv_dtype)
    equal = equal_work_tokens(t, p, w)
    dims = {"heads": h, "kv_heads": kv, "head_dim": d, "window": w, "batch": b}
    light = _context_light(
        database.accelerator, pair[0], pair[1], tokens=equal, prefix=np.zeros_like(p), **dims
    )
    moved = sol.context_attention_work(pair[0], pair[1], tokens=t, prefix=p, **dims).bytes
    least = np.where(p > 0.0, moved / (database.accelerator.hbm_bytes_per_s * READ_EFFICIENCY), 0.0)
    if found is None:
        return reshape(bare(np.maximum(light, least * READ_EFFICIENCY)), shape)
    table, own = found
    blend, _ = blend_keys(table, np.stack([d, w, kv, h], axis=1), own, HEADS)
    claim = np.where(p > 0.0, Provenance.BORROWED, blend.claim).astype(np.int8)
    latency = answer(light, table.surfaces(blend, b, equal), claim)
    return reshape(Latency(np.maximum(latency.seconds, least), latency.provenance), shape)
