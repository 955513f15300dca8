"""What a plan chooses from: deployments, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Supply:
    """Kinds of hardware, columns [hardware]: GPUs that can be had, prices, power, how starts are paid."""

    names: tuple[str, ...]
    available: IntArray
    usd_per_gpu_hour: FloatArray
    power_w: FloatArray
    reserved: npt.NDArray[np.bool_]
    start_hours: FloatArray
    start_usd_per_gpu: FloatArray
    domain_gpus: IntArray


@dataclass(frozen=True, slots=True)
class Options:
    """Deployments that can run in any number of copies, columns [options].

    ``of_class`` and ``hardware`` by number; ``requests_per_s`` and ``tokens_per_s`` that a copy serves within its
    class's SLO; ``gpus`` of a copy; ``deployments`` their documents.
    """

    of_class: IntArray
    hardware: IntArray
    requests_per_s: FloatArray
    tokens_per_s: FloatArray
    gpus: IntArray
    deployments: tuple[dict[str, Any], ...]

    def __len__(self) -> int:
        return len(self.of_class)

    def take(self, rows: Sequence[int]) -> "Options":
        """The options at ``rows``."""
        at = np.array(rows, dtype=np.int64)
        return Options(
            self.of_class[at],
            self.hardware[at],
            self.requests_per_s[at],
            self.tokens_per_s[at],
            self.gpus[at],
            tuple(self.deployments[row] for row in rows),
        )


def useful(options: Options) -> Options:
    """The options that copies of no other one replace: as many requests on no more GPUs of the same hardware.

    Small copies are never worse than a large one that they replace: each starts, stops and fails alone.
    """
    kept: list[int] = []
    # Small ones first, of equal ones the first: what is kept can only be replaced by what has been kept before.
    for row in map(int, np.lexsort((-options.requests_per_s, options.gpus))):
        replaced = any(
            options.of_class[other] == options.of_class[row]
            and options.hardware[other] == options.hardware[row]
            and (options.gpus[row] // options.gpus[other]) * options.requests_per_s[other]
            >= options.requests_per_s[row]
            for other in kept
        )
        if not replaced:
            kept.append(row)
    return options.take(sorted(kept))


def cheapest(options: Options, most: int) -> Options:
    """Of every class and hardware the ``most`` options with the fewest GPUs a request, and the smallest one."""
    kept: list[int] = []
    for k in np.unique(options.of_class):
        for h in np.unique(options.hardware):
            mine = np.flatnonzero((options.of_class == k) & (options.hardware == h))
            by_cost = mine[np.argsort(options.gpus[mine] / options.requests_per_s[mine], kind="stable")]
            smallest = mine[np.argsort(options.gpus[mine], kind="stable")]
            kept += [int(row) for row in {*by_cost[:most].tolist(), *smallest[:1].tolist()}]
    return options.take(sorted(kept))


def lost_rate(options: Options, supply: Supply, redundancy: str) -> FloatArray:
    """Requests/s that one failure takes away, if it hits copies of this option [options].

    ``deployment``: one copy. ``domain``: as many copies as fill a scale-up domain; a copy that spans several is lost
    whole. A domain counts as full also where fewer copies run, which errs on the safe side.
    """
    if redundancy == "none":
        return np.zeros(len(options))
    if redundancy == "deployment":
        return options.requests_per_s.copy()
    copies = np.maximum(supply.domain_gpus[options.hardware] // options.gpus, 1)
    result: FloatArray = copies * options.requests_per_s
    return result
