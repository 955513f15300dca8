"""Distinct rows of columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.rows import Repeated, distinct_keys, distinct_rows, is_constant, join_rows, ranges, take_rows

tables = st.integers(1, 6).flatmap(
    lambda width: st.lists(
        st.lists(st.sampled_from([0.0, -0.0, 1.0, 1.5, 1e9, -(2.0**40)]), min_size=width, max_size=width),
        min_size=1,
        max_size=40,
    )
)


@given(tables, st.booleans(), st.sampled_from([1, 300]))
def test_distinct_rows_come_in_order_and_lead_back_to_every_row(
    rows: list[list[float]], whole: bool, times: int
) -> None:
    table = np.tile(np.array(rows), (times, 1))
    if whole:
        table = np.floor(table).astype(np.int64)
    first, inverse = distinct_rows(list(table.T))
    assert np.array_equal(table[first[inverse]], table)
    assert len(first) == len({tuple(x + 0 for x in row) for row in table.tolist()})
    assert (np.diff(first) > 0).all()
    assert np.array_equal(inverse[first], np.arange(len(first)))


@pytest.mark.parametrize("width", [2, 40, 5_000, 2**21])
def test_many_integers_are_numbered_whatever_they_span(width: int) -> None:
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, 3, 10_000) * width - 7, rng.choice(rng.random(27), 10_000)]
    first, inverse = distinct_rows(columns)
    assert len(first) == 81
    assert all(np.array_equal(column[first[inverse]], column) for column in columns)


def test_a_column_is_constant_where_all_of_it_is_equal() -> None:
    column = np.ones(100)
    assert is_constant(column)
    column[37] = 2.0
    assert not is_constant(column)
    assert not is_constant(column[:0])


def test_distinct_keys_come_in_order_with_the_rows_that_have_them() -> None:
    columns = (np.array([1.0, 2.0, 1.0, 1.0]), np.array([5, 5, 5, 6]))
    keys, which = distinct_keys(*columns)
    assert keys == [(1.0, 5.0), (2.0, 5.0), (1.0, 6.0)]
    assert which.tolist() == [0, 1, 0, 2]


def test_no_rows_have_no_keys() -> None:
    assert distinct_keys(np.empty(0))[0] == []


def test_ranges_lie_one_after_the_other() -> None:
    values, of = ranges(np.array([4, 9, 1]), np.array([3, 0, 2]))
    assert values.tolist() == [4, 5, 6, 1, 2]
    assert of.tolist() == [0, 0, 0, 2, 2]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.data())
def test_part_of_a_repeated_block_is_those_rows_of_the_whole(which: list[int], data: st.DataObject) -> None:
    """The first rows of a block that repeats nothing are not the whole block."""
    whole = Repeated(np.array([1.0, 2.0, 4.0, 8.0, 16.0]), np.array(which))
    rows = np.array(data.draw(st.lists(st.integers(0, len(which) - 1), min_size=1)))
    assert np.array_equal(whole.take(rows).rows, whole.distinct[whole.which[rows]])
    every = Repeated.once(whole.distinct, 5)
    assert np.array_equal(every.take(np.arange(3)).rows, [1.0, 2.0, 4.0])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(0, 8))
def test_rows_taken_apart_are_joined_again(which: list[int], cut: int) -> None:
    block = Repeated(np.arange(5.0), np.array(which))
    pair = (block.which, np.column_stack([block.which, block.which + 1.0]))
    parts = [take_rows(pair, rows) for rows in np.split(np.arange(len(which)), [min(cut, len(which))])]
    for one, other in zip(join_rows(parts), pair, strict=True):
        assert np.array_equal(one, other)
