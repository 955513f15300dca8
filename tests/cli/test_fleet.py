import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner, Result

from afd_dse.cli import app
from afd_dse.cli.fleet_answer import print_fleet
from afd_dse.report import fleet as files
from tests.spec.test_fleet import CHAT, DENSE, SMALL

QUICK = SMALL | {"search": {"space": "quick", "modes": ["colocated"]}}


def run(*words: object, columns: int = 100) -> Result:
    return CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": str(columns)})


def written(folder: Path, document: Any) -> Path:
    (folder / "fleet.yaml").write_text(yaml.safe_dump(document))
    return folder / "fleet.yaml"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("fleet")
    return folder / "out", run("fleet", written(folder, QUICK), "--out", folder / "out")


def test_the_answer_names_shares_deployments_and_what_is_exact(done: tuple[Path, Result]) -> None:
    out, result = done
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    document = json.loads((out / "fleet.json").read_text())
    assert f"{document['gpus']} of 8 GPUs" in text
    for model in document["models"]:
        (row,) = [
            line
            for line in result.stdout.splitlines()
            if f"  {model['name']} " in line and "colocated" in line
        ]
        assert f" {model['gpus']} " in row
    assert "proved optimal" in text
    assert "of every demand at once" in text
    assert f"afd-dse estimate {out}/chat/job.json {out}/chat" in result.stdout
    assert all(
        len(line) <= 100 or "afd-dse" in line or str(out) in line for line in result.stdout.splitlines()
    )


def test_a_narrow_terminal_shows_names_whole_and_leaves_the_times_out(done: tuple[Path, Result]) -> None:
    out, _ = done
    narrow = io.StringIO()
    document = json.loads((out / "fleet.json").read_text())
    print_fleet(document, file="fleet.yaml", out=Console(file=narrow, width=80))
    lines = narrow.getvalue().splitlines()
    for model in document["models"]:
        assert any(f"  {model['name']} " in line and model["deployment"]["mode"] in line for line in lines)
    assert not any("TTFT" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_json_is_one_document_and_what_is_kept_is_used(
    done: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = done
    monkeypatch.setattr(files, "analysed", lambda job, result: result)
    again = run("fleet", out.parent / "fleet.yaml", "--out", out, "--json")
    document = json.loads(again.stdout)
    assert document["reused"] == 2
    assert document["feasible"]
    assert {"fleet", "growth", "gpus_by_pool", "models", "explanation", "warnings"} <= set(document)


def test_every_model_has_a_result_that_the_other_commands_take(done: tuple[Path, Result]) -> None:
    out, _ = done
    document = json.loads((out / "fleet.json").read_text())
    for model in document["models"]:
        own = out / model["name"]
        estimated = run("estimate", own / "job.json", own, "--json")
        assert estimated.exit_code == 0, estimated.stderr
        rate = json.loads(estimated.stdout)["requests_per_s"]
        assert rate == pytest.approx(model["deployment"]["requests_per_s"], rel=1e-5)
        assert "<html" in (own / "report.html").read_text()[:200]
    assert run("report", own, "--format", "md").exit_code == 0
    simulated = run("simulate", own / "job.json", own, "--requests", 300, "--json")
    assert simulated.exit_code in (0, 3), simulated.stderr
    assert json.loads(simulated.stdout)["requests_per_s"] > 0.0


def test_the_page_of_a_fleet_is_written_and_rendered_again(done: tuple[Path, Result], tmp_path: Path) -> None:
    out, _ = done
    document = json.loads((out / "fleet.json").read_text())
    text = (out / "fleet.html").read_text()
    for model in document["models"]:
        assert model["deployment"]["label"] in text
    assert f"{document['gpus']} of 8" in text
    assert "proved optimal" in text
    again = run("report", out, "--out", tmp_path / "page.html")
    assert again.exit_code == 0, again.stderr
    assert (tmp_path / "page.html").read_text() == text
    refused = run("report", out, "--format", "csv")
    assert refused.exit_code == 2
    assert "no such format of a fleet" in refused.stderr


def test_what_cannot_be_served_ends_with_3_and_shows_the_best_there_is(tmp_path: Path) -> None:
    document = QUICK | {"models": [DENSE | {"demand": {"requests_per_s": 1e4}}]}
    result = run("fleet", written(tmp_path, document))
    assert result.exit_code == 3
    text = " ".join(result.stdout.split())
    assert "✗ dense: the whole cluster serves" in text
    assert "what the cluster serves at best" in text
    strict = QUICK | {"models": [DENSE | {"slo": {"tpot_ms": 0.1}}]}
    result = run("fleet", written(tmp_path, strict), "--out", tmp_path / "out", "--json")
    assert result.exit_code == 3
    assert "These demands cannot be met" in (tmp_path / "out" / "fleet.html").read_text()
    assert "no deployment meets its SLO" in json.loads(result.stdout)["reason"]


def test_bad_input_ends_with_2_names_the_field_and_writes_nothing(tmp_path: Path) -> None:
    wrong = QUICK | {"models": [CHAT | {"model": "nobody/knows-this"}, DENSE | {"slo": {"tpot": 3}}]}
    result = run("fleet", written(tmp_path, wrong), "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "models[1].slo.tpot" in result.stderr
    wrong["models"] = wrong["models"][:1]
    result = run("fleet", written(tmp_path, wrong), "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "models[0].model" in result.stderr
    assert not (tmp_path / "out").exists()
    assert run("fleet", tmp_path / "none.yaml").exit_code == 2


def test_the_schema_of_a_fleet_is_printed() -> None:
    schema = json.loads(run("schema", "fleet").stdout)
    assert {"cluster", "models", "objective"} <= set(schema["properties"])


def test_a_model_without_gpus_has_a_row_that_says_so(tmp_path: Path) -> None:
    models = [DENSE | {"demand": None}, DENSE | {"name": "strict", "demand": None, "slo": {"tpot_ms": 0.1}}]
    result = run("fleet", written(tmp_path, QUICK | {"models": models, "objective": "weighted_throughput"}))
    assert result.exit_code == 0, result.stderr
    assert any("strict" in line and "no deployment meets" in line for line in result.stdout.splitlines())
