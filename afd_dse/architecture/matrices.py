"""The weight matrices of a layer and how they are cut: what weights, FLOP and parameter counts share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.model import (
    Attention,
    Ffn,
    Gqa,
    LayerKind,
    LinearAttention,
    Mla,
    ModelArchitecture,
    MoeFfn,
)

FloatArray = npt.NDArray[np.float64]

Role = Literal["gemm", "moe", "bfloat16", "float32"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix that is cut along ``units`` of ``unit_width``; ``fixed`` is its other dimension.

    ``units`` 1 is a replicated matrix. Units (heads, columns) that don't divide evenly are padded: every GPU
    holds as many as the fullest. ``role`` says whose data type it is stored in.
    """

    name: str
    fixed: int
    units: int
    unit_width: int = 1
    role: Role = "gemm"

    def elements(self, shards: npt.ArrayLike = 1) -> FloatArray:
        """Elements that one of ``shards`` GPUs holds."""
        held = np.ceil(self.units / np.asarray(shards, dtype=np.float64))
        return np.asarray(self.fixed * self.unit_width * held, dtype=np.float64)


def attention_matrices(attention: Attention, hidden: int) -> tuple[Matrix, ...]:
    """Projections of one attention block; norms and biases (under 0.1 % of a layer) are left out."""
    match attention:
        case Gqa():
            return _gqa(attention, hidden)
        case Mla():
            return _mla(attention, hidden)
        case LinearAttention():
            return _linear(attention, hidden)


def router_matrices(ffn: Ffn, hidden: int) -> tuple[Matrix, ...]:
    """The router of a MoE layer, which lies on the attention side; none for a dense one."""
    if isinstance(ffn, MoeFfn):
        return (Matrix("router", hidden, 1, ffn.experts, "bfloat16"),)
    return ()


def ffn_matrices(intermediate: int, hidden: int, gated: bool, role: Role) -> tuple[Matrix, ...]:
    """Matrices of one expert or dense FFN of width ``intermediate``."""
    if intermediate == 0:
        return ()
    inward = ("gate", "up") if gated else ("up",)
    return tuple(Matrix(name, hidden, intermediate, role=role) for name in (*inward, "down"))


def next_token_projection(hidden: int) -> Matrix:
    """Matrix of an MTP module that joins the hidden state with the embedding of the last token."""
    return Matrix("next-token projection", 2 * hidden, 1, hidden, "bfloat16")


def next_token_kind(model: ModelArchitecture) -> LayerKind | None:
    """The layers inside the model's MTP modules: shaped as its last kind with softmax attention, or none."""
    if not model.next_token_layers:
        return None
    softmax = [kind for kind in model.kinds if not isinstance(kind.attention, LinearAttention)]
    last = (softmax or list(model.kinds))[-1]
    return LayerKind(last.attention, last.ffn, model.next_token_layers)


def elements(matrices: Sequence[Matrix], shards: npt.ArrayLike = 1) -> FloatArray:
    """Elements of all ``matrices`` on one of ``shards`` GPUs."""
    held = np.zeros(np.shape(shards), dtype=np.float64)
    for matrix in matrices:
        held = held + matrix.elements(shards)
    return held


def _gqa(spec: Gqa, hidden: int) -> tuple[Matrix, ...]:
    into_queries = spec.query_rank or hidden
    matrices = [
        Matrix("q", into_queries, spec.heads, spec.head_dim),
        Matrix("k", hidden, spec.kv_heads, spec.head_dim),
        Matrix("v", hidden, spec.kv_heads, spec.head_dim),
        Matrix("o", hidden, spec.heads, spec.head_dim),
    ]
    if spec.query_rank:
        matrices.append(Matrix("q_down", hidden, 1, spec.query_rank))
    if spec.gated:
        matrices.append(Matrix("gate", hidden, spec.heads, spec.head_dim))
    return tuple(matrices)


def _mla(spec: Mla, hidden: int) -> tuple[Matrix, ...]:
    qk_head_dim = spec.nope_head_dim + spec.rope_head_dim
    matrices = [
        Matrix("q_b", spec.query_rank or hidden, spec.heads, qk_head_dim),
        Matrix("kv_a", hidden, 1, spec.kv_rank + spec.rope_head_dim),
        Matrix("kv_b", spec.kv_rank, spec.heads, spec.nope_head_dim + spec.v_head_dim),
        Matrix("o", hidden, spec.heads, spec.v_head_dim),
    ]
    if spec.query_rank:
        matrices.append(Matrix("q_a", hidden, 1, spec.query_rank))
    if spec.index_heads:
        # Serving frameworks replicate the indexer over the TP group.
        indexer = spec.index_heads * spec.index_head_dim
        matrices.append(Matrix("index_q", spec.query_rank or hidden, 1, indexer))
        matrices.append(Matrix("index_k", hidden, 1, spec.index_head_dim))
        matrices.append(Matrix("index_weights", hidden, 1, spec.index_heads, "bfloat16"))
    return tuple(matrices)


def _linear(spec: LinearAttention, hidden: int) -> tuple[Matrix, ...]:
    channels_per_key_head = 2 * spec.key_head_dim
    return (
        Matrix("q and k", hidden, spec.key_heads, channels_per_key_head),
        Matrix("v and z", hidden, spec.value_heads, 2 * spec.value_head_dim),
        Matrix("decay and beta", hidden, spec.value_heads, 2),
        Matrix("convolution of q and k", spec.conv_kernel, spec.key_heads, channels_per_key_head, "bfloat16"),
        Matrix("convolution of v", spec.conv_kernel, spec.value_heads, spec.value_head_dim, "bfloat16"),
        Matrix("o", hidden, spec.value_heads, spec.value_head_dim),
    )
