"""A row of the candidates table back into the deployment that it stands for."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from afd_dse.cost.columns import PHASE_FIELDS, PHASES, POLICIES, Candidates
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.errors import InputError, Problem
from afd_dse.results.deployment import Deployment, deployment_of
from afd_dse.search.pool import Found
from afd_dse.spec.cells import parse_partition, partition_index
from afd_dse.spec.job import Job

_POOLS = ("attention_pool", "ffn_pool")


def deployment_at(job: Job, candidates: pd.DataFrame, row: int) -> Deployment:
    """The document of the deployment at ``row`` (position) of the candidates of a result of ``job``, evaluated anew.

    Raises :class:`InputError` where the table lacks the columns of a layout.
    """
    needed = {"partition", "batch_size", "chunk_tokens", "policy", "mode"}
    needed |= {f"{phase}_{field}" for phase in PHASES for field in PHASE_FIELDS}
    if missing := sorted(needed - set(candidates.columns)):
        remedy = "use the candidates.parquet that `afd-dse optimize --out` wrote"
        raise InputError(Problem("candidates", missing[0], "this column is missing", remedy))
    record: Mapping[Any, Any] = candidates.iloc[row].to_dict()
    scenario = scenario_from_job(job)
    pools = [pool.name for pool in scenario.pools]
    columns: dict[str, float | int] = {
        "partition": partition_index(parse_partition(str(record["partition"]))),
        "policy": POLICIES.index(str(record["policy"])),
        "batch_size": float(record["batch_size"]),
        "chunk_tokens": float(record["chunk_tokens"]),
    }
    for phase in PHASES:
        for field in PHASE_FIELDS:
            value = record[f"{phase}_{field}"]
            columns[f"{phase}_{field}"] = pools.index(str(value)) if field in _POOLS else int(value)
    block = Candidates.of(**columns)
    found = Found(block, evaluate(scenario, block))
    return deployment_of(scenario, found, 0, str(record["mode"]), job.search.objective)
