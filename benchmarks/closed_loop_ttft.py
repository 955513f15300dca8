"""Simulated against measured TTFT and TPOT of closed-loop benchmarks of single engines.

Reads a CSV of measured runs (columns of ``afd-dse validate``), one run a row; without the file there is nothing to do.
A benchmark starts with a burst of its concurrency and sends ten times as many requests; prompts vary by a tenth about
the mean, as InferenceX draws them (80 to 100 % of a nominal length).
"""

import csv
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from afd_dse import load_job
from afd_dse.errors import AfdDseError
from afd_dse.results.simulate import Options, simulate

CHUNK_TOKENS = 8192  # default of all three frameworks on these accelerators
RANGE_CV = 0.2 / 0.9 / 12.0**0.5  # uniform between 0.8 and 1.0 of a length
DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "measured_runs.csv"


def run(row: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The job and the deployment of one measured run."""

    def whole(name: str) -> int:
        return int(float(row[name] or 1))

    lengths = {
        name: {"mean": float(row[column]), "cv": RANGE_CV, "shape": "uniform"}
        for name, column in (("input_tokens", "isl"), ("output_tokens", "osl"))
    }
    concurrency = whole("concurrency")
    job = {
        "model": row["model"],
        "framework": row["framework"],
        "quantization": {
            key: row[column]
            for key, column in (("gemm", "gemm_dtype"), ("moe", "moe_dtype"), ("kv_cache", "kv_dtype"))
            if row.get(column)
        },
        "cluster": {"pools": [{"name": "main", "accelerator": row["accelerator"], "count": whole("gpus")}]},
        "workload": lengths | {"arrival": {"kind": "closed_loop", "concurrency": concurrency}},
    }
    group = {
        "cells": ["PA", "PF", "DA", "DF"],
        **{name: whole(name) for name in ("tp", "pp", "dp", "moe_tp", "ep")},
    }
    policy = "prioritized" if row["framework"] == "sglang" else "chunked"
    deployment = {
        "groups": [group],
        "batch_size": concurrency / whole("dp"),
        "chunk_tokens": max(CHUNK_TOKENS, 2 * concurrency // whole("dp")),
        "policy": policy,
    }
    return job, deployment


def main(
    data: Annotated[Path, typer.Argument(help="CSV of measured runs.")] = DATA,
    rows: Annotated[int, typer.Option(help="Runs to draw.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
) -> None:
    """Print errors by framework: of the simulated mean TTFT and TPOT, and of the formulas' TTFT beside."""
    if not data.is_file():
        print(f"{data} does not exist: nothing to compare with")
        return
    with data.open(encoding="utf-8") as file:
        runs = [row for row in csv.DictReader(file) if row["mode"] == "agg" and row["ttft_ms"]]
    order = np.random.default_rng(seed).permutation(len(runs))
    errors: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    left_out: dict[str, int] = defaultdict(int)
    for number in order:
        if sum(map(len, errors.values())) >= rows:
            break
        row = runs[number]
        try:
            found = simulate(load_job(run(row)[0]), run(row)[1], Options())
        except AfdDseError as error:
            left_out[str(error).splitlines()[0][:90]] += 1
            continue
        measured = float(row["ttft_ms"]), float(row["tpot_ms"])
        simulated = found["ttft_ms"]["mean"], found["tpot_ms"]["mean"]
        formula = found["formula"]["ttft_ms"]
        errors[row["framework"]].append(
            (
                simulated[0] / measured[0] - 1.0,
                simulated[1] / measured[1] - 1.0,
                formula / measured[0] - 1.0 if formula is not None else np.inf,
            )
        )
    print(
        f"{'':10s}{'runs':>6s}{'TTFT median |error|':>22s}{'bias':>8s}{'TPOT':>8s}{'bias':>8s}{'formula TTFT':>14s}"
    )
    for name, found_errors in sorted(errors.items()):
        table = np.array(found_errors)
        size, bias = np.median(np.abs(table), axis=0), np.median(table, axis=0)
        print(
            f"{name:10s}{len(table):6d}{size[0]:22.0%}{bias[0]:8.0%}{size[1]:8.0%}{bias[1]:8.0%}{size[2]:14.0%}"
        )
    for reason, count in left_out.items():
        print(f"left out {count}: {reason}")


if __name__ == "__main__":
    typer.run(main)
