"""Phases that take turns on the GPUs of a group, decode first at kernel boundaries: what each costs the other."""

from dataclasses import dataclass, replace

import numpy as np

from afd_dse.cost.columns import Candidates
from afd_dse.cost.engines import Engines, Prefill, decode_alone, prefill_of, prefill_steps
from afd_dse.cost.interference import (
    KERNEL_SHARE_OF_STATION,
    SIDES,
    kernel_seconds,
    resulting_rate,
    together,
)
from afd_dse.cost.phase import Cut, Stations, Step, run_step
from afd_dse.cost.queueing import running_share, steps_under_load
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray
from afd_dse.rows import Repeated
from afd_dse.spec.cells import Partition, Phase

MOST_PUSHED = 0.99  # of decode's time, lest it stand still


def delay_by_kernel(kernel: FloatArray, gap: FloatArray, micro_batches: FloatArray) -> FloatArray:
    """What one prefill kernel adds to a layer of decode, seconds [n]; ``gap`` between its visits of the GPU.

    Decode is away for a gap after each of its ``micro_batches``. A kernel that starts in one is not interrupted: it
    holds up the micro-batch that comes next by what it takes longer than the gap (short kernels by half of
    themselves, if they meet it at all), the one after that by what is left after another gap, and so on. All of them
    together make a layer, hence the mean.
    """
    short = kernel**2 / np.maximum(kernel + 2.0 * gap, 1e-30)
    held = np.maximum(kernel - gap, short)
    for later in range(2, int(micro_batches.max(initial=1.0)) + 1):
        held = held + np.where(later <= micro_batches, np.maximum(kernel - later * gap, 0.0), 0.0)
    return np.asarray(held / micro_batches, dtype=np.float64)


def wait_for_gap(kernel: FloatArray, busy: FloatArray, idle: FloatArray) -> FloatArray:
    """How long a prefill kernel waits for decode, seconds [n], which is ``busy`` and ``idle`` on the GPU in a layer.

    A kernel that fits into what is idle waits in proportion to the part of it that it takes; a longer one is let in
    once by every layer of decode, after all micro-batches that came meanwhile.
    """
    return np.asarray(busy * np.minimum(kernel / np.maximum(idle, 1e-30), 1.0), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Presence:
    """Decode on the GPUs of prefill's attention and FFN: ``busy`` and ``idle`` seconds of a layer [n] each, by side.

    A layer is one of all ``micro_batches``. Where decode is elsewhere it is never busy.
    """

    busy: tuple[FloatArray, FloatArray]
    idle: tuple[FloatArray, FloatArray]
    micro_batches: FloatArray

    @classmethod
    def of(cls, scenario: Scenario, partition: Partition, cut: Cut, decode: Step) -> "Presence":
        """Decode as ``cut``, with its step alone."""
        layers = float(scenario.layer_counts.sum())
        work = (decode.attention_s / layers, decode.ffn_s / layers)
        period = (decode.seconds - decode.outside_s) / layers
        none = np.zeros(len(period))
        busy = [
            sum((work[s] for s in SIDES if together(partition, Phase.DECODE, s, Phase.PREFILL, other)), none)
            for other in SIDES
        ]
        idle = [np.maximum(period - some, 0.0) for some in busy]
        return cls((busy[0], busy[1]), (idle[0], idle[1]), cut.micro_batches.astype(np.float64))

    def times(self, share: float) -> "Presence":
        """``share`` times this decode load in layers as long."""
        busy = (self.busy[0] * share, self.busy[1] * share)
        idle = (
            self.idle[0] + self.busy[0] - busy[0],
            self.idle[1] + self.busy[1] - busy[1],
        )
        return replace(self, busy=busy, idle=idle)

    def slowed(self, scenario: Scenario, prefill: Stations) -> Step:
        """A prefill step beside this decode: every kernel on a shared GPU waits for it."""
        waits = []
        for side, station in enumerate((prefill.attention, prefill.ffn)):
            kernel = kernel_seconds(scenario, station.seconds)
            each = wait_for_gap(kernel, self.busy[side], self.idle[side])
            waits.append(each / KERNEL_SHARE_OF_STATION)
        return run_step(scenario, prefill, attention_wait_s=waits[0], ffn_wait_s=waits[1])

    def pushed(self, scenario: Scenario, prefill: Stations, step: Step, alone: Step) -> FloatArray:
        """Share of decode's time that goes by waiting while prefill takes ``step`` for what is ``alone`` alone, [n]."""
        lost = np.zeros(len(step.seconds))
        for side, (station, work) in enumerate(
            ((prefill.attention, alone.attention_s), (prefill.ffn, alone.ffn_s))
        ):
            kernel = kernel_seconds(scenario, station.seconds)
            delay = delay_by_kernel(kernel, self.idle[side] / self.micro_batches, self.micro_batches)
            per_kernel = delay / np.maximum(kernel, 1e-30)
            lost = lost + np.where(self.busy[side] > 0.0, work / step.seconds * per_kernel, 0.0)
        return np.minimum(lost, MOST_PUSHED)


@dataclass(frozen=True, slots=True)
class Turns:
    """Both phases of a unit that take turns, columns [n].

    A full step of prefill ``alone``, and ``prefill`` beside decode, whose step is ``quiet`` alone; ``pushed`` share of
    decode's time that goes by waiting while prefill is at work, in full steps and in steps with one prompt, but no step
    takes longer than ``worst_s``.
    """

    presence: Presence
    alone: Step
    prefill: Prefill
    quiet: Step
    worst_s: FloatArray
    pushed: FloatArray
    pushed_by_one: FloatArray

    def at_work(self, requests: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Share of the time that prefill is at work at ``requests``/s of the unit, and ``pushed`` of its steps, [n]."""
        prefill = self.prefill
        full, alone = prefill.full_s, prefill.alone_steps_s
        utilization = np.minimum(requests / prefill.capacity, 1.0)
        steps, _ = steps_under_load(utilization, full_s=full, alone_s=alone, most=prefill.per_step)
        busy = running_share(utilization * prefill.per_step / full * steps)
        fill = np.where(full > alone, (steps - alone) / np.where(full > alone, full - alone, 1.0), 1.0)
        return busy, self.pushed_by_one + fill * (self.pushed - self.pushed_by_one)

    def decode_at(self, requests: FloatArray) -> Step:
        """A mean step of decode at ``requests``/s of the unit: of its time, prefill takes what it holds up."""
        busy, pushed = self.at_work(requests)
        return self._held_up(busy * pushed)

    def decode_beside(self, requests: FloatArray) -> Step:
        """A step of decode while prefill is at work, in steps as full as at ``requests``/s."""
        return self._held_up(self.at_work(requests)[1])

    def _held_up(self, share: FloatArray) -> Step:
        """A step of decode that waits for ``share`` [n] of its time."""
        most = (self.worst_s - self.quiet.outside_s) / (self.quiet.seconds - self.quiet.outside_s)
        return _longer(self.quiet, np.minimum(1.0 / (1.0 - share), most))


def _longer(step: Step, factor: FloatArray) -> Step:
    """The step with its layers ``factor`` [n] times as long; what waits counts as work, as in any station."""
    return replace(
        step,
        seconds=step.outside_s + (step.seconds - step.outside_s) * factor,
        attention_s=step.attention_s * factor,
        ffn_s=step.ffn_s * factor,
        link_s=step.link_s * factor,
    )


def _worst(scenario: Scenario, partition: Partition, decode: Stations, prefill: Stations) -> FloatArray:
    """A step of decode in which every micro-batch waits for the longest prefill kernel in every layer, seconds [n]."""
    kernels = [
        KERNEL_SHARE_OF_STATION * part.seconds.max(axis=1) for part in (prefill.attention, prefill.ffn)
    ]
    waits = [np.zeros(len(kernels[0])), np.zeros(len(kernels[0]))]
    for side in SIDES:
        for other in SIDES:
            if together(partition, Phase.DECODE, side, Phase.PREFILL, other):
                waits[side] = np.maximum(waits[side], kernels[other])
    return run_step(scenario, decode, attention_wait_s=waits[0], ffn_wait_s=waits[1]).seconds


def turns_of(
    scenario: Scenario, partition: Partition, c: Candidates, decode: Step, decoding: Stations
) -> tuple[Turns, Stations]:
    """What the phases of candidates do to each other, with the stations of prefill; ``decode`` as it is alone."""
    presence = Presence.of(scenario, partition, Cut.of(c, Phase.DECODE), decode)
    steps = prefill_steps(scenario, partition, c)
    full, one = run_step(scenario, steps.full), run_step(scenario, steps.one)
    slowed, slowed_one = presence.slowed(scenario, steps.full), presence.slowed(scenario, steps.one)
    cut = Cut.of(c, Phase.PREFILL)
    turns = Turns(
        presence,
        full,
        prefill_of(scenario, cut, steps.chunks, slowed, slowed_one.seconds),
        decode,
        _worst(scenario, partition, decoding, steps.full),
        presence.pushed(scenario, steps.full, slowed, full),
        presence.pushed(scenario, steps.one, slowed_one, one),
    )
    return turns, steps.full


def taking_turns(scenario: Scenario, partition: Partition, units: Repeated[Candidates]) -> Engines:
    """Decode has priority at kernel boundaries, and prefill gets the gaps that it leaves.

    The rate follows from the decode step, and the part of the time that prefill works from the rate: a fixed point.
    """
    c = units.distinct
    decode, decoding = decode_alone(scenario, partition, c)
    turns, prefilling = turns_of(scenario, partition, c, decode.step, decoding.rows)
    prefill = turns.prefill
    requests = resulting_rate(scenario, c, decode.step.seconds, lambda rate: turns.decode_at(rate).seconds)
    step = turns.decode_at(requests)
    return Engines(
        prefill,
        replace(
            decode,
            interval_s=step.seconds,
            tail_s=turns.worst_s,
            beside_s=turns.decode_beside(requests).seconds,
            step=step,
        ),
        _slack(partition, turns, requests / prefill.capacity),
        units,
        units,
        Repeated.once(prefilling, len(c)),
        decoding,
    )


def _slack(partition: Partition, turns: Turns, utilization: FloatArray) -> FloatArray:
    """What the load leaves of GPUs that both phases use: the share that prefill may have, less what it needs, [n]."""
    slack, work = np.ones(len(utilization)), (turns.alone.attention_s, turns.alone.ffn_s)
    for side in SIDES:
        most = sum(
            work[same] / turns.prefill.step.seconds
            for same in SIDES
            if together(partition, Phase.PREFILL, side, Phase.PREFILL, same)
        )
        shared = turns.presence.busy[side] > 0.0
        slack = np.where(shared, np.minimum(slack, most * (1.0 - utilization)), slack)
    return slack
