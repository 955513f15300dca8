"""Times of expert dispatch/combine inside a group, of attention↔FFN transfers between groups, and of KV transfers."""

from dataclasses import dataclass

import numpy as np

from afd_dse.network.routing import expected_distinct
from afd_dse.network.tiers import EXCHANGE_OVERHEAD_S, Tiers
from afd_dse.operators.latency import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Routing:
    """How the tokens of a layer spread: ``experts`` E, ``topk`` k; a dense layer is E = 1, k = 1 on every GPU."""

    experts: int
    topk: int

    def copies(self, groups: IntArray | FloatArray) -> FloatArray:
        """Expected distinct groups per token; one group for a dense layer."""
        n = np.asarray(groups, dtype=np.float64)
        if self.experts <= 1:
            return np.ones_like(n)
        return expected_distinct(np.minimum(n, self.experts), self.experts, self.topk)


def exchange_seconds(
    tiers: Tiers,
    *,
    pool: IntArray,
    ranks: IntArray,
    moe_tp: IntArray,
    tokens_per_gpu: FloatArray,
    bytes_per_token: float,
    routing: Routing,
) -> FloatArray:
    """All-to-all of one direction (dispatch or combine) inside a group of ``ranks``·``moe_tp`` GPUs, seconds [n].

    ``tokens_per_gpu`` distinct tokens that each GPU sends. Inside one scale-up domain a token is sent once to every
    other GPU that holds one of its experts. Across domains it is sent once to every other domain over scale-out and
    fanned out there on scale-up (two-level); both tiers work at once, so the slower one counts.
    """
    gpus = ranks * moe_tp
    domain = tiers.domain_gpus[pool]
    domains = np.ceil(gpus / domain)
    across = domains > 1
    byte = tokens_per_gpu * bytes_per_token
    copies = routing.copies(ranks) * moe_tp * (1.0 - 1.0 / gpus)
    up = byte * copies / tiers.scale_up_bytes_per_s[pool]
    remote = routing.copies(np.maximum(domains, 1.0)) * (1.0 - 1.0 / np.maximum(domains, 1.0))
    out = np.where(across, byte * remote / tiers.scale_out_bytes_per_s[pool], 0.0)
    latency = tiers.scale_up_latency_s[pool] + np.where(across, tiers.scale_out_latency_s[pool], 0.0)
    result: FloatArray = np.where(gpus > 1, np.maximum(up, out) + latency + EXCHANGE_OVERHEAD_S, 0.0)
    return result


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
) -> FloatArray:
    """One direction of the bipartite transfer between attention and FFN GPUs (M-to-N), seconds [n].

    ``tokens`` of one micro-batch of the whole unit, spread evenly over ``attention_gpus``; every token reaches each
    distinct expert rank that it needs (all ``moe_tp`` shards of it). Inside one scale-up domain the slower of
    attention-side and FFN-side ports counts; otherwise a token crosses scale-out once per FFN domain and is fanned out
    there. The same bytes flow back, so the time holds for both directions with their own bytes per token.
    """
    ffn_gpus = ranks * moe_tp
    inside = (attention_pool == ffn_pool) & (attention_gpus + ffn_gpus <= tiers.domain_gpus[ffn_pool])
    byte = tokens * bytes_per_token
    copies = routing.copies(ranks) * moe_tp
    up_bw = np.minimum(tiers.scale_up_bytes_per_s[attention_pool], tiers.scale_up_bytes_per_s[ffn_pool])
    up_port = np.maximum(byte * copies / attention_gpus, byte * copies / ffn_gpus) / up_bw
    domains = np.ceil(ffn_gpus / tiers.domain_gpus[ffn_pool])
    per_domain = routing.copies(domains)
    egress = byte * per_domain / attention_gpus / tiers.scale_out_bytes_per_s[attention_pool]
    ingress = byte * per_domain / ffn_gpus / tiers.scale_out_bytes_per_s[ffn_pool]
    fan_out = byte * copies / ffn_gpus / tiers.scale_up_bytes_per_s[ffn_pool]
    across = np.maximum(np.maximum(egress, ingress), fan_out)
    latency = np.where(
        inside,
        tiers.scale_up_latency_s[ffn_pool],
        np.maximum(tiers.scale_out_latency_s[attention_pool], tiers.scale_out_latency_s[ffn_pool]),
    )
    result: FloatArray = np.where(inside, up_port, across) + latency + EXCHANGE_OVERHEAD_S
    return result


def kv_transfer_seconds(
    tiers: Tiers,
    *,
    from_pool: IntArray,
    to_pool: IntArray,
    senders: IntArray,
    receivers: IntArray,
    fits_domain: np.ndarray,
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
    result: FloatArray = kv_bytes / (ports * np.where(inside, up, out)) + latency
    return result
