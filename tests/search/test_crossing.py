"""The largest batch that holds, against known crossings."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.search.crossing import evaluations, largest_holding, last_true


@given(st.lists(st.tuples(st.floats(0.5, 4096.0), st.floats(0.0, 1.5)), min_size=1, max_size=20))
def test_a_crossing_is_found_to_the_125th_part_of_the_step(layouts: list[tuple[float, float]]) -> None:
    low, share = (np.array(column) for column in zip(*layouts, strict=True))
    ratio = 2.0**0.25
    crossing = low * ratio**share
    asked = 0

    def holds(rows: np.ndarray, batch: np.ndarray) -> np.ndarray:
        nonlocal asked
        asked += len(rows)
        return batch <= crossing[rows]

    found = largest_holding(low, low * ratio, holds)
    reachable = np.minimum(share, 1.0) * np.log(ratio)
    assert (found <= np.maximum(crossing, low)).all()
    assert (np.log(found / low) >= reachable - np.log(ratio) / 125.0 - 1e-9).all()
    assert asked == evaluations(len(low))


@given(st.sets(st.integers(0, 40)))
def test_what_is_returned_was_tried_and_holds_even_where_holding_comes_and_goes(bad: set[int]) -> None:
    held = {8.0}

    def holds(rows: np.ndarray, batch: np.ndarray) -> np.ndarray:
        ok = ~np.isin(np.floor(batch * 5.0).astype(int) - 40, list(bad))
        held.update(batch[ok].tolist())
        return ok

    found = largest_holding(np.array([8.0]), np.array([16.0]), holds)
    assert float(found[0]) in held


def test_a_hole_does_not_end_what_holds_beyond_it() -> None:
    def holds(rows: np.ndarray, batch: np.ndarray) -> np.ndarray:
        return (batch < 14.0) & ~((batch > 9.0) & (batch < 10.5))

    found = largest_holding(np.array([8.0]), np.array([16.0]), holds)
    assert 14.0 * 2.0 ** (-1.0 / 125.0) <= found[0] < 14.0


def test_columns_up_to_the_last_true_one_are_counted() -> None:
    table = np.array([[True, False, True, False], [False] * 4, [True] * 4, [False, False, False, True]])
    assert last_true(table).tolist() == [3, 0, 4, 4]


def test_nothing_to_refine_asks_nothing() -> None:
    none = np.zeros(0)
    assert len(largest_holding(none, none, lambda rows, batch: batch > 0)) == 0
