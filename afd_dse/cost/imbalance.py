"""The attention barrier: random loads of the slots of a batch and of full prefill steps, the busiest of many ranks."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import log_ndtr, ndtr

from afd_dse.operators.latency import FloatArray

# Nodes and reach of the quadrature of E[max]: the integrand is smooth, and beyond 12 standard deviations nothing is
# left of it for any count of ranks below 10^30.
_REACH = 12.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(160)


@dataclass(frozen=True, slots=True)
class LengthMoments:
    """First four raw moments of a random length in tokens; columns [n] or scalars."""

    first: FloatArray
    second: FloatArray
    third: FloatArray
    fourth: FloatArray

    @classmethod
    def fixed(cls, tokens: npt.ArrayLike) -> "LengthMoments":
        """Every request has ``tokens`` [n] tokens."""
        mean = np.asarray(tokens, dtype=np.float64)
        return cls(mean, mean**2, mean**3, mean**4)

    @classmethod
    def geometric(cls, mean: npt.ArrayLike, *, least: int = 1) -> "LengthMoments":
        """Geometric with ``mean`` [n] on 1, 2, … (``mean`` ≥ 1: each token is the last with probability 1/mean).

        ``least`` 0 starts at no token, as arXiv 2601.21351 counts: a slot then holds P + mean tokens in the mean.
        """
        mu = np.asarray(mean, dtype=np.float64)
        sign = -1.0 if least else 1.0
        return cls(
            mu,
            2.0 * mu**2 + sign * mu,
            6.0 * mu**3 + sign * 6.0 * mu**2 + mu,
            24.0 * mu**4 + sign * 36.0 * mu**3 + 14.0 * mu**2 + sign * mu,
        )

    @classmethod
    def lognormal(cls, mean: npt.ArrayLike, cv: npt.ArrayLike) -> "LengthMoments":
        """Lognormal with ``mean`` [n] and coefficient of variation ``cv`` [n]; cv 0 is a fixed length."""
        mu, spread = np.asarray(mean, dtype=np.float64), 1.0 + np.asarray(cv, dtype=np.float64) ** 2
        return cls(mu * np.ones_like(spread), mu**2 * spread, mu**3 * spread**3, mu**4 * spread**6)

    @classmethod
    def empirical(cls, tokens: npt.ArrayLike) -> "LengthMoments":
        """Lengths observed, along the last axis."""
        seen = np.asarray(tokens, dtype=np.float64)
        return cls(*(np.asarray(np.mean(seen**k, axis=-1)) for k in (1, 2, 3, 4)))


def kv_load_moments(prompt: LengthMoments, output: LengthMoments) -> tuple[FloatArray, FloatArray]:
    """Mean θ [n] and variance ν² [n] of the KV tokens that one decode slot holds, in a batch that is always refilled.

    A slot sees a request with P prompt tokens for its D output tokens, holding P, P + 1, …, P + D − 1, so it finds long
    outputs more often: θ = E[D·P + D(D−1)/2] / E[D], and ν² = E[D·P² + P·D(D−1) + (D−1)D(2D−1)/6] / E[D] − θ²
    (arXiv 2601.21351), here for P and D independent; see :func:`paired_kv_load_moments` for lengths seen together.
    """
    d1, d2, d3 = output.first, output.second, output.third
    age = (d2 - d1) / (2.0 * d1)
    age_squared = (2.0 * d3 - 3.0 * d2 + d1) / (6.0 * d1)
    mean = prompt.first + age
    variance = prompt.second - prompt.first**2 + age_squared - age**2
    return mean, np.maximum(variance, 0.0)


def paired_kv_load_moments(prompts: npt.ArrayLike, outputs: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """As :func:`kv_load_moments` for requests observed whole: ``prompts`` and ``outputs`` along the last axis."""
    p = np.asarray(prompts, dtype=np.float64)
    d = np.asarray(outputs, dtype=np.float64)
    steps = d.sum(axis=-1)
    mean = np.asarray((d * p + d * (d - 1.0) / 2.0).sum(axis=-1) / steps)
    centre = p - mean[..., None]
    squares = d * centre**2 + centre * d * (d - 1.0) + (d - 1.0) * d * (2.0 * d - 1.0) / 6.0
    return mean, np.asarray(np.maximum(squares.sum(axis=-1) / steps, 0.0))


def attended_moments(prompt: LengthMoments, tokens: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Mean and variance [n] of what ``tokens`` [n] in a row of a queue of prompts attend to in their own prompts.

    The a-th token of a prompt attends to a tokens. A token is found in long prompts more often than they arrive, so the
    mean is E[P²]/2E[P] =: ā a token. A few tokens are of one prompt and vary as its age does, by E[P³]/3E[P] − ā²
    times their number squared; many are of whole prompts, a renewal-reward process, and vary by E[(P²/2 − āP)²]/E[P] a
    token. Between both the harmonic sum: off by 5 % at most where lognormal lengths have a cv of 0.5 or 1, and exactly
    0 for equal lengths, whose ranks are taken to be in step.
    """
    count = np.asarray(tokens, dtype=np.float64)
    age = prompt.second / (2.0 * prompt.first)
    within = np.maximum(prompt.third / (3.0 * prompt.first) - age**2, 0.0)
    reward = (prompt.fourth / 4.0 - age * prompt.third + age**2 * prompt.second) / prompt.first
    # Equal lengths leave nothing but rounding.
    reward = np.where(reward > 1e-9 * prompt.first**3, reward, 0.0)
    variance = count**2 * within * reward / np.maximum(reward + count * within, 1e-300)
    return np.asarray(count * age), np.asarray(variance)


def lognormal_maximum(cv: npt.ArrayLike, ranks: npt.ArrayLike) -> FloatArray:
    """E[max] of ``ranks`` [n] ≥ 1 independent lognormal variables of mean 1 and ``cv`` [n].

    ∫ r·φ(y)·Φ(y + σ)^(r−1) dy with σ² = ln(1 + cv²): the value e^(σz − σ²/2) shifts the density. By Gauss-Legendre
    quadrature, once for each distinct pair.
    """
    spread, count = np.broadcast_arrays(np.asarray(cv, dtype=np.float64), np.asarray(ranks, dtype=np.float64))
    pairs, where = np.unique(np.stack([spread.reshape(-1), count.reshape(-1)]), axis=1, return_inverse=True)
    sigma, r = np.sqrt(np.log1p(pairs[0] ** 2))[:, None], pairs[1][:, None]
    y, weights = _REACH * _NODES, _REACH * _WEIGHTS
    density = np.exp(-0.5 * y**2) / np.sqrt(2.0 * np.pi)
    found = (r * density * ndtr(y + sigma) ** (r - 1.0)) @ weights
    result: FloatArray = found[where.reshape(-1)].reshape(spread.shape)
    return result


def attended_growth(prompt: LengthMoments, tokens: npt.ArrayLike, ranks: npt.ArrayLike) -> FloatArray:
    """What the busiest of ``ranks`` [n] attends to in its own prompts over what it would if all were equal, [n] ≥ 1.

    Each rank has ``tokens`` [n] prompt tokens; their sums are taken as lognormal, as skewed to the right as they are.
    """
    mean, variance = attended_moments(prompt, tokens)
    equal = np.asarray(tokens, dtype=np.float64) * prompt.first / 2.0
    return np.asarray(mean / equal * lognormal_maximum(np.sqrt(variance) / mean, ranks), dtype=np.float64)


def gaussian_maximum(ranks: npt.ArrayLike) -> FloatArray:
    """E[max] of ``ranks`` [n] ≥ 1 independent standard Gaussians.

    ∫₀^∞ (1 − Φ(x)^r) dx − ∫₋∞⁰ Φ(x)^r dx by Gauss-Legendre quadrature, once for each distinct count.
    """
    count = np.asarray(ranks, dtype=np.float64)
    where, distinct = pd.factorize(count.reshape(-1))
    x = 0.5 * _REACH * (_NODES + 1.0)
    weights = 0.5 * _REACH * _WEIGHTS
    above = -np.expm1(distinct[:, None] * log_ndtr(x))
    below = np.exp(distinct[:, None] * log_ndtr(-x))
    result: FloatArray = ((above - below) @ weights)[where].reshape(count.shape)
    return result


def expected_max(mean: npt.ArrayLike, std: npt.ArrayLike, ranks: npt.ArrayLike) -> FloatArray:
    """E[max] of ``ranks`` independent Gaussians of the same ``mean`` and ``std``, all [n]."""
    spread = np.asarray(std, dtype=np.float64) * gaussian_maximum(ranks)
    return np.asarray(np.asarray(mean, dtype=np.float64) + spread, dtype=np.float64)


def barrier_overhead(
    mean: npt.ArrayLike, variance: npt.ArrayLike, slots: npt.ArrayLike, ranks: npt.ArrayLike
) -> FloatArray:
    """How much more than the mean the busiest of ``ranks`` holds, as a share of the mean, [n].

    Each rank holds ``slots`` independent slots with ``mean`` θ and ``variance`` ν²: E[max]/(B·θ) − 1 = κ_r·ν/(θ·√B).
    """
    theta, batch = np.asarray(mean, dtype=np.float64), np.asarray(slots, dtype=np.float64)
    spread = np.sqrt(np.asarray(variance, dtype=np.float64) * batch)
    return np.asarray(expected_max(batch * theta, spread, ranks) / (batch * theta) - 1.0)


def optimal_attention_ratio(
    load: npt.ArrayLike,
    batch: npt.ArrayLike,
    *,
    attention_slope: npt.ArrayLike,
    ffn_slope: npt.ArrayLike,
    intercept_difference: npt.ArrayLike,
) -> FloatArray:
    """Attention ranks per FFN rank r* at which both take equally long, [n] (mean field, arXiv 2601.21351).

    Attention takes ``attention_slope``·B·θ + β_A for ``batch`` B slots of mean KV ``load`` θ, the FFN
    ``ffn_slope``·r·B + β_F; ``intercept_difference`` is β_A − β_F. Pass the busiest rank's load per slot to count the
    barrier.
    """
    slope = np.asarray(ffn_slope, dtype=np.float64)
    slots = np.asarray(batch, dtype=np.float64)
    return np.asarray(
        (np.asarray(attention_slope) * np.asarray(load) + np.asarray(intercept_difference) / slots) / slope
    )


def continuous_efficiency(attention: npt.ArrayLike, ffn: npt.ArrayLike, balance: npt.ArrayLike) -> FloatArray:
    """Throughput that is left when imbalance only makes the FFN part of a step longer, 1 = balanced, [n].

    ``attention`` and ``ffn`` are the parts' times or nodes at balance, ``balance`` σ ≤ 1 mean over maximum load: expert
    parallelism takes (A + F/σ) / (A + F) times as long.
    """
    a, f, sigma = (np.asarray(x, dtype=np.float64) for x in (attention, ffn, balance))
    return np.asarray((a + f) / (a + f / sigma), dtype=np.float64)


def node_discrete_efficiency(
    attention_nodes: npt.ArrayLike, ffn_nodes: npt.ArrayLike, balance: npt.ArrayLike
) -> FloatArray:
    """Throughput per node that is left when imbalance is met by whole attention nodes, 1 = balanced, [n].

    ``balance`` σ ≤ 1 is mean over maximum load of the FFN nodes, so they keep up with only σ·N_A attention nodes of the
    N_A that they were sized for. One keeps ⌊σ·N_A⌋ of them, or ⌈σ·N_A⌉ of which the FFN slows the last; the better
    counts (arXiv 2602.09721).
    """
    n_a, n_f, sigma = (np.asarray(x, dtype=np.float64) for x in (attention_nodes, ffn_nodes, balance))
    # NOTE: 0.7 · 10 is 7.000000000000001 in binary; a node more would be an artefact.
    served = np.round(sigma * n_a, 9)
    down, up = np.floor(served), np.ceil(served)
    best = np.maximum(down / (down + n_f), served / (up + n_f))
    return np.asarray(best / (n_a / (n_a + n_f)), dtype=np.float64)
