"""The clock of a simulation: seconds of one step of one engine, tabulated once from the cost model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from afd_dse.cost.columns import TILE_SHARED, Candidates
from afd_dse.cost.engines import decode_alone, prefill_alone
from afd_dse.cost.evaluate import engines_of
from afd_dse.cost.expert_cache import ExpertCache, with_missing_experts
from afd_dse.cost.phase import Cut, Stations, StepLoad, phase_stations, run_step
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.turns import Presence
from afd_dse.operators.latency import FloatArray
from afd_dse.simulation.tables import Table
from afd_dse.spec.cells import PARTITIONS, Partition, Phase

# Points of the tables. Step times are smooth but for the tiles of kernels: halving every spacing moves simulated
# percentiles by less than 1 %.
_BATCHES = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0)
_CONTEXTS, _ATTENDED, _ATTENDED_MIXED, _FILLS = 4, 9, 4, 3
_LEAST_TOKENS = 16.0  # of a prefill step: kernels of fewer tokens take as long


class Clock(Protocol):
    """Seconds of one step. Loads of attention are those of the busiest rank, ``mean_…`` those of all ranks on average.

    ``batch`` decode sequences with ``context`` tokens each; ``tokens`` new prompt tokens of which each attends to
    ``attended`` tokens on average.
    """

    def decode(self, batch: float, context: float, mean_batch: float, prefilling: bool) -> float:
        """A decode step, while prefill works on the same GPUs or not."""

    def prefill(self, tokens: float, attended: float, mean_tokens: float, decoding: float) -> float:
        """A prefill step, while ``decoding`` of the deployment's decode load works on the same GPUs."""

    def mixed(
        self,
        batch: float,
        context: float,
        tokens: float,
        attended: float,
        mean_batch: float,
        mean_tokens: float,
    ) -> float:
        """A step that carries decode sequences and prompt tokens."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the tables must reach: tokens of a whole sequence, and decode sequences of a rank."""

    least_context: float
    most_context: float
    most_batch: float


@dataclass(frozen=True, slots=True)
class TabulatedClock:
    """The cost model's step times of one candidate, interpolated.

    A step is as slow as the attention rank with the most to read, while the FFN sees the tokens of all ranks: tables
    have the busiest rank's load as axes, and the ratio of the mean to it.
    """

    decode_table: Table
    prefill_table: Table
    mixed_table: Table | None
    tokens_per_sequence: float

    def decode(self, batch: float, context: float, mean_batch: float, prefilling: bool) -> float:
        """See :class:`Clock`."""
        return self.decode_table(batch, context, mean_batch / batch, 1.0 if prefilling else 0.0)

    def prefill(self, tokens: float, attended: float, mean_tokens: float, decoding: float) -> float:
        """See :class:`Clock`."""
        return self.prefill_table(tokens, attended, mean_tokens / tokens, min(decoding, 1.0))

    def mixed(
        self,
        batch: float,
        context: float,
        tokens: float,
        attended: float,
        mean_batch: float,
        mean_tokens: float,
    ) -> float:
        """See :class:`Clock`."""
        if batch == 0.0:
            others = mean_batch * self.tokens_per_sequence
            return self.prefill(tokens, attended, mean_tokens + others, 0.0)
        assert self.mixed_table is not None
        total = batch * self.tokens_per_sequence + tokens
        fill = (mean_batch * self.tokens_per_sequence + mean_tokens) / total
        return self.mixed_table(batch, context, total, attended, min(fill, 1.0))


def clock_of(
    scenario: Scenario, candidate: Candidates, extent: Extent, cache: ExpertCache | None = None
) -> TabulatedClock:
    """Tabulate the step times of one candidate (a block of one row); with ``cache`` not all experts fit."""
    partition = PARTITIONS[int(candidate.integer("partition")[0])]
    maker = _Maker(scenario, partition, candidate, extent, cache)
    return TabulatedClock(
        maker.decode(),
        maker.prefill(),
        maker.mixed() if maker.one_step else None,
        float(scenario.tokens_per_sequence),
    )


@dataclass(frozen=True, slots=True)
class _Meeting:
    """What the phases do to each other on GPUs that they share but not in the same steps, at the deployment's own load.

    While prefill is at work the layers of decode take ``decode_longer`` times as long. Beside decode all of a prefill
    step takes ``prefill_longer`` times as long (tile sharing), or its kernels wait for the decode of ``presence``.
    """

    decode_longer: float
    prefill_longer: float
    presence: Presence | None

    def prefill(self, scenario: Scenario, stations: Stations, share: float) -> FloatArray:
        """Seconds of prefill steps beside ``share`` of the decode load, [rows]."""
        if self.presence is not None:
            return self.presence.times(share).slowed(scenario, stations).seconds
        return run_step(scenario, stations).seconds * (1.0 + (self.prefill_longer - 1.0) * share)


def _meeting(scenario: Scenario, partition: Partition, candidate: Candidates) -> _Meeting:
    engines = engines_of(scenario, partition, candidate)
    quiet = decode_alone(scenario, partition, candidate)[0].step
    longer = (engines.decode.beside_s - quiet.outside_s) / (quiet.seconds - quiet.outside_s)
    if int(candidate.integer("policy")[0]) == TILE_SHARED:
        prefill = prefill_alone(scenario, partition, candidate)[0].step
        return _Meeting(float(longer[0]), float((engines.prefill.step.seconds / prefill.seconds)[0]), None)
    presence = Presence.of(scenario, partition, Cut.of(candidate, Phase.DECODE), quiet)
    return _Meeting(float(longer[0]), 1.0, presence)


class _Maker:
    """Evaluates whole grids of loads at once."""

    def __init__(
        self,
        scenario: Scenario,
        partition: Partition,
        candidate: Candidates,
        extent: Extent,
        cache: ExpertCache | None,
    ) -> None:
        self.cache = cache
        self.scenario, self.partition, self.candidate = scenario, partition, candidate
        self.equal_prompts = _with_workload(scenario, isl_cv=0.0)
        self.chunk = float(candidate.number("chunk_tokens")[0])
        self.cuts = {phase: Cut.of(candidate, phase) for phase in Phase}
        self.one_step = partition.shares_steps and int(candidate.integer("policy")[0]) != TILE_SHARED
        apart = self.one_step or not partition.is_joint
        self.meeting = None if apart else _meeting(scenario, partition, candidate)
        most = max(extent.most_batch, 2.0)
        self.batches = [x for x in _BATCHES if x < most]
        while self.batches[-1] * 1.5 < most:
            self.batches.append(self.batches[-1] * 1.5)
        self.batches.append(most)
        low, high = max(extent.least_context, 16.0), max(extent.most_context, 32.0)
        self.contexts = _geometric(low, max(high, low * 1.1), _CONTEXTS)
        # A prompt that is computed whole attends to half of itself on average, its last piece to nearly all of it.
        least = max(min(low / 2.0, self.chunk / 2.0), 4.0)
        # Kernels of sparse attention are far from smooth: the mean prompt, computed whole, is a point of the table.
        usual = scenario.workload.prefix + scenario.workload.isl / 2.0
        self.attended = _with(_geometric(least, high, _ATTENDED), usual)
        self.attended_mixed = _with(_geometric(least, high, _ATTENDED_MIXED), usual)

    def fills(self, phase: Phase) -> list[float]:
        dp = int(self.cuts[phase].dp[0])
        return _geometric(1.0 / dp, 1.0, _FILLS) if dp > 1 else [1.0]

    def tokens(self) -> list[float]:
        """Tokens of a step: the most that it may carry, three quarters and half of it, and so on down."""
        points, at = [], self.chunk
        while at > _LEAST_TOKENS:
            points += [at, 0.75 * at] if at > 8.0 * _LEAST_TOKENS else [at]
            at /= 2.0
        return [_LEAST_TOKENS, *reversed(points)] if points else [self.chunk / 2.0, self.chunk]

    def decode(self) -> Table:
        fills = self.fills(Phase.DECODE)
        batch, fill = _mesh(self.batches, fills)
        none = np.zeros_like(batch)
        load = self._load(batch, none, none + 1.0, fill)
        busy = [0.0, 1.0] if self.meeting else [0.0]
        values = np.zeros((len(self.batches), len(self.contexts), len(fills), len(busy)))
        for number, context in enumerate(self.contexts):
            stations = self._stations(_at_context(self.scenario, context), Phase.DECODE, load)
            step = run_step(self.scenario, stations)
            for column, share in enumerate(busy):
                longer = self.meeting.decode_longer - 1.0 if self.meeting else 0.0
                seconds = step.seconds + longer * share * (step.seconds - step.outside_s)
                values[:, number, :, column] = seconds.reshape(len(self.batches), len(fills))
        return Table([self.batches, self.contexts, fills, busy], values)

    def prefill(self) -> Table:
        tokens, fills = self.tokens(), self.fills(Phase.PREFILL)
        size, attended, fill = _mesh(tokens, self.attended, fills)
        load = self._load(np.zeros_like(size), size, attended, fill)
        stations = self._stations(self.scenario, Phase.PREFILL, load)
        busy = [0.0, 1.0] if self.meeting else [0.0]
        values = np.zeros((len(tokens), len(self.attended), len(fills), len(busy)))
        for column, share in enumerate(busy):
            if self.meeting:
                seconds = self.meeting.prefill(self.scenario, stations, share)
            else:
                seconds = run_step(self.scenario, stations).seconds
            values[..., column] = seconds.reshape(values.shape[:3])
        return Table([tokens, self.attended, fills, busy], values)

    def mixed(self) -> Table:
        # NOTE: the axis is the tokens of the step, decoding ones included. Kernels work in tiles, so a step filled to
        # its limit is faster a token than one that spills over it: full steps must be read off a point of the table.
        totals, fills = self.tokens(), self.fills(Phase.DECODE)
        batches = [x for x in self.batches if x * self.scenario.tokens_per_sequence < self.chunk] or [1.0]
        batch, total, attended, fill = _mesh(batches, totals, self.attended_mixed, fills)
        own = batch * self.scenario.tokens_per_sequence
        load = self._load(batch, np.maximum(total - own, 1.0), attended, fill)
        shape = (len(batches), len(totals), len(self.attended_mixed), len(fills))
        values = np.zeros((len(batches), len(self.contexts), *shape[1:]))
        for number, context in enumerate(self.contexts):
            stations = self._stations(_at_context(self.scenario, context), Phase.DECODE, load)
            values[:, number] = run_step(self.scenario, stations).seconds.reshape(shape)
        return Table([batches, self.contexts, totals, self.attended_mixed, fills], values)

    def _load(
        self, batch: FloatArray, tokens: FloatArray, attended: FloatArray, fill: FloatArray
    ) -> StepLoad:
        """The busiest rank's load; its FFN tokens are replaced by the mean rank's, ``fill`` times as many.

        Prompt tokens are one piece behind a prefix where they attend to more than one prompt of their own holds, and
        several whole prompts side by side where they attend to less.
        """
        prompts = np.where(tokens > 0, np.maximum(tokens / (2.0 * attended), 1.0), 0.0)
        piece = tokens / np.maximum(prompts, 1.0)
        prefix = np.maximum(attended - piece / 2.0, 0.0)
        own = batch * self.scenario.tokens_per_sequence
        return StepLoad(
            # Sequences of one stage of a pipeline; the cost model counts those of all stages.
            decode_sequences=batch * float(self.cuts[Phase.DECODE].pp[0]),
            prefill_sequences=prompts,
            piece=piece,
            piece_prefix=prefix,
            ffn_prefill_tokens=(own + tokens) * fill - own,
        )

    def _stations(self, scenario: Scenario, phase: Phase, load: StepLoad) -> Stations:
        row = np.zeros(len(load.decode_sequences), dtype=np.int64)
        cut = Cut.of(self.candidate.take(row), phase)
        # The busiest rank's prompts are axes of the tables: the cost model must not look for it once more.
        scenario = self.equal_prompts if phase == Phase.PREFILL else scenario
        stations = phase_stations(scenario, cut, phase, self.partition.splits(phase), load)
        return stations if self.cache is None else with_missing_experts(scenario, self.cache, stations)


def _at_context(scenario: Scenario, context: float) -> Scenario:
    """The scenario with every decoding sequence at ``context`` tokens; operator tables are shared."""
    return _with_workload(
        scenario,
        isl=max(context - 0.5, 0.5),
        osl=1.0,
        prefix=0.0,
        isl_cv=0.0,
        osl_cv=0.0,
        slot_load=None,
    )


def _with_workload(scenario: Scenario, **changes: Any) -> Scenario:
    """The scenario with another workload and the same operator tables."""
    other = replace(scenario, workload=replace(scenario.workload, **changes))
    vars(other)["databases"] = scenario.databases
    return other


def _geometric(low: float, high: float, count: int) -> list[float]:
    return [float(x) for x in np.geomspace(low, high, count)] if high > low else [low]


def _with(axis: list[float], point: float) -> list[float]:
    """The axis with ``point`` in the place of its nearest inner one, if it lies inside."""
    if len(axis) < 3 or not axis[0] < point < axis[-1]:
        return axis
    nearest = min(range(1, len(axis) - 1), key=lambda number: abs(axis[number] - point))
    return sorted([*axis[:nearest], point, *axis[nearest + 1 :]])


def _mesh(*axes: Sequence[float]) -> list[FloatArray]:
    """All combinations of the axes' points, one flat column an axis, the last one fastest."""
    return [column.ravel() for column in np.meshgrid(*axes, indexing="ij")]
