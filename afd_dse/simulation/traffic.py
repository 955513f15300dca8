"""The requests of a simulation: when they arrive, how long they are, which blocks of their prompts are known."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.spec.trace import TracedRequests, read_requests
from afd_dse.spec.workload import Arrival, TokenDistribution, TokenTrace, Workload

LengthColumn = Literal["input_tokens", "output_tokens"]


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in order of arrival, columns [n].

    ``arrival_s`` is infinite for a request that waits for another one to end (closed loop); ``input_tokens`` to be
    computed, on top of ``prefix_tokens`` that every prompt finds in the cache; ``blocks`` hash ids of each prompt's
    blocks, None where prompts share none. ``steady`` marks stationary arrivals, whose start is not to be judged.
    """

    arrival_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    prefix_tokens: float = 0.0
    prefix_shared: bool = False
    blocks: tuple[tuple[int, ...], ...] | None = None
    steady: bool = False

    def __len__(self) -> int:
        return len(self.arrival_s)


def requests_of(
    workload: Workload,
    *,
    count: int,
    requests_per_s: float,
    concurrency: int,
    rng: np.random.Generator,
) -> Requests:
    """Draw ``count`` requests of a job's workload; a trace of arrivals gives as many as it has, at most ``count``.

    ``requests_per_s`` is the mean rate of open arrivals, ``concurrency`` the requests in flight of a closed loop: so
    many start at t = 0, the others follow one by one.
    """
    arrival = workload.arrival
    if arrival.kind == "trace":
        assert arrival.file is not None
        return replace(
            traced(read_requests(Path(arrival.file), "workload.arrival.file"), count),
            prefix_tokens=workload.prefix,
            prefix_shared=workload.prefix_sharing == "shared",
        )
    inputs, outputs = _lengths(workload, count, rng)
    if arrival.kind == "closed_loop":
        times = np.where(np.arange(count) < concurrency, 0.0, np.inf)
    else:
        times = np.cumsum(_gaps(arrival, count, requests_per_s, rng))
    return Requests(
        times,
        inputs,
        outputs,
        workload.prefix,
        workload.prefix_sharing == "shared",
        steady=arrival.kind != "closed_loop",
    )


def traced(trace: TracedRequests, count: int) -> Requests:
    """The first ``count`` requests of a trace; without times they all arrive at once."""
    arrivals = trace.arrival_s
    blocks = trace.blocks
    return Requests(
        np.zeros(min(count, len(trace.input_tokens))) if arrivals is None else arrivals[:count],
        trace.input_tokens[:count],
        trace.output_tokens[:count],
        blocks=None if blocks is None else blocks[:count],
    )


def _gaps(arrival: Arrival, count: int, rate: float, rng: np.random.Generator) -> FloatArray:
    if arrival.peak_ratio is not None and arrival.peak_share is not None and arrival.peak_s is not None:
        return _mmpp_gaps(arrival.peak_ratio, arrival.peak_share, arrival.peak_s, count, rate, rng)
    shape = 1.0 if arrival.cv is None else arrival.cv**-2
    gaps = rng.gamma(shape, 1.0 / (shape * rate), count)
    # NOTE: the sample has the rate that was asked for, not one near it: a busy queue would answer for the difference.
    return np.asarray(gaps * (count / rate / max(float(gaps.sum()), 1e-300)))


def _mmpp_gaps(
    ratio: float, share: float, peak_s: float, count: int, rate: float, rng: np.random.Generator
) -> FloatArray:
    """Gaps of a two-state Markov-modulated Poisson process, by time change of a unit-rate process.

    Phases alternate between exponential lengths of mean ``peak_s`` (peak) and ``peak_s``·(1 − share)/share (base);
    arrivals are those of a unit-rate Poisson process in the clock of the accumulated rate.
    """
    base = rate / (1.0 - share + share * ratio)
    means, rates = (peak_s * (1.0 - share) / share, peak_s), (base, base * ratio)
    state = int(rng.random() < share)
    wanted = np.cumsum(rng.exponential(1.0, count))
    starts, work, now, done = [0.0], [0.0], 0.0, 0.0
    while done < wanted[-1]:
        length = rng.exponential(means[state])
        now, done, state = now + length, done + length * rates[state], 1 - state
        starts.append(now)
        work.append(done)
    return np.diff(np.interp(wanted, work, starts), prepend=0.0)


def _lengths(workload: Workload, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    given = (workload.input_tokens, workload.output_tokens)
    if all(isinstance(lengths, TokenTrace) for lengths in given) and given[0] == given[1]:
        assert isinstance(given[0], TokenTrace)
        # Lengths of one trace are drawn together: long prompts have answers of their own.
        trace = read_requests(Path(given[0].trace), "workload.input_tokens.trace")
        rows = rng.integers(len(trace.input_tokens), size=count)
        return trace.input_tokens[rows], trace.output_tokens[rows]
    return _drawn(workload, "input_tokens", count, rng), _drawn(workload, "output_tokens", count, rng)


def _drawn(workload: Workload, name: LengthColumn, count: int, rng: np.random.Generator) -> IntArray:
    lengths: float | TokenDistribution | TokenTrace = getattr(workload, name)
    if isinstance(lengths, TokenTrace):
        trace = read_requests(Path(lengths.trace), f"workload.{name}.trace")
        values: IntArray = getattr(trace, name)
        return values[rng.integers(len(values), size=count)]
    if isinstance(lengths, TokenDistribution):
        return whole_lengths(lengths.mean, lengths.cv, lengths.shape, count, rng)
    return whole_lengths(float(lengths), 0.0, "lognormal", count, rng)


def whole_lengths(mean: float, cv: float, shape: str, count: int, rng: np.random.Generator) -> IntArray:
    """``count`` whole lengths of at least one token with this mean and coefficient of variation (before rounding)."""
    if cv == 0.0:
        values = np.full(count, mean)
    elif shape == "uniform":
        half = mean * cv * 3.0**0.5
        values = rng.uniform(mean - half, mean + half, count)
    else:
        variance = np.log1p(cv**2)
        values = rng.lognormal(np.log(mean) - variance / 2.0, np.sqrt(variance), count)
    # A mean between two whole numbers stays the mean: rounded up as often as it is nearer.
    floor = np.floor(values)
    rounded = floor + (rng.random(count) < values - floor)
    return np.asarray(np.maximum(rounded, 1.0), dtype=np.int64)
