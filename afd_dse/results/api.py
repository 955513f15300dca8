"""The two things that the package does: find the best deployment of a job, and evaluate a given one."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.resources import keep_freed_memory
from afd_dse.results.breakdown import breakdown
from afd_dse.results.choice import over_types
from afd_dse.results.datatypes import labelled, narrowed
from afd_dse.results.deployment import Deployment, deployment_of
from afd_dse.results.parse import candidates_of
from afd_dse.results.policies import modes_of
from afd_dse.results.result import Result, build_result
from afd_dse.search.parallel import usable_processes
from afd_dse.search.pool import Found
from afd_dse.search.run import search
from afd_dse.search.space import load_space
from afd_dse.spec.cells import PARTITIONS
from afd_dse.spec.job import Job, job_warnings
from afd_dse.spec.load import load_job
from afd_dse.spec.modes import mode_name
from afd_dse.spec.presets import grids_of


def optimize(
    job: Job | Mapping[str, Any],
    *,
    progress: Callable[[str, int], None] | None = None,
    confirm: int | None = None,
    processes: int | None = None,
) -> Result:
    """Find the best deployment of ``job``, overall and per mode.

    ``progress`` is told the mode and how many more candidates it has evaluated. ``confirm`` deployments are simulated
    at most before one is recommended; absent: 20 where TTFT is judged at a percentile above 50, else none. Large
    searches are shared by ``processes``; absent: two, where the system allows. Raises
    :class:`InputError` for a job that is not valid; a job that nothing can satisfy is a valid one, and its result lists
    the nearest misses.
    """
    job = job if isinstance(job, Job) else load_job(job)
    keep_freed_memory()
    processes = usable_processes() if processes is None else processes
    if job.quantization.choices:
        return over_types(job, lambda one: _optimized(one, progress, confirm, processes))
    return _optimized(job, progress, confirm, processes)


def _optimized(
    job: Job, progress: Callable[[str, int], None] | None, confirm: int | None, processes: int
) -> Result:
    """The answer of a job with one data type a role."""
    scenario = scenario_from_job(job)
    asked, modes = job.search, modes_of(job, scenario)
    outcome = search(
        scenario,
        load_space(asked.space_path),
        modes,
        asked.objective,
        method=asked.method,
        seed=asked.seed,
        trials=asked.trials,
        journal=asked.storage or asked.journal,
        grids={name: grids_of(name) for name, _ in modes},
        progress=progress or (lambda mode, rows: None),
        processes=processes,
    )
    # Here, since it loads the simulator, which estimates never need.
    from afd_dse.results.confirm import confirm as confirmed
    from afd_dse.results.confirm import confirmations_asked, with_confirmations

    most = confirmations_asked(job, confirm)
    if not most:
        return build_result(job, scenario, outcome)
    outcome, confirmations = confirmed(job, scenario, outcome, most, progress=progress)
    return with_confirmations(build_result(job, scenario, outcome), confirmations)


def estimate(job: Job | Mapping[str, Any], deployment: Mapping[str, Any]) -> Deployment:
    """Evaluate one deployment of ``job`` (the document of a result, or one written by hand).

    Returns its document as a search does, plus ``operators`` and ``stations`` by phase: where a decode and a prefill
    step go, and how far each part can be trusted. Raises :class:`InputError` for a deployment that is not valid; one
    that breaks a limit is valid, and says so in ``feasible`` and ``reason``.
    """
    asked = job if isinstance(job, Job) else load_job(job)
    job = narrowed(asked, deployment)
    scenario = scenario_from_job(job)
    candidates = candidates_of(deployment, scenario)
    found = Found(candidates, evaluate(scenario, candidates))
    mode = mode_name(PARTITIONS[int(candidates.integer("partition")[0])].text)
    document = labelled(deployment_of(scenario, found, 0, mode, job.search.objective), asked)
    detail = breakdown(scenario, candidates.take(np.zeros(1, dtype=np.int64)))
    document["operators"] = {phase: part["operators"] for phase, part in detail.items()}
    document["stations"] = {phase: part["stations"] for phase, part in detail.items()}
    document["warnings"] = job_warnings(job)
    return document
