"""The one command: a small run of it, whose figures hold on any machine; and how it is asked."""

import json
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import start
from benchmarks.__main__ import app
from benchmarks.figures import Options

GIB = 2.0**30


@pytest.mark.slow
def test_a_quick_run_measures_the_evaluator_and_its_blocks_equal_single_estimates(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "figures.json"
    done = CliRunner().invoke(app, ["--quick", "--only", "evaluator", "--json", "--out", str(out)])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document == json.loads(out.read_text(encoding="utf-8"))
    figures = {figure["name"]: figure for figure in document["figures"]}
    rates = [figure for name, figure in figures.items() if name.startswith("deployments on one core")]
    assert len(rates) == 2
    for rate in rates:
        assert rate["rows"] == [20_000]
        # Slower than this even a laptop is not: a candidate at a time would take a hundred times as long.
        assert rate["value"] > 5_000
        assert rate["peak_bytes"] < GIB
    equality = figures["block against single estimates"]
    assert equality["documents"] == 12
    assert equality["compared"] > 200
    assert equality["value"] <= 1e-9
    assert equality["met"] is True
    assert document["targets"]["not_measured"] == 0
    assert document["machine"]["cores"] >= 1


@pytest.mark.slow
def test_help_and_a_first_estimate_are_timed_from_cold_processes() -> None:
    helped, estimated = islice(start.figures(Options(quick=True, limit_s=300.0)), 2)
    assert helped.value is not None
    assert estimated.value is not None
    assert helped.facts["cpu_s"][0] < estimated.facts["cpu_s"][0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "answer"], "no such group; choose from evaluator, answers"),
        (["growth", "--gpus", "8,many"], "give whole numbers"),
        (["growth", "--pools", "9"], "--pools"),
        (["incumbent", "--question", "gpt-5"], "choose from qwen3-32b"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(words: list[str], says: str) -> None:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"})
    assert done.exit_code == 2
    assert says in done.output


def test_the_list_names_every_other_benchmark_and_no_part_of_the_table() -> None:
    lines = CliRunner().invoke(app, ["list"]).stdout.splitlines()
    names = [line.split()[2].removeprefix("benchmarks.") for line in lines]
    assert {"accuracy", "literature_table", "simulation_agreement", "operator_accuracy", "gallery"} <= set(
        names
    )
    assert not {"answers", "probes", "jobs", "__main__"} & set(names)
    assert all(len(line.split()) > 5 for line in lines)
