"""A long plan taken apart: periods each for itself, under bounds on what is reserved; a plan and a bound of any."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.planning.options import Options, Supply

# Periods whose cost differs by less than this share cost the same.
_SAME = 1e-4
Solver = Callable[..., tuple[IntArray, float] | None]
Cost = Callable[[IntArray], float]


@dataclass(frozen=True, slots=True)
class Taken:
    """A plan [options, periods], its cost in USD, and what no plan can cost less than."""

    copies: IntArray
    usd: float
    bound: float


@dataclass(frozen=True, slots=True)
class _Periods:
    """Least hourly cost of every period [periods] with so much reserved, and copies [options, periods] of it."""

    usd: FloatArray
    copies: IntArray


class PeriodByPeriod:
    """Searches over what is reserved; each period by itself.

    ``solver(supply, demand, before)`` gives copies of one period and a bound of its cost, ``cost`` that of a schedule.
    What starts cost is bounded by the rises of the hourly cost: GPUs that cost a dollar more an hour have been started.
    """

    def __init__(
        self, options: Options, supply: Supply, demand: FloatArray, hours: float, solver: Solver, cost: Cost
    ) -> None:
        self.options, self.supply, self.demand, self.hours = options, supply, demand, hours
        self.solver, self.cost = solver, cost
        self.kept = np.flatnonzero(supply.reserved)
        self.keep_usd = supply.usd_per_gpu_hour[self.kept] * hours * demand.shape[1]
        hourly = supply.start_hours[~supply.reserved]
        self.start_hours = min(float(hourly.min(initial=np.inf)), hours) if len(hourly) else 0.0

    def solve(self, gap: float, seconds: float) -> Taken | None:
        """The cheapest plan found, within ``gap`` of the bound or until ``seconds`` are over; None: there is none."""
        end = time.monotonic() + seconds
        most = self.supply.available[self.kept]
        whole = self._at(most)
        if whole is None:
            return None
        best = whole.copies
        usd = self.cost(best)
        boxes = [(self._bound(whole, 0 * most), 0, 0 * most, most, whole)]
        serial = 1
        while boxes:
            bound, _, low, high, periods = boxes[0]
            wide = (high - low) * self.keep_usd
            if bound >= usd * (1.0 - gap) or not wide.any() or time.monotonic() > end:
                break
            heappop(boxes)
            place = int(wide.argmax())
            middle, above = high.copy(), low.copy()
            middle[place] = (low[place] + high[place]) // 2
            above[place] = middle[place] + 1
            heappush(boxes, (self._bound(periods, above), serial, above, high, periods))
            less = self._at(middle)
            if less is not None:
                heappush(boxes, (self._bound(less, low), serial + 1, low, middle, less))
                found = self.cost(less.copies)
                best, usd = (less.copies, found) if found < usd else (best, usd)
            serial += 2
        bound = boxes[0][0] if boxes else usd
        calm = self._calm(best, end)
        if calm is not None and (found := self.cost(calm)) <= usd:
            best, usd = calm, found
        return Taken(best, usd, min(bound, usd))

    def _at(self, reserved: IntArray) -> _Periods | None:
        """Every period with ``reserved`` GPUs that cost nothing more; None where one cannot be served."""
        supply = self._with(reserved)
        found = each_period(self.demand, lambda demand: self.solver(supply, demand, None))
        return None if found is None else _Periods(found[1], found[0])

    def _with(self, reserved: IntArray) -> Supply:
        available = self.supply.available.copy()
        available[self.kept] = reserved
        price = np.where(self.supply.reserved, 0.0, self.supply.usd_per_gpu_hour)
        return replace(
            self.supply,
            available=available,
            usd_per_gpu_hour=price,
            reserved=np.zeros_like(self.supply.reserved),
        )

    def _bound(self, periods: _Periods, least: IntArray) -> float:
        """What a plan costs at least that reserves ``least`` or more, and not more than ``periods`` were given."""
        rises = float(np.maximum(np.diff(periods.usd, prepend=0.0), 0.0).sum()) / self.hours
        return float(periods.usd.sum()) + self.start_hours * rises + float((least * self.keep_usd).sum())

    def _calm(self, copies: IntArray, end: float) -> IntArray | None:
        """The plan again, period after period, now with an eye on what runs already; None if there is no time."""
        gpus = self.options.gpus[:, None] * copies
        reserved = np.array([gpus[self.options.hardware == h].sum(axis=0).max(initial=0) for h in self.kept])
        supply, before, found = self._with(reserved.astype(np.int64)), np.zeros_like(copies[:, 0]), []
        for t in range(copies.shape[1]):
            one = self.solver(supply, self.demand[:, t], before) if time.monotonic() < end else None
            if one is None:
                return None
            before = one[0]
            found.append(before)
        return np.stack(found, axis=1)


def each_period(
    demand: FloatArray, solver: Callable[[FloatArray], tuple[IntArray, float] | None]
) -> tuple[IntArray, FloatArray] | None:
    """Copies [options, periods] and a bound of the cost [periods] of every period alone; None where one has no plan.

    ``solver`` is asked for as few demands as possible: between two that cost the same, all others cost that too, and
    the copies of the larger one serve them.
    """
    levels, inverse = np.unique(demand.T, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    order = np.argsort(levels.sum(axis=1), kind="stable")
    found: dict[int, tuple[IntArray, float]] = {}

    def solved(place: int) -> bool:
        at = int(order[place])
        if at not in found:
            one = solver(levels[at])
            if one is None:
                return False
            found[at] = one
        return True

    spans = [(0, len(order) - 1)]
    while spans:
        low, high = spans.pop()
        if not (solved(high) and solved(low)):
            return None
        below, above = found[int(order[low])], found[int(order[high])]
        inner = order[low + 1 : high]
        rising = bool((np.diff(levels[order[low : high + 1]], axis=0) >= 0.0).all())
        if rising and above[1] <= below[1] * (1.0 + _SAME):
            found |= {int(at): (above[0], below[1]) for at in inner}
        elif len(inner):
            middle = (low + high) // 2
            spans += [(low, middle), (middle, high)]
    copies = np.stack([found[int(at)][0] for at in inverse], axis=1)
    return copies, np.array([found[int(at)][1] for at in inverse])
