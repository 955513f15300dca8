"""The tabulated clock against the cost model that it is made of."""

import numpy as np
import pytest
from hypothesis import given, settings

from afd_dse.cost.engines import decode_alone, prefill_alone
from afd_dse.cost.evaluate import engines_of, evaluate
from afd_dse.simulation.clock import Extent, clock_of
from afd_dse.simulation.plant import plant_of
from afd_dse.spec.cells import PARTITIONS, Phase
from tests.strategies import SCENARIOS, layout, scenario, scenario_names, seeds

WHOLE = PARTITIONS[0]
SEPARATE = [partition for partition in PARTITIONS if not partition.is_joint]


@settings(max_examples=20, deadline=None)
@given(scenario_names, seeds)
def test_steps_of_the_mean_load_are_those_of_the_cost_model(name: str, seed: int) -> None:
    case = scenario(name)
    rng = np.random.default_rng(seed)
    partition = SEPARATE[int(rng.integers(len(SEPARATE)))]
    candidate = layout(case, partition, rng).replace(batch_size=48.0)
    pp = float(candidate.integer("decode_pp")[0])
    context, isl = case.decode_context, case.workload.isl
    clock = clock_of(case, candidate, Extent(isl / 4.0, isl * 2.0, 96.0))
    decode = decode_alone(case, partition, candidate)[0].step.seconds[0]
    found = clock.decode(48.0 / pp, context, 48.0 / pp, False)
    # Ranks that step together wait for the busiest: the clock is told which that is, the formula expects it.
    alone = int(candidate.integer("decode_dp")[0]) == 1
    assert found == pytest.approx(decode, rel=0.03) if alone else 0.7 * decode < found < 1.03 * decode
    prefill, _, chunks = prefill_alone(case, partition, candidate)
    piece, sequences = float(chunks.piece[0]), float(chunks.sequences[0])
    attended = float(chunks.piece_prefix[0]) + piece / 2.0
    found = clock.prefill(sequences * piece, attended, sequences * piece, 0.0)
    assert found == pytest.approx(float(prefill.step.seconds[0]), rel=0.08)


@settings(max_examples=6, deadline=None)
@given(seeds)
def test_full_mixed_steps_are_those_of_the_cost_model(seed: int) -> None:
    case = scenario(SCENARIOS[0])
    rng = np.random.default_rng(seed)
    # A step filled to its limit by one prompt.
    isl = case.workload.isl
    candidate = layout(case, WHOLE, rng, plain=True).replace(
        batch_size=64.0, chunk_tokens=64.0 + isl, policy=0
    )
    engines = engines_of(case, WHOLE, candidate)
    if engines.prefill.sequences[0] != 1.0 or candidate.integer("decode_dp")[0] != 1:
        return
    clock = clock_of(case, candidate, Extent(isl / 4.0, isl * 2.0, 96.0))
    found = clock.mixed(64.0, case.decode_context, isl, isl / 2.0, 64.0, isl)
    assert found == pytest.approx(float(engines.prefill.step.seconds[0]), rel=0.05)


def test_steps_take_longer_with_more_to_do() -> None:
    case = scenario(SCENARIOS[0])
    candidate = layout(case, WHOLE, np.random.default_rng(3), plain=True).replace(
        chunk_tokens=8192.0, policy=0
    )
    clock = clock_of(case, candidate, Extent(500.0, 8000.0, 128.0))
    decode = [clock.decode(b, 2000.0, b, False) for b in (1.0, 16.0, 64.0, 128.0)]
    context = [clock.decode(64.0, c, 64.0, False) for c in (500.0, 2000.0, 8000.0)]
    tokens = [clock.mixed(32.0, 2000.0, t, 1000.0, 32.0, t) for t in (64.0, 1024.0, 8000.0)]
    for values in (decode, context, tokens):
        assert values == sorted(values)
    # A rank with more than the others is what a step waits for.
    assert clock.decode(64.0, 4000.0, 32.0, False) <= clock.decode(64.0, 4000.0, 64.0, False)


@settings(max_examples=20, deadline=None)
@given(scenario_names, seeds)
def test_the_batch_that_fills_the_cost_models_memory_fills_the_simulated_store(name: str, seed: int) -> None:
    case = scenario(name)
    rng = np.random.default_rng(seed)
    partition = SEPARATE[int(rng.integers(len(SEPARATE)))]
    candidate = layout(case, partition, rng)
    found = evaluate(case, candidate)
    whole = case.workload.isl + case.workload.osl
    store = plant_of(case, candidate, found, most_context=whole).decode_store
    batch = float(candidate.number("batch_size")[0])
    group = partition.group_of[2]
    kv = float(found.memory[0, group, 1])
    pp = float(candidate.integer("decode_pp")[0])
    assert batch / pp * store.bytes_of(whole) == pytest.approx(kv, rel=0.03)
    free = float(found.memory_budget[0, group] - found.memory[0, group].sum()) + kv
    assert store.capacity == pytest.approx(max(free, 0.0), rel=1e-9, abs=1.0)
    assert Phase.DECODE == 1
