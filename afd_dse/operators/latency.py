"""What the operator database answers with: seconds, and how far each one can be trusted."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
ProvenanceArray = npt.NDArray[np.int8]


class Provenance(IntEnum):
    """Where a latency comes from, best first: a larger value is a weaker claim."""

    MEASURED = 0
    INTERPOLATED = 1
    BORROWED = 2
    SPEED_OF_LIGHT = 3


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of one operator over a block of shapes.

    ``seconds`` and ``provenance`` have the same shape; ``provenance`` holds :class:`Provenance` values.
    """

    seconds: FloatArray
    provenance: ProvenanceArray

    def faster(self, other: "Latency") -> "Latency":
        """Row by row the faster of two."""
        mine = self.seconds <= other.seconds
        return Latency(
            np.where(mine, self.seconds, other.seconds), np.where(mine, self.provenance, other.provenance)
        )
