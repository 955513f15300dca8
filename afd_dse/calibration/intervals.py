"""Prediction intervals: how far measured runs lay from predictions by fits that did not know them (conformal)."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.operators.latency import FloatArray
from afd_dse.spec.calibration import BORROWED_FROM, COVERAGE, Calibration, Intervals, Metric, Scatter

METRICS: Mapping[Metric, str] = {
    "tpot": "tpot_ms",
    "ttft": "ttft_ms",
    "throughput": "output_tokens_per_s_per_gpu",
}
# Runs below which a quantile at 5 % says little.
_ENOUGH = 40


def fit_intervals(measured: pd.DataFrame, predicted: pd.DataFrame) -> dict[str, Intervals]:
    """Scatter by framework, of ``predicted`` (held out; the columns of METRICS and ``borrowed_share``), same index.

    Where fewer than 40 runs rest on borrowed kernels, those of all frameworks are taken, and never less than the
    scatter of measured ones.
    """
    ratios = pd.DataFrame({key: measured[name] / predicted[name] for key, name in METRICS.items()})
    ratios = ratios.where(np.isfinite(ratios) & (ratios > 0.0))
    weak = predicted["borrowed_share"] > BORROWED_FROM
    found = {}
    for framework, part in ratios.groupby(measured["framework"]):
        strong = {key: _scatter(part.loc[~weak.loc[part.index], key]) for key in METRICS}
        own = part[weak.loc[part.index]]
        borrowing = own if len(own) >= _ENOUGH else ratios[weak]
        found[str(framework)] = Intervals(
            measured=strong,
            borrowed={key: _wider(_scatter(borrowing[key]), strong[key]) for key in METRICS},
        )
    return found


def _scatter(ratios: pd.Series) -> Scatter:
    values = np.sort(ratios.dropna().to_numpy(np.float64))
    if not len(values):
        return Scatter(low=0.5, high=2.0)  # nothing is known: a factor of two either way
    outside = (1.0 - COVERAGE) / 2.0
    # Of n + 1 equally likely places, rounded outwards: split conformal prediction (Vovk; Lei et al. 2018).
    low = int(np.floor(outside * (len(values) + 1))) - 1
    high = int(np.ceil((1.0 - outside) * (len(values) + 1))) - 1
    last = len(values) - 1
    return Scatter(
        low=float(f"{values[max(low, 0)]:.4g}"),
        high=float(f"{values[min(high, last)]:.4g}"),
    )


def _wider(one: Scatter, other: Scatter) -> Scatter:
    return Scatter(low=min(one.low, other.low), high=max(one.high, other.high))


def interval(
    calibration: Calibration,
    framework: str,
    metric: Metric,
    predicted: npt.ArrayLike,
    borrowed_share: npt.ArrayLike,
) -> tuple[FloatArray, FloatArray]:
    """Lower and upper end of the 90 % interval of ``predicted`` values [n]; NaN where the calibration has none."""
    value = np.asarray(predicted, dtype=np.float64)
    known = calibration.intervals.get(framework)
    if known is None:
        nothing = np.full_like(value, np.nan)
        return nothing, nothing.copy()
    weak = np.asarray(borrowed_share, dtype=np.float64) > BORROWED_FROM
    low = np.where(weak, known.borrowed[metric].low, known.measured[metric].low)
    high = np.where(weak, known.borrowed[metric].high, known.measured[metric].high)
    return value * low, value * high
