"""Time that attention and FFN of one micro-batch take on one GPU, per kind of layer, from the operator database."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.model import DenseFfn, Gqa, LayerKind, LinearAttention, Mla
from afd_dse.cost.columns import Column, distinct, distinct_rows
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.shape_memory import ShapeMemory
from afd_dse.network.collectives import all_reduce
from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.latency import FloatArray, Latency, Provenance

ACTIVATION_BYTES = 2.0  # activations between kernels are bfloat16


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator's share of a station: seconds and provenance per row, for the layers of kind ``kind``."""

    name: str
    kind: int
    latency: Latency


@dataclass(slots=True)
class StationTime:
    """Seconds [n, kinds] of one layer and how many of them have which provenance [n, kinds, 4].

    For a single row also its operators.
    """

    seconds: FloatArray
    by_provenance: FloatArray
    operations: list[Operation] = field(default_factory=list)

    @classmethod
    def zeros(cls, rows: int, kinds: int) -> "StationTime":
        """An empty station."""
        return cls(np.zeros((rows, kinds)), np.zeros((rows, kinds, len(Provenance))))

    def add(self, name: str, kind: int, latency: Latency, rows: npt.NDArray[np.int64]) -> None:
        """Add an operator that runs on ``rows``."""
        self.seconds[rows, kind] += latency.seconds
        self.by_provenance[rows, kind, latency.provenance] += latency.seconds
        # Operators are kept where someone can read them: for a single shape.
        if len(self.seconds) == 1 and len(rows):
            self.operations.append(Operation(name, kind, latency))

    def plus(self, other: "StationTime") -> "StationTime":
        """Both stations' work on the same GPUs, one after the other."""
        return StationTime(
            self.seconds + other.seconds,
            self.by_provenance + other.by_provenance,
            [*self.operations, *other.operations],
        )

    def take(self, rows: npt.NDArray[np.int64]) -> "StationTime":
        """Repeat rows by index (from distinct rows back to candidates), without their operators."""
        return StationTime(self.seconds[rows], self.by_provenance[rows])


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
    tokens: Column
    shard_tokens: Column
    shard: Column
    dense_reduce: Column
    moe_reduce: Column


def _columns(shape: AttentionShape | FfnShape) -> dict[str, Column]:
    return {name: getattr(shape, name) for name in shape.__slots__}


def attention_station(scenario: Scenario, shape: AttentionShape) -> StationTime:
    """Attention of a layer of each kind: projections, kernel, norms, router, all-reduce over TP. Seconds [n, kinds]."""
    return looked_up(scenario, "attention", _columns(shape), _attention_of_kind)


OfKind = Callable[
    [Scenario, int, int, LayerKind, dict[str, FloatArray], StationTime, npt.NDArray[np.int64]], None
]


def looked_up(scenario: Scenario, side: str, columns: dict[str, Column], of_kind: OfKind) -> StationTime:
    """Station of every row of ``columns`` (one of them ``pool``), by ``of_kind`` for each pool and kind of layer.

    Distinct shapes are looked up once, and remembered under the name ``side`` for later blocks of the scenario.
    """
    names = list(columns)
    table = np.stack([np.asarray(column, dtype=np.float64) for column in columns.values()], axis=1)
    if len(table) <= 1:
        return _station(scenario, names, table, of_kind)
    first, inverse = distinct_rows(table)
    memory: ShapeMemory = scenario.shape_memory.setdefault(side, ShapeMemory())
    found = memory.rows(table[first], lambda shapes: _station(scenario, names, shapes, of_kind))
    return StationTime(*memory.arrays).take(found[inverse])


def _station(scenario: Scenario, names: list[str], table: FloatArray, of_kind: OfKind) -> StationTime:
    station = StationTime.zeros(len(table), len(scenario.model.kinds))
    rows = dict(zip(names, table.T, strict=True))
    for pool in np.unique(rows["pool"]).astype(int):
        members = np.flatnonzero(rows["pool"] == pool)
        part = {name: column[members] for name, column in rows.items()}
        for number, kind in enumerate(scenario.model.kinds):
            of_kind(scenario, pool, number, kind, part, station, members)
    return station


def _attention_of_kind(
    scenario: Scenario,
    pool: int,
    number: int,
    kind: LayerKind,
    c: dict[str, FloatArray],
    station: StationTime,
    members: npt.NDArray[np.int64],
) -> None:
    database = scenario.databases[pool]
    hidden = float(scenario.model.hidden)
    prefill_tokens = c["prefill_sequences"] * c["piece"] / c["cp"]
    tokens = c["decode_tokens"] + prefill_tokens
    match kind.attention:
        case Gqa():
            _gqa(scenario, database, kind.attention, number, c, tokens, station, members)
        case Mla():
            _mla(scenario, database, kind.attention, number, c, station, members)
        case LinearAttention():
            _linear(scenario, database, kind.attention, number, c, tokens, station, members)
    # Two norms with residual: each reads the block's output and the residual stream and writes both.
    norms = database.elementwise(bytes_moved=tokens * hidden * ACTIVATION_BYTES * 8.0)
    station.add("norms and residual", number, norms, members)
    if not isinstance(kind.ffn, DenseFfn):
        router = database.gemm(dtype="bfloat16", m=tokens, n=float(kind.ffn.experts), k=hidden)
        station.add("router", number, router, members)
    reduced = all_reduce(
        database, scenario.tiers, pool, message_bytes=tokens * hidden * ACTIVATION_BYTES, gpus=c["tp"]
    )
    station.add("attention all-reduce", number, reduced, members)
    # Context parallelism: decode sums partial outputs over the KV shards, prefill gathers the keys and values.
    exchanged = tokens * hidden * ACTIVATION_BYTES
    gathered = all_reduce(database, scenario.tiers, pool, message_bytes=exchanged, gpus=c["cp"])
    station.add("context-parallel exchange", number, gathered, members)


def _on(
    station: StationTime,
    name: str,
    number: int,
    members: npt.NDArray[np.int64],
    active: npt.NDArray[np.bool_],
    latency_of_active: Latency,
) -> None:
    """Add an operator on the ``active`` part of the members."""
    station.add(name, number, latency_of_active, members[active])


def _gqa(
    scenario: Scenario,
    database: OperatorDatabase,
    spec: Gqa,
    number: int,
    c: dict[str, FloatArray],
    tokens: FloatArray,
    station: StationTime,
    members: npt.NDArray[np.int64],
) -> None:
    q, hidden = scenario.quantization, float(scenario.model.hidden)
    heads, kv_heads = np.ceil(spec.heads / c["tp"]), np.ceil(spec.kv_heads / c["tp"])
    query_width = heads * spec.head_dim * (2.0 if spec.gated else 1.0)
    kv_width = 2.0 * kv_heads * spec.head_dim
    if spec.query_rank:
        down = database.gemm(dtype=q.gemm, m=tokens, n=spec.query_rank + kv_width, k=hidden)
        station.add("query/key/value projection", number, down, members)
        up = database.gemm(dtype=q.gemm, m=tokens, n=query_width, k=float(spec.query_rank))
        station.add("query up projection", number, up, members)
    else:
        qkv = database.gemm(dtype=q.gemm, m=tokens, n=query_width + kv_width, k=hidden)
        station.add("query/key/value projection", number, qkv, members)
    # Rotary embedding, query/key norms and the write to the cache: read and write the projected activations.
    rope = database.elementwise(bytes_moved=tokens * (query_width + kv_width) * ACTIVATION_BYTES * 2.0)
    station.add("rotary embedding and cache write", number, rope, members)
    decoding, prefilling = c["decode_sequences"] > 0, c["prefill_sequences"] > 0
    if decoding.any():
        latency = database.generation_attention(
            heads=heads[decoding],
            kv_heads=kv_heads[decoding],
            head_dim=spec.head_dim,
            window=spec.window,
            kv_dtype=q.kv_cache,
            batch=c["decode_sequences"][decoding],
            context=scenario.decode_context / c["cp"][decoding],
        )
        _on(station, "decode attention", number, members, decoding, latency)
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
        _on(station, "prefill attention", number, members, prefilling, latency)
    output = database.gemm(dtype=q.gemm, m=tokens, n=hidden, k=heads * spec.head_dim)
    station.add("output projection", number, output, members)


def _pieces(c: dict[str, FloatArray], rows: npt.NDArray[np.bool_]) -> dict[str, FloatArray]:
    """Batch, new tokens and cached tokens of prefill pieces; a context-parallel rank takes its share of the tokens."""
    tokens = c["piece"][rows] / c["cp"][rows]
    # A rank's tokens lie on average in the middle of the piece: half of the others' tokens precede them.
    prefix = c["piece_prefix"][rows] + (c["piece"][rows] - tokens) / 2.0
    return {"batch": c["prefill_sequences"][rows], "tokens": tokens, "prefix": prefix}


def _mla(
    scenario: Scenario,
    database: OperatorDatabase,
    spec: Mla,
    number: int,
    c: dict[str, FloatArray],
    station: StationTime,
    members: npt.NDArray[np.int64],
) -> None:
    q = scenario.quantization
    heads = np.ceil(spec.heads / c["tp"])
    decoding, prefilling = c["decode_sequences"] > 0, c["prefill_sequences"] > 0
    if decoding.any():
        # NOTE: every draft token counts as a sequence of its own: with all heads on one latent, MLA decode is near
        # the compute bound, so draft tokens are not free as they are for GQA.
        latency = database.mla_generation(
            mla=spec,
            hidden=scenario.model.hidden,
            heads=heads[decoding],
            gemm_dtype=q.gemm,
            kv_dtype=q.kv_cache,
            batch=c["decode_tokens"][decoding],
            context=scenario.decode_context / c["cp"][decoding],
        )
        _on(station, "decode attention block (MLA)", number, members, decoding, latency)
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
        _on(station, "prefill attention block (MLA)", number, members, prefilling, latency)


def _linear(
    scenario: Scenario,
    database: OperatorDatabase,
    spec: LinearAttention,
    number: int,
    c: dict[str, FloatArray],
    tokens: FloatArray,
    station: StationTime,
    members: npt.NDArray[np.int64],
) -> None:
    q, hidden = scenario.quantization, float(scenario.model.hidden)
    key_heads, value_heads = np.ceil(spec.key_heads / c["tp"]), np.ceil(spec.value_heads / c["tp"])
    value_width = value_heads * spec.value_head_dim
    # Queries, keys, values, output gate, and per value head the two gates of the delta rule.
    width = 2.0 * key_heads * spec.key_head_dim + 2.0 * value_width + 2.0 * value_heads
    station.add("input projection", number, database.gemm(dtype=q.gemm, m=tokens, n=width, k=hidden), members)
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
            _on(station, name, number, members, active, latency)
    output = database.gemm(dtype=q.gemm, m=tokens, n=hidden, k=value_width)
    station.add("output projection", number, output, members)


def ffn_station(scenario: Scenario, shape: FfnShape) -> StationTime:
    """FFN of one layer of each kind: dense FFN or shared and routed experts of one rank. Seconds [n, kinds]."""
    return looked_up(scenario, "ffn", _columns(shape), _ffn_of_kind)


def _ffn_of_kind(
    scenario: Scenario,
    pool: int,
    number: int,
    kind: LayerKind,
    c: dict[str, FloatArray],
    station: StationTime,
    members: npt.NDArray[np.int64],
) -> None:
    database, q, hidden = scenario.databases[pool], scenario.quantization, scenario.model.hidden
    if isinstance(kind.ffn, DenseFfn):
        width = kind.ffn.intermediate
        _dense(database, scenario, "dense FFN", width, kind.ffn.gated, number, c, station, members)
    else:
        if kind.ffn.shared_intermediate:
            width = kind.ffn.shared_intermediate
            _dense(database, scenario, "shared experts", width, kind.ffn.gated, number, c, station, members)
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
        )
        station.add("routed experts", number, routed, members)
    reduced = all_reduce(
        database,
        scenario.tiers,
        pool,
        message_bytes=c["shard_tokens"] * hidden * ACTIVATION_BYTES,
        gpus=c["dense_reduce" if isinstance(kind.ffn, DenseFfn) else "moe_reduce"],
    )
    station.add("FFN all-reduce", number, reduced, members)


def _dense(
    database: OperatorDatabase,
    scenario: Scenario,
    name: str,
    width: int,
    gated: bool,
    number: int,
    c: dict[str, FloatArray],
    station: StationTime,
    members: npt.NDArray[np.int64],
) -> None:
    hidden, dtype = float(scenario.model.hidden), scenario.quantization.gemm
    tokens, local = c["shard_tokens"], width / c["shard"]
    matrices = 2.0 if gated else 1.0
    station.add(
        f"{name} up", number, database.gemm(dtype=dtype, m=tokens, n=matrices * local, k=hidden), members
    )
    activation = database.elementwise(bytes_moved=tokens * local * ACTIVATION_BYTES * (matrices + 1.0))
    station.add(f"{name} activation", number, activation, members)
    station.add(f"{name} down", number, database.gemm(dtype=dtype, m=tokens, n=hidden, k=local), members)


def head_seconds(scenario: Scenario, *, pool: Column, tp: Column, sequences: Column) -> FloatArray:
    """LM head and sampling of ``sequences`` tokens on attention GPUs, seconds [n]; once a step, not per micro-batch."""
    rows, inverse = distinct({"pool": pool, "tp": tp, "sequences": sequences})
    seconds = np.zeros(len(rows["pool"]))
    for number in np.unique(rows["pool"]).astype(int):
        at = rows["pool"] == number
        database, m = scenario.databases[number], np.maximum(rows["sequences"][at], 1e-9)
        width = np.ceil(scenario.model.vocabulary / rows["tp"][at])
        head = database.gemm(dtype="bfloat16", m=m, n=width, k=float(scenario.model.hidden)).seconds
        sampling = database.elementwise(bytes_moved=m * width * 4.0 * 2.0).seconds
        seconds[at] = np.where(rows["sequences"][at] > 0, head + sampling, 0.0)
    result: FloatArray = seconds[inverse]
    return result
