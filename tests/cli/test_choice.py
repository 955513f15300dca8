"""A job that lists data types, as a person meets it: terminal, files, the other commands."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner, Result

from afd_dse.cli import app
from tests.results.examples import TINY

JOB: dict[str, Any] = TINY | {
    "slo": {"ttft_ms": 1000, "tpot_ms": 20},
    "quantization": {"gemm": ["fp8_block", "int4_wo"], "kv_cache": ["bfloat16", "fp8"]},
}


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "100"})


def written(folder: Path, document: Any) -> Path:
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    return folder / "job.yaml"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Result]:
    folder = tmp_path_factory.mktemp("choice")
    job = written(folder, JOB)
    return job, folder / "out", run("optimize", job, "--out", folder / "out")


def test_the_terminal_compares_the_types_and_tells_what_is_left_out(done: tuple[Path, Path, Result]) -> None:
    _, _, result = done
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("Data types"))
    rows = [line for line in lines[start:] if line.startswith("  GEMM fp8_block, KV")]
    assert len(rows) == 2
    text = " ".join(result.stdout.split())
    assert "2 combinations are left out: no gemm kernel of trtllm was measured in int4_wo" in text
    assert "judge these before you choose" in text
    assert "Recommended:" in text


def test_files_and_other_commands_know_the_types(done: tuple[Path, Path, Result]) -> None:
    job, out, _ = done
    document = json.loads((out / "result.json").read_text())
    assert all(d["quantization"]["gemm"] == "fp8_block" for d in document["pareto"])
    front = pd.read_csv(out / "pareto.csv")
    assert front["kv_dtype"].tolist() == [d["quantization"]["kv_cache"] for d in document["pareto"]]
    assert "Data types" in (out / "report.html").read_text()
    estimated = json.loads(run("estimate", job, out, "--json").stdout)
    best = document["best"]
    assert estimated["quantization"] == best["quantization"]
    assert estimated["label"] == best["label"]
    assert estimated["tokens_per_s"] == pytest.approx(best["tokens_per_s"], rel=1e-9)
    assert run("simulate", job, out, "--requests", 200, "--json").exit_code in (0, 3)
    assert run("report", out, "--format", "md").exit_code == 0
    assert "Data types" in (out / "report.md").read_text()


def test_a_deployment_without_types_and_types_that_cannot_run_are_bad_input(
    done: tuple[Path, Path, Result], tmp_path: Path
) -> None:
    job, out, _ = done
    best = json.loads((out / "result.json").read_text())["best"]
    (tmp_path / "best.json").write_text(json.dumps({k: v for k, v in best.items() if k != "quantization"}))
    refused = run("estimate", job, tmp_path / "best.json")
    assert refused.exit_code == 2
    assert "quantization" in refused.stderr
    assert "add e.g. quantization: {gemm: fp8_block" in refused.stderr
    wrong = written(tmp_path, JOB | {"quantization": {"gemm": ["nvfp4", "int4_wo"]}})
    refused = run("optimize", wrong, "--out", tmp_path / "none")
    assert refused.exit_code == 2
    assert "does not run on hopper" in refused.stderr
    assert not (tmp_path / "none").exists()
