"""The mixed-integer program of a plan, solved by HiGHS through scipy: copies of every deployment in every period."""

import time
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from afd_dse.errors import AfdDseError
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.planning.options import Options, Supply, lost_rate
from afd_dse.planning.periods import PeriodByPeriod, Taken, each_period

# A plan within half a hundredth of the optimum is as good as the numbers that it rests on.
GAP = 5e-3
SECONDS = 40.0
# Programs with more copies to decide than this are taken apart first.
_LONG = 200
_PERIOD_GAP, _PERIOD_SECONDS = 1e-4, 2.0
# Of the price of a start, what one counts at least: equal plans start less.
_CALM = 1e-3
_TIE = 1e-7  # USD a GPU-hour, relative to the dearest
_INFEASIBLE, _LIMIT = 2, 1


@dataclass(frozen=True, slots=True)
class Terms:
    """What the plan is made under: length of a period, headroom, redundancy."""

    period_hours: float
    headroom: float
    redundancy: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """Copies [options, periods], GPUs reserved [hardware], cost in USD; ``gap`` to the best bound, relative."""

    copies: IntArray
    reserved: IntArray
    usd: float
    gap: float


class _Rows:
    """Linear constraints, collected entry by entry."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, entries: list[tuple[int, float]], low: float, high: float) -> None:
        for column, value in entries:
            self.rows.append(len(self.low))
            self.columns.append(column)
            self.values.append(value)
        self.low.append(low)
        self.high.append(high)

    def constraint(self, variables: int) -> LinearConstraint:
        shape = (len(self.low), variables)
        return LinearConstraint(
            coo_array((self.values, (self.rows, self.columns)), shape=shape).tocsr(), self.low, self.high
        )


def solve(
    options: Options,
    supply: Supply,
    demand: FloatArray,
    terms: Terms,
    *,
    seconds: float = SECONDS,
) -> Schedule | None:
    """The cheapest schedule that serves ``demand`` [classes, periods] in requests/s; None where there is none.

    Variables: copies x[o, t], starts s[o, t] ≥ x[o, t] − x[o, t−1], reserved GPUs n[h], and with redundancy whether an
    option is used, y[o, t]. In every period the capacity of a class, less what one failure of any used option takes
    away, times (1 − headroom), is at least its demand. A long program is taken apart first
    (:mod:`afd_dse.planning.periods`), and solved whole only in the time that is left, if that is not good enough.
    """
    start = time.monotonic()
    taken = None
    if demand.shape[1] > 1 and len(options) * demand.shape[1] > _LONG:
        taken = _taken_apart(options, supply, demand, terms, seconds / 2.0)
        if taken is None:
            return None
        if taken.bound >= taken.usd * (1.0 - GAP):
            return _schedule(options, supply, terms, taken.copies, taken.bound)
    left = seconds - (time.monotonic() - start)
    found = _whole(options, supply, demand, terms, seconds=left, gap=GAP)
    if found is None:
        return None
    plans = [copies for copies in (None if taken is None else taken.copies, found[0]) if copies is not None]
    if not plans:
        raise AfdDseError("the solver found no plan in its time; use fewer periods or classes")
    best = min(plans, key=lambda copies: cost_of(options, supply, terms, copies)[0])
    return _schedule(options, supply, terms, best, max(found[1], 0.0 if taken is None else taken.bound))


def _schedule(options: Options, supply: Supply, terms: Terms, copies: IntArray, bound: float) -> Schedule:
    usd, reserved = cost_of(options, supply, terms, copies)
    return Schedule(copies, reserved, usd, max(1.0 - bound / usd, 0.0) if usd > 0.0 else 0.0)


def _taken_apart(
    options: Options, supply: Supply, demand: FloatArray, terms: Terms, seconds: float
) -> Taken | None:
    def period(alone: Supply, wanted: FloatArray, before: IntArray | None) -> tuple[IntArray, float] | None:
        found = _whole(
            options,
            alone,
            wanted[:, None],
            terms,
            seconds=_PERIOD_SECONDS,
            gap=_PERIOD_GAP,
            before=before,
            starts=before is not None,
        )
        if found is None:
            return None
        if found[0] is None:
            raise AfdDseError(
                "the solver found no plan of a period in its time; use fewer classes or hardware"
            )
        return found[0][:, 0], found[1]

    def cost(copies: IntArray) -> float:
        return cost_of(options, supply, terms, copies)[0]

    return PeriodByPeriod(options, supply, demand, terms.period_hours, period, cost).solve(GAP, seconds)


def _whole(
    options: Options,
    supply: Supply,
    demand: FloatArray,
    terms: Terms,
    *,
    seconds: float,
    gap: float,
    before: IntArray | None = None,
    starts: bool = True,
) -> tuple[IntArray | None, float] | None:
    """The program at once: copies [options, periods], if any were found, and a bound of the cost; None: infeasible.

    ``before`` [options] runs already; without ``starts`` these cost nothing.
    """
    count, periods, kinds = len(options), demand.shape[1], len(supply.names)
    lost = lost_rate(options, supply, terms.redundancy)
    redundant = terms.redundancy != "none"
    x, s, n = 0, count * periods, 2 * count * periods
    y = n + kinds
    variables = y + (count * periods if redundant else 0)
    gpus, rate = options.gpus.astype(np.float64), options.requests_per_s
    # No optimal plan has more copies than serve the peak of their class alone, the worst failure included.
    needed = demand.max(axis=1)[options.of_class] / (1.0 - terms.headroom)
    worst = np.array([lost[options.of_class == k].max(initial=0.0) for k in range(demand.shape[0])])
    most = np.minimum(
        np.ceil((needed + worst[options.of_class]) / rate) + 1.0,
        supply.available[options.hardware] // options.gpus,
    )
    rows = _Rows()
    for t in range(periods):
        for o in range(count):
            entries = [(s + o * periods + t, 1.0), (x + o * periods + t, -1.0)]
            if t:
                entries.append((x + o * periods + t - 1, 1.0))
            rows.add(entries, 0.0 if before is None else -float(before[o]), np.inf)
        for h in range(kinds):
            members = np.flatnonzero(options.hardware == h)
            entries = [(x + int(o) * periods + t, gpus[o]) for o in members]
            if supply.reserved[h]:
                rows.add([*entries, (n + h, -1.0)], -np.inf, 0.0)
            elif entries:
                rows.add(entries, -np.inf, float(supply.available[h]))
        for k in range(demand.shape[0]):
            members = np.flatnonzero(options.of_class == k)
            least = demand[k, t] / (1.0 - terms.headroom)
            entries = [(x + int(o) * periods + t, rate[o]) for o in members]
            # Whatever is used, at least the smallest loss must be borne: not needed, but it lets the solver see it.
            borne = float(lost[members].min()) if len(members) and demand[k, t] > 0.0 else 0.0
            rows.add(entries, least + borne, np.inf)
            if redundant and demand[k, t] > 0.0:
                for o in map(int, members):
                    rows.add([*entries, (y + o * periods + t, -lost[o])], least, np.inf)
                    rows.add([(x + o * periods + t, 1.0), (y + o * periods + t, -most[o])], -np.inf, 0.0)
    cost = np.zeros(variables)
    hourly = np.where(supply.reserved, 0.0, supply.usd_per_gpu_hour)[options.hardware] * gpus
    start = hourly * supply.start_hours[options.hardware] + supply.start_usd_per_gpu[options.hardware] * gpus
    cost[x:s] = np.repeat(hourly * terms.period_hours, periods)
    # GPUs that cost nothing are not taken for nothing: of equal plans the smallest is the answer.
    tie = _TIE * max(float(supply.usd_per_gpu_hour.max(initial=0.0)), 1.0) * terms.period_hours
    cost[x:s] += np.repeat(tie * gpus, periods)
    if before is not None:
        price = np.maximum(supply.usd_per_gpu_hour, float(supply.usd_per_gpu_hour.max(initial=0.0)))
        start = np.maximum(start, _CALM * price[options.hardware] * gpus)
    cost[s:n] = np.repeat(start if starts else np.zeros(count), periods)
    cost[n:y] = np.where(supply.reserved, supply.usd_per_gpu_hour * terms.period_hours * periods, 0.0)
    upper = np.full(variables, np.inf)
    upper[x:s] = np.repeat(most, periods)
    upper[n:y] = supply.available
    upper[y:] = 1.0
    integral = np.ones(variables)
    integral[s:n] = 0.0  # starts are differences of whole numbers
    found = milp(
        cost,
        constraints=rows.constraint(variables),
        bounds=Bounds(np.zeros(variables), upper),
        integrality=integral.astype(np.int64),
        options={"time_limit": max(seconds, 1.0), "mip_rel_gap": gap},
    )
    if found.status == _INFEASIBLE:
        return None
    if found.x is None and found.status != _LIMIT:
        raise AfdDseError(f"the solver failed ({found.message})")
    bound = 0.0 if found.mip_dual_bound is None else float(found.mip_dual_bound)
    bound = max(bound - tie * float(supply.available.sum()) * periods, 0.0)
    if found.x is None:
        return None, bound
    return np.rint(found.x[x:s]).astype(np.int64).reshape(count, periods), bound


def by_period(options: Options, supply: Supply, demand: FloatArray, terms: Terms) -> Schedule | None:
    """Every period at its own least cost, what starts and reservations cost not considered; None where one has no plan.

    Fast, and what a long program falls back to. ``gap`` is not known: 1.
    """
    free = replace(
        supply,
        reserved=np.zeros_like(supply.reserved),
        start_hours=np.zeros_like(supply.start_hours),
        start_usd_per_gpu=np.zeros_like(supply.start_usd_per_gpu),
    )

    def period(wanted: FloatArray) -> tuple[IntArray, float] | None:
        alone = solve(options, free, wanted[:, None], terms, seconds=_PERIOD_SECONDS)
        return None if alone is None else (alone.copies[:, 0], alone.usd)

    found = each_period(demand, period)
    if found is None:
        return None
    copies = found[0]
    usd, reserved = cost_of(options, supply, terms, copies)
    return Schedule(copies, reserved, usd, 1.0)


def cost_of(options: Options, supply: Supply, terms: Terms, copies: IntArray) -> tuple[float, IntArray]:
    """USD of a schedule [options, periods], and the GPUs that it needs reserved [hardware]."""
    running, starts = period_costs(options, supply, terms, copies)
    reserved = np.zeros(len(supply.names), dtype=np.int64)
    for h in np.flatnonzero(supply.reserved):
        gpus = options.gpus[:, None] * copies
        reserved[h] = gpus[options.hardware == h].sum(axis=0).max(initial=0)
    kept = float((reserved * supply.usd_per_gpu_hour).sum()) * terms.period_hours * copies.shape[1]
    return float(running.sum() + starts.sum()) + kept, reserved


def period_costs(
    options: Options, supply: Supply, terms: Terms, copies: IntArray
) -> tuple[FloatArray, FloatArray]:
    """USD of running and of starting copies [hardware, periods] each, reservations apart."""
    gpus = options.gpus[:, None] * copies
    started = options.gpus[:, None] * np.maximum(np.diff(copies, axis=1, prepend=0), 0)
    hourly = np.where(supply.reserved, 0.0, supply.usd_per_gpu_hour)[options.hardware][:, None]
    start = hourly * supply.start_hours[options.hardware][:, None]
    start = start + supply.start_usd_per_gpu[options.hardware][:, None]
    running, starts = (np.zeros((len(supply.names), copies.shape[1])) for _ in range(2))
    np.add.at(running, options.hardware, hourly * gpus * terms.period_hours)
    np.add.at(starts, options.hardware, start * started)
    return running, starts


def most_load(options: Options, supply: Supply, demand: FloatArray, terms: Terms) -> float:
    """The largest multiple of ``demand`` [classes], requests/s at one time, that all the hardware together serves."""
    count, kinds = len(options), len(supply.names)
    lost = lost_rate(options, supply, terms.redundancy)
    redundant = terms.redundancy != "none"
    most = (supply.available[options.hardware] // options.gpus).astype(np.float64)
    variables = 1 + count + (count if redundant else 0)
    rows = _Rows()
    for h in range(kinds):
        members = np.flatnonzero(options.hardware == h)
        rows.add([(1 + int(o), float(options.gpus[o])) for o in members], -np.inf, float(supply.available[h]))
    for k, wanted in enumerate(demand):
        members = np.flatnonzero(options.of_class == k)
        entries = [(1 + int(o), float(options.requests_per_s[o])) for o in members]
        entries.append((0, -float(wanted) / (1.0 - terms.headroom)))
        rows.add(entries, 0.0, np.inf)
        if redundant:
            for o in map(int, members):
                rows.add([*entries, (1 + count + o, -lost[o])], 0.0, np.inf)
                rows.add([(1 + o, 1.0), (1 + count + o, -most[o])], -np.inf, 0.0)
    upper = np.concatenate([[np.inf], most, np.ones(count if redundant else 0)])
    cost = np.zeros(variables)
    cost[0] = -1.0
    integral = np.ones(variables)
    integral[0] = 0.0
    found = milp(
        cost,
        constraints=rows.constraint(variables),
        bounds=Bounds(np.zeros(variables), upper),
        integrality=integral.astype(np.int64),
        options={"time_limit": SECONDS, "mip_rel_gap": GAP},
    )
    if found.x is None:
        raise AfdDseError(f"the solver failed ({found.message})")
    return float(found.x[0])
