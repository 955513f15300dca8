"""Prefill and decode of a unit under load: alone, sharing steps, or sharing GPUs of one side."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from afd_dse.cost.columns import CHUNKED, Candidates
from afd_dse.cost.phase import Cut, Stations, Step, StepLoad, phase_stations, run_step
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.cells import ATTENTION_CELL, FFN_CELL, Partition, Phase

# A station is several kernels; work of the other phase can slip in between two of them. Half a station is the
# longest kernel of attention blocks and of grouped expert GEMMs alike (two large kernels each).
KERNEL_SHARE_OF_STATION = 0.5
# Secant steps of the fixed point of interference: converged to rounding on random candidates after five.
INTERFERENCE_ITERATIONS = 6
# Requests/s at which every shared GPU is busy with prefill whenever decode arrives.
ALWAYS_BUSY = 1e12


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prefill of a deployment's unit, columns [n].

    ``service_s`` of a request, with what it takes outside the steps; ``servers`` requests in service at once per unit,
    ``capacity`` requests/s per unit; ``gate_s`` mean wait for the running step; ``sequences`` in flight per rank.
    """

    service_s: FloatArray
    servers: FloatArray
    capacity: FloatArray
    gate_s: FloatArray
    sequences: FloatArray
    step_tokens: FloatArray
    step: Step


@dataclass(frozen=True, slots=True)
class Decode:
    """Decode of a unit, columns [n]: mean and worst time between steps, sequences per rank, the pure decode step."""

    interval_s: FloatArray
    tail_s: FloatArray
    step_tokens: FloatArray
    step: Step


@dataclass(frozen=True, slots=True)
class Engines:
    """Both phases of a block; ``slack`` what the load leaves of shared resources (negative: impossible)."""

    prefill: Prefill
    decode: Decode
    slack: FloatArray
    prefill_stations: Stations
    decode_stations: Stations


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


def decode_alone(scenario: Scenario, partition: Partition, c: Candidates) -> tuple[Decode, Stations]:
    """Decode with its GPUs to itself."""
    cut, batch = Cut.of(c, Phase.DECODE), c.number("batch_size")
    none = np.zeros(len(c))
    load = StepLoad(batch, none, none, none, none)
    stations = phase_stations(scenario, cut, Phase.DECODE, partition.splits(Phase.DECODE), load)
    step = run_step(scenario, stations)
    tokens = batch * scenario.tokens_per_sequence
    return Decode(step.seconds, step.seconds, tokens, step), stations


def prefill_alone(
    scenario: Scenario, partition: Partition, c: Candidates
) -> tuple[Prefill, Stations, Chunks]:
    """Prefill with its GPUs to itself: steps of up to ``chunk_tokens`` tokens per rank."""
    cut = Cut.of(c, Phase.PREFILL)
    chunks = cut_prompts(scenario, c.number("chunk_tokens"))
    none = np.zeros(len(c))
    load = _load(none, chunks.sequences, chunks, chunks.sequences * chunks.piece)
    stations = phase_stations(scenario, cut, Phase.PREFILL, partition.splits(Phase.PREFILL), load)
    return _prefill(scenario, cut, chunks, run_step(scenario, stations)), stations, chunks


def _prefill(scenario: Scenario, cut: Cut, chunks: Chunks, step: Step) -> Prefill:
    """Service of a prefill engine whose steps take ``step``; pipeline stages work on different chunks at once."""
    service = chunks.per_request * step.seconds
    servers = cut.dp * chunks.sequences * cut.pp
    # Requests of one step start together: an arrival waits for the running step, unless it is the only server
    # (then the queueing formula already holds that wait).
    gate = 0.5 * step.seconds * (1.0 - 1.0 / (cut.dp * chunks.sequences))
    return Prefill(
        service + scenario.overhead("request_s")[cut.attention_pool],
        servers,
        servers / service,
        gate,
        chunks.sequences,
        chunks.sequences * chunks.piece,
        step,
    )


def separate(scenario: Scenario, partition: Partition, c: Candidates) -> Engines:
    """No group serves both phases."""
    decode, decode_stations = decode_alone(scenario, partition, c)
    prefill, prefill_stations, _ = prefill_alone(scenario, partition, c)
    return Engines(prefill, decode, np.ones(len(c)), prefill_stations, decode_stations)


def shared_steps(scenario: Scenario, partition: Partition, c: Candidates) -> Engines:
    """Both sides of both phases share their groups: chunked or prioritized prefill, by the policy column."""
    chunked = c.integer("policy") == CHUNKED
    if chunked.all():
        return _chunked(scenario, partition, c)
    if not chunked.any():
        return _prioritized(scenario, partition, c)
    raise ValueError("one block holds one policy")


def _decode_demand(scenario: Scenario, c: Candidates, cut: Cut) -> tuple[FloatArray, FloatArray]:
    """Decode sequences in one step of a pipeline stage, and requests that finish (and so must be prefilled) in it."""
    sequences = c.number("batch_size") / cut.pp
    return sequences, sequences * scenario.accepted_per_step / scenario.workload.osl


def _admission(scenario: Scenario, cut: Cut, interval: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What a request takes outside the steps, and the wait for a step that takes it: half of one and more."""
    steps = 0.5 + scenario.overhead("admission_steps")[cut.attention_pool]
    return scenario.overhead("request_s")[cut.attention_pool], steps * interval


def _chunked(scenario: Scenario, partition: Partition, c: Candidates) -> Engines:
    """Chunked prefill (Sarathi-Serve, arXiv 2403.02310): steps carry all decode tokens, and prefill in what is left.

    In steady state every step must bring a·ISL prefill tokens, a being the requests that finish in it; they come in
    pieces, so a share of the steps is mixed. Ranks of one unit step together: a step is mixed when any rank's is.
    """
    cut, batch, isl = Cut.of(c, Phase.DECODE), c.number("batch_size"), scenario.workload.isl
    split = partition.splits(Phase.DECODE)
    sequences, finished = _decode_demand(scenario, c, cut)
    room = c.number("chunk_tokens") - sequences * scenario.tokens_per_sequence
    chunks = cut_prompts(scenario, room)
    demand = finished * isl
    most = chunks.sequences * chunks.piece
    tokens = np.clip(demand, chunks.piece, np.maximum(most, chunks.piece))
    share = np.minimum(demand / tokens, 1.0)
    any_rank = 1.0 - (1.0 - share) ** cut.dp
    none = np.zeros(len(c))
    pure = phase_stations(scenario, cut, Phase.DECODE, split, StepLoad(batch, none, none, none, none))
    mixed_load = _load(batch, tokens / chunks.piece, chunks, tokens * share / any_rank)
    mixed = phase_stations(scenario, cut, Phase.DECODE, split, mixed_load)
    pure_step, mixed_step = run_step(scenario, pure), run_step(scenario, mixed)
    interval = any_rank * mixed_step.seconds + (1.0 - any_rank) * pure_step.seconds
    service = chunks.per_request * mixed_step.seconds
    # A rank's steps carry at most ``most`` prefill tokens: that many requests are in service at once.
    servers = cut.dp * chunks.sequences * cut.pp
    capacity = cut.dp * cut.pp * most / isl / interval
    request_s, gate = _admission(scenario, cut, interval)
    prefill = Prefill(service + request_s, servers, capacity, gate, chunks.sequences, most, mixed_step)
    decode = Decode(
        interval,
        np.maximum(mixed_step.seconds, pure_step.seconds),
        sequences * scenario.tokens_per_sequence,
        pure_step,
    )
    slack = np.where(room >= 1.0, 1.0 - demand / most, np.minimum(room - 1.0, 0.0) / c.number("chunk_tokens"))
    return Engines(prefill, decode, slack, mixed, pure)


def _prioritized(scenario: Scenario, partition: Partition, c: Candidates) -> Engines:
    """Whole prompts interrupt decode; decode goes on between them. The mean interval and its tail differ."""
    cut, batch = Cut.of(c, Phase.DECODE), c.number("batch_size")
    split = partition.splits(Phase.DECODE)
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
    prefill = Prefill(
        service + request_s, servers, servers / service, gate, together, together * chunks.piece, step
    )
    both = Decode(
        interval, decode.interval_s + service, batch * scenario.tokens_per_sequence / cut.pp, decode.step
    )
    return Engines(prefill, both, np.ones(len(c)), stations, decode_stations)


def shared_side(scenario: Scenario, partition: Partition, c: Candidates) -> Engines:
    """Some group serves cells of both phases, but not whole steps of both: decode has priority at kernel boundaries.

    A decode micro-batch waits for the rest of the prefill kernel that runs when it arrives (utilisation × half a
    kernel); prefill gets the time that decode leaves. The rate follows from the decode step, and the prefill
    utilisation from the rate: a fixed point.
    """
    decode, decode_stations = decode_alone(scenario, partition, c)
    prefill, prefill_stations, chunks = prefill_alone(scenario, partition, c)
    cuts = {phase: Cut.of(c, phase) for phase in Phase}
    batch = c.number("batch_size") * cuts[Phase.DECODE].dp
    per_request = chunks.per_request / (chunks.sequences * cuts[Phase.PREFILL].dp)
    busy = {
        Phase.PREFILL: (prefill.step.attention_s * per_request, prefill.step.ffn_s * per_request),
        Phase.DECODE: (decode.step.attention_s, decode.step.ffn_s),
    }
    kernel = (
        _kernel_seconds(scenario, prefill_stations.attention.seconds),
        _kernel_seconds(scenario, prefill_stations.ffn.seconds),
    )
    cells = (ATTENTION_CELL, FFN_CELL)

    def shared_by(phase: Phase, side: int, other_side: int) -> bool:
        other = Phase(1 - phase)
        return partition.group_of[cells[side][phase]] == partition.group_of[cells[other_side][other]]

    def rate(step_seconds: FloatArray) -> FloatArray:
        result: FloatArray = batch * scenario.accepted_per_step / (scenario.workload.osl * step_seconds)
        return result

    def waits(requests: FloatArray, side: int) -> FloatArray:
        total = np.zeros(len(c))
        for other in (0, 1):
            if shared_by(Phase.DECODE, side, other):
                total = total + np.minimum(requests * busy[Phase.PREFILL][other], 1.0) * kernel[other] / 2.0
        return total

    def decode_step(requests: FloatArray) -> Step:
        return run_step(
            scenario, decode_stations, attention_wait_s=waits(requests, 0), ffn_wait_s=waits(requests, 1)
        )

    requests = _balanced_rate(rate(decode.step.seconds), lambda r: rate(decode_step(r).seconds))
    step = decode_step(requests)

    slack, stretch = np.ones(len(c)), []
    for side in (0, 1):
        used = np.zeros(len(c))
        for other in (0, 1):
            if shared_by(Phase.PREFILL, side, other):
                used = used + busy[Phase.DECODE][other] / step.seconds
        own = np.zeros(len(c))
        for same in (0, 1):
            if (
                partition.group_of[cells[same][Phase.PREFILL]]
                == partition.group_of[cells[side][Phase.PREFILL]]
            ):
                own = own + requests * busy[Phase.PREFILL][same]
        slack = np.minimum(slack, np.where(used > 0, 1.0 - used - own, 1.0))
        stretch.append(1.0 / np.maximum(1.0 - used, 1e-3))
    slowed = run_step(scenario, prefill_stations, attention_stretch=stretch[0], ffn_stretch=stretch[1])
    tail = decode_step(np.full(len(c), ALWAYS_BUSY)).seconds
    return Engines(
        _prefill(scenario, cuts[Phase.PREFILL], chunks, slowed),
        Decode(step.seconds, tail, decode.step_tokens, step),
        slack,
        prefill_stations,
        decode_stations,
    )


def _balanced_rate(start: FloatArray, response: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Solve rate = response(rate) for a response that falls with the rate, but not faster than 1/rate, [n].

    Secant steps on f(x) = log response(e^x) − x, whose slope lies in [−2, −1]: safe without a bracket.
    """
    x = np.log(start)
    f = np.log(response(start)) - x
    slope = np.full(len(x), -1.5)
    for _ in range(INTERFERENCE_ITERATIONS):
        step = -f / slope
        x_next = x + step
        f_next = np.log(response(np.exp(x_next))) - x_next
        moved = np.abs(step) > 1e-13
        slope = np.where(moved, np.clip((f_next - f) / np.where(moved, step, 1.0), -2.0, -1.0), slope)
        x, f = x_next, f_next
    result: FloatArray = np.exp(x - f / slope)
    return result


def _kernel_seconds(scenario: Scenario, station: FloatArray) -> FloatArray:
    """Length of a kernel that an arrival finds running, seconds [n]: longer kernels are found more often."""
    layers = scenario.layer_counts
    result: FloatArray = KERNEL_SHARE_OF_STATION * (station**2 @ layers) / np.maximum(station @ layers, 1e-30)
    return result
