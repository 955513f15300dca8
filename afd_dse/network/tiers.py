"""The tiers of a cluster as columns over pools, and what one transfer over them costs (alpha-beta)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.spec.accelerator import Accelerator

# Shares of the line rate that transfers reach, and what starting one costs, fitted by hand to the measured exchanges
# (tables deepep_ll, deepep_normal, moe_a2a, trtllm_alltoall; slopes and offsets over tokens, median of H100/H200, B200
# and GB200). Decode uses low-latency kernels that write straight to every expert's GPU; prefill uses high-throughput
# ones that send a token once per domain and fan it out there.
SCALE_UP_EFFICIENCY_LOW_LATENCY = 0.45
SCALE_UP_EFFICIENCY_THROUGHPUT = 0.55
SCALE_OUT_EFFICIENCY = 0.85
EXCHANGE_OVERHEAD_LOW_LATENCY_S = 10e-6
EXCHANGE_OVERHEAD_THROUGHPUT_S = 40e-6
# Point-to-point and ring transfers of long messages (NCCL publishes 0.8-0.9 of NVLink and InfiniBand line rate).
LINK_EFFICIENCY = 0.85
RING_OVERHEAD_S = 8e-6


@dataclass(frozen=True, slots=True)
class Tiers:
    """Columns over the pools of a cluster: line rates in bytes/s per GPU and direction, seconds, GPUs."""

    scale_up_bytes_per_s: FloatArray
    scale_up_latency_s: FloatArray
    scale_out_bytes_per_s: FloatArray
    scale_out_latency_s: FloatArray
    domain_gpus: IntArray

    @classmethod
    def of(cls, accelerators: Sequence[Accelerator]) -> "Tiers":
        """Columns of the accelerators of the pools, in order."""
        return cls(
            np.array([a.scale_up_bytes_per_s for a in accelerators]),
            np.array([a.scale_up_latency_s for a in accelerators]),
            np.array([a.scale_out_bytes_per_s for a in accelerators]),
            np.array([a.scale_out_latency_s for a in accelerators]),
            np.array([a.scale_up_gpus for a in accelerators], dtype=np.int64),
        )
