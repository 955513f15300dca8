"""Candidates drawn at random from the declared space: each a whole deployment, no two alike."""

from typing import Any

import numpy as np
import pandas as pd

from afd_dse.cost.columns import PHASES, POLICIES, Candidates
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import IntArray
from afd_dse.rows import distinct_rows, ranges
from afd_dse.search.space import Grid, Space
from afd_dse.spec.cells import ATTENTION_CELL, FFN_CELL, Cell, Partition, Phase, partition_index
from tests.search.brute_force import cuts

Columns = dict[str, Any]
# A draw is repeated until enough different candidates are found, or this often.
MOST_DRAWS = 200


def draw(scenario: Scenario, space: Space, partition: Partition, rows: int, seed: int) -> Candidates:
    """``rows`` different candidates of ``partition``, or as many as some draws find; the seed fixes them.

    Every group is cut in one of the legal ways of its grid, with equal chances; replicas are any number that fits the
    cluster, batch, chunk and way to share are any of the grid.
    """
    rng = np.random.default_rng(seed)
    parts = _parts(scenario, space, partition)
    found: pd.DataFrame | None = None
    for _ in range(MOST_DRAWS):
        more = _drawn(scenario, space, partition, parts, rows, rng)
        found = more if found is None else pd.concat([found, more], ignore_index=True)
        found = found.drop_duplicates(ignore_index=True)
        if len(found) >= rows:
            break
    assert found is not None
    return Candidates.of(**{str(name): found[name].to_numpy()[:rows] for name in found.columns})


def swept(scenario: Scenario, space: Space, partition: Partition, rows: int, seed: int) -> Candidates:
    """``rows`` candidates as a walk through the space meets them: drawn ones, each with every batch and fewer replicas.

    What follows on a candidate that :func:`draw` finds differs from it in the batch and in decode's replicas only, or,
    where some group serves both phases, in the replicas of both.
    """
    parts = _parts(scenario, space, partition)
    batch = next(part.grid for part in parts if Phase.DECODE in part.phases).batch.values()
    base = draw(scenario, space, partition, max(rows // len(batch), 1), seed)
    names = ("prefill_replicas", "decode_replicas") if partition.is_joint else ("decode_replicas",)
    others = [column for name, column in base.columns.items() if name not in (*names, "batch_size")]
    base = base.take(distinct_rows(others)[0])
    enough = int(np.searchsorted(np.cumsum(base.integer("decode_replicas")) * len(batch), rows)) + 1
    base = base.take(np.arange(min(enough, len(base))))
    most = base.integer("decode_replicas")
    fewer, row = ranges(np.ones_like(most), most)
    walk = base.take(np.repeat(row, len(batch))).replace(
        **dict.fromkeys(names, np.repeat(fewer, len(batch))), batch_size=np.tile(batch, len(row))
    )
    return walk.take(np.arange(min(rows, len(walk))))


class _Part:
    """Groups that are repeated together: those of both phases of a joint partition, else those of one phase."""

    def __init__(
        self, scenario: Scenario, phases: tuple[Phase, ...], groups: list[tuple[Cell, ...]], grid: Grid
    ) -> None:
        self.phases, self.groups, self.grid = phases, groups, grid
        self.tables = [pd.DataFrame(cuts(scenario, grid, group, len(groups) == 1)) for group in groups]


def _parts(scenario: Scenario, space: Space, partition: Partition) -> list[_Part]:
    if partition.is_joint:
        groups, grid = list(partition.groups), space.grid(partition, Phase.DECODE)
        return [_Part(scenario, tuple(Phase), groups, grid)]
    parts = []
    for phase in Phase:
        cells = {ATTENTION_CELL[phase], FFN_CELL[phase]}
        groups = [group for group in partition.groups if cells & set(group)]
        parts.append(_Part(scenario, (phase,), groups, space.grid(partition, phase)))
    return parts


def _drawn(
    scenario: Scenario,
    space: Space,
    partition: Partition,
    parts: list[_Part],
    rows: int,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """One draw of ``rows`` rows, without those that do not fit the cluster."""
    counts = np.array([pool.count for pool in scenario.pools], dtype=np.float64)
    room = np.repeat(counts[None, :], rows, axis=0)
    columns: Columns = {"partition": np.full(rows, partition_index(partition))}
    for part in rng.permutation(np.arange(len(parts))):
        drawn, used = _unit(parts[part], len(counts), rows, rng)
        most = np.floor(np.where(used > 0, room / np.maximum(used, 1.0), np.inf).min(axis=1))
        replicas = np.floor(rng.random(rows) * most) + 1.0
        room = np.where((most >= 1.0)[:, None], room - used * replicas[:, None], -1.0)
        columns |= drawn | {
            f"{PHASES[phase]}_replicas": replicas.astype(np.int64) for phase in parts[part].phases
        }
    by_phase = {phase: part.grid for part in parts for phase in part.phases}
    columns["batch_size"] = rng.choice(by_phase[Phase.DECODE].batch.values(), rows)
    columns["chunk_tokens"] = rng.choice(
        np.array(by_phase[Phase.PREFILL].chunk_tokens, dtype=np.float64), rows
    )
    columns |= _sharing(parts[0].grid, partition, rows, rng)
    table = pd.DataFrame(columns)
    return table.iloc[np.flatnonzero((room >= 0.0).all(axis=1))]


def _unit(part: _Part, pools: int, rows: int, rng: np.random.Generator) -> tuple[Columns, np.ndarray]:
    """A cut of every group: columns without replicas, and GPUs by pool [rows, pools]."""
    used = np.zeros((rows, pools))
    of_cell: dict[Cell, dict[str, IntArray]] = {}
    for group, table in zip(part.groups, part.tables, strict=True):
        picked = table.iloc[rng.integers(len(table), size=rows)]
        values = {str(name): picked[name].to_numpy(dtype=np.int64) for name in picked.columns}
        used[np.arange(rows), values["pool"]] += values["gpus"]
        of_cell |= dict.fromkeys(group, values)
    columns: Columns = {}
    micro_batches = rng.choice(np.array(part.grid.micro_batches, dtype=np.int64), rows)
    for phase in part.phases:
        attention, ffn, name = of_cell[ATTENTION_CELL[phase]], of_cell[FFN_CELL[phase]], PHASES[phase]
        columns |= {f"{name}_{key}": attention[key] for key in ("tp", "dp", "cp", "pp")}
        columns |= {f"{name}_{key}": ffn[key] for key in ("moe_tp", "ep", "redundant")}
        columns |= {f"{name}_attention_pool": attention["pool"], f"{name}_ffn_pool": ffn["pool"]}
        columns[f"{name}_micro_batches"] = micro_batches
    return columns, used


def _sharing(grid: Grid, partition: Partition, rows: int, rng: np.random.Generator) -> Columns:
    """Policy and share of decode, as the grid and the partition admit."""
    ways = [(0, 1.0)]
    if partition.shares_steps:
        ways = [(POLICIES.index(name), 1.0) for name in grid.policies if name in ("chunked", "prioritized")]
    if partition.is_joint and "tile_shared" in grid.policies:
        ways += [(POLICIES.index("tile_shared"), share) for share in grid.decode_shares]
    picked = np.array(ways)[rng.integers(len(ways), size=rows)]
    return {"policy": picked[:, 0].astype(np.int64), "decode_share": picked[:, 1]}
