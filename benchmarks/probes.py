"""What a process of its own measures: ``python -m benchmarks.probes NAME ARGUMENTS`` prints one JSON document."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.process import cpu_seconds, peak_bytes


def throughput(
    job: Mapping[str, Any], partition: str, rows: int, blocks: int, seed: int, walk: bool
) -> dict[str, Any]:
    """Seconds that the evaluator takes for each of ``blocks`` blocks of ``rows`` candidates, every one drawn anew.

    They are drawn one by one, or as a ``walk`` through the space meets them.

    A block before them is reported apart: it also reads the tables and looks up most kernels of the space.
    """
    from afd_dse import load_job
    from afd_dse.cost.evaluate import evaluate
    from afd_dse.cost.from_job import scenario_from_job
    from afd_dse.resources import keep_freed_memory
    from afd_dse.search.space import load_space
    from afd_dse.spec.cells import parse_partition
    from benchmarks.drawn import draw, swept

    keep_freed_memory()  # as a search does
    asked = load_job(job)
    scenario, space = scenario_from_job(asked), load_space(asked.search.space_path)
    cpu, wall, drawn = [], [], []
    for number in range(blocks + 1):
        take = swept if walk else draw
        block = take(scenario, space, parse_partition(partition), rows, seed + number)
        began, used = time.perf_counter(), cpu_seconds()
        found = evaluate(scenario, block)
        cpu.append(cpu_seconds() - used)
        wall.append(time.perf_counter() - began)
        drawn.append(len(block))
        assert len(found.metrics["ttft_s"]) == len(found.memory) == len(block)
        del found, block
    return {
        "rows": drawn[1:],
        "cpu_s": cpu[1:],
        "wall_s": wall[1:],
        "first": {"rows": drawn[0], "cpu_s": cpu[0], "wall_s": wall[0]},
        "peak_bytes": peak_bytes(),
    }


def documents(
    job: Mapping[str, Any], partitions: Sequence[str], rows: int, sample: int, seed: int, out: str
) -> dict[str, Any]:
    """Evaluate a block of ``rows`` candidates of each partition; write ``sample`` of each, with metrics, to ``out``."""
    import numpy as np

    from afd_dse import load_job
    from afd_dse.cost.evaluate import evaluate
    from afd_dse.cost.from_job import scenario_from_job
    from afd_dse.results.deployment import deployment_of
    from afd_dse.search.pool import Found
    from afd_dse.search.space import load_space
    from afd_dse.spec.cells import parse_partition
    from benchmarks.drawn import draw

    asked, rng = load_job(job), np.random.default_rng(seed)
    scenario, space = scenario_from_job(asked), load_space(asked.search.space_path)
    table = []
    for text in partitions:
        block = draw(scenario, space, parse_partition(text), rows, seed)
        found = Found(block, evaluate(scenario, block))
        picked = rng.choice(len(block), min(sample, len(block)), replace=False)
        table += [deployment_of(scenario, found, int(row), text) for row in picked]
    Path(out).write_text(json.dumps(table), encoding="utf-8")
    return {"documents": len(table)}


def estimates(job: Mapping[str, Any], documents: str) -> dict[str, Any]:
    """Every document of the file ``documents`` through ``afd_dse.estimate``, one at a time: the largest difference.

    Relative, over all metrics and the memory of every group; a metric that only one of both has is infinitely off.
    ``compared`` counts the numbers, ``documents`` the deployments.
    """
    import afd_dse

    asked = afd_dse.load_job(job)
    worst, where, compared = 0.0, "", 0
    table = json.loads(Path(documents).read_text(encoding="utf-8"))
    for given in table:
        alone = _numbers(afd_dse.estimate(asked, given))
        for name, value in _numbers(given).items():
            compared += 1
            off = _difference(value, alone[name])
            if off > worst:
                worst, where = off, f"{name} of {given['label']}"
    return {"largest": worst, "where": where, "compared": compared, "documents": len(table)}


def _numbers(document: Mapping[str, Any]) -> dict[str, float | None]:
    """What two evaluations of a deployment are compared in."""
    names = ("tokens_per_s_per_user", "tokens_per_s_per_gpu", "tokens_per_s", "requests_per_s", "concurrency")
    found: dict[str, float | None] = {
        name: document[name]
        for name in (
            *names,
            *(key for key in document if key.endswith("_ms")),
            "usd_per_mtok",
            "joules_per_token",
        )
    }
    for number, group in enumerate(document["groups"]):
        found |= {f"memory {number} {term}": value for term, value in group["memory_gib"].items()}
    return found


def _difference(one: float | None, other: float | None) -> float:
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    return abs(one - other) / max(abs(one), abs(other), 1e-300)


def answers(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whole answers to ``jobs``, one after the other in one process; times start when the package is imported."""
    began = time.perf_counter()
    from afd_dse import load_job, optimize

    import_s = time.perf_counter() - began
    began, used = time.perf_counter(), cpu_seconds()
    results = [optimize(load_job(job)) for job in jobs]
    wall, cpu = time.perf_counter() - began, cpu_seconds() - used
    return {
        "import_s": import_s,
        "wall_s": wall,
        "cpu_s": cpu,
        "peak_bytes": peak_bytes(),
        "considered": sum(result.document["considered"] for result in results),
        "evaluated": sum(result.document["evaluated"] for result in results),
        "answers": [_answer(result) for result in results],
    }


def _answer(result: Any) -> dict[str, Any]:
    best = result.best
    names = ("mode", "label", "gpus", "tokens_per_s_per_gpu", "tokens_per_s_per_user", "ttft_ms", "tpot_ms")
    return {
        "best": None if best is None else {name: best[name] for name in names},
        "best_per_mode": {
            mode: found["tokens_per_s_per_gpu"]
            for mode, found in result.best_per_mode.items()
            if found["feasible"]
        },
        "methods": {mode["name"]: mode["method"] for mode in result.modes},
        "front": len(result.pareto),
    }


PROBES: Mapping[str, Callable[..., dict[str, Any]]] = {
    probe.__name__: probe for probe in (throughput, documents, estimates, answers)
}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]](**json.loads(sys.argv[2]))))
