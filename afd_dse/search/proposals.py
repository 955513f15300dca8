"""Candidates that are expected to widen the front most, found among the neighbours of good ones and anywhere."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.cost.columns import Candidates
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import distinct_rows, row_codes
from afd_dse.search.encoding import SampledSpace
from afd_dse.search.pareto import front
from afd_dse.search.surrogate import CHANCES, Expected, Surrogate, features

# Rounds in which the neighbours of what is expected best are looked at, and of how many of them.
ROUNDS = 3
PARENTS = 40
# Parameter sets drawn anywhere, beside the neighbours of the first round.
ANYWHERE = 800
# So many of all that were looked at are weighed against each other.
SHORTLIST = 400
_TINY = 1e-12


# Candidates whose gain is looked at anew at once.
AT_ONCE = 32
# What candidates [n] of which something is predicted would reach: speed per user and throughput per GPU, 0 and 0 where
# it would break a limit.
Reach = Callable[[Candidates, FloatArray], tuple[FloatArray, FloatArray]]


@dataclass(frozen=True, slots=True)
class Front:
    """A front, fastest first: ``speed`` per user and ``throughput`` per GPU [n].

    What is slower than ``slowest`` is worth nothing.
    """

    speed: FloatArray
    throughput: FloatArray
    slowest: float

    @staticmethod
    def of(speed: FloatArray, throughput: FloatArray, slowest: float) -> "Front":
        """The front of points [n]."""
        rows = front(speed, throughput)
        return Front(speed[rows], throughput[rows], slowest)

    def gain(self, speed: FloatArray, throughput: FloatArray) -> FloatArray:
        """Area that each point [n] would add to what the front dominates, from the slowest speed on."""
        # The front as a staircase: from each edge to the next faster one it is so high, and has so much area before.
        edges, height = np.append(self.slowest, self.speed[::-1]), np.append(self.throughput[::-1], 0.0)
        before = np.append(0.0, np.cumsum(np.diff(edges) * height[:-1]))
        # A point reaches above the front from the first step on that is no higher.
        step = np.searchsorted(-height, -throughput)
        start = edges[step]
        reached = np.maximum(speed, start)
        last = np.searchsorted(edges, reached, side="right") - 1
        below = before[last] - before[step] + (reached - edges[last]) * height[last]
        result: FloatArray = np.maximum(throughput * (reached - start) - below, 0.0)
        return result

    def expected_gain(self, expected: Expected, chances: Candidates, reach: Reach) -> FloatArray:
        """Area that candidates [n] are expected to add, over all that they may turn out as.

        ``chances`` are the candidates once for each value of :data:`CHANCES`, one block after the other.
        """
        values, weights = CHANCES
        tried = np.exp(expected.mean + values[:, None] * expected.doubt)
        gain = self.gain(*reach(chances, tried.reshape(-1))).reshape(tried.shape)
        result: FloatArray = weights @ gain * expected.chance
        return result

    def with_point(self, speed: float, throughput: float) -> "Front":
        """The front with one point more."""
        return Front.of(np.append(self.speed, speed), np.append(self.throughput, throughput), self.slowest)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What to expect of candidates on ``pools`` pools, beside the front ``reached`` by what has been evaluated."""

    surrogate: Surrogate
    reach: Reach
    reached: Front
    pools: int

    def gain(self, candidates: Candidates) -> FloatArray:
        """Area that each candidate is expected to add to the front [n]."""
        expected = self.surrogate.expected(features(candidates, self.pools))
        return self.reached.expected_gain(expected, _at_all_chances(candidates), self.reach)

    def best(self, candidates: Candidates, count: int) -> list[int]:
        """Which add most, at most ``count``, each beside those chosen before as if they turned out as expected.

        What one of them turns out as tells of others, so that their doubt is less.
        """
        expected, doubts = self.surrogate.together(features(candidates, self.pools))
        scale = expected.doubt / np.sqrt(np.maximum(doubts.left, _TINY))
        reached, chosen = self.reached, list[int]()
        gain, known = np.full(len(candidates), np.inf), np.zeros(len(candidates), dtype=bool)
        while len(chosen) < min(count, len(candidates)):
            doubt = scale * np.sqrt(doubts.left)
            # Beside more others a candidate adds no more: what it added before is a bound, and few are looked at anew.
            while not known[best := int(gain.argmax())]:
                rows = np.argsort(-gain, kind="stable")[: AT_ONCE if np.isfinite(gain[best]) else None]
                left = Expected(expected.mean[rows], doubt[rows], expected.chance[rows])
                gain[rows] = reached.expected_gain(left, _at_all_chances(candidates.take(rows)), self.reach)
                gain[chosen], known[rows] = 0.0, True
            if gain[best] <= 0.0:
                break
            chosen.append(best)
            known[:] = False
            one = candidates.take(np.array([best]))
            speed, throughput = self.reach(one, np.exp(expected.mean[best : best + 1]))
            if speed[0] > reached.slowest:
                reached = reached.with_point(float(speed[0]), float(throughput[0]))
            doubts.learn(best)
        return chosen


def proposed(
    space: SampledSpace,
    steps: IntArray,
    begin: IntArray,
    known: IntArray,
    outlook: Outlook,
    rng: np.random.Generator,
    count: int,
) -> list[IntArray]:
    """At most ``count`` parameter sets that are not ``known`` [k, parameters], in the order of what they should add.

    They are sought from ``begin`` [n, parameters] on by ``steps`` [moves, parameters].
    """
    pool = np.zeros((0, begin.shape[1]), dtype=np.int64)
    gain, seen = np.zeros(0), _codes(known)
    anywhere = space.drawn(rng.integers(space.sizes, size=(ANYWHERE, len(space.sizes))), rng)
    found = np.concatenate([space.canonical(_around(space, steps, begin)), anywhere])
    for _ in range(ROUNDS):
        found = found[distinct_rows(list(found.T))[0]]
        new = found[~np.isin(_codes(found), seen)]
        fresh = new[space.fits(new)]
        if not len(fresh):
            break
        seen = np.append(seen, _codes(fresh))
        pool = np.concatenate([pool, fresh])
        gain = np.append(gain, outlook.gain(space.decode(fresh)))
        parents = pool[np.argsort(-gain, kind="stable")[:PARENTS]]
        found = space.canonical(_around(space, steps, parents))
    short = pool[np.argsort(-gain, kind="stable")[:SHORTLIST]]
    return [short[n] for n in outlook.best(space.decode(short), count)] if len(short) else []


def _codes(rows: IntArray) -> npt.NDArray[np.uint64]:
    return row_codes(rows.astype(np.float64))


def _at_all_chances(candidates: Candidates) -> Candidates:
    return candidates.take(np.tile(np.arange(len(candidates)), len(CHANCES[0])))


def _around(space: SampledSpace, steps: IntArray, rows: IntArray) -> IntArray:
    """All neighbours of parameter sets ``rows`` [n, parameters] inside the space."""
    unordered = np.array([parameter.unordered for parameter in space.parameters])
    reached = (rows[:, None, :] + steps).reshape(-1, rows.shape[1])
    reached = np.where(unordered, reached % space.sizes, reached)
    inside: IntArray = reached[((reached >= 0) & (reached < space.sizes)).all(axis=1)]
    return inside


__all__ = ["Front", "Outlook", "Reach", "proposed"]
