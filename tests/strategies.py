"""Catalogue scenarios, random legal layouts of every partition and small search spaces for tests."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from afd_dse.architecture.weights import legal_attention_tp, legal_dense_tp, legal_moe_tp
from afd_dse.cost.columns import EXPERT_POLICIES, PHASES, POLICIES, TILE_SHARED, Candidates
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Scenario
from afd_dse.search.space import BatchGrid, Grid, Space
from afd_dse.spec.cells import ATTENTION_CELL, FFN_CELL, PARTITIONS, Cell, Partition, Phase, partition_index
from afd_dse.spec.load import load_job

DEEPSEEK = "deepseek-ai/DeepSeek-V3"
B200_16 = ({"name": "main", "accelerator": "b200_sxm", "count": 16},)

# name -> job; every scenario of the catalogue is legal for every partition.
JOBS: Mapping[str, Mapping[str, Any]] = {
    "deepseek-v3 on b200": {"model": DEEPSEEK, "pools": B200_16},
    "deepseek-v3.2 on h200": {
        "model": "deepseek-ai/DeepSeek-V3.2",
        "pools": ({"name": "main", "accelerator": "h200_sxm", "count": 32},),
        "framework": "sglang",
    },
    "qwen3-32b on h100": {
        "model": "Qwen/Qwen3-32B-FP8",
        "pools": ({"name": "main", "accelerator": "h100_sxm", "count": 8},),
    },
    "gpt-oss-120b on b200": {
        "model": "openai/gpt-oss-120b",
        "pools": ({"name": "main", "accelerator": "b200_sxm", "count": 8},),
    },
    "glm-4.5 on h200 and b200": {
        "model": "zai-org/GLM-4.5-FP8",
        "pools": (
            {"name": "old", "accelerator": "h200_sxm", "count": 16},
            {"name": "new", "accelerator": "b200_sxm", "count": 16},
        ),
    },
    "qwen3-30b on h20 and l40s": {
        "model": "Qwen/Qwen3-30B-A3B-FP8",
        "pools": (
            {"name": "memory", "accelerator": "h20", "count": 8},
            {"name": "compute", "accelerator": "l40s", "count": 8},
        ),
        "framework": "vllm",
    },
}
SCENARIOS = tuple(JOBS)


def build(
    model: str = DEEPSEEK,
    pools: Sequence[Mapping[str, Any]] = B200_16,
    *,
    isl: Any = 2048,
    osl: Any = 512,
    slo: Mapping[str, Any] | None = None,
    workload: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Scenario:
    """A scenario by way of the job that a user would write; without limits unless ``slo`` gives them."""
    job = {
        "model": model,
        "cluster": {"pools": [dict(pool) for pool in pools]},
        "workload": {"input_tokens": isl, "output_tokens": osl, **(workload or {})},
        "slo": dict(slo or {}),
        **sections,
    }
    return scenario_from_job(load_job(job))


def scenario(name: str = SCENARIOS[0]) -> Scenario:
    """A scenario of :data:`JOBS`, built once."""
    return _scenario(name)


# Apart from its default, with which a cache would hold two of the same.
@lru_cache(maxsize=64)
def _scenario(name: str) -> Scenario:
    return build(**JOBS[name])


def overridden(name: str, **rates: float) -> Scenario:
    """A scenario of :data:`JOBS` whose accelerators all have other rates, as factors of their own."""
    job = dict(JOBS[name])
    base = scenario(name)
    pools = []
    for pool, given in zip(job["pools"], base.pools, strict=True):
        changed = {key: getattr(given.accelerator, key) * factor for key, factor in rates.items()}
        pools.append({**pool, "accelerator": {"base": pool["accelerator"], **changed}})
    job["pools"] = pools
    return build(**job)


def layout(
    case: Scenario,
    partition: Partition,
    rng: np.random.Generator,
    *,
    degrees: Sequence[int] = (1, 2, 4),
    plain: bool = False,
    **columns: Any,
) -> Candidates:
    """One random legal candidate of ``partition``; ``plain`` without pipeline and context parallelism."""
    cells: dict[Cell, dict[str, int]] = {}
    for group in partition.groups:
        cells |= dict.fromkeys(group, _cut(case, partition, group, rng, degrees, plain))
    row: dict[str, Any] = {
        "partition": partition_index(partition),
        "policy": _policy(partition, rng),
        "decode_share": float(rng.choice([0.25, 0.5, 0.75])),
        "batch_size": float(2.0 ** rng.uniform(-1.0, 7.0)),
        "chunk_tokens": float(rng.choice([512, 1024, 3000, 8192])),
    }
    repeats = {phase: (int(rng.integers(1, 4)), int(rng.integers(1, 4))) for phase in Phase}
    for phase, name in enumerate(PHASES):
        attention, ffn = cells[ATTENTION_CELL[phase]], cells[FFN_CELL[phase]]
        micro_batches, replicas = repeats[Phase.DECODE if partition.is_joint else Phase(phase)]
        row |= {f"{name}_{key}": attention[key] for key in ("tp", "dp", "cp", "pp")} | {
            f"{name}_{key}": ffn[key] for key in ("moe_tp", "ep", "redundant", "expert_policy")
        }
        row |= {f"{name}_attention_pool": attention["pool"], f"{name}_ffn_pool": ffn["pool"]}
        row |= {f"{name}_micro_batches": micro_batches, f"{name}_replicas": replicas}
    return Candidates.of(**(row | columns))


def _policy(partition: Partition, rng: np.random.Generator) -> int:
    """One of the policies that mean something in ``partition``."""
    if not partition.is_joint:
        return 0
    known = range(len(POLICIES)) if partition.shares_steps else (0, TILE_SHARED)
    return int(rng.choice(known))


def _cut(
    case: Scenario,
    partition: Partition,
    group: Sequence[Cell],
    rng: np.random.Generator,
    degrees: Sequence[int],
    plain: bool,
) -> dict[str, int]:
    """Pool and shards of one group: attention on tp·dp·cp GPUs a stage, experts on moe_tp·ep, equal if it has both."""
    attention = any(cell in ATTENTION_CELL for cell in group)
    ffn = any(cell in FFN_CELL for cell in group)
    whole = all(not partition.splits(phase) for phase in Phase)
    while True:
        tp, dp, moe_tp, ep = (int(rng.choice(degrees)) for _ in range(4))
        cp = 1 if plain else int(rng.choice([1, 1, 2]))
        pp = int(rng.choice([1, 2])) if attention and ffn and whole and not plain else 1
        pool = int(rng.integers(len(case.pools)))
        if not attention:
            tp = dp = cp = 1
        if case.moe is None:
            dp, ep, moe_tp = (1 if ffn else dp), 1, (tp * cp if attention else moe_tp)
        elif attention:
            stage = tp * dp * cp
            if stage % moe_tp:
                continue
            ep = stage // moe_tp
        shard = tp * cp if attention else moe_tp
        legal = legal_attention_tp(case.model, tp)
        if ffn:
            legal = legal & legal_dense_tp(case.model, shard, case.quantization.gemm)
            legal = legal & (case.moe is None or legal_moe_tp(case.model, moe_tp, case.quantization.moe))
        if bool(legal):
            break
    if not ffn:
        moe_tp = ep = 1
    spare = ffn and case.moe is not None and rng.random() < 0.3 and case.moe.experts % ep == 0
    return {
        "pool": pool,
        "tp": tp,
        "dp": dp,
        "cp": cp,
        "pp": pp,
        "moe_tp": moe_tp,
        "ep": ep,
        "redundant": ep if spare else 0,
        "expert_policy": int(rng.integers(len(EXPERT_POLICIES))) if spare else 0,
    }


def block(
    case: Scenario, seed: int, each: int = 1, partitions: Sequence[Partition] = PARTITIONS, **columns: Any
) -> Candidates:
    """``each`` random candidates of every partition; ``columns`` overrides as in :func:`layout`."""
    rng = np.random.default_rng(seed)
    return Candidates.concatenate([layout(case, p, rng, **columns) for p in partitions for _ in range(each)])


seeds = st.integers(0, 2**32 - 1)
scenario_names = st.sampled_from(SCENARIOS)
partitions = st.sampled_from(PARTITIONS)


def grid(**fields: Any) -> Grid:
    """A tiny grid; ``fields`` replace its lists."""
    small: dict[str, Any] = {
        "gpus": [4, 8],
        "ffn_gpus": [4, 8],
        "tp": [1, 4],
        "moe_tp": [1],
        "micro_batches": [1, 2],
        "batch": {"first": 2, "last": 128, "per_octave": 1},
        "chunk_tokens": [1024, 4096],
    }
    return Grid.model_validate(small | fields)


def space(exhaustive_rows: int = 1_000_000, **fields: Any) -> Space:
    """A tiny space of one grid for all structures."""
    one = grid(**fields)
    return Space(name="tiny", whole=one, split=one, shared=one, exhaustive_rows=exhaustive_rows)


__all__ = [
    "JOBS",
    "SCENARIOS",
    "BatchGrid",
    "block",
    "build",
    "grid",
    "layout",
    "overridden",
    "partitions",
    "scenario",
    "scenario_names",
    "seeds",
    "space",
]
