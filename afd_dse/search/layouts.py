"""All legal layouts of a partition under a grid, as columns; and their expansion over batches, chunks and policies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.weights import legal_attention_tp, legal_dense_tp, legal_moe_tp
from afd_dse.cost.columns import DECODE_PRIORITY, EXPERT_POLICIES, PHASES, POLICIES, TILE_SHARED, Candidates
from afd_dse.cost.expert_barrier import HISTORY, STATIC, copies_experts
from afd_dse.cost.launching import runs
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.space import Grid
from afd_dse.spec.cells import ATTENTION_CELL, FFN_CELL, Cell, Partition, Phase, partition_index

# Fields of one group's option table.
_OPTION = ("pool", "tp", "dp", "cp", "pp", "moe_tp", "ep", "redundant", "expert_policy", "gpus")
_FFN_FIELDS = ("moe_tp", "ep", "redundant", "expert_policy")
_ZERO_IF_ABSENT = ("redundant", "expert_policy")
BLOCK_ROWS = 200_000


def _options(scenario: Scenario, grid: Grid, attention: bool, ffn: bool, alone: bool) -> dict[str, IntArray]:
    """Every way to cut one group that holds ``attention`` and/or ``ffn``; ``alone`` when the unit is this one group."""
    sizes = grid.gpus if attention else grid.ffn_gpus
    dense = scenario.moe is None
    policies = cache(partial(_expert_policies, scenario, grid))
    rows: list[tuple[int, ...]] = []
    for pool, spec in enumerate(scenario.pools):
        domain = spec.accelerator.scale_up_gpus
        for size, tp, cp, pp, redundant in product(
            [s for s in sizes if s <= spec.count],
            grid.tp if attention else [1],
            grid.cp if attention else [1],
            grid.pp if attention and ffn and alone else [1],
            grid.redundant if ffn and not dense else [0],
        ):
            stage = size // pp
            # Tensor and context parallelism all-reduce in every layer: never across scale-up domains.
            if size % pp or stage % (tp * cp) or tp * cp > domain:
                continue
            dp = stage // (tp * cp) if attention else 1
            if not ffn:
                rows.append((pool, tp, dp, cp, pp, 1, 1, 0, 0, size))
                continue
            if dense:
                # NOTE: attention-DP around one dense FFN would only repeat what replicas do without its traffic.
                if attention and dp > 1:
                    continue
                rows.append((pool, tp, dp, cp, pp, stage, 1, 0, 0, size))
                continue
            rows.extend(
                (pool, tp, dp, cp, pp, moe_tp, stage // moe_tp, redundant, policy, size)
                for moe_tp in grid.moe_tp
                if stage % moe_tp == 0 and moe_tp <= domain
                for policy in policies(stage // moe_tp, redundant)
            )
    table = np.array(rows, dtype=np.int64).reshape(-1, len(_OPTION))
    columns = {name: table[:, number] for number, name in enumerate(_OPTION)}
    legal = np.ones(len(table), dtype=bool)
    if attention:
        legal &= legal_attention_tp(scenario.model, columns["tp"])
    if ffn:
        legal &= legal_moe_tp(scenario.model, columns["moe_tp"], scenario.quantization.moe)
        # Dense FFNs and shared experts are cut over the GPUs that share a token.
        shard = columns["tp"] * columns["cp"] if attention else columns["moe_tp"]
        legal &= legal_dense_tp(scenario.model, shard, scenario.quantization.gemm)
        if scenario.moe is not None:
            legal &= columns["ep"] <= scenario.moe.experts + columns["redundant"]
            # Redundant experts fill whole slots: every rank holds the same number.
            slots = scenario.moe.experts + columns["redundant"]
            legal &= (columns["redundant"] == 0) | (slots % columns["ep"] == 0)
    return {name: column[legal] for name, column in columns.items()}


def _expert_policies(scenario: Scenario, grid: Grid, ep: int, redundant: int) -> list[int]:
    """Codes of the policies by which a group may place its experts, those left out that are the same as another.

    One rank places nothing, past routing tells nothing of even popularity, and copies need redundant slots.
    """
    loads = scenario.expert_loads
    if loads is None or ep == 1:
        return [STATIC]
    codes = np.array([EXPERT_POLICIES.index(name) for name in grid.expert_policies])
    possible = codes[(redundant > 0) | ~copies_experts(codes)]
    if loads.even:
        possible = np.where(possible == HISTORY, STATIC, possible)
    return [int(code) for code in np.unique(possible)]


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The groups that serve some phases of a partition, each with the table of its legal cuts."""

    partition: Partition
    phases: tuple[Phase, ...]
    groups: tuple[tuple[Cell, ...], ...]
    tables: tuple[dict[str, IntArray], ...]

    def candidates(self, picks: npt.NDArray[np.int64], micro_batches: dict[Phase, IntArray]) -> Candidates:
        """Layouts (one replica, no load yet) from one row of every group's table, ``picks`` [groups, n].

        Columns of a phase that is not asked for are neutral (one GPU).
        """
        rows = picks.shape[1]
        columns: dict[str, npt.ArrayLike] = {
            "partition": np.full(rows, partition_index(self.partition)),
            "policy": 0,
        }
        columns |= {"batch_size": 1.0, "chunk_tokens": 1.0}
        for phase in Phase:
            name = PHASES[phase]
            columns[f"{name}_replicas"] = 1
            columns[f"{name}_micro_batches"] = micro_batches.get(phase, np.ones(rows, dtype=np.int64))
            for side, cell in (("attention", ATTENTION_CELL[phase]), ("ffn", FFN_CELL[phase])):
                fields = ("tp", "dp", "cp", "pp") if side == "attention" else _FFN_FIELDS
                values = _group_values(cell, self.groups, self.tables, picks)
                columns[f"{name}_{side}_pool"] = values["pool"] if values else 0
                for field in fields:
                    columns[f"{name}_{field}"] = (
                        values[field] if values else int(field not in _ZERO_IF_ABSENT)
                    )
        return Candidates.of(**columns)


def group_options(
    scenario: Scenario, partition: Partition, phases: Sequence[Phase], grid: Grid
) -> GroupOptions:
    """The legal cuts of every group of ``partition`` that serves one of ``phases``."""
    cells = {c for p in phases for c in (ATTENTION_CELL[p], FFN_CELL[p])}
    groups = tuple(kept for group in partition.groups if (kept := tuple(c for c in group if c in cells)))
    tables = tuple(
        _options(
            scenario,
            grid,
            attention=any(c in ATTENTION_CELL for c in group),
            ffn=any(c in FFN_CELL for c in group),
            alone=len(groups) == 1,
        )
        for group in groups
    )
    return GroupOptions(partition, tuple(phases), groups, tables)


def enumerate_layouts(
    scenario: Scenario, partition: Partition, phases: Sequence[Phase], grid: Grid
) -> Candidates:
    """All layouts of the groups that serve ``phases`` (one replica, no load yet) within the cluster's GPUs.

    Both phases of a joint partition use the same number of micro-batches. Of a scenario that asks for it, only what a
    release runs.
    """
    options = group_options(scenario, partition, phases, grid)
    picks = np.stack(np.nonzero(fitting(scenario, options)))
    micro = np.asarray(grid.micro_batches, dtype=np.int64)
    columns = dict.fromkeys(phases, np.tile(micro, picks.shape[1]))
    found = options.candidates(np.repeat(picks, len(micro), axis=1), columns)
    if scenario.only_launchable:
        found = found.take(np.flatnonzero(runs(scenario, partition, found, phases)))
    return found


def layout_count(scenario: Scenario, partition: Partition, phases: Sequence[Phase], grid: Grid) -> int:
    """How many layouts :func:`enumerate_layouts` gives, whether or not a release runs them."""
    options = group_options(scenario, partition, phases, grid)
    return int(fitting(scenario, options).sum()) * len(grid.micro_batches)


def fitting(scenario: Scenario, options: GroupOptions) -> npt.NDArray[np.bool_]:
    """Which combinations of the groups' cuts the cluster's GPUs suffice for, [cuts of a group, …]."""
    counts, groups = scenario.pool_counts, len(options.tables)
    fits = np.ones([len(table["gpus"]) for table in options.tables], dtype=bool)
    for pool, count in enumerate(counts):
        used = np.zeros([1] * groups, dtype=np.int64)
        for number, table in enumerate(options.tables):
            own = np.where(table["pool"] == pool, table["gpus"], 0)
            used = used + own.reshape([-1 if axis == number else 1 for axis in range(groups)])
        fits &= used <= count
    return fits


def _group_values(
    cell: Cell,
    groups: tuple[tuple[Cell, ...], ...],
    tables: tuple[dict[str, IntArray], ...],
    picks: npt.NDArray[np.int64],
) -> dict[str, IntArray]:
    """The option columns of the group that holds ``cell``; empty when the phase is not asked for."""
    for number, group in enumerate(groups):
        if cell in group:
            return {name: column[picks[number]] for name, column in tables[number].items()}
    return {}


@dataclass(frozen=True, slots=True)
class Sharing:
    """How phases share a group: the code of the policy, and the share of the SMs that decode gets (1: all)."""

    policy: int
    decode_share: float = 1.0


def sharings(grid: Grid, partition: Partition) -> list[Sharing]:
    """The ways to share that ``grid`` lists and ``partition`` admits; at least one.

    Where phases don't share steps, that is decode's priority unless the grid asks for tiles only.
    """
    plain = [name for name in grid.policies if name in ("chunked", "prioritized")]
    found = [Sharing(POLICIES.index(name)) for name in plain] if partition.shares_steps else []
    tiles = [Sharing(TILE_SHARED, share) for share in grid.decode_shares]
    if partition.is_joint and "tile_shared" in grid.policies:
        found += tiles
    if not partition.shares_steps and (DECODE_PRIORITY in grid.policies or not found):
        found = [Sharing(0), *found]
    return found


def expand(layouts: Candidates, chunks: FloatArray, ways: Sequence[Sharing]) -> Candidates:
    """Every layout with every chunk size and way to share; the batch is left as it is."""
    chunk, way = (a.reshape(-1) for a in np.meshgrid(chunks, np.arange(len(ways)), indexing="ij"))
    block = layouts.take(np.repeat(np.arange(len(layouts)), len(chunk)))
    return with_sharing(block, ways, np.tile(way, len(layouts))).replace(
        chunk_tokens=np.tile(chunk, len(layouts))
    )


def with_sharing(candidates: Candidates, ways: Sequence[Sharing], which: IntArray) -> Candidates:
    """Candidates that share GPUs in ``ways[which]`` [n]."""
    return candidates.replace(
        policy=np.array([way.policy for way in ways], dtype=np.int64)[which],
        decode_share=np.array([way.decode_share for way in ways])[which],
    )


def blocks(candidates: Candidates, rows: int = BLOCK_ROWS) -> Iterator[Candidates]:
    """The candidates in blocks of at most ``rows``: bounds the memory of an evaluation."""
    if len(candidates) <= rows:
        yield candidates
        return
    for start in range(0, len(candidates), rows):
        yield candidates.take(np.arange(start, min(start + rows, len(candidates))))


def with_loads(candidates: Candidates, values: FloatArray) -> Candidates:
    """Every candidate with every batch of ``values``, candidate by candidate."""
    repeated = candidates.take(np.repeat(np.arange(len(candidates)), len(values)))
    return repeated.replace(batch_size=np.tile(values, len(candidates)))
