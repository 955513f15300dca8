"""Rows of the candidates table back into the deployments that they stand for."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.cost.columns import PHASE_FIELDS, PHASES, POLICIES, Candidates
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Scenario
from afd_dse.errors import InputError, Problem
from afd_dse.results.datatypes import labelled, narrowed
from afd_dse.results.deployment import Deployment, deployment_of
from afd_dse.results.table import TYPE_COLUMNS
from afd_dse.search.pool import Found
from afd_dse.spec.cells import parse_partition, partition_index
from afd_dse.spec.job import Job

_POOLS = ("attention_pool", "ffn_pool")


def deployment_at(job: Job, candidates: pd.DataFrame, row: int) -> Deployment:
    """The document of the deployment at ``row`` (position) of the candidates of a result of ``job``, evaluated anew.

    Raises :class:`InputError` where the table lacks the columns of a layout.
    """
    one = candidates.iloc[[row]]
    given = {role: one[column].iloc[0] for role, column in TYPE_COLUMNS.items() if column in one}
    scenario = scenario_from_job(narrowed(job, {"quantization": given}))
    mode = str(one["mode"].iloc[0])
    return labelled(deployment_of(scenario, found_of(scenario, one), 0, mode, job.search.objective), job)


def found_of(scenario: Scenario, table: pd.DataFrame) -> Found:
    """The rows of a table of candidates, evaluated anew; their pools are named as in ``scenario``.

    Raises :class:`InputError` where the table lacks the columns of a layout.
    """
    needed = {"partition", "batch_size", "chunk_tokens", "policy", "mode"}
    needed |= {f"{phase}_{field}" for phase in PHASES for field in PHASE_FIELDS}
    if missing := sorted(needed - set(table.columns)):
        remedy = "use the candidates.parquet that `afd-dse optimize --out` wrote"
        raise InputError(Problem("candidates", missing[0], "this column is missing", remedy))
    pools = {pool.name: number for number, pool in enumerate(scenario.pools)}
    partitions = {
        text: partition_index(parse_partition(text)) for text in map(str, table["partition"].unique())
    }
    columns: dict[str, npt.ArrayLike] = {
        "partition": table["partition"].map(partitions).to_numpy(np.int64),
        "policy": table["policy"].map(POLICIES.index).to_numpy(np.int64),
    }
    shares = ["decode_share"] if "decode_share" in table else []
    columns |= {name: table[name].to_numpy(np.float64) for name in ("batch_size", "chunk_tokens", *shares)}
    for phase in PHASES:
        for field in PHASE_FIELDS:
            values = table[f"{phase}_{field}"]
            values = values.map(pools) if field in _POOLS else values
            columns[f"{phase}_{field}"] = values.to_numpy(np.int64)
    block = Candidates.of(**columns)
    return Found(block, evaluate(scenario, block))
