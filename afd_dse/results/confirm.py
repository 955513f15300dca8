"""Percentiles confirmed: the deployments to be recommended are simulated, and what fails is demoted with the reason."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from afd_dse.cost.columns import ALL_COLUMNS, Candidates
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.evaluation import Evaluation
from afd_dse.cost.launching import BoolArray
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.results.layout import groups_of, label
from afd_dse.results.result import Result
from afd_dse.results.simulate import Options, simulator_of, traffic_of, why_not
from afd_dse.results.words import number
from afd_dse.rows import join_rows
from afd_dse.search.crossing import largest_holding
from afd_dse.search.objective import Objective
from afd_dse.search.pool import Found, partition_of, ranking
from afd_dse.search.run import ModeOutcome, SearchOutcome
from afd_dse.simulation.summary import outcome_of
from afd_dse.spec.job import Job

CONFIRMED = 20
"""Deployments that are simulated at most where a percentile is asked for and nothing else is said."""
# Requests of one confirmation: enough for a percentile and to fill the deployment, few enough to take a second.
_LEAST, _MOST, _PER_CONCURRENCY = 4000, 12_000, 5.0
_WARNED = 3
# So many of the layouts that fail in simulation are tried under less load: these parts of it at most and at least.
_LOWERED, _LESS_LOAD, _LEAST_LOAD = 64, 0.95, 1.0 / 16.0
_LAYOUT = tuple(name for name in ALL_COLUMNS if name != "batch_size")


@dataclass(frozen=True, slots=True)
class Confirmation:
    """One simulated deployment: ``reason`` why it does not do, None if it does; its times in ms."""

    mode: str
    label: str
    requests_per_s: float
    reason: str | None
    ttft_percentile_ms: float | None
    tpot_ms: float | None

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return {"met": self.reason is None} | {name: getattr(self, name) for name in self.__slots__}


def confirmations_asked(job: Job, asked: int | None) -> int:
    """How many deployments to simulate: as asked, else :data:`CONFIRMED` where TTFT is judged at a percentile."""
    if asked is not None:
        return asked
    judged = job.slo.percentile > 50.0 and not job.slo.is_open
    return CONFIRMED if judged and job.workload.arrival.kind != "closed_loop" else 0


def confirm(
    job: Job,
    scenario: Scenario,
    outcome: SearchOutcome,
    most: int,
    *,
    progress: Callable[[str, int], None] | None = None,
) -> tuple[SearchOutcome, list[Confirmation]]:
    """Simulate what would be recommended, best first, then the best of every mode, until all of it holds.

    A deployment that fails leaves the outcome; the confirmations say why. With it go the same layout under more load,
    and of its mode and policy what the simulation makes likely to fail too; the best of these are tried again under
    less load (:func:`_without`). At most ``most`` are
    simulated; what then still leads is unconfirmed.
    """
    modes = list(outcome.modes)
    done: list[Confirmation] = []
    passed: set[tuple[str, bytes]] = set()
    while len(done) < most:
        place = next(_unconfirmed(scenario, job.search.objective, modes, passed), None)
        if place is None:
            break
        at, row = place
        mode = modes[at]
        assert mode.found is not None
        found = mode.found.take(np.array([row]))
        result = _simulated(job, scenario, found, mode.name)
        done.append(result)
        if progress is not None:
            progress(f"simulating {mode.name}", 1)
        if result.reason is None:
            passed.add((mode.name, _key(mode.found, row)))
        else:
            failures = sum(entry.mode == mode.name and entry.reason is not None for entry in done)
            power = 0.5 if failures == 1 else 1.0
            modes[at] = _without(scenario, job.search.objective, mode, row, result, power)
    return replace(outcome, modes=modes), done


def with_confirmations(result: Result, confirmations: list[Confirmation]) -> Result:
    """The result with what was simulated under ``confirmation``, and warnings of what was demoted or is unconfirmed."""
    document = dict(result.document)
    best = document["best"]
    held = {(entry.mode, entry.label) for entry in confirmations if entry.reason is None}
    known = best is not None and (best["mode"], best["label"]) in held
    document["confirmation"] = {
        "confirmed": known,
        "simulated": [entry.document() for entry in confirmations],
    }
    warnings = [
        f"demoted by simulation: {entry.label} ({entry.mode}) at {number(entry.requests_per_s)} requests/s: "
        f"{entry.reason}"
        for entry in confirmations
        if entry.reason is not None
    ]
    if len(warnings) > _WARNED:
        left = len(warnings) - _WARNED
        warnings = [*warnings[:_WARNED], f"demoted by simulation: {left} more, see confirmation in the JSON"]
    if best is not None and not known:
        warnings.append(
            f"{best['label']} ({best['mode']}) has not been simulated: raise --confirm to have it confirmed"
        )
    document["warnings"] = [*document["warnings"], *warnings]
    return replace(result, document=document)


def _unconfirmed(
    scenario: Scenario, objective: Objective, modes: list[ModeOutcome], passed: set[tuple[str, bytes]]
) -> Iterator[tuple[int, int]]:
    """(mode, row) of what is to be simulated next: the best of all, then the best of each mode, best first."""
    leaders = [
        (at, int(mode.ranking[0]), mode.found.take(mode.ranking[:1]))
        for at, mode in enumerate(modes)
        if mode.found is not None and len(mode.ranking)
    ]
    if not leaders:
        return
    for place in ranking(scenario, objective, join_rows([row for _, _, row in leaders])):
        at, row, alone = leaders[int(place)]
        if (modes[at].name, _key(alone, 0)) not in passed:
            yield at, row


def _key(found: Found, row: int) -> bytes:
    return np.array([found.candidates.number(name)[row] for name in ALL_COLUMNS]).tobytes()


def _simulated(job: Job, scenario: Scenario, found: Found, mode: str) -> Confirmation:
    """The confirmation of one row."""
    evaluation = found.evaluation
    concurrency = float(evaluation.metrics["concurrency"][0])
    count = int(min(max(_PER_CONCURRENCY * concurrency, _LEAST), _MOST))
    options = Options(requests=count, seed=job.search.seed)
    requests = traffic_of(job, evaluation, options)
    simulator = simulator_of(scenario, found.candidates, evaluation, requests, options)
    simulator.run()
    outcome = outcome_of(simulator)
    tpot = outcome.tpot_s[np.isfinite(outcome.tpot_s)]
    return Confirmation(
        mode=mode,
        label=label(scenario, partition_of(found, 0), groups_of(scenario, found.candidates, 0)),
        requests_per_s=float(evaluation.metrics["requests_per_s"][0]),
        reason=why_not(evaluation, simulator, outcome, scenario),
        ttft_percentile_ms=_percentile_ms(outcome.ttft_s, scenario.slo.percentile),
        tpot_ms=1e3 * float(tpot.mean()) if len(tpot) else None,
    )


def _percentile_ms(seconds: FloatArray, percentile: float) -> float | None:
    return 1e3 * float(np.percentile(seconds, percentile)) if len(seconds) else None


def _without(
    scenario: Scenario,
    objective: Objective,
    mode: ModeOutcome,
    row: int,
    failed: Confirmation,
    power: float,
) -> ModeOutcome:
    """The mode without one row, without the same layout under more load, and without what would likely fail too.

    If TTFT or TPOT came out r times as long as the formulas say, rows of the same policy whose formulas leave less than
    r^``power`` to the limit go as well: the root of r at first, because queues are the less underestimated the less
    they are used, and r itself where a mode has failed before. The best layouts that go come back under less load.
    """
    assert mode.found is not None
    candidates, metrics = mode.found.candidates, mode.found.evaluation.metrics
    layouts, rate = _layouts(candidates), metrics["requests_per_s"]
    gone = (layouts == layouts[row]).all(axis=1) & (rate >= rate[row] * (1.0 - 1e-9))
    margins = _margins(failed, mode.found.evaluation, row, power)
    policy = candidates.integer("policy")
    gone |= ~_leave(scenario, mode.found.evaluation, margins) & (policy == policy[row])
    lowered = _lowered(scenario, objective, mode.found.take(np.flatnonzero(gone)), margins)
    parts = [
        part for part in (mode.found.take(np.flatnonzero(~gone)), lowered) if part is not None and len(part)
    ]
    if not parts:
        nothing = np.zeros(0, dtype=np.int64)
        return replace(mode, found=None, ranking=nothing, note=failed.reason or "")
    found = join_rows(parts)
    return replace(mode, found=found, ranking=ranking(scenario, objective, found))


def _layouts(candidates: Candidates) -> FloatArray:
    """What candidates are but for their load [n, columns]."""
    return np.stack([candidates.number(name) for name in _LAYOUT], axis=1)


def _margins(failed: Confirmation, evaluation: Evaluation, row: int, power: float) -> tuple[float, float]:
    """How many times as long as by the formulas TTFT and TPOT came out, at least 1, to the ``power``."""
    simulated_ms = (failed.ttft_percentile_ms or 0.0, failed.tpot_ms or 0.0)
    formulas_s = (float(evaluation.metrics[name][row]) for name in ("ttft_percentile_s", "tpot_s"))
    ttft, tpot = (
        max(ms / 1e3 / s, 1.0) ** power if s > 0.0 else 1.0
        for ms, s in zip(simulated_ms, formulas_s, strict=True)
    )
    return ttft, tpot


def _leave(scenario: Scenario, evaluation: Evaluation, margins: tuple[float, float]) -> BoolArray:
    """Whether the formulas leave ``margins`` to the limits on TTFT and TPOT [n]; limits broken anyway are passed by."""
    limits, metrics = scenario.slo.as_asked, evaluation.metrics
    ttft, tpot = margins
    ok: BoolArray = (ttft <= 1.0) | (metrics["ttft_percentile_s"] * ttft <= limits.ttft_s)
    ok &= (tpot <= 1.0) | (metrics["tpot_s"] * tpot <= limits.tpot_s)
    return ok


def _lowered(
    scenario: Scenario, objective: Objective, found: Found, margins: tuple[float, float]
) -> Found | None:
    """The best layouts of ``found`` under the largest load at which the formulas leave ``margins``, as far as any does.

    None where the simulation broke something else, which less load may not mend.
    """
    ranked = ranking(scenario, objective, found)
    first = np.sort(np.unique(_layouts(found.candidates.take(ranked)), axis=0, return_index=True)[1])
    start = found.candidates.take(ranked[first[:_LOWERED]])
    if max(margins) <= 1.0 or not len(start):
        return None

    def holds(rows: IntArray, batch: FloatArray) -> BoolArray:
        tried = evaluate(scenario, start.take(rows).replace(batch_size=batch))
        return tried.feasible & _leave(scenario, tried, margins)

    load = start.number("batch_size")
    lowered = start.replace(batch_size=largest_holding(load * _LEAST_LOAD, load * _LESS_LOAD, holds))
    again = Found(lowered, evaluate(scenario, lowered))
    return again.take(np.flatnonzero(again.evaluation.feasible & _leave(scenario, again.evaluation, margins)))
