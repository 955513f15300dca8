"""What one token costs by part of the model: parameters, FLOP and KV bytes, without regard to any hardware."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.matrices import (
    FloatArray,
    attention_matrices,
    elements,
    ffn_matrices,
    next_token_kind,
    next_token_projection,
    router_matrices,
)
from afd_dse.architecture.model import (
    Gqa,
    LayerKind,
    LinearAttention,
    Mla,
    ModelArchitecture,
    MoeFfn,
    Quantization,
)
from afd_dse.architecture.weights import kv_bytes_per_token, kv_tokens


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by part, all of them and those that one token uses; norms and biases are left out."""

    layers: float
    layers_active: float
    embedding: float
    head: float
    next_token: float
    next_token_active: float

    def total(self, parts: tuple[str, ...] = ("layers", "embedding", "head")) -> float:
        """Parameters of ``parts`` (layers, embedding, head, next_token)."""
        return float(sum(getattr(self, part) for part in parts))

    def active(self, parts: tuple[str, ...] = ("layers", "embedding", "head")) -> float:
        """Parameters of ``parts`` that one token uses."""
        return float(
            sum(
                getattr(self, f"{part}_active" if hasattr(self, f"{part}_active") else part) for part in parts
            )
        )


def parameter_count(model: ModelArchitecture) -> ParameterCount:
    """Parameters of ``model`` by part."""
    layers = [_layer_parameters(kind, model.hidden) for kind in model.kinds]
    extra = next_token_kind(model)
    module, module_active = _layer_parameters(extra, model.hidden) if extra else (0.0, 0.0)
    join = float(next_token_projection(model.hidden).elements()) * model.next_token_layers
    table = float(model.vocabulary * model.hidden)
    return ParameterCount(
        layers=sum(total for total, _ in layers),
        layers_active=sum(active for _, active in layers),
        embedding=table,
        head=0.0 if model.tied_embeddings else table,
        next_token=module + join,
        next_token_active=module_active + join,
    )


def parameters(model: ModelArchitecture) -> tuple[float, float]:
    """Total and active parameters: layers, embedding and head, without MTP modules."""
    count = parameter_count(model)
    return count.total(), count.active()


@dataclass(frozen=True, slots=True)
class TokenWork:
    """What decoding one token takes at a context [n]: FLOP by part [n] and KV-cache bytes read [n]."""

    attention_flop: FloatArray
    projection_flop: FloatArray
    ffn_flop: FloatArray
    kv_bytes: FloatArray


def token_work(
    model: ModelArchitecture,
    quantization: Quantization,
    context: npt.ArrayLike,
    *,
    latent_values: bool = False,
) -> TokenWork:
    """Work of one token of all layers at ``context`` tokens: 2 FLOP a multiply-add.

    ``attention_flop`` is the core (scores and weighted sum, in the latent space for MLA, over the chosen tokens for
    DSA), ``projection_flop`` its linear projections, ``ffn_flop`` the FFN or the chosen and shared experts; router,
    embedding and head are left out. ``kv_bytes`` is what the context keeps in the cache.

    ``latent_values`` counts MLA's weighted sum over the rotary part of the cached vector too, as Step-3's paper does
    (arXiv 2507.19427), although only the latent is summed.
    """
    tokens = np.asarray(context, dtype=np.float64)
    zero = np.zeros(tokens.shape)
    attention, kv = zero, zero
    projection = ffn = 0.0
    for kind in model.kinds:
        attention = attention + kind.count * attention_core_flop(kind, tokens, latent_values=latent_values)
        kv = kv + kind.count * kv_bytes_per_token(kind, quantization, 1) * kv_tokens(kind, tokens)
        projection += 2.0 * kind.count * float(elements(attention_matrices(kind.attention, model.hidden)))
        ffn += 2.0 * kind.count * _ffn_parameters(kind, model.hidden)[1]
    return TokenWork(attention, zero + projection, zero + ffn, kv)


def attention_core_flop(kind: LayerKind, context: FloatArray, *, latent_values: bool = False) -> FloatArray:
    """FLOP of one token's attention in one layer over ``context`` cached tokens, without projections."""
    match kind.attention:
        case Gqa(heads=heads, head_dim=head_dim):
            return np.asarray(4.0 * heads * head_dim * kv_tokens(kind, context), dtype=np.float64)
        case Mla() as mla:
            cached = mla.kv_rank + mla.rope_head_dim
            summed = cached if latent_values else mla.kv_rank
            seen = np.minimum(context, float(mla.index_topk)) if mla.index_topk else context
            core = 2.0 * mla.heads * (cached + summed) * seen
            return np.asarray(core + 2.0 * mla.index_heads * mla.index_head_dim * context, dtype=np.float64)
        case LinearAttention() as linear:
            # Decay, read, correct and query the state: four passes over it, each a multiply-add.
            state = linear.value_heads * linear.key_head_dim * linear.value_head_dim
            return np.full(context.shape, 8.0 * state)


def _layer_parameters(kind: LayerKind, hidden: int) -> tuple[float, float]:
    """All and active parameters of the ``count`` layers of a kind."""
    outside = elements(attention_matrices(kind.attention, hidden)) + elements(
        router_matrices(kind.ffn, hidden)
    )
    total, active = _ffn_parameters(kind, hidden)
    return kind.count * (float(outside) + total), kind.count * (float(outside) + active)


def _ffn_parameters(kind: LayerKind, hidden: int) -> tuple[float, float]:
    """All and active parameters of one layer's FFN."""
    width = float(elements(ffn_matrices(kind.ffn.intermediate, hidden, kind.ffn.gated, "moe")))
    if not isinstance(kind.ffn, MoeFfn):
        return width, width
    shared = float(elements(ffn_matrices(kind.ffn.shared_intermediate, hidden, kind.ffn.gated, "gemm")))
    return kind.ffn.experts * width + shared, kind.ffn.topk * width + shared
