"""How sure estimates are: intervals of their metrics, and the probability that they keep the limits asked for."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, Provenance
from afd_dse.search.pool import Found
from afd_dse.spec.calibration import BORROWED_FROM, Intervals, Metric
from afd_dse.spec.cells import PARTITIONS, Phase

# Metrics of a document that get an interval: whose scatter, which metric of the evaluator, factor from SI.
INTERVALS: tuple[tuple[str, Metric, str, float], ...] = (
    ("tpot_ms", "tpot", "tpot_s", 1e3),
    ("ttft_ms", "ttft", "ttft_s", 1e3),
    ("tokens_per_s_per_gpu", "throughput", "tokens_per_s_per_gpu", 1.0),
)
_LIMITS: tuple[tuple[str, Metric, str], ...] = (
    ("ttft_s", "ttft", "ttft_percentile_s"),
    ("tpot_s", "tpot", "tpot_s"),
    ("latency_s", "tpot", "latency_s"),
)


def rests_on_guesses(found: Found) -> npt.NDArray[np.bool_]:
    """Whether estimates deserve the wider scatter, [n].

    They do when much of their time comes from borrowed kernels or the speed of light, and when attention and FFN of a
    phase are apart: no run of such an engine is among those that the scatter was taken from.
    """
    shares = found.evaluation.provenance
    guessed = shares[:, Provenance.BORROWED] + shares[:, Provenance.SPEED_OF_LIGHT]
    apart = np.array([any(partition.splits(phase) for phase in Phase) for partition in PARTITIONS])
    return np.asarray((guessed > BORROWED_FROM) | apart[found.candidates.integer("partition")], dtype=bool)


def interval_columns(scenario: Scenario, found: Found) -> dict[str, FloatArray]:
    """``<metric>_low`` and ``<metric>_high`` (90 %) and ``slo_probability`` [n]; empty where nothing is known.

    The errors of TTFT, TPOT and latency rise together (a kernel that is slower than thought slows all three), so all
    limits hold at least as probably as the product of their probabilities says.
    """
    intervals = scenario.intervals
    if intervals is None:
        return {}
    guess, metrics = rests_on_guesses(found), found.evaluation.metrics
    columns: dict[str, FloatArray] = {}
    for name, metric, column, factor in INTERVALS:
        value = factor * metrics[column]
        for end in ("low", "high"):
            columns[f"{name}_{end}"] = value * _by_class(intervals, metric, end, guess)
    asked, sure = scenario.slo.asked or scenario.slo, np.ones(len(found))
    for limit, metric, column in _LIMITS:
        bound = getattr(asked, limit)
        if math.isfinite(bound):
            sure *= _probability(intervals, metric, bound / metrics[column], guess)
    columns["slo_probability"] = sure
    return columns


def _by_class(intervals: Intervals, metric: Metric, end: str, guess: npt.NDArray[np.bool_]) -> FloatArray:
    wide, narrow = (float(getattr(intervals.of(metric, borrowed), end)) for borrowed in (True, False))
    result: FloatArray = np.where(guess, wide, narrow)
    return result


def _probability(
    intervals: Intervals, metric: Metric, ratio: FloatArray, guess: npt.NDArray[np.bool_]
) -> FloatArray:
    wide, narrow = (intervals.of(metric, borrowed).probability_below(ratio) for borrowed in (True, False))
    return np.where(guess, wide, narrow)


def certainty(scenario: Scenario, found: Found, row: int) -> dict[str, Any]:
    """``intervals`` ({metric: [low, high]}, 90 %) and ``slo_probability`` of one candidate; None where unknown."""
    columns = interval_columns(scenario, found.take(np.array([row])))
    if not columns:
        return {"intervals": None, "slo_probability": None}
    ends = {name: [float(columns[f"{name}_{end}"][0]) for end in ("low", "high")] for name, *_ in INTERVALS}
    return {
        "intervals": {name: pair if all(map(math.isfinite, pair)) else None for name, pair in ends.items()},
        "slo_probability": float(columns["slo_probability"][0]),
    }
