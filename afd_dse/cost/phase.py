"""One step of one unit: the stations of attention, links and FFN, and the time a step takes on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from afd_dse.cost.barrier import attention_with_barrier
from afd_dse.cost.columns import PHASES, Candidates
from afd_dse.cost.expert_barrier import HISTORY, copies_experts
from afd_dse.cost.expert_copies import Copying, ExpertSide, with_copies
from afd_dse.cost.links import ExchangeShape, TransferShape, exchange, pack, transfer
from afd_dse.cost.pipeline import busy_time, step_time
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.station import StationTime
from afd_dse.cost.stations import (
    ACTIVATION_BYTES,
    AttentionShape,
    FfnShape,
    ffn_station,
    head_seconds,
)
from afd_dse.network.tiers import LINK_EFFICIENCY
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import join_rows, take_rows
from afd_dse.spec.cells import Phase

# Rows up to which one call costs less than several: it costs as much as so many rows.
ROWS_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one attention rank brings to a step, columns [n], over all micro-batches.

    ``decode_sequences`` each bring one token (and drafts). ``prefill_sequences`` pieces of ``piece`` tokens on top of
    ``piece_prefix`` cached ones. ``ffn_prefill_tokens`` prefill tokens per rank averaged over the ranks of the unit
    (not every rank has prefill in every step).
    """

    decode_sequences: FloatArray
    prefill_sequences: FloatArray
    piece: FloatArray
    piece_prefix: FloatArray
    ffn_prefill_tokens: FloatArray


@dataclass(frozen=True, slots=True)
class Cut:
    """How a phase is cut, columns [n]: the phase's columns of the candidates under short names."""

    attention_pool: IntArray
    ffn_pool: IntArray
    tp: IntArray
    dp: IntArray
    cp: IntArray
    pp: IntArray
    moe_tp: IntArray
    ep: IntArray
    redundant: IntArray
    micro_batches: IntArray
    replicas: IntArray
    expert_policy: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))

    @classmethod
    def of(cls, candidates: Candidates, phase: Phase) -> "Cut":
        """The cut of ``phase``."""
        return cls(*(candidates.integer(f"{PHASES[phase]}_{name}") for name in cls.__slots__))

    @property
    def attention_gpus(self) -> IntArray:
        """GPUs of the attention side of one unit."""
        return self.tp * self.dp * self.cp * self.pp

    @property
    def ffn_gpus(self) -> IntArray:
        """GPUs of the FFN side of one unit, per pipeline stage."""
        return self.moe_tp * self.ep

    def token_holders(self, phase: Phase) -> IntArray:
        """Ranks that hold distinct tokens: context parallelism spreads the tokens of prefill, not those of decode."""
        return self.dp * self.cp if phase == Phase.PREFILL else self.dp


@dataclass(frozen=True, slots=True)
class Stations:
    """Station times of one micro-batch, seconds [n, kinds] each, and what surrounds the layers [n].

    Attention and FFN in one group take turns on the same GPUs: they are one station then (``split`` False).
    ``expert_tokens`` tokens of the FFN, ``expert_policy`` what is left of the policy where copies are not worth it,
    ``exposed_copy_s`` time a layer that copying experts adds to the FFN.
    """

    split: bool
    attention: StationTime
    ffn: StationTime
    to_ffn: StationTime
    to_attention: StationTime
    head_s: FloatArray
    overhead_s: FloatArray
    hop_s: FloatArray
    draft_passes: float
    cut: Cut
    expert_tokens: FloatArray
    expert_policy: IntArray
    exposed_copy_s: FloatArray


@dataclass(frozen=True, slots=True)
class Step:
    """Time of one step, seconds [n], and what it is made of; ``split``: attention and FFN on different GPUs.

    ``by_provenance`` gives the seconds of all stations' work by :class:`Provenance` for some rows [r], [r, 4].
    """

    split: bool
    seconds: FloatArray
    attention_s: FloatArray
    ffn_s: FloatArray
    link_s: FloatArray
    outside_s: FloatArray
    by_provenance: Callable[[IntArray], FloatArray]

    def take(self, rows: IntArray) -> "Step":
        """The steps at ``rows``."""
        return replace(
            self,
            seconds=self.seconds[rows],
            attention_s=self.attention_s[rows],
            ffn_s=self.ffn_s[rows],
            link_s=self.link_s[rows],
            outside_s=self.outside_s[rows],
            by_provenance=lambda some: self.by_provenance(rows[some]),
        )

    @property
    def bubble_s(self) -> FloatArray:
        """Time inside the layers in which the busiest GPUs wait, for the other side or for links that nothing hides."""
        busiest = np.maximum(self.attention_s, self.ffn_s) if self.split else self.attention_s + self.ffn_s
        result: FloatArray = np.maximum(self.seconds - self.outside_s - busiest, 0.0)
        return result


@dataclass(frozen=True, slots=True)
class _Flow:
    """Tokens of a micro-batch of the whole unit, columns [n].

    ``holders`` ranks have distinct ones; ``low_latency`` 1 in decode, ``prompts`` 1 where a step carries some.
    """

    tokens: FloatArray
    holders: IntArray
    low_latency: FloatArray
    prompts: FloatArray

    @classmethod
    def of(cls, cut: Cut, phase: Phase, load: StepLoad, tokens: FloatArray) -> "_Flow":
        """``tokens`` of a step of ``phase`` with ``load``."""
        return cls(
            tokens,
            cut.token_holders(phase),
            np.full(len(tokens), float(phase == Phase.DECODE)),
            (load.prefill_sequences > 0.0).astype(np.float64),
        )


def phase_stations(scenario: Scenario, cut: Cut, phase: Phase, split: bool, load: StepLoad) -> Stations:
    """Look up the stations of one micro-batch of a step with ``load``."""
    parts = (cut.micro_batches * cut.pp).astype(np.float64)
    tokens_per_sequence = float(scenario.tokens_per_sequence)
    decode = load.decode_sequences / parts
    # Fewer sequences than micro-batches: a sequence is cut along its tokens instead (pieces in pipeline order).
    prefill_sequences = np.where(
        load.prefill_sequences > 0, np.maximum(load.prefill_sequences / cut.micro_batches, 1.0), 0.0
    )
    shrink = np.where(
        load.prefill_sequences > 0,
        load.prefill_sequences / cut.micro_batches / np.maximum(prefill_sequences, 1e-12),
        1.0,
    )
    piece = load.piece * shrink
    shape = AttentionShape(
        pool=cut.attention_pool,
        tp=cut.tp,
        cp=cut.cp,
        decode_sequences=decode,
        decode_tokens=decode * tokens_per_sequence,
        prefill_sequences=prefill_sequences,
        piece=piece,
        piece_prefix=load.piece_prefix + (load.piece - piece) / 2.0,
    )
    prefilling = None if scenario.prompt_lengths is None else _ranks_with_prompts(cut, load)
    attention = attention_with_barrier(scenario, shape, cut.dp, prefilling)
    tokens = cut.dp * (decode * tokens_per_sequence + load.ffn_prefill_tokens / cut.micro_batches)
    flow = _Flow.of(cut, phase, load, tokens)
    if split:
        attention = attention.plus(pack(scenario, _transfer_shape(scenario, cut, flow)))
    experts, exposed, policy = _experts(scenario, cut, split, flow, attention)
    sequences = load.decode_sequences * tokens_per_sequence / cut.pp + load.prefill_sequences
    head = head_seconds(scenario, pool=cut.attention_pool, tp=cut.tp, sequences=sequences)
    overhead = scenario.overhead("step_s")[cut.attention_pool] + scenario.overhead("sequence_s")[
        cut.attention_pool
    ] * (load.decode_sequences + load.prefill_sequences)
    hop = np.where(cut.pp > 1, _stage_hop(scenario, cut, tokens), 0.0)
    # The draft module runs once per draft token in decode; in prefill it reads the prompt once.
    passes = float(min(scenario.draft_tokens, 1) if phase == Phase.PREFILL else scenario.draft_tokens)
    return Stations(
        split,
        attention,
        experts.ffn,
        experts.to_ffn,
        experts.to_attention,
        head,
        overhead,
        hop,
        passes,
        cut,
        tokens,
        policy,
        exposed,
    )


def stations_under(
    scenario: Scenario, phase: Phase, split: bool, steps: Sequence[tuple[Cut, StepLoad]]
) -> list[Stations]:
    """:func:`phase_stations` of each of several ``steps``, which are looked up at once where they are few rows.

    A single row is looked up by itself, so that its operators are kept.
    """
    rows = [len(cut.tp) for cut, _ in steps]
    if max(rows) == 1 or sum(rows) > ROWS_AT_ONCE:
        return [phase_stations(scenario, cut, phase, split, load) for cut, load in steps]
    cuts, loads = zip(*steps, strict=True)
    stations = phase_stations(scenario, join_rows(cuts), phase, split, join_rows(loads))
    parts = np.split(np.arange(sum(rows)), np.cumsum(rows)[:-1])
    return [take_rows(stations, part) for part in parts]


def _ranks_with_prompts(cut: Cut, load: StepLoad) -> FloatArray:
    """Attention ranks that work on prompts in the same step, [n]: not every rank has some in every step."""
    own = load.prefill_sequences * load.piece
    share = np.where(own > 0, load.ffn_prefill_tokens / np.where(own > 0, own, 1.0), 0.0)
    return np.asarray(np.clip(cut.dp * share, 1.0, cut.dp), dtype=np.float64)


def _expert_side(scenario: Scenario, cut: Cut, split: bool, flow: _Flow) -> ExpertSide:
    """FFN and the ways to it and back."""
    tokens, holders, gpus = flow.tokens, flow.holders, cut.ffn_gpus
    alone = (holders == 1) & (not split)
    shard = cut.moe_tp if split else gpus // holders
    shape = FfnShape(
        pool=cut.ffn_pool,
        moe_tp=cut.moe_tp,
        ep=cut.ep,
        redundant=cut.redundant,
        expert_policy=cut.expert_policy,
        tokens=tokens,
        shard_tokens=tokens / (cut.ep if split else holders),
        shard=shard,
        dense_reduce=np.ones_like(gpus) if split else shard,
        moe_reduce=np.where(alone, gpus, 1),
    )
    return ExpertSide(ffn_station(scenario, shape), *_links(scenario, cut, split, flow))


def _experts(
    scenario: Scenario, cut: Cut, split: bool, flow: _Flow, attention: StationTime
) -> tuple[ExpertSide, FloatArray, IntArray]:
    """FFN and links with the copies of experts that the policy makes, their exposed time a layer [n].

    And the policy that is left of it [n]: copies that gain nothing are not made.
    """
    side = _expert_side(scenario, cut, split, flow)
    copies = copies_experts(cut.expert_policy) & (cut.redundant > 0)
    if not copies.any():
        return side, np.zeros(len(copies)), cut.expert_policy
    fallback = np.where(copies, HISTORY, cut.expert_policy)
    copying = Copying(
        pool=cut.ffn_pool,
        ffn_gpus=cut.ffn_gpus,
        moe_tp=cut.moe_tp,
        slots=np.where(copies, cut.redundant / cut.ep, 0.0),
        policy=cut.expert_policy,
        micro_batches=cut.micro_batches.astype(np.float64),
        split=split,
    )
    otherwise = _expert_side(scenario, replace(cut, expert_policy=fallback), split, flow)
    chosen, exposed, made = with_copies(scenario, copying, attention.seconds, side, otherwise)
    return chosen, exposed.max(axis=1), np.where(made.any(axis=1), cut.expert_policy, fallback)


def _links(scenario: Scenario, cut: Cut, split: bool, flow: _Flow) -> tuple[StationTime, StationTime]:
    """The way to the FFN and the way back; zero where tokens need not move."""
    if split:
        return transfer(scenario, _transfer_shape(scenario, cut, flow))
    across = cut.ffn_gpus > scenario.tiers.domain_gpus[cut.ffn_pool]
    return exchange(
        scenario,
        ExchangeShape(
            pool=cut.ffn_pool,
            ep=cut.ep,
            moe_tp=cut.moe_tp,
            tokens_per_gpu=flow.tokens / cut.ffn_gpus,
            # Low-latency kernels send a copy across domains for each expert's GPU, and have buffers for a batch of
            # decode alone: steps with prompts that cross domains take the others, as engines do.
            low_latency=flow.low_latency * np.where(across, 1.0 - flow.prompts, 1.0),
            moving=(flow.holders > 1).astype(np.float64),
            imbalance=_lasting_imbalance(scenario, cut),
        ),
    )


def _lasting_imbalance(scenario: Scenario, cut: Cut) -> FloatArray:
    """Busiest over mean expert rank by popularity, [n]; the exchange kernels were measured with chance in them."""
    loads = scenario.expert_loads
    if loads is None:
        return np.ones(len(cut.ep))
    return loads.lasting(cut.ep, cut.redundant, cut.expert_policy)


def _transfer_shape(scenario: Scenario, cut: Cut, flow: _Flow) -> TransferShape:
    return TransferShape(
        pool=cut.attention_pool,
        ffn_pool=cut.ffn_pool,
        attention_gpus=cut.attention_gpus,
        ep=cut.ep,
        moe_tp=cut.moe_tp,
        tokens=flow.tokens,
        low_latency=flow.low_latency,
        imbalance=_lasting_imbalance(scenario, cut),
    )


def _stage_hop(scenario: Scenario, cut: Cut, tokens: FloatArray) -> FloatArray:
    """Hand-over between pipeline stages, seconds [n] for all hops of a step: point to point over scale-out at worst."""
    tiers, pool = scenario.tiers, cut.attention_pool
    inside = cut.attention_gpus <= tiers.domain_gpus[pool]
    bandwidth = np.where(inside, tiers.scale_up_bytes_per_s[pool], tiers.scale_out_bytes_per_s[pool])
    latency = np.where(inside, tiers.scale_up_latency_s[pool], tiers.scale_out_latency_s[pool])
    per_gpu = tokens / (cut.dp * cut.cp) * scenario.model.hidden * ACTIVATION_BYTES / cut.tp
    result: FloatArray = (cut.pp - 1) * (per_gpu / (bandwidth * LINK_EFFICIENCY) + latency)
    return result


def run_step(
    scenario: Scenario,
    stations: Stations,
    *,
    attention_stretch: FloatArray | float = 1.0,
    ffn_stretch: FloatArray | float = 1.0,
    attention_wait_s: FloatArray | float = 0.0,
    ffn_wait_s: FloatArray | float = 0.0,
) -> Step:
    """Time of one step on ``stations``.

    Where another phase uses the same GPUs, a station takes ``stretch`` times as long (it gets a share of the GPU), or a
    micro-batch waits ``wait_s`` a layer before it is served.
    """
    layers, m = scenario.layer_counts, stations.cut.micro_batches.astype(np.float64)
    column = _as_column
    attention = stations.attention.seconds * column(attention_stretch) + column(attention_wait_s)
    ffn = stations.ffn.seconds * column(ffn_stretch) + column(ffn_wait_s)
    to_ffn, to_attention = stations.to_ffn.seconds, stations.to_attention.seconds
    together = [attention + ffn, to_ffn + to_attention]
    parts = [attention, to_ffn, ffn, to_attention] if stations.split else together
    pipeline = step_time(parts, layers, m)
    draft_s = stations.draft_passes * (sum(part[:, -1] for part in parts) + stations.head_s)
    outside = stations.head_s + stations.overhead_s + stations.hop_s + draft_s
    everything = (stations.attention, stations.ffn, stations.to_ffn, stations.to_attention)

    def by_provenance(rows: IntArray) -> FloatArray:
        return np.asarray(sum(part.trust(layers, rows) for part in everything) * m[rows, None])

    return Step(
        split=stations.split,
        seconds=pipeline + outside,
        attention_s=busy_time(attention, layers, m),
        ffn_s=busy_time(ffn, layers, m),
        link_s=busy_time(to_ffn + to_attention, layers, m),
        outside_s=np.asarray(outside, dtype=np.float64),
        by_provenance=by_provenance,
    )


def _as_column(value: FloatArray | float) -> FloatArray:
    """A per-row factor [n] or scalar, shaped to apply to [n, kinds]."""
    array = np.asarray(value, dtype=np.float64)
    return array[:, None] if array.ndim else array
