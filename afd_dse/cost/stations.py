"""Time that attention and FFN of one micro-batch take on one GPU, per kind of layer, from the operator database."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.model import DenseFfn, Gqa, LinearAttention, Mla
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.station import Lookup, Part, Shapes, StationTime, shapes_of
from afd_dse.network.collectives import all_reduce
from afd_dse.operators.latency import FloatArray, IntArray, Latency, Provenance
from afd_dse.rows import Column

ACTIVATION_BYTES = 2.0  # activations between kernels are bfloat16
# Share of the mean context over which the slope of decode attention is taken: wide enough to pass over the steps of
# single kernels, narrow enough for a window that is nearly full.
GROWTH_STEP = 0.25


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Columns [n] of what attention of one rank does in one micro-batch.

    Decode: ``decode_sequences`` with ``decode_tokens`` new tokens in all. Prefill: ``prefill_sequences`` pieces of
    ``piece`` tokens each, on top of ``piece_prefix`` tokens that are in the cache. ``pool``, ``tp``, ``cp`` as cut.
    """

    pool: Column
    tp: Column
    cp: Column
    decode_sequences: Column
    decode_tokens: Column
    prefill_sequences: Column
    piece: Column
    piece_prefix: Column


@dataclass(frozen=True, slots=True)
class FfnShape:
    """Columns [n] of what the FFN of one group does in one micro-batch.

    ``tokens`` of the whole group; dense layers and shared experts see ``shard_tokens`` cut over ``shard`` GPUs;
    ``dense_reduce`` and ``moe_reduce`` GPUs sum their partial results in place (1: no all-reduce).
    """

    pool: Column
    moe_tp: Column
    ep: Column
    redundant: Column
    expert_policy: Column
    tokens: Column
    shard_tokens: Column
    shard: Column
    dense_reduce: Column
    moe_reduce: Column


def attention_station(scenario: Scenario, shape: AttentionShape) -> StationTime:
    """Attention of a layer of each kind: projections, kernel, norms, router, all-reduce over TP. Seconds [n, kinds]."""
    return shapes_of(scenario, shape).station(_ATTENTION, "attention")


def _attention(look: Lookup) -> None:
    c, database, scenario, pool, kind = look.columns, look.database, look.scenario, look.pool, look.kind
    hidden, tokens = float(scenario.model.hidden), _tokens(c)
    match kind.attention:
        case Gqa() as spec:
            _gqa(look, spec, tokens)
        case Mla() as spec:
            _mla(look, spec)
        case LinearAttention() as spec:
            _linear(look, spec, tokens)
    # Two norms with residual: each reads the block's output and the residual stream and writes both.
    norms = database.elementwise(bytes_moved=tokens * hidden * ACTIVATION_BYTES * 8.0)
    look.add("norms and residual", norms)
    reduced = all_reduce(
        database, scenario.tiers, pool, message_bytes=tokens * hidden * ACTIVATION_BYTES, gpus=c["tp"]
    )
    look.add("attention all-reduce", reduced)
    # Context parallelism: decode sums partial outputs over the KV shards, prefill gathers the keys and values.
    exchanged = tokens * hidden * ACTIVATION_BYTES
    gathered = all_reduce(database, scenario.tiers, pool, message_bytes=exchanged, gpus=c["cp"])
    look.add("context-parallel exchange", gathered)
    overheads = look.scenario.pools[look.pool].overheads
    linear = overheads.linear_layer_s if isinstance(kind.attention, LinearAttention) else 0.0
    _add_gaps(look, overheads.layer_s + linear)


def _router(look: Lookup) -> None:
    if isinstance(look.kind.ffn, DenseFfn):
        return
    experts, hidden = float(look.kind.ffn.experts), float(look.scenario.model.hidden)
    router = look.database.layer_gemm(dtype="bfloat16", m=_tokens(look.columns), n=experts, k=hidden)
    look.add("router", router)


# What picks the experts runs on the attention GPUs.
_ATTENTION = (Part(_attention, lambda kind: kind.attention), Part(_router, lambda kind: kind.ffn))


def _tokens(columns: dict[str, FloatArray]) -> FloatArray:
    """Tokens of one attention GPU, [n]."""
    result: FloatArray = (
        columns["decode_tokens"] + columns["prefill_sequences"] * columns["piece"] / columns["cp"]
    )
    return result


def _gqa(look: Lookup, spec: Gqa, tokens: FloatArray) -> None:
    c, database, scenario = look.columns, look.database, look.scenario
    q, hidden = scenario.quantization, float(scenario.model.hidden)
    heads, kv_heads = np.ceil(spec.heads / c["tp"]), np.ceil(spec.kv_heads / c["tp"])
    query_width = heads * spec.head_dim * (2.0 if spec.gated else 1.0)
    kv_width = 2.0 * kv_heads * spec.head_dim
    if spec.query_rank:
        down = database.layer_gemm(dtype=q.gemm, m=tokens, n=spec.query_rank + kv_width, k=hidden)
        look.add("query/key/value projection", down)
        up = database.layer_gemm(dtype=q.gemm, m=tokens, n=query_width, k=float(spec.query_rank))
        look.add("query up projection", up)
    else:
        qkv = database.layer_gemm(dtype=q.gemm, m=tokens, n=query_width + kv_width, k=hidden)
        look.add("query/key/value projection", qkv)
    # Rotary embedding, query/key norms and the write to the cache: read and write the projected activations.
    rope = database.elementwise(bytes_moved=tokens * (query_width + kv_width) * ACTIVATION_BYTES * 2.0)
    look.add("rotary embedding and cache write", rope)
    decoding, prefilling = c["decode_sequences"] > 0, c["prefill_sequences"] > 0
    if decoding.any():
        latency = _gqa_decode(look, spec, decoding, scenario.decode_context)
        look.add("decode attention", latency, decoding)
    if prefilling.any():
        latency = database.context_attention(
            heads=heads[prefilling],
            kv_heads=kv_heads[prefilling],
            head_dim=spec.head_dim,
            window=spec.window,
            attention_dtype=q.attention,
            kv_dtype=q.kv_cache,
            **_pieces(c, prefilling),
        )
        look.add("prefill attention", latency, prefilling)
    output = database.layer_gemm(dtype=q.gemm, m=tokens, n=hidden, k=heads * spec.head_dim)
    look.add("output projection", output)


def _gqa_decode(look: Lookup, spec: Gqa, rows: npt.NDArray[np.bool_], context: float) -> Latency:
    """Decode attention kernel of ``rows`` at a mean context of ``context`` tokens."""
    c = {name: look.columns[name][rows] for name in ("tp", "cp", "decode_sequences")}
    return look.database.generation_attention(
        heads=np.ceil(spec.heads / c["tp"]),
        kv_heads=np.ceil(spec.kv_heads / c["tp"]),
        head_dim=spec.head_dim,
        window=spec.window,
        kv_dtype=look.scenario.quantization.kv_cache,
        batch=c["decode_sequences"],
        context=context / c["cp"],
    )


def _pieces(c: dict[str, FloatArray], rows: npt.NDArray[np.bool_]) -> dict[str, FloatArray]:
    """Batch, new tokens and cached tokens of prefill pieces; a context-parallel rank takes its share of the tokens."""
    tokens = c["piece"][rows] / c["cp"][rows]
    # A rank's tokens lie on average in the middle of the piece: half of the others' tokens precede them.
    prefix = c["piece_prefix"][rows] + (c["piece"][rows] - tokens) / 2.0
    return {"batch": c["prefill_sequences"][rows], "tokens": tokens, "prefix": prefix}


def _mla(look: Lookup, spec: Mla) -> None:
    c, database, scenario = look.columns, look.database, look.scenario
    q = scenario.quantization
    heads = np.ceil(spec.heads / c["tp"])
    decoding, prefilling = c["decode_sequences"] > 0, c["prefill_sequences"] > 0
    if decoding.any():
        latency = _mla_decode(look, spec, decoding, scenario.decode_context)
        look.add("decode attention block (MLA)", latency, decoding)
    if prefilling.any():
        latency = database.mla_context(
            mla=spec,
            hidden=scenario.model.hidden,
            heads=heads[prefilling],
            gemm_dtype=q.gemm,
            attention_dtype=q.attention,
            kv_dtype=q.kv_cache,
            **_pieces(c, prefilling),
        )
        look.add("prefill attention block (MLA)", latency, prefilling)


def _mla_decode(look: Lookup, spec: Mla, rows: npt.NDArray[np.bool_], context: float) -> Latency:
    """Decode attention block of ``rows`` at a mean context of ``context`` tokens."""
    c = {name: look.columns[name][rows] for name in ("tp", "cp", "decode_tokens")}
    q = look.scenario.quantization
    # NOTE: every draft token counts as a sequence of its own: with all heads on one latent, MLA decode is near
    # the compute bound, so draft tokens are not free as they are for GQA.
    return look.database.mla_generation(
        mla=spec,
        hidden=look.scenario.model.hidden,
        heads=np.ceil(spec.heads / c["tp"]),
        gemm_dtype=q.gemm,
        kv_dtype=q.kv_cache,
        batch=c["decode_tokens"],
        context=context / c["cp"],
    )


def _linear(look: Lookup, spec: LinearAttention, tokens: FloatArray) -> None:
    c, database, scenario = look.columns, look.database, look.scenario
    q, hidden = scenario.quantization, float(scenario.model.hidden)
    key_heads, value_heads = np.ceil(spec.key_heads / c["tp"]), np.ceil(spec.value_heads / c["tp"])
    value_width = value_heads * spec.value_head_dim
    # Queries, keys, values, output gate, and per value head the two gates of the delta rule.
    width = 2.0 * key_heads * spec.key_head_dim + 2.0 * value_width + 2.0 * value_heads
    look.add("input projection", database.layer_gemm(dtype=q.gemm, m=tokens, n=width, k=hidden))
    decoding, prefilling = c["decode_sequences"] > 0, c["prefill_sequences"] > 0
    for name, phase, active, batch, length in (
        ("decode linear attention", "generation", decoding, c["decode_tokens"], np.ones_like(tokens)),
        ("prefill linear attention", "context", prefilling, c["prefill_sequences"], c["piece"] / c["cp"]),
    ):
        if active.any():
            latency = database.linear_attention(
                spec=spec,
                hidden=scenario.model.hidden,
                value_heads=value_heads[active],
                key_heads=key_heads[active],
                phase=phase,
                batch=batch[active],
                tokens=length[active],
            )
            look.add(name, latency, active)
    output = database.layer_gemm(dtype=q.gemm, m=tokens, n=hidden, k=value_width)
    look.add("output projection", output)


def attention_growth(scenario: Scenario, shape: AttentionShape) -> StationTime:
    """How much longer decode attention takes per relative growth of the contexts, seconds [n, kinds].

    The secant over :data:`GROWTH_STEP` of the mean context: kernel time is close to linear in it.
    """
    names = ("pool", "tp", "cp", "decode_sequences", "decode_tokens")
    columns = {name: getattr(shape, name) for name in names}
    return Shapes(scenario, columns).station([Part(_growth, lambda kind: kind.attention)], "attention growth")


def _growth(look: Lookup) -> None:
    rows = look.columns["decode_sequences"] > 0
    spec = look.kind.attention
    if isinstance(spec, LinearAttention) or not rows.any():
        return
    contexts = (look.scenario.decode_context, look.scenario.decode_context * (1.0 + GROWTH_STEP))
    if isinstance(spec, Gqa):
        mean, longer = (_gqa_decode(look, spec, rows, context) for context in contexts)
    else:
        mean, longer = (_mla_decode(look, spec, rows, context) for context in contexts)
    growth = np.maximum(longer.seconds - mean.seconds, 0.0) / GROWTH_STEP
    look.add("wait for the attention rank with the most KV", Latency(growth, mean.provenance), rows)


def ffn_station(scenario: Scenario, shape: FfnShape) -> StationTime:
    """FFN of one layer of each kind: dense FFN or shared and routed experts of one rank. Seconds [n, kinds]."""
    return shapes_of(scenario, shape).station([Part(_ffn, lambda kind: kind.ffn)], "ffn")


def _ffn(look: Lookup) -> None:
    c, database, scenario, pool, kind = look.columns, look.database, look.scenario, look.pool, look.kind
    q, hidden = scenario.quantization, scenario.model.hidden
    if isinstance(kind.ffn, DenseFfn):
        width = kind.ffn.intermediate
        _dense(look, "dense FFN", width, kind.ffn.gated)
    else:
        if kind.ffn.shared_intermediate:
            width = kind.ffn.shared_intermediate
            _dense(look, "shared experts", width, kind.ffn.gated)
        routed = database.moe(
            dtype=q.moe,
            tokens=c["tokens"],
            hidden=hidden,
            intermediate=kind.ffn.intermediate,
            topk=kind.ffn.topk,
            experts=kind.ffn.experts,
            moe_tp=c["moe_tp"],
            ep=c["ep"],
            distribution=scenario.workload.expert_distribution,
            gated=kind.ffn.gated,
            local_experts=np.ceil((kind.ffn.experts + c["redundant"]) / c["ep"]),
            imbalance=expert_imbalance(
                scenario,
                c["tokens"],
                *(c[name].astype(np.int64) for name in ("ep", "redundant", "expert_policy")),
            ),
        )
        look.add("routed experts", routed)
    reduced = all_reduce(
        database,
        scenario.tiers,
        pool,
        message_bytes=c["shard_tokens"] * hidden * ACTIVATION_BYTES,
        gpus=c["dense_reduce" if isinstance(kind.ffn, DenseFfn) else "moe_reduce"],
    )
    look.add("FFN all-reduce", reduced)
    if isinstance(kind.ffn, DenseFfn):
        _add_gaps(look, look.scenario.pools[look.pool].overheads.dense_layer_s)


def _add_gaps(look: Lookup, seconds: float) -> None:
    """Gaps between kernels, and kernels that no table holds: fitted to whole engines, and no kernel's own."""
    fitted = np.full(look.rows, Provenance.INTERPOLATED, dtype=np.int8)
    look.add("kernel gaps", Latency(np.full(look.rows, seconds), fitted))


def expert_imbalance(
    scenario: Scenario, tokens: FloatArray, ep: IntArray, redundant: IntArray, policy: IntArray
) -> FloatArray:
    """Load of the busiest expert rank over the mean one's, [n]; NaN where the measured tables hold it already."""
    loads = scenario.expert_loads
    return np.full(len(tokens), np.nan) if loads is None else loads.imbalance(tokens, ep, redundant, policy)


def _dense(look: Lookup, name: str, width: int, gated: bool) -> None:
    c, database, scenario = look.columns, look.database, look.scenario
    hidden = np.full(look.rows, float(scenario.model.hidden))
    tokens, local = c["shard_tokens"], width / c["shard"]
    matrices = 2.0 if gated else 1.0
    # Both projections in one lookup: it costs little more than one.
    both = database.layer_gemm(
        dtype=scenario.quantization.gemm,
        m=tokens,
        n=np.stack([matrices * local, hidden]),
        k=np.stack([hidden, local]),
    )
    up, down = (Latency(both.seconds[i], both.provenance[i]) for i in (0, 1))
    look.add(f"{name} up", up)
    activation = database.elementwise(bytes_moved=tokens * local * ACTIVATION_BYTES * (matrices + 1.0))
    look.add(f"{name} activation", activation)
    look.add(f"{name} down", down)


def head_seconds(scenario: Scenario, *, pool: Column, tp: Column, sequences: Column) -> FloatArray:
    """LM head and sampling of ``sequences`` tokens on attention GPUs, seconds [n]; once a step, not per micro-batch."""
    shapes = Shapes(scenario, {"pool": pool, "tp": tp, "sequences": sequences})
    return shapes.station([Part(_head, lambda kind: None)], "head").seconds[:, 0]


def _head(look: Lookup) -> None:
    active = look.columns["sequences"] > 0.0
    if not active.any():
        return
    database, model = look.database, look.scenario.model
    m = look.columns["sequences"][active]
    width = np.ceil(model.vocabulary / look.columns["tp"][active])
    head = database.layer_gemm(dtype="bfloat16", m=m, n=width, k=float(model.hidden))
    look.add("LM head", head, active)
    look.add("sampling", database.elementwise(bytes_moved=m * width * 4.0 * 2.0), active)
