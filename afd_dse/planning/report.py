"""What a schedule means: totals, break-even prices, what failures do, how much depends on the demand."""

from typing import Any

import numpy as np

from afd_dse.operators.latency import FloatArray
from afd_dse.planning.options import Options, Supply, lost_rate
from afd_dse.planning.program import Schedule, Terms, period_costs

_SECONDS_PER_HOUR = 3600.0


def totals(
    options: Options, supply: Supply, demand: FloatArray, terms: Terms, schedule: Schedule
) -> dict[str, Any]:
    """Cost, energy and use of the whole plan."""
    gpus = gpus_by_hardware(options, supply, schedule)
    hours = terms.period_hours
    tokens_per_request = np.zeros(demand.shape[0])
    np.maximum.at(tokens_per_request, options.of_class, options.tokens_per_s / options.requests_per_s)
    tokens = float((demand.sum(axis=1) * tokens_per_request).sum()) * hours * _SECONDS_PER_HOUR
    energy = float((gpus.sum(axis=1) * supply.power_w).sum()) * hours / 1e3
    capacity = np.zeros_like(demand)
    np.add.at(capacity, options.of_class, options.requests_per_s[:, None] * schedule.copies)
    used = float(demand.sum() / capacity.sum()) if capacity.sum() > 0 else 0.0
    return {
        "usd": schedule.usd,
        "usd_per_hour": schedule.usd / (hours * demand.shape[1]),
        "usd_per_mtok": schedule.usd / tokens * 1e6 if tokens > 0 else None,
        "output_tokens": tokens,
        "requests": float(demand.sum()) * hours * _SECONDS_PER_HOUR,
        "energy_kwh": energy,
        "joules_per_token": energy * 3.6e6 / tokens if tokens > 0 else None,
        "gpu_hours": float(gpus.sum()) * hours,
        "mean_load": used,
        "gap_to_optimum": schedule.gap,
        "starts": int(np.maximum(np.diff(schedule.copies, axis=1, prepend=0), 0).sum()),
        "peak_gpus": {name: int(gpus[h].max()) for h, name in enumerate(supply.names)},
        "mean_gpus": {name: float(gpus[h].mean()) for h, name in enumerate(supply.names)},
        "reserved_gpus": {
            name: int(schedule.reserved[h]) for h, name in enumerate(supply.names) if supply.reserved[h]
        },
    }


def bill(options: Options, supply: Supply, terms: Terms, schedule: Schedule) -> list[dict[str, Any]]:
    """What the plan gets of each hardware and what that costs; ``usd`` adds up to the plan's cost.

    ``usd`` = ``usd_running`` (hourly GPUs while used) + ``usd_starts`` + ``usd_reserved`` (GPUs paid the whole time).
    """
    gpus = gpus_by_hardware(options, supply, schedule)
    running, starts = period_costs(options, supply, terms, schedule.copies)
    hours = terms.period_hours * schedule.copies.shape[1]
    reserved = schedule.reserved * supply.usd_per_gpu_hour * hours
    return [
        {
            "hardware": name,
            "billing": "reserved" if supply.reserved[h] else "hourly",
            "available_gpus": int(supply.available[h]),
            "peak_gpus": int(gpus[h].max()),
            "mean_gpus": float(gpus[h].mean()),
            "paid_gpu_hours": float(
                schedule.reserved[h] * hours if supply.reserved[h] else gpus[h].sum() * terms.period_hours
            ),
            "usd_per_gpu_hour": float(supply.usd_per_gpu_hour[h]),
            "usd_running": float(running[h].sum()),
            "usd_starts": float(starts[h].sum()),
            "usd_reserved": float(reserved[h]),
            "usd": float(running[h].sum() + starts[h].sum() + reserved[h]),
        }
        for h, name in enumerate(supply.names)
    ]


def usd_by_period(options: Options, supply: Supply, terms: Terms, schedule: Schedule) -> FloatArray:
    """Cost of every period [periods], USD; what is reserved is spread evenly, so that the sum is the plan's cost."""
    running, starts = period_costs(options, supply, terms, schedule.copies)
    kept = float((schedule.reserved * supply.usd_per_gpu_hour).sum()) * terms.period_hours
    result: FloatArray = (running + starts).sum(axis=0) + kept
    return result


def gpus_by_hardware(options: Options, supply: Supply, schedule: Schedule) -> FloatArray:
    """GPUs in use [hardware, periods]."""
    found = np.zeros((len(supply.names), schedule.copies.shape[1]))
    np.add.at(found, options.hardware, (options.gpus[:, None] * schedule.copies).astype(np.float64))
    return found


def break_even(options: Options, supply: Supply, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """For every class and hardware its cheapest deployment when full, and the price at which it equals the best other.

    ``break_even_usd_per_gpu_hour``: below this price of the hardware it is the cheapest of the class (for the cheapest
    one: above it it is no longer); None without competition.
    """
    usd = (
        supply.usd_per_gpu_hour[options.hardware]
        * options.gpus
        / _SECONDS_PER_HOUR
        / options.tokens_per_s
        * 1e6
    )
    rows = []
    for k, name in enumerate(classes):
        cheapest = {}
        for h in range(len(supply.names)):
            mine = np.flatnonzero((options.of_class == k) & (options.hardware == h))
            if len(mine):
                cheapest[h] = int(mine[usd[mine].argmin()])
        for h, o in cheapest.items():
            others = [usd[other] for kind, other in cheapest.items() if kind != h]
            gpu_seconds = options.gpus[o] / options.tokens_per_s[o]
            price = min(others) / 1e6 * _SECONDS_PER_HOUR / gpu_seconds if others else None
            deployment = options.deployments[o]
            rows.append(
                {
                    "class": name,
                    "hardware": supply.names[h],
                    "label": deployment["label"],
                    "mode": deployment["mode"],
                    "usd_per_mtok": float(usd[o]),
                    "tokens_per_s_per_gpu": float(options.tokens_per_s[o] / options.gpus[o]),
                    "usd_per_gpu_hour": float(supply.usd_per_gpu_hour[h]),
                    "break_even_usd_per_gpu_hour": None if price is None else float(price),
                }
            )
    return rows


def failures(
    options: Options, supply: Supply, demand: FloatArray, schedule: Schedule, classes: tuple[str, ...]
) -> list[dict[str, Any]]:
    """What the loss of a copy and of a scale-up domain leaves of each class in its tightest period.

    ``load`` is demand / capacity that is left: up to 1 the SLO is kept, above it requests queue without end.
    """
    rows = []
    for kind in ("deployment", "domain"):
        lost = lost_rate(options, supply, kind)[:, None] * (schedule.copies > 0)
        at_hand = options.requests_per_s[:, None] * schedule.copies
        lost = np.minimum(lost, at_hand)
        for k, name in enumerate(classes):
            mine = options.of_class == k
            left = at_hand[mine].sum(axis=0) - lost[mine].max(axis=0, initial=0.0)
            load = np.where(demand[k] > 0.0, demand[k] / np.maximum(left, 1e-12), 0.0)
            period = int(load.argmax())
            worst = float(load[period])
            rows.append(
                {
                    "class": name,
                    "lost": kind,
                    "period": period,
                    "load": worst if left[period] > 0.0 or demand[k, period] == 0.0 else None,
                    "slo_kept": worst <= 1.0,
                    "requests_per_s_left": float(left[period]),
                    "requests_per_s_wanted": float(demand[k, period]),
                }
            )
    return rows
