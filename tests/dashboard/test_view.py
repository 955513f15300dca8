from functools import lru_cache

from hypothesis import given
from hypothesis import strategies as st

from afd_dse.dashboard.data import LIMITS, Library
from afd_dse.dashboard.view import View, default_view, from_query, split_pin, to_query, toggled
from afd_dse.report.metrics import X_AXES, Y_AXES
from tests.dashboard.many import library


# Searched for when a test first asks: every worker that collects would search otherwise.
@lru_cache(maxsize=1)
def two() -> Library:
    return library("SMALL", "IMPOSSIBLE")


@lru_cache(maxsize=1)
def default() -> View:
    return default_view(two())


LIMIT = st.one_of(st.none(), st.integers(1, 10_000).map(lambda n: n / 4.0))
VIEWS = st.builds(
    View,
    results=st.sampled_from([("r1",), ("r2",), ("r1", "r2"), ("r2", "r1")]),
    x=st.sampled_from(X_AXES),
    y=st.sampled_from(Y_AXES),
    limits=st.fixed_dictionaries(dict.fromkeys(LIMITS, LIMIT)),
    front_only=st.booleans(),
    prices=st.fixed_dictionaries({"h200_sxm": st.integers(1, 900).map(lambda n: n / 100.0)}),
    powers=st.fixed_dictionaries({"h200_sxm": st.integers(1, 3000).map(float)}),
    pins=st.sampled_from([(), ("r1:0",), ("r1:3", "r1:4")]),
)


@given(VIEWS)
def test_a_link_brings_back_the_view(view: View) -> None:
    assert from_query(to_query(view, default()), default(), two()) == view


def test_the_usual_view_has_an_empty_link_and_a_link_says_only_what_differs() -> None:
    assert to_query(default(), default()) == ""
    changed = View(
        default().results,
        limits={**default().limits, "tpot_ms": 12.5},
        prices=default().prices,
        powers=default().powers,
    )
    assert to_query(changed, default()) == "?tpot_ms=12.5"


@given(st.text(max_size=60))
def test_any_link_gives_a_view_that_can_be_shown(text: str) -> None:
    for query in (
        text,
        f"?x={text}&y={text}&tpot_ms={text}&results={text}&pin={text}&prices.h200_sxm={text}",
    ):
        view = from_query(query, default(), two())
        assert view.results
        assert all(key in two().datasets for key in view.results)
        assert all(limit is None or limit > 0.0 for limit in view.limits.values())


def test_pins_of_results_or_rows_that_are_not_there_are_left_out() -> None:
    rows = len(two().datasets["r1"].points)
    assert split_pin(f"r1:{rows - 1}", two()) == ("r1", rows - 1)
    for pin in (f"r1:{rows}", "r9:0", "r1:-1", "r1", "r1:x", ""):
        assert split_pin(pin, two()) is None
    assert from_query("?pin=r1:0,r9:1", default(), two()).pins == ("r1:0",)


def test_a_second_click_unpins_and_a_third_pin_pushes_the_oldest_out() -> None:
    assert toggled([], "a") == ["a"]
    assert toggled(["a"], "a") == []
    assert toggled(["a", "b"], "c") == ["b", "c"]
