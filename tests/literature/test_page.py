"""docs/literature.md shows what the functions answer today."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from afd_dse.literature import run
from afd_dse.literature.rows import read_rows
from benchmarks.literature_table import PAGE, ROWS, line, published
from tests.literature.test_run import SEARCHED


def shown_lines() -> dict[str, str]:
    text = PAGE.read_text(encoding="utf-8")
    return {
        found.group(1): found.group(0)
        for found in re.finditer(r"^\| ([\w.-]+) \| `\w+` .*$", text, re.MULTILINE)
    }


def current_lines(keep: Callable[[str], bool]) -> dict[str, str]:
    rows: Mapping[str, Mapping[str, str]] = published()
    results: list[dict[str, Any]] = [run._result(row) for row in read_rows(ROWS) if keep(row.id)]
    return {result["id"]: line(rows[result["id"]], result) for result in results}


def test_the_page_has_every_row() -> None:
    assert sorted(shown_lines()) == sorted(row.id for row in read_rows(ROWS))


def test_the_page_shows_todays_answers() -> None:
    found = current_lines(lambda name: name not in SEARCHED)
    stale = {name: text for name, text in found.items() if shown_lines()[name] != text}
    assert stale == {}, "run python benchmarks/literature_table.py"


@pytest.mark.slow
def test_the_page_shows_todays_answers_of_searches_too() -> None:
    found = current_lines(SEARCHED.__contains__)
    stale = {name: text for name, text in found.items() if shown_lines()[name] != text}
    assert stale == {}, "run python benchmarks/literature_table.py"
