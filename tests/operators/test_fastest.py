"""The fastest of several kernels, looked up for all rows at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.operators.fastest import Kernel, curve_of, fastest
from afd_dse.operators.interpolation import CurveSet

X = np.array([1.0, 10.0, 100.0])
CURVES = CurveSet(np.repeat(np.arange(4), 3), np.tile(X, 4), np.arange(1.0, 13.0) / 16.0)
KERNELS = st.lists(
    st.one_of(
        st.builds(curve_of, st.integers(0, 3), at_point=st.booleans()),
        st.builds(
            lambda curves, share, scale: Kernel(curves, (share, 1.0 - share), (1.0, scale), at_point=False),
            st.tuples(st.integers(0, 3), st.integers(0, 3)),
            st.floats(0.0, 1.0),
            st.floats(0.5, 2.0),
        ),
    ),
    min_size=1,
    max_size=3,
)


def one_by_one(kernels: list[Kernel], x: float) -> tuple[float, bool]:
    best, exact = 0.0, False
    for kernel in kernels:
        logarithm, hit = 0.0, kernel.at_point
        for curve, weight, scale in zip(kernel.curves, kernel.weights, kernel.scale, strict=True):
            found = CURVES(np.array([curve]), np.array([x * scale]))
            logarithm += weight * float(np.log(found.value[0]))
            hit &= bool(found.exact[0])
        if np.exp(logarithm) > best * (1.0 + 1e-12):
            best, exact = float(np.exp(logarithm)), hit
    return best, exact


@given(
    shapes=st.lists(KERNELS, min_size=1, max_size=4),
    rows=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1.0, 5.0, 10.0, 100.0, 300.0])), max_size=12),
)
def test_all_rows_at_once_answer_as_one_by_one(
    shapes: list[list[Kernel]], rows: list[tuple[int, float]]
) -> None:
    shape = np.array([number % len(shapes) for number, _ in rows], dtype=np.int64)
    x = np.array([value for _, value in rows])
    value, exact = fastest(CURVES, shapes, shape, x)
    for i in range(len(rows)):
        best, hit = one_by_one(shapes[shape[i]], x[i])
        assert value[i] == pytest.approx(best, rel=1e-12)
        # Of kernels that are equally fast but for rounding either may answer.
        ties = sum(
            one_by_one([kernel], x[i])[0] == pytest.approx(best, rel=1e-9) for kernel in shapes[shape[i]]
        )
        assert bool(exact[i]) == hit or ties > 1


def test_a_measured_point_is_told_from_a_blend_that_passes_through_it() -> None:
    shapes = [[curve_of(0, at_point=True)], [curve_of(0, at_point=False)]]
    value, exact = fastest(CURVES, shapes, np.array([0, 1]), np.array([10.0, 10.0]))
    assert value.tolist() == [2.0 / 16.0] * 2
    assert exact.tolist() == [True, False]
