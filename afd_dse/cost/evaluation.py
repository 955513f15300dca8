"""What the evaluator says of candidates: latency, throughput, memory and slacks; on demand where the time goes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray

# What can make a candidate infeasible; the order is the order of the slack columns.
CONSTRAINTS = (
    "memory",
    "gpus",
    "prefill capacity",
    "shared capacity",
    "KV transfer",
    "TTFT",
    "TPOT",
    "request latency",
    "demand",
)
# What candidates are judged by, and what of their time few ask for.
JUDGED = (
    "ttft_s",
    "ttft_percentile_s",
    "tpot_s",
    "latency_s",
    "requests_per_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "tokens_per_s_per_user",
    "concurrency",
    "gpus",
    "usd_per_mtok",
    "prefill_utilization",
)
EXPLAINED = (
    "itl_tail_s",
    "joules_per_token",
    "wait_s",
    "prefill_service_s",
    "prefill_full_service_s",
    "kv_transfer_s",
    "kv_link_busy",
    "decode_step_s",
    "decode_attention_s",
    "decode_ffn_s",
    "decode_link_s",
    "decode_bubble_s",
    "decode_outside_s",
    "decode_expert_imbalance",
    "decode_exposed_copy_s",
    "prefill_step_s",
    "prefill_attention_s",
    "prefill_ffn_s",
    "prefill_link_s",
    "prefill_bubble_s",
)
METRICS = (*JUDGED, *EXPLAINED)

Rows = IntArray | npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of candidates goes, columns [n].

    ``metrics`` those of :data:`EXPLAINED` (SI); ``provenance`` share of GPU time by :class:`Provenance` [n, 4].
    """

    metrics: dict[str, FloatArray]
    provenance: FloatArray

    def take(self, rows: IntArray) -> "Breakdown":
        """The breakdown of the candidates at ``rows``."""
        return Breakdown({name: column[rows] for name, column in self.metrics.items()}, self.provenance[rows])


# The breakdown of some rows of a block.
Explain = Callable[[IntArray], Breakdown]


class Metrics(Mapping[str, FloatArray]):
    """Columns [n] by the names of :data:`METRICS`; those of the breakdown are computed when one is first asked for."""

    def __init__(self, judged: Mapping[str, FloatArray], explained: Callable[[], Mapping[str, FloatArray]]):
        self._judged, self._explained = judged, explained

    def __getitem__(self, name: str) -> FloatArray:
        return self._judged[name] if name in self._judged else self._explained()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(METRICS)

    def __len__(self) -> int:
        return len(METRICS)


@dataclass(frozen=True)
class Evaluation:
    """Columns over candidates: metrics (SI), slacks [n, constraints], memory; provenance when asked for.

    ``judged`` the metrics of :data:`JUDGED`, ``explain`` gives the others of some rows. ``slack`` is relative to the
    limit (negative: violated); ``memory`` bytes per GPU [n, groups, terms] and ``memory_budget`` [n, groups] of as many
    groups as some candidate of the block has (zero for those that one lacks); ``gpus_by_pool`` [n, pools].
    """

    judged: dict[str, FloatArray]
    slack: FloatArray
    memory: FloatArray
    memory_budget: FloatArray
    gpus_by_pool: FloatArray
    explain: Explain

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time of every candidate goes."""
        return self.explain(np.arange(len(self.slack)))

    @property
    def metrics(self) -> Metrics:
        """All metrics."""
        return Metrics(self.judged, lambda: self.breakdown.metrics)

    @property
    def provenance(self) -> FloatArray:
        """Share of GPU time by provenance, [n, 4]."""
        return self.breakdown.provenance

    @property
    def feasible(self) -> npt.NDArray[np.bool_]:
        """Whether every constraint holds [n]."""
        return np.asarray((self.slack >= 0.0).all(axis=1))

    @property
    def worst(self) -> IntArray:
        """Index into :data:`CONSTRAINTS` of the constraint with the least slack [n]."""
        return np.asarray(self.slack.argmin(axis=1), dtype=np.int64)

    def take(self, rows: Rows) -> "Evaluation":
        """The candidates at ``rows``, and nothing that would keep the whole block in memory."""
        at = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.int64, copy=False)
        return Evaluation(
            {name: column[at] for name, column in self.judged.items()},
            self.slack[at],
            self.memory[at],
            self.memory_budget[at],
            self.gpus_by_pool[at],
            self.explain(at).take,
        )

    @staticmethod
    def concatenate(parts: "Sequence[Evaluation]") -> "Evaluation":
        """One evaluation after the other."""
        groups = max(part.memory.shape[1] for part in parts)
        breakdown = Breakdown(
            {name: np.concatenate([part.breakdown.metrics[name] for part in parts]) for name in EXPLAINED},
            np.concatenate([part.provenance for part in parts]),
        )
        return Evaluation(
            {name: np.concatenate([part.judged[name] for part in parts]) for name in JUDGED},
            np.concatenate([part.slack for part in parts]),
            np.concatenate([_of_groups(part.memory, groups) for part in parts]),
            np.concatenate([_of_groups(part.memory_budget, groups) for part in parts]),
            np.concatenate([part.gpus_by_pool for part in parts]),
            breakdown.take,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets the breakdown itself, not what computes it."""
        columns = (self.judged, self.slack, self.memory, self.memory_budget, self.gpus_by_pool)
        return Evaluation, (*columns, self.breakdown.take)


def _of_groups(columns: FloatArray, groups: int) -> FloatArray:
    """``columns`` [n, fewer groups, …] with zeros for the groups that are lacking."""
    lacking = [(0, 0)] * columns.ndim
    lacking[1] = (0, groups - columns.shape[1])
    return np.pad(columns, lacking)
