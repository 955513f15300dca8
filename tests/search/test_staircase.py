"""Staircases against brute force, against the search, and their laws."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.scenario import Scenario
from afd_dse.search.pool import Found
from afd_dse.search.run import search, size_of
from afd_dse.search.space import Space
from afd_dse.search.stair_steps import best_within, largest_of_each, steps
from afd_dse.search.staircase import Staircase, staircase
from afd_dse.spec.cells import PARTITIONS, Partition, parse_partition
from tests.search.brute_force import everything
from tests.search.test_exhaustive import JOBS, MIXED, SMALL, TINY, moe
from tests.strategies import space

SOME = [PARTITIONS[0], *(parse_partition(t) for t in ("PA PF | DA DF", "PA PF DF | DA", "PA | PF | DA DF"))]
CASES = [(job, p) for job in ("limits", "two pools") for p in PARTITIONS]
CASES += [(job, p) for job in ("tight ttft", "slow network") for p in SOME]
PD = parse_partition("PA PF | DA DF")
SAME = 1.0 - 1e-6


@lru_cache(maxsize=64)
def known(job: str, partition: Partition) -> tuple[Scenario, Space, Staircase]:
    sections, where = JOBS[job]
    case = moe(**({"count": 6} | sections if job == "limits" else sections))
    return case, where, staircase(case, where, [("mode", partition)])


def reaches(found: Found | None, gpus: Any, rate: Any) -> bool:
    """Whether for every row some step serves as much on no more GPUs of any pool."""
    if not len(rate):
        return True
    if found is None:
        return False
    own, most = found.evaluation.gpus_by_pool, found.evaluation.metrics["requests_per_s"]
    return bool((best_within(own, most, np.asarray(gpus)) >= rate * SAME).all())


@pytest.mark.parametrize(("job", "partition"), CASES, ids=lambda v: v if isinstance(v, str) else v.text)
def test_no_deployment_of_brute_force_serves_more_on_as_few_gpus(job: str, partition: Partition) -> None:
    case, where, stairs = known(job, partition)
    oracle = everything(case, where.whole, partition)
    oracle = oracle.take(oracle.evaluation.feasible)
    assert reaches(stairs.found, oracle.evaluation.gpus_by_pool, oracle.evaluation.metrics["requests_per_s"])


@pytest.mark.parametrize("partition", [PARTITIONS[0], PD], ids=lambda p: p.text)
def test_a_limit_on_the_whole_request_loses_nothing_to_brute_force(partition: Partition) -> None:
    case = moe(6, slo={"request_latency_ms": 4500})
    where = space(
        gpus=[1, 2],
        ffn_gpus=[1],
        tp=[1, 2],
        micro_batches=[1],
        chunk_tokens=[2048, 8192],
        batch={"first": 2, "last": 64, "per_octave": 6},
    )
    oracle = everything(case, where.whole, partition)
    oracle = oracle.take(oracle.evaluation.feasible)
    found = staircase(case, where, [("mode", partition)]).found
    assert reaches(found, oracle.evaluation.gpus_by_pool, oracle.evaluation.metrics["requests_per_s"])


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
def test_every_step_holds_its_limits_as_the_evaluator_has_it_and_none_beats_another(
    partition: Partition,
) -> None:
    case, _, stairs = known("two pools", partition)
    found = stairs.found
    assert found is not None
    again = evaluate(case, found.candidates)
    assert again.feasible.all()
    rate, gpus = again.metrics["requests_per_s"], again.gpus_by_pool
    np.testing.assert_allclose(rate, found.evaluation.metrics["requests_per_s"], rtol=1e-9)
    assert (np.diff(rate) >= 0.0).all()
    assert len(steps(gpus, rate)) == len(rate)


@pytest.mark.parametrize(("job", "partition"), CASES[::2], ids=lambda v: v if isinstance(v, str) else v.text)
def test_the_last_step_is_what_the_search_finds_for_the_whole_cluster(job: str, partition: Partition) -> None:
    case, where, stairs = known(job, partition)
    outcome = search(case, where, [("mode", partition)], "total_throughput", method="exhaustive").modes[0]
    if not len(outcome.ranking):
        assert stairs.found is None
        return
    assert stairs.found is not None
    best = float(outcome.found.evaluation.metrics["requests_per_s"][outcome.ranking[0]])
    last = float(stairs.found.evaluation.metrics["requests_per_s"][-1])
    # Both end a section of a step of the grid of loads below a limit, hundreds of them in a step.
    assert last >= best * where.whole.batch.ratio**-0.003
    assert last <= best * where.whole.batch.ratio**0.01
    assert stairs.modes[0].considered == outcome.considered


@pytest.mark.parametrize("text", ["PA PF DA DF", "PA PF | DA | DF", "PA | DA | PF DF"])
def test_a_smaller_cluster_has_the_lower_steps_of_a_larger_one(text: str) -> None:
    """So the staircase of the whole cluster answers for every share of it."""
    mode = [("mode", parse_partition(text))]
    slo = {"ttft_ms": 1000, "tpot_ms": 20}
    large = staircase(moe(12, slo=slo), TINY, mode).found
    assert large is not None
    for count in (1, 3, 8):
        small = staircase(moe(count, slo=slo), TINY, mode).found
        sizes, rates = large.evaluation.gpus_by_pool, large.evaluation.metrics["requests_per_s"]
        fits = float(best_within(sizes, rates, np.array([[float(count)]]))[0])
        most = 0.0 if small is None else float(small.evaluation.metrics["requests_per_s"][-1])
        assert most == pytest.approx(fits, rel=1e-4), count


def test_all_modes_together_have_the_best_step_of_any() -> None:
    case = moe(6)
    modes = [(p.text, p) for p in PARTITIONS[:4]]
    together = staircase(case, SMALL, modes)
    assert together.exact
    assert "exact over" in together.explanation
    for alone in together.modes:
        if alone.found is not None:
            m = alone.found.evaluation
            assert together.found is not None
            steps_alone = together.found.take(together.steps)
            assert reaches(steps_alone, m.gpus_by_pool, m.metrics["requests_per_s"])
    assert together.found is not None
    assert set(together.mode_of) <= set(range(len(modes)))
    rate = together.found.evaluation.metrics["requests_per_s"][together.steps]
    assert (np.diff(rate) > 0.0).all()


def test_what_cannot_be_enumerated_is_searched_in_the_smaller_space_or_left_out_and_told() -> None:
    case = moe(4)
    limit = size_of(case, MIXED, PARTITIONS[0]) - 1
    alone = MIXED.model_copy(update={"exhaustive_rows": limit})
    stairs = staircase(case, alone, [("mode", PARTITIONS[0])])
    assert stairs.found is None
    assert not stairs.exact
    assert "left out: mode" in stairs.explanation
    smaller = staircase(case, alone.model_copy(update={"start": "quick"}), [("mode", PARTITIONS[0])])
    assert smaller.found is not None
    assert not smaller.exact
    assert "smaller space 'quick': mode" in smaller.explanation


def test_a_cluster_or_limit_too_small_for_every_layout_has_no_step() -> None:
    assert staircase(moe(2), space(gpus=[4], ffn_gpus=[4]), [("mode", PD)]).found is None
    for partition in (PARTITIONS[0], PD):
        assert staircase(moe(4, slo={"tpot_ms": 0.1}), TINY, [("mode", partition)]).found is None


@settings(max_examples=60)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.floats(0.1, 9.0)), min_size=1, max_size=30
    ),
    pools=st.sampled_from([1, 2]),
)
def test_steps_are_the_rows_that_no_other_beats(rows: list[tuple[int, int, float]], pools: int) -> None:
    table = np.array(rows, dtype=np.float64)
    gpus, rate = table[:, :pools], table[:, 2]
    kept = steps(gpus, rate)
    assert (best_within(gpus[kept], rate[kept], gpus) >= rate * SAME).all()
    for one in kept:
        others = kept[kept != one]
        beaten = (gpus[others] <= gpus[one]).all(axis=1) & (rate[others] >= rate[one])
        assert not beaten.any()
    each = largest_of_each(gpus, rate)
    assert len(each) == len(np.unique(gpus, axis=0))
    assert (rate[each] == [rate[(gpus == gpus[row]).all(axis=1)].max() for row in each]).all()
