import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from afd_dse.cli import app
from afd_dse.report.html import page
from afd_dse.results.files import write_result
from tests.results.examples import full

ROOT = Path(__file__).resolve().parents[2]
runner = CliRunner()


def run(*words: str | Path) -> Result:
    return runner.invoke(app, [str(word) for word in words])


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    write_result(full(), tmp_path / "answer", page(full().document, full().candidates))
    return tmp_path / "answer"


@pytest.mark.parametrize("form", ["html", "md", "csv"])
def test_a_stored_result_is_written_in_another_form_beside_it_and_the_path_is_printed(
    form: str, stored: Path
) -> None:
    (stored / "report.html").unlink()
    done = run("report", stored, "--format", form)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"{stored / f'report.{form}'}\n"
    text = (stored / f"report.{form}").read_text()
    assert full().document["best"]["label"] in text


def test_html_is_the_default_and_the_ending_of_the_file_says_the_form(stored: Path, tmp_path: Path) -> None:
    assert run("report", stored / "result.json", "--out", tmp_path / "x.md").exit_code == 0
    assert (tmp_path / "x.md").read_text().startswith("# ")
    assert run("report", stored).stdout.endswith("report.html\n")
    assert run("report", stored, "--out", tmp_path).stdout == f"{tmp_path / 'report.html'}\n"


def test_a_result_without_the_cards_of_a_report_gets_them(stored: Path) -> None:
    document = json.loads((stored / "result.json").read_text())
    kept = {key: value for key, value in document.items() if key not in ("what_if", "utilization")}
    (stored / "result.json").write_text(json.dumps(kept))
    done = run("report", stored, "--format", "md")
    assert done.exit_code == 0, done.stderr
    assert "| memory bandwidth × 0.8 |" in (stored / "report.md").read_text()


BAD = {
    "no such result": (["report", "nope"], "cannot be read"),
    "no such format": (["report", "STORED", "--format", "pff"], "--format: no such format"),
    "no such ending": (["report", "STORED", "--out", "x.docx"], "--format: no such format"),
    "not a result": (["report", "STORED/pareto.csv"], "is not JSON"),
    "damaged": (
        ["report", "STORED/damaged.json"],
        "is not the result of a search (no ranking as a search writes it)",
    ),
    "a foreign table beside it": (["report", "STORED/other"], "is not the table of a search's candidates"),
    "too deep": (["report", "STORED/deep.json"], "is not JSON"),
    "no such result to explore": (["dashboard", "nope", "--no-browser"], "cannot be read"),
    "no measured runs": (
        ["dashboard", "--no-browser", "--measured", "nope.csv"],
        "--measured: cannot be read",
    ),
    "no port": (["dashboard", "--port", "70000"], "--port"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_exits_with_2_and_writes_nothing(name: str, stored: Path) -> None:
    words, message = BAD[name]
    whole = json.loads((stored / "result.json").read_text(encoding="utf-8"))
    (stored / "damaged.json").write_text(json.dumps(whole | {"ranking": 5}), encoding="utf-8")
    (stored / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    (stored / "other").mkdir(exist_ok=True)
    (stored / "other" / "result.json").write_text(json.dumps(whole), encoding="utf-8")
    pd.DataFrame({"a": [1]}).to_parquet(stored / "other" / "candidates.parquet")
    before = sorted(stored.iterdir())
    done = run(*(word.replace("STORED", str(stored)) for word in words))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert sorted(stored.iterdir()) == before


def test_the_dashboard_says_where_it_is_serves_its_page_and_ends_with_an_interrupt(stored: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # A shell lets what it runs in the background ignore interrupts, and the tests pass that on.
    attentive = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    script = f"{attentive}; from afd_dse.cli import main; main()"
    command = [sys.executable, "-c", script, "dashboard", str(stored)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--no-browser"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert b"<title>afd-dse</title>" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()
