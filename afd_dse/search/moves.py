"""Moves from good parameter sets to likely better ones: neighbours where the front has gaps, and loads in between."""

from collections.abc import Callable

import numpy as np

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.encoding import LOAD_STEPS, SampledSpace

# Share of the moves that start anywhere on the front, rather than where the gap is large.
ANYWHERE = 0.3
# Area that counts as open beyond the point of most throughput, as share of the area that it dominates.
BEYOND = 0.05
# Changes of the load that are looked at before any is evaluated, in its own steps.
LOAD_SHIFTS = (2, 4, 8, 16, 32, 64)
# Fillings of the front evaluated at once.
FILLED_AT_ONCE = 20


def moves(space: SampledSpace) -> IntArray:
    """Differences that lead to a neighbour [moves, parameters].

    One parameter by its natural steps, or several that belong together: all groups one size up or down; a group's size
    with its TP (so that attention-DP stays); size, TP or pool with the load that each rank then holds; the way to share
    with the chunk that suits it.
    """
    index, load = space.index, space.index.get("load")
    found: list[dict[int, int]] = []
    for number, parameter in enumerate(space.parameters):
        if parameter.unordered:
            found += [{number: other} for other in range(1, parameter.size)]
        else:
            found += [{number: sign * step} for step in parameter.steps for sign in (-1, 1)]
    ending = {
        field: [n for name, n in index.items() if name.endswith(field)] for field in ("_gpus", "_tp", "_pool")
    }
    for sign in (-1, 1):
        sizes = dict.fromkeys(ending["_gpus"], sign)
        found.append(sizes)
        found += [
            {number: sign, index[tp]: sign}
            for name, number in index.items()
            if name.endswith("_gpus") and (tp := name.replace("_gpus", "_tp")) in index
        ]
        if load is not None:
            found += [{n: sign, load: change * LOAD_STEPS} for n in sizes for change in (-1, 1)]
            found += [{n: sign, load: sign * change * LOAD_STEPS} for n in ending["_tp"] for change in (1, 2)]
            found += [{n: 1, load: 2 * sign * LOAD_STEPS} for n in ending["_pool"]]
    found.append(dict.fromkeys(ending["_pool"], 1))
    if "policy" in index and "chunk" in index:
        policy, chunk = index["policy"], index["chunk"]
        shifts = {sign * size for size in (1, 2, space.parameters[chunk].size - 1) for sign in (-1, 1)}
        others = range(1, space.parameters[policy].size)
        found += [{policy: other, chunk: shift} for other in others for shift in sorted(shifts)]
    table = np.zeros((len(found), len(space.parameters)), dtype=np.int64)
    for row, changes in enumerate(found):
        for number, change in changes.items():
            table[row, number] = change
    return np.unique(table[table.any(axis=1)], axis=0)


def nearby_loads(space: SampledSpace, steps: IntArray) -> IntArray:
    """The differences ``steps`` [moves, parameters], and those to loads in between and farther away."""
    load = space.index.get("load")
    if load is None:
        return steps
    shifts = [sign * shift for shift in LOAD_SHIFTS for sign in (-1, 1)]
    more = np.zeros((len(shifts), steps.shape[1]), dtype=np.int64)
    more[:, load] = shifts
    return np.unique(np.concatenate([steps, more]), axis=0)


def neighbours(space: SampledSpace, steps: IntArray, row: IntArray) -> IntArray:
    """Canonical neighbours of one parameter set [n, parameters], itself left out."""
    unordered = np.array([parameter.unordered for parameter in space.parameters])
    reached = row + steps
    reached = np.where(unordered, reached % space.sizes, reached)
    inside = ((reached >= 0) & (reached < space.sizes)).all(axis=1)
    found = np.unique(space.canonical(reached[inside]), axis=0)
    others: IntArray = found[(found != row).any(axis=1)]
    return others


def gaps(speed: FloatArray, throughput: FloatArray) -> FloatArray:
    """Area that a front, fastest first, leaves open between each of its points and the next slower one [n]."""
    width, height = speed[:-1] - speed[1:], throughput[1:] - throughput[:-1]
    result: FloatArray = np.append(width * height, BEYOND * speed[-1:] * throughput[-1:])
    return result


def priorities(open_area: FloatArray) -> FloatArray:
    """Probability with which each point of the front is moved from: by the gaps on both of its sides."""
    area = open_area + np.append(0.0, open_area[:-1])
    total = area.sum()
    share = area / total if total > 0.0 else np.full(len(area), 1.0 / len(area))
    mixed = (1.0 - ANYWHERE) * share + ANYWHERE / len(area)
    result: FloatArray = mixed / mixed.sum()
    return result


def drawn_moves(
    front: IntArray,
    chance: FloatArray,
    around: Callable[[IntArray], IntArray],
    known: Callable[[IntArray], bool],
    rng: np.random.Generator,
    count: int,
) -> list[IntArray]:
    """Up to ``count`` neighbours that are not ``known``, of rows of ``front`` [n, parameters] drawn by ``chance``."""
    waiting: dict[int, list[IntArray]] = {}
    found: dict[bytes, IntArray] = {}
    for _ in range(10 * count):
        if len(found) == count:
            break
        origin = int(rng.choice(len(front), p=chance))
        if origin not in waiting:
            near = around(front[origin])
            waiting[origin] = list(rng.permutation(near))
        while waiting[origin]:
            row = waiting[origin].pop()
            if row.tobytes() not in found and not known(row):
                found[row.tobytes()] = row
                break
    return list(found.values())


def fillings(front: IntArray, open_area: FloatArray, load: int, step: int) -> list[IntArray]:
    """Loads that may close the gaps of a front, largest gap first: ``step`` more before it and ``step`` less behind."""
    found = []
    for number in np.argsort(-open_area, kind="stable"):
        for origin, change in ((number, step), (number + 1, -step)):
            if origin < len(front):
                row = front[origin].copy()
                row[load] += change
                found.append(row)
    return found


__all__ = [
    "FILLED_AT_ONCE",
    "drawn_moves",
    "fillings",
    "gaps",
    "moves",
    "nearby_loads",
    "neighbours",
    "priorities",
]
