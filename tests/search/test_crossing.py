"""The largest batch that holds, against known crossings."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.search.crossing import evaluations, largest_holding


@given(st.lists(st.tuples(st.floats(0.5, 4096.0), st.floats(0.02, 0.98)), min_size=1, max_size=20))
def test_a_smooth_crossing_is_found_to_two_hundredths_of_the_step(
    layouts: list[tuple[float, float]],
) -> None:
    low, share = (np.array(column) for column in zip(*layouts, strict=True))
    ratio = 2.0**0.25
    crossing = low * ratio**share
    asked = 0

    def margins(rows: np.ndarray, batch: np.ndarray) -> np.ndarray:
        nonlocal asked
        asked += len(rows)
        return 1.0 - batch / crossing[rows]

    found = largest_holding(low, low * ratio, margins)
    assert (found <= crossing).all()
    assert np.log(crossing / found).max() <= 0.02 * np.log(ratio)
    assert asked == evaluations(len(low))


@given(st.floats(0.0, 0.99), st.floats(0.0, 0.99))
def test_what_is_found_holds_also_where_margins_jump(first: float, second: float) -> None:
    """Two limits, one of them a step: whatever is returned holds, and no tried batch below it failed."""
    low, high = np.array([8.0]), np.array([16.0])
    ends = 8.0 * 2.0**first

    def margins(rows: np.ndarray, batch: np.ndarray) -> np.ndarray:
        smooth = 1.0 - batch / (8.0 * 2.0**second)
        return np.where(batch <= ends, smooth, -1.0)

    found = float(largest_holding(low, high, margins)[0])
    limit = min(ends, 8.0 * 2.0**second)
    assert found <= limit or found == 8.0
    assert found >= 8.0 * 2.0 ** (max(np.log2(limit / 8.0) - 0.25, 0.0) * 0.999) or found == 8.0


def test_nothing_to_refine_asks_nothing() -> None:
    none = np.zeros(0)
    assert len(largest_holding(none, none, lambda rows, batch: batch)) == 0
