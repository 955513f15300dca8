"""A model as the cost model sees it: kinds of layers, each an attention and an FFN, and their counts."""

from dataclasses import dataclass
from typing import Literal

GemmDtype = Literal["bfloat16", "fp8", "fp8_block", "nvfp4", "int4_wo"]
MoeDtype = Literal["bfloat16", "fp8", "fp8_block", "nvfp4", "int4_wo", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8"]
AttentionDtype = Literal["bfloat16", "fp8"]


@dataclass(frozen=True, slots=True)
class Gqa:
    """Grouped-query attention (MHA and MQA are special cases).

    ``window`` is the sliding window in tokens, 0 for full attention. ``query_rank`` is the width of a
    low-rank query projection (Step-3's MFA), 0 for a plain one. ``gated`` adds an output gate as wide as the
    queries (Qwen3-Next and Qwen3.5).
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    query_rank: int = 0
    gated: bool = False


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2/V3); ``query_rank`` 0 means a plain query projection.

    ``index_topk`` > 0 makes it DeepSeek sparse attention (DSA): an indexer of ``index_heads`` heads of
    ``index_head_dim`` chooses that many tokens of the context for every query.
    """

    heads: int
    query_rank: int
    kv_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    index_topk: int = 0
    index_heads: int = 0
    index_head_dim: int = 0


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Attention with a recurrent state instead of a KV cache (gated delta net)."""

    key_heads: int
    key_head_dim: int
    value_heads: int
    value_head_dim: int
    conv_kernel: int


Attention = Gqa | Mla | LinearAttention


@dataclass(frozen=True, slots=True)
class DenseFfn:
    """A dense FFN of width ``intermediate``; ``gated`` (SwiGLU) has three matrices, otherwise two."""

    intermediate: int
    gated: bool = True


@dataclass(frozen=True, slots=True)
class MoeFfn:
    """Routed experts of width ``intermediate`` plus shared experts of total width ``shared_intermediate``."""

    experts: int
    topk: int
    intermediate: int
    shared_intermediate: int = 0
    gated: bool = True


Ffn = DenseFfn | MoeFfn


@dataclass(frozen=True, slots=True)
class LayerKind:
    """``count`` equal layers of the model."""

    attention: Attention
    ffn: Ffn
    count: int


@dataclass(frozen=True, slots=True)
class Quantization:
    """Data types by role; ``kv_cache`` is what the KV cache stores, ``attention`` what its kernels compute in."""

    gemm: GemmDtype = "bfloat16"
    moe: MoeDtype = "bfloat16"
    attention: AttentionDtype = "bfloat16"
    kv_cache: AttentionDtype = "bfloat16"


@dataclass(frozen=True, slots=True)
class ModelArchitecture:
    """Everything about a model that its latency, traffic and memory depend on.

    ``kinds`` are in the order of first appearance; ``next_token_layers`` counts MTP modules in the checkpoint;
    ``quantization`` is the checkpoint's own, before what a job overrides.
    """

    name: str
    family: str
    hidden: int
    vocabulary: int
    kinds: tuple[LayerKind, ...]
    tied_embeddings: bool
    next_token_layers: int
    quantization: Quantization

    @property
    def layers(self) -> int:
        """Number of transformer layers."""
        return sum(kind.count for kind in self.kinds)

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(isinstance(kind.ffn, MoeFfn) for kind in self.kinds)
