"""The search of a job: every requested partition by the method that fits its size, one outcome each."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from afd_dse.cost.columns import Candidates
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import IntArray
from afd_dse.resources import import_apart
from afd_dse.rows import join_rows
from afd_dse.search.count import deployments
from afd_dse.search.joint import search_joint
from afd_dse.search.layouts import layout_count, sharings
from afd_dse.search.objective import Objective
from afd_dse.search.pairs import combined, paired, probes, throttled
from afd_dse.search.parallel import in_processes
from afd_dse.search.pool import Found, keep, ranking
from afd_dse.search.proof import Proof, enumerated, explained, sampled
from afd_dse.search.prospects import Prospects
from afd_dse.search.sides import DecodeSide, PrefillSide, tabulate_decode, tabulate_prefill
from afd_dse.search.space import Space, load_space, restricted, without_unreleased
from afd_dse.search.supply import Supplies
from afd_dse.spec.cells import Partition, Phase

Progress = Callable[[str, int], None]
Answer = TypeVar("Answer")
# Below so many candidates a search takes less than sharing it saves.
PARALLEL_ROWS = 5_000
NO_GRIDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ModeOutcome:
    """What the search found for one mode.

    ``found`` holds the rows worth keeping (front, best, near misses), None when no layout exists at all; ``ranking``
    its feasible rows, best first. ``considered`` is the size of the mode's space, ``evaluated`` how many of it were
    computed, ``method`` how, ``note`` why, ``proof`` what that shows.
    """

    name: str
    partition: Partition
    found: Found | None
    ranking: IntArray
    considered: int
    evaluated: int
    method: str
    note: str
    proof: Proof


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """Outcomes of all modes, in the order asked for, and the totals."""

    modes: list[ModeOutcome]
    considered: int
    evaluated: int
    seconds: float
    method: str
    explanation: str


class UnitTables:
    """Prefill and decode units by structure (one group or two), shared by the partitions that pair them.

    Where the ``pairing`` partitions are told, and an objective by which only what pairs serve per GPU matters, decode
    units are left out that no pair of these needs.
    """

    def __init__(
        self,
        scenario: Scenario,
        space: Space,
        progress: Progress,
        pairing: Sequence[Partition] = (),
        objective: Objective | None = None,
    ) -> None:
        self._scenario, self.progress = scenario, progress
        self.space = without_unreleased(space) if scenario.only_launchable else space
        self._pairing, self._objective = pairing, objective
        self._prefill: dict[bool, Supplies] = {}
        self._decode: dict[bool, DecodeSide] = {}
        self._pairs: dict[Partition, Candidates | None] = {}

    def restricted(
        self, own: Mapping[str, Mapping[str, Any]], name: str, partition: Partition
    ) -> "UnitTables":
        """Those of one partition in what ``own`` lists leave of the space; themselves where it lists nothing."""
        if not own:
            return self
        where = restricted(self.space, own, name)
        return UnitTables(self._scenario, where, self.progress, [partition], self._objective)

    def prefill(self, partition: Partition) -> Supplies:
        split = partition.splits(Phase.PREFILL)
        if split not in self._prefill:
            side = tabulate_prefill(self._scenario, partition, self.space.grid(partition, Phase.PREFILL))
            self._prefill[split] = Supplies(self._scenario, side)
        return self._prefill[split]

    def decode(self, partition: Partition) -> DecodeSide:
        split = partition.splits(Phase.DECODE)
        if split not in self._decode:
            self._decode[split] = tabulate_decode(
                self._scenario,
                partition,
                self.space.grid(partition, Phase.DECODE),
                lambda rows: self.progress("decode units", rows),
                rivals=self._rivals(split),
            )
        return self._decode[split]

    def pairs(self, partition: Partition, objective: Objective) -> Candidates | None:
        """Units paired with integer replicas that may be worth keeping, their batches lowered to what is admitted."""
        if partition not in self._pairs:
            split = partition.splits(Phase.DECODE)
            alike = [one for one in self._pairing if one.splits(Phase.DECODE) == split]
            made = {
                one: paired(self._scenario, one, self.prefill(one), self.decode(one), objective)
                for one in dict.fromkeys([partition, *alike])
            }
            found = {one: pairs for one, pairs in made.items() if pairs is not None}
            self._pairs |= dict.fromkeys(made)
            if found:
                # All at once: a call costs as much as thousands of rows.
                lowered = throttled(self._scenario, partition, join_rows(list(found.values())))
                ends = np.cumsum([len(pairs.admitted) for pairs in found.values()])
                for one, pairs, end in zip(found, found.values(), ends, strict=True):
                    self._pairs[one] = lowered.take(np.arange(end - len(pairs.admitted), end))
        return self._pairs[partition]

    def _rivals(self, split: bool) -> Prospects | None:
        """What decode units compare with, if they may be left out for others of another size."""
        pairing = [partition for partition in self._pairing if partition.splits(Phase.DECODE) == split]
        coupled = np.isfinite(self._scenario.slo.latency_s)
        if not pairing or coupled or self._objective != "throughput_per_gpu":
            return None
        return Prospects(self._scenario, [self.prefill(partition) for partition in pairing], self._objective)


def search(
    scenario: Scenario,
    space: Space,
    modes: Sequence[tuple[str, Partition]],
    objective: Objective,
    *,
    method: str = "auto",
    seed: int = 0,
    trials: int | None = None,
    journal: str | None = None,
    grids: Mapping[str, Mapping[str, Mapping[str, Any]]] = NO_GRIDS,
    progress: Progress = lambda mode, rows: None,
    processes: int = 1,
) -> SearchOutcome:
    """Search every mode of ``modes`` in ``space``, or in what ``grids`` makes of it under the mode's name.

    ``method`` ``exhaustive`` enumerates, ``optuna`` samples ``trials`` candidates a mode (seeded; continued from
    ``journal``), ``auto`` enumerates what ``space.exhaustive_rows`` admits. ``progress`` is told the mode and how many
    more candidates it has evaluated, as far as this process evaluates them: a large search without journal is shared by
    ``processes``.
    """
    began = time.perf_counter()
    start = None if space.start is None else load_space(space.start)

    def enumerates(rows: int) -> bool:
        return method == "exhaustive" or (method == "auto" and rows <= space.exhaustive_rows)

    sizes = {name: size_of(scenario, space, partition) for name, partition in modes}
    shared = [(p, enumerates(sizes[name])) for name, p in modes if not (p.is_joint or grids.get(name))]
    tables = UnitTables(scenario, space, progress, [p for p, whole in shared if whole], objective)
    smaller = start and UnitTables(
        scenario, start, progress, [p for p, whole in shared if not whole], objective
    )

    def outcome_of(name: str, partition: Partition) -> ModeOutcome:
        own = grids.get(name, {})
        here = tables.restricted(own, name, partition)
        rows = size_of(scenario, here.space, partition)
        if enumerates(rows):
            return _enumerated(scenario, here.space, name, partition, objective, here)
        first = None
        if smaller:
            small = smaller.restricted(own, name, partition)
            first = _enumerated(scenario, small.space, name, partition, objective, small)
        return _sampled(
            scenario, here.space, name, partition, objective, rows, seed, trials, journal, progress, first
        )

    outcomes = over_modes(modes, outcome_of, sizes, processes if journal is None else 1)
    used = sorted({outcome.method for outcome in outcomes})
    return SearchOutcome(
        outcomes,
        sum(outcome.considered for outcome in outcomes),
        sum(outcome.evaluated for outcome in outcomes),
        time.perf_counter() - began,
        " + ".join(used),
        "; ".join(explained([o.name for o in outcomes], [o.proof for o in outcomes])),
    )


def over_modes(
    modes: Sequence[tuple[str, Partition]],
    of_mode: Callable[[str, Partition], Answer],
    sizes: Mapping[str, int],
    processes: int,
) -> list[Answer]:
    """The answers of all modes, in their order; ``processes`` share what is large by ``sizes``, rows by mode."""
    # Modes that pair units share their tables, so that they stay together.
    paired = [mode for mode in modes if not mode[1].is_joint]
    apart = sorted((mode for mode in modes if mode[1].is_joint), key=lambda mode: -sizes[mode[0]])
    parts = [part for part in (paired, *([mode] for mode in apart)) if part]

    def answers(part: Sequence[tuple[str, Partition]]) -> dict[str, Answer]:
        return {name: of_mode(name, partition) for name, partition in part}

    several = processes if sum(sizes.values()) >= PARALLEL_ROWS else 1
    found: dict[str, Answer] = {}
    for one in in_processes([partial(answers, part) for part in parts], several):
        found |= one
    return [found[name] for name, _ in modes]


def _enumerated(
    scenario: Scenario,
    space: Space,
    name: str,
    partition: Partition,
    objective: Objective,
    tables: UnitTables,
) -> ModeOutcome:
    """One mode, exhaustively."""
    if partition.is_joint:
        return _joint(scenario, space, name, partition, objective, tables.progress)
    return _paired(scenario, name, partition, objective, tables)


def size_of(scenario: Scenario, space: Space, partition: Partition) -> int:
    """Rows that an exhaustive search of ``partition`` evaluates: layouts × loads; pairs are counted as their sides."""
    total = 0
    if partition.is_joint:
        grid = space.grid(partition, Phase.DECODE)
        ways = len(sharings(grid, partition))
        layouts = layout_count(scenario, partition, tuple(Phase), grid)
        return layouts * len(grid.batch.values()) * len(grid.chunk_tokens) * ways
    for phase in Phase:
        grid = space.grid(partition, phase)
        layouts = layout_count(scenario, partition, (phase,), grid)
        total += layouts * len(grid.chunk_tokens if phase == Phase.PREFILL else grid.batch.values())
    return total


def _joint(
    scenario: Scenario,
    space: Space,
    name: str,
    partition: Partition,
    objective: Objective,
    progress: Progress,
) -> ModeOutcome:
    grid = space.grid(partition, Phase.DECODE)
    found, considered, evaluated = search_joint(
        scenario, partition, grid, objective, lambda rows: progress(name, rows)
    )
    return _outcome(scenario, objective, name, partition, found, considered, evaluated, "exhaustive", "")


def _paired(
    scenario: Scenario, name: str, partition: Partition, objective: Objective, tables: UnitTables
) -> ModeOutcome:
    supplies, decode = tables.prefill(partition), tables.decode(partition)
    prefill = supplies.side
    if not len(prefill.candidates) or not len(decode.candidates):
        return _outcome(scenario, objective, name, partition, None, 0, 0, "exhaustive", "")
    pairs = tables.pairs(partition, objective)
    found = None if pairs is None else combined(scenario, pairs, objective)
    considered = deployments(scenario, tables.space, partition)
    evaluated = len(prefill.candidates) + decode.evaluated + (len(found) if found else 0)
    note = ""
    if found is None or not found.evaluation.feasible.any():
        near = probes(scenario, partition, prefill, decode)
        evaluated += len(near)
        if len(near):
            misses = keep(scenario, objective, Found(near, evaluate(scenario, near)))
            found = join_rows([found, misses]) if found else misses
        elif found is None:
            note = _too_small(scenario, prefill, decode)
    return _outcome(scenario, objective, name, partition, found, considered, evaluated, "exhaustive", note)


def _too_small(scenario: Scenario, prefill: PrefillSide, decode: DecodeSide) -> str:
    """Why no prefill and decode unit fit the cluster together."""
    least = sum(side.units.gpus_by_pool.sum(axis=1).min() for side in (prefill, decode))
    total = scenario.pool_counts.sum()
    if least > total:
        return f"needs at least {least:.0f} GPUs, the cluster has {total}"
    return "no prefill and decode unit fit the pools together"


def _sampled(
    scenario: Scenario,
    space: Space,
    name: str,
    partition: Partition,
    objective: Objective,
    rows: int,
    seed: int,
    trials: int | None,
    journal: str | None,
    progress: Progress,
    first: ModeOutcome | None,
) -> ModeOutcome:
    """One mode by Optuna, from what the enumeration ``first`` of a smaller space found; never worse than that."""
    # Optuna takes longer to import than most modes to enumerate.
    import_apart("optuna")
    from afd_dse.search.sampled import search_sampled

    start = first.found if first else None
    # Matrices of a few hundred rows: a second thread costs more than it saves, and changes the last digits. Only here
    # is SciPy loaded, which brings a BLAS of its own that limits set before do not know.
    with threadpool_limits(1, user_api="blas"):
        found, evaluated = search_sampled(
            scenario,
            space,
            partition,
            objective,
            seed=seed,
            trials=trials,
            journal=journal,
            progress=lambda n: progress(name, n),
            start=start,
        )
    if first is not None and start is not None:
        found = join_rows([start, found]) if found is not None else start
        evaluated += first.evaluated
    note = (
        f"{rows:,} candidates exceed the limit of {space.exhaustive_rows:,}"
        if rows > space.exhaustive_rows
        else ""
    )
    considered = deployments(scenario, space, partition)
    proof = sampled(considered, evaluated, rows, space.exhaustive_rows)
    return _outcome(scenario, objective, name, partition, found, considered, evaluated, "optuna", note, proof)


def _outcome(
    scenario: Scenario,
    objective: Objective,
    name: str,
    partition: Partition,
    found: Found | None,
    considered: int,
    evaluated: int,
    method: str,
    note: str,
    proof: Proof | None = None,
) -> ModeOutcome:
    if proof is None:
        proof = enumerated(scenario, partition, objective, considered, evaluated)
    if found is None or not len(found):
        none = np.zeros(0, dtype=np.int64)
        run = " of those that a release runs" if scenario.only_launchable else ""
        why = note or f"no layout{run} fits the cluster"
        return ModeOutcome(name, partition, None, none, considered, evaluated, method, why, proof)
    ranked = ranking(scenario, objective, found)
    return ModeOutcome(name, partition, found, ranked, considered, evaluated, method, note, proof)


__all__ = ["ModeOutcome", "SearchOutcome", "search", "size_of"]
