"""The split of a cluster against all splits there are."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.planning.split import NOTHING, Choices, Cluster, Split, fewest, growth, weighted

Case = tuple[Choices, Cluster, np.ndarray, np.ndarray]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """One to three models with up to five choices each on one or two pools, demands and weights."""
    pools, models = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    counts = np.array(draw(st.lists(st.integers(1, 12), min_size=pools, max_size=pools)), dtype=np.float64)
    prices = np.array(draw(st.lists(st.integers(0, 5), min_size=pools, max_size=pools)), dtype=np.float64)
    rows: list[tuple[int, tuple[int, ...], float]] = []
    for model in range(models):
        for _ in range(draw(st.integers(0, 5))):
            gpus = tuple(draw(st.integers(0, 8)) for _ in range(pools))
            if any(gpus):
                rows.append((model, gpus, float(draw(st.integers(1, 40))) / 4.0))
    rate = np.array([row[2] for row in rows])
    choices = Choices(
        np.array([row[0] for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows], dtype=np.float64).reshape(len(rows), pools),
        rate,
        100.0 * rate,
    )
    demand = np.array(draw(st.lists(st.integers(1, 20), min_size=models, max_size=models))) / 4.0
    weight = np.array(draw(st.lists(st.integers(1, 5), min_size=models, max_size=models)), dtype=np.float64)
    return choices, Cluster(counts, prices), demand, weight


def splits(case: Case, *, nothing: bool) -> Iterator[np.ndarray]:
    """All splits that fit into the cluster; with ``nothing`` a model may get no GPUs."""
    choices, cluster, demand, _ = case
    mine = [np.flatnonzero(choices.of_model == model).tolist() for model in range(len(demand))]
    for picked in itertools.product(*([NOTHING, *rows] if nothing else rows for rows in mine)):
        split = np.array(picked, dtype=np.int64)
        if (gpus_of(choices, split) <= cluster.counts).all():
            yield split


def gpus_of(choices: Choices, split: np.ndarray) -> np.ndarray:
    return choices.gpus[split[split != NOTHING]].sum(axis=0)


def check(case: Case, found: Split | None) -> None:
    """A split takes at most one choice of its own of every model, and no more GPUs than there are."""
    choices, cluster, demand, _ = case
    if found is None:
        return
    assert found.gap == 0.0
    assert len(found.choice) == len(demand)
    for model, row in enumerate(found.choice):
        assert row == NOTHING or choices.of_model[row] == model
    assert (gpus_of(choices, found.choice) <= cluster.counts).all()


@settings(max_examples=60)
@given(case=cases(), objective=st.sampled_from(["fewest_gpus", "usd_per_hour"]))
def test_demands_are_met_as_well_as_the_best_of_all_splits_does(case: Case, objective: str) -> None:
    choices, cluster, demand, _ = case

    def cost(split: np.ndarray) -> tuple[float, float]:
        gpus = gpus_of(choices, split)
        pair = float(gpus.sum()), float(gpus @ cluster.usd_per_gpu_hour)
        return pair if objective == "fewest_gpus" else pair[::-1]

    met = [s for s in splits(case, nothing=False) if (choices.requests_per_s[s] >= demand).all()]
    found = fewest(choices, cluster, demand, objective)
    check(case, found)
    assert (found is None) == (not met)
    if found is not None:
        assert cost(found.choice) == pytest.approx(min(map(cost, met)))
        assert (choices.requests_per_s[found.choice] >= demand).all()


@settings(max_examples=60)
@given(case=cases())
def test_no_split_lets_all_demands_grow_further(case: Case) -> None:
    choices, cluster, demand, _ = case
    factors = [
        (float((choices.requests_per_s[s] / demand).min()), float(gpus_of(choices, s).sum()))
        for s in splits(case, nothing=False)
    ]
    factor, found = growth(choices, cluster, demand)
    check(case, found)
    assert factor == pytest.approx(max((f for f, _ in factors), default=0.0))
    if found is not None:
        least = min(gpus for f, gpus in factors if f >= factor * (1.0 - 1e-9))
        assert gpus_of(choices, found.choice).sum() == pytest.approx(least)


@settings(max_examples=60)
@given(case=cases(), some=st.booleans())
def test_no_split_has_more_weighted_throughput(case: Case, some: bool) -> None:
    choices, cluster, demand, weight = case
    least = demand * 0.5 * (np.arange(len(demand)) == 0) * some

    def value(split: np.ndarray) -> float:
        rows = split[split != NOTHING]
        return float((weight[choices.of_model[rows]] * choices.tokens_per_s[rows]).sum())

    allowed = [
        s
        for s in splits(case, nothing=True)
        if all(
            (row == NOTHING and least[m] == 0.0)
            or (row != NOTHING and choices.requests_per_s[row] >= least[m])
            for m, row in enumerate(s)
        )
    ]
    found = weighted(choices, cluster, weight, least)
    check(case, found)
    assert (found is None) == (not allowed)
    if found is not None:
        assert value(found.choice) == pytest.approx(max(map(value, allowed)))
        ties = [gpus_of(choices, s).sum() for s in allowed if value(s) >= value(found.choice) * (1.0 - 1e-9)]
        assert gpus_of(choices, found.choice).sum() == pytest.approx(min(ties))


@settings(max_examples=30)
@given(case=cases(), more=st.integers(1, 8))
def test_more_gpus_never_make_a_split_worse(case: Case, more: int) -> None:
    choices, cluster, demand, weight = case
    larger = Cluster(cluster.counts + more, cluster.usd_per_gpu_hour)
    assert growth(choices, larger, demand)[0] >= growth(choices, cluster, demand)[0]
    before, after = fewest(choices, cluster, demand), fewest(choices, larger, demand)
    if before is not None:
        assert after is not None
        assert gpus_of(choices, after.choice).sum() <= gpus_of(choices, before.choice).sum()
    none = np.zeros(len(demand))
    values = []
    for where in (cluster, larger):
        found = weighted(choices, where, weight, none)
        assert found is not None
        rows = found.choice[found.choice != NOTHING]
        values.append(float((weight[choices.of_model[rows]] * choices.tokens_per_s[rows]).sum()))
    assert values[1] >= values[0] * (1.0 - 1e-9)


def test_a_large_split_is_solved_in_a_second() -> None:
    """Ten models with a staircase over 512 GPUs each."""
    rng = np.random.default_rng(0)
    rates = [np.cumsum(rng.uniform(0.0, 2.0, 512)) for _ in range(10)]
    choices = Choices(
        np.repeat(np.arange(10), 512),
        np.tile(np.arange(1.0, 513.0), 10)[:, None],
        np.concatenate(rates),
        np.concatenate(rates) * rng.uniform(100.0, 900.0),
    )
    cluster = Cluster(np.array([512.0]), np.array([2.0]))
    demand = np.array([0.04 * rate[-1] for rate in rates])
    factor, found = growth(choices, cluster, demand)
    assert found is not None
    assert factor > 1.0
    assert found.gap == 0.0
