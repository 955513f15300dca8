"""Copies of experts behind the pipeline: when they hide, when they are worth it."""

import numpy as np
import pytest
from hypothesis import given, settings

from afd_dse.cost.columns import Candidates
from afd_dse.cost.engines import decode_alone
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.expert_barrier import HISTORY, PREFETCH, PREFETCH_OVERLAPPED, STATIC
from afd_dse.cost.expert_copies import Copying, ExpertSide, copy_seconds, copy_window, round_of
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.station import StationTime
from afd_dse.spec.cells import parse_partition
from tests.strategies import block, build, layout, scenario_names, seeds
from tests.strategies import scenario as case_of

AFD = parse_partition("PA PF | DA | DF")
GB200 = ({"name": "main", "accelerator": "gb200", "count": 72},)
SKEW = {"expert_distribution": {"kind": "power_law", "exponent": 0.8}}


def skewed(pools: tuple[dict[str, object], ...] = GB200) -> Scenario:
    return build(pools=pools, workload=SKEW)


def unit(
    case: Scenario, policy: int, redundant: int = 32, batch: float = 256.0, **columns: float
) -> Candidates:
    given = {"decode_tp": 1, "decode_dp": 32, "decode_ep": 32, "decode_moe_tp": 1, "decode_micro_batches": 3}
    given |= {"decode_redundant": redundant, "decode_expert_policy": policy, "batch_size": batch}
    return layout(case, AFD, np.random.default_rng(3), plain=True, **(given | columns))


def ffn_seconds(case: Scenario, policy: int, **columns: float) -> float:
    return float(decode_alone(case, AFD, unit(case, policy, **columns))[0].step.seconds[0])


def station(seconds: float) -> StationTime:
    return StationTime(np.full((1, 1), seconds), np.zeros((1, 1, 4)))


def copying(m: float, split: bool = True) -> Copying:
    one = np.ones(1, dtype=np.int64)
    return Copying(one * 0, one * 8, one, np.ones(1), one * PREFETCH_OVERLAPPED, np.array([m]), split)


def window(attention: float, there: float, ffn: float, back: float, m: float) -> tuple[float, float]:
    side = ExpertSide(station(ffn), station(there), station(back))
    how = copying(m)
    turn = round_of(how, np.full((1, 1), attention), side, np.zeros((1, 1)))
    found, free = copy_window(how, side, turn)
    return float(found[0, 0]), float(free[0, 0])


def test_the_window_is_the_way_and_the_queue_before_the_experts() -> None:
    # m·F = 12 against a round of 1 + 1 + 4 + 1 = 7: a micro-batch queues for 5, after a way of 1. Links work 3 of 12.
    assert window(1.0, 1.0, 4.0, 1.0, 3.0) == pytest.approx((6.0, 0.75))
    # One micro-batch: it meets nobody, and the links are free but for its own way there and back.
    assert window(1.0, 1.0, 4.0, 1.0, 1.0) == pytest.approx((1.0, 1.0 - 1.0 / 7.0))
    # Attention is the slowest: the queue is there, not before the experts.
    assert window(5.0, 1.0, 4.0, 1.0, 3.0)[0] == pytest.approx(1.0)


def test_a_copy_takes_its_bytes_over_what_is_free_of_the_link() -> None:
    case = case_of()
    how = copying(3.0)
    whole, half = (copy_seconds(case, how, np.full((1, len(case.model.kinds)), free)) for free in (1.0, 0.5))
    # DeepSeek-V3: 3 · 7168 · 2048 bytes with block scales, over NVLink 5 at 85 %.
    moe = whole[0, -1]
    assert moe == pytest.approx(3 * 7168 * 2048 * (1 + 4 / 128**2) / (900e9 * 0.85), rel=0.1)
    assert half[0, -1] == pytest.approx(2 * moe, rel=0.1)
    assert whole[0, 0] == 0.0  # dense layers have nothing to copy


def test_overlap_hides_what_prefetching_alone_exposes() -> None:
    case = skewed()
    step = {policy: ffn_seconds(case, policy) for policy in (STATIC, HISTORY, PREFETCH, PREFETCH_OVERLAPPED)}
    assert step[STATIC] > step[HISTORY] > step[PREFETCH_OVERLAPPED]
    assert step[HISTORY] >= step[PREFETCH] > step[PREFETCH_OVERLAPPED]


def test_copies_that_cost_more_than_they_gain_are_not_made() -> None:
    """Over scale-out an expert takes about a millisecond, longer than a whole layer: the policy is then history."""
    case = skewed(pools=({"name": "main", "accelerator": "h200_sxm", "count": 72},))
    few = {"batch": 16.0}
    assert ffn_seconds(case, PREFETCH, **few) == pytest.approx(ffn_seconds(case, HISTORY, **few), rel=1e-12)
    found = evaluate(case, unit(case, PREFETCH, **few)).metrics
    as_history = evaluate(case, unit(case, HISTORY, **few)).metrics
    assert found["decode_expert_imbalance"][0] == as_history["decode_expert_imbalance"][0]
    assert found["decode_exposed_copy_s"][0] == 0.0


@settings(max_examples=10)
@given(scenario_names, seeds)
def test_a_policy_that_may_copy_is_never_slower_than_history(name: str, seed: int) -> None:
    case = case_of(name)
    rows = block(case, seed, partitions=(AFD,), each=6)
    steps = [
        decode_alone(case, AFD, rows.replace(decode_expert_policy=policy))[0].step.seconds
        for policy in (HISTORY, PREFETCH, PREFETCH_OVERLAPPED)
    ]
    assert (steps[1] <= steps[0] * (1 + 1e-9)).all()
    assert (steps[2] <= steps[1] * (1 + 1e-9)).all()


def test_replica_slots_take_memory() -> None:
    case = skewed()
    weights = [evaluate(case, unit(case, STATIC, redundant=spare)).memory[0, 2, 0] for spare in (0, 32)]
    assert weights[1] > weights[0]
