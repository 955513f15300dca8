"""Distinct rows of columns."""

import numpy as np

from afd_dse.rows import distinct_keys, ranges


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
