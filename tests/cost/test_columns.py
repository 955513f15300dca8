import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.cost.columns import ALL_COLUMNS, Candidates
from afd_dse.cost.shape_memory import ShapeMemory
from afd_dse.cost.station import StationTable
from afd_dse.rows import row_codes
from tests.strategies import block, scenario, seeds

tables = st.integers(1, 6).flatmap(
    lambda width: st.lists(
        st.lists(st.sampled_from([0.0, -0.0, 1.0, 1.5, 1e9]), min_size=width, max_size=width),
        min_size=1,
        max_size=40,
    )
)


@given(tables)
def test_equal_rows_have_equal_codes(rows: list[list[float]]) -> None:
    table = np.array(rows)
    codes = row_codes(table)
    same = (table[:, None, :] == table[None, :, :]).all(axis=2)
    assert np.array_equal(codes[:, None] == codes[None, :], same)


def test_a_missing_or_unknown_column_is_an_error() -> None:
    columns = dict.fromkeys(ALL_COLUMNS, 1)
    with pytest.raises(KeyError, match="speed"):
        Candidates.of(**columns, speed=1)
    columns.pop("decode_tp")
    with pytest.raises(KeyError, match="decode_tp"):
        Candidates.of(**columns)


@given(seeds)
def test_columns_of_one_value_are_held_once_and_mean_the_same(seed: int) -> None:
    whole = block(scenario(), seed)
    compact = whole.compact
    rows = np.array([3, 0, 0])
    for name in ALL_COLUMNS:
        assert np.array_equal(compact.columns[name], whole.columns[name])
        assert np.array_equal(compact.take(rows).columns[name], whole.columns[name][rows])
        one = len(np.unique(whole.columns[name])) == 1
        assert (compact.columns[name].strides[0] == 0) == one


def test_scalars_spread_over_arrays() -> None:
    candidates = Candidates.of(**(dict.fromkeys(ALL_COLUMNS, 1) | {"batch_size": [1.0, 2.0, 4.0]}))
    assert len(candidates) == 3
    assert candidates.integer("decode_tp").tolist() == [1, 1, 1]
    assert candidates.number("decode_tp").dtype == np.float64


@given(seeds)
def test_blocks_are_cut_and_joined_without_loss(seed: int) -> None:
    whole = block(scenario(), seed)
    parts = [whole.take(np.arange(0, 4)), whole.take(np.arange(4, len(whole)))]
    again = Candidates.concatenate(parts)
    assert all(np.array_equal(again.columns[name], whole.columns[name]) for name in ALL_COLUMNS)
    assert np.array_equal(whole.replace(policy=1).columns["batch_size"], whole.columns["batch_size"])


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True), min_size=1, max_size=8))
def test_a_shape_is_looked_up_once_and_always_answered_alike(blocks: list[list[int]]) -> None:
    memory, asked = ShapeMemory(), []

    def look_up(shapes: np.ndarray) -> StationTable:
        asked.extend(shapes[:, 0].tolist())
        return StationTable(shapes * 10.0, np.ones((len(shapes), 1, 4)))

    for numbers in blocks:
        shapes = np.array(numbers, dtype=np.float64)[:, None]
        rows = memory.rows(shapes, look_up)
        assert np.array_equal(memory.arrays[0][rows], shapes * 10.0)
    assert len(asked) == len(set(asked))
