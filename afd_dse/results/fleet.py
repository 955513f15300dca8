"""The answer for a fleet as a document: which GPUs each model gets, and what it runs there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

import afd_dse
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.planning.split import NOTHING, Choices, Cluster, Split, fewest, growth, weighted
from afd_dse.results.datatypes import narrowed
from afd_dse.results.deployment import Deployment
from afd_dse.results.result import Result, build_result
from afd_dse.results.stored import deployment_at, found_of
from afd_dse.results.table import GPUS_OF, TYPE_COLUMNS
from afd_dse.results.words import count, number, percent
from afd_dse.search.pool import Found, ranking
from afd_dse.search.proof import enumerated
from afd_dse.search.run import ModeOutcome, SearchOutcome
from afd_dse.search.stair_steps import largest_of_each, steps
from afd_dse.spec.cells import parse_partition
from afd_dse.spec.fleet import FleetFile, FleetModel
from afd_dse.spec.job import Job

STEP = "step"
"""Column that tells which rows are steps among all modes."""


@dataclass(frozen=True)
class Stairs:
    """What is known of one model on the whole cluster: ``table`` has one row a step of any mode.

    ``facts``: modes with partition, size of their space and what was evaluated; explanation; seconds; and, where there
    is no step, the nearest miss.
    """

    table: pd.DataFrame
    facts: Mapping[str, Any]

    @property
    def steps(self) -> pd.DataFrame:
        """The steps among all modes, ascending in rate."""
        if not len(self.table):
            return self.table
        return self.table[self.table[STEP]].sort_values("requests_per_s", ignore_index=True)


@dataclass(frozen=True)
class _Asked:
    """A fleet as arrays over its models and pools."""

    file: FleetFile
    stairs: Sequence[Stairs]
    choices: Choices
    cluster: Cluster
    row: IntArray
    demand: FloatArray

    @property
    def all_have_demand(self) -> bool:
        return bool((self.demand > 0.0).all())


def with_steps(table: pd.DataFrame) -> pd.DataFrame:
    """A table of candidates with the column :data:`STEP`; of equal ones that with the lower TTFT, then the first."""
    gpus = table[[name for name in table.columns if name.startswith(GPUS_OF)]].to_numpy(np.float64)
    order = np.argsort(np.round(table["ttft_ms"].to_numpy(np.float64), 6), kind="stable")
    rate = table["requests_per_s"].to_numpy(np.float64)
    marked = np.zeros(len(table), dtype=bool)
    marked[order[steps(gpus[order], rate[order])]] = True
    return table.assign(**{STEP: marked})


def fleet_document(file: FleetFile, stairs: Sequence[Stairs]) -> dict[str, Any]:
    """Split the cluster of ``file`` among its models by their staircases, one each, in the order of the file."""
    asked = _asked(file, stairs)
    grown, best_effort = (
        growth(asked.choices, asked.cluster, asked.demand) if asked.all_have_demand else (None, None)
    )
    split = _split(asked, best_effort)
    feasible = split is not None and (file.objective != "growth" or (grown or 0.0) >= 1.0)
    shown = split if split is not None else best_effort
    models = [_model(asked, number, shown) for number in range(len(file.models))]
    served = [model for model in models if model["deployment"] is not None]
    used = {
        pool.name: sum(model["gpus_by_pool"][pool.name] for model in models) for pool in file.cluster.pools
    }
    gap = 0.0 if shown is None else shown.gap
    return {
        "version": afd_dse.__version__,
        "fleet": file.model_dump(mode="json"),
        "objective": file.objective,
        "feasible": feasible,
        "reason": None if feasible else _why_not(asked, models, grown),
        "growth": grown,
        "gpus": sum(used.values()),
        "gpus_by_pool": {
            pool.name: {"used": used[pool.name], "free": pool.count - used[pool.name], "count": pool.count}
            for pool in file.cluster.pools
        },
        "usd_per_hour": sum(model["usd_per_hour"] for model in models),
        "tokens_per_s": sum(model["deployment"]["tokens_per_s"] for model in served),
        "weighted_tokens_per_s": sum(m["weight"] * m["deployment"]["tokens_per_s"] for m in served),
        "exact": all(one.facts["exact"] for one in stairs) and gap == 0.0,
        "gap": gap,
        "explanation": _explanation(file, stairs, gap),
        "considered": sum(model["considered"] for model in models),
        "evaluated": sum(model["evaluated"] for model in models),
        "search_seconds": sum(one.facts["seconds"] for one in stairs),
        "models": models,
        "warnings": _warnings(file),
    }


def _asked(file: FleetFile, stairs: Sequence[Stairs]) -> _Asked:
    pools = file.cluster.pools
    counts = np.array([pool.count for pool in pools], dtype=np.float64)
    sizes = [len(one.steps) for one in stairs]
    filled = [one.steps for one in stairs if len(one.table)]

    def column(name: str) -> FloatArray:
        parts = [table[name].to_numpy(np.float64) for table in filled]
        return np.concatenate(parts) if parts else np.zeros(0)

    used = np.column_stack([column(f"{GPUS_OF}{pool.name}") for pool in pools])
    of_model = np.repeat(np.arange(len(stairs)), sizes).astype(np.int64)
    row = np.concatenate([np.arange(size) for size in sizes]).astype(np.int64)
    rate, tokens = column("requests_per_s"), column("tokens_per_s")
    if file.own_nodes:
        nodes = np.array([pool.resolved.node_gpus for pool in pools], dtype=np.float64)
        # The last node of a pool may have fewer GPUs than the others.
        used = np.minimum(np.ceil(used / nodes) * nodes, counts)
        best = np.sort(largest_of_each(np.column_stack([of_model, used]), rate))
        used, of_model, row, rate, tokens = used[best], of_model[best], row[best], rate[best], tokens[best]
    choices = Choices(of_model, used, rate, tokens)
    price = np.array([pool.resolved.usd_per_gpu_hour for pool in pools])
    demand = np.array([entry.demand.requests_per_s if entry.demand else 0.0 for entry in file.models])
    return _Asked(file, stairs, choices, Cluster(counts, price), row, demand)


def _split(asked: _Asked, best_effort: Split | None) -> Split | None:
    match asked.file.objective:
        case "growth":
            return best_effort
        case "weighted_throughput":
            weight = np.array([entry.weight for entry in asked.file.models])
            found = weighted(asked.choices, asked.cluster, weight, asked.demand)
            return None if found is None or (found.choice == NOTHING).all() else found
        case objective:
            return fewest(asked.choices, asked.cluster, asked.demand, objective)


def _model(asked: _Asked, number: int, split: Split | None) -> dict[str, Any]:
    """The entry of one model: what it asked for, its share, its deployment, and its staircase."""
    entry, stairs, pools = asked.file.models[number], asked.stairs[number], asked.file.cluster.pools
    choice = NOTHING if split is None else int(split.choice[number])
    served = choice != NOTHING
    gpus = asked.choices.gpus[choice] if served else np.zeros(len(pools))
    by_pool = {pool.name: round(float(count)) for pool, count in zip(pools, gpus, strict=True)}
    deployment = (
        deployment_at(asked.file.job(entry), stairs.steps, int(asked.row[choice])) if served else None
    )
    wanted = entry.demand.requests_per_s if entry.demand else None
    facts = dict(stairs.facts["model"])
    job = None
    if deployment is not None:
        facts["quantization"] = deployment["quantization"]
        job = narrowed(share_job(asked.file, entry, by_pool), deployment).model_dump(mode="json")
    return {
        "name": entry.name,
        "model": facts,
        "demand": None if entry.demand is None else entry.demand.model_dump(),
        "weight": entry.weight,
        "gpus": sum(by_pool.values()),
        "gpus_by_pool": by_pool,
        "usd_per_hour": float(gpus @ asked.cluster.usd_per_gpu_hour),
        "load": None if wanted is None or deployment is None else wanted / deployment["requests_per_s"],
        "deployment": deployment,
        "job": job,
        "alone": _alone(asked, number),
        "nearest_miss": stairs.facts["nearest_miss"],
        "steps": _steps(asked, number),
        "considered": sum(mode["considered"] for mode in stairs.facts["modes"]),
        "evaluated": sum(mode["evaluated"] for mode in stairs.facts["modes"]),
        "explanation": stairs.facts["explanation"],
        "warnings": stairs.facts["warnings"],
    }


def _alone(asked: _Asked, number: int) -> dict[str, Any]:
    """What the model would do with the whole cluster: its largest rate, and the fewest GPUs that serve its demand."""
    mine = asked.choices.of_model == number
    fits = mine & (asked.choices.gpus <= asked.cluster.counts).all(axis=1)
    enough = fits & (asked.choices.requests_per_s >= asked.demand[number] * (1.0 - 1e-9))
    sizes = asked.choices.gpus.sum(axis=1)[enough]
    return {
        "requests_per_s": float(asked.choices.requests_per_s[fits].max(initial=0.0)),
        "fewest_gpus": round(float(sizes.min())) if len(sizes) else None,
    }


def _steps(asked: _Asked, number: int) -> list[dict[str, Any]]:
    pools = [pool.name for pool in asked.file.cluster.pools]
    names = ["requests_per_s", "tokens_per_s", "mode", "label"]
    table = asked.stairs[number].steps
    if not len(table):
        return []
    counts = table[[f"{GPUS_OF}{name}" for name in pools]].to_numpy()
    rows = table[names].to_dict("records")
    return [
        {"gpus_by_pool": dict(zip(pools, map(int, row), strict=True)), **{str(k): v for k, v in rest.items()}}
        for row, rest in zip(counts, rows, strict=True)
    ]


def _why_not(asked: _Asked, models: Sequence[Mapping[str, Any]], grown: float | None) -> str:
    """Which model cannot be served, or that they cannot be together, and by how much."""
    reasons = []
    for model, wanted in zip(models, asked.demand, strict=True):
        if not model["steps"]:
            if asked.file.objective != "weighted_throughput" or wanted > 0.0:
                miss = model["nearest_miss"] or "no layout fits the cluster"
                reasons.append(f"{model['name']}: no deployment meets its SLO on the whole cluster ({miss})")
        elif model["alone"]["fewest_gpus"] is None:
            rate = model["alone"]["requests_per_s"]
            reasons.append(
                f"{model['name']}: the whole cluster serves {number(rate)} of {number(wanted)} requests/s "
                f"({percent(rate / wanted)})"
            )
    if reasons:
        return "; ".join(reasons)
    if not any(model["steps"] for model in models):
        return "no deployment of any model meets its SLO"
    least = sum(model["alone"]["fewest_gpus"] for model in models if model["demand"])
    each = ", ".join(f"{m['name']} {m['alone']['fewest_gpus']}" for m in models if m["demand"])
    have = asked.file.cluster.gpus
    together = f"the demands need at least {least} GPUs ({each}), the cluster has {have}"
    if least <= have:
        together = f"the demands fit into the pools each alone, with at least {least} GPUs ({each}), but not together"
    if grown:
        together += f"; shared at best, it serves {percent(grown)} of every demand"
    return together


def _explanation(file: FleetFile, stairs: Sequence[Stairs], gap: float) -> str:
    """What of the answer is exact, and what is not."""
    number_of = sum(len(one.steps) for one in stairs)
    proof = "proved optimal" if gap == 0.0 else f"within {percent(gap)} of the optimum"
    exact = [one for one in stairs if one.facts["exact"]]
    considered = sum(mode["considered"] for one in stairs for mode in one.facts["modes"])
    text = f"split {proof} over {number_of:,} steps, the best deployment of every model for every number of GPUs; "
    if len(exact) == len(stairs):
        text += f"these are exact over {count(considered)} deployments"
    else:
        less = [
            f"{entry.name}: {one.facts['explanation']}"
            for entry, one in zip(file.models, stairs, strict=True)
            if not one.facts["exact"]
        ]
        text += f"these are not exact for {'; '.join(less)}"
    return text


def _warnings(file: FleetFile) -> list[str]:
    found = []
    if not file.own_nodes and len(file.models) > 1:
        found.append(
            "GPUs are counted, not placed: whether the shares can be cut from whole nodes is not checked, nor what "
            "models on one node take from each other's links; own_nodes: true gives every model nodes of its own"
        )
    judged = [entry.name for entry in file.models if entry.slo.percentile > 50.0]
    if judged:
        found.append(
            f"not confirmed by simulation: {', '.join(judged)}; `afd-dse simulate` does that for a model's job and "
            "deployment"
        )
    return found


def share_job(file: FleetFile, entry: FleetModel, by_pool: Mapping[str, int]) -> Job:
    """The job of a model on the GPUs that it gets."""
    note = f"{entry.name}: one of {len(file.models)} models of a fleet, on its share of the cluster"
    return file.job(entry, by_pool).model_copy(update={"notes": (note,)})


def model_result(file: FleetFile, number: int, stairs: Stairs, document: Mapping[str, Any]) -> Result | None:
    """The answer for one model as a result of its own, on its share of the cluster; None where it gets no GPUs.

    Its candidates are the model's steps that fit into the share, so the best one is what the fleet gives it; its front
    is that of these steps, not of all deployments.
    """
    model = document["models"][number]
    if model["deployment"] is None:
        return None
    share: dict[str, int] = model["gpus_by_pool"]
    job = narrowed(share_job(file, file.models[number], share), model["deployment"])
    scenario = scenario_from_job(job)
    fits = np.ones(len(stairs.table), dtype=bool)
    for role, column in TYPE_COLUMNS.items():
        fits &= (stairs.table[column] == model["deployment"]["quantization"][role]).to_numpy()
    for pool in file.cluster.pools:
        fits &= stairs.table[f"{GPUS_OF}{pool.name}"].to_numpy() <= share[pool.name]
    table = stairs.table[fits]
    modes = []
    for mode in stairs.facts["modes"]:
        mine = table[table["mode"] == mode["name"]]
        found: Found | None = found_of(scenario, mine) if len(mine) else None
        nothing = np.zeros(0, dtype=np.int64)
        partition = parse_partition(mode["partition"])
        proof = enumerated(scenario, partition, "total_throughput", mode["considered"], mode["evaluated"])
        modes.append(
            ModeOutcome(
                mode["name"],
                partition,
                found,
                nothing if found is None else ranking(scenario, "total_throughput", found),
                mode["considered"],
                mode["evaluated"],
                "exhaustive",
                "" if found is not None else "no deployment in this share holds the limits",
                proof,
            )
        )
    text = (
        f"the steps of the model's staircase that fit into its share of the cluster; {model['explanation']}"
    )
    considered, evaluated = model["considered"], model["evaluated"]
    seconds = float(stairs.facts["seconds"])
    outcome = SearchOutcome(modes, considered, evaluated, seconds, "exhaustive", text)
    return build_result(job, scenario, outcome)


def nearest_miss(result: Result) -> str:
    """Why nothing is feasible, by the nearest miss of a search."""
    misses: list[Deployment] = result.nearest_misses
    return str(misses[-1]["reason"] if misses else result.modes[0]["reason"])
