import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner, Result

from afd_dse import estimate, load_job
from afd_dse.cli import app
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.spec.calibration import load_calibration
from tests.calibration.examples import PD, table, written
from tests.results.examples import SMALL

runner = CliRunner()
RUNS = table(
    *({"concurrency": load, "tpot_ms": 7 + load / 8} for load in (1, 8, 32)),
    {"framework": "trtllm", "precision": "fp8"},
    {"ttft_ms": "", "accelerator": "h200_sxm"},
    PD,
    {"model": "nobody/knows-it"},
)
ENGINES = pd.DataFrame(
    [{"system": "h100_sxm", "model": "meta-llama/Meta-Llama-3.1-8B", "tp": 4, "isl": 2048, "osl": 2048}]
).assign(measured_max_concurrent_seqs=500)

DEPLOYMENT: dict[str, Any] = {
    "groups": [{"cells": ["PA", "PF", "DA", "DF"], "tp": 2, "moe_tp": 2}],
    "batch_size": 16,
    "chunk_tokens": 8192,
}


def run(*words: str | Path) -> Result:
    return runner.invoke(app, [str(word) for word in words], env={"COLUMNS": "110"})


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return written(RUNS, tmp_path / "runs.csv")


KEYS = {
    f"{metric}_{what}"
    for metric in ("tpot", "ttft", "throughput")
    for what in ("mape", "median_ape", "bias", "coverage90")
}


def test_validate_prints_one_json_document_with_the_promised_names(runs: Path) -> None:
    done = run("validate", runs, "--json")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    facts = json.loads(done.stdout)
    assert (facts["rows"], facts["predicted"]) == (7, 6)
    assert facts["unsupported"] == {"model nobody/knows-it: is not in the catalogue": 1}
    assert set(facts) >= KEYS | {"coverage90", "regret", "rank_correlation", "by"}
    assert all(isinstance(facts[key], float) for key in KEYS)
    assert set(facts["by"]["framework"]) == {"vllm", "trtllm"}


def test_validate_tells_a_reader_how_far_off_it_is_and_what_has_no_prediction(runs: Path) -> None:
    done = run("validate", runs)
    assert done.exit_code == 0, done.stderr
    facts = json.loads(run("validate", runs, "--json").stdout)
    text = " ".join(done.stdout.split())
    assert "6 of 7 runs" in text
    assert "1 without: model nobody/knows-it: is not in the catalogue" in text
    line = next(line for line in done.stdout.splitlines() if line.startswith("TPOT"))
    assert line.split() == ["TPOT"] + [
        f"{facts[f'tpot_{what}']:.1f}" for what in ("mape", "median_ape", "bias", "coverage90")
    ]
    for title in ("by framework", "by accelerator", "by model", "by mode"):
        assert title in text
    assert "None" not in text
    assert "nan" not in text


def test_a_table_without_any_prediction_is_an_answer_too(tmp_path: Path) -> None:
    path = written(table({"model": "nobody/knows-it"}), tmp_path / "runs.csv")
    done = run("validate", path)
    assert done.exit_code == 0, done.stderr
    assert "0 of 1 runs" in done.stdout
    assert "nan" not in done.stdout.lower().replace("nobody", "")
    assert json.loads(run("validate", path, "--json").stdout)["tpot_mape"] is None


def test_predictions_are_written_row_by_row(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "predictions.csv"
    done = run("validate", runs, "--predictions", out, "--json")
    assert done.exit_code == 0, done.stderr
    found = pd.read_csv(out)
    assert len(found) == len(RUNS)
    assert found["reason"].notna().tolist() == [False] * 6 + [True]
    assert found["predicted_tpot_ms"].isna().tolist() == [False] * 6 + [True]
    inside = found[["low_tpot_ms", "predicted_tpot_ms", "high_tpot_ms"]].dropna()
    assert (inside.diff(axis=1).iloc[:, 1:] > 0.0).all(axis=None)
    error = 100.0 * (found["predicted_tpot_ms"] / found["tpot_ms"] - 1.0).abs().mean()
    assert json.loads(done.stdout)["tpot_mape"] == pytest.approx(error, rel=1e-4)


def test_a_table_of_capacities_is_judged_by_the_memory_model(tmp_path: Path) -> None:
    path = written(ENGINES, tmp_path / "kv.csv")
    done = run("validate", path, "--json", "--predictions", tmp_path / "out.csv")
    assert done.exit_code == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["kv_capacity_rows"] == 1
    assert facts["kv_capacity_mape"] == facts["kv_capacity_median_ape"] >= 0.0
    assert "predicted_max_concurrent_seqs" in pd.read_csv(tmp_path / "out.csv")
    assert "1 of 1 engines" in run("validate", path).stdout


def test_the_calibration_can_be_none_default_or_a_file(runs: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("source: own\noverheads: {vllm: {hopper: {step_overhead_ms: 50.0}}}\n")
    bias = {}
    for name in ("none", "default", str(own)):
        done = run("validate", runs, "--json", "--calibration", name)
        assert done.exit_code == 0, done.stderr
        bias[name] = json.loads(done.stdout)["by"]["framework"]["vllm"]["tpot_bias"]
    assert bias["none"] < bias["default"] < bias[str(own)]
    assert bias[str(own)] > 200.0
    assert (
        json.loads(run("validate", runs, "--json").stdout)["by"]["framework"]["vllm"]["tpot_bias"]
        == bias["default"]
    )


def no_tpot(path: Path) -> Path:
    return written(RUNS.drop(columns="tpot_ms"), path / "no_tpot.csv")


BAD: dict[str, tuple[list[str], str]] = {
    "no file": (["validate", "nope.csv", "--predictions", "OUT"], "nope.csv"),
    "no column": (["validate", "NO_TPOT", "--predictions", "OUT"], "tpot_ms: is not a column"),
    "calibration": (["validate", "RUNS", "--predictions", "OUT", "--calibration", "defualt"], "defualt"),
    "predictions": (["validate", "RUNS", "--predictions", "no/such/out.csv"], "--predictions: the folder"),
    "fit of no column": (["calibrate", "NO_TPOT", "--out", "OUT"], "tpot_ms: is not a column"),
    "fit of capacities": (["calibrate", "ENGINES", "--out", "OUT"], "is not a column"),
    "fit of nothing": (["calibrate", "HOPELESS", "--out", "OUT"], "no row can be predicted"),
    "start": (["calibrate", "RUNS", "--out", "OUT", "--start", "defualt"], "defualt"),
    "out": (["calibrate", "RUNS", "--out", "no/such/own.yaml"], "--out: the folder"),
    "out is a folder": (["calibrate", "RUNS", "--out", "."], "--out: is a folder"),
}


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["human", "json"])
@pytest.mark.parametrize(("words", "message"), BAD.values(), ids=BAD)
def test_bad_input_exits_with_2_says_what_is_wrong_and_writes_nothing(
    words: list[str],
    message: str,
    as_json: list[str],
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {
        "RUNS": runs,
        "NO_TPOT": no_tpot(tmp_path),
        "ENGINES": written(ENGINES, tmp_path / "kv.csv"),
        "HOPELESS": written(table({"model": "nobody/knows-it"}), tmp_path / "hopeless.csv"),
        "OUT": tmp_path / "out",
    }
    before = sorted(tmp_path.iterdir())
    done = run(*(places.get(word, word) for word in words), *as_json)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert sorted(tmp_path.iterdir()) == before


def test_calibrate_says_what_it_fitted_what_that_brought_and_how_to_use_it(
    runs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "own.yaml"
    done = run("calibrate", runs, "--out", out)
    assert done.exit_code == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "6 runs of runs.csv, on top of" in text
    assert "vllm hopper" in text
    assert "sglang" not in text.split("overheads")[1]  # no run speaks of it
    assert "TPOT: median error" in text
    assert load_calibration(str(out)).overheads["vllm"]


def test_calibrate_in_json_holds_the_file_and_the_errors_before_and_after(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "own.yaml"
    done = run("calibrate", runs, "--out", out, "--json", "--start", "none")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["written"] == str(out)
    assert document["calibration"] == load_calibration(str(out)).model_dump(mode="json")
    assert document["after"]["tpot_mape"] < document["before"]["tpot_mape"]


def test_a_fitted_file_changes_the_estimates_of_a_job_that_names_it(runs: Path, tmp_path: Path) -> None:
    slow = RUNS.assign(
        framework="trtllm", tpot_ms=(2.0 * RUNS["tpot_ms"].astype(float)).map(str), accelerator="h200_sxm"
    )
    out = tmp_path / "own.yaml"
    assert run("calibrate", written(slow, runs), "--out", out).exit_code == 0
    job: dict[str, Any] = SMALL | {"calibration": "own.yaml", "slo": {}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    scenario = scenario_from_job(load_job(tmp_path / "job.yaml"))
    fitted = load_calibration(str(out)).overheads_of("trtllm", "hopper")
    assert scenario.overhead("layer_s")[0] == pytest.approx(fitted.layer_overhead_us * 1e-6)
    shipped = load_calibration("default").overheads_of("trtllm", "hopper")
    assert fitted.layer_overhead_us + fitted.dense_layer_overhead_us > (
        shipped.layer_overhead_us + shipped.dense_layer_overhead_us
    )
    known, own = (
        estimate(SMALL | {"slo": {}, "calibration": name}, DEPLOYMENT) for name in ("default", str(out))
    )
    assert own["tpot_ms"] > known["tpot_ms"]
