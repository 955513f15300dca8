"""How long a whole answer takes after import, how much memory, and for how many deployments it stands."""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.figures import Figure, Options, Target, busy
from benchmarks.jobs import deepseek
from benchmarks.process import NotMeasuredError, probe

GROUP = "whole answer"
MEMORY_GIB = 4.0


def figures(options: Options) -> Iterator[Figure]:
    """The default job, and unless quick the wide space on one pool and on two different ones."""
    if options.quick:
        yield from _answer("quick space", deepseek(space="quick"), None, options, 1)
        return
    yield from _answer("default space", deepseek(), 3.0, options, options.times(3))
    yield from _answer("wide space", deepseek(space="wide"), 30.0, options, options.times(1))
    two = deepseek(space="wide", pools=2)
    yield from _answer("wide space, two kinds of GPUs", two, 30.0, options, options.times(1))


def _answer(
    name: str, job: Mapping[str, Any], seconds: float | None, options: Options, times: int
) -> Iterator[Figure]:
    target = None if seconds is None else Target("at most", seconds)
    group = f"{GROUP}: {name}"
    try:
        runs = [probe("answers", limit_s=options.limit_s, jobs=[job]) for _ in range(times)]
    except NotMeasuredError as error:
        yield Figure(group, "seconds after import", None, "s", target, str(error))
        return
    last = runs[-1]
    wall, cpu = (median(found[key] for found in runs) for key in ("wall_s", "cpu_s"))
    facts = {"job": job, "runs": runs}
    yield Figure(group, "seconds after import", wall, "s", target, busy(wall, cpu), facts)
    peak = max(found["peak_bytes"] for found in runs) / 2**30
    yield Figure(group, "peak memory", peak, "GiB", Target("at most", MEMORY_GIB))
    best = last["answers"][0]["best"]
    note = f"best {best['mode']} {best['label']}" if best else "nothing feasible"
    yield Figure(group, "deployments considered", last["considered"], "", None, note)
    methods = last["answers"][0]["methods"]
    sampled = [mode for mode, method in methods.items() if method == "optuna"]
    note = f"sampled: {', '.join(sampled)}" if sampled else f"all {len(methods)} modes enumerated"
    yield Figure(group, "deployments evaluated", last["evaluated"], "", None, note)
