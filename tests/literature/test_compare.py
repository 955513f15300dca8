"""How our values are judged against published ones."""

import pytest

from afd_dse.literature.answer import Answer, Value
from afd_dse.literature.compare import Published, Tolerance, items, judge
from afd_dse.literature.rows import Inputs, Row


def row(expected: str, tolerance: str, kind: str = "exact") -> Row:
    return Row("id", "any", "", Inputs({}), expected, tolerance, kind)


def verdict(expected: str, tolerance: str, *ours: Value, kind: str = "exact") -> bool:
    return judge(row(expected, tolerance, kind), Answer.of(*ours))[0]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("235 MB", 235e6),
        ("328K", 328e3),
        ("+4.5%", 4.5),
        ("total +30.3%", 30.3),
        ("2.88e+08", 2.88e8),
        ("~4000 tok/s", 4e3),
    ],
)
def test_numbers_are_read_with_their_units(text: str, number: float) -> None:
    assert Published.of(text).number == pytest.approx(number)


def test_items_are_separated_by_semicolons_and_lists_of_numbers_by_commas() -> None:
    assert [item.number for item in items("1.9; 1.10, 1.28, 1.38")] == [1.9, 1.10, 1.28, 1.38]
    assert [item.text for item in items("0; = copy time")] == ["0", "= copy time"]
    assert [item.text for item in items("AFD on all, then PD")] == ["AFD on all, then PD"]


@pytest.mark.parametrize(
    ("tolerance", "inside", "outside"),
    [
        ("0.01 abs", 10.0099, 10.011),
        ("1%", 10.09, 10.11),
        ("5% relative", 9.51, 9.49),
        ("0.005", 10.004, 10.006),
        ("direction; factor 2", 19.9, 20.1),
        ("exact", 10.0, 10.001),
    ],
)
def test_tolerances_admit_what_is_inside_and_nothing_else(
    tolerance: str, inside: float, outside: float
) -> None:
    assert verdict("10", tolerance, inside)
    assert not verdict("10", tolerance, outside)
    assert not verdict("10", tolerance, float("nan"))


def test_exact_means_to_the_published_digits() -> None:
    assert verdict("3.33", "exact", 10 / 3)
    assert not verdict("3.33", "exact", 3.34)
    assert Tolerance.of("exact choice").exact


def test_every_published_value_needs_one_of_ours() -> None:
    assert not verdict("1; 2", "1%", 1.0)
    assert verdict("1; 2", "1%", 1.0, 2.0)
    assert not verdict("1; 2", "1%", 1.0, 2.1)
    assert not verdict("", "1%", 1.0)


def test_words_agree_without_case_and_without_a_bracket_of_numbers() -> None:
    assert verdict(
        "infeasible (~298 GiB); feasible (~165 GiB)", "feasibility", "Infeasible", "feasible (99 GiB)"
    )
    assert not verdict("infeasible (memory)", "exact", "feasible")
    assert not verdict("infeasible (memory)", "exact", "infeasible (TPOT)")


def test_an_order_is_judged_on_the_names_that_both_know() -> None:
    published = "pool > PDMux > PD > colocated"
    assert verdict(published, "order", "pool > PD > colocated", kind="direction")
    assert not verdict(published, "order", "PD > pool > colocated", kind="direction")
    assert not verdict(published, "order", "pool", kind="direction")


def test_an_order_knows_the_names_of_one_system_as_one() -> None:
    ours = "shared expert pool > PDMux > PD > colocated > chunked"
    assert verdict("ExpertPlex > DistServe > Sarathi-Serve", "order", ours, kind="direction")
    assert not verdict("DistServe > ExpertPlex", "order", ours, kind="direction")
    assert not verdict("some system > another", "order", ours, kind="direction")


def test_a_split_is_judged_by_its_heavier_side() -> None:
    assert verdict("2A+126F; 28A+4F x 4", "FFN-heavy / attention-heavy", "8A24F", "30A2F", kind="direction")
    assert not verdict("2A+126F", "FFN-heavy", "16A16F", kind="direction")


def test_counts_of_cases_are_judged_as_most_or_all() -> None:
    published = "colocated + chunked on most workloads; AFD on all"
    assert verdict(published, "direction", "colocated on 4 of 6", "AFD on 6 of 6", kind="direction")
    assert not verdict(published, "direction", "colocated on 3 of 6", "AFD on 6 of 6", kind="direction")
    assert not verdict(published, "direction", "PD on 4 of 6", "AFD on 6 of 6", kind="direction")


def test_a_chain_needs_every_step_in_its_direction_and_the_total_within_tolerance() -> None:
    published, tolerance = "+4.5%; +16.4%; total +30.3%", "direction, total 15%"
    assert verdict(published, tolerance, 9.0, 1.0, 28.0, kind="relative")
    assert not verdict(published, tolerance, -1.0, 30.0, 29.0, kind="relative")
    assert not verdict(published, tolerance, 9.0, 9.0, 19.0, kind="relative")
