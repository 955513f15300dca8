"""Phases that share GPUs but not steps: decode first, or both at once tile by tile."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from afd_dse.cost.columns import TILE_SHARED, Candidates
from afd_dse.cost.engines import decode_alone, separate
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.sharing import shared_side
from afd_dse.cost.tile_sharing import SHARING_OVERHEAD
from afd_dse.spec.cells import PARTITIONS, parse_partition
from tests.strategies import block, build, layout, scenario, scenario_names, seeds

SHARED_EXPERTS = parse_partition("PA | DA | PF DF")
SHARED_SIDES = tuple(p for p in PARTITIONS if p.is_joint and not p.shares_steps)


def shared_experts(case: Scenario, **columns: float) -> Candidates:
    return layout(
        case,
        SHARED_EXPERTS,
        np.random.default_rng(6),
        plain=True,
        **{"batch_size": 16.0, "chunk_tokens": 2048.0, "prefill_micro_batches": 2, "decode_micro_batches": 2}
        | {"policy": 0}
        | columns,
    )


@pytest.mark.parametrize("policy", [0, TILE_SHARED])
@settings(max_examples=6)
@given(name=scenario_names, seed=seeds)
def test_a_shared_group_slows_decode_and_its_tail_more(policy: int, name: str, seed: int) -> None:
    case = scenario(name)
    for partition in SHARED_SIDES[:4]:
        candidates = block(case, seed, partitions=(partition,), each=2, policy=policy)
        alone, _ = decode_alone(case, partition, candidates)
        shared = shared_side(case, partition, candidates).decode
        assert (shared.interval_s > alone.interval_s).all()
        assert (shared.tail_s >= shared.interval_s * (1 - 1e-9)).all()


@pytest.mark.parametrize("policy", [0, TILE_SHARED])
def test_prefill_slows_down_on_the_experts_that_decode_uses_too(policy: int) -> None:
    case = scenario()
    candidates = shared_experts(case, policy=policy, decode_share=0.5)
    alone = separate(case, SHARED_EXPERTS, candidates)
    shared = shared_side(case, SHARED_EXPERTS, candidates)
    assert shared.prefill.service_s[0] > alone.prefill.service_s[0]
    assert shared.slack[0] < 1.0


@pytest.mark.parametrize("policy", [0, TILE_SHARED])
def test_without_prefill_load_a_shared_group_decodes_as_if_alone(policy: int) -> None:
    slowdowns = []
    for osl in (64, 1024, 16384, 262144):
        case = build(isl=256, osl=osl)
        candidates = shared_experts(case, policy=policy, decode_share=0.5)
        alone, _ = decode_alone(case, SHARED_EXPERTS, candidates)
        slowdowns.append(
            shared_side(case, SHARED_EXPERTS, candidates).decode.interval_s[0] / alone.interval_s[0] - 1
        )
    assert all(one > other > 0 for one, other in itertools.pairwise(slowdowns))
    assert slowdowns[-1] < 1e-3 < slowdowns[0]


@settings(max_examples=10)
@given(scenario_names, seeds)
def test_the_rate_that_interferes_is_the_rate_that_results(name: str, seed: int) -> None:
    """The fixed point: prefill's use of the shared group at the rate that is printed gives back the printed TPOT."""
    case = scenario(name)
    candidates = block(case, seed, partitions=SHARED_SIDES)
    once = evaluate(case, candidates).metrics
    rate = (
        candidates.number("batch_size")
        * candidates.number("decode_dp")
        * candidates.number("decode_replicas")
    )
    assert np.allclose(once["requests_per_s"], rate / (case.workload.osl * once["tpot_s"]), rtol=1e-9)


@settings(max_examples=8)
@given(scenario_names, seeds)
def test_tiles_share_no_more_of_a_gpu_than_there_is(name: str, seed: int) -> None:
    """Prefill at the rate that results fits beside decode exactly where the slack says so."""
    case = scenario(name)
    for partition in SHARED_SIDES[:4]:
        candidates = block(case, seed, partitions=(partition,), each=2, policy=TILE_SHARED)
        found, alone = shared_side(case, partition, candidates), separate(case, partition, candidates)
        # Sharing never beats having all GPUs to itself, and decode never takes more than all of prefill's speed.
        assert (found.prefill.capacity <= alone.prefill.capacity * (1 + 1e-9)).all()
        assert (found.slack <= 1.0).all()


def test_more_of_the_gpu_for_decode_makes_it_faster_and_prefill_slower() -> None:
    case = build(isl=8192, osl=256)
    rows = [
        shared_side(case, SHARED_EXPERTS, shared_experts(case, policy=TILE_SHARED, decode_share=share))
        for share in (0.1, 0.3, 0.5, 0.7, 0.9)
    ]
    steps = [found.decode.interval_s[0] for found in rows]
    prefill = [found.prefill.step.ffn_s[0] for found in rows]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]
    assert prefill == sorted(prefill)
    assert prefill[-1] > prefill[0]


def test_decode_waits_for_a_tile_where_it_would_wait_for_a_kernel() -> None:
    """With almost all SMs, decode beside long prefill kernels costs it the overhead and a tile, not half a kernel."""
    case = build(isl=32768, osl=64)
    columns = {"batch_size": 4.0, "chunk_tokens": 32768.0}
    kernels = shared_side(case, SHARED_EXPERTS, shared_experts(case, **columns))
    tiles = shared_side(
        case, SHARED_EXPERTS, shared_experts(case, policy=TILE_SHARED, decode_share=0.95, **columns)
    )
    alone = separate(case, SHARED_EXPERTS, shared_experts(case, **columns))
    quiet = alone.decode.interval_s[0]
    assert tiles.decode.interval_s[0] < kernels.decode.interval_s[0]
    assert tiles.decode.interval_s[0] < quiet * (1 + SHARING_OVERHEAD) * 1.3


def test_whole_steps_may_share_by_tiles_too() -> None:
    case = scenario()
    one = layout(
        case, PARTITIONS[0], np.random.default_rng(0), plain=True, policy=TILE_SHARED, decode_share=0.5
    )
    found = evaluate(case, one)
    assert np.isfinite(found.slack).all()
    apart = evaluate(case, one.replace(decode_share=0.9))
    assert found.metrics["tpot_s"][0] != apart.metrics["tpot_s"][0]
