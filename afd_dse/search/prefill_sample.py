"""Prefill units of a partition whose phases have GPUs of their own, sampled where they are too many to tabulate."""

import numpy as np

from afd_dse.cost.columns import ALL_COLUMNS, Candidates
from afd_dse.cost.evaluate import gpus_by_pool
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.units import prefill_units
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import distinct_rows, join_rows
from afd_dse.search.layouts import enumerate_layouts
from afd_dse.search.proposals import SHORTLIST, Front, Outlook
from afd_dse.search.sides import PrefillSide, limits_of
from afd_dse.search.space import Grid
from afd_dse.search.supply import Receivers, rates_of_units
from afd_dse.search.surrogate import Surrogate, bent, features
from afd_dse.spec.cells import Partition, Phase

# Share of the units that is drawn anywhere at first, and rounds that draw the rest.
FIRST = 0.3
ROUNDS = 10
# Units that are looked at in each round.
LOOKED_AT = 4000
# A unit that does not meet the TTFT limit counts as one of so little of its capacity.
LEAST_UTILIZATION = 0.01


def sample_prefill(
    scenario: Scenario, partition: Partition, grid: Grid, rows: int, seed: int, start: Candidates | None
) -> PrefillSide:
    """At most ``rows`` prefill units, and those of the pairs ``start``; all of the grid where they are no more.

    Those that a surrogate expects to widen the front of small units and requests/s per GPU within the TTFT limit most,
    which is what prefill adds to a pair; every pool has its own front.
    """
    layouts = enumerate_layouts(scenario, partition, (Phase.PREFILL,), grid)
    chunks = np.array(grid.chunk_tokens, dtype=np.float64)
    total, rng = len(layouts) * len(chunks), np.random.default_rng(seed)

    def at(numbers: IntArray) -> Candidates:
        return layouts.take(numbers // len(chunks)).replace(chunk_tokens=chunks[numbers % len(chunks)])

    def evaluated(numbers: IntArray) -> PrefillSide:
        return PrefillSide(at(numbers), prefill_units(scenario, partition, at(numbers)))

    known = np.zeros(0, dtype=np.int64) if start is None else _numbers_of(start, layouts, chunks)
    rows += len(known)
    if total <= rows:
        return evaluated(np.arange(total))
    left = np.ones(total, dtype=bool)
    left[known] = False
    first = rng.choice(np.flatnonzero(left), max(round(FIRST * (rows - len(known))), 1), replace=False)
    chosen = np.append(known, first)
    side = evaluated(chosen)
    while (room := rows - len(side.candidates)) > 0:
        left[chosen] = False
        looked_at = rng.choice(np.flatnonzero(left), min(LOOKED_AT, int(left.sum())), replace=False)
        best = _best(scenario, partition, side, at(looked_at), min(room, max(rows // ROUNDS, 1)))
        chosen = looked_at[best] if len(best) else looked_at[:room]
        side = join_rows([side, evaluated(chosen)])
    return side


def _numbers_of(pairs: Candidates, layouts: Candidates, chunks: FloatArray) -> IntArray:
    """The distinct prefill units of pairs, as layout × chunk."""
    names = [name for name in ALL_COLUMNS if name.startswith("prefill") and name != "prefill_replicas"]
    columns = [np.concatenate([block.number(name) for block in (layouts, pairs)]) for name in names]
    which = distinct_rows(columns)[1]
    layout, wanted = which[: len(layouts)], which[len(layouts) :]
    same = pairs.number("chunk_tokens")[:, None] == chunks
    chunk = same.argmax(axis=1)
    # NOTE: distinct layouts are numbered as they stand in the table; whatever comes after is not in it.
    held = (wanted <= layout.max(initial=-1)) & same.any(axis=1)
    return np.unique(wanted[held] * len(chunks) + chunk[held])


def _best(
    scenario: Scenario, partition: Partition, side: PrefillSide, at: Candidates, count: int
) -> IntArray:
    """Rows of ``at`` that are expected to widen the fronts of ``side`` most."""
    u = side.units
    rates = rates_of_units(scenario, side, limits_of(scenario)[-1], Receivers(1, 0, False))
    gpus = u.gpus_by_pool.sum(axis=1)
    per_gpu = np.maximum(rates, LEAST_UTILIZATION * u.prefill.capacity) / gpus
    y = np.column_stack([np.log(per_gpu), bent(u.memory_slack)])
    pools = len(scenario.pools)
    surrogate = Surrogate(features(side.candidates, pools), y)
    own, other = (c.integer("prefill_attention_pool") for c in (side.candidates, at))

    def reach(units: Candidates, rate: FloatArray) -> tuple[FloatArray, FloatArray]:
        cuts = {phase: Cut.of(units, phase) for phase in Phase}
        return 1.0 / gpus_by_pool(scenario, partition, cuts, (Phase.PREFILL,)).sum(axis=1), rate

    found: list[IntArray] = []
    for pool in range(pools):
        rows = np.flatnonzero(other == pool)
        held = (own == pool) & (u.memory_slack >= 0.0) & (rates > 0.0)
        reached = Front.of(1.0 / gpus[held], per_gpu[held], 0.0)
        outlook = Outlook(surrogate, reach, reached, pools)
        if len(rows):
            short = rows[np.argsort(-outlook.gain(at.take(rows)), kind="stable")[:SHORTLIST]]
            found.append(short[outlook.best(at.take(short), -(-count // pools))])
    return np.concatenate(found)[:count]


__all__ = ["sample_prefill"]
