import io
import re
from pathlib import Path

import pandas as pd
import pytest

from afd_dse.errors import InputError
from afd_dse.report.formats import csv, html, markdown, pdf, write_report
from afd_dse.report.metrics import METRICS
from afd_dse.report.printing import BROWSERS, BrowserError
from afd_dse.results.result import Result
from tests.browser import needs_browser
from tests.results.examples import answer, full


def test_markdown_answers_first_and_holds_the_tables_of_the_page() -> None:
    text = markdown(full()).decode()
    best = full().document["best"]
    assert text.startswith(f"# {best['label']} ({best['mode']})\n")
    for title in ("## Modes compared", "## What would change it", "## How sure", "## Groups and memory"):
        assert title in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables) > 30
    for line in tables:
        assert re.fullmatch(r"\|( .* \|)+", line)


def test_markdown_of_an_infeasible_job_names_the_nearest_miss() -> None:
    text = markdown(answer("IMPOSSIBLE")).decode()
    assert text.startswith("# No deployment meets the limits\n")
    assert answer("IMPOSSIBLE").nearest_misses[-1]["reason"] in text


def test_csv_holds_every_candidate_with_every_metric() -> None:
    found = pd.read_csv(io.BytesIO(csv(full())))
    assert len(found) == len(full().candidates)
    assert set(METRICS) <= set(found)
    pd.testing.assert_series_equal(found["tpot_ms"], full().candidates["tpot_ms"], rtol=1e-12)


def test_csv_without_candidates_holds_the_deployments_of_the_document() -> None:
    found = pd.read_csv(io.BytesIO(csv(Result(full().document, pd.DataFrame()))))
    assert full().document["best"]["label"] in set(found["label"])
    assert len(found) >= len(full().document["pareto"])


@needs_browser
def test_pdf_is_printed_by_a_browser(tmp_path: Path) -> None:
    write_report(full(), "pdf", tmp_path / "deep" / "report.pdf")
    content = (tmp_path / "deep" / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF-")
    assert len(content) > 50_000  # charts and all: an empty page has some 10 kB
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["report.pdf"]


def test_without_a_browser_pdf_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AFD_DSE_BROWSER", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(BrowserError, match="apt-get install chromium"):
        pdf(full())
    monkeypatch.setenv("AFD_DSE_BROWSER", "no-such-browser")
    with pytest.raises(BrowserError, match="no-such-browser"):
        pdf(full())
    assert "chromium" in BROWSERS


def test_a_file_that_cannot_be_written_is_an_input_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out"):
        write_report(answer(), "md", tmp_path / "file" / "report.md")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_html_is_the_page() -> None:
    assert html(answer()).startswith(b"<!DOCTYPE html>")
