"""DeepSeek sparse attention: the whole block of both phases from ``dsa_*_module`` tables.

The block: MLA's projections, the indexer (its projections, FP8 scores of every query with the whole context, top-k),
sparse latent attention over the chosen tokens. SGLang's prefill computes short contexts densely, which is a kernel of
its own here. Rows of models that share one indexer between layers are other models' and are not used.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.architecture.model import Mla
from afd_dse.operators import speed_of_light as sol
from afd_dse.operators.attention import (
    OperatorSource,
    Place,
    Rates,
    attended_pairs,
    kv_compute_dtype,
    places,
)
from afd_dse.operators.block import (
    BlockDtypes,
    launch_overhead,
    nearest_gemm_dtype,
    projections,
    swap_projections,
)
from afd_dse.operators.latency import FloatArray, IntArray, Latency, Provenance
from afd_dse.operators.store import has_table, load_table
from afd_dse.operators.surfaces import Blend, Surfaces, answer, bare, blend_counts
from afd_dse.spec.accelerator import Accelerator

_GLM = Mla(64, 2048, 512, 192, 64, 256, index_topk=2048, index_heads=32, index_head_dim=128)
MODELS: dict[str, tuple[int, Mla]] = {
    "deepseek-ai/DeepSeek-V3.2": (
        7168,
        Mla(128, 1536, 512, 128, 64, 128, index_topk=2048, index_heads=64, index_head_dim=128),
    ),
    "zai-org/GLM-5": (6144, _GLM),
    "zai-org/GLM-5-FP8": (6144, _GLM),
}
"""Hidden size and attention of the models in the tables."""

# NOTE: TensorRT-LLM's rows with exactly index_topk cached tokens take 1.3 to 1.5 times as long as rows with twice
# as many.
SPIKE = 1.2

# Efficiency of the indexer's share of a block: what longer prefixes add to SGLang's blocks of one to four prompts with
# at least 2,048 new tokens, from 16k to 164k cached tokens, on all six accelerators (0.35 to 0.55; the quadratic part
# of TensorRT-LLM's longest prompts gives 0.34).
INDEXER_EFFICIENCY = 0.4

SCORE_DTYPE = "fp8"
SCORE_BYTES = 4.0  # a score is a float32, written by the scoring kernel and read by the selection


def index_projections(mla: Mla, hidden: int) -> list[tuple[npt.ArrayLike, npt.ArrayLike]]:
    """(n, k) of the indexer's GEMMs, not split: queries from the latent, keys and head weights from the input."""
    return [
        (mla.index_heads * mla.index_head_dim, mla.query_rank or hidden),
        (mla.index_head_dim + mla.index_heads, hidden),
    ]


def _indexer_light(
    accelerator: Accelerator, mla: Mla, batch: FloatArray, pairs: FloatArray, context: FloatArray
) -> FloatArray:
    """Scores of ``pairs`` (query, key) a sequence over ``context`` index keys, and the selection reading them."""
    flop = 2.0 * batch * pairs * mla.index_heads * mla.index_head_dim
    keys = batch * context * (mla.index_head_dim * sol.precision(SCORE_DTYPE).activation_bytes + 4.0)
    return sol.seconds(accelerator, SCORE_DTYPE, flop, keys + batch * pairs * SCORE_BYTES) + sol.seconds(
        accelerator, SCORE_DTYPE, 0.0, batch * pairs * SCORE_BYTES
    )


def block_light(
    accelerator: Accelerator,
    mla: Mla,
    hidden: int,
    dtypes: BlockDtypes,
    *,
    heads: FloatArray,
    batch: FloatArray,
    tokens: FloatArray,
    prefix: FloatArray,
    dense: npt.ArrayLike = False,
) -> FloatArray:
    """Speed of light of the whole block for ``tokens`` new tokens a sequence (1 in decode) after ``prefix`` cached.

    ``dense`` rows skip the indexer's scores and attend to decompressed heads.
    """
    queries, context = batch * tokens, tokens + prefix
    pairs, chosen = attended_pairs(tokens, prefix), attended_pairs(tokens, prefix, float(mla.index_topk))
    total = np.zeros(queries.shape)
    for n, k in (*projections(mla, hidden, heads, context_phase=False), *index_projections(mla, hidden)):
        work = sol.gemm_work(dtypes.gemm, queries, n, k)
        total = total + sol.seconds(accelerator, dtypes.gemm, work.flop, work.bytes)
    for n, k in ((mla.kv_rank, mla.nope_head_dim), (mla.v_head_dim, mla.kv_rank)):
        work = sol.mla_bmm_work("bfloat16", tokens=queries, heads=heads, n=n, k=k)
        total = total + sol.seconds(accelerator, "bfloat16", work.flop, work.bytes)
    width = 2.0 * mla.kv_rank + mla.rope_head_dim
    latents = np.minimum(context, chosen) * (mla.kv_rank + mla.rope_head_dim)
    moved = (
        batch * latents * sol.precision(dtypes.kv).activation_bytes
        + queries * heads * width * sol.OUTPUT_BYTES
    )
    compute = kv_compute_dtype(accelerator, dtypes.kv)
    sparse = sol.seconds(accelerator, compute, 2.0 * batch * heads * chosen * width, moved)
    sparse = sparse + _indexer_light(accelerator, mla, batch, pairs, context)
    full = sol.mla_context_work(
        dtypes.attention,
        heads=heads,
        nope_head_dim=mla.nope_head_dim,
        rope_head_dim=mla.rope_head_dim,
        v_head_dim=mla.v_head_dim,
        batch=batch,
        tokens=tokens,
        prefix=prefix,
    )
    plain = sol.seconds(accelerator, dtypes.attention, full.flop, full.bytes)
    return total + np.where(np.asarray(dense, dtype=bool), plain, sparse)


@dataclass(frozen=True, slots=True)
class DsaTable:
    """Surfaces of one model, types and phase.

    Keys are (dense?, heads, batch) in prefill, over (tokens, prefix + 1); (False, heads, 1) in decode, over (batch,
    context). Prefill computes densely up to ``dense_context`` tokens a sequence and ``dense_tokens`` in all;
    ``reach`` is the longest prefix measured for each number of tokens (decode: sequences), by batch (decode: 1).
    """

    surfaces: Surfaces
    keys: dict[tuple[bool, int, int], int]
    heads: FloatArray
    batches: dict[bool, FloatArray]
    reach: dict[int, tuple[FloatArray, FloatArray]]
    dtypes: BlockDtypes
    dense_context: float
    dense_tokens: float
    corrected: bool
    same_model: bool


def _choose_model(table: pd.DataFrame, mla: Mla, hidden: int) -> tuple[list[str], bool]:
    """Models of the table with these dimensions, else with the nearest hidden size and heads alike."""
    present = [name for name in MODELS if (table["model"] == name).any()]
    same = [name for name in present if MODELS[name] == (hidden, replace(mla, heads=MODELS[name][1].heads))]
    if same:
        return same, True
    nearest = min(present, key=lambda name: abs(np.log(MODELS[name][0] / hidden)))
    return [name for name in present if MODELS[name] == MODELS[nearest]], False


def _spikes(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Decode rows slower by more than ``SPIKE`` than the same batch with the next longer context: disturbed timings."""
    order = table.sort_values(["kernel_source", "num_heads", "batch_size", "step"])
    following = order.groupby(["kernel_source", "num_heads", "batch_size"])["latency_ms"].shift(-1)
    return (order["latency_ms"] > SPIKE * following).reindex(table.index).to_numpy(dtype=bool)


@lru_cache(maxsize=64)
def dsa_table(
    rates: Rates, framework: str, op: str, mla: Mla, hidden: int, dtypes: BlockDtypes
) -> DsaTable | None:
    """Surfaces for the model, GEMM and cache types nearest to those asked; None if there is no table."""
    accelerator = rates.accelerator
    table = load_table(str(accelerator.tables), framework, op)
    if table is None:
        return None
    names, same_model = _choose_model(table, mla, hidden)
    table = table[table["model"].isin(names)]
    gemm_dtype = nearest_gemm_dtype(accelerator, dtypes.gemm, set(table["gemm_type"]))
    table = table[table["gemm_type"] == gemm_dtype]
    kinds = sorted(set(table["kv_cache_dtype"]))
    kv = dtypes.kv if dtypes.kv in kinds else kinds[0]
    table = table[(table["kv_cache_dtype"] == kv) & ~table["kernel_source"].str.contains("skip_indexer")]
    table = table.sort_values("model").drop_duplicates(
        ["kernel_source", "num_heads", "batch_size", "isl", "step"], keep="first"
    )
    context_phase = op == "dsa_context_module"
    if not context_phase:
        table = table[~_spikes(table)]
    types = BlockDtypes(gemm_dtype, "bfloat16", kv)
    dense = table["kernel_source"].str.contains("dense").to_numpy(dtype=bool)
    heads = table["num_heads"].to_numpy(dtype=np.int64)
    batch = table["batch_size"].to_numpy(dtype=np.int64)
    isl, step = table["isl"].to_numpy(dtype=np.float64), table["step"].to_numpy(dtype=np.float64)
    triples = np.stack(
        [dense.astype(np.int64), heads, batch if context_phase else np.ones_like(batch)], axis=1
    )
    distinct, key = np.unique(triples, axis=0, return_inverse=True)
    own_hidden, own_mla = MODELS[names[0]]

    def light(ids: IntArray, u: FloatArray, v: FloatArray) -> FloatArray:
        is_dense, key_heads, key_batch = distinct[ids].astype(np.float64).T
        shape = (key_batch, u, v - 1.0) if context_phase else (u, np.ones_like(u), v - 1.0)
        return block_light(
            accelerator, own_mla, own_hidden, types, heads=key_heads, batch=shape[0], tokens=shape[1], prefix=shape[2],
            dense=is_dense > 0,
        )  # fmt: skip

    measured = table["latency_ms"].to_numpy(dtype=np.float64) * 1e-3
    overhead = 0.0 if context_phase else launch_overhead(accelerator, framework, op, names[0])
    surfaces = Surfaces(
        key.reshape(-1).astype(np.int64),
        isl if context_phase else batch.astype(np.float64),
        step + 1.0,
        measured - overhead,
        table["kernel_source"].to_numpy(dtype=object),
        light,
    )
    triple_list = [(bool(d), int(h), int(b)) for d, h, b in distinct]
    return DsaTable(
        surfaces,
        {triple: number for number, triple in enumerate(triple_list)},
        np.unique(heads).astype(np.float64),
        {kind: np.unique(distinct[distinct[:, 0] == kind, 2]).astype(np.float64) for kind in (False, True)},
        _reach(*(column[~dense] for column in (triples[:, 2], isl if context_phase else batch, step))),
        types,
        float((isl + step)[dense].max(initial=0.0)),
        float((batch * (isl + step))[dense].max(initial=0.0)),
        overhead > 0.0,
        same_model,
    )


def _reach(
    batch: IntArray, tokens: npt.NDArray[np.generic], prefix: FloatArray
) -> dict[int, tuple[FloatArray, FloatArray]]:
    """Token counts measured at each batch, ascending, and the longest prefix of each."""
    found = {}
    for size in np.unique(batch):
        rows = batch == size
        lengths, which = np.unique(tokens[rows].astype(np.float64), return_inverse=True)
        longest = np.zeros(len(lengths))
        np.maximum.at(longest, which.reshape(-1), prefix[rows])
        found[int(size)] = (lengths, longest)
    return found


def _reached(table: DsaTable, batch: FloatArray, tokens: FloatArray) -> FloatArray:
    """Longest prefix [n] up to which the surfaces between neighbouring batches and token counts are measured."""
    neighbours, _, _ = blend_counts(table.batches[False], batch)
    found = np.full(len(batch), np.inf)
    for column in (0, 1):
        sizes = table.batches[False][neighbours[:, column]]
        for size in np.unique(sizes):
            rows = sizes == size
            lengths, longest = table.reach[int(size)]
            after = np.minimum(np.searchsorted(lengths, tokens[rows]), len(lengths) - 1)
            before = np.where(lengths[after] > tokens[rows], np.maximum(after - 1, 0), after)
            found[rows] = np.minimum(found[rows], np.minimum(longest[before], longest[after]))
    return found


def _find(
    database: OperatorSource, op: str, mla: Mla, hidden: int, dtypes: BlockDtypes
) -> tuple[DsaTable, Place] | None:
    for place in places(database):
        if not has_table(place.accelerator, place.framework, op):
            continue
        table = dsa_table(place.rates(database), place.framework, op, mla, hidden, dtypes)
        if table is not None:
            return table, place
    return None


def _blend(
    table: DsaTable, own: bool, heads: FloatArray, batch: FloatArray, dense: npt.NDArray[np.bool_]
) -> Blend:
    """Up to four keys a row: neighbours in head count times neighbours in batch (prefill)."""
    by_heads, head_weights, head_exact = blend_counts(table.heads, heads)
    keys, weights = np.zeros((len(heads), 4), dtype=np.int64), np.zeros((len(heads), 4))
    exact = np.zeros(len(heads), dtype=bool)
    for kind in (False, True):
        rows = np.flatnonzero(dense == kind)
        if not len(rows):
            continue
        batches = table.batches[kind]
        by_batch, batch_weights, batch_exact = blend_counts(batches, batch[rows])
        exact[rows] = head_exact[rows] & batch_exact
        for column in range(4):
            h, b = by_heads[rows, column // 2], by_batch[:, column % 2]
            codes, inverse = np.unique(h * len(batches) + b, return_inverse=True)
            ids = [
                table.keys.get(
                    (kind, int(table.heads[code // len(batches)]), int(batches[code % len(batches)])), -1
                )
                for code in codes
            ]
            found = np.array(ids)[inverse]
            weights[rows, column] = np.where(
                found >= 0, head_weights[rows, column // 2] * batch_weights[:, column % 2], 0.0
            )
            keys[rows, column] = np.maximum(found, 0)
    total = weights.sum(axis=1, keepdims=True)
    weights = np.where(total > 0.0, weights / np.where(total > 0.0, total, 1.0), [1.0, 0.0, 0.0, 0.0])
    own = own and table.same_model
    known = np.where(exact & (not table.corrected), Provenance.MEASURED, Provenance.INTERPOLATED)
    return Blend(keys, weights, (known if own else np.full(len(heads), Provenance.BORROWED)).astype(np.int8))


def _latency(
    database: OperatorSource,
    mla: Mla,
    hidden: int,
    dtypes: BlockDtypes,
    *,
    op: str,
    heads: FloatArray,
    batch: FloatArray,
    tokens: FloatArray,
    prefix: FloatArray,
) -> Latency:
    shape = {"heads": heads, "batch": batch, "tokens": tokens, "prefix": prefix}
    found = _find(database, op, mla, hidden, dtypes)
    if found is None:
        return bare(block_light(database.accelerator, mla, hidden, dtypes, **shape))
    table, place = found
    dense = (tokens + prefix <= table.dense_context) & (batch * (tokens + prefix) <= table.dense_tokens)
    light = block_light(database.accelerator, mla, hidden, table.dtypes, dense=dense, **shape)
    own = place.own and table.dtypes.kv == dtypes.kv
    if op == "dsa_context_module":
        blend, u, v = _blend(table, own, heads, batch, dense), tokens, prefix + 1.0
    else:
        blend, u, v = _blend(table, own, heads, np.ones_like(batch), dense), batch, prefix + 1.0
    latency = answer(light, table.surfaces(blend, u, v), blend.claim)
    if op == "dsa_context_module":
        latency = _longer_prefix(database, table, blend, mla, hidden, latency, light, ~dense, **shape)
    else:
        latency = _longer_context(database, table, blend, mla, hidden, latency, **shape)
    if table.dtypes.gemm == dtypes.gemm:
        return latency
    pairs = [*projections(mla, hidden, heads, context_phase=False), *index_projections(mla, hidden)]
    least = block_light(database.accelerator, mla, hidden, dtypes, dense=dense, **shape)
    return swap_projections(database, latency, batch * tokens, pairs, table.dtypes.gemm, dtypes.gemm, least)


def _longer_prefix(
    database: OperatorSource,
    table: DsaTable,
    blend: Blend,
    mla: Mla,
    hidden: int,
    latency: Latency,
    light: FloatArray,
    sparse: npt.NDArray[np.bool_],
    **shape: FloatArray,
) -> Latency:
    """``latency`` with the rows [n] mended whose prefix is longer than any measured and calls for the indexer.

    The block at the longest measured prefix, and what the rest of the prefix adds: chosen keys at the efficiency of the
    block where the indexer works, scores at the indexer's. A short block is bound by launches: its efficiency, held
    for half a million tokens, would make it up to 25 times too slow.
    """
    batch, tokens, prefix = shape["batch"], shape["tokens"], shape["prefix"]
    start = np.minimum(_reached(table, batch, tokens), prefix)
    rows = np.flatnonzero(sparse & (prefix > start) & (tokens + prefix > mla.index_topk))
    if not len(rows):
        return latency
    part, keys = {name: column[rows] for name, column in shape.items()}, _keys_of(blend, rows)
    near = part | {"prefix": start[rows]}
    base = block_light(database.accelerator, mla, hidden, table.dtypes, **near)
    measured = answer(base, table.surfaces(keys, part["tokens"], near["prefix"] + 1.0), keys.claim)
    long = np.maximum(part["tokens"], 2.0 * mla.index_topk)
    efficiency = table.surfaces(keys, long, near["prefix"] + 1.0).efficiency
    scored = [
        _indexer_light(
            database.accelerator,
            mla,
            each["batch"],
            attended_pairs(each["tokens"], each["prefix"]),
            each["tokens"] + each["prefix"],
        )
        for each in (near, part)
    ]
    index, rest = scored[1] - scored[0], light[rows] - base
    seconds = measured.seconds + (rest - index) / efficiency + index / INDEXER_EFFICIENCY
    return _mended(latency, rows, seconds, measured)


def _longer_context(
    database: OperatorSource,
    table: DsaTable,
    blend: Blend,
    mla: Mla,
    hidden: int,
    latency: Latency,
    **shape: FloatArray,
) -> Latency:
    """``latency`` of a decode step with the rows [n] mended whose context is longer than any measured.

    Once top-k is full only the scores grow, in proportion to the context: the line through the longest one measured and
    a quarter of it.
    """
    ends = _reached(table, np.ones_like(shape["batch"]), shape["batch"])
    rows = np.flatnonzero((shape["prefix"] > ends) & (ends >= 4.0 * mla.index_topk))
    if not len(rows):
        return latency
    keys, end = _keys_of(blend, rows), ends[rows]

    def at(context: FloatArray) -> Latency:
        near = {name: column[rows] for name, column in shape.items()} | {"prefix": context}
        light = block_light(database.accelerator, mla, hidden, table.dtypes, **near)
        return answer(light, table.surfaces(keys, near["batch"], context + 1.0), keys.claim)

    last, before = at(end), at(end / 4.0)
    slope = np.maximum(last.seconds - before.seconds, 0.0) / (0.75 * end)
    return _mended(latency, rows, last.seconds + slope * (shape["prefix"][rows] - end), last)


def _keys_of(blend: Blend, rows: IntArray) -> Blend:
    return Blend(blend.keys[rows], blend.weights[rows], blend.claim[rows])


def _mended(latency: Latency, rows: IntArray, seconds: FloatArray, source: Latency) -> Latency:
    """``latency`` with other ``seconds`` at ``rows``, as sure as ``source`` but measured nowhere."""
    every, known = latency.seconds.copy(), latency.provenance.copy()
    every[rows], known[rows] = seconds, np.maximum(source.provenance, Provenance.INTERPOLATED)
    return Latency(every, known)


def generation(
    database: OperatorSource,
    mla: Mla,
    hidden: int,
    dtypes: BlockDtypes,
    *,
    heads: FloatArray,
    batch: FloatArray,
    context: FloatArray,
) -> Latency:
    """One decode step of the block; arrays [n], ``context`` counts the new token."""
    return _latency(
        database,
        mla,
        hidden,
        dtypes,
        op="dsa_generation_module",
        heads=heads,
        batch=batch,
        tokens=np.ones_like(batch),
        prefix=np.maximum(context - 1.0, 0.0),
    )


def context(
    database: OperatorSource,
    mla: Mla,
    hidden: int,
    dtypes: BlockDtypes,
    *,
    heads: FloatArray,
    batch: FloatArray,
    tokens: FloatArray,
    prefix: FloatArray,
) -> Latency:
    """Prefill of ``tokens`` new tokens a sequence after ``prefix`` cached ones; arrays [n]."""
    return _latency(
        database,
        mla,
        hidden,
        dtypes,
        op="dsa_context_module",
        heads=heads,
        batch=batch,
        tokens=tokens,
        prefix=prefix,
    )
