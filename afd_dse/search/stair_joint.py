"""Staircases of partitions in which some group serves both phases.

Replicas share one queue, so more of them only shorten the wait: a layout under a load that holds its limits with r
replicas holds them with more. For every size of layout and every number of replicas the strongest one that holds is
found by bisection over rows in the order of their rates, and then raised between the loads of the grid.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from afd_dse.cost.columns import Candidates
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import join_rows, ranges
from afd_dse.search.descent import Points, descend
from afd_dse.search.joint import all_layouts, points_of, with_replicas
from afd_dse.search.layouts import BLOCK_ROWS, blocks
from afd_dse.search.pool import Found
from afd_dse.search.sides import codes
from afd_dse.search.space import Grid
from afd_dse.search.stair_steps import best_within
from afd_dse.spec.cells import Partition

# Rows of a size that are tried first for a number of replicas, and by what that grows.
FIRST_TRIED, MORE_TRIED = 16, 4
# Rows looked at, and raised to their limits, for every size and number of replicas that may become a step.
LOOKED_AT, RAISED = 24, 8
# What is raised is looked for in so many sections of the step, then of the section with the largest rate, and so on.
SECTIONS = (24, 12, 6)


@dataclass(frozen=True, slots=True)
class _Units:
    """Layouts under loads, one replica each, sorted by size and then by rate from the largest on.

    ``size`` [n, pools], ``rate`` [n] of one replica; those of a size lie between ``start`` and ``stop`` [sizes], and as
    many as ``most`` [sizes] replicas fit into the cluster. All hold their limits with that many.
    """

    candidates: Candidates
    size: FloatArray
    rate: FloatArray
    start: IntArray
    stop: IntArray
    most: IntArray


def joint_steps(
    scenario: Scenario, partition: Partition, grid: Grid, progress: Callable[[int], None]
) -> tuple[Found | None, int, int]:
    """Rows among which the steps are, evaluated; the size of the space; and how many rows were computed."""
    candidates, considered = all_layouts(scenario, partition, grid)
    if not len(candidates):
        return None, 0, 0
    batch = grid.batch.values()
    kept: list[Found] = []
    computed = 0

    def at(rows: IntArray, batch_size: FloatArray) -> Points:
        nonlocal computed
        points = []
        for block in blocks(candidates.take(rows).replace(batch_size=batch_size)):
            found = Found(block, evaluate(scenario, block))
            computed += len(found)
            progress(len(found))
            kept.append(found.take(found.evaluation.feasible))
            points.append(points_of("total_throughput", found))
        return join_rows(points)

    # With fewer replicas a layout may hold its TTFT under loads that others beat with more: nothing is left out.
    descend(batch, np.zeros(len(candidates), dtype=np.int64), at, whole=True)
    feasible = join_rows(kept)
    if not len(feasible):
        return None, considered, computed
    units = _by_size(feasible)
    search = _Search(scenario, units, progress)
    size, many, row = search.strongest()
    raised = search.raised(size, many, row, grid.batch.ratio, float(batch[-1]))
    return raised, considered, computed + search.computed


def _by_size(feasible: Found) -> _Units:
    many = feasible.candidates.number("decode_replicas")
    size = feasible.evaluation.gpus_by_pool / many[:, None]
    rate = feasible.evaluation.metrics["requests_per_s"] / many
    code = codes(np.round(size))
    order = np.lexsort((-rate, code)).astype(np.int64)
    start = np.flatnonzero(np.diff(code[order], prepend=-1)).astype(np.int64)
    stop = np.append(start[1:], len(order)).astype(np.int64)
    most = feasible.candidates.integer("decode_replicas")[order][start]
    return _Units(feasible.candidates.take(order), size[order], rate[order], start, stop, most)


class _Search:
    """The strongest rows by size and number of replicas; counts what it computes."""

    def __init__(self, scenario: Scenario, units: _Units, progress: Callable[[int], None]) -> None:
        self._scenario, self._units, self._progress = scenario, units, progress
        self.computed = 0

    def strongest(self) -> tuple[IntArray, IntArray, IntArray]:
        """For every size and number of replicas the row with the largest rate that holds: sizes, replicas, rows."""
        u = self._units
        sizes = np.arange(len(u.start))
        # With as many as fit the first row holds; with one replica some row, or none (``stop``).
        low = self._first(u.start, u.stop, np.ones(len(sizes), dtype=np.int64))
        known = [(sizes, np.ones(len(sizes), dtype=np.int64), low), (sizes, u.most, u.start)]
        spans = (sizes, np.ones(len(sizes), dtype=np.int64), u.most, low, u.start)
        while len(spans[0]):
            size, least, most, below, above = spans
            middle = (least + most) // 2
            row = np.where(below == above, below, 0)
            open_ = np.flatnonzero((below != above) & (middle > least))
            row[open_] = self._first(above[open_], below[open_], middle[open_])
            inner = np.flatnonzero(middle > least)
            known.append((size[inner], middle[inner], row[inner]))
            size, least, most = size[inner], least[inner], most[inner]
            below, above, middle, row = below[inner], above[inner], middle[inner], row[inner]
            spans = (
                np.concatenate([size, size]),
                np.concatenate([least, middle]),
                np.concatenate([middle, most]),
                np.concatenate([below, row]),
                np.concatenate([row, above]),
            )
        size, many, row = (np.concatenate([part[number] for part in known]) for number in range(3))
        table = np.unique(np.column_stack([size, many, row])[row < u.stop[size]], axis=0)
        return table[:, 0], table[:, 1], table[:, 2]

    def raised(self, size: IntArray, many: IntArray, row: IntArray, ratio: float, last: float) -> Found:
        """The strongest rows, and what comes of them and their next ones between the loads of the grid.

        Left out is what could not become a step even if its rate grew by ``ratio``, the step of the grid, which ends
        at ``last``.
        """
        u = self._units
        gpus, rate = u.size[row] * many[:, None], u.rate[row] * many
        reached = best_within(gpus, rate, gpus)
        may = np.flatnonzero(rate * ratio > reached)
        size, many, row, reached = size[may], many[may], row[may], reached[may]
        number = np.minimum(u.stop[size] - row, LOOKED_AT)
        rows, of = ranges(row, number)
        worth = u.rate[rows] * many[of] * ratio > reached[of]
        rows, of = rows[worth], of[worth]
        looked = self._evaluated(rows, many[of])
        ok = np.flatnonzero(looked.evaluation.feasible)
        # The first of every step's rows that hold: ``of`` ascends.
        place = np.arange(len(ok)) - np.searchsorted(of[ok], of[ok])
        chosen = looked.take(ok[place < RAISED])
        found = self._raised(chosen, np.minimum(chosen.candidates.number("batch_size") * ratio, last))
        return join_rows([chosen, found])

    def _raised(self, chosen: Found, high: FloatArray) -> Found:
        """The rows at the batch up to ``high`` [n] with the largest rate that holds, of those tried.

        That need not be the largest batch, nor need holding end once: kernels, TTFT and pages of the cache have steps.
        """
        low: FloatArray = chosen.candidates.number("batch_size")
        row = np.arange(len(low))
        most: FloatArray = chosen.evaluation.metrics["requests_per_s"]
        for sections in SECTIONS:
            factor = (high / low)[:, None] ** (np.arange(sections + 1) / sections)
            batch = low[:, None] * factor
            block = chosen.candidates.take(np.repeat(row, sections))
            rate = self._rates(block.replace(batch_size=batch[:, 1:].reshape(-1)))
            rates = np.column_stack([most, rate.reshape(-1, sections)])
            top = rates.argmax(axis=1)
            # Rates rise up to where a limit ends or a kernel has a step: just above the best one tried.
            low, high, most = batch[row, top], batch[row, np.minimum(top + 1, sections)], rates[row, top]
        final = chosen.candidates.replace(batch_size=low)
        self.computed += len(low)
        return Found(final, evaluate(self._scenario, final))

    def _rates(self, candidates: Candidates) -> FloatArray:
        """Requests/s [n], 0 where a limit does not hold."""
        found = [evaluate(self._scenario, block) for block in blocks(candidates)]
        self.computed += len(candidates)
        self._progress(len(candidates))
        return np.concatenate([np.where(e.feasible, e.metrics["requests_per_s"], 0.0) for e in found])

    def _first(self, start: IntArray, stop: IntArray, replicas: IntArray) -> IntArray:
        """The first row in [``start``, ``stop``) that holds with ``replicas``, [tasks]; ``stop`` where none does."""
        result, at = stop.copy(), start.copy()
        width = FIRST_TRIED
        open_ = np.flatnonzero(at < stop)
        while len(open_):
            rows, of = ranges(at[open_], np.minimum(stop[open_] - at[open_], width))
            ok = self._evaluated(rows, replicas[open_][of]).evaluation.feasible
            first = np.full(len(open_), np.iinfo(np.int64).max)
            np.minimum.at(first, of[ok], rows[ok])
            hit = first < np.iinfo(np.int64).max
            result[open_[hit]] = first[hit]
            at[open_] = np.minimum(at[open_] + width, stop[open_])
            open_ = open_[~hit & (at[open_] < stop[open_])]
            width *= MORE_TRIED
        return result

    def _evaluated(self, rows: IntArray, replicas: IntArray) -> Found:
        parts = []
        for begin in range(0, max(len(rows), 1), BLOCK_ROWS):
            block = self._units.candidates.take(rows[begin : begin + BLOCK_ROWS])
            block = with_replicas(block, replicas[begin : begin + BLOCK_ROWS])
            parts.append(Found(block, evaluate(self._scenario, block)))
        self.computed += len(rows)
        self._progress(len(rows))
        return join_rows(parts)
