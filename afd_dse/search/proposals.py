"""Candidates that are expected to widen the front most, found among the neighbours of good ones and anywhere."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.encoding import SampledSpace
from afd_dse.search.pareto import front
from afd_dse.search.surrogate import Expected

# Rounds in which the neighbours of what is expected best are looked at, and of how many of them.
ROUNDS = 3
PARENTS = 40
# Parameter sets drawn anywhere in each round.
ANYWHERE = 800
# So many of all that were looked at are weighed against each other.
SHORTLIST = 400


@dataclass(frozen=True, slots=True)
class Front:
    """A front, fastest first: ``speed`` per user and ``throughput`` per GPU [n]."""

    speed: FloatArray
    throughput: FloatArray

    @staticmethod
    def of(speed: FloatArray, throughput: FloatArray) -> "Front":
        """The front of points [n]."""
        rows = front(speed, throughput)
        return Front(speed[rows], throughput[rows])

    def gain(self, speed: FloatArray, throughput: FloatArray) -> FloatArray:
        """Area that each point [n] would add to what the front dominates, down to no speed and no throughput."""
        beyond = np.clip(speed - (self.speed[0] if len(self.speed) else 0.0), 0.0, None)
        slower = np.append(self.speed[1:], 0.0)
        width = np.clip(np.minimum(speed[:, None], self.speed) - slower[: len(self.speed)], 0.0, None)
        inside = (width * np.clip(throughput[:, None] - self.throughput, 0.0, None)).sum(axis=1)
        result: FloatArray = inside + beyond * throughput
        return result

    def with_point(self, speed: float, throughput: float) -> "Front":
        """The front with one point more."""
        return Front.of(np.append(self.speed, speed), np.append(self.throughput, throughput))


def proposed(
    space: SampledSpace,
    steps: IntArray,
    begin: IntArray,
    known: Callable[[IntArray], bool],
    expect: Callable[[IntArray], Expected],
    reached: Front,
    rng: np.random.Generator,
    count: int,
) -> list[IntArray]:
    """At most ``count`` parameter sets that are not ``known``, in the order of what they are expected to add.

    They are sought from ``begin`` [n, parameters] on by ``steps`` [moves, parameters]; ``reached`` is the front of what
    has been evaluated.
    """
    pool = np.zeros((0, begin.shape[1]), dtype=np.int64)
    gain, told, seen = np.zeros(0), list[Expected](), set[bytes]()
    parents = begin
    for _ in range(ROUNDS):
        anywhere = space.drawn(rng.integers(space.sizes, size=(ANYWHERE, len(space.sizes))), rng)
        near = space.canonical(_around(space, steps, parents))
        found = np.unique(np.concatenate([near, anywhere]), axis=0)
        new = [n for n, row in enumerate(found) if row.tobytes() not in seen and not known(row)]
        fresh = found[new][space.fits(found[new])]
        if not len(fresh):
            break
        seen.update(row.tobytes() for row in fresh)
        told.append(expect(fresh))
        pool = np.concatenate([pool, fresh])
        gain = np.append(gain, reached.gain(told[-1].speed, told[-1].throughput) * told[-1].chance)
        parents = pool[np.argsort(-gain, kind="stable")[:PARENTS]]
    if not told:
        return []
    short = np.argsort(-gain, kind="stable")[:SHORTLIST]
    return [pool[short[n]] for n in one_by_one(Expected.join(told).at(short), reached, count)]


def _around(space: SampledSpace, steps: IntArray, rows: IntArray) -> IntArray:
    """All neighbours of parameter sets ``rows`` [n, parameters] inside the space."""
    unordered = np.array([parameter.unordered for parameter in space.parameters])
    reached = (rows[:, None, :] + steps).reshape(-1, rows.shape[1])
    reached = np.where(unordered, reached % space.sizes, reached)
    inside: IntArray = reached[((reached >= 0) & (reached < space.sizes)).all(axis=1)]
    return inside


def one_by_one(expected: Expected, reached: Front, count: int) -> list[int]:
    """Which add most, each beside those chosen before as if they turned out as expected."""
    chosen: list[int] = []
    while len(chosen) < min(count, len(expected.speed)):
        gain = reached.gain(expected.speed, expected.throughput) * expected.chance
        gain[chosen] = 0.0
        best = int(gain.argmax())
        if gain[best] <= 0.0:
            break
        chosen.append(best)
        reached = reached.with_point(float(expected.speed[best]), float(expected.throughput[best]))
    return chosen


__all__ = ["Front", "one_by_one", "proposed"]
