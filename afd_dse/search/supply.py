"""What prefill supplies: the largest request rate that meets the TTFT limit, for every number of prefill GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from afd_dse.cost.engines import Prefill, first_token
from afd_dse.cost.evaluate import MAX_UTILIZATION
from afd_dse.cost.memory import kv_bytes_of_request
from afd_dse.cost.scenario import Scenario
from afd_dse.network.traffic import exposed_transfer_seconds, kv_transfer_seconds
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import distinct_rows, ranges, take_rows
from afd_dse.search.pareto import front, non_dominated
from afd_dse.search.sides import Limits, PrefillSide, codes, limits_of, ports
from afd_dse.spec.cells import Phase

# Rates are met from below, so that rounding never pushes a pair over a limit.
RATE_MARGIN = 1.0 - 1e-9
# Units that keep their hand-over links busier than this are told apart by their number of links, too.
BUSY_LINKS = 0.25
# Halvings of the utilisation for all prefill units, and then for those that may still be best: 2⁻³¹ in all, less than
# rates are lowered by.
HALVINGS_OF_ALL = 8
HALVINGS = (3, 5, 23)
_TINY = 1e-12
# Choices, each under one limit, that are solved at once.
CHOICES_AT_ONCE = 200_000


@dataclass(frozen=True, slots=True)
class Receivers:
    """Decode units that receive KV alike: GPUs that hold one request, their pool, and whether prefill is near."""

    gpus: int
    pool: int
    inside: bool


@dataclass(frozen=True, slots=True)
class Supply:
    """The best prefill for every number of GPUs, columns [s].

    Admissible ``rate``, GPUs by pool, which unit and how many; ``transfer_s`` of one request over one of ``links``;
    ``served_s`` from the start of prefill to the first token at least.
    """

    rate: FloatArray
    gpus_by_pool: FloatArray
    unit: IntArray
    replicas: IntArray
    transfer_s: FloatArray
    links: FloatArray
    served_s: FloatArray


def repeated(units: FloatArray, rows: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Every row with 1, 2, … as many replicas as the cluster holds: rows and replicas."""
    sizes = units[rows]
    fits = (
        np.where(sizes > 0, counts / np.maximum(sizes, 1.0), np.inf).min(axis=1) if len(rows) else np.zeros(0)
    )
    number = np.floor(fits + 1e-9).astype(np.int64)
    replicas, of = ranges(np.ones_like(number), number)
    return rows[of], replicas


class Supplies:
    """The supplies of one prefill side, each worked out once."""

    def __init__(self, scenario: Scenario, side: PrefillSide) -> None:
        self.scenario, self.side = scenario, side
        self._choices = _choices(scenario, side, _useful_prefill(side))
        self._by_strength = np.lexsort((-self._choices.capacity, self._choices.alike))
        self._most_senders = int(ports(side.candidates, Phase.PREFILL).max(initial=0))
        self._limits = limits_of(scenario)
        self._known: dict[tuple[Limits, Receivers], Supply] = {}
        taken = self._choices.gpus_by_pool.sum(axis=1) / np.maximum(self._choices.capacity, _TINY)
        # GPUs that a request/s of prefill takes at least.
        self.least_gpus_per_request = float(taken.min(initial=np.inf))

    def __call__(self, limit: Limits, to: Receivers) -> Supply:
        """Largest admissible request rate by prefill GPUs, for decode units that receive KV as ``to``."""
        # More ports than any sender has carry no more.
        to = replace(to, gpus=min(to.gpus, self._most_senders))
        if (limit, to) not in self._known:
            choices = _handed_over(self.scenario, self.side, self._choices, to)
            # With this one those that will be asked for next: a call costs as much as thousands of rows.
            place = self._limits.index(limit)
            limits = self._limits[place : place + max(CHOICES_AT_ONCE // max(len(choices.unit), 1), 1)]
            found = _supplies(self.scenario, choices, self._by_strength, limits)
            self._known |= {(one, to): supply for one, supply in zip(limits, found, strict=True)}
        return self._known[limit, to]


@dataclass(frozen=True, slots=True)
class _Choices:
    """Prefill units with their number of replicas, columns [n]: what they do, GPUs by pool, links, KV transfer.

    Those that are ``alike`` take equal GPUs and links, hand KV over as fast, and are held to the same limits: TTFT at
    the SLO's percentile and in the mean, seconds, the ``number``-th of several.
    """

    unit: IntArray
    replicas: IntArray
    prefill: Prefill
    gpus_by_pool: FloatArray
    links: FloatArray
    alike: IntArray
    transfer_s: FloatArray
    number: IntArray
    ttft_s: FloatArray
    mean_ttft_s: FloatArray

    @property
    def capacity(self) -> FloatArray:
        """Requests/s if never idle [n]."""
        return self.prefill.capacity * self.replicas


def _choices(scenario: Scenario, side: PrefillSide, useful: IntArray) -> _Choices:
    """The units ``useful`` as often as they fit, KV not handed over yet, and held to no limits."""
    c = side.candidates
    unit, replicas = repeated(side.units.gpus_by_pool, useful, scenario.pool_counts)
    gpus = side.units.gpus_by_pool[unit] * replicas[:, None]
    links = c.number("prefill_dp")[unit] * replicas
    senders = [ports(c, Phase.PREFILL)[unit], c.integer("prefill_attention_pool")[unit]]
    alike = distinct_rows([*gpus.T, links, *senders])[1] if len(unit) else unit
    prefill = take_rows(side.units.prefill, unit)
    at_once, none = np.zeros(len(unit)), np.full(len(unit), np.inf)
    return _Choices(unit, replicas, prefill, gpus, links, alike, at_once, np.zeros_like(unit), none, none)


def _held_to(choices: _Choices, limits: Sequence[Limits]) -> _Choices:
    """All choices under each of ``limits``, one after the other."""
    count = len(choices.unit)
    number = np.repeat(np.arange(len(limits)), count)
    every = choices if len(limits) == 1 else take_rows(choices, np.tile(np.arange(count), len(limits)))
    return replace(
        every,
        alike=every.alike + number * count,
        number=number,
        ttft_s=np.array([limit.ttft_s for limit in limits])[number],
        mean_ttft_s=np.array([limit.mean_ttft_s for limit in limits])[number],
    )


def _handed_over(scenario: Scenario, side: PrefillSide, choices: _Choices, to: Receivers) -> _Choices:
    """The choices with the time that one request's KV takes to decode units that receive it as ``to``."""
    c, unit = side.candidates, choices.unit
    transfer = kv_transfer_seconds(
        scenario.tiers,
        from_pool=c.integer("prefill_attention_pool")[unit],
        to_pool=np.full(len(unit), to.pool),
        senders=ports(c, Phase.PREFILL)[unit],
        receivers=np.full(len(unit), to.gpus),
        fits_domain=np.full(len(unit), to.inside),
        kv_bytes=np.full(len(unit), kv_bytes_of_request(scenario)),
    )
    return replace(choices, transfer_s=transfer)


def rates_of_units(scenario: Scenario, side: PrefillSide, limit: Limits, to: Receivers) -> FloatArray:
    """About the largest request rate of every prefill unit that meets the TTFT limit, memory not looked at, [n].

    A unit is repeated as often as it fits, which shortens the wait.
    """
    choices = _choices(scenario, side, np.arange(len(side.candidates)))
    choices = take_rows(choices, np.flatnonzero(np.append(choices.unit[1:] != choices.unit[:-1], True)))
    choices = _held_to(_handed_over(scenario, side, choices, to), [limit])
    low, _ = _admissible(scenario, choices)
    rates = np.zeros(len(side.candidates))
    rates[choices.unit] = low * choices.prefill.capacity
    return rates


def _supplies(
    scenario: Scenario, choices: _Choices, by_strength: IntArray, limits: Sequence[Limits]
) -> list[Supply]:
    """What the choices supply under each of ``limits``."""
    every = (by_strength + len(choices.unit) * np.arange(len(limits))[:, None]).reshape(-1)
    found, low = _strongest(scenario, _held_to(choices, limits), every)
    parts = [np.flatnonzero(found.number == number) for number in range(len(limits))]
    return [_supply(scenario, take_rows(found, rows), low[rows]) for rows in parts]


def _supply(scenario: Scenario, choices: _Choices, utilization: FloatArray) -> Supply:
    """The best of the choices, each at its largest admissible ``utilization`` [n]."""
    rate = utilization * choices.capacity
    ok = np.flatnonzero(rate > 0.0)
    columns = np.column_stack([rate, -choices.gpus_by_pool])[ok]
    # Where links may limit, more of them count as well.
    if links_limit(choices.transfer_s * rate / choices.links):
        carried = choices.links[ok] / choices.transfer_s[ok]
        best = ok[non_dominated(np.column_stack([columns, carried]))]
    else:
        best = ok[front(columns[:, 0], columns[:, 1]) if columns.shape[1] == 2 else non_dominated(columns)]
    chosen = take_rows(choices, best)
    exposed = exposed_transfer_seconds(chosen.transfer_s, chosen.prefill.service_s, scenario.model.layers)
    return Supply(
        rate[best] * RATE_MARGIN,
        chosen.gpus_by_pool,
        chosen.unit,
        chosen.replicas,
        chosen.transfer_s,
        chosen.links,
        chosen.prefill.alone_s + exposed,
    )


def _strongest(scenario: Scenario, choices: _Choices, by_strength: IntArray) -> tuple[_Choices, FloatArray]:
    """Of choices that are alike those that may supply most, and their largest admissible utilisations.

    ``by_strength`` are the rows in the order of what is alike, and then of falling capacity.
    """
    idle = _in_time_when_idle(scenario, choices)
    # What one supplies for sure, most that are alike could not at any utilisation: the strongest comes first.
    ordered = by_strength[idle[by_strength]]
    leading = ordered[np.diff(choices.alike[ordered], prepend=-1) > 0]
    low, _ = _admissible(scenario, take_rows(choices, leading))
    surest = np.zeros(len(choices.unit))
    surest[choices.alike[leading]] = low * choices.capacity[leading]
    closer = np.flatnonzero(idle & (choices.capacity * MAX_UTILIZATION >= surest[choices.alike]))
    choices = take_rows(choices, closer)
    low, high = _bracket(scenario, choices)
    for halvings in HALVINGS:
        low, high = _halved(scenario, choices, (low, high), halvings)
        np.maximum.at(surest, choices.alike, low * choices.capacity)
        closer = np.flatnonzero((high > 0.0) & (high * choices.capacity >= surest[choices.alike]))
        choices, low, high = take_rows(choices, closer), low[closer], high[closer]
    return choices, low


def _in_time_when_idle(scenario: Scenario, choices: _Choices) -> npt.NDArray[np.bool_]:
    """Whether the first token of a request that meets no other comes in time; replicas are then all the same."""
    new = (np.diff(choices.unit, prepend=-1) != 0) | (np.diff(choices.number, prepend=0) != 0)
    units = take_rows(choices, np.flatnonzero(new))
    in_time = _in_time(scenario, units, np.zeros(len(units.unit)))
    return np.asarray(in_time[np.cumsum(new) - 1], dtype=bool)


def _admissible(scenario: Scenario, choices: _Choices) -> tuple[FloatArray, FloatArray]:
    """About the largest utilisation at which the first token comes in time, from below and above [n]."""
    return _halved(scenario, choices, _bracket(scenario, choices), HALVINGS_OF_ALL)


def _bracket(scenario: Scenario, choices: _Choices) -> tuple[FloatArray, FloatArray]:
    """Utilisations between which the largest one lies at which the first token comes in time, [n]; (0, 0) where none.

    TTFT grows with the utilisation.
    """
    none, most = np.zeros(len(choices.unit)), np.full(len(choices.unit), MAX_UTILIZATION)
    low = np.where(_in_time(scenario, choices, most), most, none)
    return low, np.where(_in_time(scenario, choices, low), most, none)


def _halved(
    scenario: Scenario,
    choices: _Choices,
    bracket: tuple[FloatArray, FloatArray],
    halvings: int,
) -> tuple[FloatArray, FloatArray]:
    """A bracket of :func:`_bracket`, narrowed."""
    low, high = bracket
    for _ in range(halvings):
        middle = (low + high) / 2.0
        ok = _in_time(scenario, choices, middle)
        low, high = np.where(ok, middle, low), np.where(ok, high, middle)
    return np.minimum(low, high), high


def _in_time(scenario: Scenario, choices: _Choices, utilization: FloatArray) -> npt.NDArray[np.bool_]:
    """Whether the first token comes in time at ``utilization`` [n]."""
    ok = np.ones(len(utilization), dtype=bool)
    for budget, percentile in ((choices.ttft_s, scenario.slo.percentile), (choices.mean_ttft_s, 50.0)):
        if np.isfinite(budget).any():
            found = first_token(
                scenario,
                choices.prefill,
                choices.replicas.astype(np.float64),
                utilization,
                choices.transfer_s,
                percentile,
            )
            ok &= found.ttft_s <= budget
    return ok


def links_limit(busy: FloatArray) -> bool:
    """Whether handing KV over takes much of the links' time [n] anywhere."""
    return bool(len(busy)) and bool(busy.max() > BUSY_LINKS)


def _useful_prefill(side: PrefillSide) -> IntArray:
    """Prefill units that fit into memory and that no unit of the same size, KV ports and attention ranks beats.

    A unit beats another that has no more capacity and serves no faster: neither a prompt alone, nor a full step, nor by
    what a further prompt adds. At equal capacity a shorter service means fewer servers, whose longer wait never
    outweighs it below the utilisation limit: k + P(k)/(2(1 − ρ)) grows with k.
    """
    u, c = side.units, side.candidates
    rows = np.flatnonzero(u.memory_slack >= 0).astype(np.int64)
    if not len(rows):
        return rows
    keys = [u.gpus_by_pool[rows], ports(c, Phase.PREFILL)[rows], c.integer("prefill_dp")[rows]]
    alike = codes(np.column_stack([*keys, c.integer("prefill_attention_pool")[rows]]))
    p = u.prefill
    adds = (p.service_s - p.alone_s) / np.maximum(p.per_step - 1.0, 1.0)
    columns = np.column_stack([-(p.service_s + p.gate_s), -p.alone_s, -adds, p.capacity])[rows]
    return rows[non_dominated(columns, alike)]
