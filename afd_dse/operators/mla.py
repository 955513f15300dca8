"""Multi-head latent attention: the whole block with its projections, from whole-block tables or composed of kernels.

One rule a framework, never both: where it has ``mla_*_module`` tables for these dimensions (TensorRT-LLM, vLLM) they
answer, whatever else there is, for they contain the small kernels in between; without (SGLang, other dimensions) the
block is attention kernel + absorbed projections + GEMMs + two small kernels. Both agree where both exist.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.architecture.model import Mla
from afd_dse.operators import dsa
from afd_dse.operators import speed_of_light as sol
from afd_dse.operators.attention import (
    READ_EFFICIENCY,
    OperatorSource,
    Place,
    Rates,
    equal_work_tokens,
    kv_compute_dtype,
    places,
    reshape,
    rows_of,
)
from afd_dse.operators.block import (
    BlockDtypes,
    gemms,
    launch_overhead,
    nearest_gemm_dtype,
    projections,
    swap_projections,
)
from afd_dse.operators.latency import FloatArray, IntArray, Latency, Provenance
from afd_dse.operators.store import has_table, load_table
from afd_dse.operators.surfaces import Blend, Surfaces, add, answer, bare, blend_counts
from afd_dse.spec.accelerator import Accelerator

MODULE_MODEL = "deepseek-ai/DeepSeek-V3"
MODULE_HIDDEN = 7168
MODULE_DIMS = Mla(
    heads=128, query_rank=1536, kv_rank=512, nope_head_dim=128, rope_head_dim=64, v_head_dim=128
)
"""Dimensions of every MLA table; whole-block tables are of this hidden size."""

# NOTE: SGLang's decode rows with an FP8 cache on Hopper take 5 times as long as with bfloat16, its whole-block rows
# with an FP8 cache do not: they time a conversion of the cache. A table slower than this is not believed.
CACHE_CONVERSION = 2.0
# Norms of the latents, rotary embedding and cache update between the GEMMs: fused into about this many kernels.
SMALL_KERNELS = 2


def same_dims(mla: Mla, other: Mla) -> bool:
    """Whether two attentions differ in their head count at most."""
    return replace(mla, heads=other.heads) == other


def core_light(
    accelerator: Accelerator,
    mla: Mla,
    dtypes: BlockDtypes,
    *,
    context_phase: bool,
    heads: FloatArray,
    batch: FloatArray,
    length: FloatArray,
    prefix: npt.ArrayLike = 0.0,
) -> FloatArray:
    """Speed of light of the attention kernel: absorbed in decode (``length`` = context), decompressed in prefill."""
    if context_phase:
        work = sol.mla_context_work(
            dtypes.attention,
            heads=heads,
            nope_head_dim=mla.nope_head_dim,
            rope_head_dim=mla.rope_head_dim,
            v_head_dim=mla.v_head_dim,
            batch=batch,
            tokens=length,
            prefix=prefix,
        )
        return sol.seconds(accelerator, dtypes.attention, work.flop, work.bytes)
    work = sol.mla_generation_work(
        dtypes.kv,
        heads=heads,
        kv_rank=mla.kv_rank,
        rope_head_dim=mla.rope_head_dim,
        batch=batch,
        context=length,
    )
    return sol.seconds(accelerator, kv_compute_dtype(accelerator, dtypes.kv), work.flop, work.bytes)


def absorbed_light(accelerator: Accelerator, mla: Mla, heads: FloatArray, tokens: FloatArray) -> FloatArray:
    """Speed of light of both absorbed projections (queries into the latent, values out of it), in bfloat16."""
    total = np.zeros(np.broadcast_shapes(heads.shape, tokens.shape))
    for n, k in ((mla.kv_rank, mla.nope_head_dim), (mla.v_head_dim, mla.kv_rank)):
        work = sol.mla_bmm_work("bfloat16", tokens=tokens, heads=heads, n=n, k=k)
        total = total + sol.seconds(accelerator, "bfloat16", work.flop, work.bytes)
    return total


def block_light(
    accelerator: Accelerator,
    mla: Mla,
    hidden: int,
    dtypes: BlockDtypes,
    *,
    context_phase: bool,
    heads: FloatArray,
    batch: FloatArray,
    length: FloatArray,
) -> FloatArray:
    """Speed of light of the whole block without a prefix: its kernels run one after another."""
    tokens = batch * length if context_phase else batch
    total = core_light(
        accelerator, mla, dtypes, context_phase=context_phase, heads=heads, batch=batch, length=length
    )
    if not context_phase:
        total = total + absorbed_light(accelerator, mla, heads, tokens)
    for n, k in projections(mla, hidden, heads, context_phase=context_phase):
        work = sol.gemm_work(dtypes.gemm, tokens, n, k)
        total = total + sol.seconds(accelerator, dtypes.gemm, work.flop, work.bytes)
    return total


@dataclass(frozen=True, slots=True)
class HeadTable:
    """Surfaces by head count (sorted, key = index); ``corrected`` if a launch overhead was taken out."""

    surfaces: Surfaces
    heads: FloatArray
    dtypes: BlockDtypes
    corrected: bool

    def blend(self, heads: FloatArray, own: bool) -> Blend:
        """Head counts that answer each row; between two measured ones or beyond them it is interpolated."""
        keys, weights, exact = blend_counts(self.heads, heads)
        known = np.where(exact & (not self.corrected), Provenance.MEASURED, Provenance.INTERPOLATED)
        claim = known if own else np.full(len(heads), Provenance.BORROWED)
        return Blend(keys, weights, claim.astype(np.int8))


def _nearest_types(table: pd.DataFrame, dtypes: BlockDtypes) -> tuple[str, str]:
    """(attention, KV) types of the table nearest to those asked; the cache's type comes first."""
    measured = table[["mla_dtype", "kv_cache_dtype"]].drop_duplicates().itertuples(index=False, name=None)
    return min(sorted(measured), key=lambda pair: (pair[1] != dtypes.kv, pair[0] != dtypes.attention))


@lru_cache(maxsize=128)
def module_table(rates: Rates, framework: str, op: str, dtypes: BlockDtypes) -> HeadTable | None:
    """Whole-block surfaces over (batch, tokens or context) for the nearest measured types, None if there are none."""
    accelerator = rates.accelerator
    table = load_table(str(accelerator.tables), framework, op, only={"model": MODULE_MODEL})
    if table is None:
        return None
    gemm_dtype = nearest_gemm_dtype(accelerator, dtypes.gemm, set(table["gemm_type"].unique()))
    attention, kv = _nearest_types(table, dtypes)
    table = table[
        (table["gemm_type"] == gemm_dtype)
        & (table["mla_dtype"] == attention)
        & (table["kv_cache_dtype"] == kv)
    ]
    context_phase = op == "mla_context_module"
    overhead = 0.0 if context_phase else launch_overhead(accelerator, framework, op, MODULE_MODEL)
    return _head_table(
        rates, table, BlockDtypes(gemm_dtype, attention, kv), context_phase, whole=True, overhead=overhead
    )


@lru_cache(maxsize=128)
def kernel_table(rates: Rates, framework: str, op: str, dtypes: BlockDtypes) -> HeadTable | None:
    """Surfaces of the attention kernel alone (``context_mla`` or ``generation_mla``), None if not measured."""
    table = load_table(str(rates.accelerator.tables), framework, op)
    if table is None:
        return None
    attention, kv = _nearest_types(table, dtypes)
    rows = table[(table["mla_dtype"] == attention) & (table["kv_cache_dtype"] == kv)]
    if kv == "fp8" and op == "generation_mla" and _converts_cache(table):
        return None
    return _head_table(
        rates, rows, BlockDtypes("bfloat16", attention, kv), op == "context_mla", whole=False, overhead=0.0
    )


def _converts_cache(table: pd.DataFrame) -> bool:
    point = ["num_heads", "batch_size", "isl", "step"]
    by_type = table.pivot_table(index=point, columns="kv_cache_dtype", values="latency_ms").dropna()
    if not {"bfloat16", "fp8"} <= set(by_type.columns):
        return False
    slow = by_type[by_type["bfloat16"] > by_type["bfloat16"].quantile(0.9)]
    return float((slow["fp8"] / slow["bfloat16"]).median()) > CACHE_CONVERSION


def _head_table(
    rates: Rates,
    table: pd.DataFrame,
    dtypes: BlockDtypes,
    context_phase: bool,
    *,
    whole: bool,
    overhead: float,
) -> HeadTable:
    heads, key = np.unique(table["num_heads"].to_numpy(dtype=np.float64), return_inverse=True)

    def light(ids: IntArray, batch: FloatArray, length: FloatArray) -> FloatArray:
        shape = {"heads": heads[ids], "batch": batch, "length": length}
        if whole:
            return block_light(
                rates.accelerator, MODULE_DIMS, MODULE_HIDDEN, dtypes, context_phase=context_phase, **shape
            )
        return core_light(rates.accelerator, MODULE_DIMS, dtypes, context_phase=context_phase, **shape)

    measured = table["latency_ms"].to_numpy(dtype=np.float64) * 1e-3
    isl, step = table["isl"].to_numpy(dtype=np.float64), table["step"].to_numpy(dtype=np.float64)
    surfaces = Surfaces(
        key.astype(np.int64),
        table["batch_size"].to_numpy(dtype=np.float64),
        isl if context_phase else step + isl,
        np.maximum(measured - overhead, measured.min() - overhead),
        table["kernel_source"].to_numpy(dtype=object),
        light,
    )
    return HeadTable(surfaces, heads, dtypes, overhead > 0.0)


def mla_prefix_bytes(
    mla: Mla, attention_dtype: str, heads: FloatArray, batch: FloatArray, prefix: FloatArray
) -> FloatArray:
    """Bytes of the decompressed keys and values of a prefix, which the attention kernel reads."""
    width = mla.nope_head_dim + mla.rope_head_dim + mla.v_head_dim
    return batch * heads * prefix * (width * sol.precision(attention_dtype).activation_bytes)


def _first_kernel_table(
    database: OperatorSource, op: str, dtypes: BlockDtypes
) -> tuple[HeadTable, bool] | None:
    for place in places(database):
        if not has_table(place.accelerator, place.framework, op):
            continue
        table = kernel_table(place.rates(database), place.framework, op, dtypes)
        if table is not None:
            own = place.own and (table.dtypes.attention, table.dtypes.kv) == (dtypes.attention, dtypes.kv)
            if op == "generation_mla":
                own = place.own and table.dtypes.kv == dtypes.kv
            return table, own
    return None


def _core(
    database: OperatorSource,
    mla: Mla,
    dtypes: BlockDtypes,
    *,
    context_phase: bool,
    heads: FloatArray,
    batch: FloatArray,
    length: FloatArray,
) -> Latency:
    """The attention kernel alone, without a prefix."""
    found = _first_kernel_table(database, "context_mla" if context_phase else "generation_mla", dtypes)
    known = (
        dtypes
        if found is None
        else replace(dtypes, attention=found[0].dtypes.attention, kv=found[0].dtypes.kv)
    )
    light = core_light(
        database.accelerator,
        mla,
        known,
        context_phase=context_phase,
        heads=heads,
        batch=batch,
        length=length,
    )
    if found is None:
        return bare(light)
    table, own = found
    blend = table.blend(
        heads, own and same_dims(replace(mla, query_rank=MODULE_DIMS.query_rank), MODULE_DIMS)
    )
    return answer(light, table.surfaces(blend, batch, length), blend.claim)


@lru_cache(maxsize=64)
def absorbed_table(rates: Rates, framework: str) -> HeadTable | None:
    """Both absorbed projections in bfloat16 over tokens, summed at the points where both were measured."""
    table = load_table(str(rates.accelerator.tables), framework, "mla_bmm")
    if table is None:
        return None
    table = table[table["bmm_dtype"] == "bfloat16"]
    both = table.pivot_table(
        index=["num_heads", "num_tokens"], columns="op_name", values="latency_ms"
    ).dropna()
    if both.shape[1] != 2 or both.empty:
        return None
    heads, key = np.unique(both.index.get_level_values(0).to_numpy(dtype=np.float64), return_inverse=True)
    tokens = both.index.get_level_values(1).to_numpy(dtype=np.float64)

    def light(ids: IntArray, _: FloatArray, tokens: FloatArray) -> FloatArray:
        return absorbed_light(rates.accelerator, MODULE_DIMS, heads[ids], tokens)

    seconds = both.sum(axis=1).to_numpy(dtype=np.float64) * 1e-3
    kernel = np.full(len(both), "bmm", dtype=object)
    surfaces = Surfaces(key.astype(np.int64), np.ones(len(both)), tokens, seconds, kernel, light)
    return HeadTable(surfaces, heads, BlockDtypes("bfloat16", "bfloat16", "bfloat16"), corrected=False)


def _absorbed(database: OperatorSource, mla: Mla, heads: FloatArray, tokens: FloatArray) -> Latency:
    light = absorbed_light(database.accelerator, mla, heads, tokens)
    for place in places(database):
        if not has_table(place.accelerator, place.framework, "mla_bmm"):
            continue
        table = absorbed_table(place.rates(database), place.framework)
        if table is not None:
            own = place.own and same_dims(replace(mla, query_rank=MODULE_DIMS.query_rank), MODULE_DIMS)
            return answer(
                light,
                table.surfaces(table.blend(heads, own), np.ones_like(tokens), tokens),
                table.blend(heads, own).claim,
            )
    return bare(light)


def _composed(
    database: OperatorSource,
    mla: Mla,
    hidden: int,
    dtypes: BlockDtypes,
    *,
    context_phase: bool,
    heads: FloatArray,
    batch: FloatArray,
    length: FloatArray,
) -> Latency:
    tokens = batch * length if context_phase else batch
    parts = [
        _core(
            database,
            mla,
            dtypes,
            context_phase=context_phase,
            heads=heads,
            batch=batch,
            length=length,
        ),
        gemms(database, dtypes.gemm, tokens, projections(mla, hidden, heads, context_phase=context_phase)),
    ]
    if not context_phase:
        parts.append(_absorbed(database, mla, heads, tokens))
    moved = 4.0 * tokens * (mla.query_rank + mla.kv_rank + mla.rope_head_dim) / SMALL_KERNELS
    small = SMALL_KERNELS * database.elementwise(bytes_moved=moved).seconds
    whole = add(*parts)
    # The small kernels are a modelled few per cent: they keep a block from being called measured, not more.
    claim = np.maximum(whole.provenance, Provenance.INTERPOLATED).astype(np.int8)
    return Latency(whole.seconds + small, claim)


def _own_module(database: OperatorSource, op: str, dtypes: BlockDtypes) -> tuple[HeadTable, Place] | None:
    """Whole-block table of the asked framework on the accelerator that answers for the asked one."""
    for place in places(database):
        if place.framework != database.framework or not has_table(place.accelerator, place.framework, op):
            continue
        table = module_table(place.rates(database), place.framework, op, dtypes)
        return None if table is None else (table, place)
    return None


def _block(
    database: OperatorSource,
    mla: Mla,
    hidden: int,
    dtypes: BlockDtypes,
    *,
    context_phase: bool,
    heads: FloatArray,
    batch: FloatArray,
    length: FloatArray,
) -> Latency:
    """The block without a prefix."""
    shape = {"heads": heads, "batch": batch, "length": length}
    op = "mla_context_module" if context_phase else "mla_generation_module"
    found = (
        _own_module(database, op, dtypes) if hidden == MODULE_HIDDEN and same_dims(mla, MODULE_DIMS) else None
    )
    if found is None:
        return _composed(database, mla, hidden, dtypes, context_phase=context_phase, **shape)
    table, place = found
    asked_types = (dtypes.attention, dtypes.kv) if context_phase else (table.dtypes.attention, dtypes.kv)
    blend = table.blend(heads, place.own and asked_types == (table.dtypes.attention, table.dtypes.kv))
    light = block_light(database.accelerator, mla, hidden, table.dtypes, context_phase=context_phase, **shape)
    latency = answer(light, table.surfaces(blend, batch, length), blend.claim)
    if table.dtypes.gemm == dtypes.gemm:
        return latency
    tokens = batch * length if context_phase else batch
    pairs = projections(mla, hidden, heads, context_phase=context_phase)
    least = block_light(database.accelerator, mla, hidden, dtypes, context_phase=context_phase, **shape)
    return swap_projections(database, latency, tokens, pairs, table.dtypes.gemm, dtypes.gemm, least)


def mla_generation(
    database: OperatorSource,
    *,
    mla: Mla,
    hidden: int,
    heads: npt.ArrayLike,
    gemm_dtype: str,
    kv_dtype: str,
    batch: npt.ArrayLike,
    context: npt.ArrayLike,
) -> Latency:
    """One decode step of the whole attention block with ``heads`` heads on this GPU; DSA if ``mla.index_topk``.

    Projections, absorbed products and attention; without the block's input norm and its all-reduce. The latent cache
    is read whole however many GPUs share the heads. Arrays broadcast; the result has their shape.
    """
    shape, (h, b, c) = rows_of(heads, batch, context)
    dtypes = BlockDtypes(gemm_dtype, "bfloat16", kv_dtype)
    if mla.index_topk:
        return reshape(dsa.generation(database, mla, hidden, dtypes, heads=h, batch=b, context=c), shape)
    return reshape(
        _block(database, mla, hidden, dtypes, context_phase=False, heads=h, batch=b, length=c), shape
    )


def mla_context(
    database: OperatorSource,
    *,
    mla: Mla,
    hidden: int,
    heads: npt.ArrayLike,
    gemm_dtype: str,
    attention_dtype: str,
    kv_dtype: str,
    batch: npt.ArrayLike,
    tokens: npt.ArrayLike,
    prefix: npt.ArrayLike,
) -> Latency:
    """Prefill of ``tokens`` new tokens a sequence after ``prefix`` cached ones, the whole block.

    DSA if ``mla.index_topk``. MLA tables have no prefix: its share is what the attention kernel adds for the prefix,
    at the efficiency of a prompt with equally many (query, key) pairs, and the decompression of the prefix's latents
    (BORROWED).
    """
    shape, (h, b, t, p) = rows_of(heads, batch, tokens, prefix)
    dtypes = BlockDtypes(gemm_dtype, attention_dtype, kv_dtype)
    if mla.index_topk:
        return reshape(
            dsa.context(database, mla, hidden, dtypes, heads=h, batch=b, tokens=t, prefix=p), shape
        )
    latency = _block(database, mla, hidden, dtypes, context_phase=True, heads=h, batch=b, length=t)
    cached = np.flatnonzero(p > 0.0)
    if len(cached):
        h, b, t, p = h[cached], b[cached], t[cached], p[cached]
        dims = {"heads": h, "batch": b}
        equal = equal_work_tokens(t, p)
        with_prefix = _core(database, mla, dtypes, context_phase=True, length=equal, **dims)
        without = _core(database, mla, dtypes, context_phase=True, length=t, **dims)
        read = mla_prefix_bytes(mla, attention_dtype, h, b, p)
        least = read / (database.accelerator.hbm_bytes_per_s * READ_EFFICIENCY)
        more = np.maximum(with_prefix.seconds - without.seconds, least)
        decompress = gemms(
            database, gemm_dtype, b * p, [(h * (mla.nope_head_dim + mla.v_head_dim), mla.kv_rank)]
        )
        latency.seconds[cached] += more + decompress.seconds
        latency.provenance[cached] = np.maximum(latency.provenance[cached], Provenance.BORROWED)
    return reshape(latency, shape)
