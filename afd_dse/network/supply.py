"""The supply bound of disaggregated experts: how much work the network can bring to an FFN GPU (arXiv 2602.09721)."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]

DISPATCH_BYTES = 1.0  # FP8 out
COMBINE_BYTES = 2.0  # BF16 back


class Regime(IntEnum):
    """What happens to the arithmetic intensity when FFN nodes are added."""

    SCALE_UP_BOUND = 1
    """Scale-up is full: the tokens of a GPU stay, its experts get fewer; intensity rises."""
    REUSE_SHRINKS = 2
    """Scale-out is full and a token finds fewer of its experts in one node: tokens and experts shrink alike."""
    EXPERTS_SHRINK = 3
    """Scale-out is full, a token finds one expert a node: the tokens of a GPU stay again; intensity rises."""
    ONE_EXPERT = 4
    """A GPU holds a single expert: nothing is left to gain."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """Links of an FFN GPU in bytes/s per direction, GPUs of a node, and nodes within one scale-up domain.

    Attention and FFN nodes that fit one domain of several nodes reach each other over scale-up.
    """

    scale_out_bytes_per_s: float
    scale_up_bytes_per_s: float
    node_gpus: int
    domain_nodes: float = 1.0

    def outward(self, ffn_nodes: FloatArray) -> FloatArray:
        """Bytes/s per GPU between nodes [n]: scale-up while ``ffn_nodes`` and an attention node fit one domain."""
        inside = ffn_nodes + 1.0 <= self.domain_nodes
        return np.where(inside, self.scale_up_bytes_per_s, self.scale_out_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Boundaries:
    """FFN nodes at which a regime ends: scale-out fills, reuse within a node is gone, one expert a GPU is left."""

    scale_out_full: float
    no_reuse: float
    one_expert: float


def supplied_bandwidth(fabric: Fabric, ffn_nodes: npt.ArrayLike, topk: int) -> FloatArray:
    """Bytes/s of expert input that one FFN GPU can receive, [n].

    min(BW_out · max(1, k/N_F), BW_up): a token that finds several of its ``topk`` experts in a node crosses scale-out
    once and is fanned out on scale-up.
    """
    nodes = np.asarray(ffn_nodes, dtype=np.float64)
    reuse = np.maximum(1.0, topk / nodes)
    return np.asarray(
        np.minimum(fabric.outward(nodes) * reuse, fabric.scale_up_bytes_per_s), dtype=np.float64
    )


def supplied_tokens(
    fabric: Fabric,
    ffn_nodes: npt.ArrayLike,
    *,
    topk: int,
    hidden: int,
    budget_s: npt.ArrayLike,
    dispatch_bytes: float = DISPATCH_BYTES,
    combine_bytes: float = COMBINE_BYTES,
) -> FloatArray:
    """Token-expert inputs that one FFN GPU can receive and answer in a stage of ``budget_s`` seconds, [n]."""
    bandwidth = supplied_bandwidth(fabric, ffn_nodes, topk)
    received = bandwidth * np.asarray(budget_s, dtype=np.float64)
    return np.asarray(received / (hidden * (dispatch_bytes + combine_bytes)), dtype=np.float64)


def network_intensity(
    intermediate: npt.ArrayLike,
    dispatch_bytes: float = DISPATCH_BYTES,
    combine_bytes: float = COMBINE_BYTES,
) -> FloatArray:
    """FLOP per network byte of an expert of width ``intermediate`` M: 6·H·M over H·(out + back); 2·M for 1 + 2."""
    return np.asarray(
        6.0 * np.asarray(intermediate, dtype=np.float64) / (dispatch_bytes + combine_bytes), dtype=np.float64
    )


def hfu_bound(
    fabric: Fabric,
    ffn_nodes: npt.ArrayLike,
    *,
    topk: int,
    intermediate: int,
    peak_flops: float,
    dispatch_bytes: float = DISPATCH_BYTES,
    combine_bytes: float = COMBINE_BYTES,
) -> FloatArray:
    """Largest share of ``peak_flops`` that FFN GPUs can use, [n]: what the network supplies, at most 1."""
    intensity = network_intensity(intermediate, dispatch_bytes, combine_bytes)
    supplied = supplied_bandwidth(fabric, ffn_nodes, topk) * intensity
    return np.asarray(np.minimum(supplied / peak_flops, 1.0), dtype=np.float64)


def experts_per_gpu(fabric: Fabric, ffn_nodes: npt.ArrayLike, experts: int) -> FloatArray:
    """Experts that one FFN GPU holds, at least one, [n]."""
    gpus = np.asarray(ffn_nodes, dtype=np.float64) * fabric.node_gpus
    return np.asarray(np.maximum(experts / gpus, 1.0), dtype=np.float64)


def relative_intensity(fabric: Fabric, ffn_nodes: npt.ArrayLike, *, topk: int, experts: int) -> FloatArray:
    """Arithmetic intensity of the experts' GEMMs over that on one FFN node, [n]: tokens per expert of a GPU."""

    def tokens_per_expert(nodes: npt.ArrayLike) -> FloatArray:
        return supplied_bandwidth(fabric, nodes, topk) / experts_per_gpu(fabric, nodes, experts)

    return np.asarray(tokens_per_expert(ffn_nodes) / tokens_per_expert(1.0), dtype=np.float64)


def boundaries(fabric: Fabric, *, topk: int, experts: int) -> Boundaries:
    """FFN nodes N_F at which the regimes end: k·BW_out/BW_up, k and E/g.

    In a domain of several nodes scale-out fills no earlier than the domain is left; where scale-out is as fast as
    scale-up it never does.
    """
    ratio = fabric.scale_out_bytes_per_s / fabric.scale_up_bytes_per_s
    full = float("inf") if ratio >= 1.0 else max(topk * ratio, fabric.domain_nodes - 1.0)
    return Boundaries(full, float(topk), experts / fabric.node_gpus)


def regime(fabric: Fabric, ffn_nodes: npt.ArrayLike, *, topk: int, experts: int) -> IntArray:
    """The :class:`Regime` at each count of FFN nodes [n]; a boundary belongs to the regime before it."""
    nodes = np.asarray(ffn_nodes, dtype=np.float64)
    ends = boundaries(fabric, topk=topk, experts=experts)
    limited = nodes > ends.scale_out_full
    found = np.where(limited, np.where(nodes <= ends.no_reuse, 2, 3), 1)
    return np.asarray(np.where(nodes >= ends.one_expert, Regime.ONE_EXPERT, found), dtype=np.int64)


def dead_zone(
    fabric: Fabric,
    ffn_nodes: npt.ArrayLike,
    *,
    topk: int,
    intermediate: int,
    peak_flops: float,
    dispatch_bytes: float = DISPATCH_BYTES,
    combine_bytes: float = COMBINE_BYTES,
) -> BoolArray:
    """Where more FFN nodes are in vain, [n]: scale-out caps the work, so the bound is below that of a single node."""
    nodes = np.asarray(ffn_nodes, dtype=np.float64)

    def bound(count: npt.ArrayLike) -> FloatArray:
        return hfu_bound(
            fabric,
            count,
            topk=topk,
            intermediate=intermediate,
            peak_flops=peak_flops,
            dispatch_bytes=dispatch_bytes,
            combine_bytes=combine_bytes,
        )

    return np.asarray(bound(nodes) < bound(1.0) * (1.0 - 1e-12))


def stage_budget(
    tpot_s: npt.ArrayLike,
    layers: int,
    *,
    accepted_per_step: float = 1.0,
    gap_s: float = 0.0,
    batches_in_flight: int = 3,
) -> FloatArray:
    """Time of one stage of one batch in one layer, t_B = (TPOT·accepted − t_gap) / (batches·L) seconds [n]."""
    tpot = np.asarray(tpot_s, dtype=np.float64)
    return np.asarray((tpot * accepted_per_step - gap_s) / (batches_in_flight * layers), dtype=np.float64)


def exchange_rate(
    tokens: npt.ArrayLike, hidden: int, bytes_per_element: float, window_s: npt.ArrayLike
) -> FloatArray:
    """Bytes/s that exchanging ``tokens`` [n] of ``hidden`` elements within ``window_s`` takes."""
    byte = np.asarray(tokens, dtype=np.float64) * hidden * bytes_per_element
    return np.asarray(byte / np.asarray(window_s, dtype=np.float64), dtype=np.float64)


def least_sparsity(
    full_batch: npt.ArrayLike,
    *,
    node_bytes_per_s: npt.ArrayLike,
    hidden: int,
    budget_s: npt.ArrayLike,
    dispatch_bytes: float = DISPATCH_BYTES,
    combine_bytes: float = COMBINE_BYTES,
) -> FloatArray:
    """Smallest share of experts that a token may use with the experts still compute-bound, [n] (arXiv 2507.19427).

    An expert needs ``full_batch`` tokens; a node receives as many as its NICs carry there and back within ``budget_s``,
    of which the share that the sparsity says falls on each expert.
    """
    round_trip = hidden * (dispatch_bytes + combine_bytes)
    received = np.asarray(node_bytes_per_s, dtype=np.float64) * np.asarray(budget_s) / round_trip
    return np.asarray(np.asarray(full_batch, dtype=np.float64) / received, dtype=np.float64)
