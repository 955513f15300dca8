"""Speed of light of every row of an operator table: what the check holds measurements against."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.operators import speed_of_light as light
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.accelerator import Accelerator

# Latent attention of the models in the MLA and DSA tables; the narrowest heads: the bound holds for all.
_KV_RANK, _ROPE, _NOPE, _VALUE, _INDEX_TOPK = 512, 64, 128, 128, 2048

# (experts, top-k, width) of the Nemotron models, whose experts have no gate; only TensorRT-LLM's kernels say so.
_PLAIN_EXPERTS = [(512, 22, 5120), (512, 22, 2688), (128, 6, 1856)]


def speed_of_light(op: str, table: pd.DataFrame, accelerator: Accelerator) -> FloatArray | None:
    """Seconds [rows] that no kernel can beat; None for communication, which one GPU does not bound.

    Whole-block tables (``*_module``, ``wideep_*_mla``) are held against their attention kernel alone, and attention
    over an FP8 cache against the FP8 peak, whatever type the source names: lower bounds.
    """
    work = _WORK.get(op)
    if work is None:
        return None
    function, types = work
    result = np.zeros(len(table))
    kinds = (
        table[list(types)].drop_duplicates().itertuples(index=False, name=None) if types else [("bfloat16",)]
    )
    for dtypes in kinds:
        rows = np.ones(len(table), dtype=bool)
        for name, dtype in zip(types, dtypes, strict=False):
            rows &= (table[name] == dtype).to_numpy(dtype=bool)
        done = function(dtypes, table[rows])
        computes = "fp8" if "fp8" in dtypes else dtypes[-1]
        result[rows] = light.seconds(accelerator, computes, done.flop, done.bytes)
    return result


def _columns(table: pd.DataFrame, *names: str) -> list[FloatArray]:
    return [table[name].to_numpy(dtype=np.float64) for name in names]


def _gemm(dtypes: tuple[str, ...], table: pd.DataFrame) -> light.Work:
    return light.gemm_work(dtypes[-1], *_columns(table, "m", "n", "k"))


def _moe(dtypes: tuple[str, ...], table: pd.DataFrame) -> light.Work:
    slots = table["num_slots" if "num_slots" in table else "num_experts"].to_numpy(dtype=np.float64)
    tokens, hidden, intermediate, topk, tp, ep = _columns(
        table, "num_tokens", "hidden_size", "inter_size", "topk", "moe_tp_size", "moe_ep_size"
    )
    return light.moe_work(
        dtypes[-1],
        tokens=tokens,
        hidden=hidden,
        intermediate=intermediate,
        topk=topk,
        experts=slots,
        moe_tp=tp,
        local_experts=slots / ep,
        spread=(table["distribution"] == "balanced").to_numpy(dtype=bool),
        gated=~(_plain_experts(table) | table["kernel_source"].str.contains("nongated").to_numpy(dtype=bool)),
    )


def _plain_experts(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    shape = ["num_experts", "topk", "inter_size"]
    return pd.MultiIndex.from_frame(table[shape]).isin(_PLAIN_EXPERTS)


def _context_attention(dtypes: tuple[str, ...], table: pd.DataFrame) -> light.Work:
    kv_dtype, attention_dtype = dtypes
    heads, kv_heads, head_dim, window, batch, tokens, prefix = _columns(
        table, "num_heads", "num_key_value_heads", "head_dim", "window_size", "batch_size", "isl", "step"
    )
    return light.context_attention_work(
        attention_dtype,
        kv_dtype,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=window,
        batch=batch,
        tokens=tokens,
        prefix=prefix,
    )


def _generation_attention(dtypes: tuple[str, ...], table: pd.DataFrame) -> light.Work:
    heads, kv_heads, head_dim, window, batch, new, cached = _columns(
        table, "num_heads", "num_key_value_heads", "head_dim", "window_size", "batch_size", "isl", "step"
    )
    return light.generation_attention_work(
        dtypes[0],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=window,
        batch=batch,
        context=new + cached,
    )


def _context_mla(dtypes: tuple[str, ...], table: pd.DataFrame) -> light.Work:
    heads, batch, tokens, prefix = _columns(table, "num_heads", "batch_size", "isl", "step")
    return light.mla_context_work(
        dtypes[-1],
        heads=heads,
        nope_head_dim=_NOPE,
        rope_head_dim=_ROPE,
        v_head_dim=_VALUE,
        batch=batch,
        tokens=tokens,
        prefix=prefix,
    )


def _generation_mla(dtypes: tuple[str, ...], table: pd.DataFrame) -> light.Work:
    heads, batch, new, cached = _columns(table, "num_heads", "batch_size", "isl", "step")
    return _latent(dtypes[0], heads, batch, new + cached)


def _generation_dsa(dtypes: tuple[str, ...], table: pd.DataFrame) -> light.Work:
    heads, batch, new, cached = _columns(table, "num_heads", "batch_size", "isl", "step")
    return _latent(dtypes[0], heads, batch, np.minimum(new + cached, _INDEX_TOPK))


def _context_dsa(dtypes: tuple[str, ...], table: pd.DataFrame) -> light.Work:
    """Every query reads at most the chosen tokens; keys and values taken ``_NOPE`` wide."""
    heads, batch, tokens, prefix = _columns(table, "num_heads", "batch_size", "isl", "step")
    return light.context_attention_work(
        dtypes[-1],
        dtypes[0],
        heads=heads,
        kv_heads=1.0,
        head_dim=_NOPE,
        window=_INDEX_TOPK,
        batch=batch,
        tokens=tokens,
        prefix=prefix,
    )


def _latent(kv_dtype: str, heads: FloatArray, batch: FloatArray, context: FloatArray) -> light.Work:
    return light.mla_generation_work(
        kv_dtype, heads=heads, kv_rank=_KV_RANK, rope_head_dim=_ROPE, batch=batch, context=context
    )


def _mla_bmm(dtypes: tuple[str, ...], table: pd.DataFrame) -> light.Work:
    tokens, heads = _columns(table, "num_tokens", "num_heads")
    return light.mla_bmm_work(dtypes[-1], tokens=tokens, heads=heads, n=_KV_RANK, k=_NOPE)


def _gdn(dtypes: tuple[str, ...], table: pd.DataFrame) -> light.Work:
    """Traffic of a gated-delta-net kernel: its activations and, when decoding, the state read and written."""
    key_heads, key_dim, value_heads, value_dim, batch, tokens = _columns(
        table, "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim", "batch_size", "num_tokens"
    )
    size = light.precision(dtypes[-1]).activation_bytes
    values = value_heads * value_dim
    mixed = 2.0 * key_heads * key_dim + values
    convolution = table["kernel_source"].str.startswith("causal_conv1d").to_numpy(dtype=bool)
    decoding = (table["phase"] == "generation").to_numpy(dtype=bool)
    state = np.where(decoding, 2.0 * batch * values * key_dim, 0.0)
    moved = np.where(convolution, 2.0 * tokens * mixed, tokens * (mixed + values) + state)
    return light.Work(np.zeros_like(moved), moved * size)


_Work = Callable[[tuple[str, ...], pd.DataFrame], light.Work]
_KV_THEN_COMPUTE = ("kv_cache_dtype", "mla_dtype")

_WORK: Mapping[str, tuple[_Work, tuple[str, ...]]] = {
    "gemm": (_gemm, ("gemm_dtype",)),
    "moe": (_moe, ("moe_dtype",)),
    "wideep_moe": (_moe, ("moe_dtype",)),
    "wideep_context_moe": (_moe, ("moe_dtype",)),
    "wideep_generation_moe": (_moe, ("moe_dtype",)),
    "context_attention": (_context_attention, ("kv_cache_dtype", "attn_dtype")),
    "generation_attention": (_generation_attention, ("kv_cache_dtype", "attn_dtype")),
    "context_mla": (_context_mla, _KV_THEN_COMPUTE),
    "mla_context_module": (_context_mla, _KV_THEN_COMPUTE),
    "wideep_context_mla": (_context_mla, _KV_THEN_COMPUTE),
    "generation_mla": (_generation_mla, _KV_THEN_COMPUTE),
    "mla_generation_module": (_generation_mla, _KV_THEN_COMPUTE),
    "wideep_generation_mla": (_generation_mla, _KV_THEN_COMPUTE),
    "dsa_context_module": (_context_dsa, _KV_THEN_COMPUTE),
    "dsa_generation_module": (_generation_dsa, _KV_THEN_COMPUTE),
    "mla_bmm": (_mla_bmm, ("bmm_dtype",)),
    "gdn": (_gdn, ()),
}
