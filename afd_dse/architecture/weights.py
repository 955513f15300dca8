"""Bytes of weights, KV cache and recurrent state per GPU, and which shards are legal: array functions of the layout.

Functions of a :class:`LayerKind` are for one layer; multiply by ``kind.count``. Shard counts broadcast.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.matrices import (
    FloatArray,
    Matrix,
    attention_matrices,
    elements,
    ffn_matrices,
    next_token_kind,
    next_token_projection,
    router_matrices,
)
from afd_dse.architecture.model import (
    DenseFfn,
    Gqa,
    LayerKind,
    LinearAttention,
    Mla,
    ModelArchitecture,
    MoeFfn,
    Quantization,
)

BoolArray = npt.NDArray[np.bool_]

FP8_BLOCK = 128

# Bytes of an element with its share of scales: an fp32 scale a 128x128 block (fp8_block), an fp8 scale 16 elements
# (nvfp4), an e8m0 scale 32 elements (mxfp4), a bf16 scale 32 elements (int4; checkpoints use 32 to 128).
WEIGHT_BYTES: Mapping[str, float] = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4.0 / FP8_BLOCK**2,
    "nvfp4": 0.5 + 1.0 / 16.0,
    "int4_wo": 0.5 + 2.0 / 32.0,
    "w4a16_mxfp4": 0.5 + 1.0 / 32.0,
    "w4a8_mxfp4_mxfp8": 0.5 + 1.0 / 32.0,
}
KV_BYTES: Mapping[str, float] = {"bfloat16": 2.0, "fp8": 1.0}

# DSA caches an indexer's key in fp8 with one fp32 scale a 128 elements, whatever the type of the KV cache.
_INDEX_BLOCK = 128
# FlashMLA's sparse fp8 kernel reads a packed latent: fp8 with one fp32 scale a 128 elements, and the rope key left in
# bfloat16; 656 bytes for 512 + 64 (FlashMLA's README, "FP8 KV cache layout").
_PACKED_LATENT_BLOCK = 128
_SCALE_BYTES = 4.0
_STATE_BYTES = 4.0  # frameworks keep the recurrent state in float32,
_CONVOLUTION_STATE_BYTES = 2.0  # and the convolution's window in bfloat16


def attention_weight_bytes(
    kind: LayerKind, model: ModelArchitecture, quantization: Quantization, tp: npt.ArrayLike
) -> FloatArray:
    """Attention projections and router of one layer on one GPU of a TP group, bytes.

    Head-wise matrices are cut over heads (padded up where ``tp`` does not divide them; KV heads replicate beyond
    their number), low-rank and indexer projections and the router are whole on every GPU. See
    :func:`absorbed_weight_bytes` for what a serving framework adds to the checkpoint.
    """
    matrices = (*attention_matrices(kind.attention, model.hidden), *router_matrices(kind.ffn, model.hidden))
    return _bytes(matrices, quantization, tp)


def absorbed_weight_bytes(kind: LayerKind, tp: npt.ArrayLike, element_bytes: float) -> FloatArray:
    """Second copy of MLA's ``kv_b`` of one layer on one GPU, in elements of ``element_bytes``, bytes; 0 without MLA.

    Decoding in the latent space multiplies by ``kv_b`` split into W_UK and W_UV, which the frameworks lay out anew when
    they load a model and hold next to ``kv_b``, with which prefill computes (vLLM ``W_UK_T`` and ``W_UV`` in bfloat16,
    SGLang ``w_kc`` and ``w_vc``, TensorRT-LLM ``k_b_proj_trans``, on Blackwell with dequantised copies of both).
    """
    shards = np.asarray(tp, dtype=np.float64)
    if not isinstance(kind.attention, Mla):
        return np.zeros(shards.shape)
    mla = kind.attention
    width = mla.nope_head_dim + mla.v_head_dim
    return Matrix("absorbed", mla.kv_rank, mla.heads, width).elements(shards) * element_bytes


def ffn_weight_bytes(
    kind: LayerKind,
    model: ModelArchitecture,
    quantization: Quantization,
    *,
    moe_tp: npt.ArrayLike = 1,
    ep: npt.ArrayLike = 1,
    redundant: npt.ArrayLike = 0,
    shared_tp: npt.ArrayLike = 1,
) -> FloatArray:
    """FFN of one layer on one GPU, bytes.

    A MoE layer holds ``(experts + redundant) / ep`` experts (rounded up) of width ``intermediate / moe_tp``, and
    the shared experts cut ``shared_tp`` ways (1: whole on every GPU). A dense FFN is cut ``shared_tp`` ways.
    """
    shape = np.broadcast_shapes(*(np.shape(x) for x in (moe_tp, ep, redundant, shared_tp)))
    if isinstance(kind.ffn, DenseFfn):
        dense = ffn_matrices(kind.ffn.intermediate, model.hidden, kind.ffn.gated, "gemm")
        return np.broadcast_to(_bytes(dense, quantization, shared_tp), shape).copy()
    shared = ffn_matrices(kind.ffn.shared_intermediate, model.hidden, kind.ffn.gated, "gemm")
    slots = expert_slots(kind.ffn, ep, redundant)
    held = slots * expert_weight_bytes(kind, model, quantization, moe_tp) + _bytes(
        shared, quantization, shared_tp
    )
    return np.broadcast_to(np.asarray(held, dtype=np.float64), shape).copy()


def expert_weight_bytes(
    kind: LayerKind, model: ModelArchitecture, quantization: Quantization, moe_tp: npt.ArrayLike = 1
) -> FloatArray:
    """One routed expert of one layer on one GPU, bytes."""
    expert = ffn_matrices(kind.ffn.intermediate, model.hidden, kind.ffn.gated, "moe")
    return np.asarray(_bytes(expert, quantization, moe_tp), dtype=np.float64)


def expert_slots(ffn: MoeFfn, ep: npt.ArrayLike, redundant: npt.ArrayLike = 0) -> FloatArray:
    """Experts, copies included, that the fullest GPU of an EP group holds."""
    total = ffn.experts + np.asarray(redundant, dtype=np.float64)
    return np.asarray(np.ceil(total / np.asarray(ep, dtype=np.float64)), dtype=np.float64)


def embedding_weight_bytes(model: ModelArchitecture, tp: npt.ArrayLike) -> FloatArray:
    """Embedding and LM head on one GPU, cut over the vocabulary, bytes; checkpoints keep both in bfloat16."""
    copies = 1 if model.tied_embeddings else 2
    table = Matrix("embedding", model.hidden, model.vocabulary, role="bfloat16")
    return np.asarray(copies * WEIGHT_BYTES["bfloat16"] * table.elements(tp), dtype=np.float64)


def attention_side_bytes(
    model: ModelArchitecture,
    quantization: Quantization,
    tp: npt.ArrayLike,
    *,
    next_token: bool = False,
    absorbed_bytes: float = 0.0,
) -> FloatArray:
    """Attention of all layers, routers, embedding and head on one GPU, bytes; MTP modules with ``next_token``.

    As the checkpoint stores it; with ``absorbed_bytes`` an element as loaded to decode (:func:`absorbed_weight_bytes`).
    """
    total = embedding_weight_bytes(model, tp)
    for kind in _kinds(model, next_token):
        total = total + kind.count * attention_weight_bytes(kind, model, quantization, tp)
        total = total + kind.count * absorbed_weight_bytes(kind, tp, absorbed_bytes)
    if next_token:
        joins = (next_token_projection(model.hidden),) * model.next_token_layers
        total = total + _bytes(joins, quantization, tp)
    return total


def ffn_side_bytes(
    model: ModelArchitecture,
    quantization: Quantization,
    *,
    moe_tp: npt.ArrayLike = 1,
    ep: npt.ArrayLike = 1,
    redundant: npt.ArrayLike = 0,
    shared_tp: npt.ArrayLike = 1,
    next_token: bool = False,
) -> FloatArray:
    """FFNs of all layers on one GPU, bytes; those of the MTP modules too with ``next_token``."""
    parts = [
        kind.count
        * ffn_weight_bytes(
            kind, model, quantization, moe_tp=moe_tp, ep=ep, redundant=redundant, shared_tp=shared_tp
        )
        for kind in _kinds(model, next_token)
    ]
    return np.asarray(np.sum(parts, axis=0), dtype=np.float64)


def kv_bytes_per_token(
    kind: LayerKind, quantization: Quantization, tp: npt.ArrayLike, *, packed_latent: bool = False
) -> FloatArray:
    """KV cache of one token in one layer on one GPU, bytes.

    GQA keeps ``ceil(kv_heads / tp)`` heads; the latent of MLA and the indexer's key are whole on every GPU of a
    TP group; linear attention keeps none (see :func:`state_bytes`). With ``packed_latent`` an fp8 cache of DSA is laid
    out as FlashMLA's sparse kernel reads it: scales inside, the rope key in bfloat16.
    """
    shards = np.asarray(tp, dtype=np.float64)
    element = KV_BYTES[quantization.kv_cache]
    match kind.attention:
        case Gqa(kv_heads=kv_heads, head_dim=head_dim):
            return np.asarray(2.0 * head_dim * element * np.ceil(kv_heads / shards), dtype=np.float64)
        case Mla() as mla:
            latent = (mla.kv_rank + mla.rope_head_dim) * element
            if not mla.index_heads:
                return np.full(shards.shape, latent)
            if packed_latent and quantization.kv_cache == "fp8":
                scales = mla.kv_rank / _PACKED_LATENT_BLOCK * _SCALE_BYTES
                latent = mla.kv_rank + scales + mla.rope_head_dim * KV_BYTES["bfloat16"]
            index = mla.index_head_dim * (1.0 + _SCALE_BYTES / _INDEX_BLOCK)
            return np.full(shards.shape, latent + index)
        case LinearAttention():
            return np.zeros(shards.shape)


def kv_tokens(kind: LayerKind, context: npt.ArrayLike, *, window_share: float = 0.0) -> FloatArray:
    """Tokens of a sequence of ``context`` tokens that one layer keeps in its cache.

    A windowed layer needs its window; a framework may give it at least ``window_share`` of a full layer's tokens.
    """
    tokens = np.asarray(context, dtype=np.float64)
    match kind.attention:
        case Gqa(window=window) if window:
            return np.minimum(tokens, np.maximum(float(window), window_share * tokens))
        case LinearAttention():
            return np.zeros(tokens.shape)
        case _:
            return tokens


def state_bytes(kind: LayerKind, tp: npt.ArrayLike) -> FloatArray:
    """Recurrent and convolution state of one sequence in one layer on one GPU, bytes; 0 without linear attention."""
    shards = np.asarray(tp, dtype=np.float64)
    if not isinstance(kind.attention, LinearAttention):
        return np.zeros(shards.shape)
    spec = kind.attention
    key_heads, value_heads = np.ceil(spec.key_heads / shards), np.ceil(spec.value_heads / shards)
    recurrent = _STATE_BYTES * value_heads * spec.key_head_dim * spec.value_head_dim
    channels = 2.0 * key_heads * spec.key_head_dim + value_heads * spec.value_head_dim
    return np.asarray(
        recurrent + _CONVOLUTION_STATE_BYTES * (spec.conv_kernel - 1) * channels, dtype=np.float64
    )


def legal_attention_tp(model: ModelArchitecture, tp: npt.ArrayLike) -> BoolArray:
    """Whether every attention of ``model`` can be cut ``tp`` ways.

    Query (and linear attention's key and value) heads must divide evenly; KV heads divide evenly or replicate evenly.
    """
    shards = np.asarray(tp, dtype=np.int64)
    legal = shards >= 1
    shards = np.maximum(shards, 1)
    for attention in {kind.attention for kind in model.kinds}:
        match attention:
            case Gqa(heads=heads, kv_heads=kv_heads):
                legal = legal & (heads % shards == 0) & ((kv_heads % shards == 0) | (shards % kv_heads == 0))
            case Mla(heads=heads):
                legal = legal & (heads % shards == 0)
            case LinearAttention(key_heads=key_heads, value_heads=value_heads):
                legal = legal & (key_heads % shards == 0) & (value_heads % shards == 0)
    return np.asarray(legal)


def legal_moe_tp(model: ModelArchitecture, moe_tp: npt.ArrayLike, dtype: str) -> BoolArray:
    """Whether every expert of ``model`` can be cut ``moe_tp`` ways when stored as ``dtype``."""
    widths = {kind.ffn.intermediate for kind in model.kinds if isinstance(kind.ffn, MoeFfn)}
    return _legal_width(widths, moe_tp, dtype)


def legal_dense_tp(model: ModelArchitecture, tp: npt.ArrayLike, dtype: str) -> BoolArray:
    """Whether every dense FFN and the shared experts of ``model`` can be cut ``tp`` ways when stored as ``dtype``."""
    widths = {
        kind.ffn.intermediate if isinstance(kind.ffn, DenseFfn) else kind.ffn.shared_intermediate
        for kind in model.kinds
    }
    return _legal_width(widths - {0}, tp, dtype)


def legal_ep(model: ModelArchitecture, ep: npt.ArrayLike, redundant: npt.ArrayLike = 0) -> BoolArray:
    """Whether experts and their copies spread evenly over ``ep`` GPUs; only ``ep`` 1 for a model without experts."""
    shards, copies = np.asarray(ep, dtype=np.int64), np.asarray(redundant, dtype=np.int64)
    legal = (shards >= 1) & (copies >= 0)
    counts = {kind.ffn.experts for kind in model.kinds if isinstance(kind.ffn, MoeFfn)}
    if not counts:
        return np.asarray(legal & (shards == 1))
    for experts in counts:
        legal = legal & ((experts + copies) % np.maximum(shards, 1) == 0)
    return np.asarray(legal)


def _legal_width(widths: set[int], shards: npt.ArrayLike, dtype: str) -> BoolArray:
    count = np.asarray(shards, dtype=np.int64)
    legal = count >= 1
    for width in widths:
        legal = legal & (width % np.maximum(count, 1) == 0)
        if dtype == "fp8_block":
            legal = legal & (width // np.maximum(count, 1) % FP8_BLOCK == 0)
    return np.asarray(legal)


def _kinds(model: ModelArchitecture, next_token: bool) -> tuple[LayerKind, ...]:
    extra = next_token_kind(model) if next_token else None
    return model.kinds if extra is None else (*model.kinds, extra)


def _bytes(matrices: Sequence[Matrix], quantization: Quantization, shards: npt.ArrayLike) -> FloatArray:
    total = np.zeros(np.shape(shards), dtype=np.float64)
    for role in {matrix.role for matrix in matrices}:
        dtype = {"gemm": quantization.gemm, "moe": quantization.moe}.get(role, role)
        own = [matrix for matrix in matrices if matrix.role == role]
        total = total + WEIGHT_BYTES[dtype] * elements(own, shards)
    return total
