import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import RegularGridInterpolator

from afd_dse.simulation.tables import Table


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_a_table_is_multilinear_inside_as_scipy_has_it(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    axes = [np.cumsum(rng.uniform(0.5, 2.0, size)) for size in sizes]
    values = rng.normal(size=sizes)
    table = Table([axis.tolist() for axis in axes], values)
    long = [number for number, size in enumerate(sizes) if size > 1]
    point = [rng.uniform(axis[0], axis[-1]) for axis in axes]
    if not long:
        assert table(*point) == pytest.approx(values.item())
        return
    oracle = RegularGridInterpolator([axes[n] for n in long], values.squeeze())
    assert table(*point) == pytest.approx(oracle([point[n] for n in long]).item())


def test_a_table_is_held_below_and_continued_above() -> None:
    table = Table([[1.0, 2.0, 4.0]], np.array([10.0, 20.0, 60.0]))
    assert table(0.1) == 10.0
    assert table(5.0) == 80.0
    assert table(2.0) == 20.0


def test_values_must_fit_the_axes() -> None:
    with pytest.raises(ValueError, match="points"):
        Table([[1.0, 2.0]], np.zeros(3))
