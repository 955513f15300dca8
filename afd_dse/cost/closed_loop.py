"""A closed loop: so many requests always in flight, all of the first ones sent at once, as benchmarks measure."""

from dataclasses import dataclass

import numpy as np

from afd_dse.cost.columns import Candidates
from afd_dse.cost.engines import Chunks, cut_prompts
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.phase import Cut, StepLoad, run_step, stations_under
from afd_dse.cost.scenario import Scenario
from afd_dse.network.traffic import exposed_transfer_seconds
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.cells import Partition, Phase

# Fixed-point steps of the decode batch: it follows weakly from the times that follow from it.
ITERATIONS = 3
# Benchmarks send about ten requests for each that is in flight: this share of them belongs to the first, joint wave.
FIRST_WAVE = 0.1
# Lengths that vary by less than this keep the requests of a wave together from wave to wave.
EQUAL_LENGTHS_CV = 0.01


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """What a closed loop of each candidate shows, columns [n]; means over all requests, SI units.

    ``batch`` decoding sequences per rank and ``running`` with those in prefill (at most what the KV cache holds);
    ``prompt_s`` the steps that hold one prompt, ``prefill_s`` what they take longer than steps without it;
    ``joint_s`` mean time to the first token in a wave that starts together, ``joint_share`` the share of requests in
    such waves; ``queue_s`` wait for room in the KV cache; ``provenance`` shares of decode time [n, 4].
    """

    ttft_s: FloatArray
    tpot_s: FloatArray
    requests_per_s: FloatArray
    batch: FloatArray
    running: FloatArray
    prompt_s: FloatArray
    prefill_s: FloatArray
    joint_s: FloatArray
    joint_share: FloatArray
    queue_s: FloatArray
    provenance: FloatArray


def closed_loop(
    scenario: Scenario,
    partition: Partition,
    candidates: Candidates,
    *,
    concurrency: FloatArray,
    held: FloatArray,
) -> ClosedLoop:
    """Run ``candidates`` of one ``partition`` with ``concurrency`` [n] requests in flight over all replicas.

    ``held`` [n] sequences that the KV cache of one decode rank holds at once, at least one. The candidates' batch sizes
    are ignored: they follow from the concurrency.
    """
    run = _shared_steps if partition.shares_steps else _separate_steps
    return run(scenario, partition, candidates, concurrency, np.maximum(held, 1.0))


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps with no prompt, one, or as many as fit on every rank, seconds [n], and their time by provenance [n, 4]."""

    pure_s: FloatArray
    one_s: FloatArray
    full_s: FloatArray
    pure_provenance: FloatArray
    one_provenance: FloatArray


def _shared_steps(
    scenario: Scenario,
    partition: Partition,
    candidates: Candidates,
    concurrency: FloatArray,
    held: FloatArray,
) -> ClosedLoop:
    """Decode and prefill share steps, or prefill interrupts decode.

    While a request decodes, each of the others is prefilled once: that is what its output tokens wait for on top of the
    decode steps. Where prompts go first and all requests are equally long, every wave starts together: a request then
    waits for those behind it only, half of them on average.
    """
    cut = Cut.of(candidates, Phase.DECODE)
    workload, ranks = scenario.workload, cut.dp * cut.replicas
    share, pool = concurrency / ranks, cut.attention_pool
    running = np.minimum(share, held)
    equal = max(workload.isl_cv, workload.osl_cv) < EQUAL_LENGTHS_CV
    waves = scenario.framework.prefill_first and equal
    joint_share = np.full(len(candidates), 1.0 if waves else FIRST_WAVE)
    ahead = scenario.overhead("prompts_ahead")[pool] * float(equal)
    admission = scenario.overhead("admission_steps")[pool]
    chunks = cut_prompts(scenario, candidates.number("chunk_tokens"))
    passes, prompts = chunks.per_request, np.clip(chunks.sequences, 1.0, running)
    batch = running.copy()
    for _ in range(ITERATIONS):
        steps = _steps(scenario, partition, cut, chunks, batch, prompts)
        pure = steps.pure_s
        prefill = passes * (steps.one_s - pure)
        others = np.maximum(running - 1.0, 0.0) / running * batch / workload.osl
        tpot = (pure + others * prefill * (0.5 if waves else 1.0)) / scenario.accepted_per_step
        joint = (running / prompts + 1.0) / 2.0 * passes * steps.full_s
        prompt = passes * steps.one_s
        steady = prompt + admission * tpot + ahead * prefill
        first = joint_share * joint + (1.0 - joint_share) * steady
        output = workload.osl * tpot
        # A wave decodes as a whole; requests that come one by one leave their places empty during their prefill.
        batch = running if waves else running * output / (output + first)
    rate = running / (output + first)
    queue = (share - running) / rate
    ttft = queue + first + scenario.overhead("request_s")[pool]
    return ClosedLoop(
        ttft_s=ttft,
        tpot_s=tpot,
        requests_per_s=concurrency / (ttft + (workload.osl - 1.0) * tpot),
        batch=batch,
        running=running,
        prompt_s=prompt,
        prefill_s=prefill,
        joint_s=joint,
        joint_share=joint_share,
        queue_s=queue,
        provenance=_shares(steps.pure_provenance + others[:, None] * steps.one_provenance),
    )


def _shares(seconds: FloatArray) -> FloatArray:
    result: FloatArray = seconds / np.maximum(seconds.sum(axis=1, keepdims=True), 1e-30)
    return result


def _steps(
    scenario: Scenario,
    partition: Partition,
    cut: Cut,
    chunks: Chunks,
    batch: FloatArray,
    prompts: FloatArray,
) -> _Steps:
    steps = [
        (cut, StepLoad(batch, together, chunks.piece, chunks.piece_prefix, together * chunks.piece))
        for together in (np.zeros(len(batch)), np.ones(len(batch)), prompts)
    ]
    stations = stations_under(scenario, Phase.DECODE, partition.splits(Phase.DECODE), steps)
    pure, one, full = (run_step(scenario, each) for each in stations)
    rows = np.arange(len(batch))
    return _Steps(pure.seconds, one.seconds, full.seconds, pure.by_provenance(rows), one.by_provenance(rows))


def _separate_steps(
    scenario: Scenario,
    partition: Partition,
    candidates: Candidates,
    concurrency: FloatArray,
    held: FloatArray,
) -> ClosedLoop:
    """Prefill on its own steps or GPUs: a closed network of the prefill servers and of decode as a delay.

    Queueing by Schweitzer's approximate mean-value analysis, several servers by Seidmann's: one server that is as fast
    as all of them, and the rest of the service as a delay.
    """
    cut, workload = Cut.of(candidates, Phase.DECODE), scenario.workload
    ranks = cut.dp * cut.replicas
    running = np.minimum(concurrency / ranks, held)
    batch = running.copy()
    # A step of prefill holds no more prompts than the loop has for each rank.
    prefill = Cut.of(candidates, Phase.PREFILL)
    waiting = workload.isl * np.maximum(concurrency / (prefill.dp * prefill.replicas), 1.0)
    candidates = candidates.replace(chunk_tokens=np.minimum(candidates.number("chunk_tokens"), waiting))
    for _ in range(ITERATIONS):
        found = evaluate(scenario, candidates.replace(batch_size=batch))
        m = found.metrics
        transfer = exposed_transfer_seconds(
            m["kv_transfer_s"], m["prefill_full_service_s"], scenario.model.layers
        )
        served, output = m["prefill_full_service_s"] + transfer, workload.osl * m["tpot_s"]
        capacity = m["requests_per_s"] / m["prefill_utilization"]
        first = _response(concurrency, capacity, served, output)
        rate = np.minimum(concurrency / (output + first), ranks * running / output)
        batch = np.minimum(rate * output / ranks, running)
    queue = np.maximum(concurrency / rate - output - first, 0.0)
    joint = served + concurrency / capacity / 2.0
    joint_share = np.full(len(candidates), FIRST_WAVE)
    ttft = queue + joint_share * np.maximum(joint, first) + (1.0 - joint_share) * first
    return ClosedLoop(
        ttft_s=ttft,
        tpot_s=m["tpot_s"],
        requests_per_s=concurrency / (ttft + (workload.osl - 1.0) * m["tpot_s"]),
        batch=batch,
        running=running,
        prompt_s=served,
        prefill_s=served,
        joint_s=joint,
        joint_share=joint_share,
        queue_s=queue,
        provenance=found.provenance,
    )


def _response(
    concurrency: FloatArray, capacity: FloatArray, service: FloatArray, delay: FloatArray
) -> FloatArray:
    """Mean time from a request to its first token, seconds [n], with ``concurrency`` requests in the loop.

    ``capacity`` requests/s of all servers, ``service`` seconds of one, ``delay`` seconds elsewhere in the loop. The
    queue q at the fast server solves q = X(q)·(1 + q·(N − 1)/N)/capacity, X = N/(delay + response): a quadratic.
    """
    fast = 1.0 / capacity
    slow = np.maximum(service - fast, 0.0)
    others = (concurrency - 1.0) / concurrency
    # With y = r − slow: y² + (delay + slow)·y = fast·(y + delay + slow) + fast·others·N·y.
    b = delay + slow - fast - fast * others * concurrency
    c = -fast * (delay + slow)
    y = (-b + np.sqrt(b * b - 4.0 * c)) / 2.0
    result: FloatArray = slow + y
    return result
