"""What a block of candidates is evaluated against: model, framework, pools with their databases, workload, SLO."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from afd_dse.architecture.model import ModelArchitecture, MoeFfn, Quantization
from afd_dse.cost.expert_barrier import ExpertLoads
from afd_dse.cost.imbalance import LengthMoments, kv_load_moments
from afd_dse.network.tiers import Tiers
from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.operators.moe import UNIFORM
from afd_dse.spec.accelerator import Accelerator


@dataclass(frozen=True, slots=True)
class FrameworkProfile:
    """How a serving framework behaves around the kernels; catalogue data (operator_db/catalogue/frameworks.yaml).

    ``step_overhead_s`` host time of a step that no kernel hides, ``step_overhead_per_sequence_s`` its growth with the
    sequences of a rank; ``context_bytes`` CUDA context, workspace and runtime per GPU; ``collective_bytes`` buffers of
    NCCL and friends on a GPU that communicates; ``usable_fraction`` share of HBM that the framework may fill;
    ``launches`` partitions (canonical text) that a release can run, with what it takes.
    """

    name: str
    step_overhead_s: float
    step_overhead_per_sequence_s: float
    context_bytes: float
    collective_bytes: float
    usable_fraction: float
    launches: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal accelerators of a cluster."""

    name: str
    accelerator: Accelerator
    reference: Accelerator
    count: int
    usd_per_gpu_hour: float
    power_w: float
    usable_fraction: float


@dataclass(frozen=True, slots=True)
class Workload:
    """Means (tokens) and coefficients of variation of the requests, and how their tokens fall on experts.

    ``arrival_cv2`` is the squared coefficient of variation of inter-arrival times, 1 for Poisson.
    ``expert_distribution`` names the measured tables to read; with ``uniform`` ones ``expert_popularity`` may hold the
    share of each expert (empty: all alike), and ``expert_persistence`` how much of it past routing tells.
    """

    isl: float
    osl: float
    isl_cv: float = 0.0
    osl_cv: float = 0.0
    prefix: float = 0.0
    prefix_shared: bool = False
    arrival_cv2: float = 1.0
    concurrency_limit: float = float("inf")
    requests_per_s: float = 0.0
    expert_distribution: str = "uniform"
    expert_popularity: tuple[float, ...] = ()
    expert_persistence: float = 1.0


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds (infinite = none) and the percentile of waiting at which TTFT is judged."""

    ttft_s: float = float("inf")
    tpot_s: float = float("inf")
    latency_s: float = float("inf")
    percentile: float = 50.0


@dataclass(frozen=True)
class Scenario:
    """Everything that stays fixed while candidates vary."""

    model: ModelArchitecture
    quantization: Quantization
    framework: FrameworkProfile
    pools: Sequence[Pool]
    workload: Workload
    slo: Slo
    draft_tokens: int = 0
    accepted_per_step: float = 1.0

    @cached_property
    def databases(self) -> tuple[OperatorDatabase, ...]:
        """The operator database of every pool; tables are read when first asked for."""
        return tuple(OperatorDatabase(p.accelerator, self.framework.name, p.reference) for p in self.pools)

    @cached_property
    def shape_memory(self) -> dict[str, Any]:
        """Station times by shape, remembered from block to block (:class:`afd_dse.cost.shape_memory.ShapeMemory`)."""
        return {}

    @cached_property
    def tiers(self) -> Tiers:
        """Network tiers of the pools as columns."""
        return Tiers.of([pool.accelerator for pool in self.pools])

    @cached_property
    def layer_counts(self) -> FloatArray:
        """Layers of each kind [kinds]; speculative decoding adds its draft layers to the last kind at decode."""
        return np.array([kind.count for kind in self.model.kinds], dtype=np.float64)

    @cached_property
    def hbm_budget(self) -> FloatArray:
        """Bytes per GPU that a deployment may fill, by pool [pools]."""
        return np.array([p.accelerator.hbm_bytes * p.usable_fraction for p in self.pools])

    @cached_property
    def pool_counts(self) -> IntArray:
        """GPUs of each pool [pools]."""
        return np.array([pool.count for pool in self.pools], dtype=np.int64)

    @cached_property
    def tokens_per_sequence(self) -> int:
        """Tokens that a sequence brings to one decode step: itself and its drafts."""
        return 1 + self.draft_tokens

    @cached_property
    def kv_load(self) -> tuple[float, float]:
        """Mean and variance of the tokens that a decoding sequence attends to, prefix included.

        In steady state long outputs are found in a batch more often than they arrive, at an age that is spread evenly.
        """
        work = self.workload
        mean, variance = kv_load_moments(
            LengthMoments.lognormal(work.isl, work.isl_cv), LengthMoments.lognormal(work.osl, work.osl_cv)
        )
        return work.prefix + float(mean), float(variance)

    @cached_property
    def expert_loads(self) -> ExpertLoads | None:
        """The loads of expert ranks; None where the tables hold all skew that is asked for, or there are no experts."""
        if self.moe is None or self.workload.expert_distribution != UNIFORM:
            return None
        given = self.workload.expert_popularity
        popularity = np.array(given) if given else np.full(self.moe.experts, 1.0 / self.moe.experts)
        return ExpertLoads(popularity, self.moe.topk, self.workload.expert_persistence)

    @property
    def decode_context(self) -> float:
        """Mean context of a decoding sequence."""
        return self.kv_load[0]

    @cached_property
    def moe(self) -> MoeFfn | None:
        """The routed experts of the model, None for a dense model."""
        for kind in self.model.kinds:
            if isinstance(kind.ffn, MoeFfn):
                return kind.ffn
        return None
