"""A function on a grid, read between its points: what makes a step's time cheap enough for an event loop."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from afd_dse.operators.latency import FloatArray


class Table:
    """Multilinear interpolation of ``values`` [len(axis), …] on ascending ``axes``.

    Held below an axis, continued along the last segment above it; an axis of one point is constant. Points come one
    by one, each depending on the one before, so this is plain Python: an array library costs 20 times as much a call.
    """

    __slots__ = ("_axes", "_flat", "_offsets", "_strides")

    def __init__(self, axes: Sequence[Sequence[float]], values: FloatArray) -> None:
        if values.shape != tuple(len(axis) for axis in axes):
            raise ValueError(
                f"values of shape {values.shape} on axes of {[len(axis) for axis in axes]} points"
            )
        used = [number for number, axis in enumerate(axes) if len(axis) > 1]
        strides = [int(np.prod(values.shape[number + 1 :])) for number in range(values.ndim)]
        self._axes = [(number, [float(x) for x in axes[number]]) for number in used]
        self._strides = [strides[number] for number in used]
        self._flat: list[float] = values.ravel().tolist()
        offsets = [0]
        for stride in self._strides:
            offsets = [offset + step for offset in offsets for step in (0, stride)]
        self._offsets = offsets

    def __call__(self, *point: float) -> float:
        """The value at ``point``, one number an axis."""
        base, weights = 0, []
        for (number, axis), stride in zip(self._axes, self._strides, strict=True):
            x = point[number]
            low = bisect_right(axis, x) - 1
            if low < 0:
                weights.append(0.0)
                continue
            low = min(low, len(axis) - 2)
            base += low * stride
            weights.append((x - axis[low]) / (axis[low + 1] - axis[low]))
        flat = self._flat
        corners = [flat[base + offset] for offset in self._offsets]
        for weight in reversed(weights):
            corners = [
                low + (high - low) * weight for low, high in zip(corners[::2], corners[1::2], strict=True)
            ]
        return corners[0]
