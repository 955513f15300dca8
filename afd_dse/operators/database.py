"""The facade of the operator database: latencies of one accelerator under one framework, for blocks of shapes."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.model import LinearAttention, Mla
from afd_dse.errors import InputError, Problem
from afd_dse.operators import attention
from afd_dse.operators import linear_attention as linear
from afd_dse.operators import mla as latent
from afd_dse.operators.collectives import CollectiveFamily
from afd_dse.operators.expert_exchange import ExchangeFamily
from afd_dse.operators.gemm import EngineGemms, GemmFamily
from afd_dse.operators.latency import FloatArray, Latency, Provenance
from afd_dse.operators.moe import BALANCED, MoeFamily
from afd_dse.operators.table_schema import FRAMEWORKS
from afd_dse.resources import operator_db_root
from afd_dse.rows import distinct_rows
from afd_dse.spec.accelerator import Accelerator

# Memory-bound kernels reach this share of the HBM bandwidth and cost this much to launch inside a CUDA graph
# (3 µs outside one): the constants that aiconfigurator-core's system files give for every GPU, halved for graphs.
ELEMENTWISE_EFFICIENCY = 0.8
ELEMENTWISE_LAUNCH_S = 1.5e-6

# NOTE: TensorRT-LLM's autotuner times every GEMM library it links (cuBLASLt, CUTLASS, DeepGEMM, generated kernels) at
# start-up and takes the fastest; its published tables hold one kernel. The other frameworks call one library.
AUTOTUNED = ("trtllm",)

Values = npt.ArrayLike


def _flat(*values: Values) -> tuple[tuple[int, ...], list[FloatArray]]:
    arrays = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values))
    return arrays[0].shape, [np.ascontiguousarray(array).reshape(-1) for array in arrays]


def _shaped(latency: Latency, shape: tuple[int, ...]) -> Latency:
    return Latency(latency.seconds.reshape(shape), latency.provenance.reshape(shape))


class OperatorDatabase:
    """Latencies of operators on ``accelerator`` under ``framework``.

    ``reference`` is the catalogue's accelerator, whose rates turn the measured latencies into efficiencies;
    ``accelerator`` may override its rates. All arguments of the methods are keyword-only, scalars or arrays that
    broadcast together; results have the broadcast shape, in seconds. Tables are read when first needed.
    """

    def __init__(
        self, accelerator: Accelerator, framework: str, reference: Accelerator | None = None
    ) -> None:
        if framework not in FRAMEWORKS:
            known = ", ".join(FRAMEWORKS)
            raise InputError(Problem("framework", framework, "unknown framework", f"use one of {known}"))
        self.accelerator = accelerator
        self.framework = framework
        self.reference = reference or accelerator

    @cached_property
    def _gemm(self) -> GemmFamily:
        return GemmFamily(self.accelerator, self.framework, self.reference)

    @cached_property
    def _moe(self) -> MoeFamily:
        return MoeFamily(self.accelerator, self.framework, self.reference)

    @cached_property
    def _collectives(self) -> CollectiveFamily:
        return CollectiveFamily(self.accelerator, self.framework, self.reference)

    @cached_property
    def _exchange(self) -> ExchangeFamily:
        return ExchangeFamily(self.accelerator, self.framework, self.reference)

    def gemm(self, *, dtype: str, m: Values, n: Values, k: Values) -> Latency:
        """[m, k] x [k, n] with weights of ``dtype``, bfloat16 result."""
        shape, (m_, n_, k_) = _flat(m, n, k)
        return _shaped(self._gemm.latency(dtype, m_, n_, k_), shape)

    def layer_gemm(self, *, dtype: str, m: Values, n: Values, k: Values) -> Latency:
        """A GEMM as an engine runs it: by the kernel its autotuner picks, quantisation fused where that is possible.

        Arguments as those of :meth:`gemm`, which gives the framework's own measured row instead.
        """
        shape, columns = _flat(m, n, k)
        first, which = distinct_rows(columns)
        m_, n_, k_ = (column[first] for column in columns)
        best = self._engine_gemms.latency(dtype, m_, n_, k_)
        return _shaped(Latency(best.seconds[which], best.provenance[which]), shape)

    @cached_property
    def _engine_gemms(self) -> EngineGemms:
        if self.framework not in AUTOTUNED:
            return EngineGemms([self._gemm])
        others = (name for name in FRAMEWORKS if name != self.framework)
        return EngineGemms(
            [self._gemm, *(GemmFamily(self.accelerator, name, self.reference) for name in others)]
        )

    def moe(
        self,
        *,
        dtype: str,
        tokens: Values,
        hidden: Values,
        intermediate: Values,
        topk: Values,
        experts: Values,
        moe_tp: Values,
        ep: Values,
        distribution: str = BALANCED,
        gated: Values = True,
        local_experts: Values | None = None,
        imbalance: Values = np.nan,
    ) -> Latency:
        """Routed experts of the busiest rank: both grouped GEMMs with activation, without dispatch and combine.

        ``tokens`` are those of the whole expert group. ``distribution`` is balanced, uniform (random routing without
        favourites), power_law_1.01 or power_law_1.2 (as measured: one random draw a point). ``local_experts`` is the
        number of expert slots a rank holds, by default ceil(experts / ep); more means replicated experts.
        ``imbalance`` is the load of the busiest rank over the mean one's where it is known; by default it follows from
        the slots alone.
        """
        width = np.ceil(np.asarray(experts, dtype=np.float64) / np.asarray(ep, dtype=np.float64))
        held = width if local_experts is None else local_experts
        shape, (t, h, i, k, e, tp, ranks, local, gate, uneven) = _flat(
            tokens, hidden, intermediate, topk, experts, moe_tp, ep, held, gated, imbalance
        )
        found = self._moe.latency(dtype, t, (h, i, k, e, tp), ranks, local, distribution, gate > 0.0, uneven)
        return _shaped(found, shape)

    def elementwise(self, *, bytes_moved: Values) -> Latency:
        """Memory-bound kernel that moves ``bytes_moved`` (norm, rotary embedding, residual, activation)."""
        moved = np.asarray(bytes_moved, dtype=np.float64)
        seconds = moved / (self.accelerator.hbm_bytes_per_s * ELEMENTWISE_EFFICIENCY) + ELEMENTWISE_LAUNCH_S
        return Latency(seconds, np.full(moved.shape, Provenance.SPEED_OF_LIGHT, dtype=np.int8))

    def generation_attention(
        self,
        *,
        heads: Values,
        kv_heads: Values,
        head_dim: Values,
        window: Values,
        kv_dtype: str,
        batch: Values,
        context: Values,
    ) -> Latency:
        """Attention kernel of one decode step: ``batch`` sequences that each see ``context`` tokens; heads per GPU."""
        return attention.generation_attention(
            self,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=window,
            kv_dtype=kv_dtype,
            batch=batch,
            context=context,
        )

    def context_attention(
        self,
        *,
        heads: Values,
        kv_heads: Values,
        head_dim: Values,
        window: Values,
        attention_dtype: str,
        kv_dtype: str,
        batch: Values,
        tokens: Values,
        prefix: Values,
    ) -> Latency:
        """Attention kernel of prefill: ``tokens`` new tokens a sequence after ``prefix`` cached ones; heads per GPU."""
        return attention.context_attention(
            self,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=window,
            attention_dtype=attention_dtype,
            kv_dtype=kv_dtype,
            batch=batch,
            tokens=tokens,
            prefix=prefix,
        )

    def mla_generation(
        self,
        *,
        mla: Mla,
        hidden: int,
        heads: Values,
        gemm_dtype: str,
        kv_dtype: str,
        batch: Values,
        context: Values,
    ) -> Latency:
        """Whole latent-attention block of one decode step, projections included, all-reduce not; heads per GPU."""
        return latent.mla_generation(
            self,
            mla=mla,
            hidden=hidden,
            heads=heads,
            gemm_dtype=gemm_dtype,
            kv_dtype=kv_dtype,
            batch=batch,
            context=context,
        )

    def mla_context(
        self,
        *,
        mla: Mla,
        hidden: int,
        heads: Values,
        gemm_dtype: str,
        attention_dtype: str,
        kv_dtype: str,
        batch: Values,
        tokens: Values,
        prefix: Values,
    ) -> Latency:
        """Whole latent-attention block of prefill, projections included, all-reduce not; heads per GPU."""
        return latent.mla_context(
            self,
            mla=mla,
            hidden=hidden,
            heads=heads,
            gemm_dtype=gemm_dtype,
            attention_dtype=attention_dtype,
            kv_dtype=kv_dtype,
            batch=batch,
            tokens=tokens,
            prefix=prefix,
        )

    def linear_attention(
        self,
        *,
        spec: LinearAttention,
        hidden: int,
        value_heads: Values,
        key_heads: Values,
        phase: str,
        batch: Values,
        tokens: Values,
    ) -> Latency:
        """Convolution and recurrent (``generation``) or chunked (``context``) kernels, without projections."""
        return linear.linear_attention(
            self,
            spec=spec,
            hidden=hidden,
            value_heads=value_heads,
            key_heads=key_heads,
            phase=phase,
            batch=batch,
            tokens=tokens,
        )

    def all_reduce(self, *, message_bytes: Values, gpus: Values) -> Latency:
        """All-reduce of ``message_bytes`` over ``gpus`` GPUs of one domain; see :meth:`collective_covered`."""
        return self._collective("all_reduce", message_bytes, gpus)

    def all_gather(self, *, message_bytes: Values, gpus: Values) -> Latency:
        """All-gather to ``message_bytes`` on every one of ``gpus`` GPUs of one domain."""
        return self._collective("all_gather", message_bytes, gpus)

    def reduce_scatter(self, *, message_bytes: Values, gpus: Values) -> Latency:
        """Reduce-scatter of ``message_bytes`` held by every one of ``gpus`` GPUs of one domain."""
        return self._collective("reduce_scatter", message_bytes, gpus)

    def all_to_all(self, *, message_bytes: Values, gpus: Values) -> Latency:
        """All-to-all of ``message_bytes`` sent by every one of ``gpus`` GPUs of one domain (its own part included)."""
        return self._collective("all_to_all", message_bytes, gpus)

    def collective_covered(self, *, operation: str, gpus: Values) -> npt.NDArray[np.bool_]:
        """Whether GPU counts lie within those measured for all_reduce, all_gather, reduce_scatter or all_to_all."""
        return self._collectives.covered(operation, gpus)

    def _collective(self, operation: str, message_bytes: Values, gpus: Values) -> Latency:
        shape, (size, count) = _flat(message_bytes, gpus)
        return _shaped(self._collectives.latency(operation, size, count), shape)

    def expert_dispatch(
        self,
        *,
        tokens_per_rank: Values,
        hidden: Values,
        topk: Values,
        experts: Values,
        ep: Values,
        dtype_bytes: Values,
        low_latency: bool,
    ) -> tuple[Latency, npt.NDArray[np.bool_]]:
        """Dispatch of every rank's tokens to the experts' ranks, and whether the tables reach this ``ep``.

        ``dtype_bytes`` is what an element takes on the wire. ``low_latency`` chooses the decode kernels.
        """
        values = (tokens_per_rank, hidden, topk, experts, ep, dtype_bytes)
        return self._expert_exchange("dispatch", values, low_latency)

    def expert_combine(
        self,
        *,
        tokens_per_rank: Values,
        hidden: Values,
        topk: Values,
        experts: Values,
        ep: Values,
        dtype_bytes: Values,
        low_latency: bool,
    ) -> tuple[Latency, npt.NDArray[np.bool_]]:
        """Return of the experts' results to the tokens' ranks; arguments and results as of the dispatch."""
        values = (tokens_per_rank, hidden, topk, experts, ep, dtype_bytes)
        return self._expert_exchange("combine", values, low_latency)

    def _expert_exchange(
        self, phase: str, values: tuple[Values, ...], low_latency: bool
    ) -> tuple[Latency, npt.NDArray[np.bool_]]:
        shape, (t, h, k, e, n, b) = _flat(*values)
        found, covered = self._exchange.latency(
            phase,
            tokens=t,
            hidden=h,
            topk=k,
            experts=e,
            ep=n,
            wire_bytes=b,
            low_latency=low_latency,
        )
        return _shaped(found, shape), covered.reshape(shape)


# Databases that are in use, at most so many: each holds its tables as curves and surfaces.
_MOST_SHARED = 16
_shared: dict[tuple[str, ...], OperatorDatabase] = {}


def shared_database(
    accelerator: Accelerator, framework: str, reference: Accelerator | None = None
) -> OperatorDatabase:
    """The database of these arguments, the same one for all who ask: tables are read and prepared once a process."""
    pair = (accelerator, reference or accelerator)
    key = (str(operator_db_root()), framework, *(one.model_dump_json() for one in pair))
    if key not in _shared:
        if len(_shared) >= _MOST_SHARED:
            _shared.clear()
        _shared[key] = OperatorDatabase(accelerator, framework, reference)
    return _shared[key]
