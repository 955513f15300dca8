import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.network.routing import expected_distinct


@pytest.mark.parametrize(
    ("groups", "experts", "topk"), [(4, 32, 4), (8, 256, 8), (32, 256, 8), (2, 8, 6), (16, 128, 1)]
)
def test_distinct_groups_agree_with_drawing_experts(groups: int, experts: int, topk: int) -> None:
    rng = np.random.default_rng(1)
    draws = rng.random((20_000, experts)).argpartition(topk - 1, axis=1)[:, :topk]
    of_group = draws // (experts // groups)
    hit = np.zeros((len(draws), groups), dtype=bool)
    np.put_along_axis(hit, of_group, True, axis=1)
    counts = hit.sum(axis=1)
    error = counts.std() / np.sqrt(len(counts))
    assert expected_distinct(groups, experts, topk) == pytest.approx(counts.mean(), abs=5 * error + 1e-12)


@given(st.integers(1, 512), st.data())
def test_one_expert_a_group_hits_as_many_groups_as_experts(experts: int, data: st.DataObject) -> None:
    topk = data.draw(st.integers(1, experts))
    assert expected_distinct(experts, experts, topk) == pytest.approx(topk, rel=1e-6)
    assert expected_distinct(1, experts, topk) == pytest.approx(1.0, rel=1e-9)


@given(st.integers(1, 64), st.integers(1, 16), st.data())
def test_distinct_groups_are_bounded_and_grow_with_groups_and_experts(
    groups: int, each: int, data: st.DataObject
) -> None:
    experts = groups * each
    topk = data.draw(st.integers(1, experts))
    found = float(expected_distinct(groups, experts, topk))
    assert 1 - 1e-9 <= found <= min(groups, topk) * (1 + 1e-9)
    if topk < experts:
        assert expected_distinct(groups, experts, topk + 1) >= found * (1 - 1e-9)
    if groups % 2 == 0:
        assert expected_distinct(groups // 2, experts, topk) <= found * (1 + 1e-9)


def test_columns_are_answered_at_once() -> None:
    found = expected_distinct(np.array([1, 256]), 256, np.array([8, 8]))
    assert found == pytest.approx([1.0, 8.0])
