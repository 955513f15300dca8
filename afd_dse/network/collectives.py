"""Collectives of a tensor-parallel group: measured inside a domain, alpha-beta where nothing is measured."""

import numpy as np
import numpy.typing as npt

from afd_dse.network.tiers import RING_OVERHEAD_S, SCALE_OUT_EFFICIENCY, Tiers
from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.latency import FloatArray, Latency, Provenance


def all_reduce(
    database: OperatorDatabase,
    tiers: Tiers,
    pool: int,
    *,
    message_bytes: FloatArray,
    gpus: npt.ArrayLike,
) -> Latency:
    """All-reduce of ``message_bytes`` over ``gpus`` GPUs of ``pool``; zero for one GPU. Seconds [n].

    Up to the scale-up domain from the operator database. Beyond it in three stages: reduce-scatter inside the domain,
    all-reduce of the shards between domains over scale-out, all-gather inside the domain.
    """
    count = np.broadcast_to(np.asarray(gpus, dtype=np.float64), np.shape(message_bytes)).copy()
    seconds = np.zeros_like(message_bytes, dtype=np.float64)
    provenance = np.zeros(len(seconds), dtype=np.int8)
    domain = float(tiers.domain_gpus[pool])
    active = (count > 1) & (message_bytes > 0)
    if active.any():
        local = database.all_reduce(
            message_bytes=message_bytes[active], gpus=np.minimum(count[active], domain)
        )
        seconds[active], provenance[active] = local.seconds, local.provenance
    across = active & (count > domain)
    if across.any():
        domains = np.ceil(count[across] / domain)
        shard = message_bytes[across] / domain
        ring = (
            2.0
            * (domains - 1.0)
            / domains
            * shard
            / (tiers.scale_out_bytes_per_s[pool] * SCALE_OUT_EFFICIENCY)
        )
        seconds[across] += ring + 2.0 * tiers.scale_out_latency_s[pool] + RING_OVERHEAD_S
        provenance[across] = Provenance.SPEED_OF_LIGHT
    return Latency(seconds, provenance)
