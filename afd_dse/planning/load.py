"""The demand of every class in every period, requests per second."""

from pathlib import Path

import numpy as np

from afd_dse.errors import InputError, Problem
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.demand import DAYS_PER_WEEK, HOURS_PER_DAY, DemandFile, Horizon, Profile
from afd_dse.spec.trace import read_requests

_SECONDS_PER_HOUR = 3600.0
# Points within an hour at which the profile is read, for periods that cut hours.
_POINTS_PER_HOUR = 60


def demand_of(file: DemandFile) -> FloatArray:
    """Requests/s [classes, periods]: the mean rate of a period, shared out to the classes."""
    total = rate_over_time(file.demand, file.horizon)
    shares = np.array([entry.share for entry in file.classes])
    result: FloatArray = (shares / shares.sum())[:, None] * total[None, :]
    return result


def rate_over_time(profile: Profile, horizon: Horizon) -> FloatArray:
    """Requests/s of all classes [periods]: the mean over each period."""
    if profile.trace is not None:
        return _traced(profile, horizon)
    assert profile.requests_per_s is not None
    points = max(round(horizon.period_hours * _POINTS_PER_HOUR), 1)
    step = horizon.period_hours / points
    hours = (np.arange(horizon.periods * points) + 0.5) * step
    rate = np.full(len(hours), profile.requests_per_s)
    day = np.floor(hours / HOURS_PER_DAY)
    if profile.daily is not None:
        daily = np.array(profile.daily)
        rate = rate * (daily / daily.mean())[np.floor(hours % HOURS_PER_DAY).astype(int)]
    if profile.weekly is not None:
        weekly = np.array(profile.weekly)
        rate = rate * (weekly / weekly.mean())[(day % DAYS_PER_WEEK).astype(int)]
    rate = rate * (1.0 + profile.growth_percent_per_day / 100.0) ** day
    result: FloatArray = rate.reshape(horizon.periods, points).mean(axis=1)
    return result


def _traced(profile: Profile, horizon: Horizon) -> FloatArray:
    """Requests of a trace counted by period; what lies beyond the horizon is left out, a shorter trace repeats."""
    assert profile.trace is not None
    arrivals = read_requests(Path(profile.trace), "demand.trace").arrival_s
    assert arrivals is not None
    period = horizon.period_hours * _SECONDS_PER_HOUR
    covered = int(np.ceil((arrivals[-1] + 1e-9) / period))
    if arrivals[-1] < period / 2.0:
        message = f"the trace spans {arrivals[-1]:.0f} s, less than half a period of {period:.0f} s"
        raise InputError(Problem("demand.trace", profile.trace, message, "shorten horizon.period_hours"))
    counts = np.histogram(arrivals, bins=np.arange(covered + 1) * period)[0] / period
    rate = np.resize(counts, horizon.periods).astype(np.float64)
    if profile.requests_per_s is not None:
        rate = rate * (profile.requests_per_s / rate.mean())
    days = np.floor(np.arange(horizon.periods) * horizon.period_hours / HOURS_PER_DAY)
    result: FloatArray = rate * (1.0 + profile.growth_percent_per_day / 100.0) ** days
    return result
