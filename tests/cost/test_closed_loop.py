from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.cost.closed_loop import ClosedLoop, _response, closed_loop
from afd_dse.cost.columns import CHUNKED, PRIORITIZED, Candidates
from afd_dse.cost.engines import decode_alone
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.scenario import EngineOverheads, Scenario
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.cells import parse_partition, partition_index
from tests.strategies import build

SHARED, SEPARATE = parse_partition("PA PF DA DF"), parse_partition("PA PF | DA DF")
PARTITIONS = {"colocated": SHARED, "pd": SEPARATE}
MODEL, OSL = "Qwen/Qwen3-32B-FP8", 256.0
LOADS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0])
ROOMY = 1e6
OVERHEADS = EngineOverheads(
    layer_s=8e-6, sequence_s=4e-6, request_s=0.03, admission_steps=5.0, prompts_ahead=1.5
)


@lru_cache(maxsize=8)
def case(framework: str = "vllm", cv: float = 0.0, isl: float = 1024.0) -> Scenario:
    """Qwen3-32B on H200, with overheads that are this test's own."""
    built = build(
        MODEL,
        [{"name": "main", "accelerator": "h200_sxm", "count": 64}],
        isl={"mean": isl, "cv": cv},
        osl={"mean": OSL, "cv": cv},
        framework=framework,
    )
    return replace(built, pools=tuple(replace(pool, overheads=OVERHEADS) for pool in built.pools))


def candidates(scenario: Scenario, mode: str, count: int = 1, **columns: Any) -> Candidates:
    """Tensor-parallel pairs, ``count`` equal rows."""
    cut = {"tp": 2, "moe_tp": 2, "dp": 1, "cp": 1, "pp": 1, "ep": 1, "micro_batches": 1, "replicas": 1}
    cut |= {"attention_pool": 0, "ffn_pool": 0, "redundant": 0}
    row: dict[str, Any] = {
        "partition": partition_index(PARTITIONS[mode]),
        "policy": PRIORITIZED if scenario.framework.prefill_first else CHUNKED,
        "batch_size": np.ones(count),
        "chunk_tokens": 8192.0,
    }
    row |= {f"{phase}_{name}": value for phase in ("prefill", "decode") for name, value in cut.items()}
    return Candidates.of(**(row | columns))


def loop(
    mode: str,
    concurrency: FloatArray = LOADS,
    held: float = ROOMY,
    *,
    framework: str = "vllm",
    cv: float = 0.0,
    isl: float = 1024.0,
    **columns: Any,
) -> ClosedLoop:
    scenario = case(framework, cv, isl)
    return closed_loop(
        scenario,
        PARTITIONS[mode],
        candidates(scenario, mode, len(concurrency), **columns),
        concurrency=concurrency,
        held=np.full(len(concurrency), held),
    )


MODES: Mapping[str, Mapping[str, Any]] = {
    "colocated, chunked": {"mode": "colocated"},
    "colocated, chunked, lengths that vary": {"mode": "colocated", "cv": 0.2},
    "colocated, prefill first": {"mode": "colocated", "framework": "sglang"},
    "pd": {"mode": "pd"},
}


@pytest.mark.parametrize("how", MODES.values(), ids=MODES)
@pytest.mark.parametrize("held", [ROOMY, 24.0], ids=["roomy", "full"])
def test_more_requests_in_flight_never_lower_the_throughput(how: Mapping[str, Any], held: float) -> None:
    rate = loop(**how, held=held).requests_per_s
    # Measured kernels are not perfectly monotone in the batch: a hundredth is theirs.
    assert (rate[1:] >= 0.99 * rate[:-1]).all()
    assert rate[-1] > 3.0 * rate[0]


@pytest.mark.parametrize("how", MODES.values(), ids=MODES)
@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("held", [ROOMY, 24.0], ids=["roomy", "full"])
def test_a_rank_decodes_no_more_than_runs_and_runs_no_more_than_its_share(
    how: Mapping[str, Any], replicas: int, held: float
) -> None:
    both = {"prefill_replicas": replicas, "decode_replicas": replicas}
    found = loop(**how, held=held, **both)
    assert (found.batch > 0.0).all()
    assert (found.batch <= found.running * (1.0 + 1e-9)).all()
    assert (found.running <= LOADS / replicas * (1.0 + 1e-9)).all()
    assert (found.running <= held).all()


@pytest.mark.parametrize("how", MODES.values(), ids=MODES)
def test_a_token_takes_at_least_a_step_of_decode_alone(how: Mapping[str, Any]) -> None:
    found = loop(**how)
    scenario = case(str(how.get("framework", "vllm")), float(how.get("cv", 0.0)))
    mode = str(how["mode"])
    rows = candidates(scenario, mode, len(LOADS)).replace(batch_size=found.batch)
    alone, _ = decode_alone(scenario, PARTITIONS[mode], rows)
    assert (found.tpot_s >= alone.interval_s * (1.0 - 0.01)).all()
    if mode == "colocated":
        assert (found.tpot_s[1:] > alone.interval_s[1:]).all()


@pytest.mark.parametrize("how", MODES.values(), ids=MODES)
def test_requests_in_flight_are_rate_times_the_time_of_each(how: Mapping[str, Any]) -> None:
    """Little's law, by which benchmarks of a closed loop can be checked too."""
    found = loop(**how, held=24.0)
    inside = found.requests_per_s * (found.ttft_s + (OSL - 1.0) * found.tpot_s)
    assert inside == pytest.approx(LOADS)


@pytest.mark.parametrize("how", MODES.values(), ids=MODES)
def test_what_a_full_cache_does_not_hold_waits_and_leaves_decode_as_it_was(how: Mapping[str, Any]) -> None:
    many = np.array([16.0, 32.0, 64.0, 128.0])
    full = loop(**how, concurrency=many, held=16.0)
    assert full.running == pytest.approx([16.0] * 4)
    assert full.queue_s[0] == pytest.approx(0.0, abs=1e-9)
    assert (np.diff(full.queue_s) > 0.0).all()
    assert (np.diff(full.ttft_s) > 0.0).all()
    if how["mode"] == "colocated":
        assert full.tpot_s == pytest.approx(full.tpot_s[0])
        assert full.batch == pytest.approx(full.batch[0])
        # The wait is that of places: each further request stands one time between departures longer.
        assert np.diff(full.queue_s) == pytest.approx(np.diff(many) * full.queue_s[1] / 16.0)
    roomy = loop(**how, concurrency=many)
    assert roomy.queue_s == pytest.approx(0.0, abs=1e-9)
    assert (roomy.tpot_s[1:] > full.tpot_s[1:]).all()


def test_in_a_wave_of_equal_requests_a_token_waits_for_half_of_the_other_prompts() -> None:
    """Engines that prefill first start all requests of a wave together: only those behind one are in its way."""
    wave = loop("colocated", framework="sglang")
    others = (wave.running - 1.0) * wave.prefill_s / OSL
    scenario = case("sglang")
    rows = candidates(scenario, "colocated", len(LOADS)).replace(batch_size=wave.running)
    alone, _ = decode_alone(scenario, SHARED, rows)
    assert wave.tpot_s == pytest.approx(alone.interval_s + 0.5 * others)
    assert wave.batch == pytest.approx(wave.running)
    assert (wave.joint_share == 1.0).all()


def test_where_lengths_vary_a_token_waits_for_every_prompt_of_the_others() -> None:
    mixed = loop("colocated", framework="sglang", cv=0.2)
    wave = loop("colocated", framework="sglang")
    assert (mixed.joint_share < 1.0).all()
    assert (mixed.tpot_s[2:] > wave.tpot_s[2:]).all()
    # The loads of both differ in the end by what decodes at a time, so compare the share of prompts per sequence.
    scenario = case("sglang", 0.2)
    rows = candidates(scenario, "colocated", len(LOADS)).replace(batch_size=mixed.batch)
    alone, _ = decode_alone(scenario, SHARED, rows)
    others = (mixed.running - 1.0) / mixed.running * mixed.batch * mixed.prefill_s / OSL
    assert mixed.tpot_s == pytest.approx(alone.interval_s + others, rel=0.02)


@pytest.mark.parametrize("mode", ["colocated", "pd"])
def test_one_request_alone_waits_for_nothing(mode: str) -> None:
    found = loop(mode, np.array([1.0]))
    assert found.queue_s == pytest.approx(0.0, abs=1e-9)
    assert found.prompt_s[0] < found.ttft_s[0] < 0.3
    if mode == "colocated":
        scenario = case()
        alone, _ = decode_alone(
            scenario, SHARED, candidates(scenario, "colocated").replace(batch_size=found.batch)
        )
        assert found.tpot_s == pytest.approx(alone.interval_s)


@pytest.mark.parametrize("mode", ["colocated", "pd"])
def test_replicas_share_the_load_evenly(mode: str) -> None:
    one = loop(mode, LOADS)
    four = loop(mode, 4.0 * LOADS, prefill_replicas=4, decode_replicas=4)
    assert four.batch == pytest.approx(one.batch, rel=0.05)
    assert four.tpot_s == pytest.approx(one.tpot_s, rel=0.02)
    assert four.requests_per_s == pytest.approx(4.0 * one.requests_per_s, rel=0.05)


def test_more_decode_replicas_and_prefill_servers_both_help_where_they_lack() -> None:
    load = np.array([128.0])
    base = loop("pd", load, isl=4096.0)
    prefill = loop("pd", load, isl=4096.0, prefill_replicas=4)
    decode = loop("pd", load, isl=4096.0, decode_replicas=4)
    assert prefill.ttft_s[0] < 0.6 * base.ttft_s[0]
    assert prefill.requests_per_s[0] > 1.5 * base.requests_per_s[0]
    assert decode.tpot_s[0] < base.tpot_s[0]


def test_disaggregated_prefill_is_never_exceeded() -> None:
    """However many requests are in the loop, they leave no faster than the prefill servers let them through."""
    scenario = case(isl=4096.0)
    found = loop("pd", LOADS, isl=4096.0)
    rows = candidates(scenario, "pd", len(LOADS)).replace(batch_size=found.batch)
    metrics = evaluate(scenario, rows).metrics
    capacity = metrics["requests_per_s"] / metrics["prefill_utilization"]
    assert (found.requests_per_s <= capacity * 1.001).all()
    assert found.requests_per_s[-1] > 0.85 * capacity[-1]


def test_rows_of_a_block_do_not_know_of_each_other() -> None:
    for mode in PARTITIONS:
        together = loop(mode, held=24.0)
        for row, load in enumerate(LOADS[::4]):
            alone = loop(mode, np.array([load]), held=24.0)
            assert alone.tpot_s[0] == pytest.approx(together.tpot_s[4 * row])
            assert alone.ttft_s[0] == pytest.approx(together.ttft_s[4 * row])


def test_overheads_of_a_request_delay_its_first_token_and_nothing_else() -> None:
    scenario = case()
    rows = candidates(scenario, "colocated", len(LOADS))
    longer = replace(OVERHEADS, request_s=OVERHEADS.request_s + 0.5)
    slow = replace(scenario, pools=tuple(replace(p, overheads=longer) for p in scenario.pools))
    fast, late = (
        closed_loop(s, SHARED, rows, concurrency=LOADS, held=np.full(len(LOADS), ROOMY))
        for s in (scenario, slow)
    )
    assert late.ttft_s - fast.ttft_s == pytest.approx(0.5)
    assert late.tpot_s == pytest.approx(fast.tpot_s)


# -- the queue of prefill in the loop ----------------------------------------------------------------------------------


def exact_response(population: int, service: float, delay: float) -> float:
    """Exact mean-value analysis (Reiser and Lavenberg 1980) of one queue and a delay."""
    queue = response = 0.0
    for customers in range(1, population + 1):
        response = service * (1.0 + queue)
        queue = customers * response / (delay + response)
    return response


def response(population: float, capacity: float, service: float, delay: float) -> float:
    columns = (np.array([value]) for value in (population, capacity, service, delay))
    return float(_response(*columns)[0])


populations, times = st.integers(1, 300), st.floats(1e-3, 1e3)


@given(populations, times, times)
def test_a_cycle_is_within_a_twelfth_of_exact_mean_value_analysis(
    population: int, service: float, delay: float
) -> None:
    """Schweitzer's approximation errs at the knee, by 7 % of the cycle at most, and always on the safe side."""
    exact = exact_response(population, service, delay)
    found = response(population, 1.0 / service, service, delay)
    assert found >= exact * (1.0 - 1e-6)
    assert found + delay <= (exact + delay) * 1.08


@given(times, times)
def test_a_request_alone_takes_its_service(service: float, delay: float) -> None:
    assert response(1.0, 1.0 / service, service, delay) == pytest.approx(service)


@given(st.integers(2, 300), times, times, st.integers(1, 16))
def test_the_loop_keeps_between_its_asymptotes(
    population: int, service: float, delay: float, servers: int
) -> None:
    """No faster than without waiting, nor than the servers; no slower than with all the others ahead."""
    found = response(population, servers / service, service, delay)
    rate = population / (delay + found)
    assert found >= service * (1.0 - 1e-9)
    assert rate <= servers / service * (1.0 + 1e-9)
    assert found <= service + population * service / servers
    # Where the delay is short the servers are always busy.
    assert response(10_000.0, servers / service, service, 0.01 * service) == pytest.approx(
        10_000.0 * service / servers, rel=0.02
    )


@given(populations, times, times)
def test_waiting_grows_with_the_population(population: int, service: float, delay: float) -> None:
    here, more = (response(n, 1.0 / service, service, delay) for n in (population, population + 1))
    assert more >= here * (1.0 - 1e-9)
