import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from afd_dse.cli import app
from afd_dse.cli.sweep_answer import sweep_progress
from afd_dse.sweeps import run as sweeps
from tests.sweeps.small import BASE
from tests.sweeps.test_run import Here


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are computed in this process: what engines do is tested elsewhere."""
    monkeypatch.setattr(sweeps, "LocalEngine", lambda workers: Here())


def run(folder: Path, document: Any, *words: object) -> Result:
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document))
    command = ["sweep", str(folder / "sweep.yaml"), *map(str, words)]
    return CliRunner().invoke(app, command, env={"COLUMNS": "100"})


def limits(*values: float) -> dict[str, Any]:
    return {"base": BASE, "axes": {"slo.tpot_ms": list(values)}}


def test_the_answer_names_jobs_winners_and_files(tmp_path: Path) -> None:
    done = run(tmp_path, limits(15, 30, 0.01), "--out", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "3 jobs, 2 with an answer, 1 that nothing can satisfy" in lines[0]
    assert sum("colocated" in line and "TP" in line for line in lines) == 2
    assert any("✗ infeasible" in line for line in lines)
    assert any("colocated  2 of 2" in line for line in lines)
    assert any("0.01" in line and "TPOT" in line for line in lines)
    assert "summary.csv, summary.parquet" in done.stdout
    (report,) = [line.split()[-1] for line in lines if "afd-dse report" in line]
    assert Path(report).is_file()
    again = run(tmp_path, limits(15, 30, 0.01), "--out", tmp_path / "out")
    assert "computed  0 in" in again.stdout
    assert "3 stored before" in again.stdout


def test_jobs_besides_the_axes_have_a_name_and_equal_reasons_stand_once(tmp_path: Path) -> None:
    document = limits(15, -1) | {"jobs": [{"name": "what runs today", "set": {"slo.tpot_ms": 40}}]}
    document["axes"]["framework"] = ["trtllm", "vllm"]
    shown = run(tmp_path, document).stdout
    assert any("what runs today" in line and "colocated" in line for line in shown.splitlines())
    assert shown.count("greater than 0") == 1
    assert "; 2 jobs" in " ".join(shown.split())


def test_json_is_one_document_with_every_job(tmp_path: Path) -> None:
    done = run(tmp_path, limits(15, 0.01), "--json")
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["counts"] == {
        "points": 2, "feasible": 1, "infeasible": 1, "bad_input": 0, "failed": 0, "missing": 0
    }  # fmt: skip
    first, second = document["points"]
    assert first["best"]["mode"] == "colocated"
    assert first["best"]["tpot_ms"] <= 15
    assert second["best"] is None
    assert "TPOT" in second["reason"]


def test_what_an_engine_says_is_no_part_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "LocalEngine", lambda workers: Here(noise="node lost\n"))
    done = run(tmp_path, limits(15), "--json")
    assert json.loads(done.stdout)["counts"]["feasible"] == 1
    assert "node lost" in done.stderr


def test_a_broken_sweep_is_bad_input_and_nothing_is_written(tmp_path: Path) -> None:
    done = run(tmp_path, {"base": BASE, "axes": {"slo.tpot": [1, 2]}}, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "did you mean tpot_ms" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--engine", "spark"), "--engine"),
        (("--address", "auto"), "--address"),
    ],
)
def test_an_engine_that_is_not_there_is_bad_input(tmp_path: Path, words: tuple[str, ...], field: str) -> None:
    done = run(tmp_path, limits(15), *words)
    assert done.exit_code == 2
    assert done.stderr.startswith(field)


def test_when_nothing_is_feasible_the_exit_code_says_so(tmp_path: Path) -> None:
    assert run(tmp_path, limits(0.01, 0.02)).exit_code == 3


def test_a_job_that_failed_for_no_fault_of_its_own_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "LocalEngine", lambda workers: Here(lost=True))
    done = run(tmp_path, limits(15))
    assert done.exit_code == 1
    assert "✗ failed" in done.stdout
    assert "its machine burnt down" in done.stdout


def test_the_schema_of_the_sweep_file_is_printed() -> None:
    done = CliRunner().invoke(app, ["schema", "sweep"])
    assert set(json.loads(done.stdout)["properties"]) >= {"base", "axes", "exclude", "jobs"}
    assert "model" in json.loads(CliRunner().invoke(app, ["schema"]).stdout)["properties"]
    assert CliRunner().invoke(app, ["schema", "swep"]).exit_code == 2


def test_progress_says_nothing_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with sweep_progress() as tell:
        tell(sweeps.Step(1, 2, 0, "x", "feasible"))
    assert capsys.readouterr() == ("", "")
