"""What would change an answer: its layouts evaluated again under other links, memory, lengths, limits, prices."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from afd_dse.cost.columns import Candidates
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.evaluation import Evaluation
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Scenario
from afd_dse.errors import AfdDseError
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.results.datatypes import narrowed
from afd_dse.results.deployment import METRIC_NAMES, finite
from afd_dse.results.parse import candidates_of
from afd_dse.search.objective import Objective, score
from afd_dse.search.parallel import in_processes, usable_processes
from afd_dse.spec.job import Job

FIXED_LOAD = "batch, all else fixed"
"""The change that keeps everything but the batch."""
# Layouts that are tried under every change: the recommended one, the best of each mode, the ranking.
_LAYOUTS = 24
# How tokens may fall on experts instead, by the name that a job has for it.
_LOADS_OF_EXPERTS = {
    "balanced": "experts loaded evenly",
    "power_law_1.2": "experts loaded unevenly (power law 1.2)",
}
# Loads tried around that of a layout, as multiples of its batch; then, with steps of 0.15 %, between the two loads
# beside the best of them.
_COARSE = np.append(np.geomspace(0.1, 4.0, 65), 1.0)
_FINE = np.geomspace(1.0 / 1.06, 1.06, 79)
# What a layout may gain between two coarse loads: their distance, and what kernels with steps take less of.
_REACH = 0.1
_SHOWN = (
    "tokens_per_s_per_gpu",
    "tokens_per_s",
    "tpot_ms",
    "ttft_percentile_ms",
    "usd_per_mtok",
    "requests_per_s",
)


@dataclass(frozen=True, slots=True)
class Change:
    """One other world: what changes, by which factor, and the scenario of it. ``load`` changes the batch instead."""

    name: str
    factor: float
    apply: Callable[[Scenario], Scenario]
    load: bool = False


def what_if(job: Job, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The answer under each change: the recommended layout with its load set anew, and the best of all known layouts.

    Layouts are those that ``document`` lists; none is searched for, so that a new search can only do better than
    ``best``. Changes of the batch keep everything else. The first row is the answer itself, against which the others
    are to be read; the list is empty where nothing is feasible.
    """
    if document["best"] is None:
        return []
    # Of a job that lists data types, those of the recommended deployment are kept.
    scenario = scenario_from_job(narrowed(job, document["best"]))
    layouts = _layouts(document)
    block = Candidates.concatenate([candidates_of(layout, scenario) for layout in layouts])
    changes = [Change("as asked", 1.0, _same), *_changes(scenario)]
    under = partial(_under, scenario=scenario, objective=job.search.objective, block=block, layouts=layouts)
    return in_processes([partial(_row, change, under) for change in changes], usable_processes())


def _layouts(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Distinct feasible layouts of the document, the recommended one first."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for entry in (document["best"], *document["best_per_mode"].values(), *document["ranking"]):
        if entry["feasible"] and entry.get("quantization") == document["best"].get("quantization"):
            found.setdefault((entry["mode"], entry["label"]), entry)
    return list(found.values())[:_LAYOUTS]


def _sharing(known: Scenario, changed: Scenario) -> Scenario:
    """``changed`` with the tables and looked-up times of ``known`` where the change does not touch them."""
    if [pool.accelerator for pool in changed.pools] == [pool.accelerator for pool in known.pools]:
        # NOTE: both are cached properties; what stands in the instance is what they would compute.
        vars(changed)["databases"] = known.databases
        if changed.workload == known.workload:
            vars(changed)["shape_memory"] = known.shape_memory
    return changed


def _same(scenario: Scenario) -> Scenario:
    return scenario


def _changes(scenario: Scenario) -> Iterator[Change]:
    for name, field in (
        ("network bandwidth between nodes", "scale_out_bytes_per_s"),
        ("scale-up (NVLink) bandwidth", "scale_up_bytes_per_s"),
    ):
        for factor in (0.5, 2.0):
            yield Change(name, factor, _rates(field, factor))
    for factor in (0.8, 1.25):
        yield Change("memory bandwidth", factor, _rates("hbm_bytes_per_s", factor))
    for limit, name in (
        ("tpot_s", "TPOT limit"),
        ("ttft_s", "TTFT limit"),
        ("latency_s", "request latency limit"),
    ):
        for factor in (0.8, 1.25) if np.isfinite(getattr(scenario.slo, limit)) else ():
            yield Change(name, factor, _limits(limit, factor))
    for length, name in (("isl", "input tokens"), ("osl", "output tokens")):
        for factor in (0.8, 1.25):
            yield Change(name, factor, _lengths(length, factor))
    for distribution, name in _LOADS_OF_EXPERTS.items():
        if scenario.moe is not None and scenario.workload.expert_distribution != distribution:
            yield Change(name, 1.0, _experts(distribution))
    for factor in (0.8, 1.25):
        yield Change("price of a GPU hour", factor, _prices(factor))
    for factor in (0.8, 1.25):
        yield Change(FIXED_LOAD, factor, _same, load=True)


def _rates(field: str, factor: float) -> Callable[[Scenario], Scenario]:
    def apply(scenario: Scenario) -> Scenario:
        pools = [
            replace(
                pool,
                accelerator=pool.accelerator.model_copy(
                    update={field: getattr(pool.accelerator, field) * factor}
                ),
            )
            for pool in scenario.pools
        ]
        return replace(scenario, pools=tuple(pools))

    return apply


def _prices(factor: float) -> Callable[[Scenario], Scenario]:
    return lambda scenario: replace(
        scenario,
        pools=tuple(
            replace(pool, usd_per_gpu_hour=pool.usd_per_gpu_hour * factor) for pool in scenario.pools
        ),
    )


def _limits(limit: str, factor: float) -> Callable[[Scenario], Scenario]:
    return lambda scenario: replace(
        scenario, slo=replace(scenario.slo, **{limit: getattr(scenario.slo, limit) * factor})
    )


def _lengths(length: str, factor: float) -> Callable[[Scenario], Scenario]:
    return lambda scenario: replace(
        scenario, workload=replace(scenario.workload, **{length: getattr(scenario.workload, length) * factor})
    )


def _experts(distribution: str) -> Callable[[Scenario], Scenario]:
    return lambda scenario: replace(
        scenario, workload=replace(scenario.workload, expert_distribution=distribution)
    )


def _row(change: Change, under: Callable[[Change], dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {"change": change.name, "factor": change.factor}
    try:
        return row | under(change)
    except AfdDseError as error:  # the tables do not reach there: said, not hidden
        return row | {"reason": str(error)}


def _under(
    change: Change,
    scenario: Scenario,
    objective: Objective,
    block: Candidates,
    layouts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The recommended layout and the best of all under ``change``."""
    if change.load:
        alone = block.take(np.zeros(1, dtype=np.int64))
        changed = alone.replace(batch_size=alone.number("batch_size") * change.factor)
        return {"recommended": _metrics(evaluate(scenario, changed), 0), "best": None}
    evaluation, layout, value = _retuned(_sharing(scenario, change.apply(scenario)), objective, block)
    chosen = _best_of(value, np.flatnonzero(layout == 0))
    winner = _best_of(value, np.arange(len(value)))
    best = None
    if winner is not None:
        name = layouts[int(layout[winner])]
        best = {"label": name["label"], "mode": name["mode"], **_metrics(evaluation, winner)}
    recommended = {"feasible": False} if chosen is None else _metrics(evaluation, chosen)
    return {"recommended": recommended, "best": best}


def _retuned(
    scenario: Scenario, objective: Objective, block: Candidates
) -> tuple[Evaluation, IntArray, FloatArray]:
    """Layouts at many loads: evaluation, number of the layout, and score (−∞ where infeasible), row by row.

    All of them at coarse loads; at fine ones the first, and those that might still become the best.
    """
    every, batch = np.arange(len(block)), block.number("batch_size")
    loads = np.outer(batch, _COARSE)
    coarse = _at_loads(scenario, objective, block, every, loads)
    value = coarse[2].reshape(loads.shape)
    best = value.max(axis=1)
    around = np.where(np.isfinite(best), loads[every, value.argmax(axis=1)], batch)
    near = best >= best.max() - _REACH * abs(best.max()) if np.isfinite(best.max()) else every == 0
    again = np.flatnonzero(near | (every == 0))
    fine = _at_loads(scenario, objective, block, again, np.outer(around[again], _FINE))
    return (
        Evaluation.concatenate([coarse[0], fine[0]]),
        np.append(coarse[1], fine[1]),
        np.append(coarse[2], fine[2]),
    )


def _at_loads(
    scenario: Scenario, objective: Objective, block: Candidates, layouts: IntArray, batch: FloatArray
) -> tuple[Evaluation, IntArray, FloatArray]:
    """Evaluate the ``layouts`` of ``block`` at their loads, ``batch`` [layouts, loads]."""
    layout = np.repeat(layouts, batch.shape[1])
    found = evaluate(scenario, block.take(layout).replace(batch_size=batch.reshape(-1)))
    value = score(scenario, objective, found.metrics["requests_per_s"], found.gpus_by_pool)
    return found, layout, np.where(found.feasible, value, -np.inf)


def _best_of(value: FloatArray, rows: IntArray) -> int | None:
    """The row of ``rows`` with the highest score; None where all are infeasible."""
    best = int(rows[value[rows].argmax()])
    return best if np.isfinite(value[best]) else None


def _metrics(evaluation: Evaluation, row: int) -> dict[str, Any]:
    factors = {name: (metric, factor) for name, metric, factor in METRIC_NAMES}
    found: dict[str, Any] = {"feasible": bool(evaluation.feasible[row])}
    for name in _SHOWN:
        metric, factor = factors[name]
        found[name] = finite(factor * float(evaluation.metrics[metric][row]))
    return found
