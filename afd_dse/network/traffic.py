"""Times of expert dispatch/combine inside a group, of attention↔FFN transfers between groups, and of KV transfers."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from afd_dse.network.routing import expected_distinct
from afd_dse.network.tiers import (
    EXCHANGE_OVERHEAD_LOW_LATENCY_S,
    EXCHANGE_OVERHEAD_THROUGHPUT_S,
    LINK_EFFICIENCY,
    SCALE_OUT_EFFICIENCY,
    SCALE_UP_EFFICIENCY_LOW_LATENCY,
    SCALE_UP_EFFICIENCY_THROUGHPUT,
    Tiers,
)
from afd_dse.operators.latency import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Routing:
    """How the tokens of a layer spread: ``experts`` E, ``topk`` k; a dense layer is E = 1, k = 1 on every GPU."""

    experts: int
    topk: int

    def copies(self, groups: IntArray | FloatArray) -> FloatArray:
        """Expected distinct groups per token, of whole ``groups`` [n]; one group for a dense layer."""
        n = np.asarray(groups)
        if self.experts <= 1:
            return np.ones(n.shape)
        return _copies_by_groups(self)[np.minimum(n, self.experts).astype(np.int64)]


@cache
def _copies_by_groups(routing: Routing) -> FloatArray:
    """Copies of a token by the number of groups, from none up to one an expert: it is asked for far more rows."""
    return np.append(0.0, expected_distinct(np.arange(1, routing.experts + 1), routing.experts, routing.topk))


def busiest_port(routing: Routing, ranks: IntArray | FloatArray, imbalance: FloatArray | float) -> FloatArray:
    """What the busiest of ``ranks`` takes in over the mean, [n], where its load is ``imbalance`` times the mean.

    No rank takes in a token twice, so it is at most ranks / c(ranks).
    """
    return np.minimum(imbalance, np.maximum(ranks / routing.copies(ranks), 1.0))


@dataclass(frozen=True, slots=True)
class _Rates:
    """Usable bytes/s and start-up seconds of exchanges by the kernels that run them, [n]."""

    up: FloatArray
    out: FloatArray
    overhead: FloatArray


def _rates(up: FloatArray, out: FloatArray, low_latency: BoolArray) -> _Rates:
    share = np.where(low_latency, SCALE_UP_EFFICIENCY_LOW_LATENCY, SCALE_UP_EFFICIENCY_THROUGHPUT)
    overhead = np.where(low_latency, EXCHANGE_OVERHEAD_LOW_LATENCY_S, EXCHANGE_OVERHEAD_THROUGHPUT_S)
    return _Rates(up * share, out * SCALE_OUT_EFFICIENCY, overhead)


def exchange_seconds(
    tiers: Tiers,
    *,
    pool: IntArray,
    ranks: IntArray,
    moe_tp: IntArray,
    tokens_per_gpu: FloatArray,
    bytes_per_token: float,
    routing: Routing,
    low_latency: BoolArray,
    imbalance: FloatArray | float = 1.0,
) -> FloatArray:
    """All-to-all of one direction (dispatch or combine) inside a group of ``ranks``·``moe_tp`` GPUs, seconds [n].

    ``tokens_per_gpu`` distinct tokens that each GPU sends. Inside one scale-up domain a token is sent once to every
    other GPU that holds one of its experts. Across domains, low-latency kernels send each of these copies over
    scale-out; the others send a token once to every other domain and fan it out there on scale-up (two-level). Both
    tiers work at once, so the slower one counts. The GPU that is waited for moves ``imbalance`` times the mean.
    """
    gpus = ranks * moe_tp
    domains = np.ceil(gpus / tiers.domain_gpus[pool])
    across, outside = domains > 1, 1.0 - 1.0 / domains
    rates = _rates(tiers.scale_up_bytes_per_s[pool], tiers.scale_out_bytes_per_s[pool], low_latency)
    busiest = busiest_port(routing, ranks, imbalance)
    byte = tokens_per_gpu * bytes_per_token * busiest
    copies = routing.copies(ranks) * moe_tp
    remote = np.where(low_latency, copies, routing.copies(domains)) * outside
    near = copies * np.where(
        low_latency & across, np.maximum(1.0 - outside - 1.0 / gpus, 0.0), 1.0 - 1.0 / gpus
    )
    time = np.maximum(byte * near / rates.up, byte * remote / rates.out)
    latency = tiers.scale_up_latency_s[pool] + np.where(across, tiers.scale_out_latency_s[pool], 0.0)
    return np.where(gpus > 1, time + latency + rates.overhead, 0.0)


def attention_ffn_seconds(
    tiers: Tiers,
    *,
    attention_pool: IntArray,
    ffn_pool: IntArray,
    attention_gpus: IntArray,
    ranks: IntArray,
    moe_tp: IntArray,
    tokens: FloatArray,
    bytes_per_token: float,
    routing: Routing,
    low_latency: BoolArray,
    imbalance: FloatArray | float = 1.0,
) -> FloatArray:
    """One direction of the bipartite transfer between attention and FFN GPUs (M-to-N), seconds [n].

    ``tokens`` of one micro-batch of the whole unit, spread evenly over ``attention_gpus``; every token reaches each
    distinct expert rank that it needs (all ``moe_tp`` shards of it). Inside one scale-up domain the slower of
    attention-side and FFN-side ports counts. Otherwise low-latency kernels send every copy over scale-out; the others
    send a token once per FFN domain and fan it out there. The same copies flow back, so the time holds for both
    directions with their own bytes per token. The FFN GPU that is waited for moves ``imbalance`` times the mean, at
    most every token.
    """
    ffn_gpus = ranks * moe_tp
    inside = (attention_pool == ffn_pool) & (attention_gpus + ffn_gpus <= tiers.domain_gpus[ffn_pool])
    up = np.minimum(tiers.scale_up_bytes_per_s[attention_pool], tiers.scale_up_bytes_per_s[ffn_pool])
    near = _rates(up, tiers.scale_out_bytes_per_s[attention_pool], low_latency)
    far = _rates(tiers.scale_up_bytes_per_s[ffn_pool], tiers.scale_out_bytes_per_s[ffn_pool], low_latency)
    byte = tokens * bytes_per_token
    copies = routing.copies(ranks) * moe_tp
    busiest = busiest_port(routing, ranks, imbalance) / ffn_gpus
    in_domain = np.maximum(byte * copies / attention_gpus, byte * copies * busiest) / near.up
    domains = np.ceil(ffn_gpus / tiers.domain_gpus[ffn_pool])
    crossing = byte * np.where(low_latency, copies, routing.copies(domains))
    ports = np.maximum(crossing / attention_gpus / near.out, crossing * busiest / far.out)
    fan_out = np.where(low_latency, 0.0, byte * copies * busiest / far.up)
    latency = np.where(
        inside,
        tiers.scale_up_latency_s[ffn_pool],
        np.maximum(tiers.scale_out_latency_s[attention_pool], tiers.scale_out_latency_s[ffn_pool]),
    )
    return np.where(inside, in_domain, np.maximum(ports, fan_out)) + latency + near.overhead


def kv_transfer_seconds(
    tiers: Tiers,
    *,
    from_pool: IntArray,
    to_pool: IntArray,
    senders: IntArray,
    receivers: IntArray,
    fits_domain: BoolArray,
    kv_bytes: FloatArray,
) -> FloatArray:
    """Hand-over of one request's KV cache from prefill to decode GPUs, seconds [n].

    ``senders`` and ``receivers`` GPUs hold shards of the request; the smaller side's ports limit. Scale-up carries it
    where both units fit one domain, scale-out otherwise.
    """
    ports = np.minimum(senders, receivers)
    up = np.minimum(tiers.scale_up_bytes_per_s[from_pool], tiers.scale_up_bytes_per_s[to_pool])
    out = np.minimum(tiers.scale_out_bytes_per_s[from_pool], tiers.scale_out_bytes_per_s[to_pool])
    inside = fits_domain & (from_pool == to_pool)
    latency = np.where(inside, tiers.scale_up_latency_s[from_pool], tiers.scale_out_latency_s[from_pool])
    result: FloatArray = kv_bytes / (ports * np.where(inside, up, out) * LINK_EFFICIENCY) + latency
    return result


def exposed_transfer_seconds(transfer_s: FloatArray, service_s: FloatArray, layers: int) -> FloatArray:
    """What a request waits for its KV transfer beyond its prefill, seconds [n].

    Layers are sent while the next ones are computed: at least the last one's share remains.
    """
    result: FloatArray = np.maximum(transfer_s - service_s, transfer_s / layers)
    return result
