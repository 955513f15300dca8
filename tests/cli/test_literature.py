"""The commands ``literature`` and ``hfu``."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from afd_dse.cli import app

runner = CliRunner()
ROW = 'id,evaluator,inputs,expected,tolerance\nE1,tile_count,"{""tokens_per_expert"": [1, 9], ""tile"": 8}",{},exact\n'


def run(*words: str | Path) -> Result:
    return runner.invoke(app, [str(word) for word in words])


def rows(tmp_path: Path, expected: int = 3) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(ROW.replace("{},", f"{expected},"))
    return path


def test_literature_prints_one_document(tmp_path: Path) -> None:
    done = run("literature", rows(tmp_path), "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["rows"], document["passed"]) == (1, 1)
    assert set(document["results"][0]) == {"id", "expected", "ours", "ok", "note"}
    assert document["results"][0]["ours"] == 3.0


def test_literature_on_the_terminal_says_what_differs_and_still_ends_well(tmp_path: Path) -> None:
    done = run("literature", rows(tmp_path, expected=4))
    assert done.exit_code == 0
    assert "0 of 1 within tolerance" in done.stdout
    assert "3 for 4" in done.stdout


def test_literature_refuses_a_file_without_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n")
    done = run("literature", path)
    assert done.exit_code == 2
    assert "rows.evaluator: no such column" in done.stderr


def test_hfu_prints_the_published_bound() -> None:
    done = run(
        "hfu",
        "--model",
        "deepseek-v3",
        "--accelerator",
        "h800",
        "--profile",
        "baidu",
        "--ffn-nodes",
        "1,2,8",
        "--json",
    )
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert [round(point["hfu_max_percent"], 2) for point in document["points"]] == [33.12, 33.12, 10.35]
    assert document["boundaries"] == {"scale_out_full": 2.5, "no_reuse": 8.0, "one_expert": 32.0}
    assert document["dead_zone"] == {"from": 8.0, "to": 8.0}
    assert document["intensity_flop_per_byte"] == 4096.0


def test_hfu_on_the_terminal_shows_regimes_and_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    plot = tmp_path / "plot.html"
    done = run("hfu", "--model", "deepseek-v3", "--accelerator", "gb200", "--tpot-ms", "50", "--plot", plot)
    assert done.exit_code == 0, done.stderr
    assert "1 scale-up full" in done.stdout
    assert "273 µs" in done.stdout
    assert "plotly" in plot.read_text()


@pytest.mark.parametrize("more", [(), ("--tpot-ms", "50")])
def test_the_table_of_hfu_fits_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = run("hfu", "--model", "deepseek-v3", "--accelerator", "h800", "--profile", "baidu", *more)
    rows = [line for line in done.stdout.splitlines() if " % " in line]
    assert len(rows) == 7
    assert all(line.rstrip().endswith(("full", "shrinks", "shrink", "one expert")) for line in rows)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--model", "qwen3-32b", "--accelerator", "h20"), "has no experts"),
        (("--model", "deepseek-v3", "--accelerator", "a100", "--profile", "baidu"), "accelerator: is not in"),
        (
            ("--model", "deepseek-v3", "--accelerator", "h20", "--profile", "step3"),
            "profile: states no links",
        ),
        (
            ("--model", "deepseek-v3", "--accelerator", "h20", "--ffn-nodes", "4..2"),
            "--ffn-nodes: is not usable",
        ),
        (("--model", "deepseek-v3", "--accelerator", "h20", "--ffn-nodes", "many"), "write 1..64 or 1,2,8"),
        (
            ("--model", "deepseek-v3", "--accelerator", "h20", "--plot", "/nowhere/x.html"),
            "--plot: cannot be written",
        ),
    ],
)
def test_hfu_refuses_what_it_cannot_use(words: tuple[str, ...], reason: str) -> None:
    done = run("hfu", *words)
    assert done.exit_code == 2
    assert reason in done.stderr
    assert done.stdout == ""
