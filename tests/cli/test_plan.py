import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from afd_dse import load_job
from afd_dse.cli import app
from afd_dse.results import plan as planner
from afd_dse.results.simulate import Options, simulate
from tests.spec.test_demand import SMALL

DAILY = [0.2] * 8 + [1.4] * 16
VARIED: dict[str, Any] = SMALL | {
    "hardware": [
        SMALL["hardware"][0] | {"count": 8},
        {
            "name": "own",
            "accelerator": "h100_sxm",
            "count": 2,
            "usd_per_gpu_hour": 1.5,
            "billing": "reserved",
        },
    ],
    "demand": {"requests_per_s": 60.0, "daily": DAILY},
    "horizon": {"hours": 24, "period_hours": 4},
    "rules": {"headroom": 0.1, "redundancy": "deployment"},
    "search": {"space": "quick", "modes": ["colocated", "pd"]},
}


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, words)])


def written(path: Path, document: Any) -> Path:
    path.write_text(yaml.safe_dump(document))
    return path


@lru_cache(maxsize=1)
def planned(folder: Path) -> dict[str, Any]:
    done = run(written(folder / "demand.yaml", VARIED), "--json", "--out", folder / "plan")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plan")


def test_a_plan_serves_every_period_and_its_numbers_agree(folder: Path) -> None:
    document = planned(folder)
    total, options = document["totals"], document["options"]
    price = {kind["name"]: kind["usd_per_gpu_hour"] for kind in VARIED["hardware"]}
    usd = total["reserved_gpus"]["own"] * price["own"] * 24.0
    for t, row in enumerate(document["periods"]):
        capacity = sum(options[e["option"]]["requests_per_s"] * e["copies"] for e in row["running"])
        largest = max(options[e["option"]]["requests_per_s"] for e in row["running"])
        wanted = document["requests_per_s"][0][t]
        assert (capacity - largest) * 0.9 >= wanted * (1.0 - 1e-6)
        assert row["load"]["chat"] == pytest.approx(wanted / capacity)
        assert row["gpus"] == sum(options[e["option"]]["gpus"] * e["copies"] for e in row["running"])
        hourly = [
            options[e["option"]]["gpus"] * e["copies"] for e in row["running"] if e["hardware"] == "h200"
        ]
        starts = [
            options[e["option"]]["gpus"] * e["copies"] for e in row["starts"] if e["hardware"] == "h200"
        ]
        usd += price["h200"] * (4.0 * sum(hourly) + 0.25 * sum(starts))
    assert total["usd"] == pytest.approx(usd)
    assert document["periods"][0]["gpus"] < document["periods"][3]["gpus"]
    assert all(row["slo_kept"] for row in document["failures"] if row["lost"] == "deployment")
    costs = [row["usd"] for row in document["sensitivity"] if row["feasible"]]
    assert costs == sorted(costs)


def test_what_a_plan_promises_holds_in_simulation(folder: Path) -> None:
    document = planned(folder)
    peak = document["periods"][document["peak_period"]]
    capacity = sum(document["options"][e["option"]]["requests_per_s"] * e["copies"] for e in peak["running"])
    share = document["requests_per_s"][0][document["peak_period"]] / capacity
    for entry in peak["running"]:
        option = document["options"][entry["option"]]
        kind = next(kind for kind in VARIED["hardware"] if kind["name"] == entry["hardware"])
        pool = {name: kind[name] for name in ("name", "accelerator", "count")}
        job = load_job(
            {
                "model": VARIED["model"],
                "cluster": {"pools": [pool]},
                "workload": VARIED["classes"][0]["workload"],
                "slo": VARIED["classes"][0]["slo"],
            }
        )
        deployment = {
            name: option[name] for name in ("mode", "partition", "groups", "batch_size", "chunk_tokens")
        }
        deployment["policy"] = option["policy"]
        rate = share * option["requests_per_s"]
        found = simulate(job, deployment, Options(requests=5000, seed=99, requests_per_s=rate))
        assert found["met"], found["reason"]
        assert found["requests_per_s"] == pytest.approx(rate, rel=0.08)


def test_a_plan_goes_on_with_the_searches_that_were_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = planned(folder)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("it has been searched already")

    monkeypatch.setattr(planner, "optimize", never)
    monkeypatch.setattr(planner, "simulate", never)
    again = run(folder / "demand.yaml", "--json", "--out", folder / "plan")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["totals"]["usd"] == pytest.approx(document["totals"]["usd"], rel=0.01)
    text = run(folder / "demand.yaml", "--out", folder / "plan")
    assert text.exit_code == 0
    for words in ("at the peak", "per million output tokens", "break-even", "loses one copy", "demand × 1.2"):
        assert words in text.stdout
    assert sorted(path.name for path in (folder / "plan").iterdir()) == [
        "capacity.json",
        "plan.html",
        "plan.json",
    ]
    page = (folder / "plan" / "plan.html").read_text()
    assert "Capacity plan for Qwen/Qwen3-30B-A3B-FP8" in page
    assert "Assumptions" in page
    assert len(document["estimates"]) == 2


def test_a_stored_plan_is_written_in_other_forms(folder: Path) -> None:
    planned(folder)
    done = CliRunner().invoke(app, ["report", str(folder / "plan"), "--format", "csv"])
    assert done.exit_code == 0, done.stderr
    lines = (folder / "plan" / "plan.csv").read_text().splitlines()
    (folder / "plan" / "plan.csv").unlink()
    assert lines[0].startswith("period,start_hours,class")
    assert len(lines) > 6
    page = folder / "again.html"
    file = folder / "plan" / "plan.json"
    assert CliRunner().invoke(app, ["report", str(file), "--out", str(page)]).exit_code == 0
    assert page.read_text() == (folder / "plan" / "plan.html").read_text()
    wrong = CliRunner().invoke(app, ["report", str(file), "--format", "md"])
    assert wrong.exit_code == 2
    assert "no such format of a plan" in wrong.stderr
    old = folder / "old.json"
    text = json.loads(file.read_text())
    old.write_text(json.dumps({key: text[key] for key in text if key != "rating"}))
    done = CliRunner().invoke(app, ["report", str(old)])
    assert done.exit_code == 2
    assert "lacks rating" in done.stderr


def test_a_pdf_without_a_folder_or_a_browser_is_refused_before_anything_is_searched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand = written(folder / "pdf.yaml", VARIED)
    done = run(demand, "--pdf")
    assert done.exit_code == 2
    assert done.stderr.startswith("--pdf")
    monkeypatch.setenv("AFD_DSE_BROWSER", "no-such-browser")
    done = run(demand, "--pdf", "--out", folder / "nothing")
    assert done.exit_code == 1
    assert "no-such-browser" in done.stderr
    assert not (folder / "nothing").exists()


def test_more_than_the_hardware_serves_exits_with_3_and_says_what_it_serves(folder: Path) -> None:
    planned(folder)
    much = VARIED | {"demand": {"requests_per_s": 6000.0, "daily": DAILY}}
    done = run(written(folder / "much.yaml", much), "--json", "--out", folder / "plan")
    assert done.exit_code == 3
    document = json.loads(done.stdout)
    assert 0.0 < document["most_load"] < 1.0
    assert "of the demand of the busiest period" in document["reason"]
    peak = document["requests_per_s"][0][document["peak_period"]]
    assert document["inverse"]["chat"] == pytest.approx(document["most_load"] * peak)


def test_a_class_that_no_hardware_serves_exits_with_3(tmp_path: Path) -> None:
    slow = VARIED | {
        "classes": [VARIED["classes"][0] | {"slo": {"tpot_ms": 0.01}}],
        "hardware": SMALL["hardware"],
    }
    done = run(written(tmp_path / "demand.yaml", slow))
    assert done.exit_code == 3
    assert "no deployment on any hardware meets the SLO of chat" in done.stdout


def test_bad_input_exits_with_2_and_writes_nothing(tmp_path: Path) -> None:
    bad = written(tmp_path / "demand.yaml", VARIED | {"demand": {"requests_per_s": -1.0}})
    done = run(bad, "--out", tmp_path / "plan")
    assert done.exit_code == 2
    assert done.stderr.startswith("demand.requests_per_s")
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        (
            {"demand": {"requests_per_s": 5.0, "daily": [0.0] * 23 + [1.0]}, "horizon": {"hours": 4}},
            "demand",
            "no request",
        ),
        (
            {
                "classes": [
                    VARIED["classes"][0]
                    | {
                        "workload": {
                            "input_tokens": 100,
                            "output_tokens": 10,
                            "arrival": {"kind": "closed_loop", "concurrency": 4},
                        }
                    }
                ]
            },
            "classes[0].workload.arrival.kind",
            "a closed loop has not",
        ),
    ],
)
def test_a_demand_without_a_rate_exits_with_2(
    changes: dict[str, Any], field: str, message: str, tmp_path: Path
) -> None:
    done = run(written(tmp_path / "demand.yaml", VARIED | changes), "--out", tmp_path / "plan")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"{field}:")
    assert message in done.stderr
    assert not (tmp_path / "plan").exists()
