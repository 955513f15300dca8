from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.planning import program
from afd_dse.planning.options import Options, Supply, lost_rate, useful
from afd_dse.planning.periods import each_period
from afd_dse.planning.program import GAP, Schedule, Terms, most_load, solve


def supply(**changes: Any) -> Supply:
    kinds = len(changes.get("available", [8, 8]))
    fields: dict[str, Any] = {
        "names": tuple(f"hw{n}" for n in range(kinds)),
        "available": np.array([8, 8]),
        "usd_per_gpu_hour": np.array([2.0, 3.0]),
        "power_w": np.array([1000.0, 1500.0]),
        "reserved": np.zeros(kinds, dtype=bool),
        "start_hours": np.zeros(kinds),
        "start_usd_per_gpu": np.zeros(kinds),
        "domain_gpus": np.full(kinds, 4),
    }
    return Supply(**(fields | {key: np.asarray(value) for key, value in changes.items()}))


def options(rows: list[tuple[int, int, float, int]]) -> Options:
    """From (class, hardware, requests/s, GPUs)."""
    of_class, hardware, rate, gpus = (np.array(column) for column in zip(*rows, strict=True))
    return Options(
        of_class, hardware, rate.astype(float), 100.0 * rate, gpus, tuple({"label": str(r)} for r in rows)
    )


def cost(plan: np.ndarray, chosen: Options, have: Supply, terms: Terms) -> float:
    """USD of a schedule, computed from its definition."""
    price, total = have.usd_per_gpu_hour[chosen.hardware], 0.0
    for o in range(len(chosen)):
        before = 0
        for copies in plan[o]:
            h = chosen.hardware[o]
            if not have.reserved[h]:
                total += copies * chosen.gpus[o] * price[o] * terms.period_hours
                total += max(copies - before, 0) * chosen.gpus[o] * price[o] * have.start_hours[h]
            total += max(copies - before, 0) * chosen.gpus[o] * have.start_usd_per_gpu[h]
            before = copies
    for h in np.flatnonzero(have.reserved):
        used = (plan * chosen.gpus[:, None])[chosen.hardware == h].sum(axis=0).max(initial=0)
        total += used * have.usd_per_gpu_hour[h] * terms.period_hours * plan.shape[1]
    return total


def serves(plan: np.ndarray, chosen: Options, have: Supply, demand: np.ndarray, terms: Terms) -> bool:
    """Whether a schedule serves the demand in every period after the worst single failure, within the hardware."""
    lost = lost_rate(chosen, have, terms.redundancy)
    for t in range(demand.shape[1]):
        for h in range(len(have.names)):
            if (plan[:, t] * chosen.gpus)[chosen.hardware == h].sum() > have.available[h]:
                return False
        for k in range(demand.shape[0]):
            mine = chosen.of_class == k
            capacity = (plan[:, t] * chosen.requests_per_s)[mine].sum()
            worst = lost[mine & (plan[:, t] > 0)].max(initial=0.0) if demand[k, t] > 0 else 0.0
            if (capacity - worst) * (1.0 - terms.headroom) < demand[k, t] - 1e-6:
                return False
    return True


def brute_force(chosen: Options, have: Supply, demand: np.ndarray, terms: Terms) -> float | None:
    """The least cost over all schedules."""
    limits = have.available[chosen.hardware] // chosen.gpus
    columns = list(product(*(range(int(most) + 1) for most in limits)))
    best = None
    for choice in product(columns, repeat=demand.shape[1]):
        plan = np.array(choice).T
        if serves(plan, chosen, have, demand, terms):
            value = cost(plan, chosen, have, terms)
            best = value if best is None else min(best, value)
    return best


@pytest.mark.parametrize("taken_apart", [False, True])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_plan_costs_what_the_best_of_all_plans_costs(taken_apart: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, periods = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    rows = [
        (int(k), int(rng.integers(2)), float(rng.integers(1, 9)), int(rng.integers(1, 4)))
        for k in range(classes)
    ]
    rows.append(
        (int(rng.integers(classes)), int(rng.integers(2)), float(rng.integers(1, 9)), int(rng.integers(1, 4)))
    )
    chosen = options(rows)
    have = supply(
        available=rng.integers(2, 5, 2),
        usd_per_gpu_hour=rng.integers(1, 5, 2).astype(float),
        reserved=rng.random(2) < 0.4,
        start_hours=rng.choice([0.0, 0.5], 2),
        start_usd_per_gpu=rng.choice([0.0, 1.0], 2),
        domain_gpus=rng.integers(1, 4, 2),
    )
    demand = rng.integers(0, 10, (classes, periods)).astype(float)
    terms = Terms(1.0, float(rng.choice([0.0, 0.2])), str(rng.choice(["none", "deployment", "domain"])))
    with patch.object(program, "_LONG", 0 if taken_apart else 10**9):
        found = solve(chosen, have, demand, terms)
    best = brute_force(chosen, have, demand, terms)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert serves(found.copies, chosen, have, demand, terms)
        assert found.usd == pytest.approx(cost(found.copies, chosen, have, terms), abs=1e-6)
        assert found.usd <= best * (1.0 + GAP) + 1e-6
        assert found.usd >= best - 1e-6
        assert found.usd * (1.0 - found.gap) <= best + 1e-6


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_periods_taken_apart_give_a_plan_that_serves_and_a_bound_that_holds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chosen = options([(0, 0, 4.0, 1), (0, 1, 9.0, 2), (1, 0, 2.0, 1), (1, 1, 5.0, 3)])
    have = supply(
        available=rng.integers(10, 20, 2),
        usd_per_gpu_hour=rng.uniform(1.0, 4.0, 2),
        reserved=rng.random(2) < 0.5,
        start_hours=rng.choice([0.0, 0.5, 1.0], 2),
        start_usd_per_gpu=rng.choice([0.0, 0.3], 2),
    )
    demand = rng.uniform(0.0, 8.0, (2, 8))
    terms = Terms(1.0, 0.1, str(rng.choice(["none", "deployment", "domain"])))
    with patch.object(program, "_LONG", 0):
        apart = solve(chosen, have, demand, terms)
    with patch.object(program, "_LONG", 10**9):
        whole = solve(chosen, have, demand, terms)
    assert (apart is None) == (whole is None)
    if apart is not None and whole is not None:
        assert serves(apart.copies, chosen, have, demand, terms)
        assert apart.usd == pytest.approx(cost(apart.copies, chosen, have, terms), abs=1e-6)
        assert apart.usd <= whole.usd * (1.0 + GAP) + 1e-6
        assert apart.usd * (1.0 - apart.gap) <= whole.usd + 1e-6


def test_periods_that_cost_the_same_are_solved_once() -> None:
    demand = np.linspace(1.0, 40.0, 1000)[None, :]
    asked = []

    def solver(wanted: np.ndarray) -> tuple[np.ndarray, float]:
        asked.append(float(wanted[0]))
        copies = np.ceil(wanted / 10.0)
        return copies.astype(np.int64), float(copies[0])

    found = each_period(demand, solver)
    assert found is not None
    assert found[0][0].tolist() == np.ceil(demand[0] / 10.0).tolist()
    assert found[1].tolist() == np.ceil(demand[0] / 10.0).tolist()
    assert len(asked) < 60
    assert each_period(demand, lambda wanted: None) is None


def test_a_start_that_costs_more_than_waiting_keeps_a_copy_running() -> None:
    chosen = options([(0, 0, 10.0, 1)])
    demand = np.array([[20.0, 10.0, 20.0]])
    cheap = solve(chosen, supply(), demand, Terms(1.0, 0.0, "none"))
    dear = solve(chosen, supply(start_usd_per_gpu=[5.0, 5.0]), demand, Terms(1.0, 0.0, "none"))
    assert cheap is not None
    assert dear is not None
    assert cheap.copies.tolist() == [[2, 1, 2]]
    assert dear.copies.tolist() == [[2, 2, 2]]


def test_gpus_that_cost_nothing_are_not_taken_for_nothing() -> None:
    chosen = options([(0, 0, 10.0, 1), (0, 1, 10.0, 1)])
    free = supply(usd_per_gpu_hour=[0.0, 3.0])
    found = solve(chosen, free, np.array([[15.0, 5.0]]), Terms(1.0, 0.0, "none"))
    assert found is not None
    assert found.copies.tolist() == [[2, 1], [0, 0]]
    assert found.usd == 0.0
    assert found.gap == 0.0


def test_reserved_hardware_is_paid_for_its_peak_and_hourly_for_its_use() -> None:
    chosen = options([(0, 0, 10.0, 1), (0, 1, 10.0, 1)])
    demand = np.array([[10.0, 10.0, 10.0, 30.0]])
    mixed = solve(chosen, supply(reserved=[True, False]), demand, Terms(1.0, 0.0, "none"))
    assert mixed is not None
    # The base on reserved GPUs at 2 $, the peak of one hour on hourly ones at 3 $ rather than 4 hours of 2 $.
    assert mixed.reserved.tolist()[0] == 1
    assert mixed.copies[1].tolist() == [0, 0, 0, 2]
    assert mixed.usd == pytest.approx(4 * 2.0 + 2 * 3.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_more_demand_dearer_hardware_and_stricter_rules_never_make_a_plan_cheaper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chosen = options([(0, 0, 7.0, 2), (0, 1, 11.0, 3), (1, 0, 3.0, 1)])
    have = supply(available=[30, 30])
    demand = rng.uniform(0.0, 20.0, (2, 4))
    base = solve(chosen, have, demand, Terms(1.0, 0.1, "none"))
    assert base is not None

    def usd(found: Schedule | None) -> float:
        return np.inf if found is None else found.usd

    for other in (
        solve(chosen, have, 1.3 * demand, Terms(1.0, 0.1, "none")),
        solve(
            chosen, supply(available=[30, 30], usd_per_gpu_hour=[2.5, 3.0]), demand, Terms(1.0, 0.1, "none")
        ),
        solve(chosen, have, demand, Terms(1.0, 0.1, "deployment")),
        solve(chosen, have, demand, Terms(1.0, 0.3, "none")),
        solve(chosen, supply(available=[10, 12]), demand, Terms(1.0, 0.1, "none")),
    ):
        assert usd(other) >= base.usd * (1.0 - 2.0 * GAP)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_most_load_can_be_served_and_no_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chosen = options([(0, 0, 7.0, 2), (0, 1, 11.0, 3), (1, 0, 3.0, 1)])
    have, demand = supply(available=rng.integers(6, 20, 2)), rng.uniform(1.0, 9.0, 2)
    terms = Terms(1.0, 0.1, str(rng.choice(["none", "deployment"])))
    most = most_load(chosen, have, demand, terms)
    if most > 0.0:
        assert solve(chosen, have, 0.999 * most * demand[:, None], terms) is not None
    assert solve(chosen, have, 1.01 * max(most, 0.01) * demand[:, None], terms) is None


def test_only_options_that_copies_of_another_one_replace_are_dropped() -> None:
    rows = [(0, 0, 10.0, 2), (0, 0, 9.0, 2), (0, 0, 4.0, 1), (0, 1, 9.0, 2), (1, 0, 9.0, 2), (0, 0, 10.0, 2)]
    assert [d["label"] for d in useful(options(rows)).deployments] == [str(rows[n]) for n in (0, 2, 3, 4)]
    # Three copies on six GPUs serve 30; two of them on five serve 20.
    assert len(useful(options([(0, 0, 10.0, 2), (0, 0, 30.0, 6), (0, 0, 20.0, 5)]))) == 1
    assert len(useful(options([(0, 0, 10.0, 2), (0, 0, 31.0, 6), (0, 0, 21.0, 5)]))) == 3


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_what_is_dropped_costs_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [(0, int(rng.integers(2)), float(rng.integers(1, 30)), int(rng.integers(1, 7))) for _ in range(6)]
    demand, have = rng.uniform(0.0, 40.0, (1, 3)), supply(available=[30, 30])
    terms = Terms(1.0, 0.1, str(rng.choice(["none", "deployment"])))
    whole, few = solve(options(rows), have, demand, terms), solve(useful(options(rows)), have, demand, terms)
    assert (whole is None) == (few is None)
    if whole is not None and few is not None:
        assert few.usd <= whole.usd * (1.0 + 2.0 * GAP)


def test_a_domain_takes_all_copies_in_it() -> None:
    chosen = options([(0, 0, 10.0, 1), (0, 0, 30.0, 4), (0, 0, 50.0, 8)])
    assert lost_rate(chosen, supply(), "domain").tolist() == [40.0, 30.0, 50.0]
    assert lost_rate(chosen, supply(), "deployment").tolist() == [10.0, 30.0, 50.0]
    assert lost_rate(chosen, supply(), "none").tolist() == [0.0, 0.0, 0.0]
