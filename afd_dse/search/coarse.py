"""Starts of a sampled search whose phases have GPUs of their own: units of each phase, few but good, paired exactly."""

from collections.abc import Sequence
from typing import TypeVar

from afd_dse.cost.scenario import Scenario
from afd_dse.search.decode_sample import sample_decode
from afd_dse.search.layouts import enumerate_layouts
from afd_dse.search.objective import Objective
from afd_dse.search.pairs import combine
from afd_dse.search.pool import Found
from afd_dse.search.sides import tabulate_prefill
from afd_dse.search.space import Grid, Space
from afd_dse.search.supply import Supplies
from afd_dse.spec.cells import Partition, Phase

# Turns after which nothing is left to thin, whatever the space.
MOST_TURNS = 60
# Most of the units that may be of prefill, as a share, and decode units at least.
PREFILL_SHARE = 0.4
LEAST = 50
# The lists of a grid in the order in which they are thinned.
_THINNED = ("chunk_tokens", "gpus", "ffn_gpus", "micro_batches", "moe_tp", "tp")
_T = TypeVar("_T")


def thinned(grid: Grid, turn: int) -> Grid:
    """The grid with every other value of one of its lists; they take turns."""
    name = _THINNED[turn % len(_THINNED)]
    values = getattr(grid, name)
    return grid.model_copy(update={name: _every_other(values)}) if len(values) > 2 else grid


def _every_other(values: Sequence[_T]) -> list[_T]:
    """From the second on, so that the extremes, which serve few jobs, go first."""
    return list(values[1::2])


def phase_fronts(
    scenario: Scenario, space: Space, partition: Partition, objective: Objective, rows: int, seed: int
) -> tuple[Found | None, int]:
    """Pair about ``rows`` units of both phases exactly; what is worth keeping, and how many rows were evaluated.

    ``partition`` must give its phases GPUs of their own. Prefill units are tabulated, on a thinned grid where they are
    too many; of the decode units, which are most, the rest of ``rows`` is sampled. Without a pair that fits, None.
    """
    grids = {phase: space.split if partition.splits(phase) else space.whole for phase in Phase}
    for turn in range(MOST_TURNS):
        if _units(scenario, partition, grids[Phase.PREFILL]) <= PREFILL_SHARE * rows:
            break
        grids[Phase.PREFILL] = thinned(grids[Phase.PREFILL], turn)
    prefill = tabulate_prefill(scenario, partition, grids[Phase.PREFILL])
    if not len(prefill.candidates):
        return None, 0
    left = max(rows - len(prefill.candidates), LEAST)
    decode = sample_decode(scenario, partition, grids[Phase.DECODE], left, seed)
    evaluated = len(prefill.candidates) + decode.evaluated
    if not len(decode.candidates):
        return None, evaluated
    found = combine(scenario, partition, Supplies(scenario, prefill), decode, objective)
    return found, evaluated + (len(found) if found else 0)


def _units(scenario: Scenario, partition: Partition, grid: Grid) -> int:
    """Prefill units of a grid."""
    return len(enumerate_layouts(scenario, partition, (Phase.PREFILL,), grid)) * len(grid.chunk_tokens)


__all__ = ["phase_fronts", "thinned"]
