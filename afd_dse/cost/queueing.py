"""Waiting for prefill: the G/G/k approximation, its mean and its percentiles."""

import numpy as np
from scipy.special import ndtri

from afd_dse.operators.latency import FloatArray


def steps_under_load(
    utilization: FloatArray, *, full_s: FloatArray, alone_s: FloatArray, most: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Time in which a prompt's steps are done, seconds [n], and the share of the time in which a step runs, [n].

    A step carries the prompts that arrive while the one before it runs, between one, for which it takes ``alone_s``,
    and ``most``, for which it takes ``full_s``; linear between them. The number is that at which arrivals and service
    balance, the fluid limit of the batch-service queue of Inoue (arXiv 1912.06322).
    """
    rate = np.clip(utilization, 0.0, 1.0) * most / full_s
    slope = np.where(most > 1.0, (full_s - alone_s) / np.where(most > 1.0, most - 1.0, 1.0), 0.0)
    rest = 1.0 - rate * slope
    prompts = np.where(rest > 0.0, rate * (alone_s - slope) / np.where(rest > 0.0, rest, 1.0), most)
    prompts = np.clip(prompts, 1.0, most)
    steps = alone_s + (prompts - 1.0) * slope
    return steps, np.minimum(rate * steps / prompts, 1.0)


def running_share(arrivals: FloatArray) -> FloatArray:
    """Share of the time in which a step runs, [n], of an engine whose next step takes all that came during this one.

    ``arrivals`` are those of a step on average (Poisson): if none comes, the engine is idle until the next one does.
    Without batching it would be ``arrivals`` themselves.
    """
    return np.asarray(arrivals / (arrivals + np.exp(-arrivals)), dtype=np.float64)


def length_quantile(cv: float, percentile: float) -> float:
    """Length that ``percentile`` per cent of lognormal lengths do not exceed, over the mean one; 1 at the mean (50)."""
    if percentile <= 50.0 or cv == 0.0:
        return 1.0
    sigma = np.sqrt(np.log1p(cv**2))
    return max(float(np.exp(sigma * ndtri(percentile / 100.0) - sigma**2 / 2.0)), 1.0)


def waiting_probability(utilization: FloatArray, servers: FloatArray) -> FloatArray:
    """Probability that an arrival must wait, [n]: rho^(sqrt(2(k+1)) − 1) (Sakasegawa 1977); exact for one server."""
    rho = np.clip(utilization, 0.0, 1.0)
    result: FloatArray = rho ** (np.sqrt(2.0 * (servers + 1.0)) - 1.0)
    return result


def conditional_wait(
    service_s: FloatArray,
    utilization: FloatArray,
    servers: FloatArray,
    arrival_cv2: float,
    service_cv2: float,
) -> FloatArray:
    """Mean wait of those who wait, seconds [n]; infinite at utilization ≥ 1.

    Allen–Cunneen: service/(k(1 − rho)) · (c_a² + c_s²)/2; with Sakasegawa's probability it is exact for M/G/1.
    """
    idle = 1.0 - utilization
    variability = (arrival_cv2 + service_cv2) / 2.0
    with np.errstate(divide="ignore"):
        wait = service_s / (servers * np.where(idle > 0, idle, 1.0)) * variability
    result: FloatArray = np.where(idle > 0, wait, np.inf)
    return result


def wait_percentile(probability: FloatArray, conditional: FloatArray, percentile: float) -> FloatArray:
    """Wait that ``percentile`` per cent of arrivals do not exceed, seconds [n]; the tail is taken as exponential.

    The 50th percentile is answered with the mean, which lies above the median of this distribution.
    """
    mean = np.where(
        np.isinf(conditional), np.inf, probability * np.where(np.isinf(conditional), 0.0, conditional)
    )
    if percentile <= 50.0:
        return mean
    exceed = 1.0 - percentile / 100.0
    ratio = np.log(np.maximum(probability, exceed) / exceed)
    tail = np.where(
        ratio > 0, np.where(np.isinf(conditional), np.inf, conditional) * np.where(ratio > 0, ratio, 1.0), 0.0
    )
    result: FloatArray = np.maximum(mean, tail)
    return result
