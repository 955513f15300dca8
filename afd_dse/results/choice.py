"""The answers of all combinations of data types as one: best, front, rankings and table over all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.results.datatypes import Combination, combinations, suffix
from afd_dse.results.deployment import Deployment
from afd_dse.results.proof import proof_from, proof_of, proof_of_all
from afd_dse.results.result import (
    COMPARED,
    FEASIBLE,
    RANKED,
    RANKED_PER_MODE,
    Result,
    launch_warning,
    why_behind,
)
from afd_dse.results.words import types_words
from afd_dse.search.objective import Objective, order
from afd_dse.search.pareto import front
from afd_dse.search.proof import of_all
from afd_dse.spec.job import Job

ACCURACY = (
    "speed and memory of the listed data types are compared, not the answers of a model quantised so: judge these "
    "before you choose"
)
_INFINITE = float("inf")


def over_types(job: Job, answer: Callable[[Job], Result]) -> Result:
    """The answer of ``job``, which lists data types, from that of every combination that can run.

    Each combination is searched by itself, so the whole is exact where each one is. Every deployment says its types, in
    ``quantization`` and in its label. Raises :class:`InputError` where no combination can run.
    """
    entries = combinations(job)
    answers = [_labelled(answer(entry.job), entry) if entry.scenario else None for entry in entries]
    searched = [(entry, result) for entry, result in zip(entries, answers, strict=True) if result is not None]
    results = [result for _, result in searched]
    objective = job.search.objective
    best = _first(objective, [result.best for result in results])
    misses = [] if best is not None else _misses(results)
    shown = best if best is not None else next(iter(misses[-1:]), None)
    winner = next((r for r in results if any(d is shown for d in (r.best, *r.nearest_misses))), results[0])
    runnable = _first(objective, [result.document["best_launchable"] for result in results])
    modes = [_mode(objective, number, results, best) for number in range(len(winner.modes))]
    ranked = _ranked(objective, [result.ranking for result in results], RANKED)
    proof = proof_of_all(
        [entry["name"] for entry in modes],
        [proof_from(entry["proof"]) for entry in modes],
        [*_combinations(entries, searched)],
    )
    document = {
        **winner.document,
        "job": job.model_dump(mode="json"),
        "best": best,
        "best_per_mode": {entry["name"]: entry.pop("best") for entry in modes},
        "pareto": _front([entry for result in results for entry in result.pareto]),
        "ranking": ranked,
        "modes": modes,
        "nearest_misses": misses,
        "considered": sum(result.document["considered"] for result in results),
        "evaluated": sum(result.document["evaluated"] for result in results),
        "search_seconds": sum(result.document["search_seconds"] for result in results),
        "method": " + ".join(sorted({name for r in results for name in r.document["method"].split(" + ")})),
        "explanation": proof["words"],
        "proof": proof,
        "best_launchable": runnable,
        "data_types": list(_types(entries, answers)),
        "warnings": [*winner.warnings, *launch_warning(job.framework, best, runnable), ACCURACY],
    }
    if any("confirmation" in result.document for result in results):
        document["confirmation"] = _confirmation(searched, winner)
    return Result(document, _table(objective, results))


def _labelled(result: Result, entry: Combination) -> Result:
    """The result with its types in every label, and without what it says of launching, which others may change."""
    end = suffix(entry.types)

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(item) for item in value]
        if isinstance(value, dict) and isinstance(value.get("label"), str) and "cells" not in value:
            return value | {"label": value["label"] + end}
        return value

    document = dict(result.document)
    launch = launch_warning(entry.job.framework, document["best"], document["best_launchable"])
    document["warnings"] = [text for text in document["warnings"] if text not in launch]
    for key in ("best", "pareto", "ranking", "nearest_misses", "best_launchable"):
        document[key] = named(document[key])
    document["best_per_mode"] = {mode: named(d) for mode, d in document["best_per_mode"].items()}
    document["modes"] = [
        mode | {key: named(mode[key]) for key in ("nearest", "ranking", "front")}
        for mode in document["modes"]
    ]
    if document["provenance"]["of"] is not None:
        document["provenance"] = document["provenance"] | {"of": document["provenance"]["of"] + end}
    table = result.candidates
    return Result(document, table.assign(label=table["label"] + end) if len(table) else table)


def _order(objective: Objective, deployments: Sequence[Mapping[str, Any]]) -> IntArray:
    """Positions of feasible deployments from best to worst, ties as in a search."""
    metric, _, less = COMPARED[objective]

    def column(name: str) -> FloatArray:
        values = [_INFINITE if d[name] is None else d[name] for d in deployments]
        return np.array(values, dtype=np.float64)

    scores = column(metric) * (-1.0 if less else 1.0)
    groups = np.array([len(d["groups"]) for d in deployments], dtype=np.float64)
    return order({"ttft_s": column("ttft_ms"), "gpus": column("gpus")}, scores, groups)


def _first(objective: Objective, deployments: Sequence[Deployment | None]) -> Deployment | None:
    found = [deployment for deployment in deployments if deployment is not None]
    return found[int(_order(objective, found)[0])] if found else None


def _ranked(objective: Objective, rankings: Sequence[list[Deployment]], limit: int) -> list[Deployment]:
    entries = [entry for ranking in rankings for entry in ranking]
    places = _order(objective, entries)[:limit] if entries else ()
    return [entries[int(row)] | {"rank": rank} for rank, row in enumerate(places, start=1)]


def _front(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points that no other beats in speed for a user and throughput per GPU, fastest first."""
    x, y = (
        np.array([point[name] for point in points], dtype=np.float64)
        for name in ("tokens_per_s_per_user", "tokens_per_s_per_gpu")
    )
    return [points[int(row)] for row in front(x, y)]


def _mode(
    objective: Objective, number: int, results: Sequence[Result], winner: Deployment | None
) -> dict[str, Any]:
    """The entry of one mode over all combinations, with its ``best``."""
    entries = [result.modes[number] for result in results]
    name = entries[0]["name"]
    bests = [result.best_per_mode[name] for result in results]
    feasible = [d for d in bests if d["feasible"]]
    if feasible:
        best = feasible[int(_order(objective, feasible)[0])]
        entry = entries[next(i for i, d in enumerate(bests) if d is best)]
        entry = entry | {"status": FEASIBLE, "reason": why_behind(best, winner, objective)}
    else:
        place = max(range(len(bests)), key=lambda i: _closeness(bests[i]))
        best, entry = bests[place], entries[place]
    return entry | {
        "considered": sum(one["considered"] for one in entries),
        "evaluated": sum(one["evaluated"] for one in entries),
        "proof": proof_of(of_all([proof_from(one["proof"]) for one in entries])),
        "method": " + ".join(sorted({one["method"] for one in entries})),
        "note": "; ".join(dict.fromkeys(one["note"] for one in entries if one["note"])),
        "ranking": _ranked(objective, [one["ranking"] for one in entries], RANKED_PER_MODE),
        "front": _front([point for one in entries for point in one["front"]]),
        "best": best,
    }


def _closeness(deployment: Mapping[str, Any]) -> float:
    """How near to feasible a deployment is: its least slack; nothing is farther than no layout at all."""
    return min(deployment["slack"].values()) if deployment.get("slack") else -_INFINITE


def _misses(results: Sequence[Result]) -> list[Deployment]:
    """By constraint the nearest miss of all combinations, the one that breaks least in all last."""
    closest = max(
        (result.nearest_misses[-1] for result in results if result.nearest_misses),
        key=_closeness,
        default=None,
    )
    if closest is None:
        return []
    found: dict[str, Deployment] = {}
    for miss in (miss for result in results for miss in result.nearest_misses):
        known = found.get(miss["constraint"])
        if known is None or _closeness(miss) > _closeness(known):
            found[miss["constraint"]] = miss
    return [*(miss for miss in found.values() if miss is not closest), closest]


def _combinations(
    entries: Sequence[Combination], searched: Sequence[tuple[Combination, Result]]
) -> Iterator[str]:
    """How many combinations of data types that is said of, and how many were left out."""
    yield f"over {len(searched)} combinations of data types"
    if len(entries) > len(searched):
        yield f"{len(entries) - len(searched)} combinations left out"


def _types(entries: Sequence[Combination], answers: Sequence[Result | None]) -> Iterator[dict[str, Any]]:
    """What became of every combination: searched with what best, or left out for what reason."""
    for entry, result in zip(entries, answers, strict=True):
        row: dict[str, Any] = {"quantization": dict(entry.types), "words": types_words(entry.types)}
        if result is None:
            yield row | {
                "status": "left_out",
                "reason": entry.reason,
                "considered": 0,
                "evaluated": 0,
                "best": None,
            }
            continue
        best = result.best
        misses = result.nearest_misses
        yield row | {
            "status": "feasible" if best else "infeasible",
            "reason": None if best else (misses[-1]["reason"] if misses else "no layout fits"),
            "considered": result.document["considered"],
            "evaluated": result.document["evaluated"],
            "best": best,
        }


def _confirmation(searched: Sequence[tuple[Combination, Result]], winner: Result) -> dict[str, Any]:
    simulated = [
        row | {"quantization": dict(entry.types)}
        for entry, result in searched
        for row in result.document.get("confirmation", {}).get("simulated", [])
    ]
    confirmed = bool(winner.document.get("confirmation", {}).get("confirmed"))
    return {"confirmed": confirmed, "simulated": simulated}


def _table(objective: Objective, results: Sequence[Result]) -> pd.DataFrame:
    """The candidates of all combinations; ``rank`` and ``pareto`` count over all of them."""
    tables = [result.candidates for result in results if len(result.candidates)]
    if not tables:
        return pd.DataFrame()
    table = pd.concat(tables, ignore_index=True)
    rows = np.flatnonzero(table["feasible"].to_numpy())
    feasible = table.iloc[rows]
    metric, _, less = COMPARED[objective]
    scores = feasible[metric].to_numpy(np.float64) * (-1.0 if less else 1.0)
    columns = {
        "ttft_s": feasible["ttft_ms"].to_numpy(np.float64),
        "gpus": feasible["gpus"].to_numpy(np.float64),
    }
    ranked = rows[order(columns, scores, feasible["rank"].to_numpy(np.float64))]
    speed, throughput = (
        feasible[name].to_numpy(np.float64) for name in ("tokens_per_s_per_user", "tokens_per_s_per_gpu")
    )
    rank, place = np.zeros(len(table), dtype=np.int64), np.zeros(len(table), dtype=np.int64)
    rank[ranked] = np.arange(1, len(ranked) + 1)
    leading = rows[front(speed, throughput)]
    place[leading] = np.arange(1, len(leading) + 1)
    return table.assign(rank=rank, pareto=place)
