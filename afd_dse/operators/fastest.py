"""The fastest of several kernels, each known from one measured curve or from a blend of neighbouring ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.operators.interpolation import CurveSet
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import ranges


@dataclass(frozen=True, slots=True)
class Kernel:
    """Curves of one kernel to blend: ids, weights (sum 1) and what of the curve's axis answers one unit asked for.

    ``at_point``: the curves are those of the very shape that is asked for, so that their points are measured answers.
    """

    curves: tuple[int, ...]
    weights: tuple[float, ...]
    scale: tuple[float, ...]
    at_point: bool


def curve_of(curve: int, *, at_point: bool) -> Kernel:
    """A kernel that one curve answers for."""
    return Kernel((curve,), (1.0,), (1.0,), at_point)


def fastest(
    curves: CurveSet, shapes: Sequence[Sequence[Kernel]], shape: IntArray, x: FloatArray
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Efficiency of the fastest kernel at ``x`` [q], and whether it is a measured point.

    ``shapes`` lists the kernels of every shape, ``shape`` [q] which one each row has. A blend is the geometric mean of
    its curves. All rows, kernels and curves are looked up at once.
    """
    kernels = [kernel for some in shapes for kernel in some]
    row, kernel = _members(np.array([len(some) for some in shapes]), shape)
    parts = np.array([len(one.curves) for one in kernels])
    answer, part = _members(parts, kernel)
    curve, weight, scale = (
        np.array([value for one in kernels for value in getattr(one, name)])[part]
        for name in ("curves", "weights", "scale")
    )
    found = curves(curve.astype(np.int64), x[row[answer]] * scale)
    first = np.flatnonzero(np.diff(answer, prepend=-1))
    value = found.value[first]
    blended = parts[kernel] > 1
    if blended.any():
        mean = np.exp(np.add.reduceat(weight * np.log(found.value), first))
        value = np.where(blended, mean, value)
    hit = np.logical_and.reduceat(found.exact, first)
    hit &= np.array([one.at_point for one in kernels])[kernel]
    first = np.flatnonzero(np.diff(row, prepend=-1))
    best = np.maximum.reduceat(value, first)
    # Of equally fast kernels the first one answers.
    place = np.where(value == best[row], np.arange(len(value)), len(value))
    return best, hit[np.minimum.reduceat(place, first)]


def _members(counts: IntArray, which: IntArray) -> tuple[IntArray, IntArray]:
    """Place in ``which`` and number of each member of the groups ``which`` [n]; group g has ``counts[g]`` members."""
    member, place = ranges((np.cumsum(counts) - counts)[which], counts[which])
    return place, member
