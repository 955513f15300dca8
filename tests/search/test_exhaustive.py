"""The exhaustive search against brute force, and laws that it must keep as seen from outside."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from afd_dse.cost.evaluation import CONSTRAINTS
from afd_dse.cost.scenario import Scenario
from afd_dse.search.objective import Objective
from afd_dse.search.pool import Found, pareto_rows, scores
from afd_dse.search.run import ModeOutcome, search, size_of
from afd_dse.search.space import Space
from afd_dse.spec.cells import PARTITIONS, Partition, parse_partition
from tests.search.brute_force import everything
from tests.strategies import build, space

SEPARATE = [p for p in PARTITIONS if not p.is_joint]
PD = parse_partition("PA PF | DA DF")
SMALL = space(gpus=[1, 2, 4], ffn_gpus=[1, 2], tp=[1, 2], chunk_tokens=[2048, 8192])
TINY = space(gpus=[1, 2], ffn_gpus=[1], tp=[1], micro_batches=[2], chunk_tokens=[2048], policies=["chunked"])
MIXED = space(gpus=[1, 4], ffn_gpus=[1, 4], micro_batches=[2], chunk_tokens=[2048])
OBJECTIVES: tuple[Objective, ...] = ("throughput_per_gpu", "total_throughput", "usd_per_mtok", "fewest_gpus")
LIMITS = {"ttft_ms": 500, "tpot_ms": 20}


def moe(count: int = 8, accelerator: Any = "h100_sxm", **sections: Any) -> Scenario:
    pools = sections.pop("pools", [{"name": "main", "accelerator": accelerator, "count": count}])
    return build("Qwen/Qwen3-30B-A3B-FP8", pools, **({"slo": LIMITS} | sections))


def run(
    case: Scenario, where: Space, partition: Partition, objective: Objective = "throughput_per_gpu"
) -> ModeOutcome:
    return search(case, where, [("mode", partition)], objective, method="exhaustive").modes[0]


def best(case: Scenario, outcome: ModeOutcome, objective: Objective) -> float:
    if outcome.found is None or not len(outcome.ranking):
        return -np.inf
    return float(scores(case, objective, outcome.found)[outcome.ranking[0]])


def not_worse(value: float, than: float) -> bool:
    return value >= than - 1e-6 * abs(than) if np.isfinite(than) else True


def covered(front: Found, oracle: Found) -> bool:
    """Whether every point of the oracle's front is reached or beaten."""
    x, y = (front.evaluation.metrics[name] for name in ("tokens_per_s_per_user", "tokens_per_s_per_gpu"))
    u, v = (oracle.evaluation.metrics[name] for name in ("tokens_per_s_per_user", "tokens_per_s_per_gpu"))
    reached = (x[:, None] >= u * (1 - 1e-6)) & (y[:, None] >= v * (1 - 1e-6))
    return bool(reached.any(axis=0).all())


JOBS: dict[str, tuple[dict[str, Any], Space]] = {
    "limits": ({}, SMALL),
    "no limits": ({"slo": {}}, SMALL),
    "tight ttft": ({"slo": {"ttft_ms": 120, "tpot_ms": 20, "percentile": 95}}, SMALL),
    "demand": ({"demand": {"requests_per_s": 6.0}}, SMALL),
    "closed loop": ({"workload": {"arrival": {"kind": "closed_loop", "concurrency": 16}}}, SMALL),
    "two pools": (
        {
            "slo": {"ttft_ms": 900, "tpot_ms": 40},
            "pools": [
                {"name": "memory", "accelerator": "h20", "count": 8},
                {"name": "compute", "accelerator": "l40s", "count": 4},
            ],
        },
        MIXED,
    ),
    "slow network": ({"count": 16, "accelerator": {"base": "h100_sxm", "scale_out_bytes_per_s": 5e8}}, SMALL),
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
def test_the_search_is_never_worse_than_brute_force(job: str, partition: Partition) -> None:
    """In the best of every objective, and in the whole front."""
    sections, where = JOBS[job]
    case = moe(**sections)
    oracle = everything(case, where.whole, partition)
    for objective in OBJECTIVES[:3]:
        outcome = run(case, where, partition, objective)
        assert not_worse(best(case, outcome, objective), scores(case, objective, oracle).max()), objective
    if oracle.evaluation.feasible.any():
        assert covered(outcome.found.take(pareto_rows(outcome.found)), oracle.take(pareto_rows(oracle)))


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
def test_the_fewest_gpus_that_meet_a_demand_are_found(partition: Partition) -> None:
    case = moe(demand={"requests_per_s": 2.0})
    oracle = scores(case, "fewest_gpus", everything(case, SMALL.whole, partition)).max()
    assert best(case, run(case, SMALL, partition, "fewest_gpus"), "fewest_gpus") == oracle


@pytest.mark.parametrize("percentile", [50, 99])
@pytest.mark.parametrize("partition", SEPARATE, ids=lambda p: p.text)
def test_a_limit_on_the_whole_request_loses_nothing_to_brute_force(
    partition: Partition, percentile: float
) -> None:
    case = moe(slo={"request_latency_ms": 4500, "percentile": percentile})
    where = space(
        gpus=[1, 2],
        ffn_gpus=[1, 2],
        tp=[1, 2],
        micro_batches=[1],
        chunk_tokens=[2048, 8192],
        batch={"first": 2, "last": 64, "per_octave": 6},
    )
    oracle = scores(case, "throughput_per_gpu", everything(case, where.whole, partition)).max()
    assert not_worse(best(case, run(case, where, partition), "throughput_per_gpu"), oracle)


def test_chunks_that_leave_different_room_beside_decode_are_all_tried() -> None:
    """Both cut a prompt of 1000 in two, but only the larger leaves room for it beside 400 decode tokens."""
    case = moe(isl=1000, osl=1000, slo={"tpot_ms": 200})
    where = space(
        gpus=[4], tp=[4], chunk_tokens=[520, 950], batch={"first": 100, "last": 512, "per_octave": 4}
    )
    oracle = scores(case, "throughput_per_gpu", everything(case, where.whole, PARTITIONS[0])).max()
    assert not_worse(best(case, run(case, where, PARTITIONS[0]), "throughput_per_gpu"), oracle)


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
def test_a_dense_model_is_searched_as_well_as_brute_force_does(partition: Partition) -> None:
    case = build(
        "Qwen/Qwen3-32B-FP8",
        [{"name": "main", "accelerator": "h100", "count": 8}],
        slo={"ttft_ms": 900, "tpot_ms": 40},
    )
    oracle = scores(case, "throughput_per_gpu", everything(case, SMALL.whole, partition)).max()
    found = best(case, run(case, SMALL, partition), "throughput_per_gpu")
    assert np.isfinite(found)
    assert not_worse(found, oracle)


@lru_cache(maxsize=1)
def base_and_easier() -> list[Scenario]:
    """A job, and the same with more GPUs, more bandwidth or looser limits."""
    limits = {"ttft_ms": 1000, "tpot_ms": 20}  # what a shared pool of experts reaches on 8 GPUs
    base = moe(slo=limits)
    own = base.pools[0].accelerator

    def faster(rate: str, factor: float) -> Scenario:
        return moe(accelerator={"base": "h100_sxm", rate: getattr(own, rate) * factor}, slo=limits)

    return [
        base,
        moe(16, slo=limits),
        moe(24, slo=limits),
        faster("hbm_bytes_per_s", 1.3),
        faster("scale_up_bytes_per_s", 2.0),
        faster("scale_out_bytes_per_s", 2.0),
        moe(slo={"ttft_ms": 2000, "tpot_ms": 20}),
        moe(slo={"ttft_ms": 1000, "tpot_ms": 30}),
        moe(slo={}),
    ]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("text", ["PA PF DA DF", "PA PF | DA DF", "PA PF | DA | DF", "PA | DA | PF DF"])
def test_more_gpus_faster_links_and_looser_limits_never_make_the_best_worse(
    objective: Objective, text: str
) -> None:
    partition = parse_partition(text)
    found = []
    for case in base_and_easier():
        asked = case
        if objective == "fewest_gpus":
            asked = replace(case, workload=replace(case.workload, requests_per_s=2.0))
            asked.__dict__["shape_memory"] = case.shape_memory
        found.append(best(asked, run(asked, TINY, partition, objective), objective))
    assert np.isfinite(found[0])
    assert [number for number, value in enumerate(found) if not not_worse(value, found[0])] == []


def test_two_pools_are_never_over_their_budgets_and_both_are_used() -> None:
    sections, where = JOBS["two pools"]
    case = moe(**sections)
    used = np.zeros(2)
    for partition in PARTITIONS:
        outcome = run(case, where, partition, "total_throughput")
        by_pool = outcome.found.evaluation.gpus_by_pool[outcome.ranking]
        assert (by_pool <= case.pool_counts).all()
        used = np.maximum(used, by_pool.max(axis=0))
    assert (used > 0).all()


@pytest.mark.parametrize(
    "partition", [PARTITIONS[0], PD, parse_partition("PA | DA | PF DF")], ids=lambda p: p.text
)
@pytest.mark.parametrize(
    ("slo", "constraint"),
    [({"tpot_ms": 0.1}, "TPOT"), ({"ttft_ms": 1}, "TTFT"), ({"request_latency_ms": 20}, "request latency")],
)
def test_an_impossible_job_is_answered_with_near_misses(
    partition: Partition, slo: dict[str, float], constraint: str
) -> None:
    case = moe(slo=slo)
    outcome = run(case, SMALL, partition)
    assert len(outcome.ranking) == 0
    assert outcome.found is not None
    assert len(outcome.found)
    assert not outcome.found.evaluation.feasible.any()
    broken = (outcome.found.evaluation.slack < 0).any(axis=0)
    assert broken[CONSTRAINTS.index(constraint)]


def test_a_model_that_does_not_fit_says_so() -> None:
    case = build("deepseek-ai/DeepSeek-V3", [{"name": "main", "accelerator": "h100", "count": 8}])
    outcome = run(case, SMALL, PARTITIONS[0])
    assert len(outcome.ranking) == 0
    assert (outcome.found.evaluation.slack[:, CONSTRAINTS.index("memory")] < 0).all()


def test_a_cluster_smaller_than_every_layout_has_no_answer() -> None:
    outcome = run(moe(2), space(gpus=[4], ffn_gpus=[4]), PD)
    assert outcome.found is None
    assert outcome.note


@pytest.mark.parametrize("partition", PARTITIONS[:6], ids=lambda p: p.text)
def test_the_front_holds_no_row_that_another_beats_and_ranks_are_in_order(partition: Partition) -> None:
    case = moe()
    outcome = run(case, SMALL, partition)
    value = scores(case, "throughput_per_gpu", outcome.found)[outcome.ranking]
    assert np.isfinite(value).all()
    assert (np.diff(value) <= 1e-5 * np.abs(value[:-1])).all()
    rows = pareto_rows(outcome.found)
    m = outcome.found.evaluation.metrics
    x, y = m["tokens_per_s_per_user"][rows], m["tokens_per_s_per_gpu"][rows]
    beaten = (x[:, None] >= x) & (y[:, None] >= y) & ((x[:, None] > x) | (y[:, None] > y))
    assert not beaten.any()
    assert outcome.considered >= len(outcome.found)
    assert outcome.evaluated > 0


def test_of_equal_deployments_the_one_with_fewest_gpus_wins() -> None:
    """Without waiting that anyone limits, replicas change nothing but the size."""
    case = moe(slo={"tpot_ms": 20})
    outcome = run(case, SMALL, PARTITIONS[0])
    winner = outcome.found.take(outcome.ranking[:1]).candidates
    assert winner.integer("decode_replicas").tolist() == [1]


def test_auto_enumerates_what_the_space_admits_and_samples_the_rest() -> None:
    case = moe()
    rows = size_of(case, SMALL, PARTITIONS[0])
    for limit, method in ((rows, "exhaustive"), (rows - 1, "optuna")):
        where = SMALL.model_copy(update={"exhaustive_rows": limit})
        found = search(case, where, [("mode", PARTITIONS[0])], "throughput_per_gpu", trials=20).modes[0]
        assert found.method == method
        assert bool(found.note) == (method == "optuna")


def test_all_modes_together_answer_as_each_alone() -> None:
    case = moe()
    together = search(case, SMALL, [(p.text, p) for p in SEPARATE], "throughput_per_gpu", method="exhaustive")
    for outcome, partition in zip(together.modes, SEPARATE, strict=True):
        alone = run(case, SMALL, partition)
        assert best(case, outcome, "throughput_per_gpu") == best(case, alone, "throughput_per_gpu")
    assert together.evaluated == sum(outcome.evaluated for outcome in together.modes)
