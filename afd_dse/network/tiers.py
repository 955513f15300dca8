"""The tiers of a cluster as columns over pools, and what one transfer over them costs (alpha-beta)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.spec.accelerator import Accelerator

# Share of a link's line rate that large messages reach: NCCL and DeepEP publish 0.78-0.92 on NVLink and on
# 400 Gb/s InfiniBand (DeepEP README: 153 of 160 GB/s NVLink, 43-58 of 50 GB/s RDMA); one value for both tiers.
LINK_EFFICIENCY = 0.85
# Launch, packing and signalling of one exchange, seconds: measured DeepEP low-latency kernels take 8-10 us at one
# token inside a node (table deepep_ll) and about 20 us more over RDMA.
EXCHANGE_OVERHEAD_S = 8e-6


@dataclass(frozen=True, slots=True)
class Tiers:
    """Columns over the pools of a cluster: bytes/s per GPU and direction, seconds, GPUs."""

    scale_up_bytes_per_s: FloatArray
    scale_up_latency_s: FloatArray
    scale_out_bytes_per_s: FloatArray
    scale_out_latency_s: FloatArray
    domain_gpus: IntArray

    @classmethod
    def of(cls, accelerators: Sequence[Accelerator]) -> "Tiers":
        """Columns of the accelerators of the pools, in order."""
        return cls(
            np.array([a.scale_up_bytes_per_s for a in accelerators]) * LINK_EFFICIENCY,
            np.array([a.scale_up_latency_s for a in accelerators]),
            np.array([a.scale_out_bytes_per_s for a in accelerators]) * LINK_EFFICIENCY,
            np.array([a.scale_out_latency_s for a in accelerators]),
            np.array([a.scale_up_gpus for a in accelerators], dtype=np.int64),
        )
