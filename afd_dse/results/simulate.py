"""A deployment under real traffic: request by request, with the cost model as the clock."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from afd_dse.cost.columns import Candidates
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.evaluation import CONSTRAINTS, Evaluation
from afd_dse.cost.expert_cache import ExpertCache
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Scenario
from afd_dse.errors import InputError, Problem
from afd_dse.results.datatypes import narrowed
from afd_dse.results.deployment import deployment_of, finite
from afd_dse.results.parse import candidates_of
from afd_dse.search.pool import Found
from afd_dse.simulation.checkpoint import Checkpoint, digest_of
from afd_dse.simulation.clock import Extent, clock_of
from afd_dse.simulation.plant import Batching, KvPolicy, Plant, Routing, plant_of
from afd_dse.simulation.simulator import Simulator
from afd_dse.simulation.summary import (
    PERCENTILES,
    Outcome,
    goodput,
    limits_of,
    outcome_of,
    statistics,
)
from afd_dse.simulation.traffic import Requests, requests_of, traced
from afd_dse.spec.cells import PARTITIONS
from afd_dse.spec.job import Job, job_warnings
from afd_dse.spec.load import load_job
from afd_dse.spec.modes import mode_name
from afd_dse.spec.trace import read_requests

CHECKPOINT = "simulation.checkpoint"
Progress = Callable[[int, int], None]
# Requests drawn where nothing is said: this many times those in flight, as benchmarks do, and enough for a percentile.
PER_CONCURRENCY = 10
LEAST_REQUESTS, MOST_REQUESTS = 2000, 10_000_000
# Batches that the clock's tables reach beyond the mean: it is continued along its last segment there.
_BATCH_REACH, _LEAST_REACH = 4.0, 32.0


@dataclass(frozen=True, slots=True)
class Options:
    """How to simulate; None: as the deployment, the job or the framework has it.

    ``requests`` to send, ``requests_per_s`` of open arrivals (a trace is sped up or slowed down to it), ``concurrency``
    of a closed loop. ``expert_cache``: not all experts lie in HBM.
    """

    trace: Path | None = None
    requests: int | None = None
    seed: int = 0
    requests_per_s: float | None = None
    concurrency: int | None = None
    routing: Routing = "least_loaded"
    batching: Batching = "fifo"
    expert_cache: ExpertCache | None = None
    kv_policy: KvPolicy | None = None
    max_batch: int | None = None


def simulate(
    job: Job | Mapping[str, Any],
    deployment: Mapping[str, Any],
    options: Options | None = None,
    *,
    checkpoint: Path | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Send requests through one deployment of ``job`` and report what their users see.

    ``checkpoint`` is a file that an interrupted simulation continues from; it goes when the simulation is over. Absent,
    it lies in ``folder``, if that is given.
    Raises :class:`InputError` for input that is not valid. ``met`` in the answer says whether the SLO was kept, and
    ``reason`` why not.
    """
    job = narrowed(job if isinstance(job, Job) else load_job(job), deployment)
    options = options or Options()
    scenario = scenario_from_job(job)
    if options.expert_cache is not None and scenario.moe is None:
        message, remedy = "the model has no routed experts", "leave --experts-resident out"
        raise InputError(Problem("--experts-resident", options.expert_cache.resident, message, remedy))
    candidate = candidates_of(deployment, scenario)
    evaluation = evaluate(scenario, candidate)
    requests = traffic_of(job, evaluation, options)
    simulator = simulator_of(scenario, candidate, evaluation, requests, options)
    saved = None
    if checkpoint is None and folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = folder / CHECKPOINT
    if checkpoint is not None:
        named = job.model_dump(mode="json"), dict(deployment)
        saved = Checkpoint(
            checkpoint, digest_of((*named, repr(options.expert_cache)), simulator.plant, requests)
        )
        saved.restore(simulator)

    def observe(running: Simulator) -> None:
        if saved is not None:
            saved(running)
        if progress is not None:
            progress(running.done, len(requests))

    try:
        simulator.run(observe)
    except KeyboardInterrupt:
        if saved is not None:
            saved.save(simulator)
        raise
    document = _document(job, scenario, candidate, evaluation, simulator, options)
    if saved is not None:
        saved.remove()
    return document


def traffic_of(job: Job, evaluation: Evaluation, options: Options) -> Requests:
    """The requests to simulate: of the trace, or drawn from the job's workload at the deployment's own load."""
    rng = np.random.default_rng(options.seed)
    m = {name: float(column[0]) for name, column in evaluation.metrics.items()}
    rate = options.requests_per_s or m["requests_per_s"]
    in_flight = options.concurrency or job.workload.arrival.concurrency
    if in_flight is None:
        in_flight = m["concurrency"] if np.isfinite(m["concurrency"]) else 1.0
    concurrency = max(round(in_flight), 1)
    usual = min(max(PER_CONCURRENCY * concurrency, LEAST_REQUESTS), MOST_REQUESTS)
    if job.workload.arrival.kind == "closed_loop" and options.trace is None:
        usual = PER_CONCURRENCY * concurrency
    kind = "trace" if options.trace is not None else job.workload.arrival.kind
    if options.concurrency is not None and kind != "closed_loop":
        message = f"has no meaning with arrivals of kind {kind}"
        remedy = "leave it out, or set workload.arrival.kind to closed_loop, without a trace"
        raise InputError(Problem("--concurrency", options.concurrency, message, remedy))
    if options.requests_per_s is not None and kind == "closed_loop":
        message = "has no meaning in a closed loop, whose rate follows from its concurrency"
        raise InputError(
            Problem("--rate", options.requests_per_s, message, "use --concurrency, or leave it out")
        )
    if options.trace is None:
        workload = job.workload
        if workload.arrival.kind == "trace":
            usual = MOST_REQUESTS
        found = requests_of(
            workload, count=options.requests or usual, requests_per_s=rate, concurrency=concurrency, rng=rng
        )
        paced = workload.arrival.kind == "trace"
    else:
        trace = read_requests(options.trace, "--trace")
        found = traced(trace, options.requests or len(trace.input_tokens))
        paced = trace.arrival_s is not None
        if not paced:
            gaps = rng.exponential(1.0 / rate, len(found))
            found = replace(found, arrival_s=np.cumsum(gaps), steady=True)
    if paced and options.requests_per_s is not None and found.arrival_s[-1] > 0.0:
        own = (len(found) - 1) / float(found.arrival_s[-1])
        found = replace(found, arrival_s=found.arrival_s * (own / options.requests_per_s))
    return found


def simulator_of(
    scenario: Scenario, candidate: Candidates, evaluation: Evaluation, requests: Requests, options: Options
) -> Simulator:
    """The simulator of one candidate, its clock tabulated as far as these requests need it."""
    lengths = requests.prefix_tokens + requests.input_tokens
    whole = lengths + requests.output_tokens
    plant = plant_of(
        scenario,
        candidate,
        evaluation,
        most_context=float(whole.max()),
        kv_policy=options.kv_policy,
        routing=options.routing,
        batching=options.batching,
        cache=options.expert_cache,
        max_batch=options.max_batch,
    )
    reach = max(_BATCH_REACH * plant.mean_batch, _LEAST_REACH)
    extent = Extent(float(lengths.min()), float(whole.max()), min(reach, float(plant.most_sequences)))
    return Simulator(plant, clock_of(scenario, candidate, extent, options.expert_cache), requests)


def _document(
    job: Job,
    scenario: Scenario,
    candidate: Candidates,
    evaluation: Evaluation,
    simulator: Simulator,
    options: Options,
) -> dict[str, Any]:
    outcome = outcome_of(simulator)
    plant, requests, records = simulator.plant, simulator.requests, simulator.records
    mode = mode_name(PARTITIONS[int(candidate.integer("partition")[0])].text)
    deployment = deployment_of(scenario, Found(candidate, evaluation), 0, mode, job.search.objective)
    limits = limits_of(scenario.slo.as_asked, outcome)
    reason = why_not(evaluation, simulator, outcome, scenario)
    share = goodput(scenario.slo.as_asked, outcome)
    arrived = np.array(simulator.book.arrival_s)
    itl = records.interval_percentiles(PERCENTILES)
    return {
        "job": job.model_dump(mode="json"),
        "deployment": {
            key: deployment[key] for key in ("label", "mode", "partition", "description", "gpus", "groups")
        },
        "traffic": {
            "arrival": "trace" if options.trace is not None else job.workload.arrival.kind,
            "requests": len(requests),
            "seed": options.seed,
            "offered_requests_per_s": finite(_rate(arrived)),
            "mean_input_tokens": float(requests.input_tokens.mean()),
            "mean_output_tokens": float(requests.output_tokens.mean()),
            "prefix_tokens": requests.prefix_tokens,
        },
        "policies": _policies(plant, options.expert_cache),
        "completed": simulator.done,
        "refused": len(simulator.refused),
        "judged": len(outcome.ttft_s),
        "preemptions": int(sum(simulator.book.preemptions)),
        "cached_prompt_share": float(np.sum(simulator.book.cached) / requests.input_tokens.sum()),
        "met": reason is None,
        "reason": reason,
        "limits": [
            {
                "name": limit.name,
                "statistic": limit.statistic,
                "limit_ms": 1e3 * limit.limit_s,
                "simulated_ms": 1e3 * limit.simulated_s,
                "met": limit.met,
            }
            for limit in limits
        ],
        "goodput": finite(share),
        "goodput_requests_per_s": finite(share * outcome.requests_per_s),
        "requests_per_s": outcome.requests_per_s,
        "tokens_per_s": outcome.tokens_per_s,
        "tokens_per_s_per_gpu": outcome.tokens_per_s / deployment["gpus"],
        "ttft_ms": statistics(outcome.ttft_s),
        "tpot_ms": statistics(outcome.tpot_s),
        "itl_ms": {f"p{p:g}": finite(1e3 * s) for p, s in zip(PERCENTILES, itl, strict=True)},
        "request_latency_ms": statistics(outcome.latency_s),
        "wait_ms": statistics(outcome.wait_s),
        "formula": {
            key: deployment[key]
            for key in (
                "ttft_ms",
                "ttft_percentile_ms",
                "tpot_ms",
                "request_latency_ms",
                "requests_per_s",
                "tokens_per_s",
                "tokens_per_s_per_gpu",
                "concurrency",
                "prefill_utilization",
            )
        },
        "utilization": _utilization(simulator),
        "simulated_s": simulator.now,
        "request_steps": records.decode_tokens / plant.accepted_per_step,
        "timeline": {name: column.tolist() for name, column in records.timeline.items()},
        "warnings": job_warnings(job),
    }


def why_not(evaluation: Evaluation, simulator: Simulator, outcome: Outcome, scenario: Scenario) -> str | None:
    """Why a simulated deployment does not do; None if it does."""
    if float(evaluation.slack[0, CONSTRAINTS.index("gpus")]) < 0.0:
        return "the cluster has too few GPUs for the deployment"
    if simulator.refused:
        count = len(simulator.refused)
        return f"{count} of {len(simulator.requests)} requests do not fit into the KV cache of a rank"
    broken = [limit for limit in limits_of(scenario.slo.as_asked, outcome) if not limit.met]
    if not broken:
        return None
    worst = max(broken, key=lambda limit: limit.simulated_s / limit.limit_s)
    return (
        f"{worst.name} at {worst.statistic} is {1e3 * worst.simulated_s:,.1f} ms in simulation, "
        f"the limit {1e3 * worst.limit_s:,.1f} ms"
    )


def _policies(plant: Plant, cache: ExpertCache | None) -> dict[str, Any]:
    steps = None
    if plant.shared_steps:
        steps = "prioritized prefill" if plant.prioritized else "chunked prefill"
    return {
        "routing": plant.routing,
        "batching": plant.batching,
        "expert_cache": None if cache is None else asdict(cache),
        "steps": steps,
        "kv": plant.kv_policy,
        "chunk_tokens": plant.chunk_tokens,
        "max_batch": plant.max_batch,
        "prefill_ranks": (plant.decode_lanes if plant.shared_steps else plant.prefill_lanes)
        * plant.prefill_ranks,
        "decode_ranks": plant.decode_lanes * plant.decode_ranks,
    }


def _utilization(simulator: Simulator) -> dict[str, float]:
    """Shares of the whole time that engines work, and how full the KV stores of decode are."""
    whole = max(simulator.now, 1e-12)
    decode, prefill = simulator.lanes[: simulator.decode_lanes], simulator.lanes[simulator.decode_lanes :]
    timeline = simulator.records.timeline
    spans = np.diff(timeline["time_s"], append=simulator.now)
    kv = float((timeline["kv_used"] * spans).sum() / max(spans.sum(), 1e-12)) if len(spans) else 0.0
    found = {"decode": sum(lane.busy_s for lane in decode) / len(decode) / whole}
    if prefill:
        found["prefill"] = sum(lane.busy_s for lane in prefill) / len(prefill) / whole
    return found | {"kv_mean": kv, "kv_peak": simulator.fullest}


def _rate(arrived: Any) -> float:
    known = arrived[np.isfinite(arrived)]
    span = float(known.max() - known.min()) if len(known) else 0.0
    return (len(known) - 1) / span if span > 0.0 else float("inf")
