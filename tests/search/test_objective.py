import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.search.objective import TIE_TOLERANCE, order, score
from tests.strategies import build, scenario


def ranked(
    scores: list[float], gpus: list[float], ttft: list[float] | None = None, simple: list[float] | None = None
) -> list[int]:
    count = len(scores)
    metrics = {"gpus": np.array(gpus, dtype=float), "ttft_s": np.array(ttft or [1.0] * count)}
    return order(metrics, np.array(scores), np.array(simple or [0.0] * count)).tolist()


@given(st.lists(st.floats(-1e6, 1e6).filter(lambda x: abs(x) > 1e-3), min_size=1, max_size=20, unique=True))
def test_better_scores_come_first(scores: list[float]) -> None:
    found = [scores[i] for i in ranked(scores, [1.0] * len(scores))]
    for one, other in itertools.pairwise(found):
        assert one >= other or abs(one - other) <= 2 * TIE_TOLERANCE * max(abs(one), abs(other))


@given(st.floats(1e-3, 1e6), st.sampled_from([1, -1]), st.sampled_from([-1, 1]))
def test_scores_that_differ_by_rounding_are_a_tie_and_fewer_gpus_win(
    size: float, sign: int, ulp: int
) -> None:
    """Whatever the score: there is no value at which the next float is another rank."""
    first = sign * size
    second = float(np.nextafter(first, ulp * np.inf))
    assert ranked([first, second], [16, 8]) == [1, 0]
    assert ranked([second, first], [16, 8]) == [1, 0]


def test_a_hair_above_a_round_score_is_still_a_tie() -> None:
    # Scores on either side of where a grid of tolerances has an edge.
    for level in (1_000_000, 5_000_000, 12_345_678):
        edge = np.expm1(level * TIE_TOLERANCE)
        assert ranked([edge * (1 + 1e-12), edge * (1 - 1e-12)], [16, 8]) == [1, 0]


def test_small_scores_are_told_apart_at_the_stated_resolution() -> None:
    # 0.05 $/Mtok against one that is ten tolerances dearer.
    cheap, dear = -0.05, -0.05 * (1 + 10 * TIE_TOLERANCE)
    assert ranked([dear, cheap], [1, 100]) == [1, 0]


def test_ties_fall_to_fewer_gpus_then_ttft_then_simplicity() -> None:
    assert ranked([5.0, 5.0, 5.0], [8, 4, 16]) == [1, 0, 2]
    assert ranked([5.0, 5.0], [8, 8], ttft=[0.3, 0.2]) == [1, 0]
    assert ranked([5.0, 5.0], [8, 8], simple=[2.0, 1.0]) == [1, 0]


def test_infeasible_rows_come_last() -> None:
    assert ranked([-np.inf, 1.0, -np.inf, -5.0], [1, 1, 1, 1])[:2] == [1, 3]


def test_scores_by_objective() -> None:
    case = build(osl=500)
    requests, gpus = np.array([2.0, 3.0]), np.array([[8.0], [16.0]])
    assert score(case, "throughput_per_gpu", requests, gpus) == pytest.approx([125.0, 93.75])
    assert score(case, "total_throughput", requests, gpus) == pytest.approx([1000.0, 1500.0])
    assert score(case, "fewest_gpus", requests, gpus) == pytest.approx([-8.0, -16.0])
    price = case.pools[0].usd_per_gpu_hour
    assert score(case, "usd_per_mtok", requests, gpus) == pytest.approx(
        [-price * 8 / 3.6e6 * 1e6, -price * 16 / 5.4e6 * 1e6]
    )


def test_each_pool_has_its_own_price() -> None:
    case = scenario("glm-4.5 on h200 and b200")
    old, new = score(case, "usd_per_mtok", np.array([1.0, 1.0]), np.array([[8.0, 0.0], [0.0, 8.0]]))
    assert old / new == pytest.approx(case.pools[0].usd_per_gpu_hour / case.pools[1].usd_per_gpu_hour)
