"""What an evaluation holds, and what it computes when it is asked."""

import pickle

import numpy as np
from hypothesis import given, settings

from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.evaluation import EXPLAINED, JUDGED, METRICS, Breakdown, Evaluation
from afd_dse.spec.cells import PARTITIONS, partition_index
from tests.strategies import block, scenario, scenario_names, seeds


def equal(one: Breakdown, other: Breakdown) -> None:
    for name in EXPLAINED:
        np.testing.assert_array_equal(one.metrics[name], other.metrics[name], err_msg=name)
    np.testing.assert_array_equal(one.provenance, other.provenance)


@settings(max_examples=8)
@given(scenario_names, seeds)
def test_the_breakdown_of_some_rows_is_that_of_all_at_these_rows(name: str, seed: int) -> None:
    case = scenario(name)
    found = evaluate(case, block(case, seed))
    rows = np.random.default_rng(seed).permutation(len(found.slack))[:7]
    # Sums over kinds of layers may round otherwise where there are fewer rows.
    some, all_of_them = found.explain(rows), found.breakdown.take(rows)
    for metric in EXPLAINED:
        np.testing.assert_allclose(some.metrics[metric], all_of_them.metrics[metric], rtol=1e-12)
    np.testing.assert_allclose(some.provenance, all_of_them.provenance, rtol=1e-9, atol=1e-12)
    equal(found.take(rows).breakdown, some)


def test_rows_taken_keep_nothing_of_the_block() -> None:
    case = scenario()
    taken = evaluate(case, block(case, 1)).take(np.array([2, 0]))
    assert isinstance(getattr(taken.explain, "__self__", None), Breakdown)
    assert len(taken.breakdown.provenance) == 2


def test_another_process_gets_all_of_it() -> None:
    case = scenario()
    found = evaluate(case, block(case, 1))
    again = pickle.loads(pickle.dumps(found))
    for name in METRICS:
        np.testing.assert_array_equal(again.metrics[name], found.metrics[name])
    equal(again.breakdown, found.breakdown)


def test_metrics_are_all_named_and_come_in_order() -> None:
    case = scenario()
    metrics = evaluate(case, block(case, 1)).metrics
    assert tuple(metrics) == METRICS == (*JUDGED, *EXPLAINED)
    assert len(metrics) == len(METRICS)


def test_evaluations_of_fewer_groups_are_joined_with_zeros() -> None:
    case = scenario()
    candidates = block(case, 3)
    partitions = candidates.integer("partition")
    groups = np.array([len(partition.groups) for partition in PARTITIONS])[partitions]
    whole = evaluate(case, candidates)
    order = np.argsort(groups, kind="stable")
    parts = [evaluate(case, candidates.take(order[groups[order] == g])) for g in np.unique(groups)]
    joined = Evaluation.concatenate(parts)
    assert joined.memory.shape[1] == groups.max() > groups.min()
    np.testing.assert_allclose(joined.memory, whole.memory[order], rtol=1e-12)
    np.testing.assert_allclose(joined.memory_budget, whole.memory_budget[order], rtol=1e-12)
    one = partition_index(PARTITIONS[0])
    assert not joined.memory[partitions[order] == one, 1:].any()
