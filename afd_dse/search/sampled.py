"""Optuna where enumeration ends: a surrogate's proposals, moves and NSGA-II, asked, evaluated and told in blocks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from afd_dse.cost.columns import ALL_COLUMNS
from afd_dse.cost.evaluation import CONSTRAINTS
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import join_rows
from afd_dse.search.crossing import evaluations
from afd_dse.search.encoding import LOAD_STEPS, SampledSpace
from afd_dse.search.joint import refine_batch
from afd_dse.search.moves import (
    FILLED_AT_ONCE,
    drawn_moves,
    fillings,
    gaps,
    moves,
    nearby_loads,
    neighbours,
    priorities,
)
from afd_dse.search.objective import Objective
from afd_dse.search.pareto import front
from afd_dse.search.pool import Found, pareto_rows, ranking
from afd_dse.search.prefill_sample import sample_prefill
from afd_dse.search.proposals import Front, Outlook, proposed
from afd_dse.search.space import Space
from afd_dse.search.storage import Crew, crew_of
from afd_dse.search.study import (
    DIRECTIONS,
    POPULATION,
    new_study,
    read,
    sampler,
    study_name,
    suggest,
    tell,
)
from afd_dse.search.supply import Supplies
from afd_dse.search.surrogate import Surrogate, features
from afd_dse.search.trials import DecodeTrials, Deployments, Trials, most_pairs
from afd_dse.spec.cells import Partition, Phase

DEFAULT_TRIALS = 800
# Draws over the whole space that a study begins with, as share of the trials, and at most.
SPREAD = 0.15
MOST_SPREAD = 90
# How many of the best, and of the front, of a smaller space a study begins with.
STARTS = 50
# What is learnt of a generation decides the next: so many at least, unless they were very small.
GENERATIONS = 20
LEAST_GENERATION = 4
# Share of a generation that a surrogate proposes, once so many candidates are known, and most that it is fitted to.
PROPOSED = 0.75
LEARNT = 20
FITTED = 600
# Share of a generation that are moves from the front; NSGA-II draws the rest.
MOVED = 0.1
# Best layouts by the objective that are moved from as well, and how often relative to the front.
LEADERS = 8
LED = 0.3
# Times that NSGA-II is asked for one candidate that is new.
ATTEMPTS = 3
# Evaluations that fill the gaps of the front at the end, as share of the trials.
FILLED = 0.05
# Area under the front counts from this share of the speed that the TPOT limit asks for.
SLOWEST = 0.95
# Best layouts whose load is refined up to the limits, as share of the trials, and at most.
REFINED = 0.01
MOST_REFINED = 4
# Prefill units that are evaluated where phases have GPUs of their own, as share of the trials, and at least.
PREFILL = 0.05
LEAST_PREFILL = 20
# Near-miss violations are compared on this scale; a worse one says nothing more.
WORST_VIOLATION = 1e6
_TINY = 1e-9
# How many of the least infeasible are moved from while nothing is feasible.
NEAREST = 5


@dataclass(slots=True)
class _Archive:
    """Every distinct candidate of a study in the order of evaluation."""

    space: SampledSpace
    trials: Trials
    slowest: float
    pools: int
    rows: list[IntArray] = field(default_factory=list)
    speed: list[float] = field(default_factory=list)
    throughput: list[float] = field(default_factory=list)
    score: list[float] = field(default_factory=list)
    violation: list[FloatArray] = field(default_factory=list)
    known: dict[bytes, int] = field(default_factory=dict)
    layouts: set[bytes] = field(default_factory=set)
    features: list[FloatArray] = field(default_factory=list)
    targets: list[FloatArray] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def holds(self, row: IntArray) -> bool:
        """Whether the canonical parameter set has been evaluated."""
        return row.tobytes() in self.known

    def add(self, rows: list[IntArray]) -> None:
        """Evaluate those canonical parameter sets that are new, in one block."""
        fresh = {row.tobytes(): row for row in rows if not self.holds(row)}
        if not fresh:
            return
        table = np.stack(list(fresh.values()))
        block = self.space.decode(table)
        found = self.trials.measure(block)
        for key, row in fresh.items():
            self.known[key] = len(self.rows)
            self.rows.append(row)
        self.layouts.update(row.tobytes() for row in self.space.layouts(table))
        self.features += list(features(block, self.pools))
        self.targets += list(found.targets)
        self.speed += found.speed.tolist()
        self.throughput += found.throughput.tolist()
        self.score += found.score.tolist()
        self.violation += list(np.clip(-found.slack, -WORST_VIOLATION, WORST_VIOLATION))

    @property
    def feasible(self) -> IntArray:
        """Positions of those that meet every limit."""
        return np.flatnonzero((np.stack(self.violation) <= 0.0).all(axis=1))

    def front(self) -> tuple[IntArray, FloatArray]:
        """Parameter sets of the feasible front, fastest first, with the area that each leaves open to the next.

        While nothing is feasible, those that violate the limits least, which are all alike.
        """
        feasible, table = self.feasible, np.stack(self.rows)
        if not len(feasible):
            total = np.clip(np.stack(self.violation), 0.0, None).sum(axis=1)
            nearest = np.argsort(total, kind="stable")[:NEAREST]
            return table[nearest], np.ones(len(nearest))
        speed, throughput = np.array(self.speed)[feasible], np.array(self.throughput)[feasible]
        best = front(speed, throughput)
        return table[feasible[best]], gaps(speed[best], throughput[best])

    def outlook(self) -> Outlook:
        """What to expect of others, by the known candidates nearest to the front."""
        feasible = self.feasible
        speed, throughput = np.array(self.speed), np.array(self.throughput)
        reached = Front.of(speed[feasible], throughput[feasible], self.slowest)
        behind = _behind(reached, speed, throughput, np.stack(self.violation))
        rows = _telling(behind)
        fitted = Surrogate(np.stack(self.features)[rows], np.stack(self.targets)[rows])
        return Outlook(fitted, self.trials.reach, reached, self.pools)

    def leaders(self, count: int) -> IntArray:
        """Feasible parameter sets of the best scores, one a layout, at most ``count``."""
        score = np.array(self.score)
        ranked = np.argsort(-score, kind="stable")
        ranked = ranked[np.isfinite(score[ranked])]
        table = np.stack(self.rows)[ranked]
        layouts = self.space.layouts(table)
        first = np.sort(np.unique(layouts, axis=0, return_index=True)[1]) if len(table) else ranked
        leading: IntArray = table[first[:count]]
        return leading


def search_sampled(
    scenario: Scenario,
    space: Space,
    partition: Partition,
    objective: Objective,
    *,
    seed: int,
    trials: int | None,
    journal: str | None,
    progress: Callable[[int], None],
    start: Found | None = None,
) -> tuple[Found | None, int]:
    """Sample a partition on tokens/s/GPU and tokens/s/user under all constraints.

    ``trials`` distinct candidates are drawn: those that a surrogate expects to widen the front most, neighbours of the
    front by preference where it has gaps, and children by NSGA-II. Then loads between those drawn fill the front. Where
    phases have GPUs of their own, candidates are decode units, which are paired with sampled prefill units. With
    ``journal`` (a file) an interrupted study is continued; ``trials`` counts what the journal already holds, and what
    follows depends only on that and the seed. A study begins with the best and the front of ``start``. Returns what is
    worth keeping and the number of candidates evaluated.
    """
    sampled = SampledSpace(scenario, space, partition)
    if sampled.empty:
        return None, 0
    wanted = DEFAULT_TRIALS if trials is None else trials
    kind, supplied = trials_of(scenario, space, partition, objective, start, wanted, seed)
    if kind is None:
        return None, supplied
    archive = _Archive(sampled, kind, SLOWEST / scenario.slo.tpot_s, len(scenario.pools))
    with crew_of(journal, study_name(scenario, space, partition, seed), DIRECTIONS, wanted) as crew:
        study = new_study()
        _take_in(study, archive, crew)
        if not crew.alone:  # processes at work draw apart
            seed = int(np.random.default_rng().integers(2**32))
        beginning = _beginning(scenario, objective, sampled, start, seed, wanted)
        if not crew.alone:
            np.random.default_rng(seed).shuffle(beginning)
        generation = min(max(wanted // GENERATIONS, LEAST_GENERATION), POPULATION)
        _draw(study, archive, beginning, seed, crew, generation, progress)
    if not len(archive):
        return None, supplied
    _fill(archive, round(FILLED * len(archive)))
    found, paired = kind.found()
    evaluated = supplied + len(archive) + paired
    if found is None:
        return start, evaluated
    refined = _refine(scenario, objective, found, sampled.batch_ratio, _refined(wanted))
    evaluated += evaluations(len(refined)) + len(refined)
    return join_rows([part for part in (found, start, refined) if part]), evaluated


def trials_of(
    scenario: Scenario,
    space: Space,
    partition: Partition,
    objective: Objective,
    start: Found | None,
    wanted: int,
    seed: int,
) -> tuple[Trials | None, int]:
    """What the trials are, and how many evaluations preparing them took; None where no prefill unit fits."""
    if partition.is_joint:
        return Deployments(scenario, partition, objective), 0
    rows = _prefill_rows(wanted)
    pairs = None if start is None else start.candidates
    prefill = sample_prefill(scenario, partition, space.grid(partition, Phase.PREFILL), rows, seed, pairs)
    if not len(prefill.candidates):
        return None, 0
    supplies = Supplies(scenario, prefill)
    return DecodeTrials(scenario, partition, objective, supplies), len(prefill.candidates)


def _prefill_rows(trials: int) -> int:
    return max(round(PREFILL * trials), LEAST_PREFILL)


def _refined(trials: int) -> int:
    return min(max(round(REFINED * trials), 1), MOST_REFINED)


def evaluations_of(trials: int, partition: Partition) -> int:
    """Evaluations that a search of so many trials takes at most."""
    drawn = trials + round(FILLED * trials)
    one_refined = evaluations(1) + 1
    if partition.is_joint:
        return drawn + one_refined * _refined(trials)
    return drawn + one_refined * _refined(trials) + _prefill_rows(trials) + most_pairs(drawn)


def _refine(scenario: Scenario, objective: Objective, found: Found, ratio: float, most: int) -> Found:
    """The best layouts, at most ``most``, at the largest load that the limits admit within a step of the grid."""
    ranked = ranking(scenario, objective, found)
    columns = [found.candidates.number(name)[ranked] for name in ALL_COLUMNS if name != "batch_size"]
    first = np.sort(np.unique(np.column_stack(columns), axis=0, return_index=True)[1])
    return refine_batch(scenario, objective, found.take(ranked[first[:most]]), ratio)


def _beginning(
    scenario: Scenario, objective: Objective, space: SampledSpace, start: Found | None, seed: int, wanted: int
) -> list[IntArray]:
    """Canonical parameter sets that a study begins with: what a smaller space found, then a Latin hypercube."""
    rng = np.random.default_rng(seed)
    spread = max(min(round(SPREAD * wanted), MOST_SPREAD), 1)
    anywhere = space.drawn(_latin_hypercube(space.sizes, spread, rng), rng)
    if start is None:
        return list(anywhere)
    rows = np.concatenate([ranking(scenario, objective, start)[:STARTS], pareto_rows(start)[:STARTS]])
    return [*space.encode(start.candidates.take(np.unique(rows))), *anywhere]


def _latin_hypercube(sizes: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Parameter sets [count, parameters] whose values of each parameter, of so many ``sizes``, are evenly spread.

    Here, since to import ``scipy.stats`` for it takes longer than to evaluate a generation.
    """
    strata = rng.permuted(np.tile(np.arange(count), (len(sizes), 1)), axis=1).T
    return ((strata + rng.random(strata.shape)) / count * sizes).astype(np.int64)


def _take_in(study: optuna.Study, archive: _Archive, crew: Crew) -> None:
    """Learn what was told before, or by other processes, batch by batch as it was told."""
    space = archive.space
    for batch in crew.fetch():
        study.add_trials(batch)
        archive.add(list(space.canonical(np.stack([read(trial, space.parameters) for trial in batch]))))


def _draw(
    study: optuna.Study,
    archive: _Archive,
    beginning: list[IntArray],
    seed: int,
    crew: Crew,
    generation: int,
    progress: Callable[[int], None],
) -> None:
    """Ask, evaluate and tell ``generation`` after generation until all that are wanted are known, or none is new."""
    more = 1
    while more:
        with crew.batch(generation) as size:
            _take_in(study, archive, crew)
            asked = _generation(study, archive, beginning, seed, size) if size else []
            told = _evaluated(study, archive, crew, asked)
            crew.publish(told)
        more = len(asked)
        if told:
            progress(len(told))


def _generation(
    study: optuna.Study, archive: _Archive, beginning: list[IntArray], seed: int, size: int
) -> list[tuple[Trial | None, IntArray]]:
    """Ask for ``size`` trials; fewer, or none, where nothing is new."""
    waiting = {row.tobytes(): row for row in beginning if not archive.holds(row)}
    chosen = list(waiting.values())[:size]
    rng = np.random.default_rng([seed, len(archive)])
    if len(chosen) < size and len(archive):
        chosen += _better(archive, rng, size - len(chosen), size)
    study.sampler = sampler(seed, len(archive))
    return _ask(study, archive, chosen, size)


def _better(archive: _Archive, rng: np.random.Generator, room: int, size: int) -> list[IntArray]:
    """New parameter sets that are likely better, at most ``room``: of ``size`` the shares proposed and moved."""
    space, steps = archive.space, moves(archive.space)
    rows, area = archive.front()
    leaders = archive.leaders(LEADERS)
    good = np.concatenate([rows, leaders])
    chosen: list[IntArray] = []
    if len(archive) >= LEARNT:
        chosen = proposed(
            space,
            nearby_loads(space, steps),
            good,
            np.stack(archive.rows),
            archive.outlook(),
            rng,
            min(max(round(PROPOSED * size), 1), room),
        )
    taken = {row.tobytes() for row in space.layouts(np.stack(chosen))} if chosen else set()
    chance = np.concatenate([priorities(area), np.full(len(leaders), LED / max(len(leaders), 1))])
    share = MOVED if len(archive) >= LEARNT else MOVED + PROPOSED

    def known(row: IntArray) -> bool:
        layout = space.layouts(row[None, :]).tobytes()
        return layout in archive.layouts or layout in taken

    return chosen + drawn_moves(
        good,
        chance / chance.sum(),
        partial(neighbours, space, steps),
        known,
        rng,
        min(max(round(share * size), 1), room - len(chosen)),
    )


def _behind(reached: Front, speed: FloatArray, throughput: FloatArray, violation: FloatArray) -> FloatArray:
    """How far candidates are from the front, in logarithms of a factor, and from the limits [n]."""
    beyond: FloatArray = np.clip(violation, 0.0, None).sum(axis=1)
    if not len(reached.speed):
        return beyond
    behind = np.maximum(
        np.log(reached.speed / speed[:, None]),
        np.log(reached.throughput / np.maximum(throughput, _TINY)[:, None]),
    ).min(axis=1)
    result: FloatArray = np.abs(behind) + beyond
    return result


def _telling(behind: FloatArray) -> IntArray:
    """Up to FITTED candidates by which others are judged: those nearest to the front, and as many of the rest.

    Without what has been found to be bad, what is like it would be taken for good again and again.
    """
    ranked = np.argsort(behind, kind="stable")
    near, far = ranked[: FITTED // 2], ranked[FITTED // 2 :]
    spread = (
        far[np.linspace(0, len(far) - 1, FITTED // 2).astype(np.int64)] if len(far) > FITTED // 2 else far
    )
    return np.sort(np.concatenate([near, spread]))


def _evaluated(
    study: optuna.Study, archive: _Archive, crew: Crew, asked: list[tuple[Trial | None, IntArray]]
) -> list[FrozenTrial]:
    """Evaluate and tell what was asked, but for what other processes have in hand or have told meanwhile."""
    if not asked:
        return []
    taken = crew.claim([row.tobytes().hex() for _, row in asked])
    _take_in(study, archive, crew)
    own, told = [], []
    for trial, row in asked:
        if row.tobytes().hex() not in taken and not archive.holds(row):
            own.append((trial, row))
        elif trial is not None:
            study.tell(trial, state=TrialState.FAIL)
    archive.add([row for _, row in own])
    for trial, row in own:
        position = archive.known[row.tobytes()]
        values = archive.throughput[position], archive.speed[position]
        limits = dict(zip(CONSTRAINTS, archive.violation[position].tolist(), strict=True))
        told.append(tell(study, trial, row, archive.space.parameters, values, limits))
    return told


def _ask(
    study: optuna.Study, archive: _Archive, chosen: list[IntArray], size: int
) -> list[tuple[Trial | None, IntArray]]:
    """``size`` parameter sets that are new: the chosen ones, and the sampler's, with their trials, for the rest.

    A draw that is known is given back as failed, and another one is asked for; few come back when nothing is new.
    """
    space = archive.space
    asked: list[tuple[Trial | None, IntArray]] = [(None, row) for row in chosen]
    taken = {row.tobytes() for row in chosen}
    for _ in range(ATTEMPTS * (size - len(chosen))):
        if len(asked) == size:
            break
        trial = study.ask()
        row = space.canonical(suggest(trial, space.parameters)[None, :])[0]
        if archive.holds(row) or row.tobytes() in taken:
            study.tell(trial, state=TrialState.FAIL)
            continue
        taken.add(row.tobytes())
        asked.append((trial, row))
    return asked


def _fill(archive: _Archive, most: int) -> None:
    """Evaluate at most ``most`` loads between those of the front, by halves of a step, where its gaps are largest."""
    load = archive.space.index.get("load")
    if load is None:
        return
    limit, step = len(archive) + most, LOAD_STEPS // 2
    while step and len(archive) < limit:
        rows, area = archive.front()
        inside = [
            row
            for row in fillings(rows, area, load, step)
            if 0 <= row[load] < archive.space.sizes[load] and not archive.holds(row)
        ]
        new = list({row.tobytes(): row for row in inside}.values())
        if new:
            archive.add(new[: min(FILLED_AT_ONCE, limit - len(archive))])
        else:
            step //= 2


__all__ = ["DEFAULT_TRIALS", "evaluations_of", "search_sampled", "trials_of"]
