"""The search's oracle: every combination of a tiny grid by itertools, all evaluated."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from afd_dse.architecture.weights import legal_attention_tp, legal_dense_tp, legal_moe_tp
from afd_dse.cost.columns import PHASES, POLICIES, Candidates
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.scenario import Scenario
from afd_dse.search.pool import Found
from afd_dse.search.space import Grid
from afd_dse.spec.cells import ATTENTION_CELL, FFN_CELL, Cell, Partition, Phase, partition_index

Row = dict[str, int]


def cuts(case: Scenario, grid: Grid, group: tuple[Cell, ...], alone: bool) -> Iterator[Row]:
    """Legal cuts of one group of cells, written down anew from the rules."""
    attention = any(cell in ATTENTION_CELL for cell in group)
    ffn = any(cell in FFN_CELL for cell in group)
    experts = case.moe.experts if case.moe else 0
    for pool, tp, cp, pp in product(
        range(len(case.pools)),
        grid.tp if attention else [1],
        grid.cp if attention else [1],
        grid.pp if attention and ffn and alone else [1],
    ):
        domain = case.pools[pool].accelerator.scale_up_gpus
        if tp * cp > domain or (attention and not legal_attention_tp(case.model, tp)):
            continue
        for size in grid.gpus if attention else grid.ffn_gpus:
            if size % (tp * cp * pp) or size > case.pools[pool].count:
                continue
            stage = size // pp
            dp = stage // (tp * cp)
            base = {"pool": pool, "tp": tp, "dp": dp, "cp": cp, "pp": pp, "gpus": size}
            if not ffn:
                yield base | {"moe_tp": 1, "ep": 1, "redundant": 0}
            elif not experts:
                if not (attention and dp > 1) and legal_dense_tp(case.model, stage, case.quantization.gemm):
                    yield base | {"moe_tp": stage, "ep": 1, "redundant": 0}
            else:
                for moe_tp, redundant in product(grid.moe_tp, grid.redundant):
                    ep = stage // moe_tp
                    shard = tp * cp if attention else moe_tp
                    if (
                        stage % moe_tp == 0
                        and moe_tp <= domain
                        and ep <= experts + redundant
                        and (redundant == 0 or (experts + redundant) % ep == 0)
                        and legal_moe_tp(case.model, moe_tp, case.quantization.moe)
                        and legal_dense_tp(case.model, shard, case.quantization.gemm)
                    ):
                        yield base | {"moe_tp": moe_tp, "ep": ep, "redundant": redundant}


def _rows(case: Scenario, grid: Grid, partition: Partition) -> Iterator[dict[str, Any]]:
    parts = (
        [(tuple(Phase), partition.groups)]
        if partition.is_joint
        else [
            (
                (phase,),
                tuple(g for g in partition.groups if (ATTENTION_CELL[phase] in g or FFN_CELL[phase] in g)),
            )
            for phase in Phase
        ]
    )
    counts = np.array([pool.count for pool in case.pools])
    units: list[list[tuple[dict[str, int], np.ndarray]]] = []
    for phases, groups in parts:
        found = []
        for picked in product(*(list(cuts(case, grid, group, len(groups) == 1)) for group in groups)):
            used = np.zeros(len(counts), dtype=int)
            cells: dict[Cell, Row] = {}
            for group, cut in zip(groups, picked, strict=True):
                used[cut["pool"]] += cut["gpus"]
                cells |= dict.fromkeys(group, cut)
            columns: Row = {}
            for phase in phases:
                a, f, name = cells[ATTENTION_CELL[phase]], cells[FFN_CELL[phase]], PHASES[phase]
                columns |= {f"{name}_{key}": a[key] for key in ("tp", "dp", "cp", "pp")}
                columns |= {f"{name}_{key}": f[key] for key in ("moe_tp", "ep", "redundant")}
                columns |= {f"{name}_attention_pool": a["pool"], f"{name}_ffn_pool": f["pool"]}
            for micro_batches, replicas in product(grid.micro_batches, range(1, int(counts.max()) + 1)):
                if (used * replicas > counts).any():
                    continue
                more = {
                    f"{PHASES[phase]}_{key}": value
                    for phase in phases
                    for key, value in (("micro_batches", micro_batches), ("replicas", replicas))
                }
                found.append((columns | more, used * replicas))
        units.append(found)
    for chosen in product(*units):
        if not (sum(used for _, used in chosen) > counts).any():
            yield {key: value for columns, _ in chosen for key, value in columns.items()}


def everything(case: Scenario, grid: Grid, partition: Partition) -> Found:
    """All layouts × replicas × batches × chunks × policies of ``partition`` within the cluster, evaluated."""
    rows = list(_rows(case, grid, partition))
    ways = [(0, 1.0)]
    if partition.shares_steps:
        ways = [(POLICIES.index(name), 1.0) for name in grid.policies if name in ("chunked", "prioritized")]
    if partition.is_joint and "tile_shared" in grid.policies:
        ways += [(POLICIES.index("tile_shared"), share) for share in grid.decode_shares]
    loads = [(*load, *way) for load in product(grid.batch.values(), grid.chunk_tokens) for way in ways]
    names = list(rows[0])
    table = np.repeat(np.array([[row[name] for name in names] for row in rows]), len(loads), axis=0)
    load = np.tile(np.array(loads, dtype=float), (len(rows), 1))
    candidates = Candidates.of(
        partition=partition_index(partition),
        **{name: table[:, number] for number, name in enumerate(names)},
        batch_size=load[:, 0],
        chunk_tokens=load[:, 1],
        policy=load[:, 2].astype(int),
        decode_share=load[:, 3],
    )
    return Found(candidates, evaluate(case, candidates))
