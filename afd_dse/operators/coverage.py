"""How far the tables carry each model: measured, borrowed or computed, by operator family."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pandas as pd

from afd_dse.architecture.matrices import Matrix, attention_matrices, ffn_matrices
from afd_dse.architecture.model import (
    DenseFfn,
    Gqa,
    LayerKind,
    LinearAttention,
    Mla,
    ModelArchitecture,
    MoeFfn,
)
from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.latency import Latency, Provenance
from afd_dse.operators.table_schema import FRAMEWORKS
from afd_dse.spec.accelerator import Accelerator

FAMILIES = ("gemm", "attention", "mla", "linear_attention", "moe", "expert_exchange", "all_reduce")
NOT_NEEDED = "-"
_NAMES: Mapping[int, str] = {
    Provenance.MEASURED: "measured",
    Provenance.INTERPOLATED: "measured",
    Provenance.BORROWED: "borrowed",
    Provenance.SPEED_OF_LIGHT: "speed of light",
}
# Shapes of everyday serving: whole on one GPU, or attention and experts over a node; decode batches, one prompt.
_BATCH = np.array([1.0, 16.0, 128.0])
_TOKENS = np.array([1.0, 64.0, 2048.0])
_CONTEXT = 4096.0
_ACTIVATION_BYTES = 2.0

Found = Iterator[tuple[str, Latency]]


def coverage(
    models: Iterable[ModelArchitecture],
    accelerators: Iterable[Accelerator],
    frameworks: Iterable[str] = FRAMEWORKS,
) -> pd.DataFrame:
    """One row per model, accelerator and framework; per operator family the weakest origin of everyday shapes.

    ``measured`` includes interpolation between measured points of the shape itself; ``-`` says that the model does
    not need the family.
    """
    wanted, named = list(models), list(frameworks)
    databases = (OperatorDatabase(accelerator, name) for accelerator in accelerators for name in named)
    rows = [_row(model, database) for database in databases for model in wanted]
    return pd.DataFrame(rows, columns=["model", "accelerator", "framework", *FAMILIES])


def _row(model: ModelArchitecture, database: OperatorDatabase) -> dict[str, str]:
    weakest: dict[str, int] = {}
    for kind in model.kinds:
        for family, latency in _latencies(model, kind, database):
            weakest[family] = max(weakest.get(family, 0), int(latency.provenance.max()))
    named = {family: _NAMES[weakest[family]] if family in weakest else NOT_NEEDED for family in FAMILIES}
    return {
        "model": model.name,
        "accelerator": database.accelerator.name,
        "framework": database.framework,
    } | named


def _latencies(model: ModelArchitecture, kind: LayerKind, database: OperatorDatabase) -> Found:
    node = database.accelerator.node_gpus
    for shards in (1, node):
        yield from _attention(model, kind.attention, database, shards)
        yield from _ffn(model, kind.ffn, database, shards)
    message = _TOKENS * model.hidden * _ACTIVATION_BYTES
    yield "all_reduce", database.all_reduce(message_bytes=message, gpus=node)
    if isinstance(kind.ffn, MoeFfn):
        yield from _exchange(model, kind.ffn, database, node)


def _attention(
    model: ModelArchitecture, spec: Gqa | Mla | LinearAttention, database: OperatorDatabase, shards: int
) -> Found:
    if not isinstance(spec, Mla):
        yield from _gemms(model, attention_matrices(spec, model.hidden), database, shards)
    match spec:
        case Mla():
            yield from _mla(model, spec, database, shards)
        case Gqa():
            yield from _gqa(model, spec, database, shards)
        case LinearAttention():
            yield from _linear(model, spec, database, shards)


def _gemms(
    model: ModelArchitecture, matrices: Iterable[Matrix], database: OperatorDatabase, shards: int
) -> Found:
    dtype = model.quantization.gemm
    for matrix in matrices:
        width = np.ceil(matrix.units / shards) * matrix.unit_width
        yield "gemm", database.gemm(dtype=dtype, m=_TOKENS, n=width, k=matrix.fixed)


def _mla(model: ModelArchitecture, spec: Mla, database: OperatorDatabase, shards: int) -> Found:
    types, heads = model.quantization, np.ceil(spec.heads / shards)
    decode = database.mla_generation(
        mla=spec,
        hidden=model.hidden,
        heads=heads,
        gemm_dtype=types.gemm,
        kv_dtype=types.kv_cache,
        batch=_BATCH,
        context=_CONTEXT,
    )
    prefill = database.mla_context(
        mla=spec,
        hidden=model.hidden,
        heads=heads,
        gemm_dtype=types.gemm,
        attention_dtype=types.attention,
        kv_dtype=types.kv_cache,
        batch=1.0,
        tokens=_CONTEXT,
        prefix=0.0,
    )
    yield from (("mla", decode), ("mla", prefill))


def _gqa(model: ModelArchitecture, spec: Gqa, database: OperatorDatabase, shards: int) -> Found:
    types = model.quantization
    heads, kv_heads = np.ceil(spec.heads / shards), np.ceil(spec.kv_heads / shards)
    decode = database.generation_attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=spec.head_dim,
        window=spec.window,
        kv_dtype=types.kv_cache,
        batch=_BATCH,
        context=_CONTEXT,
    )
    prefill = database.context_attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=spec.head_dim,
        window=spec.window,
        attention_dtype=types.attention,
        kv_dtype=types.kv_cache,
        batch=1.0,
        tokens=_CONTEXT,
        prefix=0.0,
    )
    yield from (("attention", decode), ("attention", prefill))


def _linear(
    model: ModelArchitecture, spec: LinearAttention, database: OperatorDatabase, shards: int
) -> Found:
    for phase, batch, tokens in (("generation", _BATCH, 1.0), ("context", np.ones(1), _CONTEXT)):
        found = database.linear_attention(
            spec=spec,
            hidden=model.hidden,
            value_heads=np.ceil(spec.value_heads / shards),
            key_heads=np.ceil(spec.key_heads / shards),
            phase=phase,
            batch=batch,
            tokens=tokens,
        )
        yield "linear_attention", found


def _ffn(model: ModelArchitecture, ffn: DenseFfn | MoeFfn, database: OperatorDatabase, shards: int) -> Found:
    width = ffn.intermediate if isinstance(ffn, DenseFfn) else ffn.shared_intermediate
    yield from _gemms(model, ffn_matrices(width, model.hidden, ffn.gated, "gemm"), database, shards)
    if isinstance(ffn, MoeFfn):
        found = database.moe(
            dtype=model.quantization.moe,
            tokens=_TOKENS * shards,
            hidden=model.hidden,
            intermediate=ffn.intermediate,
            topk=ffn.topk,
            experts=ffn.experts,
            moe_tp=1.0,
            ep=shards,
            gated=ffn.gated,
        )
        yield "moe", found


def _exchange(model: ModelArchitecture, ffn: MoeFfn, database: OperatorDatabase, ranks: int) -> Found:
    for low_latency in (False, True):
        for ask in (database.expert_dispatch, database.expert_combine):
            found, _ = ask(
                tokens_per_rank=_BATCH,
                hidden=model.hidden,
                topk=ffn.topk,
                experts=ffn.experts,
                ep=ranks,
                dtype_bytes=_ACTIVATION_BYTES,
                low_latency=low_latency,
            )
            yield "expert_exchange", found
