"""The busiest expert rank under placement policies."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.cost.columns import EXPERT_POLICIES
from afd_dse.cost.expert_barrier import HISTORY, PREFETCH, PREFETCH_OVERLAPPED, STATIC, ExpertLoads
from afd_dse.cost.expert_load import power_law_popularity
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.stations import FfnShape, ffn_station
from tests.strategies import build, scenario


def loads(exponent: float, persistence: float = 0.5) -> ExpertLoads:
    return ExpertLoads(power_law_popularity(64, exponent), 6, persistence)


def at(found: ExpertLoads, tokens: float, ranks: int, redundant: int, policy: int) -> float:
    columns = (np.array([value]) for value in (ranks, redundant, policy))
    return float(found.imbalance(np.array([tokens]), *columns)[0])


@given(
    st.sampled_from([0.0, 0.4, 0.8]), st.sampled_from([2, 8, 16]), st.sampled_from([0, 16]), st.floats(1, 1e6)
)
def test_knowing_more_never_leaves_more_imbalance(
    exponent: float, ranks: int, redundant: int, tokens: float
) -> None:
    found = loads(exponent)
    left = [at(found, tokens, ranks, redundant, policy) for policy in range(len(EXPERT_POLICIES))]
    assert left[STATIC] >= left[HISTORY] - 1e-9
    assert left[HISTORY] >= left[PREFETCH] - 1e-9
    assert left[PREFETCH] == left[PREFETCH_OVERLAPPED]
    assert min(left) >= 1.0 - 1e-9


@given(st.sampled_from([0.0, 0.6]), st.sampled_from([4, 16]), st.floats(1, 1e5), st.floats(1.0, 8.0))
def test_the_busiest_rank_gets_more_when_there_is_more(
    exponent: float, ranks: int, tokens: float, factor: float
) -> None:
    found = loads(exponent)
    more = tokens * factor
    assert more * at(found, more, ranks, 0, 0) >= tokens * at(found, tokens, ranks, 0, 0) * (1 - 1e-9)


def test_chance_fades_with_tokens_and_popularity_does_not() -> None:
    even, skewed = loads(0.0), loads(0.8)
    assert at(even, 16, 8, 0, STATIC) > 1.2 > 1.03 > at(even, 1e5, 8, 0, STATIC)
    assert at(skewed, 1e5, 8, 0, STATIC) > 1.3
    columns = (np.array([8]), np.array([0]), np.array([STATIC]))
    assert even.lasting(*columns)[0] == 1.0
    assert skewed.lasting(*columns)[0] == pytest.approx(at(skewed, 1e6, 8, 0, STATIC))


def test_history_removes_the_share_of_the_excess_that_persists() -> None:
    static = at(loads(0.8), 1e6, 8, 8, STATIC)
    balanced = at(loads(0.8, persistence=1.0), 1e6, 8, 8, HISTORY)
    assert at(loads(0.8, persistence=0.0), 1e6, 8, 8, HISTORY) == pytest.approx(static)
    assert at(loads(0.8, persistence=0.25), 1e6, 8, 8, HISTORY) == pytest.approx(
        0.75 * static + 0.25 * balanced
    )


def test_without_slots_to_copy_into_prefetching_is_history() -> None:
    assert at(loads(0.8), 1e4, 8, 0, PREFETCH) == at(loads(0.8), 1e4, 8, 0, HISTORY)


def ffn_seconds(case: Scenario, tokens: float, ep: int, redundant: int = 0, policy: int = STATIC) -> float:
    columns: dict[str, Any] = dict.fromkeys(FfnShape.__slots__, np.ones(1))
    columns |= {"pool": np.zeros(1), "tokens": np.array([tokens]), "ep": np.array([float(ep)])}
    columns |= {"redundant": np.array([float(redundant)]), "expert_policy": np.array([float(policy)])}
    return float(ffn_station(case, FfnShape(**columns)).seconds[0, -1])


def test_skew_lengthens_the_expert_station_and_copies_shorten_it() -> None:
    even, skewed = (
        build(workload={"expert_distribution": how})
        for how in ("uniform", {"kind": "power_law", "exponent": 0.7})
    )
    tokens = 65536.0
    assert ffn_seconds(skewed, tokens, 32) > 1.5 * ffn_seconds(even, tokens, 32)
    assert ffn_seconds(skewed, tokens, 32, redundant=32) < ffn_seconds(skewed, tokens, 32)
    assert ffn_seconds(skewed, tokens, 32, 32, PREFETCH) < ffn_seconds(skewed, tokens, 32, 32)


def test_one_rank_has_all_tokens_whatever_their_skew() -> None:
    even, skewed = (
        build(workload={"expert_distribution": how})
        for how in ("uniform", {"kind": "power_law", "exponent": 1.0})
    )
    assert ffn_seconds(skewed, 4096.0, 1) == pytest.approx(ffn_seconds(even, 4096.0, 1))


@pytest.mark.parametrize("measured", ["balanced", "power_law_1.2"])
def test_tables_that_hold_the_skew_get_none_on_top(measured: str) -> None:
    """Rows of a skewed distribution time the busiest rank already."""
    case = scenario()
    case = replace(case, workload=replace(case.workload, expert_distribution=measured))
    assert case.expert_loads is None
