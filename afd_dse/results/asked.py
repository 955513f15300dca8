"""What a job asks for in words: its GPUs, its requests, its limits."""

from collections.abc import Mapping
from typing import Any

from afd_dse.results.words import number, percent

_ARRIVALS = {
    "poisson": "Poisson arrivals",
    "gamma": "gaps between arrivals varied by {cv}",
    "mmpp": "arrivals {peak_ratio:g} × as often in {peak_share} of the time, for {peak_s:g} s each",
    "closed_loop": "closed loop",
    "trace": "arrivals of a trace",
}


def pools_text(job: Mapping[str, Any]) -> str:
    """``128 × b200_sxm``, with the pools' names where there are several."""
    pools = job["cluster"]["pools"]
    several = len(pools) > 1
    return ", ".join(
        f"{pool['count']} × {_accelerator(pool['accelerator'])}" + (f" ({pool['name']})" if several else "")
        for pool in pools
    )


def _accelerator(accelerator: str | Mapping[str, Any]) -> str:
    if isinstance(accelerator, str):
        return accelerator
    return str(accelerator.get("name") or f"{accelerator.get('base')} (changed)")


def workload_text(workload: Mapping[str, Any], demand: Mapping[str, Any] | None) -> str:
    """Lengths and arrivals of the requests."""
    parts = [f"{_length(workload['input_tokens'])} tokens in, {_length(workload['output_tokens'])} out"]
    if workload["prefix_tokens"]:
        parts.append(f"{number(workload['prefix_tokens'])} cached ({workload['prefix_sharing']} prefix)")
    arrival = workload["arrival"]
    shares = {name: percent(arrival[name]) for name in ("cv", "peak_share") if arrival.get(name)}
    kind = _ARRIVALS[arrival["kind"]].format(**(arrival | shares))
    if arrival.get("concurrency"):
        kind += f" of {number(arrival['concurrency'])} requests"
    parts.append(kind)
    if demand:
        parts.append(f"at least {number(demand['requests_per_s'])} requests/s")
    return "; ".join(parts)


def _length(value: float | Mapping[str, Any]) -> str:
    if isinstance(value, Mapping):
        return f"{number(value['mean'])} ± {percent(value['cv'])}" if "mean" in value else "traced"
    return f"{value:,g}" if value < 1e6 else number(value)


def slo_text(slo: Mapping[str, Any]) -> str:
    """The limits in words."""
    at = "" if slo["percentile"] == 50 else f" at percentile {slo['percentile']:g}"
    parts = [
        f"{name} ≤ {slo[key]:,g} ms{at if key == 'ttft_ms' else ''}"
        for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("request latency", "request_latency_ms"))
        if slo[key] is not None
    ]
    return ", ".join(parts) or "no limits"
