"""Prefill and decode of a unit under load: alone, or sharing steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from afd_dse.cost.columns import CHUNKED, PHASE_FIELDS, PHASES, Candidates
from afd_dse.cost.phase import Cut, Stations, Step, StepLoad, phase_stations, run_step, stations_under
from afd_dse.cost.queueing import (
    conditional_wait,
    length_quantile,
    steps_under_load,
    wait_percentile,
    waiting_probability,
)
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.stations import expert_imbalance
from afd_dse.network.traffic import exposed_transfer_seconds
from afd_dse.operators.latency import FloatArray
from afd_dse.rows import Repeated, distinct_rows
from afd_dse.spec.cells import Partition, Phase


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prefill of a deployment's unit, columns [n].

    ``service_s`` of a request in full steps, with what it takes outside them, and ``alone_s`` in steps of its own;
    ``servers`` requests in service at once per unit, ``per_step`` of them in one step of all ranks; ``capacity``
    requests/s per unit; ``gate_s`` mean wait for the running step if it is full; ``sequences`` in flight per rank.
    """

    service_s: FloatArray
    alone_s: FloatArray
    servers: FloatArray
    per_step: FloatArray
    capacity: FloatArray
    gate_s: FloatArray
    sequences: FloatArray
    step_tokens: FloatArray
    step: Step

    @property
    def full_s(self) -> FloatArray:
        """Time in the steps of a request if they are full, seconds [n]."""
        return self.servers / self.capacity

    @property
    def outside_s(self) -> FloatArray:
        """What a request takes outside the steps, seconds [n]."""
        return self.service_s - self.full_s

    @property
    def alone_steps_s(self) -> FloatArray:
        """Time in the steps of a request that travels alone, seconds [n]."""
        return self.alone_s - self.outside_s


@dataclass(frozen=True, slots=True)
class Decode:
    """Decode of a unit, columns [n].

    Mean and worst time between steps, the mean one while prefill is at work (``beside_s``), tokens per rank, the pure
    decode step.
    """

    interval_s: FloatArray
    tail_s: FloatArray
    beside_s: FloatArray
    step_tokens: FloatArray
    step: Step


@dataclass(frozen=True, slots=True)
class Engines:
    """Both phases of a block, a row for each of the distinct ``prefill_units`` and ``decode_units``.

    ``slack`` what the load leaves of resources that a decode unit shares (negative: impossible); ``one_step``: prompts
    travel in the steps of decode, so that each waits for the running one.
    """

    prefill: Prefill
    decode: Decode
    slack: FloatArray
    prefill_units: Repeated[Candidates]
    decode_units: Repeated[Candidates]
    prefill_stations: Repeated[Stations]
    decode_stations: Repeated[Stations]
    one_step: bool = False


@dataclass(frozen=True, slots=True)
class Chunks:
    """How prompts are cut: ``per_request`` steps each; a full step holds ``sequences`` pieces of ``piece`` tokens."""

    per_request: FloatArray
    sequences: FloatArray
    piece: FloatArray
    piece_prefix: FloatArray


def cut_prompts(scenario: Scenario, room: FloatArray) -> Chunks:
    """Cut prompts for steps with ``room`` tokens per rank: whole prompts, or equal pieces where one does not fit.

    A full step is packed: pieces of several prompts share it, so ``sequences`` need not be whole.
    """
    isl = scenario.workload.isl
    space = np.maximum(room, 1.0)
    # NOTE: the tolerance keeps a room that equals the prompt length up to rounding from costing an extra step.
    per_request = np.ceil(isl / space - 1e-9)
    piece = isl / per_request
    sequences = np.maximum(space / piece, 1.0)
    return Chunks(per_request, sequences, piece, scenario.workload.prefix + (isl - piece) / 2.0)


def _load(
    decode: FloatArray, sequences: FloatArray, chunks: Chunks, prefill_tokens_per_rank: FloatArray
) -> StepLoad:
    return StepLoad(decode, sequences, chunks.piece, chunks.piece_prefix, prefill_tokens_per_rank)


def distinct_units(c: Candidates, phases: Sequence[Phase], loads: Sequence[str]) -> Repeated[Candidates]:
    """Candidates that differ in the cut of ``phases`` or in ``loads``: what ``phases`` do depends on nothing else.

    Replicas do the same.
    """
    cuts = [f"{PHASES[phase]}_{field}" for phase in phases for field in PHASE_FIELDS if field != "replicas"]
    first, which = distinct_rows([c.columns[name] for name in (*cuts, *loads)])
    return Repeated(c if len(first) == len(c) else c.take(first), which)


def imbalance_of(scenario: Scenario, stations: Stations) -> FloatArray:
    """Load of the busiest expert rank over the mean one's, [n]; 1 without experts.

    Where the measured tables hold the skew, what is known of it is that one rank may have an expert more.
    """
    cut = stations.cut
    if scenario.moe is None:
        return np.ones(len(cut.ep))
    experts = float(scenario.moe.experts)
    slots = np.where(cut.redundant > 0, 1.0, np.ceil(experts / cut.ep) * cut.ep / experts)
    found = expert_imbalance(scenario, stations.expert_tokens, cut.ep, cut.redundant, stations.expert_policy)
    return np.asarray(np.where(np.isnan(found), slots, found), dtype=np.float64)


def decode_alone(
    scenario: Scenario, partition: Partition, c: Candidates
) -> tuple[Decode, Repeated[Stations]]:
    """Decode with its GPUs to itself."""
    units = distinct_units(c, [Phase.DECODE], ["batch_size"])
    decode, stations = _decode_alone(scenario, partition, units.distinct)
    return units.rows_of(decode), Repeated(stations, units.which)


def _decode_alone(scenario: Scenario, partition: Partition, c: Candidates) -> tuple[Decode, Stations]:
    cut, load = _decode_step(c)
    stations = phase_stations(scenario, cut, Phase.DECODE, partition.splits(Phase.DECODE), load)
    step = run_step(scenario, stations)
    tokens = c.number("batch_size") * scenario.tokens_per_sequence
    return Decode(step.seconds, step.seconds, step.seconds, tokens, step), stations


def _decode_step(c: Candidates) -> tuple[Cut, StepLoad]:
    """A step of decode alone."""
    none = np.zeros(len(c))
    return Cut.of(c, Phase.DECODE), StepLoad(c.number("batch_size"), none, none, none, none)


def prefill_alone(
    scenario: Scenario, partition: Partition, c: Candidates
) -> tuple[Prefill, Repeated[Stations], Chunks]:
    """Prefill with its GPUs to itself: steps of up to ``chunk_tokens`` tokens per rank."""
    units = distinct_units(c, [Phase.PREFILL], ["chunk_tokens"])
    prefill, stations, chunks = _prefill_alone(scenario, partition, units.distinct)
    return units.rows_of(prefill), Repeated(stations, units.which), units.rows_of(chunks)


def _prefill_alone(
    scenario: Scenario, partition: Partition, c: Candidates
) -> tuple[Prefill, Stations, Chunks]:
    steps = prefill_steps(scenario, partition, c)
    full, one = run_step(scenario, steps.full), run_step(scenario, steps.one)
    prefill = prefill_of(scenario, Cut.of(c, Phase.PREFILL), steps.chunks, full, one.seconds)
    return prefill, steps.full, steps.chunks


@dataclass(frozen=True, slots=True)
class PrefillSteps:
    """Stations of prefill with its GPUs to itself: of ``full`` steps, and of those with ``one`` prompt in the unit."""

    full: Stations
    one: Stations
    chunks: Chunks


def prefill_steps(scenario: Scenario, partition: Partition, c: Candidates) -> PrefillSteps:
    """Stations of prefill steps of up to ``chunk_tokens`` tokens per rank, a row each candidate."""
    cut, split = Cut.of(c, Phase.PREFILL), partition.splits(Phase.PREFILL)
    chunks = cut_prompts(scenario, c.number("chunk_tokens"))
    none = np.zeros(len(c))
    load = _load(none, chunks.sequences, chunks, chunks.sequences * chunks.piece)
    # One prompt in the whole unit: a rank has it, and the others wait.
    single = _load(none, np.ones(len(c)), chunks, chunks.piece / cut.dp)
    full, one = stations_under(scenario, Phase.PREFILL, split, [(cut, load), (cut, single)])
    return PrefillSteps(full, one, chunks)


def prefill_of(scenario: Scenario, cut: Cut, chunks: Chunks, step: Step, alone_s: FloatArray) -> Prefill:
    """Service of a prefill engine whose full steps take ``step``, and those with one prompt ``alone_s``.

    Pipeline stages work on different chunks at once.
    """
    service = chunks.per_request * step.seconds
    request_s = scenario.overhead("request_s")[cut.attention_pool]
    per_step = cut.dp * chunks.sequences
    servers = per_step * cut.pp
    # Requests of one step start together: an arrival waits for the running step, unless it is the only server
    # (then the queueing formula already holds that wait).
    gate = 0.5 * step.seconds * (1.0 - 1.0 / per_step)
    return Prefill(
        service + request_s,
        np.minimum(chunks.per_request * alone_s, service) + request_s,
        servers,
        per_step,
        servers / service,
        gate,
        chunks.sequences,
        chunks.sequences * chunks.piece,
        step,
    )


def _under_load(prefill: Prefill, utilization: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Time in the steps of a request at ``utilization``, seconds [n], and the share of the time that a step runs."""
    return steps_under_load(
        utilization, full_s=prefill.full_s, alone_s=prefill.alone_steps_s, most=prefill.per_step
    )


def _service_and_gate(
    scenario: Scenario, prefill: Prefill, utilization: FloatArray, percentile: float, one_step: bool
) -> tuple[FloatArray, FloatArray]:
    """Service of a request and wait for the running step at ``utilization``, seconds [n] each.

    Steps are as full as the load makes them, except where prompts travel in those of decode (``one_step``). The means,
    or what ``percentile`` above 50 do not exceed: an arrival finds a running step at any point of it, and a long prompt
    takes as much longer as it is longer.
    """
    if one_step:
        return prefill.service_s, prefill.gate_s
    steps, busy = _under_load(prefill, utilization)
    gate = prefill.gate_s * steps / prefill.full_s
    if percentile <= 50.0:
        return steps + prefill.outside_s, gate * busy
    longer = length_quantile(scenario.workload.isl_cv, percentile)
    steps = steps + (longer - 1.0) * prefill.alone_steps_s
    late = np.maximum(percentile / 100.0 - 1.0 + busy, 0.0)
    # Where few arrivals find a step, the percentile lies among those that don't: the mean is the larger then.
    return steps + prefill.outside_s, np.maximum(2.0 * gate * late / np.maximum(busy, 1e-12), gate * busy)


@dataclass(frozen=True, slots=True)
class FirstToken:
    """What the first token takes, seconds [n]: ``wait_s``, ``service_s``, and with the KV transfer ``ttft_s``."""

    wait_s: FloatArray
    service_s: FloatArray
    ttft_s: FloatArray


def first_token(
    scenario: Scenario,
    prefill: Prefill,
    replicas: FloatArray,
    utilization: FloatArray,
    transfer_s: FloatArray,
    percentile: float,
    *,
    one_step: bool = False,
) -> FirstToken:
    """The first token of ``replicas`` prefill units at ``utilization``, in the mean or at ``percentile`` above 50.

    ``transfer_s`` is the hand-over of one request's KV cache; ``one_step`` as in :class:`Engines`.
    """
    workload, servers = scenario.workload, prefill.servers * replicas
    probability = waiting_probability(utilization, servers)
    per_server = servers / (prefill.capacity * replicas)
    conditional = conditional_wait(per_server, utilization, servers, workload.arrival_cv2, workload.isl_cv**2)
    service, gate = _service_and_gate(scenario, prefill, utilization, percentile, one_step)
    wait = wait_percentile(probability, conditional, percentile) + gate
    exposed = exposed_transfer_seconds(transfer_s, service, scenario.model.layers)
    return FirstToken(wait, service, wait + service + exposed)


def time_over_full_steps(prefill: Prefill, requests: FloatArray) -> FloatArray:
    """How much longer prefill works for a request in steps as full as ``requests``/s make them than in full ones."""
    utilization = np.minimum(requests / prefill.capacity, 1.0)
    _, busy = _under_load(prefill, utilization)
    return np.asarray(busy / utilization)


def separate(scenario: Scenario, partition: Partition, c: Candidates) -> Engines:
    """No group serves both phases."""
    decode_units = distinct_units(c, [Phase.DECODE], ["batch_size"])
    prefill_units = distinct_units(c, [Phase.PREFILL], ["chunk_tokens"])
    decode, decode_stations = _decode_alone(scenario, partition, decode_units.distinct)
    prefill, prefill_stations, _ = _prefill_alone(scenario, partition, prefill_units.distinct)
    return Engines(
        prefill,
        decode,
        np.ones(len(decode_units.distinct)),
        prefill_units,
        decode_units,
        Repeated.once(prefill_stations, len(prefill_units.distinct)),
        Repeated.once(decode_stations, len(decode_units.distinct)),
    )


def shared_steps(scenario: Scenario, partition: Partition, c: Candidates) -> Engines:
    """Both sides of both phases share their groups: chunked or prioritized prefill, by the policy column."""
    chunked = c.integer("policy") == CHUNKED
    if chunked.any() and not chunked.all():
        raise ValueError("one block holds one policy")
    units = distinct_units(c, [Phase.DECODE], ["batch_size", "chunk_tokens"])
    return (_chunked if chunked.all() else _prioritized)(scenario, partition, units)


def _decode_demand(scenario: Scenario, c: Candidates, cut: Cut) -> tuple[FloatArray, FloatArray]:
    """Decode sequences in one step of a pipeline stage, and requests that finish (and so must be prefilled) in it."""
    sequences = c.number("batch_size") / cut.pp
    return sequences, sequences * scenario.accepted_per_step / scenario.workload.osl


def _admission(scenario: Scenario, cut: Cut, interval: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What a request takes outside the steps, and the wait for a step that takes it: half of one and more."""
    steps = 0.5 + scenario.overhead("admission_steps")[cut.attention_pool]
    return scenario.overhead("request_s")[cut.attention_pool], steps * interval


def _chunked(scenario: Scenario, partition: Partition, units: Repeated[Candidates]) -> Engines:
    """Chunked prefill (Sarathi-Serve, arXiv 2403.02310): steps carry all decode tokens, and prefill in what is left.

    In steady state every step must bring a·ISL prefill tokens, a being the requests that finish in it; they come in
    pieces, so a share of the steps is mixed. Ranks of one unit step together: a step is mixed when any rank's is.
    """
    c, isl = units.distinct, scenario.workload.isl
    cut, batch = Cut.of(c, Phase.DECODE), c.number("batch_size")
    sequences, finished = _decode_demand(scenario, c, cut)
    room = c.number("chunk_tokens") - sequences * scenario.tokens_per_sequence
    chunks = cut_prompts(scenario, room)
    demand = finished * isl
    most = chunks.sequences * chunks.piece
    tokens = np.clip(demand, chunks.piece, np.maximum(most, chunks.piece))
    share = np.minimum(demand / tokens, 1.0)
    any_rank = 1.0 - (1.0 - share) ** cut.dp
    mixed_load = _load(batch, tokens / chunks.piece, chunks, tokens * share / any_rank)
    # Steps without prompts are the same for every chunk.
    alone = distinct_units(c, [Phase.DECODE], ["batch_size"])
    steps = [_decode_step(alone.distinct), (cut, mixed_load)]
    pure, mixed = stations_under(scenario, Phase.DECODE, partition.splits(Phase.DECODE), steps)
    pure_step, mixed_step = alone.rows_of(run_step(scenario, pure)), run_step(scenario, mixed)
    interval = any_rank * mixed_step.seconds + (1.0 - any_rank) * pure_step.seconds
    service = chunks.per_request * mixed_step.seconds
    # A rank's steps carry at most ``most`` prefill tokens: that many requests are in service at once.
    servers = cut.dp * chunks.sequences * cut.pp
    capacity = cut.dp * cut.pp * most / isl / interval
    request_s, gate = _admission(scenario, cut, interval)
    whole = service + request_s
    prefill = Prefill(whole, whole, servers, servers, capacity, gate, chunks.sequences, most, mixed_step)
    decode = Decode(
        interval,
        np.maximum(mixed_step.seconds, pure_step.seconds),
        mixed_step.seconds,
        sequences * scenario.tokens_per_sequence,
        pure_step,
    )
    slack = np.where(room >= 1.0, 1.0 - demand / most, np.minimum(room - 1.0, 0.0) / c.number("chunk_tokens"))
    once = Repeated.once(mixed, len(c))
    return Engines(prefill, decode, slack, units, units, once, Repeated(pure, alone.which), one_step=True)


def _prioritized(scenario: Scenario, partition: Partition, units: Repeated[Candidates]) -> Engines:
    """Whole prompts interrupt decode; decode goes on between them. The mean interval and its tail differ."""
    c, split = units.distinct, partition.splits(Phase.DECODE)
    cut, batch = Cut.of(c, Phase.DECODE), c.number("batch_size")
    decode, decode_stations = decode_alone(scenario, partition, c)
    chunks = cut_prompts(scenario, c.number("chunk_tokens"))
    _, finished = _decode_demand(scenario, c, cut)
    together = np.clip(finished, 1.0, chunks.sequences)
    any_rank = np.where(finished < 1.0, 1.0 - (1.0 - np.minimum(finished, 1.0)) ** cut.dp, 1.0)
    per_rank = np.where(finished < 1.0, finished / any_rank, together) * chunks.piece
    none = np.zeros(len(c))
    stations = phase_stations(scenario, cut, Phase.PREFILL, split, _load(none, together, chunks, per_rank))
    step = run_step(scenario, stations)
    rounds = np.where(finished < 1.0, any_rank, finished / together)
    service = chunks.per_request * step.seconds
    interval = decode.interval_s + rounds * service
    servers = cut.dp * together * cut.pp
    request_s, wait = _admission(scenario, cut, decode.interval_s)
    gate = wait * decode.interval_s / interval
    whole = service + request_s
    prefill = Prefill(
        whole, whole, servers, servers, servers / service, gate, together, together * chunks.piece, step
    )
    both = replace(
        decode,
        interval_s=interval,
        tail_s=decode.interval_s + service,
        beside_s=decode.interval_s + service,
        step_tokens=batch * scenario.tokens_per_sequence / cut.pp,
    )
    once = Repeated.once(stations, len(c))
    return Engines(prefill, both, np.ones(len(c)), units, units, once, decode_stations, one_step=True)
