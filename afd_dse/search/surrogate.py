"""What a sampled search expects of candidates not yet evaluated: a Gaussian process through those that are."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from scipy.special import ndtr

from afd_dse.cost.columns import ALL_COLUMNS, EXPERT_POLICIES, POLICIES, Candidates
from afd_dse.operators.latency import FloatArray

# Values without an order are as far apart as so many octaves of a number.
APART = 1.5
# Length of a feature, in octaves, before anything is known of it, and how far it is believed to be from that (a
# standard deviation of the logarithm).
LENGTH = 10.0
LENGTH_DOUBT = 1.0
# Share of the variance that is peculiar to a candidate, likewise.
NOISE = 1e-4
NOISE_DOUBT = 1.0
# So many candidates tell the lengths: a likelihood costs the cube of their number.
TOLD_BY = 200
STEPS = 15
# Values of a standard normal variable and their weights, Gauss–Hermite: what a doubtful candidate may turn out as.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
CHANCES: tuple[FloatArray, FloatArray] = (_NODES, _WEIGHTS / _WEIGHTS.sum())
# Slack is known no better than this.
SLACK_DOUBT = 0.03
# Slack beyond this is as good or bad as any, in the logarithm of 1 + |slack|.
SLACK_RANGE = 1.5
_TINY = 1e-9


def features(candidates: Candidates, pools: int) -> FloatArray:
    """Columns in which equal steps do about equally much [n, features].

    Degrees and loads act in proportion, so they count in octaves; of values without an order each has a column.
    """
    found = []
    for name in ALL_COLUMNS:
        values, named = candidates.number(name), _named(name, pools)
        if named:
            found += [APART * (values == number) for number in range(1, named)]
        elif name != "partition":
            found.append(np.log2(values + 1.0 if name.endswith("redundant") else values))
    return np.stack(found, axis=1)


def _named(column: str, pools: int) -> int:
    """How many values without an order a column has; 0 for numbers."""
    if column == "policy":
        return len(POLICIES)
    if column.endswith("expert_policy"):
        return len(EXPERT_POLICIES)
    return pools if column.endswith("_pool") else 0


def bent(slack: FloatArray) -> FloatArray:
    """Slack as a smooth function can follow it: logarithmic on both sides of 0, and within bounds."""
    known = np.nan_to_num(slack, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    result: FloatArray = np.clip(np.sign(known) * np.log1p(np.abs(known)), -SLACK_RANGE, SLACK_RANGE)
    return result


@dataclass(frozen=True, slots=True)
class Expected:
    """Of n candidates the logarithm of what is sought, mean and doubt, and the chance to meet every limit."""

    mean: FloatArray
    doubt: FloatArray
    chance: FloatArray


class Surrogate:
    """A Gaussian process, Matérn 3/2 with a length for every feature, alike for every target.

    Rasmussen and Williams, Gaussian Processes for Machine Learning, algorithm 2.1; lengths and noise are the likeliest
    for the first target (eq. 5.8 and 5.9). Its doubt grows away from the evaluated candidates ``x`` [n, features] with
    the targets ``y`` [n, 1 + slacks]: the logarithm of what is sought, and bent slacks.
    """

    def __init__(self, x: FloatArray, y: FloatArray) -> None:
        # Columns that never change, and repetitions of others, say nothing.
        varied = np.flatnonzero(np.ptp(x, axis=0) > 0.0)
        first = np.unique(x[:, varied], axis=1, return_index=True)[1]
        self._columns = varied[np.sort(first)]
        self._mean = y.mean(axis=0)
        left = y - self._mean
        some = np.arange(0, len(x), -(-len(x) // TOLD_BY))
        self._lengths, self._noise = likeliest(x[some][:, self._columns], left[some, 0])
        self._x = self._scaled(x)
        factor = cho_factor(_matern(self._x, self._x) + self._noise * np.eye(len(x)), lower=True)
        self._lower: FloatArray = factor[0]
        self._weights: FloatArray = cho_solve(factor, left)
        self._scale = np.sqrt(np.maximum((left * self._weights).sum(axis=0), 0.0) / len(x))

    def predicted(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of the targets at ``x`` [n, features], [n, targets] each."""
        mean, doubts = self._at(x)
        return mean, np.sqrt(doubts.left)[:, None] * self._scale

    def expected(self, x: FloatArray) -> Expected:
        """What to expect of candidates with features ``x`` [n, features]."""
        return self.together(x)[0]

    def together(self, x: FloatArray) -> tuple[Expected, "Doubts"]:
        """What to expect of candidates, and how their doubts shrink as some of them become known."""
        mean, doubts = self._at(x)
        doubt = np.sqrt(doubts.left)[:, None] * self._scale
        held = ndtr(mean[:, 1:] / np.maximum(doubt[:, 1:], SLACK_DOUBT))
        return Expected(mean[:, 0], doubt[:, 0], held.prod(axis=1)), doubts

    def _at(self, x: FloatArray) -> tuple[FloatArray, "Doubts"]:
        own = self._scaled(x)
        shared = _matern(own, self._x)
        told = solve_triangular(self._lower, shared.T, lower=True, check_finite=False)
        mean: FloatArray = self._mean + shared @ self._weights
        return mean, Doubts(own, told)

    def _scaled(self, x: FloatArray) -> FloatArray:
        scaled: FloatArray = x[:, self._columns] / self._lengths
        return scaled


class Doubts:
    """What is ``left`` of the doubts of candidates [n], in the variance of a target, as some of them become known.

    ``told`` [known, n] is the part of a Cholesky factor for candidates with scaled features ``own`` [n, features]:
    each one that is learnt adds a row.
    """

    def __init__(self, own: FloatArray, told: FloatArray) -> None:
        self._own, self._told = own, told
        self.left: FloatArray = np.maximum(1.0 - (told**2).sum(axis=0), 0.0)

    def learn(self, one: int) -> None:
        """A candidate becomes known."""
        common = _matern(self._own[one : one + 1], self._own)[0] - self._told[:, one] @ self._told
        row = common / np.sqrt(max(float(common[one]), _TINY))
        self._told = np.vstack([self._told, row])
        self.left = np.maximum(self.left - row**2, 0.0)


def likeliest(x: FloatArray, y: FloatArray) -> tuple[FloatArray, float]:
    """The likeliest length of every feature, and noise, for a centred target ``y`` [n] at ``x`` [n, features].

    Its variance is at its likeliest value. Lengths and noise are believed to be about what is usual, which decides
    where little is known.
    """
    usual = np.log(np.append(np.full(x.shape[1], LENGTH), NOISE))
    belief = np.append(np.full(x.shape[1], LENGTH_DOUBT), NOISE_DOUBT)

    def unlikely(parameters: FloatArray) -> tuple[float, FloatArray]:
        off = (parameters - usual) / belief
        value, slope = _unlikely(x / np.exp(parameters[:-1]), y, float(np.exp(parameters[-1])))
        return value + 0.5 * float(off @ off), slope + off / belief

    found = minimize(unlikely, usual, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}).x
    return np.exp(found[:-1]), float(np.exp(found[-1]))


def _unlikely(x: FloatArray, y: FloatArray, noise: float) -> tuple[float, FloatArray]:
    """Negative logarithm of the likelihood, and its slope in the logarithms of the lengths of ``x`` and the noise."""
    count = len(x)
    distance = cdist(x, x) * np.sqrt(3.0)
    smooth = np.exp(-distance)
    try:
        factor = cho_factor((1.0 + distance) * smooth + noise * np.eye(count), lower=True)
    except LinAlgError:
        return np.inf, np.zeros(x.shape[1] + 1)
    weights = cho_solve(factor, y)
    variance = max(float(y @ weights), _TINY)
    value = 0.5 * count * np.log(variance) + float(np.log(np.diag(factor[0])).sum())
    by_covariance = 0.5 * (cho_solve(factor, np.eye(count)) - count / variance * np.outer(weights, weights))
    # A length stretches distances: dk/dlog(length) = 3·(difference/length)²·exp(−distance).
    bent_by = 3.0 * smooth * by_covariance
    by_length = 2.0 * (bent_by.sum(axis=1) @ x**2) - 2.0 * (x * (bent_by @ x)).sum(axis=0)
    return value, np.append(by_length, noise * np.trace(by_covariance))


def _matern(a: FloatArray, b: FloatArray) -> FloatArray:
    """Covariance of a function that is smooth over distances of 1, [a, b]; 1 for the same point."""
    distance: FloatArray = cdist(a, b)
    distance *= np.sqrt(3.0)
    smooth: FloatArray = np.exp(-distance)
    distance += 1.0
    smooth *= distance
    return smooth


__all__ = ["CHANCES", "Doubts", "Expected", "Surrogate", "bent", "features", "likeliest"]
