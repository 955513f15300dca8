"""Layouts over a grid of batches, from coarse to fine: what lies between two is evaluated where it may matter.

A larger batch does not make a step of the engine much faster (:data:`DIP`). So between two batches no TPOT is below
that of the lower one, and no rate above what the upper one would have at that TPOT. Where what has been found beats
both, nothing between them can be on the front nor the best, and it is left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import join_rows
from afd_dse.search.crossing import last_true
from afd_dse.search.pareto import fronts

BoolArray = npt.NDArray[np.bool_]

# Inside a step of the grid TPOT is below that of its lower end by this share at most, unless its upper end shows the
# fall: measured kernels are not strictly monotone. Among two million layouts and batches of six models on four
# accelerators 0.094 was the most; where kernels for one or two tokens are slow, TPOT falls by half, over all of a step.
DIP = 0.1
# Largest ratio of neighbouring batches of the coarsest pass.
COARSEST_RATIO = 4.0
# Loads of the coarsest pass that are evaluated at once: few calls on large blocks, and still dead layouts are dropped.
LOADS_AT_ONCE = 2
# More at once where they are fewer rows: a call costs as much as so many.
ROWS_OF_A_CALL = 30_000
# A layout is given up above a load at which its TPOT exceeds the limit by this share.
TPOT_MARGIN = 0.25
# The step of the grid on which a limit ends to hold is cut into so many sections, and the one where it ends again. A
# call costs little more for many rows than for few.
SECTIONS = 19
SECTIONINGS = 2
# What may be the best of its group is narrowed even if TPOT would have to fall so much on the way.
DIP_NEAR_BEST = 0.03


@dataclass(frozen=True, slots=True)
class Points:
    """Layouts at a batch, columns [n].

    ``tpot_s``; ``rates`` [n, k], each proportional to the requests/s, and ``sure`` [n, k] what is certain of them where
    something else may limit them; ``holds`` every limit; ``grows``: whether a larger batch may still hold them.
    """

    tpot_s: FloatArray
    rates: FloatArray
    sure: FloatArray
    holds: BoolArray
    grows: BoolArray

    @property
    def nothing(self) -> "Points":
        """No points, of as many rates."""
        return Points(*(getattr(self, name)[:0] for name in Points.__slots__))


# Points of layouts [n] at batches [n].
Evaluate = Callable[[IntArray, FloatArray], Points]
# Whether layouts [n] matter no more that have at least a TPOT and at most rates [n, k].
Hopeless = Callable[[IntArray, FloatArray, FloatArray], BoolArray]


def _nothing_is_hopeless(layout: IntArray, tpot_s: FloatArray, rates: FloatArray) -> BoolArray:
    return np.zeros(len(layout), dtype=bool)


@dataclass(frozen=True, slots=True)
class Descent:
    """Points that were evaluated, and the steps between batches that may matter.

    ``layout`` and ``batch`` of every point [n]; ``fronts``, for each rate, the points that hold and that no other of
    the same ``group`` [layouts] beats, group after group and ascending in TPOT. Of every step [m] the point ``low``
    where it begins, and the batch ``end`` before which it ends: ``high`` is the point there, −1 where it was not
    evaluated.
    """

    group: IntArray
    points: Points
    layout: IntArray
    batch: FloatArray
    fronts: tuple[IntArray, ...]
    low: IntArray
    high: IntArray
    end: FloatArray
    hopeless: Hopeless = _nothing_is_hopeless

    def of(self, steps: IntArray | BoolArray) -> "Descent":
        """The same points with some of the steps."""
        return replace(self, low=self.low[steps], high=self.high[steps], end=self.end[steps])

    def beaten(self, dip: float, *, at_any_speed: bool = False) -> BoolArray:
        """Whether points that hold beat all that may lie in each step, [m]; ``at_any_speed``: in rate alone.

        In it TPOT falls by ``dip`` at most, unless its upper end shows that it falls.
        """
        points, low, of = self.points, self.low, self.group[self.layout[self.low]]
        tpot = np.full(len(low), np.inf) if at_any_speed else points.tpot_s[low] * (1.0 - dip)
        most = points.rates[low] * (self.end / self.batch[low] / (1.0 - dip))[:, None]
        result = np.ones(len(low), dtype=bool)
        for number, front in enumerate(self.fronts):
            by = self.group[self.layout[front]]
            best = _best_at(by, points.tpot_s[front], points.sure[front, number], of, tpot)
            result &= best >= most[:, number]
        result |= self.hopeless(self.layout[low], tpot, most)
        return result & ((self.high < 0) | (points.tpot_s[self.high] >= points.tpot_s[low]))

    def tried(self, layout: IntArray, batch: FloatArray, evaluate: Evaluate) -> "Descent":
        """With further points."""
        return self.joined(layout, batch, evaluate(layout, batch)) if len(layout) else self

    def joined(self, layout: IntArray, batch: FloatArray, more: Points) -> "Descent":
        """With further points that were evaluated."""
        points, layouts = join_rows([self.points, more]), np.concatenate([self.layout, layout])
        new = len(self.layout) + np.flatnonzero(more.holds)
        reached = []
        for number, front in enumerate(self.fronts):
            rows = np.concatenate([front, new])
            best = fronts(-points.tpot_s[rows], points.sure[rows, number], self.group[layouts[rows]])
            reached.append(rows[best])
        return replace(
            self,
            points=points,
            layout=layouts,
            batch=np.concatenate([self.batch, batch]),
            fronts=tuple(reached),
        )


def descend(
    batches: FloatArray,
    group: IntArray,
    evaluate: Evaluate,
    *,
    whole: bool = False,
    hopeless: Hopeless = _nothing_is_hopeless,
) -> Descent:
    """Evaluate layouts over ascending ``batches``, coarse to fine; ``whole``: all of them, nothing is left out.

    Layouts of one ``group`` [layouts] are compared with each other, of different ones as far as they are ``hopeless``.
    A layout is given up above a batch that cannot grow.
    """
    width = 1 if whole else _coarsest(batches)
    found, place = _coarse(batches, width, group, evaluate)
    found = replace(found, hopeless=hopeless)
    while True:
        # NOTE: a point that cannot grow, or the last one, ends the step below it, and none begins there.
        matters = found.points.grows[found.low] & (place < len(batches) - 1)
        found, place = found.of(matters), place[matters]
        if not whole:
            worth = ~found.beaten(DIP)
            found, place = found.of(worth), place[worth]
        if width == 1:
            return found
        width //= 2
        inside = np.flatnonzero(place + width < len(batches))
        found = _halved(found, inside, batches[place[inside] + width], evaluate)
        place = np.concatenate([place, place[inside] + width])


def coarse(batches: FloatArray) -> FloatArray:
    """The batches of the coarsest pass."""
    return batches[:: _coarsest(batches)]


def _coarsest(batches: FloatArray) -> int:
    """Steps of the grid in one of the coarsest pass, a power of two: every pass halves it."""
    ratio = np.log(COARSEST_RATIO) / np.log(batches[1] / batches[0]) if len(batches) > 1 else 1.0
    return int(2 ** max(np.floor(np.log2(ratio + 1e-9)), 0.0))


def refine(found: Descent, evaluate: Evaluate, limits_s: Sequence[float]) -> IntArray:
    """Narrow the steps on which a TPOT limit, or another one, ends to hold: as long as what they hold may matter.

    Returns which of all points evaluated are those of the grid, or the last one found to hold in a step. Inside a step
    of the grid a larger batch is taken never to be faster, but for what may be the best; where holding ends more than
    once, the last end among the sections is narrowed.
    """
    grid = len(found.layout)
    parts = []
    for limit in limits_s:
        holds = found.points.holds & (found.points.tpot_s <= limit)
        ends = holds[found.low] & ~((found.high >= 0) & holds[found.high])
        parts.append((np.flatnonzero(ends), np.full(int(ends.sum()), limit)))
    steps, limit_s = (np.concatenate(column) for column in zip(*parts, strict=True))
    found = found.of(steps)
    last = [np.arange(grid)]
    for _ in range(SECTIONINGS):
        worth = ~(found.beaten(0.0) & found.beaten(DIP_NEAR_BEST, at_any_speed=True))
        last.append(found.low[~worth])
        found, limit_s = found.of(worth), limit_s[worth]
        found = _sectioned(found, limit_s, evaluate)
    kept = np.zeros(len(found.layout), dtype=bool)
    kept[np.concatenate([*last, found.low])] = True
    return np.flatnonzero(kept)


def _sectioned(found: Descent, limit_s: FloatArray, evaluate: Evaluate) -> Descent:
    """Every step narrowed to the section on which its limit ends to hold last."""
    ratio = (found.end / found.batch[found.low]) ** (1.0 / SECTIONS)
    batch = found.batch[found.low, None] * ratio[:, None] ** np.arange(SECTIONS + 1)
    known, tried = len(found.layout), (len(found.low), SECTIONS - 1)
    layout = np.repeat(found.layout[found.low], SECTIONS - 1)
    after = found.tried(layout, batch[:, 1:-1].reshape(-1), evaluate)
    holds = after.points.holds[known:].reshape(tried)
    holds &= after.points.tpot_s[known:].reshape(tried) <= limit_s[:, None]
    held = last_true(holds)
    new = known + np.arange(holds.size).reshape(tried)
    points = np.column_stack([found.low, new, found.high])
    row = np.arange(len(held))
    return replace(after, low=points[row, held], high=points[row, held + 1], end=batch[row, held + 1])


def _coarse(batches: FloatArray, width: int, group: IntArray, evaluate: Evaluate) -> tuple[Descent, IntArray]:
    """All layouts under every ``width``-th batch, each until it cannot grow; and the place of every point."""
    places = np.arange(0, len(batches), width)
    active, none, place = np.arange(len(group)), np.zeros(0, dtype=np.int64), []
    found: Descent | None = None
    while len(places):
        at_once = max(LOADS_AT_ONCE, ROWS_OF_A_CALL // max(len(active), 1))
        here, places = places[:at_once], places[at_once:]
        place.append(np.tile(here, len(active)))
        layout, batch = np.repeat(active, len(here)), batches[place[-1]]
        more = evaluate(layout, batch)
        if found is None:
            fronts = (none,) * more.rates.shape[1]
            found = Descent(group, more.nothing, none, batches[:0], fronts, none, none, batches[:0])
        found = found.joined(layout, batch, more)
        active = active[more.grows.reshape(len(active), len(here)).all(axis=1)]
        if not len(active):
            break
    assert found is not None
    rows, columns = found.layout, np.concatenate(place)
    # The next batch of the same layout, where it was evaluated.
    order = np.lexsort((columns, rows))
    follows = np.append(rows[order][1:] == rows[order][:-1], False)
    high = np.full(len(rows), -1, dtype=np.int64)
    high[order] = np.where(follows, np.append(order[1:], -1), -1)
    end = batches[np.minimum(columns + width, len(batches) - 1)]
    return replace(found, low=np.arange(len(rows)), high=high, end=end), columns


def _halved(found: Descent, steps: IntArray, middle: FloatArray, evaluate: Evaluate) -> Descent:
    """``steps`` of ``found`` cut at their batch ``middle``; the upper halves come after all others."""
    new = len(found.layout) + np.arange(len(steps))
    below, end = found.high.copy(), found.end.copy()
    below[steps], end[steps] = new, middle
    return replace(
        found.tried(found.layout[found.low[steps]], middle, evaluate),
        low=np.concatenate([found.low, new]),
        high=np.concatenate([below, found.high[steps]]),
        end=np.concatenate([end, found.end[steps]]),
    )


def _best_at(
    group: IntArray, tpot_s: FloatArray, rate: FloatArray, asked_group: IntArray, asked_tpot_s: FloatArray
) -> FloatArray:
    """Largest ``rate`` of a group within a TPOT, for every one that is asked [m]; zero where there is none.

    The points are fronts, group after group, and ascend in TPOT and rate.
    """
    place = np.searchsorted(_keys(group, tpot_s), _keys(asked_group, asked_tpot_s), side="right") - 1
    found = np.append(group, -1)[place] == asked_group
    return np.where(found, np.append(rate, 0.0)[place], 0.0)


def _keys(group: IntArray, tpot_s: FloatArray) -> npt.NDArray[np.complex128]:
    """Numbers [n] in the order of their groups, and of TPOT within a group: complex ones compare as pairs."""
    keys = np.empty(len(group), dtype=np.complex128)
    keys.real, keys.imag = group, tpot_s
    return keys
