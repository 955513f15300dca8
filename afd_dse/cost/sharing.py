"""Prefill and decode of a unit whose phases share GPUs but not steps: in turns, or both at once tile by tile."""

from collections.abc import Sequence
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
from afd_dse.cost.interference import SIDES, kernel_seconds, resulting_rate, together
from afd_dse.cost.phase import Cut, Stations, Step, run_step
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.tile_sharing import SHARING_OVERHEAD, ffn_bounds, slowdown, tile_wait_s
from afd_dse.cost.turns import taking_turns
from afd_dse.operators.latency import FloatArray
from afd_dse.rows import Repeated
from afd_dse.spec.cells import Partition, Phase

# Requests/s at which every shared GPU is busy with prefill whenever decode arrives.
ALWAYS_BUSY = 1e12


@dataclass(frozen=True, slots=True)
class _Work:
    """One phase alone, by side (attention, FFN), columns [n].

    ``busy`` seconds that its GPUs work, a step of decode or a request of prefill; ``slow`` how much longer a kernel
    takes while the other phase runs beside it.
    """

    busy: tuple[FloatArray, FloatArray]
    slow: tuple[FloatArray, FloatArray]


def shared_side(scenario: Scenario, partition: Partition, c: Candidates) -> Engines:
    """Some group serves cells of both phases, which do not share steps; by the policy column."""
    units = distinct_units(c, list(Phase), ["batch_size", "chunk_tokens", "decode_share"])
    tiles = units.distinct.integer("policy") == TILE_SHARED
    if tiles.any() and not tiles.all():
        raise ValueError("one block holds one policy")
    share = _by_tiles if tiles.any() else taking_turns
    return share(scenario, partition, units)


def _by_tiles(scenario: Scenario, partition: Partition, units: Repeated[Candidates]) -> Engines:
    """Decode runs on its share of the SMs while prefill has work, and prefill on the rest while decode has.

    Decode waits for a tile of prefill before it gets its SMs (ExpertPlex, arXiv 2607.18002). The rate follows from the
    decode step, and the prefill utilisation from the rate: a fixed point.
    """
    c = units.distinct
    decode, decoding = decode_alone(scenario, partition, c)
    prefill, prefilling, chunks = prefill_alone(scenario, partition, c)
    decode_stations, prefill_stations = decoding.rows, prefilling.rows
    cuts = {phase: Cut.of(c, phase) for phase in Phase}
    prompts = chunks.sequences * cuts[Phase.PREFILL].dp * cuts[Phase.PREFILL].pp
    slow = _slowdowns(scenario, c, cuts, decode, prefill.step_tokens)
    per_request = chunks.per_request / prompts
    work = {
        Phase.PREFILL: _Work(
            (prefill.step.attention_s * per_request, prefill.step.ffn_s * per_request),
            slow[Phase.PREFILL],
        ),
        Phase.DECODE: _Work((decode.step.attention_s, decode.step.ffn_s), slow[Phase.DECODE]),
    }
    waits = _waits(scenario, cuts[Phase.DECODE], prefill_stations)

    def met_by(at_work: FloatArray) -> tuple[list[FloatArray], list[FloatArray]]:
        met = [_met(partition, work[Phase.PREFILL], at_work, waits, side) for side in SIDES]
        stretch = [_decode_stretch(work[Phase.DECODE], busy, side) for side, (busy, _) in enumerate(met)]
        return stretch, [wait for _, wait in met]

    def decode_step(at_work: FloatArray) -> Step:
        stretch, wait = met_by(at_work)
        return run_step(
            scenario,
            decode_stations,
            attention_stretch=stretch[0],
            ffn_stretch=stretch[1],
            attention_wait_s=wait[0],
            ffn_wait_s=wait[1],
        )

    def works_for(requests: FloatArray) -> FloatArray:
        return requests * time_over_full_steps(prefill, requests)

    requests = resulting_rate(
        scenario, c, decode.step.seconds, lambda rate: decode_step(works_for(rate)).seconds
    )
    at_work = works_for(requests)
    step = decode_step(at_work)
    longer, _ = met_by(at_work)
    left = [_left_to_prefill(partition, work, longer, step.seconds, side) for side in SIDES]
    slack = np.ones(len(c))
    for side in SIDES:
        own = sum(
            requests * work[Phase.PREFILL].busy[same]
            for same in SIDES
            if together(partition, Phase.PREFILL, side, Phase.PREFILL, same)
        )
        slack = np.minimum(slack, np.where(left[side] < 1.0, left[side] - own, 1.0))
    stretch = [1.0 / np.maximum(share, 1e-3) for share in left]
    # What decode takes of the GPUs slows a step with one prompt as it does a full one.
    slowed = run_step(scenario, prefill_stations, attention_stretch=stretch[0], ffn_stretch=stretch[1])
    alone_s = slowed.seconds * prefill.alone_steps_s / prefill.full_s
    beside = prefill_of(scenario, cuts[Phase.PREFILL], chunks, slowed, alone_s)
    tail = decode_step(np.full(len(c), ALWAYS_BUSY)).seconds
    return Engines(
        beside,
        replace(
            decode,
            interval_s=step.seconds,
            tail_s=tail,
            # Prefill that is at work all the time is at its capacity: its kernels run for a part of its steps only.
            beside_s=decode_step(beside.capacity).seconds,
            step=step,
        ),
        slack,
        units,
        units,
        prefilling,
        decoding,
    )


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
    for other in SIDES:
        if together(partition, Phase.DECODE, side, Phase.PREFILL, other):
            # NOTE: as if decode were always there: prefill then takes longest, so that this is on the safe side.
            longer = (1.0 + SHARING_OVERHEAD) * prefill.slow[other]
            busy = np.minimum(requests * prefill.busy[other] * longer, 1.0)
            found, wait = found + busy, wait + busy * waits[other]
    return np.minimum(found, 1.0), wait


def _decode_stretch(decode: _Work, met: FloatArray, side: int) -> FloatArray:
    """How much longer a decode kernel takes that finds prefill at work with probability ``met``, [n]."""
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
    for other in SIDES:
        if together(partition, Phase.PREFILL, side, Phase.DECODE, other):
            decoding = decoding + work[Phase.DECODE].busy[other] * longer[other] / step_s
    decoding = np.minimum(decoding, 1.0)
    return 1.0 - decoding + decoding / ((1.0 + SHARING_OVERHEAD) * work[Phase.PREFILL].slow[side])


def _waits(scenario: Scenario, decode: Cut, prefill: Stations) -> tuple[FloatArray, FloatArray]:
    """Wait for a tile of a running prefill kernel of each side, seconds [n]; the rest of the kernel if that is less."""
    tile = tile_wait_s(scenario, decode.ffn_pool)
    attention, ffn = (
        np.minimum(kernel_seconds(scenario, station.seconds) / 2.0, tile)
        for station in (prefill.attention, prefill.ffn)
    )
    return attention, ffn


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
