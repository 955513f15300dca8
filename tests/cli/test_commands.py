import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from afd_dse.cli import app
from tests.results.examples import IMPOSSIBLE, SMALL, answer

ROOT = Path(__file__).resolve().parents[2]
runner = CliRunner()


def run(*words: str | Path, stdin: str | None = None) -> Result:
    return runner.invoke(app, [str(word) for word in words], input=stdin)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return written(tmp_path / "small.yaml", SMALL)


def written(path: Path, document: Any) -> Path:
    path.write_text(yaml.safe_dump(document))
    return path


def in_a_process(*words: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    command = [sys.executable, "-c", "from afd_dse.cli import main; main()", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder that ``optimize`` wrote, and what it said."""
    folder = tmp_path_factory.mktemp("answered")
    job = written(folder / "small.yaml", SMALL)
    return folder / "answer", run("optimize", job, "--json", "--out", folder / "answer")


def test_optimize_answers_in_json_and_nothing_else_on_stdout(answered: tuple[Path, Result]) -> None:
    out, done = answered
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["best"]["label"] == answer().document["best"]["label"]
    assert done.stderr == ""
    assert json.loads((out / "result.json").read_text()) == document
    assert sorted(path.name for path in out.iterdir()) == [
        "candidates.parquet", "pareto.csv", "report.html", "result.json",
    ]  # fmt: skip


def test_a_process_writes_one_json_document_and_no_progress_into_a_pipe(small: Path) -> None:
    done = in_a_process("optimize", small, "--json", "--modes", "colocated")
    assert done.returncode == 0
    assert done.stderr == ""
    assert list(json.loads(done.stdout)["best_per_mode"]) == ["colocated"]


def test_nothing_feasible_exits_with_3_and_names_the_nearest_miss(tmp_path: Path) -> None:
    job = written(tmp_path / "job.yaml", IMPOSSIBLE)
    done = run("optimize", job, "--modes", "colocated,pd")
    assert done.exit_code == 3
    assert "Nothing is feasible" in done.stdout
    assert "exceeds 0.1 ms by" in done.stdout
    done = run("optimize", job, "--modes", "colocated", "--json")
    assert done.exit_code == 3
    assert json.loads(done.stdout)["nearest_misses"]


BAD = {
    "no such job": (["optimize", "nope.yaml"], "nope.yaml: the file does not exist"),
    "unknown mode": (["optimize", "JOB", "--modes", "pdd"], "search.modes[0]: unknown mode"),
    "unknown space": (["optimize", "JOB", "--space", "tiny"], "search.space: no such search space"),
    "unknown method": (["optimize", "JOB", "--method", "guess"], "search.method: unknown value"),
    "no trials": (["optimize", "JOB", "--trials", "0"], "search.trials: this must be at least 1"),
    "trials no number": (["optimize", "JOB", "--trials", "x"], "--trials"),
    "out is a file": (["optimize", "JOB", "--out", "JOB"], "--out:"),
    "unknown option": (["optimize", "JOB", "--objektive", "x"], "No such option"),
    "unknown command": (["optimise", "JOB"], "No such command 'optimise'"),
    "no job": (["optimize"], "Missing argument 'JOB'"),
    "no deployment": (["estimate", "JOB", "nope.json"], "nope.json: the file does not exist"),
    "deployment a job": (["estimate", "JOB", "JOB"], "model: unknown key"),
    "unknown model": (["models", "GPT-9"], "model: is not in the catalogue"),
    "unknown table": (["db", "show", "b200_sxm/trtllm/gem"], "TABLE: no such table"),
    "table of nothing": (["db", "show", "zzz"], "(got 'zzz'); `afd-dse db list` shows what there is"),
    "no such wheel": (["db", "import", "--wheel", "nope.whl"], "--wheel: no such file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_exits_with_2_and_one_line_a_problem_on_stderr(name: str, small: Path) -> None:
    words, message = BAD[name]
    done = run(*(str(small) if word == "JOB" else word for word in words))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert all(": " in line for line in done.stderr.strip().splitlines())


def test_every_problem_of_a_job_gets_a_line_of_its_own(tmp_path: Path) -> None:
    job = written(tmp_path / "job.yaml", SMALL | {"slo": {"tpot_ms": -1}, "framwork": "vllm"})
    done = run("optimize", job)
    assert done.exit_code == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2
    assert any(line.startswith("framwork: ") and "framework" in line for line in lines)
    assert any(line.startswith("slo.tpot_ms: ") for line in lines)


def test_a_fault_of_ours_exits_with_1_and_hides_its_traceback_until_asked(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("afd_dse.optimize", broken)
    done = run("optimize", small)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "afd-dse: RuntimeError: two lines; this is a fault of the program: run it again with --debug for the traceback"
    ]
    assert "Traceback" in run("optimize", small, "--debug").stderr


def test_estimate_gives_the_numbers_of_the_answer_from_a_file_a_folder_and_stdin(
    small: Path, answered: tuple[Path, Result]
) -> None:
    out, _ = answered
    document = json.loads((out / "result.json").read_text())
    best = document["best"]
    sources: list[tuple[list[str | Path], str | None, dict[str, Any]]] = [
        ([out], None, best),
        ([out / "result.json"], None, best),
        (["-"], json.dumps(best), best),
        (["-"], yaml.safe_dump(best), best),
        ([out, "--rank", "2"], None, document["ranking"][1]),
        ([out, "--mode", "afd"], None, document["best_per_mode"]["afd"]),
        ([out, "--mode", "pd", "--rank", "1"], None, document["best_per_mode"]["pd"]),
    ]
    for words, stdin, expected in sources:
        done = run("estimate", small, *words, "--json", stdin=stdin)
        assert done.exit_code == 0, done.stderr
        found = json.loads(done.stdout)
        for name in ("tokens_per_s_per_gpu", "ttft_ms", "tpot_ms", "usd_per_mtok"):
            assert found[name] == pytest.approx(expected[name], rel=1e-9)
        assert found["operators"]["decode"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mode", "pdd"], "--mode: the result has no such mode"),
        (["--rank", "99"], "--rank: the result ranks"),
        (["--rank", "0"], "--rank"),
    ],
)
def test_a_deployment_that_a_result_lacks_is_refused(
    words: list[str], message: str, small: Path, tmp_path: Path
) -> None:
    result = tmp_path / "result.json"
    result.write_text(answer().to_json())
    done = run("estimate", small, result, *words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_mode_cannot_be_picked_from_a_single_deployment(small: Path) -> None:
    done = run("estimate", small, "-", "--mode", "pd", stdin=json.dumps(answer().best))
    assert done.exit_code == 2
    assert "--mode: - is one deployment, not a result" in done.stderr


def test_a_deployment_that_breaks_a_limit_is_estimated_and_exits_with_3(tmp_path: Path) -> None:
    strict = written(tmp_path / "strict.yaml", IMPOSSIBLE)
    done = run("estimate", strict, "-", "--json", stdin=json.dumps(answer().best))
    assert done.exit_code == 3
    assert "TPOT" in json.loads(done.stdout)["reason"]
    assert "exceeds 0.1 ms" in run("estimate", strict, "-", stdin=json.dumps(answer().best)).stdout


@pytest.mark.parametrize(
    "words",
    [
        ["models"],
        ["models", "DeepSeek-R1-0528"],
        ["accelerators"],
        ["db", "list"],
        ["db", "show", "h100_sxm/vllm/gemm"],
    ],
)
def test_catalogues_are_tables_for_people_and_json_for_programs(words: list[str]) -> None:
    assert run(*words).exit_code == 0
    done = run(*words, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)


def test_models_know_their_names() -> None:
    found = json.loads(run("models", "--json").stdout)
    assert {"deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-32B"} <= {row["name"] for row in found}
    assert json.loads(run("models", "DeepSeek-R1-0528", "--json").stdout)["name"] == "deepseek-ai/DeepSeek-R1"


def test_the_schema_is_that_of_the_job_file() -> None:
    found = json.loads(run("schema").stdout)
    assert {"model", "cluster", "workload", "slo", "search"} <= set(found["properties"])


def test_version_and_help_succeed() -> None:
    assert run("--version").stdout.startswith("afd-dse ")
    assert run().exit_code == 0
    assert run("db").exit_code == 0
    for words in ([], ["optimize"], ["estimate"], ["db"], ["db", "import"]):
        done = run(*words, "--help")
        assert done.exit_code == 0
        assert "Usage" in done.stdout


def test_help_loads_nothing_heavy_and_comes_at_once() -> None:
    code = (
        "import sys\nfrom afd_dse.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'pandas', 'scipy', 'optuna', 'pydantic', 'pyarrow', 'plotly', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - start < 5.0  # 0.2 s on an idle machine; test machines are busy
