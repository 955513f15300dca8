"""Bounds of deployments whose phases share GPUs: they hold, and they leave out nothing that matters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.cost.columns import Candidates
from afd_dse.cost.evaluate import MAX_UTILIZATION, evaluate
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.descent import BoolArray, Points
from afd_dse.search.joint import all_layouts, points_of, search_joint
from afd_dse.search.objective import Objective, rates_of
from afd_dse.search.pareto import NEAR
from afd_dse.search.pool import Found, pareto_rows
from afd_dse.search.space import Grid
from afd_dse.search.undisturbed import FIRST, FIRST_SHARE, Undisturbed
from afd_dse.spec.cells import PARTITIONS, Partition, Phase, parse_partition
from tests.strategies import block, build, scenario, scenario_names, seeds, space

BESIDE = [p for p in PARTITIONS if p.is_joint and not p.shares_steps]
SHARED_EXPERTS = parse_partition("PA | PF DF | DA")
WHERE = space(
    gpus=[1, 2, 4],
    ffn_gpus=[1, 2, 4],
    tp=[1, 2],
    chunk_tokens=[2048, 8192],
    batch={"first": 0.25, "last": 512, "per_octave": 2},
)


def some(gpus: int, tpot_ms: float = 30) -> Scenario:
    return build(
        "Qwen/Qwen3-30B-A3B-FP8",
        [{"name": "main", "accelerator": "h100_sxm", "count": gpus}],
        slo={"ttft_ms": 800, "tpot_ms": tpot_ms},
    )


CASE = some(8)


def candidates_of(case: Scenario, partition: Partition) -> Candidates:
    return all_layouts(case, partition, WHERE.grid(partition, Phase.DECODE))[0]


def evaluated(case: Scenario, candidates: Candidates, objective: Objective = "throughput_per_gpu") -> Points:
    return points_of(objective, Found(candidates, evaluate(case, candidates)))


@given(scenario_names, st.sampled_from(BESIDE), seeds)
def test_beside_the_other_phase_nothing_is_faster_nor_serves_more(
    name: str, partition: Partition, seed: int
) -> None:
    case = scenario(name)
    candidates = block(case, seed, 30, [partition])
    bound = Undisturbed(case, partition, "throughput_per_gpu", candidates)
    points = bound.points(np.arange(len(candidates)), candidates.number("batch_size"))
    m = evaluate(case, candidates).metrics
    possible = m["prefill_utilization"] <= MAX_UTILIZATION
    assert (m["tpot_s"] >= points.tpot_s * (1.0 - 1e-9))[possible].all()
    rates = rates_of("throughput_per_gpu", m)[possible]
    assert (rates <= points.rates[possible] * (1.0 + 1e-9)).all()


@pytest.mark.parametrize("objective", ["throughput_per_gpu", "total_throughput", "usd_per_mtok"])
def test_where_phases_do_not_meet_the_bound_is_what_they_do(objective: Objective) -> None:
    """Little load on a large cluster: what decode waits for prefill is next to nothing."""
    candidates = candidates_of(CASE, SHARED_EXPERTS).replace(batch_size=0.25)
    rows = np.arange(len(candidates))
    points = Undisturbed(CASE, SHARED_EXPERTS, objective, candidates).points(rows, np.full(len(rows), 0.25))
    found = evaluated(CASE, candidates, objective)
    assert np.median(found.rates / points.rates, axis=0) == pytest.approx(1.0, rel=0.02)
    assert points.rates.shape == found.rates.shape


def test_nothing_is_hopeless_before_something_is_reached() -> None:
    candidates = candidates_of(CASE, SHARED_EXPERTS)
    bound = Undisturbed(CASE, SHARED_EXPERTS, "throughput_per_gpu", candidates)
    rows, batch = np.arange(len(candidates)), np.full(len(candidates), 512.0)
    points = bound.points(rows, batch)
    assert not bound.hopeless(rows, batch, points, 2.0).any()
    bound.learn(evaluated(CASE, candidates.replace(batch_size=4.0)))
    assert bound.hopeless(rows, batch, points, 2.0).any()


@pytest.mark.parametrize("partition", BESIDE, ids=lambda p: p.text)
def test_what_is_hopeless_comes_near_to_nothing_that_is_reached(partition: Partition) -> None:
    candidates = candidates_of(CASE, partition)
    bound = Undisturbed(CASE, partition, "throughput_per_gpu", candidates)
    reached = [evaluated(CASE, candidates.replace(batch_size=load)) for load in (8.0, 64.0)]
    for one in reached:
        bound.learn(one)
    tpot, rate = (
        np.concatenate([getattr(one, name)[one.holds] for one in reached]) for name in ("tpot_s", "rates")
    )
    left_out = 0
    for batch in (1.0, 8.0, 32.0, 128.0):
        rows, load = np.arange(len(candidates)), np.full(len(candidates), batch)
        found = evaluated(CASE, candidates.replace(batch_size=batch))
        hopeless = bound.hopeless(rows, load, bound.points(rows, load), WHERE.shared.batch.ratio)
        left = hopeless & found.holds
        for own_tpot, own in zip(found.tpot_s[left], found.rates[left, 0], strict=True):
            assert rate[tpot <= own_tpot, 0].max() * NEAR >= own
        left_out += int(hopeless.sum())
    assert left_out > 0.5 * len(candidates)


def test_the_first_ones_are_few_and_reach_most_of_the_front() -> None:
    candidates, batches = candidates_of(CASE, SHARED_EXPERTS), WHERE.shared.batch.values()
    bound = Undisturbed(CASE, SHARED_EXPERTS, "throughput_per_gpu", candidates)
    rows, batch = bound.first(batches)
    assert 0 < len(rows) <= min(FIRST, FIRST_SHARE * len(candidates) * len(batches))
    assert (bound.points(rows, batch).tpot_s <= CASE.slo.tpot_s).all()
    first = evaluated(CASE, candidates.take(rows).replace(batch_size=batch))
    every = [evaluated(CASE, candidates.replace(batch_size=load)) for load in batches]
    best = max(one.rates[one.holds].max(initial=0.0) for one in every)
    assert first.rates[first.holds].max() >= 0.8 * best


def test_where_nothing_is_within_the_limits_all_layouts_are_looked_at() -> None:
    case, grid = some(8, tpot_ms=0.1), WHERE.shared
    candidates = candidates_of(case, SHARED_EXPERTS)
    bound = Undisturbed(case, SHARED_EXPERTS, "throughput_per_gpu", candidates)
    assert not len(bound.first(grid.batch.values())[0])
    found, _, rows = search_joint(case, SHARED_EXPERTS, grid, "throughput_per_gpu", lambda _: None)
    assert found is not None
    assert not found.evaluation.feasible.any()
    assert rows >= len(candidates)


@pytest.mark.parametrize("partition", BESIDE, ids=lambda p: p.text)
def test_the_front_is_that_of_a_search_without_bounds(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    front, _ = front_and_rows(partition, WHERE.grid(partition, Phase.DECODE))
    monkeypatch.setattr(Undisturbed, "hopeless", nothing)
    whole, _ = front_and_rows(partition, WHERE.grid(partition, Phase.DECODE))
    as_good = (front[None, :, :] >= whole[:, None, :] * (1.0 - 1e-9)).all(axis=2)
    assert as_good.any(axis=1).all()


def test_of_many_rows_few_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [1, 2, 4, 8, 16]
    grid = space(gpus=sizes, ffn_gpus=sizes, tp=[1, 2], chunk_tokens=[1024, 2048, 4096, 8192]).shared
    _, rows = front_and_rows(SHARED_EXPERTS, grid, some(32))
    monkeypatch.setattr(Undisturbed, "hopeless", nothing)
    _, most = front_and_rows(SHARED_EXPERTS, grid, some(32))
    assert rows < 0.5 * most


def front_and_rows(partition: Partition, grid: Grid, case: Scenario = CASE) -> tuple[FloatArray, int]:
    """The front of a search, speed per user and throughput per GPU [n, 2], and how many rows it evaluated."""
    found, _, rows = search_joint(case, partition, grid, "throughput_per_gpu", lambda _: None)
    assert found is not None
    m, front = found.evaluation.metrics, pareto_rows(found)
    return np.column_stack([m["tokens_per_s_per_user"], m["tokens_per_s_per_gpu"]])[front], rows


def nothing(_: Undisturbed, rows: IntArray, *others: object) -> BoolArray:
    """Nothing is hopeless."""
    return np.zeros(len(rows), dtype=bool)
