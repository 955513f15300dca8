import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.dashboard.data import LIMITS, Dataset
from tests.dashboard.many import library
from tests.results.examples import SMALL, answer

LIMIT = st.one_of(st.none(), st.floats(1.0, 5000.0))


def small() -> Dataset:
    return next(iter(library()))


def test_under_the_searched_limits_what_passes_is_what_the_search_found_feasible() -> None:
    dataset = small()
    searched = {name: dataset.slo[name] for name in LIMITS}
    assert np.array_equal(dataset.within(searched), dataset.points["feasible"])


@given(LIMIT, LIMIT, LIMIT)
def test_what_passes_meets_every_limit_and_a_tighter_limit_never_lets_more_pass(
    ttft: float | None, tpot: float | None, latency: float | None
) -> None:
    dataset = small()
    limits = dict(zip(LIMITS, (ttft, tpot, latency), strict=True))
    passing = dataset.within(limits)
    for name, limit in limits.items():
        if limit is not None:
            assert (dataset.column(LIMITS[name])[passing] <= limit).all()
            tighter = dataset.within({**limits, name: 0.8 * limit})
            assert not (tighter & ~passing).any()
    assert not (passing & ~dataset.sound).any()


@given(st.floats(0.01, 5.0), st.floats(0.01, 5.0))
def test_the_closest_exceeds_its_worst_limit_by_less_than_any_other(ttft: float, tpot: float) -> None:
    dataset = small()
    limits = {"ttft_ms": ttft, "tpot_ms": tpot, "request_latency_ms": None}
    found = dataset.closest(limits)
    assert found is not None
    row, name, excess = found
    assert excess == pytest.approx(dataset.column(LIMITS[name])[row] / limits[name] - 1.0)
    worst = np.maximum(dataset.column("ttft_percentile_ms") / ttft, dataset.column("tpot_ms") / tpot) - 1.0
    assert excess == pytest.approx(worst[dataset.sound].min())


def test_prices_and_power_change_what_they_should_and_nothing_else() -> None:
    dataset = small()
    usual_usd, usual_watts = (next(iter(dataset.pools.values()))[i] for i in (1, 2))
    changed = dataset.repriced({"h200_sxm": 2.0 * usual_usd}, {"h200_sxm": 0.5 * usual_watts})
    assert changed.column("usd_per_mtok") == pytest.approx(2.0 * dataset.column("usd_per_mtok"))
    assert changed.column("joules_per_token") == pytest.approx(0.5 * dataset.column("joules_per_token"))
    assert changed.column("tokens_per_s_per_mw") == pytest.approx(2.0 * dataset.column("tokens_per_s_per_mw"))
    assert np.array_equal(changed.column("tpot_ms"), dataset.column("tpot_ms"))


def test_the_usual_prices_give_the_cost_that_the_search_found() -> None:
    dataset = small()
    usual = next(iter(dataset.pools.values()))[1]
    nearly = dataset.repriced({"h200_sxm": usual * (1.0 + 1e-9)}, {})
    assert nearly is not dataset
    assert nearly.column("usd_per_mtok") == pytest.approx(dataset.column("usd_per_mtok"), rel=1e-6)
    assert dataset.repriced({"h200_sxm": usual}, {}) is dataset
    assert dataset.repriced({"another": 1.0}, {}) is dataset


def test_equal_jobs_get_names_that_differ_and_the_span_holds_the_searched_limits() -> None:
    two = library("SMALL", "SMALL", "IMPOSSIBLE")
    names = [dataset.name for dataset in two]
    assert len(set(names)) == 3
    assert names[0] == "Qwen3-30B-A3B-FP8, 4 × h200_sxm, trtllm"
    low, high = two.span("tpot_ms")
    assert low <= 0.1
    assert high >= SMALL["slo"]["tpot_ms"]
    assert set(two.accelerators()) == {"h200_sxm"}
    assert answer().candidates["gpus_of_main"].equals(answer().candidates["gpus"])
