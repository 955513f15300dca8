"""The metrics that charts put on their axes: unit, definition, which way is better; and those derived from others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from afd_dse.errors import InputError
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.load import load_job


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity of a deployment; ``name`` is its column, ``better`` +1 where more is better, −1 where less is."""

    name: str
    label: str
    unit: str
    definition: str
    better: int
    logarithmic: bool = False

    @property
    def words(self) -> str:
        """The label inside a sentence; abbreviations keep their capitals."""
        return self.label if self.label[:2].isupper() else self.label[0].lower() + self.label[1:]

    @property
    def title(self) -> str:
        """Label with unit, as an axis shows it."""
        return self.label if self.label == self.unit else f"{self.label} ({self.unit})"


_ALL = (
    Metric(
        "tokens_per_s_per_user",
        "Speed for a user",
        "tokens/s",
        "output tokens per second that one request receives after its first: 1000 / TPOT in ms",
        1,
        logarithmic=True,
    ),
    Metric(
        "tokens_per_s_per_gpu",
        "Output throughput per GPU",
        "tokens/s",
        "output tokens per second over all GPUs of the deployment: prefill, attention and FFN alike",
        1,
    ),
    Metric(
        "input_tokens_per_s_per_gpu",
        "Input throughput per GPU",
        "tokens/s",
        "new prompt tokens per second over all GPUs; tokens found in a cache do not count",
        1,
    ),
    Metric(
        "total_tokens_per_s_per_gpu",
        "Total throughput per GPU",
        "tokens/s",
        "input plus output tokens per second over all GPUs",
        1,
    ),
    Metric(
        "usd_per_mtok",
        "Cost",
        "$ per million output tokens",
        "price of all GPUs for the time that a million output tokens take",
        -1,
        logarithmic=True,
    ),
    Metric(
        "tokens_per_s_per_mw",
        "Output throughput per MW",
        "tokens/s",
        "output tokens per second per megawatt of all-in power: GPUs with their share of hosts, network and cooling",
        1,
    ),
    Metric(
        "joules_per_token",
        "Energy",
        "J per output token",
        "all-in power of all GPUs over output tokens per second",
        -1,
        logarithmic=True,
    ),
    Metric(
        "ttft_percentile_ms",
        "TTFT",
        "ms",
        "arrival to first output token at the SLO's percentile: waiting, prefill, exposed KV transfer",
        -1,
        logarithmic=True,
    ),
    Metric(
        "tpot_ms",
        "TPOT",
        "ms",
        "mean time between output tokens after the first, interference by prefill included",
        -1,
        logarithmic=True,
    ),
    Metric(
        "request_latency_ms",
        "Request latency",
        "ms",
        "arrival to last output token: TTFT + (output tokens − 1) × TPOT",
        -1,
        logarithmic=True,
    ),
    Metric("gpus", "GPUs", "GPUs", "GPUs of all groups and replicas of the deployment", -1),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}
X_AXES = ("tokens_per_s_per_user", "ttft_percentile_ms", "request_latency_ms")
Y_AXES = (
    "tokens_per_s_per_gpu",
    "input_tokens_per_s_per_gpu",
    "total_tokens_per_s_per_gpu",
    "usd_per_mtok",
    "tokens_per_s_per_mw",
    "joules_per_token",
    "ttft_percentile_ms",
)
OBJECTIVES = {
    "throughput_per_gpu": METRICS["tokens_per_s_per_gpu"],
    "total_throughput": Metric(
        "tokens_per_s", "Output throughput", "tokens/s", "output tokens of the deployment", 1
    ),
    "usd_per_mtok": METRICS["usd_per_mtok"],
    "fewest_gpus": METRICS["gpus"],
}
"""The metric of every objective."""


def points_of(document: Mapping[str, Any], candidates: pd.DataFrame) -> pd.DataFrame:
    """The candidates of a result with every metric of :data:`METRICS`; input tokens are NaN where they are not known.

    Without a candidates table the rows are the deployments that the document itself holds.
    """
    rows = candidates if len(candidates) else _documented(document)
    if rows.empty:
        return rows
    return derived(rows, mean_input_tokens(document))


def derived(rows: pd.DataFrame, input_tokens: float | None) -> pd.DataFrame:
    """``rows`` with the metrics that follow from their columns; ``input_tokens`` a request, None: not known."""
    gpus = rows["gpus"].to_numpy(dtype=np.float64)
    requests = rows["requests_per_s"].to_numpy(dtype=np.float64)
    incoming: FloatArray = requests * (np.nan if input_tokens is None else input_tokens) / gpus
    return rows.assign(
        input_tokens_per_s_per_gpu=incoming,
        total_tokens_per_s_per_gpu=incoming + rows["tokens_per_s_per_gpu"].to_numpy(dtype=np.float64),
        tokens_per_s_per_mw=1e6 / rows["joules_per_token"].to_numpy(dtype=np.float64),
    )


def mean_input_tokens(document: Mapping[str, Any]) -> float | None:
    """Mean new prompt tokens of a request; None where the job's trace is no longer there."""
    asked = document["job"]["workload"]["input_tokens"]
    if isinstance(asked, int | float):
        return float(asked)
    if "mean" in asked:
        return float(asked["mean"])
    try:
        return load_job(document["job"]).workload.isl
    except InputError:
        return None


def _documented(document: Mapping[str, Any]) -> pd.DataFrame:
    """Deployments of the document as rows: the front, the rankings and the best of every mode."""
    best = [entry for entry in document["best_per_mode"].values() if entry["groups"]]
    ranked = [entry for mode in document["modes"] for entry in (*mode["ranking"], *mode["nearest"])]
    found: dict[tuple[str, str, float], dict[str, Any]] = {}
    for entry in (*best, *document["pareto"], *document["ranking"], *ranked):
        found.setdefault((entry["mode"], entry["label"], entry["tpot_ms"]), entry)
    plain = [{k: v for k, v in entry.items() if not isinstance(v, dict | list)} for entry in found.values()]
    return pd.DataFrame(plain)
