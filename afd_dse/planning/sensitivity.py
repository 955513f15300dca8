"""The plan's cost at other demands, and with deployments that serve less or more than estimated."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from afd_dse.operators.latency import FloatArray
from afd_dse.planning.options import Options, Supply
from afd_dse.planning.program import Schedule, Terms, by_period
from afd_dse.planning.report import gpus_by_hardware

SENSITIVITY = (0.8, 1.2, 1.5)
"""Multiples of the demand that the plan is made again for."""


def other_demands(
    options: Options, supply: Supply, demand: FloatArray, terms: Terms, usd: float
) -> list[dict[str, Any]]:
    """The plan's cost and size at other demands."""
    base = by_period(options, supply, demand, terms)
    return [
        {"factor": factor}
        | _compared(base, by_period(options, supply, demand * factor, terms), options, supply, usd)
        for factor in SENSITIVITY
    ]


def other_estimates(
    options: Options, supply: Supply, demand: FloatArray, terms: Terms, usd: float
) -> list[dict[str, Any]]:
    """The plan's cost and size if every deployment serves what an end of its 90 % interval of throughput says."""
    if any(deployment["intervals"] is None for deployment in options.deployments):
        return []
    base = by_period(options, supply, demand, terms)
    rows = []
    for end, name in enumerate(("low", "high")):
        factors = np.array([_throughput_factor(deployment, end) for deployment in options.deployments])
        other = replace(
            options,
            requests_per_s=options.requests_per_s * factors,
            tokens_per_s=options.tokens_per_s * factors,
        )
        found = by_period(other, supply, demand, terms)
        rows.append(
            {"end": name, "throughput": float(factors.mean())} | _compared(base, found, other, supply, usd)
        )
    return rows


def _throughput_factor(deployment: Mapping[str, Any], end: int) -> float:
    interval = deployment["intervals"]["tokens_per_s_per_gpu"]
    return float(interval[end]) / float(deployment["tokens_per_s_per_gpu"])


def _compared(
    base: Schedule | None, other: Schedule | None, options: Options, supply: Supply, usd: float
) -> dict[str, Any]:
    """What another case costs.

    Every period for itself, which is fast, and compared with the same for the plan: ``usd`` is the plan's cost times
    that ratio.
    """
    row: dict[str, Any] = {"feasible": other is not None, "usd": None, "peak_gpus": None}
    if other is not None and base is not None and base.usd > 0.0:
        peak = int(gpus_by_hardware(options, supply, other).sum(axis=0).max())
        row |= {"usd": usd * other.usd / base.usd, "peak_gpus": peak}
    return row
