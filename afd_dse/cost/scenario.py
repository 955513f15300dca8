"""What a block of candidates is evaluated against: model, framework, pools with their databases, workload, SLO."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from afd_dse.architecture.model import ModelArchitecture, MoeFfn, Quantization
from afd_dse.cost.expert_barrier import ExpertLoads, shared_loads
from afd_dse.cost.imbalance import LengthMoments, kv_load_moments
from afd_dse.network.tiers import Tiers
from afd_dse.operators.database import OperatorDatabase, shared_database
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.operators.moe import UNIFORM
from afd_dse.spec.accelerator import Accelerator
from afd_dse.spec.calibration import Intervals

# What the driver keeps of the memory that it reports; page tables and ECC grow with it. PyTorch's out-of-memory errors
# tell totals of 79.19, 139.81, 178.35, 184.31, 267.69 and 276.50 GiB on H100, H200, B200, GB200, B300 and GB300,
# nvidia-smi 79.65, 140.40, 179.06, 185.03, 268.59 and 277.55: a line through the differences, off by 0.07 at most.
DRIVER_BYTES = 0.24 * 2**30
DRIVER_SHARE = 0.0027


@dataclass(frozen=True, slots=True)
class Launch:
    """What a release takes to run something (a partition, micro-batches, …), in ``words``, and what it runs of it.

    ``families`` of models (none named: all), ``micro_batches`` (0: any number); ``attention_leads`` where at least as
    many GPUs are needed for attention as for the FFN, ``spread_experts`` where several ranks must attend apart and hold
    experts of their own, ``latent`` where only models with MLA will do, ``apart`` where the phases must not share GPUs,
    ``alone`` where sequences of prefill must not be spread as well, ``whole_heads`` where TP must not cut attention,
    ``stages_of_prefill`` where there must be as many pipeline stages as in prefill.
    """

    words: str
    families: tuple[str, ...] = ()
    micro_batches: int = 0
    attention_leads: bool = False
    spread_experts: bool = False
    latent: bool = False
    apart: bool = False
    alone: bool = False
    whole_heads: bool = False
    stages_of_prefill: bool = False


@dataclass(frozen=True, slots=True)
class FrameworkProfile:
    """How a serving framework behaves around the kernels; catalogue data (operator_db/catalogue/frameworks.yaml).

    ``prefill_first`` if waiting prompts run in steps of their own before decode goes on (else they share its steps).
    Memory of a GPU: ``context_bytes`` CUDA context, workspace and runtime; ``collective_bytes``
    buffers of NCCL and friends on a GPU that communicates; ``hidden_buffers`` hidden-wide buffers alive at once in a
    forward pass; ``absorbed_bytes`` an element of MLA's absorbed weights where the checkpoint has ``kv_b`` in 8 bits.

    What the framework may fill: ``usable_fraction`` of everything, ``static_fraction`` of what context and collectives
    leave with weights and KV cache, ``free_fraction`` of what everything else leaves with the KV cache. Launched
    without memory flags it keeps ``default_reserve_bytes`` and ``default_reserve_bytes_per_token`` of a step from
    weights and cache.

    The KV cache: pages of ``block_tokens``; ``window_share`` of a full layer's tokens that a windowed layer keeps at
    least; ``packed_latent`` whether an fp8 cache of DSA has FlashMLA's packed layout; ``held_output_share`` of a
    sequence's output for which a running one holds pages on average (1: reserved as a whole).

    What a release can run: ``launches`` partitions (canonical text), ``overlap`` of micro-batches in layers that are
    not split (None: no release does), ``context_parallel`` phases in which it spreads a sequence over several GPUs, and
    ``pipeline_apart`` phases in which engines that hand the KV cache over, or take it, may be cut into pipeline stages,
    with what that takes; ``mixed_attention`` whether an engine cuts attention by TP and DP at once, ``mixed_experts``
    experts by TP and EP.
    """

    name: str
    prefill_first: bool
    context_bytes: float
    collective_bytes: float
    hidden_buffers: float
    usable_fraction: float
    static_fraction: float
    free_fraction: float
    block_tokens: float
    window_share: float
    packed_latent: bool
    held_output_share: float
    absorbed_bytes: float
    default_reserve_bytes: float
    default_reserve_bytes_per_token: float
    launches: Mapping[str, Launch]
    overlap: Launch | None
    context_parallel: Mapping[str, Launch]
    pipeline_apart: Mapping[str, Launch]
    mixed_attention: bool
    mixed_experts: bool


@dataclass(frozen=True, slots=True)
class EngineOverheads:
    """What an engine takes beyond its kernels, seconds; :class:`afd_dse.spec.calibration.Overheads` says of what."""

    layer_s: float = 0.0
    dense_layer_s: float = 0.0
    linear_layer_s: float = 0.0
    step_s: float = 0.0
    sequence_s: float = 0.0
    request_s: float = 0.0
    admission_steps: float = 0.0
    prompts_ahead: float = 0.0


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal accelerators of a cluster; the fractions as in :class:`FrameworkProfile`, or what the job sets instead."""

    name: str
    accelerator: Accelerator
    reference: Accelerator
    count: int
    usd_per_gpu_hour: float
    power_w: float
    usable_fraction: float
    static_fraction: float = 1.0
    free_fraction: float = 1.0
    overheads: EngineOverheads = EngineOverheads()


@dataclass(frozen=True, slots=True)
class Workload:
    """Means (tokens) and coefficients of variation of the requests, and how their tokens fall on experts.

    ``arrival_cv2`` is the squared coefficient of variation of inter-arrival times, 1 for Poisson.
    ``expert_distribution`` names the measured tables to read; with ``uniform`` ones ``expert_popularity`` may hold the
    share of each expert (empty: all alike), and ``expert_persistence`` how much of it past routing tells.
    ``slot_load`` is the mean and variance of the tokens that a decode slot holds, ``prompts`` the first four moments of
    the prompts, where requests were observed whole.
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
    slot_load: tuple[float, float] | None = None
    prompts: LengthMoments | None = None


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds (infinite = none) and the percentile of waiting at which TTFT is judged.

    ``asked`` are the limits as the user set them, where predictions must keep tighter ones to be ``confidence`` sure.
    """

    ttft_s: float = float("inf")
    tpot_s: float = float("inf")
    latency_s: float = float("inf")
    percentile: float = 50.0
    confidence: float | None = None
    asked: "Slo | None" = None

    @property
    def as_asked(self) -> "Slo":
        """The limits as the user set them: what is simulated or measured is held to these."""
        return self.asked or self


@dataclass(frozen=True)
class Scenario:
    """Everything that stays fixed while candidates vary.

    ``only_launchable`` where only what a release of the framework runs is searched.
    """

    model: ModelArchitecture
    quantization: Quantization
    framework: FrameworkProfile
    pools: Sequence[Pool]
    workload: Workload
    slo: Slo
    draft_tokens: int = 0
    accepted_per_step: float = 1.0
    intervals: Intervals | None = None
    only_launchable: bool = False

    @cached_property
    def databases(self) -> tuple[OperatorDatabase, ...]:
        """The operator database of every pool; tables are read when first asked for."""
        return tuple(shared_database(p.accelerator, self.framework.name, p.reference) for p in self.pools)

    @cached_property
    def shape_memory(self) -> dict[str, Any]:
        """Station times by shape, remembered from block to block (:class:`afd_dse.cost.shape_memory.ShapeMemory`)."""
        return {}

    @cached_property
    def tiers(self) -> Tiers:
        """Network tiers of the pools as columns."""
        return Tiers.of([pool.accelerator for pool in self.pools])

    @cached_property
    def _overheads(self) -> dict[str, FloatArray]:
        return {
            name: np.array([getattr(pool.overheads, name) for pool in self.pools], dtype=np.float64)
            for name in EngineOverheads.__slots__
        }

    def overhead(self, name: str) -> FloatArray:
        """One of the :class:`EngineOverheads` by pool [pools]."""
        return self._overheads[name]

    @cached_property
    def layer_counts(self) -> FloatArray:
        """Layers of each kind [kinds]; speculative decoding adds its draft layers to the last kind at decode."""
        return np.array([kind.count for kind in self.model.kinds], dtype=np.float64)

    @cached_property
    def visible_bytes(self) -> FloatArray:
        """Bytes of a GPU that CUDA can hand out (``cudaMemGetInfo``'s total), by pool [pools]."""
        hbm = np.array([pool.accelerator.hbm_bytes for pool in self.pools])
        return np.asarray(hbm * (1.0 - DRIVER_SHARE) - DRIVER_BYTES, dtype=np.float64)

    def fractions(self, name: str) -> FloatArray:
        """``usable_fraction``, ``static_fraction`` or ``free_fraction`` by pool [pools]."""
        return np.array([getattr(pool, name) for pool in self.pools], dtype=np.float64)

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
        Lengths that are not observed are lognormal, prompts and outputs independent.
        """
        work = self.workload
        if work.slot_load is not None:
            return work.prefix + work.slot_load[0], work.slot_load[1]
        mean, variance = kv_load_moments(
            LengthMoments.lognormal(work.isl, work.isl_cv), LengthMoments.lognormal(work.osl, work.osl_cv)
        )
        return work.prefix + float(mean), float(variance)

    @cached_property
    def prompt_lengths(self) -> LengthMoments | None:
        """Lengths of the prompts, new tokens alone; None where all are equal. Lognormal where they are not observed."""
        work = self.workload
        if work.isl_cv == 0.0:
            return None
        return work.prompts or LengthMoments.lognormal(work.isl, work.isl_cv)

    @cached_property
    def expert_loads(self) -> ExpertLoads | None:
        """The loads of expert ranks; None where the tables hold all skew that is asked for, or there are no experts."""
        if self.moe is None or self.workload.expert_distribution != UNIFORM:
            return None
        shares = self.workload.expert_popularity or (1.0 / self.moe.experts,) * self.moe.experts
        return shared_loads(shares, self.moe.topk, self.workload.expert_persistence)

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
