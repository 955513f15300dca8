"""Sampling against enumeration: share of the exact front's hypervolume against evaluations, by sampler, over seeds."""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
import optuna
import typer

from afd_dse.cost.evaluation import CONSTRAINTS
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.encoding import SampledSpace
from afd_dse.search.pareto import front
from afd_dse.search.pool import Found, pareto_rows
from afd_dse.search.run import ModeOutcome, search, size_of
from afd_dse.search.sampled import evaluations_of, search_sampled, trials_of
from afd_dse.search.space import Space, load_space
from afd_dse.search.study import suggest
from afd_dse.search.trials import Trials
from afd_dse.spec.cells import Partition, parse_partition
from afd_dse.spec.load import load_job


class Question(NamedTuple):
    """A job whose spaces can be enumerated: model, pools, tokens in and out, limits."""

    model: str
    pools: tuple[tuple[str, int], ...]
    slo: dict[str, float]
    tokens: tuple[int, int] = (2048, 512)


# Those that the search was shaped on,
TUNED: dict[str, Question] = {
    "DeepSeek-V3, 128 B200": Question(
        "deepseek-ai/DeepSeek-V3", (("b200_sxm", 128),), {"ttft_ms": 2000, "tpot_ms": 50}
    ),
    "Qwen3-30B, 32 H100": Question(
        "Qwen/Qwen3-30B-A3B-FP8", (("h100_sxm", 32),), {"ttft_ms": 2000, "tpot_ms": 30}
    ),
    "GLM-4.5, 16 H200 + 16 B200": Question(
        "zai-org/GLM-4.5-FP8", (("h200_sxm", 16), ("b200_sxm", 16)), {"ttft_ms": 2000, "tpot_ms": 40}
    ),
}
# and those set aside before: no constant of the search was chosen by them.
HELD_OUT: dict[str, Question] = {
    "gpt-oss-120b, 16 H200": Question(
        "openai/gpt-oss-120b", (("h200_sxm", 16),), {"ttft_ms": 1000, "tpot_ms": 20}, (1024, 1024)
    ),
    "Qwen3-235B, 64 H200": Question(
        "Qwen/Qwen3-235B-A22B-FP8", (("h200_sxm", 64),), {"ttft_ms": 3000, "tpot_ms": 50}, (4096, 1024)
    ),
    "Kimi-K2, 64 GB200": Question(
        "moonshotai/Kimi-K2-Instruct", (("gb200", 64),), {"ttft_ms": 5000, "tpot_ms": 40}, (8192, 1024)
    ),
    "Qwen3-32B, 16 H100": Question(
        "Qwen/Qwen3-32B-FP8", (("h100_sxm", 16),), {"ttft_ms": 500, "tpot_ms": 25}, (1024, 256)
    ),
    "Qwen3-Coder, 24 H200 + 16 B200": Question(
        "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8",
        (("h200_sxm", 24), ("b200_sxm", 16)),
        {"ttft_ms": 4000, "tpot_ms": 60, "percentile": 90},
        (6144, 512),
    ),
}
JOBS = TUNED | HELD_OUT
PARTITIONS = (
    "PA PF DA DF",
    "PA DA | PF DF",
    "PA PF DF | DA",
    "PA | DA | PF DF",
    "PA PF | DA DF",
    "PA PF | DA | DF",
)
SHARE_OF_EVALUATIONS = 0.02
TARGET = 0.99
# Trials are told in blocks of this size, as the search does.
BLOCK = 40


def scenario_of(job: str) -> Scenario:
    """The scenario of one of :data:`JOBS`."""
    model, pools, slo, (tokens_in, tokens_out) = JOBS[job]
    cluster = {
        "pools": [
            {"name": f"pool {n}", "accelerator": name, "count": count}
            for n, (name, count) in enumerate(pools)
        ]
    }
    workload = {"input_tokens": tokens_in, "output_tokens": tokens_out}
    return scenario_from_job(load_job({"model": model, "cluster": cluster, "workload": workload, "slo": slo}))


def hypervolume(speed: FloatArray, throughput: FloatArray, slowest: float) -> float:
    """Area that points dominate above zero throughput and beyond the speed ``slowest``."""
    best = front(speed, throughput)
    x, y = speed[best], throughput[best]
    return float(np.sum((x - np.append(x[1:], slowest)) * y))


def volume_of(scenario: Scenario, found: Found | None) -> float:
    """Hypervolume of the feasible front, from the limit on TPOT on."""
    if found is None:
        return 0.0
    m = found.take(pareto_rows(found)).evaluation.metrics
    return hypervolume(m["tokens_per_s_per_user"], m["tokens_per_s_per_gpu"], 1.0 / scenario.slo.tpot_s)


def by_search(
    scenario: Scenario, space: Space, partition: Partition, evaluations: int, seed: int
) -> tuple[float, int]:
    """The project's own sampled search: hypervolume and evaluations."""
    found, evaluated = search_sampled(
        scenario,
        space,
        partition,
        "throughput_per_gpu",
        seed=seed,
        trials=max((n for n in range(evaluations) if evaluations_of(n, partition) <= evaluations), default=1),
        journal=None,
        progress=lambda n: None,
    )
    return volume_of(scenario, found), evaluated


def by_sampler(
    make: Callable[[int], optuna.samplers.BaseSampler],
) -> Callable[[Scenario, Space, Partition, int, int], tuple[float, int]]:
    """A sampler of Optuna alone, over the same parameters; equal candidates are evaluated once."""

    def run(
        scenario: Scenario, space: Space, partition: Partition, evaluations: int, seed: int
    ) -> tuple[float, int]:
        sampled = SampledSpace(scenario, space, partition)
        trials, _ = trials_of(scenario, space, partition, "throughput_per_gpu", None, evaluations, seed)
        if trials is None:
            return 0.0, 0
        study = optuna.create_study(directions=["maximize", "maximize"], sampler=make(seed))
        known: dict[bytes, tuple[float, float, FloatArray]] = {}
        for _ in range(4 * evaluations // BLOCK):
            asked = [study.ask() for _ in range(BLOCK)]
            rows = sampled.canonical(np.stack([suggest(trial, sampled.parameters) for trial in asked]))
            _evaluate_new(trials, sampled, rows, known)
            for trial, row in zip(asked, rows, strict=True):
                throughput, speed, slack = known[row.tobytes()]
                for name, value in zip(CONSTRAINTS, slack, strict=True):
                    trial.set_constraint(name, float(np.clip(-value, -1e6, 1e6)))
                study.tell(trial, (throughput, speed))
            if len(known) >= evaluations:
                break
        values = [(speed, throughput) for throughput, speed, slack in known.values() if (slack >= 0).all()]
        if not values:
            return 0.0, len(known)
        x, y = np.array(values).T
        return hypervolume(x, y, 1.0 / scenario.slo.tpot_s), len(known)

    return run


def _evaluate_new(
    trials: Trials,
    sampled: SampledSpace,
    rows: IntArray,
    known: dict[bytes, tuple[float, float, FloatArray]],
) -> None:
    fresh = {row.tobytes(): row for row in rows if row.tobytes() not in known}
    if not fresh:
        return
    found = trials.measure(sampled.decode(np.stack(list(fresh.values()))))
    for number, key in enumerate(fresh):
        known[key] = (float(found.throughput[number]), float(found.speed[number]), found.slack[number])


SAMPLERS: dict[str, Callable[[Scenario, Space, Partition, int, int], tuple[float, int]]] = {
    "search": by_search,
    "random": by_sampler(lambda seed: optuna.samplers.RandomSampler(seed=seed)),
    "NSGA-II": by_sampler(lambda seed: optuna.samplers.NSGAIISampler(population_size=BLOCK, seed=seed)),
    "NSGA-II, SBX": by_sampler(
        lambda seed: optuna.samplers.NSGAIISampler(
            population_size=BLOCK,
            seed=seed,
            crossover=optuna.samplers.nsgaii.SBXCrossover(),
            mutation=optuna.samplers.nsgaii.PolynomialMutation(),
        )
    ),
    "NSGA-III": by_sampler(lambda seed: optuna.samplers.NSGAIIISampler(population_size=BLOCK, seed=seed)),
    "TPE": by_sampler(lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=True)),
}


def measured(
    space: str,
    jobs: list[str],
    partitions: list[str],
    samplers: list[str],
    seeds: int,
    most: int,
    of_grid: float = SHARE_OF_EVALUATIONS,
) -> Iterator[dict[str, Any]]:
    """One row for every job, partition and sampler: shares of the exact hypervolume over the seeds.

    Samplers have the share ``of_grid`` of the rows of the grid (layouts × loads), and at most ``most`` evaluations.
    """
    where = load_space(space)
    for job in jobs:
        scenario = scenario_of(job)
        for text in partitions:
            partition = parse_partition(text)
            exact: ModeOutcome = search(
                scenario, where, [("mode", partition)], "throughput_per_gpu", method="exhaustive"
            ).modes[0]
            whole = volume_of(scenario, exact.found)
            grid = size_of(scenario, where, partition)
            evaluations = min(int(of_grid * grid), most)
            for name in samplers:
                began = time.perf_counter()
                runs = [
                    SAMPLERS[name](scenario, where, partition, evaluations, seed) for seed in range(seeds)
                ]
                shares = np.array([volume / whole for volume, _ in runs])
                yield {
                    "job": job,
                    "partition": text,
                    "sampler": name,
                    "exact_evaluations": exact.evaluated,
                    "grid": grid,
                    "considered": exact.considered,
                    "evaluations": float(np.mean([count for _, count in runs])),
                    "shares": shares,
                    "seconds": (time.perf_counter() - began) / seeds,
                }


def rows(quick: bool) -> list[dict[str, Any]]:
    """Rows for the common table: the search's median and least share of the exact front, and its evaluations."""
    jobs = list(JOBS)[:1] if quick else list(JOBS)
    partitions = ["PA DA | PF DF"] if quick else list(PARTITIONS)
    found = []
    for one in measured("default", jobs, partitions, ["search"], 2 if quick else 5, 10**9):
        name = f"sampled front, {one['job']}, {one['partition']}"
        share = one["evaluations"] / one["grid"]
        found += [
            {
                "name": f"{name}: hypervolume, median of the seeds",
                "value": 100.0 * float(np.median(one["shares"])),
                "target": 100.0 * TARGET,
                "unit": "% of the exact front",
            },
            {
                "name": f"{name}: evaluations",
                "value": 100.0 * share,
                "target": 100.0 * SHARE_OF_EVALUATIONS,
                "unit": "% of the grid",
            },
        ]
    return found


def main(
    space: Annotated[str, typer.Option(help="Search space.")] = "default",
    sampler: Annotated[list[str] | None, typer.Option(help="Samplers to compare; all without.")] = None,
    job: Annotated[list[str] | None, typer.Option(help="Jobs; all without.")] = None,
    partition: Annotated[list[str] | None, typer.Option(help="Partitions; all without.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of each.")] = 5,
    most: Annotated[int, typer.Option(help="Largest number of evaluations.")] = 5000,
    of_grid: Annotated[float, typer.Option(help="Evaluations as share of the grid.")] = SHARE_OF_EVALUATIONS,
) -> None:
    """Print for every job, partition and sampler the share of the exact hypervolume: least, median, largest seed."""
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print(
        f"{'job':28s}{'partition':18s}{'sampler':14s}{'grid':>10s}{'exact':>10s}{'sampled':>9s}{'share':>7s}"
        f"{'least':>8s}{'median':>8s}{'most':>7s}{'s':>7s}"
    )
    for one in measured(
        space,
        job or list(JOBS),
        partition or list(PARTITIONS),
        sampler or list(SAMPLERS),
        seeds,
        most,
        of_grid,
    ):
        low, middle, high = np.percentile(one["shares"], [0, 50, 100])
        share = one["evaluations"] / one["grid"]
        print(
            f"{one['job']:28s}{one['partition']:18s}{one['sampler']:14s}{one['grid']:10,d}"
            f"{one['exact_evaluations']:10,d}"
            f"{one['evaluations']:9,.0f}{share:7.1%}{low:8.3f}{middle:8.3f}{high:7.3f}{one['seconds']:7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)
