"""How many deployments a mode's space holds, without evaluating any."""

import numpy as np

from afd_dse.cost.columns import PHASES
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray
from afd_dse.search.joint import most_replicas
from afd_dse.search.layouts import enumerate_layouts, sharings
from afd_dse.search.space import Space
from afd_dse.spec.cells import Partition, Phase


def pair_count(prefill_gpus: FloatArray, decode_gpus: FloatArray, limit: int) -> int:
    """Deployments that units of these sizes [n] make: prefill × decode units × replicas of both within ``limit`` GPUs.

    Units beyond the limit are left out.
    """
    # Units of g GPUs repeated r times take r·g: how many (unit, replicas) take exactly G GPUs.
    exact = [np.zeros(limit + 1) for _ in range(2)]
    for sizes, totals in zip((prefill_gpus, decode_gpus), exact, strict=True):
        counts = np.bincount(sizes.astype(np.int64), minlength=limit + 1)[: limit + 1]
        for gpus in np.flatnonzero(counts):
            if gpus:
                totals[gpus::gpus] += counts[gpus]
    decode_up_to = np.cumsum(exact[1])
    return int(sum(exact[0][g] * decode_up_to[limit - g] for g in range(1, limit)))


def deployments(scenario: Scenario, space: Space, partition: Partition) -> int:
    """Deployments of ``partition``: layouts × loads or chunks × replicas that fit × ways to share."""
    if partition.is_joint:
        grid = space.grid(partition, Phase.DECODE)
        layouts = enumerate_layouts(scenario, partition, tuple(Phase), grid)
        replicas = int(most_replicas(scenario, partition, layouts).sum()) if len(layouts) else 0
        ways = len(sharings(grid, partition))
        return replicas * len(grid.chunk_tokens) * len(grid.batch.values()) * ways
    sizes = []
    for phase in Phase:
        grid = space.grid(partition, phase)
        layouts = enumerate_layouts(scenario, partition, (phase,), grid)
        name = PHASES[phase]
        gpus = layouts.number(f"{name}_tp") * layouts.number(f"{name}_dp")
        gpus = gpus * layouts.number(f"{name}_cp") * layouts.number(f"{name}_pp")
        if partition.splits(phase):
            gpus = gpus + layouts.number(f"{name}_moe_tp") * layouts.number(f"{name}_ep")
        repeated = len(grid.chunk_tokens) if phase == Phase.PREFILL else len(grid.batch.values())
        sizes.append(np.repeat(gpus, repeated))
    return pair_count(sizes[0], sizes[1], int(scenario.pool_counts.sum()))


__all__ = ["deployments", "pair_count"]
