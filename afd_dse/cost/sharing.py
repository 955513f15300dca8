"""Prefill and decode of a unit whose phases share GPUs but not steps: decode first, or both at once tile by tile."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from afd_dse.cost.columns import TILE_SHARED, Candidates
from afd_dse.cost.engines import (
    Decode,
    Engines,
    decode_alone,
    distinct_units,
    prefill_alone,
    prefill_of,
    time_over_full_steps,
)
from afd_dse.cost.phase import Cut, Stations, Step, run_step
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.tile_sharing import SHARING_OVERHEAD, ffn_bounds, slowdown, tile_wait_s
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.cells import ATTENTION_CELL, FFN_CELL, Partition, Phase

# A station is several kernels; work of the other phase can slip in between two of them. Half a station is the
# longest kernel of attention blocks and of grouped expert GEMMs alike (two large kernels each).
KERNEL_SHARE_OF_STATION = 0.5
# Secant steps of the fixed point of interference: converged to rounding on random candidates after five.
INTERFERENCE_ITERATIONS = 6
CONVERGED = 1e-13
# Requests/s at which every shared GPU is busy with prefill whenever decode arrives.
ALWAYS_BUSY = 1e12


_CELLS = (ATTENTION_CELL, FFN_CELL)
_SIDES = (0, 1)


@dataclass(frozen=True, slots=True)
class _Work:
    """One phase alone, by side (attention, FFN), columns [n].

    ``busy`` seconds that its GPUs work, a step of decode or a request of prefill; ``slow`` how much longer a kernel
    takes while the other phase runs beside it, None where they take turns.
    """

    busy: tuple[FloatArray, FloatArray]
    slow: tuple[FloatArray, FloatArray] | None


def shared_side(scenario: Scenario, partition: Partition, c: Candidates) -> Engines:
    """Some group serves cells of both phases, which do not share steps; by the policy column."""
    units = distinct_units(c, list(Phase), ["batch_size", "chunk_tokens", "decode_share"])
    return units.rows_of(_shared_side(scenario, partition, units.distinct))


def _shared_side(scenario: Scenario, partition: Partition, c: Candidates) -> Engines:
    """As :func:`shared_side`, every unit once.

    With ``tile_shared`` decode runs on its share of the SMs while prefill has work, after waiting for a tile of it,
    and prefill on the rest while decode has (ExpertPlex, arXiv 2607.18002). Otherwise decode has priority at kernel
    boundaries: a micro-batch waits for the rest of the prefill kernel that it finds, and prefill gets the time that
    decode leaves. The rate follows from the decode step, and the prefill utilisation from the rate: a fixed point.
    """
    decode, decoding = decode_alone(scenario, partition, c)
    prefill, prefilling, chunks = prefill_alone(scenario, partition, c)
    decode_stations, prefill_stations = decoding.rows, prefilling.rows
    cuts = {phase: Cut.of(c, phase) for phase in Phase}
    batch = c.number("batch_size") * cuts[Phase.DECODE].dp
    prompts = chunks.sequences * cuts[Phase.PREFILL].dp * cuts[Phase.PREFILL].pp
    tiles = _tiles(c)
    slow = _slowdowns(scenario, c, cuts, decode, prefill.step_tokens) if tiles else None
    per_request = chunks.per_request / prompts
    work = {
        Phase.PREFILL: _Work(
            (prefill.step.attention_s * per_request, prefill.step.ffn_s * per_request),
            slow[Phase.PREFILL] if slow else None,
        ),
        Phase.DECODE: _Work(
            (decode.step.attention_s, decode.step.ffn_s), slow[Phase.DECODE] if slow else None
        ),
    }
    waits = _waits(scenario, cuts[Phase.DECODE], prefill_stations, tiles)

    def rate(step_seconds: FloatArray) -> FloatArray:
        result: FloatArray = batch * scenario.accepted_per_step / (scenario.workload.osl * step_seconds)
        return result

    def met_by(requests: FloatArray) -> tuple[list[FloatArray], list[FloatArray]]:
        at_work = requests * time_over_full_steps(prefill, requests)
        met = [_met(partition, work[Phase.PREFILL], at_work, waits, side) for side in _SIDES]
        stretch = [_decode_stretch(work[Phase.DECODE], busy, side) for side, (busy, _) in enumerate(met)]
        return stretch, [wait for _, wait in met]

    def decode_step(requests: FloatArray) -> Step:
        stretch, wait = met_by(requests)
        return run_step(
            scenario,
            decode_stations,
            attention_stretch=stretch[0],
            ffn_stretch=stretch[1],
            attention_wait_s=wait[0],
            ffn_wait_s=wait[1],
        )

    requests = _balanced_rate(rate(decode.step.seconds), lambda r: rate(decode_step(r).seconds))
    step = decode_step(requests)
    longer, _ = met_by(requests)
    left = [_left_to_prefill(partition, work, longer, step.seconds, side) for side in _SIDES]
    slack = np.ones(len(c))
    for side in _SIDES:
        own = sum(
            requests * work[Phase.PREFILL].busy[same]
            for same in _SIDES
            if _together(partition, Phase.PREFILL, side, Phase.PREFILL, same)
        )
        slack = np.minimum(slack, np.where(left[side] < 1.0, left[side] - own, 1.0))
    stretch = [1.0 / np.maximum(share, 1e-3) for share in left]
    # What decode takes of the GPUs slows a step with one prompt as it does a full one.
    slowed = run_step(scenario, prefill_stations, attention_stretch=stretch[0], ffn_stretch=stretch[1])
    tail = decode_step(np.full(len(c), ALWAYS_BUSY)).seconds
    return Engines(
        prefill_of(
            scenario,
            cuts[Phase.PREFILL],
            chunks,
            slowed,
            slowed.seconds * prefill.alone_steps_s / prefill.full_s,
        ),
        replace(decode, interval_s=step.seconds, tail_s=tail, step=step),
        slack,
        prefilling,
        decoding,
    )


def _tiles(c: Candidates) -> bool:
    tiles = c.integer("policy") == TILE_SHARED
    if tiles.any() and not tiles.all():
        raise ValueError("one block holds one policy")
    return bool(tiles.any())


def _together(partition: Partition, phase: Phase, side: int, other: Phase, other_side: int) -> bool:
    """Whether two cells, each a phase of a side, are in one group."""
    return partition.group_of[_CELLS[side][phase]] == partition.group_of[_CELLS[other_side][other]]


def _met(
    partition: Partition,
    prefill: _Work,
    requests: FloatArray,
    waits: tuple[FloatArray, FloatArray],
    side: int,
) -> tuple[FloatArray, FloatArray]:
    """Probability that a decode micro-batch finds prefill at work on ``side``, and how long it waits for it, [n].

    ``requests`` a second [n], counted as often as prefill works longer for them than in full steps.
    """
    found, wait = np.zeros(len(requests)), np.zeros(len(requests))
    for other in _SIDES:
        if _together(partition, Phase.DECODE, side, Phase.PREFILL, other):
            # NOTE: as if decode were always there: prefill then takes longest, so that this is on the safe side.
            longer = 1.0 if prefill.slow is None else (1.0 + SHARING_OVERHEAD) * prefill.slow[other]
            busy = np.minimum(requests * prefill.busy[other] * longer, 1.0)
            found, wait = found + busy, wait + busy * waits[other]
    return np.minimum(found, 1.0), wait


def _decode_stretch(decode: _Work, met: FloatArray, side: int) -> FloatArray:
    """How much longer a decode kernel takes that finds prefill at work with probability ``met``, [n]."""
    if decode.slow is None:
        return np.ones(len(met))
    return 1.0 + met * ((1.0 + SHARING_OVERHEAD) * decode.slow[side] - 1.0)


def _left_to_prefill(
    partition: Partition,
    work: dict[Phase, _Work],
    longer: Sequence[FloatArray],
    step_s: FloatArray,
    side: int,
) -> FloatArray:
    """Speed of prefill kernels of ``side`` over that without decode, [n].

    Decode kernels take ``longer`` than alone, by side, in steps of ``step_s``; what decode waits is no work of its own.
    """
    decoding = np.zeros(len(step_s))
    for other in _SIDES:
        if _together(partition, Phase.PREFILL, side, Phase.DECODE, other):
            decoding = decoding + work[Phase.DECODE].busy[other] * longer[other] / step_s
    slow = work[Phase.PREFILL].slow
    if slow is None:
        return 1.0 - decoding
    decoding = np.minimum(decoding, 1.0)
    return 1.0 - decoding + decoding / ((1.0 + SHARING_OVERHEAD) * slow[side])


def _waits(scenario: Scenario, decode: Cut, prefill: Stations, tiles: bool) -> tuple[FloatArray, FloatArray]:
    """Wait for a running prefill kernel of each side, seconds [n]: the rest of it, or of a tile of it if shorter."""
    rest = [_kernel_seconds(scenario, station.seconds) / 2.0 for station in (prefill.attention, prefill.ffn)]
    if not tiles:
        return rest[0], rest[1]
    tile = tile_wait_s(scenario, decode.ffn_pool)
    return np.minimum(rest[0], tile), np.minimum(rest[1], tile)


def _slowdowns(
    scenario: Scenario, c: Candidates, cuts: dict[Phase, Cut], decode: Decode, prefill_tokens: FloatArray
) -> dict[Phase, tuple[FloatArray, FloatArray]]:
    """How much longer kernels of attention and FFN take beside the other phase, by phase, [n] each.

    Attention counts as bound by compute, so that nothing is gained by running it beside another kernel.
    """
    share = c.number("decode_share")
    bounds = {}
    for phase, tokens in ((Phase.PREFILL, prefill_tokens), (Phase.DECODE, decode.step_tokens)):
        cut = cuts[phase]
        bounds[phase] = ffn_bounds(
            scenario,
            pool=cut.ffn_pool,
            tokens=cut.dp
            * tokens
            / (cut.micro_batches * cut.pp if phase == Phase.DECODE else cut.micro_batches),
            moe_tp=cut.moe_tp,
            ep=cut.ep,
            redundant=cut.redundant,
        )
    found = {}
    for phase, sms in ((Phase.PREFILL, 1.0 - share), (Phase.DECODE, share)):
        # A share of nothing never ends: it is bounded, and never feasible.
        mine = np.maximum(sms, 1e-3)
        compute, memory = bounds[phase]
        found[phase] = (1.0 / mine, slowdown(mine, compute, memory, bounds[Phase(1 - phase)][1]))
    return found


def _balanced_rate(start: FloatArray, response: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Solve rate = response(rate) for a response that falls with the rate, but not faster than 1/rate, [n].

    Secant steps on f(x) = log response(e^x) − x, whose slope lies in [−2, −1]: safe without a bracket.
    """
    x = np.log(start)
    f = np.log(response(start)) - x
    slope = np.full(len(x), -1.5)
    for _ in range(INTERFERENCE_ITERATIONS):
        step = -f / slope
        if not (np.abs(step) > CONVERGED).any():
            break
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
