import json
import os
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from afd_dse.cli import app
from afd_dse.results.files import write_result
from tests.results.examples import answer

runner = CliRunner()


def run(*words: str | Path) -> Result:
    return runner.invoke(app, [str(word) for word in words])


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    write_result(answer(), tmp_path / "answer")
    return tmp_path / "answer"


def test_files_are_written_scripts_can_be_run_and_the_folder_is_named(stored: Path, tmp_path: Path) -> None:
    done = run("launch", stored, "--mode", "pd", "--out", tmp_path / "start")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'start'}: README.md, ")
    names = {path.name for path in (tmp_path / "start").iterdir()}
    assert {"README.md", "prefill.sh", "decode.sh", "router.sh", "prefill.yaml", "decode.yaml"} <= names
    assert os.access(tmp_path / "start" / "decode.sh", os.X_OK)


def test_without_a_folder_the_files_are_printed_and_what_it_takes_goes_to_stderr(stored: Path) -> None:
    done = run("launch", stored, "--mode", "pd", "--target", "vllm")
    assert done.exit_code == 0, done.stderr
    assert "==> decode.sh <==" in done.stdout
    assert "note: its latencies were estimated with kernels of trtllm" in done.stderr


def test_as_json_the_files_are_texts_by_name(stored: Path) -> None:
    done = run("launch", stored, "--mode", "pd", "--target", "dynamo", "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["framework"] == "trtllm"
    *_, resource = yaml.safe_load_all(document["files"]["deployment.yaml"])
    assert resource["kind"] == "DynamoGraphDeployment"


def test_addresses_of_nodes_are_used(stored: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("10.1.2.3\n10.1.2.4\n")
    done = run("launch", stored, "--mode", "pd", "--hosts", tmp_path / "hosts")
    assert done.exit_code == 0, done.stderr
    assert "10.1.2.3:81" in done.stdout


def test_another_deployment_than_the_answer_is_named_even_where_both_have_one_label(stored: Path) -> None:
    document = json.loads((stored / "result.json").read_text())
    runs = document["best_launchable"]
    document["best"] = {**document["best_per_mode"]["afd"], "label": runs["label"]}
    (stored / "result.json").write_text(json.dumps(document))
    done = run("launch", stored)
    assert done.exit_code == 0, done.stderr
    assert f"no release of trtllm runs {runs['label']} (afd) today: this is {runs['label']}" in done.stderr


BAD = {
    "no result": (["launch", "nowhere"], "nowhere"),
    "no such target": (["--target", "ollama"], "--target: no such target (got 'ollama')"),
    "no such rank": (["--rank", "9999"], "--rank"),
    "no hosts": (["--hosts", "missing"], "missing: the file does not exist"),
    "not run by it": (["--mode", "afd"], "no release of trtllm runs"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_and_nothing_is_written(name: str, stored: Path, tmp_path: Path) -> None:
    words, message = BAD[name]
    first = words if words[0] == "launch" else ["launch", str(stored), *words]
    done = run(*first, "--out", tmp_path / "start")
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "start").exists()
