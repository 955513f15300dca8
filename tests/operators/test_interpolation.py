import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from afd_dse.operators.interpolation import CurveSet, SurfaceSet

positive = st.floats(1e-3, 1e6)
axes = hnp.arrays(np.float64, st.integers(1, 12), elements=st.integers(1, 10**6), unique=True)


@given(x=axes, data=st.data())
def test_points_are_returned_exactly_in_any_order(x: np.ndarray, data: st.DataObject) -> None:
    y = data.draw(hnp.arrays(np.float64, x.shape, elements=positive))
    curves = CurveSet(np.zeros(len(x), dtype=np.int64), x, y)
    found = curves(np.zeros(len(x), dtype=np.int64), x)
    np.testing.assert_array_equal(found.value, y)
    assert found.exact.all()
    assert not found.outside.any()


@given(x=axes, query=positive, data=st.data())
def test_values_stay_between_their_neighbours_and_are_held_outside(
    x: np.ndarray, query: float, data: st.DataObject
) -> None:
    y = data.draw(hnp.arrays(np.float64, x.shape, elements=positive))
    found = CurveSet(np.zeros(len(x), dtype=np.int64), x, y)(np.zeros(1, dtype=np.int64), np.array([query]))
    order = np.argsort(x)
    right = int(np.searchsorted(x[order], query))
    around = y[order][max(right - 1, 0) : right + 1]
    assert around.min() * (1 - 1e-9) <= found.value[0] <= around.max() * (1 + 1e-9)
    assert found.outside[0] == (query < x.min() or query > x.max())


def test_a_power_law_is_reproduced_between_points() -> None:
    x = np.array([1.0, 8.0, 100.0])
    curves = CurveSet(np.zeros(3, dtype=np.int64), x, 3.0 * x**0.7)
    query = np.array([2.0, 50.0])
    np.testing.assert_allclose(curves(np.zeros(2, dtype=np.int64), query).value, 3.0 * query**0.7)


def test_curves_do_not_leak_into_each_other() -> None:
    curve = np.array([0, 0, 1, 1, 2])
    x = np.array([1.0, 4.0, 2.0, 3.0, 5.0])
    y = np.array([1.0, 2.0, 10.0, 20.0, 7.0])
    curves = CurveSet(curve, x, y)
    found = curves(np.array([0, 1, 1, 2, 0]), np.array([9.0, 1.0, 9.0, 0.5, 0.5]))
    np.testing.assert_allclose(found.value, [2.0, 10.0, 20.0, 7.0, 1.0])
    assert found.outside.all()


def surface() -> tuple[SurfaceSet, np.ndarray, np.ndarray, np.ndarray]:
    u = np.array([1.0, 1.0, 1.0, 10.0, 10.0, 1.0])
    v = np.array([1.0, 10.0, 100.0, 5.0, 50.0, 2.0])
    y = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 1.5])
    return SurfaceSet(np.zeros(6, dtype=np.int64), u, v, y), u, v, y


def test_ragged_surfaces_return_their_points_exactly() -> None:
    surfaces, u, v, y = surface()
    found = surfaces(np.zeros(6, dtype=np.int64), u, v)
    np.testing.assert_array_equal(found.value, y)
    assert found.exact.all()


@given(u=positive, v=positive)
def test_surfaces_stay_within_their_values(u: float, v: float) -> None:
    surfaces, *_, y = surface()
    value = surfaces(np.zeros(1, dtype=np.int64), np.array([u]), np.array([v])).value[0]
    assert y.min() * (1 - 1e-9) <= value <= y.max() * (1 + 1e-9)


def test_a_surface_is_blended_in_the_logarithm_of_its_first_axis() -> None:
    surfaces, *_ = surface()
    low, high = (surfaces(np.zeros(1, dtype=np.int64), np.array([u]), np.array([20.0])) for u in (1.0, 10.0))
    between = surfaces(np.zeros(1, dtype=np.int64), np.array([np.sqrt(10.0)]), np.array([20.0]))
    np.testing.assert_allclose(between.value, np.sqrt(low.value * high.value))
    assert not between.exact[0]
