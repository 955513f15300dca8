"""The expert barrier: how popular experts are, where they and their copies lie, and what the busiest rank gets."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, ndtr

from afd_dse.operators.latency import FloatArray, IntArray

Placement = Literal["contiguous", "random", "balanced"]

# Random placement is averaged over this many fixed shuffles: the mean busiest rank is then known to about 1 %.
_SHUFFLES = 16
# Counts with a larger variance than this are taken as Gaussian (their skew moves the maximum by less than 1 %).
_GAUSSIAN_VARIANCE = 100.0
_REACH = 8.0
_EXACT_VALUES = 256
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)


def power_law_popularity(experts: int, exponent: float) -> FloatArray:
    """Share of the token-expert pairs that each of ``experts`` gets: ∝ i^−``exponent`` for the i-th; 0 is even."""
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def histogram_popularity(counts: npt.ArrayLike) -> FloatArray:
    """Shares from token counts per expert (any non-negative weights, not all zero)."""
    seen = np.asarray(counts, dtype=np.float64)
    if seen.ndim != 1 or not np.isfinite(seen).all() or (seen < 0).any() or seen.sum() <= 0:
        raise ValueError("counts per expert must be one row of finite non-negative numbers, not all zero")
    return np.asarray(seen / seen.sum(), dtype=np.float64)


def selection_probability(popularity: FloatArray, topk: int) -> FloatArray:
    """Probability [E] that a token is sent to each expert; sums to ``topk``.

    A token picks an expert at most once: where ``topk`` times a share exceeds 1, the excess goes to the others in
    proportion to their shares.
    """
    if not 1 <= topk <= len(popularity):
        raise ValueError(f"top-k of {topk} does not fit {len(popularity)} experts")
    chosen = np.zeros(len(popularity), dtype=bool)
    while True:
        free = ~chosen
        room, mass = topk - chosen.sum(), popularity[free].sum()
        # Nothing popular is left: the rest is spread evenly.
        scaled = (
            popularity * (room / mass) if mass > 0 else np.full(len(popularity), room / max(free.sum(), 1))
        )
        over = free & (scaled >= 1.0)
        if not over.any():
            return np.asarray(np.where(chosen, 1.0, scaled), dtype=np.float64)
        chosen |= over


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """Slots of an expert group, copies included: which expert each holds and on which of ``ranks`` it lies."""

    expert: IntArray
    rank: IntArray
    ranks: int
    experts: int

    @property
    def copies(self) -> IntArray:
        """How many slots hold each expert, [E]."""
        return np.bincount(self.expert, minlength=self.experts)

    def rank_moments(self, probability: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the tokens of each rank [R] per token of the group, of ranks counted as independent.

        A token of a copied expert goes to any of its copies at random. In truth a token takes exactly top-k experts, so
        ranks' counts are negatively correlated; equally correlated Gaussians have the maximum of independent ones with
        the variance before that correlation, Σ π(1 − π) (times E/(E − 1), exact for even popularity).
        """
        share = (probability / np.maximum(self.copies, 1))[self.expert]
        mean = np.bincount(self.rank, share, self.ranks)
        own = np.bincount(self.rank, share * (1.0 - share), self.ranks)
        variance = np.minimum(own * (self.experts / max(self.experts - 1, 1)), mean)
        return np.asarray(mean, dtype=np.float64), np.asarray(variance, dtype=np.float64)


def redundant_copies(popularity: FloatArray, redundant: int) -> IntArray:
    """Copies of each expert [E] when ``redundant`` slots go, one by one, to the expert with the busiest copies."""
    copies = np.ones(len(popularity), dtype=np.int64)
    for _ in range(redundant):
        copies[np.argmax(popularity / copies)] += 1
    return copies


def place_experts(
    popularity: FloatArray,
    ranks: int,
    *,
    redundant: int = 0,
    placement: Placement = "contiguous",
    seed: int = 0,
) -> ExpertPlacement:
    """Slots of all experts and of ``redundant`` copies of the most popular ones, on ``ranks`` ranks.

    ``contiguous`` keeps the experts' order (copies after them), ``random`` shuffles the slots by ``seed``, ``balanced``
    puts the busiest slot that is left on the idlest rank that has room, as expert-parallel load balancers do. Ranks
    hold ⌈slots / ranks⌉ slots at most.
    """
    copies = redundant_copies(popularity, redundant)
    expert = np.concatenate(
        [np.arange(len(popularity)), np.repeat(np.arange(len(popularity)), copies - 1)]
    ).astype(np.int64)
    if ranks > len(expert):
        raise ValueError(f"{len(expert)} experts and copies do not fill {ranks} ranks")
    if placement == "balanced":
        return ExpertPlacement(expert, _packed(popularity / copies, expert, ranks), ranks, len(popularity))
    # Ranks differ by one slot at most where the slots don't divide evenly.
    rank = np.arange(len(expert), dtype=np.int64) * ranks // len(expert)
    if placement == "random":
        expert = np.random.default_rng(seed).permutation(expert)
    return ExpertPlacement(expert, rank, ranks, len(popularity))


def expected_busiest_rank(
    tokens: npt.ArrayLike,
    popularity: FloatArray,
    topk: int,
    ranks: int,
    *,
    redundant: int = 0,
    placement: Placement = "contiguous",
) -> FloatArray:
    """E[token-expert pairs on the busiest of ``ranks``] for ``tokens`` [n] of the whole group.

    Each token picks ``topk`` distinct experts at random by ``popularity`` [E]. Ranks are taken as independent, each
    count as a binomial of its mean and variance (a Gaussian where that is wide).
    """
    count = np.asarray(tokens, dtype=np.float64)
    probability = selection_probability(popularity, topk)
    seeds = range(_SHUFFLES if placement == "random" and np.ptp(popularity) > 0 else 1)
    found = np.zeros(count.size)
    for seed in seeds:
        placed = place_experts(popularity, ranks, redundant=redundant, placement=placement, seed=seed)
        mean, variance = placed.rank_moments(probability)
        found += _expected_maximum(count.ravel(), mean, variance)
    floor = count.ravel() * topk / ranks
    return np.asarray(np.clip(found / len(seeds), floor, count.ravel() * topk).reshape(count.shape))


def max_over_mean(
    tokens: npt.ArrayLike,
    popularity: FloatArray,
    topk: int,
    ranks: int,
    *,
    redundant: int = 0,
    placement: Placement = "contiguous",
) -> FloatArray:
    """Expected load of the busiest rank over the mean load, [n] ≥ 1; arguments of :func:`expected_busiest_rank`."""
    busiest = expected_busiest_rank(tokens, popularity, topk, ranks, redundant=redundant, placement=placement)
    mean = np.asarray(tokens, dtype=np.float64) * topk / ranks
    return np.asarray(np.divide(busiest, mean, out=np.ones_like(busiest), where=mean > 0), dtype=np.float64)


def _packed(load: FloatArray, expert: IntArray, ranks: int) -> IntArray:
    """Rank of each slot: the busiest slot left goes to the idlest rank with room."""
    weight = load[expert]
    room = np.full(ranks, -(-len(expert) // ranks))
    if len(expert) % ranks == 0:
        room[:] = len(expert) // ranks
    held, rank = np.zeros(ranks), np.empty(len(expert), dtype=np.int64)
    for slot in np.argsort(-weight, kind="stable"):
        best = int(np.argmin(np.where(room > 0, held, np.inf)))
        rank[slot] = best
        held[best] += weight[slot]
        room[best] -= 1
    return rank


def _expected_maximum(tokens: FloatArray, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """E[max] over ranks of counts with ``mean`` and ``variance`` per token [R], for ``tokens`` [n]."""
    # Equal ranks are one distribution to a power.
    distinct, power = np.unique(np.round(np.stack([mean, variance]), 12), axis=1, return_counts=True)
    result = np.zeros(len(tokens))
    for i, total in enumerate(tokens):
        mu, var = distinct * total
        if mu.max() <= 0:
            continue
        reach = _REACH * np.sqrt(np.maximum(var, 1.0)) + _REACH
        # A rank that never comes near the busiest one's mean does not change the maximum.
        near = mu + reach >= mu[np.argmax(mu)] - reach[np.argmax(mu)]
        result[i] = _maximum(mu[near], var[near], power[near], (mu + reach)[near].max())
    return result


def _maximum(mean: FloatArray, variance: FloatArray, power: IntArray, top: float) -> float:
    """E[max] = low + Σ_{x ≥ low} P(max > x): an exact sum over few values, quadrature over many."""
    spread = _REACH * np.sqrt(np.maximum(variance, 1.0)) + _REACH
    low = max(float(np.floor((mean - spread).max())), 0.0)
    if top - low <= _EXACT_VALUES:
        x = np.arange(low, top + 1.0)
        weights = np.ones_like(x)
    else:
        half = 0.5 * (top - low)
        x, weights = low - 0.5 + half * (_NODES + 1.0), half * _WEIGHTS
    log_below = np.log(np.maximum(_below(x, mean[:, None], variance[:, None]), 1e-300))
    return low + float((-np.expm1(power @ log_below)) @ weights)


def _below(x: FloatArray, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """P(count ≤ x) of a binomial with that mean and variance (at most the mean), continued between whole numbers."""
    std = np.sqrt(np.maximum(variance, 1e-12))
    gaussian = np.asarray(ndtr((x + 0.5 - mean) / std), dtype=np.float64)
    narrow = (variance <= _GAUSSIAN_VARIANCE) & (variance > 1e-9 * np.maximum(mean, 1.0))
    if not narrow.any():
        return gaussian
    chance = np.clip(1.0 - variance / np.maximum(mean, 1e-12), 1e-9, 1.0 - 1e-9)
    trials = mean / chance
    reachable = x < trials
    binomial = betainc(np.where(reachable, trials - x, 1.0), np.maximum(x + 1.0, 0.5), 1.0 - chance)
    return np.asarray(np.where(narrow, np.where(reachable, binomial, 1.0), gaussian), dtype=np.float64)
