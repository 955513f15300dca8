"""What a sampled search expects of candidates not yet evaluated: a Gaussian process through those that are."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.spatial.distance import cdist
from scipy.special import ndtr

from afd_dse.cost.columns import ALL_COLUMNS, EXPERT_POLICIES, POLICIES, Candidates
from afd_dse.cost.evaluation import CONSTRAINTS, Evaluation
from afd_dse.operators.latency import FloatArray, IntArray

# Values without an order are as far apart as so many octaves of a number.
APART = 1.5
# Distance in octaves over which candidates tell of each other, and over which the quadratic trend bends.
LENGTH = 6.0
BEND = 6.0
# Against candidates that are nearly the same.
NOISE = 1e-4
# Standard deviations by which a candidate is taken to be better than expected: what is little known is tried.
HOPE = 0.5
MOST_HOPED = 0.25
# Slack is known no better than this.
SLACK_DOUBT = 0.03
# Slack beyond this is as good or bad as any, in the logarithm of 1 + |slack|.
SLACK_RANGE = 1.5
_TINY = 1e-9
# Whether a unit fits into the cluster is known without evaluating it.
_TOLD = [number for number, name in enumerate(CONSTRAINTS) if name != "gpus"]


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


def targets(evaluation: Evaluation) -> FloatArray:
    """What is predicted [n, 2 + slacks]: logarithms of speed per user and throughput per GPU, and bent slacks."""
    speed, throughput = (
        np.log(np.maximum(evaluation.metrics[name], _TINY))
        for name in ("tokens_per_s_per_user", "tokens_per_s_per_gpu")
    )
    return np.column_stack([speed, throughput, bent(evaluation.slack)[:, _TOLD]])


def bent(slack: FloatArray) -> FloatArray:
    """Slack as a smooth function can follow it: logarithmic on both sides of 0, and within bounds."""
    known = np.nan_to_num(slack, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    result: FloatArray = np.clip(np.sign(known) * np.log1p(np.abs(known)), -SLACK_RANGE, SLACK_RANGE)
    return result


@dataclass(frozen=True, slots=True)
class Expected:
    """Of n candidates the speed per user and the throughput per GPU hoped for, and the chance to meet every limit."""

    speed: FloatArray
    throughput: FloatArray
    chance: FloatArray

    @staticmethod
    def join(parts: list["Expected"]) -> "Expected":
        """One after the other."""
        return Expected(
            np.concatenate([part.speed for part in parts]),
            np.concatenate([part.throughput for part in parts]),
            np.concatenate([part.chance for part in parts]),
        )

    def at(self, rows: IntArray) -> "Expected":
        """The candidates at ``rows``."""
        return Expected(self.speed[rows], self.throughput[rows], self.chance[rows])


class Surrogate:
    """A Gaussian process: a quadratic trend and what is smooth on top of it (Matérn 3/2), alike for every target.

    Rasmussen and Williams, Gaussian Processes for Machine Learning, algorithm 2.1 and eq. 4.17. Its doubt grows away
    from the evaluated candidates ``x`` [n, features] with the targets ``y`` [n, 2 + slacks].
    """

    def __init__(self, x: FloatArray, y: FloatArray) -> None:
        # Columns that never change, and repetitions of others, say nothing.
        varied = np.flatnonzero(np.ptp(x, axis=0) > 0.0)
        first = np.unique(x[:, varied], axis=1, return_index=True)[1]
        self._columns = varied[np.sort(first)]
        self._middle, self._mean = x[:, self._columns].mean(axis=0), y.mean(axis=0)
        self._x = self._centred(x)
        covariance = self._kernel(self._x, self._x) + NOISE * np.eye(len(x))
        factor = cho_factor(covariance, lower=True)
        left = y - self._mean
        self._lower: FloatArray = factor[0]
        self._weights: FloatArray = cho_solve(factor, left)
        self._scale = np.sqrt(np.maximum((left * self._weights).sum(axis=0), 0.0) / len(x))

    def predicted(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of the targets at ``x`` [n, features], [n, targets] each."""
        centred = self._centred(x)
        shared = self._kernel(centred, self._x)
        told = solve_triangular(self._lower, shared.T, lower=True, check_finite=False)
        own = 1.0 + _trend((centred**2).sum(axis=1))
        doubt = np.sqrt(np.maximum(own - (told**2).sum(axis=0), 0.0))
        mean: FloatArray = self._mean + shared @ self._weights
        return mean, doubt[:, None] * self._scale

    def expected(self, x: FloatArray) -> Expected:
        """What to hope for of candidates with features ``x`` [n, features]."""
        mean, doubt = self.predicted(x)
        hope = np.minimum(HOPE * doubt[:, 0], MOST_HOPED)
        held = ndtr(mean[:, 2:] / np.maximum(doubt[:, 2:], SLACK_DOUBT))
        return Expected(np.exp(mean[:, 0] + hope), np.exp(mean[:, 1] + hope), held.prod(axis=1))

    def _centred(self, x: FloatArray) -> FloatArray:
        centred: FloatArray = x[:, self._columns] - self._middle
        return centred

    def _kernel(self, a: FloatArray, b: FloatArray) -> FloatArray:
        distance = cdist(a, b) * (np.sqrt(3.0) / LENGTH)
        smooth: FloatArray = (1.0 + distance) * np.exp(-distance)
        return smooth + _trend(a @ b.T)


def _trend(product: FloatArray) -> FloatArray:
    """Covariance of quadratic functions, by the scalar product of the features."""
    result: FloatArray = (1.0 + product / BEND**2) ** 2
    return result


__all__ = ["Expected", "Surrogate", "bent", "features", "targets"]
