import math

import pytest

from afd_dse.results import words


@pytest.mark.parametrize(
    ("value", "text"),
    [(2305.6, "2,306"), (99.96, "100"), (41.23, "41.2"), (9.996, "10.0"), (1.5, "1.50"), (0.3, "0.300"), (0, "0"),
     (0.03121, "0.0312"), (1e-6, "1.0e-06"), (math.inf, "unbounded"), (None, "unbounded"), (-41.23, "-41.2")],
)  # fmt: skip
def test_numbers_show_the_digits_that_say_something(value: float | None, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.37, "37 %"),
        (12.4, "1,240 %"),
        (0.0042, "0.4 %"),
        (0.0004, "0.04 %"),
        (1e-9, "less than 0.001 %"),
        (-0.5, "50 %"),
    ],
)
def test_percentages_stay_short(share: float, text: str) -> None:
    assert words.percent(share) == text


def test_large_counts_and_parameters_use_the_words_of_the_trade() -> None:
    assert [words.count(n) for n in (7.47e10, 2.4e6, 4096)] == ["74.7 billion", "2.4 million", "4,096"]
    assert [words.parameters(n) for n in (6.71e11, 3.76e10, 1.04e12, 5.6e8)] == [
        "671B",
        "37.6B",
        "1.0T",
        "560M",
    ]


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0512, "+5.1 %"), (-0.437, "−44 %"), (0.0, "+0.0 %"), (-0.0001, "+0.0 %"), (1.5, "+150 %")],
)
def test_a_change_has_a_sign(share: float, text: str) -> None:
    assert words.signed_percent(share) == text


@pytest.mark.parametrize(
    ("slack", "text"), [(-0.37, "37 % over"), (-4.0, "400 % over"), (-5e8, "without bound")]
)
def test_a_limit_is_missed_by_a_share_or_without_bound(slack: float, text: str) -> None:
    assert words.missed(slack) == text
