"""What "best" means: one score per candidate, larger is better, and the visible order of ties."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from afd_dse.cost.evaluate import served
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, IntArray

Objective = Literal["throughput_per_gpu", "total_throughput", "usd_per_mtok", "fewest_gpus"]
# Scores closer than this (relative) are a tie: below the resolution of the arithmetic, far below that of the model.
TIE_TOLERANCE = 1e-6
# Dollars per million tokens that count as none.
LEAST_USD_PER_MTOK = 1e-9
# How many of the best scores are looked through for ties.
RANKED_TIES = 2000


def score(
    scenario: Scenario, objective: Objective, requests: FloatArray, gpus_by_pool: FloatArray
) -> FloatArray:
    """Score of deployments that serve ``requests``/s on ``gpus_by_pool`` [n, pools]; larger is better."""
    with np.errstate(divide="ignore", invalid="ignore"):
        m = served(scenario, requests, gpus_by_pool)
        match objective:
            case "throughput_per_gpu":
                found = m["tokens_per_s_per_gpu"]
            case "total_throughput":
                found = m["tokens_per_s"]
            case "usd_per_mtok":
                found = -m["usd_per_mtok"]
            case "fewest_gpus":
                found = -m["gpus"]
    return np.where(np.isnan(found), -np.inf, found)


def rates_of(objective: Objective, metrics: Mapping[str, FloatArray]) -> FloatArray:
    """Columns [n, k], larger is better, each proportional to the requests served: that of the front, and the score's.

    ``fewest_gpus`` ranks by GPUs, for a demand.
    """
    columns = [metrics["tokens_per_s_per_gpu"]]
    if objective == "total_throughput":
        columns.append(metrics["tokens_per_s"])
    elif objective == "usd_per_mtok":
        # Free GPUs cost nothing at any rate.
        columns.append(np.asarray(1.0 / np.maximum(metrics["usd_per_mtok"], LEAST_USD_PER_MTOK)))
    return np.column_stack(columns)


def order(metrics: Mapping[str, FloatArray], scores: FloatArray, simplicity: FloatArray) -> IntArray:
    """Candidates from best to worst: by score, then fewer GPUs, lower TTFT, simpler layout (fewer groups and cuts)."""
    descending = np.argsort(-scores, kind="stable")
    level = np.zeros(len(scores), dtype=np.int64)
    if len(scores):
        level[descending] = _levels(scores[descending])
    keys = (simplicity, np.round(metrics["ttft_s"], 9), metrics["gpus"], level)
    return np.lexsort(keys).astype(np.int64)


def _levels(descending: FloatArray) -> IntArray:
    """Number of the tie of every score, best first; a tie holds the scores within the tolerance of its first one.

    Beyond the leading scores, among which the answer is, every score is a level of its own.
    """
    levels = np.arange(len(descending), dtype=np.int64)
    leading = descending[:RANKED_TIES]
    start = 0
    while start < len(leading) and np.isfinite(leading[start]):
        limit = leading[start] - TIE_TOLERANCE * abs(leading[start])
        stop = max(int(np.searchsorted(-leading, -limit, side="right")), start + 1)
        levels[start:stop] = start
        start = stop
    return levels
