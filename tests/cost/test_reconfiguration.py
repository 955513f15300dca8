"""Copying experts while the pipeline runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.cost.pipeline import step_time
from afd_dse.cost.reconfiguration import exposed_copy, imbalanced_step, worth_copying


def test_the_published_copies_hide_in_their_window() -> None:
    # AFORE (arXiv 2610.03203): copies of 0.453-0.495 ms in windows of 2.008-2.119 ms.
    copy, window = np.array([0.453, 0.495]), np.array([2.008, 2.119])
    assert exposed_copy(copy, window).tolist() == [0.0, 0.0]
    assert exposed_copy(copy, window, overlapped=False).tolist() == [0.453, 0.495]


@given(st.floats(0, 10), st.floats(0, 10))
def test_overlap_never_exposes_more(copy: float, window: float) -> None:
    assert 0.0 <= exposed_copy(copy, window) <= exposed_copy(copy, window, overlapped=False)


def test_a_balanced_step_is_the_plain_pipeline_and_imbalance_lengthens_it() -> None:
    a, link, experts = (np.full((2, 1), x) for x in (1.0, 0.2, 0.9))
    layers, m = np.array([10.0]), np.array([3.0, 3.0])
    found = imbalanced_step(
        [a, link], experts, [link], max_over_mean=[1.0, 1.7], layers=layers, micro_batches=m
    )
    assert found[0] == pytest.approx(step_time([a, link, experts, link], layers, m)[0])
    # Ten layers whose experts, at 1.53, bind three micro-batches.
    assert found[1] == pytest.approx(9 * 3 * 1.53 + (1.0 + 0.4 + 1.53) + 2 * 1.53)


def test_a_copy_is_worth_what_it_gains_beyond_what_it_exposes() -> None:
    assert worth_copying([2.0, 2.0], [1.5, 1.5], [0.4, 0.6]).tolist() == [True, False]
