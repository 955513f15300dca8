"""How well a deployment uses its GPUs: useful FLOP and bytes per second of every group against the peaks (roofline)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from afd_dse.architecture.work import TokenWork, token_work
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Pool, Scenario
from afd_dse.operators.speed_of_light import peak_flops
from afd_dse.results.datatypes import narrowed
from afd_dse.results.deployment import GIB
from afd_dse.spec.cells import ATTENTION_CELL, FFN_CELL, Cell, Phase
from afd_dse.spec.job import Job


def utilization(job: Job, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a group of the best deployment of every feasible mode.

    ``flop_per_s_per_gpu`` counts what the model needs (2 FLOP a multiply-add; projections, attention over the mean
    context, FFN or the chosen experts) over all time, so that bubbles, transfers and idle GPUs lower it; ``hfu`` is its
    share of the dense peak of the GEMMs' data type. For groups that decode, ``bytes_per_s_per_gpu`` counts the group's
    weights once a micro-batch and its KV cache once a step; few tokens on many experts read less. Others have None.
    """
    feasible = [entry for entry in document["best_per_mode"].values() if entry["feasible"]]
    return [row for d in feasible for row in _deployment(scenario_from_job(narrowed(job, d)), d)]


def _deployment(scenario: Scenario, deployment: Mapping[str, Any]) -> list[dict[str, Any]]:
    workload = scenario.workload
    work = {
        Phase.PREFILL: _work(scenario, workload.prefix + workload.isl / 2.0),
        Phase.DECODE: _work(scenario, scenario.decode_context),
    }
    tokens_per_s = {
        Phase.PREFILL: deployment["requests_per_s"] * workload.isl,
        Phase.DECODE: deployment["tokens_per_s"],
    }
    pools = {pool.name: pool for pool in scenario.pools}
    rows = []
    for group in deployment["groups"]:
        cells = [Cell[name] for name in group["cells"]]
        flop = sum(tokens_per_s[phase] * _flop(work[phase], phase, cells) for phase in Phase)
        rows.append(_row(scenario, pools[group["pool"]], deployment, group, flop / group["gpus_total"]))
    return rows


def _work(scenario: Scenario, context: float) -> TokenWork:
    return token_work(scenario.model, scenario.quantization, np.array([context]))


def _flop(work: TokenWork, phase: Phase, cells: list[Cell]) -> float:
    """FLOP that one token of a phase costs in a group of ``cells``."""
    attention = (
        float(work.attention_flop[0] + work.projection_flop[0]) if ATTENTION_CELL[phase] in cells else 0.0
    )
    return attention + (float(work.ffn_flop[0]) if FFN_CELL[phase] in cells else 0.0)


def _row(
    scenario: Scenario,
    pool: Pool,
    deployment: Mapping[str, Any],
    group: Mapping[str, Any],
    flop_per_s: float,
) -> dict[str, Any]:
    routed_alone = not any(name.endswith("A") for name in group["cells"]) and scenario.moe is not None
    dtype = scenario.quantization.moe if routed_alone else scenario.quantization.gemm
    peak = peak_flops(pool.accelerator, dtype)
    row: dict[str, Any] = {
        "mode": deployment["mode"],
        "label": deployment["label"],
        "cells": list(group["cells"]),
        "accelerator": group["accelerator"],
        "gpus": group["gpus_total"],
        "dtype": dtype,
        "flop_per_s_per_gpu": flop_per_s,
        "peak_flop_per_s": peak,
        "hfu": flop_per_s / peak,
        "hbm_bytes_per_s": pool.accelerator.hbm_bytes_per_s,
        "bytes_per_s_per_gpu": None,
        "bandwidth_utilization": None,
    }
    if not any(name.startswith("D") for name in group["cells"]):
        return row
    memory = group["memory_gib"]
    step_s = deployment["tpot_ms"] / 1e3 * scenario.accepted_per_step
    read = (memory["weights"] * group["micro_batches"] + memory["kv_cache"]) * GIB / step_s
    return row | {
        "bytes_per_s_per_gpu": read,
        "bandwidth_utilization": read / pool.accelerator.hbm_bytes_per_s,
    }
