import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.search.pareto import MANY, Reached, front, fronts, non_dominated

values = st.integers(0, 6).map(float)
points = st.lists(st.tuples(values, values), max_size=30)


def beaten(point: tuple[float, ...], others: list[tuple[float, ...]]) -> bool:
    return any(all(o >= p for o, p in zip(other, point, strict=True)) and other != point for other in others)


@given(points)
def test_a_front_is_every_point_that_no_other_beats_and_each_once(rows: list[tuple[float, float]]) -> None:
    x, y = (np.array([row[k] for row in rows], dtype=float) for k in (0, 1))
    found = front(x, y)
    assert {rows[i] for i in found} == {row for row in rows if not beaten(row, rows)}
    assert len({rows[i] for i in found}) == len(found)
    assert (np.diff(x[found]) < 0).all()
    assert all(i == rows.index(rows[i]) for i in found)


@pytest.mark.parametrize("digits", [2, 12])
def test_a_front_of_many_rows_is_that_of_all_of_them(digits: int) -> None:
    rng = np.random.default_rng(digits)
    x, y = np.round(rng.normal(size=(2, 3 * MANY)), digits)
    found = front(x, y)
    order = np.lexsort((-y, -x))
    best = np.maximum.accumulate(np.concatenate([[-np.inf], y[order][:-1]]))
    assert found.tolist() == order[y[order] > best].tolist()


@given(st.lists(st.tuples(values, values, values), max_size=25))
def test_non_dominated_rows_of_three_columns(rows: list[tuple[float, float, float]]) -> None:
    mask = non_dominated(np.array(rows, dtype=float).reshape(-1, 3))
    kept = [row for row, keep in zip(rows, mask, strict=True) if keep]
    assert sorted(kept) == sorted({row for row in rows if not beaten(row, rows)})


@given(st.lists(st.tuples(st.integers(0, 3), values, values, values, values), max_size=30))
def test_groups_have_fronts_of_their_own(rows: list[tuple[float, ...]]) -> None:
    group = np.array([row[0] for row in rows], dtype=np.int64)
    columns = np.array([row[1:] for row in rows], dtype=float).reshape(-1, 4)
    mask = non_dominated(columns, group)
    for code in set(group.tolist()):
        members = np.flatnonzero(group == code)
        assert mask[members].tolist() == non_dominated(columns[members]).tolist()
    assert [rows[i] for i in np.flatnonzero(mask)] == [
        row for i, row in enumerate(rows) if row not in rows[:i] and not beaten(row, of_group(rows, row[0]))
    ]


@given(st.lists(st.tuples(st.integers(0, 3), values, values), max_size=30))
def test_fronts_of_groups_are_the_front_of_each_one_after_the_other(
    rows: list[tuple[int, float, float]],
) -> None:
    group = np.array([row[0] for row in rows], dtype=np.int64)
    x, y = (np.array([row[k] for row in rows], dtype=float) for k in (1, 2))
    each = [np.flatnonzero(group == code) for code in np.unique(group)]
    expected = [int(row) for members in each for row in members[front(x[members], y[members])]]
    assert fronts(x, y, group).tolist() == expected


def of_group(rows: list[tuple[float, ...]], code: float) -> list[tuple[float, ...]]:
    return [row for row in rows if row[0] == code]


@given(points, points)
def test_what_is_reached_within_a_tpot_is_the_best_of_all_points_told(
    rows: list[tuple[float, float]], more: list[tuple[float, float]]
) -> None:
    reached = Reached()
    for part in (rows, more):
        tpot, rate = (np.array([row[k] for row in part], dtype=float) for k in (0, 1))
        reached = reached.with_points(tpot, rate)
    asked = np.arange(-1.0, 8.0)
    best = [max((rate for tpot, rate in [*rows, *more] if tpot <= limit), default=0.0) for limit in asked]
    assert reached.within(asked).tolist() == best
