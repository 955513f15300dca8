"""The staircase of a job: for every number of GPUs the largest request rate within the SLO, and the deployment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import IntArray
from afd_dse.rows import join_rows
from afd_dse.search.count import deployments
from afd_dse.search.pool import Found, simplicity
from afd_dse.search.run import NO_GRIDS, Progress, UnitTables, over_modes, size_of
from afd_dse.search.space import Space, load_space
from afd_dse.search.stair_joint import joint_steps
from afd_dse.search.stair_pairs import paired_steps
from afd_dse.search.stair_steps import steps
from afd_dse.spec.cells import Partition, Phase


@dataclass(frozen=True, slots=True)
class ModeSteps:
    """The staircase of one mode: ``found`` its steps, None where no deployment holds the limits.

    ``considered`` is the size of its space, ``evaluated`` what was computed. ``space`` is the one that was searched,
    None where it is too large to be enumerated, as is the one that it starts from.
    """

    name: str
    partition: Partition
    found: Found | None
    considered: int
    evaluated: int
    space: str | None


@dataclass(frozen=True, slots=True)
class Staircase:
    """The staircase of a job.

    ``found`` holds the steps of every mode, one mode after the other (None where there are none), ``mode_of`` their
    modes by number; ``steps`` are the rows of those that count among all modes, ascending in rate.
    """

    modes: list[ModeSteps]
    found: Found | None
    mode_of: IntArray
    steps: IntArray
    space: str
    explanation: str

    @property
    def exact(self) -> bool:
        """Whether every mode was enumerated in the space that was asked for."""
        return all(mode.space == self.space for mode in self.modes)


def staircase(
    scenario: Scenario,
    space: Space,
    modes: Sequence[tuple[str, Partition]],
    *,
    grids: Mapping[str, Mapping[str, Mapping[str, Any]]] = NO_GRIDS,
    progress: Progress = lambda mode, rows: None,
    processes: int = 1,
) -> Staircase:
    """The staircase of ``modes`` in ``space``, or in what ``grids`` makes of it under the mode's name.

    A mode that is too large to be enumerated is searched in the space that ``space`` starts from, and left out where
    that is too large, too. Requests in flight are not limited: a closed loop has no rate of its own. A large search is
    shared by ``processes``; ``progress`` is told what this one evaluates.
    """
    spaces = [space] if space.start is None else [space, load_space(space.start)]
    plain = {one.name: UnitTables(scenario, one, progress) for one in spaces}

    def steps_of_mode(name: str, partition: Partition) -> ModeSteps:
        own = grids.get(name, {})
        for one in spaces:
            tables = plain[one.name].restricted(own, name, partition)
            if size_of(scenario, tables.space, partition) <= one.exhaustive_rows:
                return _mode(scenario, name, partition, one.name, tables)
        return ModeSteps(name, partition, None, 0, 0, None)

    sizes = {name: size_of(scenario, space, partition) for name, partition in modes}
    found = over_modes(modes, steps_of_mode, sizes, processes)
    parts = [(number, mode.found) for number, mode in enumerate(found) if mode.found is not None]
    joined = join_rows([part for _, part in parts]) if parts else None
    mode_of = np.repeat([number for number, _ in parts], [len(part) for _, part in parts]).astype(np.int64)
    rows = np.zeros(0, dtype=np.int64) if joined is None else steps_of(joined)
    return Staircase(found, joined, mode_of, rows, space.name, _explanation(found, space))


def _mode(scenario: Scenario, name: str, partition: Partition, space: str, tables: UnitTables) -> ModeSteps:
    if partition.is_joint:
        grid = tables.space.grid(partition, Phase.DECODE)
        found, considered, evaluated = joint_steps(
            scenario, partition, grid, lambda rows: tables.progress(name, rows)
        )
    else:
        supplies, decode = tables.prefill(partition), tables.decode(partition)
        prefill = supplies.side
        if not len(prefill.candidates) or not len(decode.candidates):
            return ModeSteps(name, partition, None, 0, 0, space)
        found, evaluated = paired_steps(scenario, partition, supplies, decode)
        evaluated += len(prefill.candidates) + decode.evaluated
        considered = deployments(scenario, tables.space, partition)
    if found is not None:
        found = found.take(found.evaluation.feasible)
        found = found.take(steps_of(found)) if len(found) else None
    return ModeSteps(name, partition, found, considered, evaluated, space)


def steps_of(found: Found) -> IntArray:
    """Rows of the steps of ``found``, ascending in rate; of equal ones that with the lower TTFT, then the simpler."""
    metrics = found.evaluation.metrics
    order = np.lexsort((simplicity(found.candidates), np.round(metrics["ttft_s"], 9)))
    rate = metrics["requests_per_s"][order]
    rows = order[steps(np.round(found.evaluation.gpus_by_pool[order]), rate)]
    result: IntArray = rows[np.argsort(metrics["requests_per_s"][rows], kind="stable")].astype(np.int64)
    return result


def _explanation(modes: Sequence[ModeSteps], space: Space) -> str:
    considered = sum(mode.considered for mode in modes)
    smaller = [mode.name for mode in modes if mode.space not in (None, space.name)]
    without = [mode.name for mode in modes if mode.space is None]
    exact = len(modes) - len(smaller) - len(without)
    text = f"space '{space.name}', exact over {considered:.3g} deployments in {exact} of {len(modes)} modes"
    if smaller:
        text += f"; only in the smaller space '{space.start}': {', '.join(smaller)}"
    if without:
        text += f"; too large to enumerate and left out: {', '.join(without)}"
    return text
