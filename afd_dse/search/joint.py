"""Partitions in which some group serves both phases: every layout under the loads that may matter, block by block."""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from afd_dse.cost.columns import Candidates
from afd_dse.cost.evaluate import evaluate, gpus_by_pool
from afd_dse.cost.evaluation import CONSTRAINTS
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import join_rows, ranges
from afd_dse.search.crossing import evaluations, largest_holding
from afd_dse.search.descent import TPOT_MARGIN, Points, coarse, descend, refine
from afd_dse.search.layouts import blocks, enumerate_layouts, expand, sharings
from afd_dse.search.objective import Objective, rates_of
from afd_dse.search.pool import Found, keep, ranking
from afd_dse.search.space import Grid
from afd_dse.search.undisturbed import Undisturbed
from afd_dse.spec.cells import Partition, Phase


def most_replicas(scenario: Scenario, partition: Partition, candidates: Candidates) -> IntArray:
    """How many replicas of the unit fit into the cluster, [n]."""
    cuts = {
        phase: Cut.of(candidates.replace(prefill_replicas=1, decode_replicas=1), phase) for phase in Phase
    }
    used = gpus_by_pool(scenario, partition, cuts)
    fits = np.where(used > 0, scenario.pool_counts / np.maximum(used, 1.0), np.inf).min(axis=1)
    result: IntArray = np.floor(fits + 1e-9).astype(np.int64)
    return result


def with_replicas(candidates: Candidates, replicas: IntArray) -> Candidates:
    """The candidates with both phases repeated ``replicas`` times."""
    return candidates.replace(prefill_replicas=replicas, decode_replicas=replicas)


def is_bounded(scenario: Scenario) -> bool:
    """Whether the job bounds the load, so that more replicas may serve no more."""
    workload = scenario.workload
    return workload.requests_per_s > 0.0 or bool(np.isfinite(workload.concurrency_limit))


def all_layouts(scenario: Scenario, partition: Partition, grid: Grid) -> tuple[Candidates, int]:
    """Every layout with every chunk size and way to share and as many replicas as fit; the size of the whole space."""
    layouts = enumerate_layouts(scenario, partition, tuple(Phase), grid)
    if not len(layouts):
        return layouts, 0
    replicas = most_replicas(scenario, partition, layouts)
    chunks, ways = np.array(grid.chunk_tokens, dtype=np.float64), sharings(grid, partition)
    repeated = with_replicas(layouts, replicas)
    candidates = Candidates.concatenate([expand(repeated, chunks, [way]) for way in ways])
    return candidates, int(replicas.sum()) * len(chunks) * len(grid.batch.values()) * len(ways)


def search_joint(
    scenario: Scenario,
    partition: Partition,
    grid: Grid,
    objective: Objective,
    progress: Callable[[int], None],
) -> tuple[Found | None, int, int]:
    """Search a joint partition; returns what is worth keeping, the size of the space, and rows evaluated.

    Every layout has as many replicas as fit (they share one queue, so more of them only shorten the wait), and the grid
    of loads is descended from coarse to fine. Where phases don't share steps, a row is evaluated if it could come near
    the front were they undisturbed. Where the job bounds the load the whole grid is evaluated, also with as many
    replicas as that load needs. The best rows are then tried with every smaller number.
    """
    candidates, considered = all_layouts(scenario, partition, grid)
    if not len(candidates):
        return None, 0, 0
    batch = grid.batch.values()
    bounded = is_bounded(scenario)
    kept: list[Found] = []
    evaluated = 0

    def worth_keeping(block: Candidates) -> Found:
        nonlocal evaluated
        evaluated += len(block)
        progress(len(block))
        found = Found(block, evaluate(scenario, block))
        kept.append(keep(scenario, objective, found))
        return found

    def evaluated_at(rows: IntArray, batch_size: FloatArray) -> Points:
        points = []
        for block in blocks(candidates.take(rows).replace(batch_size=batch_size)):
            found = worth_keeping(block)
            points.append(points_of(objective, found))
            for fewer in _as_many_as_needed(scenario, found) if bounded else ():
                worth_keeping(fewer)
        return join_rows(points)

    def at(rows: IntArray, batch_size: FloatArray) -> Points:
        if alone is None:
            return evaluated_at(rows, batch_size)
        return alone.evaluated(rows, batch_size, grid.batch.ratio, evaluated_at)

    alone = None
    if not (bounded or partition.shares_steps):
        alone = Undisturbed(scenario, partition, objective, candidates)
        alone.learn(evaluated_at(*alone.first(coarse(batch))))
    group = np.zeros(len(candidates), dtype=np.int64)
    steps = descend(batch, group, at, whole=bounded)
    if not bounded:
        refine(steps, evaluated_at, [np.inf])
    found = keep(scenario, objective, join_rows(kept), best=256)
    if bounded:
        # What fewer replicas leave room for is not on the grid's steps.
        refined = refine_batch(scenario, objective, found, grid.batch.ratio)
        evaluated += evaluations(len(refined)) + len(refined)
        found = join_rows([found, refined])
    fewer = _fewer_replicas(scenario, objective, found)
    return join_rows([found, fewer]), considered, evaluated + len(fewer)


def points_of(objective: Objective, found: Found) -> Points:
    """What the descent compares: memory and TPOT only get worse with the load."""
    m, slack = found.evaluation.metrics, found.evaluation.slack
    memory, tpot = (slack[:, CONSTRAINTS.index(name)] for name in ("memory", "TPOT"))
    merits = rates_of(objective, m)
    return Points(
        m["tpot_s"], merits, merits, found.evaluation.feasible, (memory >= 0.0) & (tpot >= -TPOT_MARGIN)
    )


def _as_many_as_needed(scenario: Scenario, found: Found) -> Iterator[Candidates]:
    """The rows with fewer replicas, where fewer serve the demand, or more would exceed the requests in flight."""
    workload, m = scenario.workload, found.evaluation.metrics
    most = found.candidates.integer("decode_replicas")
    wanted = []
    if workload.requests_per_s:
        need = np.ceil(workload.requests_per_s / (m["requests_per_s"] / most) * (1.0 - 1e-12))
        # One more than the rate needs shortens the wait, which a TTFT limit may ask for.
        wanted += [need, need + 1.0]
    if np.isfinite(workload.concurrency_limit):
        with np.errstate(invalid="ignore"):
            each = np.where(np.isfinite(m["concurrency"]), m["concurrency"] / most, 1.0)
        wanted.append(np.maximum(np.floor(workload.concurrency_limit / each), 1.0))
    for replicas in wanted:
        rows = np.flatnonzero(replicas < most)
        if len(rows):
            yield with_replicas(found.candidates.take(rows), replicas[rows].astype(np.int64))


def refine_batch(
    scenario: Scenario, objective: Objective, found: Found, ratio: float, best: int = 256
) -> Found:
    """Raise the batch of the best feasible rows towards the next grid value, as far as every constraint holds."""
    return with_largest_batch(
        scenario, found.candidates.take(ranking(scenario, objective, found, best)), ratio
    )


def with_largest_batch(scenario: Scenario, start: Candidates, ratio: float) -> Found:
    """Feasible candidates with the largest batch, up to ``ratio`` times their own, that still holds every limit."""
    low: FloatArray = start.number("batch_size")

    def holds(tried: IntArray, batch: FloatArray) -> npt.NDArray[np.bool_]:
        return evaluate(scenario, start.take(tried).replace(batch_size=batch)).feasible

    final = start.replace(batch_size=largest_holding(low, low * ratio, holds))
    return Found(final, evaluate(scenario, final))


def _fewer_replicas(scenario: Scenario, objective: Objective, found: Found, best: int = 32) -> Found:
    """The best rows with every smaller number of replicas: an equal score on fewer GPUs wins the tie."""
    rows = ranking(scenario, objective, found, best)
    start = found.candidates.take(rows)
    replicas = start.integer("decode_replicas")
    number, index = ranges(np.ones_like(replicas), replicas)
    tried = with_replicas(start.take(index), number)
    return Found(tried, evaluate(scenario, tried))
