"""The kept candidates as one table: ``candidates.parquet``, and the rows of ``pareto.csv``."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from afd_dse.cost.columns import PHASE_FIELDS, PHASES, POLICIES
from afd_dse.cost.evaluation import CONSTRAINTS
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import IntArray, Provenance
from afd_dse.results.certainty import interval_columns
from afd_dse.results.deployment import GIB, METRIC_NAMES, types_of
from afd_dse.search.pool import Found
from afd_dse.spec.cells import PARTITIONS

_POOLS = ("attention_pool", "ffn_pool")
TYPE_COLUMNS = {
    "gemm": "gemm_dtype",
    "moe": "moe_dtype",
    "attention": "attention_dtype",
    "kv_cache": "kv_dtype",
}
"""Columns of the data types, by role."""
GPUS_OF = "gpus_of_"
"""Start of the columns that count the GPUs of each pool."""
FRONT = [
    "mode",
    "label",
    "partition",
    "gpus",
    "tokens_per_s_per_user",
    "tokens_per_s_per_gpu",
    *(name for name, _, _ in METRIC_NAMES if name not in ("tokens_per_s_per_user", "tokens_per_s_per_gpu")),
]


def candidate_table(
    scenario: Scenario,
    found: Found | None,
    names: Sequence[str],
    labels: Sequence[str],
    ranked: IntArray,
    front: IntArray,
) -> pd.DataFrame:
    """One row a candidate: mode (``names``), label, metrics, slack, memory, and every column of its layout.

    ``rank`` counts from 1 over the feasible rows of all modes (0: infeasible); ``pareto`` counts the rows of the front
    from 1, fastest for a user first (0: not on it).
    """
    if found is None:
        return pd.DataFrame()
    rows = len(found)
    evaluation, c = found.evaluation, found.candidates
    place, on_front = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    place[ranked] = np.arange(1, len(ranked) + 1)
    on_front[front] = np.arange(1, len(front) + 1)
    columns: dict[str, object] = {
        "mode": list(names),
        "partition": np.array([partition.text for partition in PARTITIONS], dtype=object)[
            c.integer("partition")
        ],
        "label": list(labels),
        "rank": place,
        "pareto": on_front,
        "feasible": evaluation.feasible,
        "worst_constraint": np.array(CONSTRAINTS)[evaluation.worst],
        "gpus": np.round(evaluation.metrics["gpus"]).astype(np.int64),
    }
    columns |= {name: factor * evaluation.metrics[metric] for name, metric, factor in METRIC_NAMES}
    columns |= interval_columns(scenario, found)
    columns |= {
        f"slack_{name.replace(' ', '_')}": evaluation.slack[:, i] for i, name in enumerate(CONSTRAINTS)
    }
    columns |= {f"share_{kind.name.lower()}": evaluation.provenance[:, kind] for kind in Provenance}
    # What a price or a power by pool acts on.
    columns |= {
        f"{GPUS_OF}{pool.name}": np.round(evaluation.gpus_by_pool[:, i]).astype(np.int64)
        for i, pool in enumerate(scenario.pools)
    }
    columns |= {column: types_of(scenario)[role] for role, column in TYPE_COLUMNS.items()}
    columns["memory_gib"] = evaluation.memory.sum(axis=2).max(axis=1) / GIB
    columns |= {name: c.columns[name] for name in ("batch_size", "chunk_tokens")}
    columns["policy"] = np.array(POLICIES)[c.integer("policy")]
    columns["decode_share"] = c.number("decode_share")
    pools = np.array([pool.name for pool in scenario.pools], dtype=object)
    for phase in PHASES:
        for field in PHASE_FIELDS:
            values = c.integer(f"{phase}_{field}")
            columns[f"{phase}_{field}"] = pools[values] if field in _POOLS else values
    return pd.DataFrame(columns)


def front_table(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the front in order, the two axes first."""
    if table.empty:
        return pd.DataFrame(columns=FRONT)
    rows = table[table["pareto"] > 0].sort_values("pareto")
    rest = [
        name for name in table.columns if name not in FRONT and name not in ("pareto", "worst_constraint")
    ]
    result: pd.DataFrame = rows[[*FRONT, *rest]]
    return result
