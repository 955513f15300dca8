"""docs/literature.md shows what the functions answer today."""

import re

import pytest

from afd_dse.literature.rows import read_rows
from benchmarks.literature_table import PAGE, ROWS, line, published
from tests.literature.answers import answers

RENEW = "run python -m benchmarks.literature_table"


def shown_lines() -> dict[str, str]:
    text = PAGE.read_text(encoding="utf-8")
    found = re.finditer(r"^\| ([\w.-]+) \| `\w+` .*$", text, re.MULTILINE)
    return {match.group(1): match.group(0) for match in found}


def stale_lines(searched: bool) -> dict[str, str]:
    rows, shown = published(), shown_lines()
    lines = {name: line(rows[name], result) for name, result in answers(searched).items()}
    return {name: text for name, text in lines.items() if shown[name] != text}


def test_the_page_has_every_row() -> None:
    assert sorted(shown_lines()) == sorted(row.id for row in read_rows(ROWS))


def test_the_page_shows_todays_answers() -> None:
    assert stale_lines(searched=False) == {}, RENEW


@pytest.mark.slow
def test_the_page_shows_todays_answers_of_searches_too() -> None:
    assert stale_lines(searched=True) == {}, RENEW
