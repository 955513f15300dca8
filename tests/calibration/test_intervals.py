from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.calibration.intervals import METRICS, fit_intervals, interval
from afd_dse.spec.calibration import BORROWED_FROM, UNCALIBRATED, Calibration, Metric

KEYS: tuple[Metric, ...] = ("tpot", "ttft", "throughput")


def runs(
    ratios: npt.NDArray[np.float64], framework: str = "vllm", borrowed: float = 0.0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs whose metrics were all ``ratios`` times what was predicted."""
    predicted = pd.DataFrame({name: np.linspace(5.0, 50.0, len(ratios)) for name in METRICS.values()})
    measured = predicted.mul(ratios, axis=0).assign(framework=framework)
    return measured, predicted.assign(borrowed_share=borrowed)


def joined(*parts: tuple[pd.DataFrame, pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame]:
    measured, predicted = (pd.concat(list(side), ignore_index=True) for side in zip(*parts, strict=True))
    return measured, predicted


def fitted(*parts: tuple[pd.DataFrame, pd.DataFrame]) -> Calibration:
    return Calibration(source="the test", overheads={}, intervals=fit_intervals(*joined(*parts)))


def coverage(
    calibration: Calibration, measured: pd.DataFrame, predicted: pd.DataFrame, metric: Metric
) -> float:
    name = METRICS[metric]
    framework = str(measured["framework"].iloc[0])
    low, high = interval(calibration, framework, metric, predicted[name], predicted["borrowed_share"])
    return float(np.mean((low <= measured[name]) & (measured[name] <= high)))


@settings(max_examples=15)
@given(
    st.integers(0, 2**32 - 1),
    st.floats(0.02, 0.5),
    st.floats(-0.3, 0.3),
    st.sampled_from(["normal", "heavy"]),
)
def test_nine_of_ten_fresh_runs_lie_inside_whatever_the_noise_is(
    seed: int, width: float, bias: float, shape: str
) -> None:
    rng = np.random.default_rng(seed)

    def drawn(count: int) -> npt.NDArray[np.float64]:
        noise = rng.standard_normal(count) if shape == "normal" else rng.laplace(size=count)
        return np.exp(bias + width * noise)

    calibration = fitted(runs(drawn(2000)))
    for metric in KEYS:
        # Five standard errors of a share of 0.9 among 2,000 draws that fit and 20,000 that judge.
        assert coverage(calibration, *runs(drawn(20_000)), metric) == pytest.approx(0.9, abs=0.035)


def test_ends_round_outwards_so_that_few_runs_do_not_promise_too_much() -> None:
    """Of nineteen runs the smallest and largest are the ends, of fewer too."""
    for count in (2, 5, 19):
        ratios = np.linspace(0.8, 1.25, count)
        scatter = fitted(runs(ratios)).intervals["vllm"].of("tpot", borrowed=False)
        assert (scatter.low, scatter.high) == pytest.approx((0.8, 1.25))
    scatter = fitted(runs(np.linspace(0.8, 1.25, 199))).intervals["vllm"].of("tpot", borrowed=False)
    ratios = np.sort(np.linspace(0.8, 1.25, 199))
    assert (scatter.low, scatter.high) == pytest.approx((ratios[9], ratios[189]), rel=1e-3)


def test_average_coverage_of_few_runs_is_not_below_what_is_promised() -> None:
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(60):
        calibration = fitted(runs(np.exp(0.1 * rng.standard_normal(39))))
        shares.append(coverage(calibration, *runs(np.exp(0.1 * rng.standard_normal(500))), "tpot"))
    assert 0.89 <= np.mean(shares) <= 0.95


def test_every_framework_has_its_own_scatter() -> None:
    rng = np.random.default_rng(2)
    narrow, wide = (np.exp(width * rng.standard_normal(100)) for width in (0.02, 0.3))
    found = fitted(runs(narrow, "vllm"), runs(wide, "sglang")).intervals
    assert set(found) == {"vllm", "sglang"}
    vllm, sglang = (found[name].of("tpot", borrowed=False) for name in ("vllm", "sglang"))
    assert sglang.low < vllm.low < vllm.high < sglang.high


def test_estimates_on_borrowed_kernels_get_the_scatter_of_such_runs() -> None:
    rng = np.random.default_rng(3)
    narrow, wide = (np.exp(width * rng.standard_normal(200)) for width in (0.02, 0.3))
    calibration = fitted(runs(narrow), runs(wide, borrowed=0.9))
    low, high = interval(
        calibration, "vllm", "tpot", [10.0] * 4, [0.0, BORROWED_FROM, BORROWED_FROM + 0.01, 1.0]
    )
    assert low[0] == low[1] > low[2] == low[3]
    assert high[0] == high[1] < high[2] == high[3]


@pytest.mark.parametrize("borrowing", [3, 60], ids=["few, so those of all frameworks", "enough of its own"])
def test_borrowed_kernels_are_never_surer_than_measured_ones(borrowing: int) -> None:
    rng = np.random.default_rng(4)
    own = np.exp(0.2 * rng.standard_normal(200))
    calibration = fitted(
        runs(own), runs(np.full(borrowing, 1.0), borrowed=0.9), runs(np.ones(3), "sglang", 0.9)
    )
    for metric in KEYS:
        scatter = calibration.intervals["vllm"]
        assert scatter.of(metric, borrowed=True).low <= scatter.of(metric, borrowed=False).low
        assert scatter.of(metric, borrowed=True).high >= scatter.of(metric, borrowed=False).high


def test_few_borrowed_runs_of_a_framework_are_helped_by_those_of_the_others() -> None:
    rng = np.random.default_rng(5)
    other = np.exp(0.4 * rng.standard_normal(200))
    calibration = fitted(
        runs(np.ones(100)), runs(np.ones(3), borrowed=0.9), runs(other, "sglang", borrowed=0.9)
    )
    scatter = calibration.intervals["vllm"].of("tpot", borrowed=True)
    assert scatter.low < 0.7
    assert scatter.high > 1.4


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -1.0])
def test_runs_without_a_usable_measurement_are_left_out(bad: float) -> None:
    ratios = np.linspace(0.8, 1.25, 50)
    measured, predicted = runs(ratios)
    measured.loc[10, "ttft_ms"] = bad
    found = fit_intervals(measured, predicted)["vllm"]
    assert found.of("ttft", borrowed=False).low >= 0.8
    assert found.of("ttft", borrowed=False).high <= 1.25


def test_where_nothing_was_measured_an_estimate_may_be_off_by_two_either_way() -> None:
    measured, predicted = runs(np.ones(50))
    measured["ttft_ms"] = np.nan
    scatter = fit_intervals(measured, predicted)["vllm"].of("ttft", borrowed=False)
    assert (scatter.low, scatter.high) == (0.5, 2.0)


def test_without_a_scatter_there_is_no_interval() -> None:
    low, high = interval(UNCALIBRATED, "vllm", "tpot", [1.0, 2.0], [0.0, 1.0])
    assert np.isnan(low).all()
    assert np.isnan(high).all()


def test_an_interval_scales_with_the_estimate_and_a_missing_one_has_none() -> None:
    calibration = fitted(runs(np.linspace(0.8, 1.25, 50)))
    low, high = interval(calibration, "vllm", "tpot", [10.0, 20.0, np.nan], [0.0, 0.0, 0.0])
    assert low[1] == pytest.approx(2.0 * low[0])
    assert low[0] < 10.0 < high[0]
    assert np.isnan([low[2], high[2]]).all()


def test_the_metrics_are_those_of_the_measured_table() -> None:
    from afd_dse.calibration.measured import MEASURED

    names: tuple[Any, ...] = tuple(METRICS.values())
    assert set(names) == set(MEASURED)
