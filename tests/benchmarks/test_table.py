"""Figures, and what people and machines see of them."""

import io
import json

import pytest
from rich.console import Console

from benchmarks.figures import Figure, Target
from benchmarks.table import document, render, shown


def seen(*figures: Figure) -> str:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    render(console, figures)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_234_567.0, "1/s", "1,234,567 1/s"),
        (1.5e11, "", "1.5e+11"),
        (2.00034, "s", "2 s"),
        (0.123456, "s", "0.123 s"),
        (1e-9, "", "1e-09"),
        (0.0, "", "0"),
        (float("inf"), "", "∞"),
        (None, "s", "–"),
    ],
)
def test_numbers_are_short_and_say_their_unit(value: float | None, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_a_target_is_met_on_the_right_side_and_at_the_limit_itself() -> None:
    fast, slow = (
        Figure("g", "n", 3.0, "s", Target("at most", 3.0)),
        Figure("g", "n", 3.1, "s", Target("at most", 3.0)),
    )
    assert (fast.met, slow.met) == (True, False)
    assert Figure("g", "n", 3.1, "s", Target("at least", 3.0)).met is True
    assert Figure("g", "n", None, "s", Target("at least", 3.0)).met is None
    assert Figure("g", "n", 1.0, "s").met is None


def test_the_document_counts_what_is_met_missed_and_not_measured() -> None:
    limit = Target("at most", 1.0)
    figures = [
        Figure("g", "met", 0.5, "s", limit, facts={"runs": [0.5]}),
        Figure("g", "missed", 2.0, "s", limit),
        Figure("g", "too slow", None, "s", limit, "not done after 9 s"),
        Figure("g", "only told", 7.0, ""),
    ]
    found = json.loads(json.dumps(document({"cores": 2}, figures)))
    assert found["targets"] == {"met": 1, "missed": 1, "not_measured": 1}
    assert found["figures"][0]["runs"] == [0.5]
    assert found["figures"][2]["note"] == "not done after 9 s"
    assert [figure["met"] for figure in found["figures"]] == [True, False, None, None]


def test_the_table_fits_a_plain_terminal_and_names_each_group_once() -> None:
    note = "a note that is longer than a line of eighty characters and therefore goes on below it, " * 2
    text = seen(
        Figure("evaluator", "deployments on one core, PD + AFD", 1_234_567.0, "1/s", Target("at least", 1e6)),
        Figure("evaluator", "block against single estimates", None, "", Target("at most", 1e-9), note),
    )
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("evaluator") == 1
    first = next(line for line in text.splitlines() if "PD + AFD" in line)
    assert first.split()[-4:] == ["≥", "1,000,000", "1/s", "yes"]
    assert "1,234,567 1/s" in first
    assert " ? " in next(line + " " for line in text.splitlines() if "single" in line)
