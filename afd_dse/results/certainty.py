"""How sure an estimate is: intervals of its metrics, and the probability that it keeps the limits asked for."""

import math
from typing import Any

from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import Provenance
from afd_dse.search.pool import Found
from afd_dse.spec.calibration import BORROWED_FROM, Metric
from afd_dse.spec.cells import PARTITIONS, Phase

# Metrics of a document that get an interval: whose scatter, which metric of the evaluator, factor from SI.
_INTERVALS: tuple[tuple[str, Metric, str, float], ...] = (
    ("tpot_ms", "tpot", "tpot_s", 1e3),
    ("ttft_ms", "ttft", "ttft_s", 1e3),
    ("tokens_per_s_per_gpu", "throughput", "tokens_per_s_per_gpu", 1.0),
)
_LIMITS: tuple[tuple[str, Metric, str], ...] = (
    ("ttft_s", "ttft", "ttft_percentile_s"),
    ("tpot_s", "tpot", "tpot_s"),
    ("latency_s", "tpot", "latency_s"),
)


def rests_on_guesses(found: Found, row: int) -> bool:
    """Whether an estimate deserves the wider scatter.

    It does when much of its time comes from borrowed kernels or the speed of light, and when attention and FFN of a
    phase are apart: no run of such an engine is among those that the scatter was taken from.
    """
    shares = found.evaluation.provenance[row]
    partition = PARTITIONS[int(found.candidates.integer("partition")[row])]
    guessed = float(shares[Provenance.BORROWED] + shares[Provenance.SPEED_OF_LIGHT])
    return guessed > BORROWED_FROM or any(partition.splits(phase) for phase in Phase)


def certainty(scenario: Scenario, found: Found, row: int) -> dict[str, Any]:
    """``intervals`` (90 %, by metric, [low, high]) and ``slo_probability`` of one candidate; None where unknown.

    The probability that all limits hold is at least one minus the sum of the doubts of each (Bonferroni).
    """
    if scenario.intervals is None:
        return {"intervals": None, "slo_probability": None}
    guess, metrics = rests_on_guesses(found, row), found.evaluation.metrics
    intervals: dict[str, list[float] | None] = {}
    for name, metric, column, factor in _INTERVALS:
        scatter, value = scenario.intervals.of(metric, guess), factor * float(metrics[column][row])
        intervals[name] = [value * scatter.low, value * scatter.high] if math.isfinite(value) else None
    asked, doubt = scenario.slo.asked or scenario.slo, 0.0
    for limit, metric, column in _LIMITS:
        bound, value = getattr(asked, limit), float(metrics[column][row])
        if math.isfinite(bound):
            scatter = scenario.intervals.of(metric, guess)
            doubt += 1.0 - (scatter.probability_below(bound / value) if math.isfinite(value) else 0.0)
    return {"intervals": intervals, "slo_probability": max(0.0, 1.0 - doubt)}
