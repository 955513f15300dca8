"""Starts of a sampled search whose phases have GPUs of their own: the units of a thinned space, paired exactly."""

from collections.abc import Sequence
from typing import TypeVar

from afd_dse.cost.scenario import Scenario
from afd_dse.search.layouts import enumerate_layouts
from afd_dse.search.objective import Objective
from afd_dse.search.pairs import combine
from afd_dse.search.pool import Found
from afd_dse.search.sides import tabulate_decode, tabulate_prefill
from afd_dse.search.space import BatchGrid, Grid, Space
from afd_dse.spec.cells import Partition, Phase

# Turns after which nothing is left to thin, whatever the space.
MOST_TURNS = 60
# The lists of a grid in the order in which they are thinned; the decode batch goes first.
_THINNED = ("chunk_tokens", "gpus", "ffn_gpus", "micro_batches", "moe_tp", "tp")
_T = TypeVar("_T")


def thinned(grid: Grid, turn: int) -> Grid:
    """The grid with every other value of one of its lists, or of its loads; they take turns."""
    name = ("batch", *_THINNED)[turn % (1 + len(_THINNED))]
    if name == "batch":
        batch = grid.batch
        fewer = BatchGrid(first=batch.first, last=batch.last, per_octave=max(batch.per_octave // 2, 1))
        return grid.model_copy(update={"batch": fewer})
    values = getattr(grid, name)
    return grid.model_copy(update={name: _every_other(values)}) if len(values) > 2 else grid


def _every_other(values: Sequence[_T]) -> list[_T]:
    """From the second on, so that the extremes, which serve few jobs, go first."""
    return list(values[1::2])


def phase_fronts(
    scenario: Scenario, space: Space, partition: Partition, objective: Objective, rows: int
) -> tuple[Found | None, int]:
    """Pair the units of a space thinned until its phases have at most ``rows`` of them; and how many were evaluated.

    ``partition`` must give its phases GPUs of their own. Without a pair that fits, None.
    """
    grids = {phase: space.split if partition.splits(phase) else space.whole for phase in Phase}
    for turn in range(MOST_TURNS):
        if sum(_units(scenario, partition, phase, grid) for phase, grid in grids.items()) <= rows:
            break
        grids = {phase: thinned(grid, turn) for phase, grid in grids.items()}
    prefill = tabulate_prefill(scenario, partition, grids[Phase.PREFILL])
    decode = tabulate_decode(scenario, partition, grids[Phase.DECODE], lambda done: None)
    if not len(prefill.candidates) or not len(decode.candidates):
        return None, 0
    found = combine(scenario, partition, prefill, decode, objective)
    return found, len(prefill.candidates) + decode.evaluated + (len(found) if found else 0)


def _units(scenario: Scenario, partition: Partition, phase: Phase, grid: Grid) -> int:
    """Rows that tabulating one phase evaluates."""
    layouts = len(enumerate_layouts(scenario, partition, (phase,), grid))
    return layouts * len(grid.chunk_tokens if phase == Phase.PREFILL else grid.batch.values())


__all__ = ["phase_fronts", "thinned"]
