import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from afd_dse.cli import app
from tests.results.examples import SMALL, answer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[Path, Path]:
    job, deployment = tmp_path / "job.yaml", tmp_path / "deployment.json"
    job.write_text(yaml.safe_dump(SMALL))
    deployment.write_text(json.dumps(answer().best_per_mode["pd"]))
    return job, deployment


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, words)])


def test_simulate_answers_in_json_and_writes_its_page(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    done = run(*inputs, "--requests", 500, "--json", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["completed"] == 500
    assert json.loads((tmp_path / "out" / "simulation.json").read_text()) == document
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["simulation.json", "timeline.html"]
    page = (tmp_path / "out" / "timeline.html").read_text()
    assert "under 500 requests" in page
    assert "http://" not in page.split("</script>")[-1]


def test_simulate_prints_percentiles_beside_the_formulas(inputs: tuple[Path, Path]) -> None:
    done = run(*inputs, "--requests", 500)
    assert done.exit_code == 0
    for words in ("✓ the SLO is kept", "TTFT (percentile 90)", "formula", "request-steps/s", "p99"):
        assert words in done.stdout


def test_a_broken_slo_exits_with_3_and_bad_options_with_2(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    overload = run(*inputs, "--requests", 1000, "--rate", 500)
    assert overload.exit_code == 3
    assert "✗ TTFT" in overload.stdout
    bad = run(*inputs, "--routing", "best", "--kv", "small", "--rate", -1, "--out", tmp_path / "out")
    assert bad.exit_code == 2
    assert [line.split(":")[0] for line in bad.stderr.splitlines()] == ["--routing", "--kv", "--rate"]
    assert not (tmp_path / "out").exists()
    assert run(*inputs, "--trace", tmp_path / "none.csv", "--out", tmp_path / "out").exit_code == 2
    assert not (tmp_path / "out").exists()


def test_policies_of_batching_and_experts_are_named_and_checked(inputs: tuple[Path, Path]) -> None:
    done = run(*inputs, "--requests", 300, "--batching", "buckets", "--json")
    assert json.loads(done.stdout)["policies"]["batching"] == "buckets"
    bad = run(
        *inputs, "--batching", "x", "--experts-resident", 1.5, "--experts-kept", "x", "--experts-loaded", "x"
    )
    assert bad.exit_code == 2
    named = [line.split(":")[0] for line in bad.stderr.splitlines()]
    assert named == ["--batching", "--experts-resident", "--experts-kept", "--experts-loaded"]
    done = run(*inputs, "--requests", 300, "--experts-resident", 0.5, "--json")
    assert json.loads(done.stdout)["policies"]["expert_cache"]["resident"] == 0.5
    dense = inputs[0].with_name("dense.yaml")
    dense.write_text(yaml.safe_dump(SMALL | {"model": "Qwen/Qwen3-32B-FP8"}))
    bad = run(dense, inputs[1], "--experts-resident", 0.5)
    assert bad.exit_code == 2
    assert "the model has no routed experts" in bad.stderr


def test_a_killed_simulation_resumes_and_ends_as_if_it_had_not_been(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    out, job, deployment = tmp_path / "out", *inputs
    # Saving after each look makes the test short; the default is every few seconds.
    code = (
        "import afd_dse.simulation.checkpoint as c; c._SECONDS = 0.2; c.Checkpoint.__init__.__defaults__ = (0.2,);"
        "from afd_dse.cli import main; main()"
    )
    words = ["simulate", job, deployment, "--requests", "30000", "--json", "--out", out]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], env=environment, stdout=subprocess.DEVNULL
    )
    saved = out / "simulation.checkpoint"
    while not saved.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) == [saved.name]
    other = run(job, deployment, "--requests", 30000, "--seed", 1, "--out", out)
    assert other.exit_code == 2
    assert "belongs to another job, deployment, seed or option" in other.stderr
    resumed = run(job, deployment, "--requests", 30000, "--json", "--out", out)
    assert resumed.exit_code == 0
    assert not saved.exists()
    whole = run(job, deployment, "--requests", 30000, "--json")
    assert json.loads(resumed.stdout) == json.loads(whole.stdout)
