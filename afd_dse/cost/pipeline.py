"""The closed pipeline: m micro-batches circulate over the stations of every layer."""

from collections.abc import Sequence

import numpy as np

from afd_dse.operators.latency import FloatArray


def step_time(stations: Sequence[FloatArray], layers: FloatArray, micro_batches: FloatArray) -> FloatArray:
    """Time of one step of all micro-batches through all layers, seconds [n].

    ``stations`` in visiting order, each [n, kinds]: time of one micro-batch in a layer of each kind; ``layers`` [kinds]
    how many layers of each kind, ``micro_batches`` [n] m ≥ 1.

    With s_max the slowest station and S the sum of a layer, the period of a layer is max(m·s_max, S); L equal layers
    take S + (L − 1)·period + (m − 1)·s_max: exact for FIFO stations, also where m·s_max < S, the case that
    MegaScale-Infer (arXiv 2504.02263) Eq. 5 excludes. Kinds follow each other; the fill of the pipeline is paid once.
    """
    slowest, total = stations[0], stations[0]
    for station in stations[1:]:
        slowest, total = np.maximum(slowest, station), total + station
    m = micro_batches[:, None]
    period = np.maximum(m * slowest, total)
    fill = total - period + (m - 1.0) * slowest
    result: FloatArray = period @ layers + fill @ (layers / layers.sum())
    return result


def busy_time(station: FloatArray, layers: FloatArray, micro_batches: FloatArray) -> FloatArray:
    """Time that one station works during a step, seconds [n]; ``station`` [n, kinds]."""
    result: FloatArray = (station @ layers) * micro_batches
    return result


def least_micro_batches(stations: Sequence[FloatArray]) -> FloatArray:
    """Fewest micro-batches that keep the slowest station busy all the time, [n]: the least m with m·s_max ≥ S.

    ``stations`` of a layer, each [n]. For T_a = T_e ≥ T_c it is ⌈2·(1 + T_c/T_e)⌉, as in MegaScale-Infer
    (arXiv 2504.02263).
    """
    slowest, total = stations[0], stations[0]
    for station in stations[1:]:
        slowest, total = np.maximum(slowest, station), total + station
    # NOTE: 3.0000000000000004 in binary is 3 micro-batches.
    result: FloatArray = np.ceil(np.round(total / slowest, 9))
    return result


def disaggregated_speedup(
    *,
    attention_share: FloatArray,
    dense_share: FloatArray,
    expert_share: FloatArray,
    batch_ratio: FloatArray,
    attention_nodes: FloatArray,
    ffn_nodes: FloatArray,
    micro_batches: FloatArray,
) -> FloatArray:
    """Throughput per GPU of attention and experts apart over both together, from shares of the latter's step, [n].

    Attention kernels grow with the batch (``batch_ratio`` of the two); dense GEMMs read their weights once a
    micro-batch and don't grow, nor do experts, which stay bound by reading theirs. Links are hidden. Only
    ``attention_nodes`` of all hold requests. The step is a period of :func:`step_time` (FastAFD, 2026).
    """
    m = np.asarray(micro_batches, dtype=np.float64)
    attention = attention_share * batch_ratio / m + dense_share
    stations = [attention.reshape(-1, 1), np.broadcast_to(expert_share, attention.shape).reshape(-1, 1)]
    many = np.array([1e9])  # layers: so many that filling the pipeline does not count
    period = step_time(stations, many, np.broadcast_to(m, attention.shape).reshape(-1)) / many[0]
    holding = attention_nodes / (attention_nodes + ffn_nodes)
    result: FloatArray = batch_ratio * holding / period
    return result
