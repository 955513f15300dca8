"""How time and memory of a whole answer grow with the cluster, the number of pools and the number of models."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.figures import Figure, Options, Target
from benchmarks.jobs import MODELS, POOLS, deepseek, fleet
from benchmarks.process import NotMeasuredError, probe

GROUP = "growth"
GPUS = (8, 64, 256, 1024, 4096, 16384)
FEW_GPUS = (8, 128, 1024)
# Near-linear: with twice the size, at most 2^1.1 times the seconds.
EXPONENT = 1.1
# Jobs of several models together take no longer than one by one.
TOGETHER = 1.0
# GPUs of all pools together where pools are counted.
GPUS_OF_POOLS = 128


@dataclass(frozen=True, slots=True)
class Curve:
    """What was measured at each size that ended in time; ``gave_up`` says at which size one did not, and why.

    ``apart_s`` is the processor time of the jobs of the largest size, each in a process of its own.
    """

    axis: str
    sizes: tuple[int, ...]
    points: tuple[Mapping[str, Any], ...]
    gave_up: str
    apart_s: float | None = None

    def exponent(self, key: str) -> float | None:
        """Slope of log ``key`` over log size, least squares over the larger half of the sizes; None of one point.

        The smaller sizes hold what does not grow (tables read, kernels looked up) and would flatter it.
        """
        start = max(min(len(self.sizes) // 2, len(self.sizes) - 2), 0)
        sizes = np.array(self.sizes[start:], dtype=np.float64)
        values = np.array([point[key] for point in self.points[start:]], dtype=np.float64)
        if len(sizes) < 2:
            return None
        return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        keys = ("wall_s", "cpu_s", "peak_bytes", "considered", "evaluated")
        return {
            "axis": self.axis,
            "points": [
                {"size": size} | {key: point[key] for key in keys}
                for size, point in zip(self.sizes, self.points, strict=True)
            ],
            "exponents": {key: self.exponent(key) for key in ("cpu_s", "peak_bytes")},
            "gave_up": self.gave_up,
        }


def curves(space: str, gpus: Sequence[int], pools: int, models: int, limit_s: float) -> Iterator[Curve]:
    """Curves over ``gpus``, over 1 to ``pools`` kinds of GPUs, and over jobs for 1 to ``models`` models."""
    yield curve("GPUs", {n: [deepseek(gpus=n, space=space)] for n in gpus}, limit_s)
    by_pools = {n: [deepseek(gpus=GPUS_OF_POOLS // n * n, pools=n, space=space)] for n in range(1, pools + 1)}
    yield curve("pools", by_pools, limit_s)
    yield of_models(space, models, limit_s)


def of_models(space: str, models: int, limit_s: float) -> Curve:
    """The curve over jobs for 1 to ``models`` models, and what the jobs take apart from each other."""
    found = curve("models", {n: fleet(n, space) for n in range(1, models + 1)}, limit_s)
    if not found.sizes:
        return found
    # The first job alone is the curve's first point.
    others = fleet(found.sizes[-1], space)[1:]
    alone = [probe("answers", limit_s=limit_s, jobs=[job])["cpu_s"] for job in others]
    return replace(found, apart_s=found.points[0]["cpu_s"] + sum(alone))


def curve(axis: str, jobs: Mapping[int, Sequence[Mapping[str, Any]]], limit_s: float) -> Curve:
    """One process a size, ascending, until one fails or takes longer than ``limit_s``: larger ones would as well."""
    sizes, points, gave_up = [], [], ""
    for size, asked in jobs.items():
        try:
            points.append(probe("answers", limit_s=limit_s, jobs=asked))
            sizes.append(size)
        except NotMeasuredError as error:
            gave_up = f"{size:,} {axis}: {error}"
            break
    return Curve(axis, tuple(sizes), tuple(points), gave_up)


def figures(options: Options) -> Iterator[Figure]:
    """Exponents of time and memory over each axis, and the largest cluster's answer."""
    few = options.quick
    sizes = FEW_GPUS if few else GPUS
    for found in curves(
        options.space, sizes, 2 if few else len(POOLS), 2 if few else len(MODELS), options.limit_s
    ):
        yield from of_curve(found)


def of_curve(found: Curve) -> Iterator[Figure]:
    """Figures of one curve: exponents, and seconds and memory at its largest size."""
    if not found.points:
        yield Figure(f"{GROUP} over {found.axis}", "exponent of time", None, "", None, found.gave_up)
        return
    first, last = found.points[0], found.points[-1]
    group, facts = f"{GROUP} over {found.axis}", {"curve": found.document()}
    # Pools multiply the space itself, and models differ in size: an exponent is asked for over GPUs only.
    target = Target("at most", EXPONENT) if found.axis == "GPUs" else None
    seconds = f"{first['cpu_s']:.3g} s to {last['cpu_s']:.3g} s of processor time"
    note = f"{found.sizes[0]:,} to {found.sizes[-1]:,}: {seconds}"
    if found.gave_up:
        note += f"; {found.gave_up}"
    yield Figure(group, "exponent of time", found.exponent("cpu_s"), "", target, note, facts)
    if found.apart_s is not None:
        ratio = last["cpu_s"] / found.apart_s
        note = f"{last['cpu_s']:.3g} s together, {found.apart_s:.3g} s of processor time one by one"
        yield Figure(group, "time over that of each alone", ratio, "×", Target("at most", TOGETHER), note)
    peak, least = last["peak_bytes"] / 2**30, first["peak_bytes"] / 2**30
    note = f"{least:.2f} GiB to {peak:.2f} GiB"
    yield Figure(group, "exponent of memory", found.exponent("peak_bytes"), "", target, note)
    note = f"seconds after import; {last['considered']:.3g} deployments considered, {last['evaluated']:,} evaluated"
    yield Figure(group, f"whole answer, {found.sizes[-1]:,} {found.axis}", last["wall_s"], "s", None, note)
