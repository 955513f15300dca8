"""The start of a sampled search whose phases have GPUs of their own: a thinned space, paired exactly."""

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

_THINNED = ("gpus", "ffn_gpus", "chunk_tokens", "tp", "moe_tp", "micro_batches")
_T = TypeVar("_T")


def thinned(grid: Grid) -> Grid:
    """The grid with every other value of its longer lists and of its loads; itself when nothing can go."""
    changes: dict[str, object] = {
        name: _every_other(getattr(grid, name)) for name in _THINNED if len(getattr(grid, name)) > 2
    }
    if grid.batch.per_octave > 1:
        batch = grid.batch
        changes["batch"] = BatchGrid(first=batch.first, last=batch.last, per_octave=batch.per_octave // 2)
    return grid.model_copy(update=changes)


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
    while sum(_units(scenario, partition, phase, grid) for phase, grid in grids.items()) > rows:
        thinner = {phase: thinned(grid) for phase, grid in grids.items()}
        if thinner == grids:
            break
        grids = thinner
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
