"""Slowdown of kernels that run beside another one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.cost.tile_sharing import SMS_THAT_FILL_HBM, ffn_bounds, slowdown, tile_wait_s
from tests.strategies import scenario

shares = st.floats(0.01, 0.99)
parts = st.floats(0.0, 1.0)


def one(sms: float, compute: float, memory: float, other: float = 0.0) -> float:
    return float(slowdown(np.array([sms]), *(np.array([x]) for x in (compute, memory, other)))[0])


@given(shares)
def test_a_kernel_bound_by_compute_slows_down_as_its_sms_shrink(sms: float) -> None:
    assert one(sms, 1.0, 0.0) == pytest.approx(1.0 / sms)


@given(st.floats(SMS_THAT_FILL_HBM, 0.99))
def test_a_kernel_bound_by_memory_loses_nothing_while_its_sms_fill_hbm(sms: float) -> None:
    assert one(sms, 0.1, 1.0) == pytest.approx(1.0)


@given(shares, parts, parts, parts, st.floats(0.0, 0.5))
def test_more_sms_and_less_company_never_slow_a_kernel(
    sms: float, compute: float, memory: float, other: float, more: float
) -> None:
    scale = max(compute, memory, 1e-3)
    compute, memory = compute / scale, memory / scale
    assert one(sms, compute, memory, other) >= one(sms, compute, memory, other * 0.5) - 1e-12
    assert one(sms, compute, memory) >= one(min(sms + more, 1.0), compute, memory) - 1e-12
    assert one(sms, compute, memory, other) >= 1.0


@given(parts)
def test_two_kernels_bound_by_memory_share_the_bandwidth(split: float) -> None:
    """Neither gets more than all of it: their speeds add up to at most one."""
    sms = 0.2 + 0.6 * split
    speeds = 1.0 / one(sms, 0.1, 1.0, 1.0) + 1.0 / one(1.0 - sms, 0.1, 1.0, 1.0)
    assert speeds <= 1.0 + 1e-9


def test_few_tokens_leave_experts_bound_by_memory_and_many_by_compute() -> None:
    case = scenario()
    columns = {name: np.ones(2) for name in ("moe_tp",)} | {
        "pool": np.zeros(2),
        "ep": np.full(2, 32.0),
        "redundant": np.zeros(2),
    }
    compute, memory = ffn_bounds(case, tokens=np.array([64.0, 1e6]), **columns)
    assert memory[0] == 1.0
    assert compute[0] < 0.2
    assert compute[1] == 1.0
    assert memory[1] < 0.5


def test_a_tile_takes_microseconds() -> None:
    case = scenario()
    assert 1e-6 < tile_wait_s(case, np.zeros(1))[0] < 50e-6
