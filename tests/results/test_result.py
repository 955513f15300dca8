import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import afd_dse
from afd_dse import Result, estimate, load_job
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.errors import InputError
from afd_dse.report.html import page
from afd_dse.results import files
from afd_dse.results.files import check_folder, write_result
from afd_dse.results.proof import proof_parts
from afd_dse.results.result import build_result, read_result
from afd_dse.search.proof import Proof
from afd_dse.search.run import ModeOutcome, SearchOutcome
from afd_dse.spec.cells import parse_partition
from tests.results.examples import answer, job

METRICS = (
    "ttft_ms", "tpot_ms", "request_latency_ms", "tokens_per_s_per_user", "tokens_per_s_per_gpu", "tokens_per_s",
    "requests_per_s", "concurrency", "gpus", "usd_per_mtok", "joules_per_token",
)  # fmt: skip


def test_the_document_has_every_key_of_the_interface() -> None:
    document = answer().document
    expected = {
        "job",
        "best",
        "best_per_mode",
        "pareto",
        "considered",
        "evaluated",
        "search_seconds",
        "provenance",
    }
    assert expected | {"warnings", "modes"} <= set(document)
    best = document["best"]
    assert set(METRICS) <= set(best)
    assert {"mode", "partition", "feasible", "reason", "label", "groups"} <= set(best)
    assert {"tp", "dp", "ep", "pp", "replicas", "batch_size", "micro_batches", "memory_gib"} <= set(
        best["groups"][0]
    )
    assert 0 < document["evaluated"] <= document["considered"]


def test_what_is_proven_is_told_of_the_whole_and_of_every_mode_as_data_and_in_words() -> None:
    document = answer().document
    proof = document["proof"]
    assert proof["kind"] == "exact"
    assert proof["modes"]["exact"] == [mode["name"] for mode in document["modes"]]
    assert proof["considered"] == document["considered"]
    assert 10 ** proof["considered_log10"] == pytest.approx(document["considered"])
    assert proof["words"] == document["explanation"] == "; ".join(proof["parts"])
    assert proof["words"].startswith("exact over N = ")
    assert f"{document['evaluated']:,} evaluated" in proof["words"]
    for mode in document["modes"]:
        assert mode["proof"]["evaluated"] == mode["evaluated"]
        assert mode["proof"]["assumes"]


def test_a_result_of_an_earlier_version_is_shown_with_its_own_sentence() -> None:
    result = answer()
    old = {key: value for key, value in result.document.items() if key != "proof"}
    old["explanation"] = "space 'small': 5 of 5 modes exact"
    old["modes"] = [{k: v for k, v in mode.items() if k != "proof"} for mode in result.document["modes"]]
    assert proof_parts(old) == ["space 'small': 5 of 5 modes exact"]
    assert "Space &#39;small&#39;: 5 of 5 modes exact." in page(old, result.candidates)


def test_every_mode_asked_for_has_an_entry_and_a_deployment() -> None:
    result = answer()
    assert [mode["name"] for mode in result.modes] == ["colocated", "pd", "afd", "pd_afd", "PA DF | PF | DA"]
    assert set(result.best_per_mode) == {mode["name"] for mode in result.modes}
    assert all(mode["status"] == "feasible" for mode in result.modes)


def test_the_best_is_the_best_of_its_mode_and_no_mode_beats_it() -> None:
    result = answer()
    assert result.best is not None
    speeds = {name: d["tokens_per_s_per_gpu"] for name, d in result.best_per_mode.items()}
    assert result.best["tokens_per_s_per_gpu"] == pytest.approx(max(speeds.values()), rel=1e-6)
    assert result.best == {k: v for k, v in result.ranking[0].items() if k != "rank"}
    for mode in result.modes:
        assert (mode["reason"] is None) == (mode["name"] == result.best["mode"])
        if mode["reason"]:
            assert result.best["mode"] in mode["reason"]


def test_the_gap_of_a_mode_is_said_in_per_cent() -> None:
    result = answer()
    assert result.best is not None
    entry = max(result.modes, key=lambda mode: -result.best_per_mode[mode["name"]]["tokens_per_s_per_gpu"])
    slowest = result.best_per_mode[entry["name"]]["tokens_per_s_per_gpu"]
    gap = 100 * (1 - slowest / result.best["tokens_per_s_per_gpu"])
    assert entry["reason"].startswith(f"{gap:.0f} % fewer tokens/s per GPU than ")


def test_no_row_of_the_front_beats_another() -> None:
    rows = answer().pareto
    users = [row["tokens_per_s_per_user"] for row in rows]
    gpus = [row["tokens_per_s_per_gpu"] for row in rows]
    assert len(rows) > 1
    assert users == sorted(users, reverse=True)
    assert gpus == sorted(gpus)
    assert all(row["feasible"] for row in rows)


def test_ranked_layouts_are_distinct_and_ordered() -> None:
    result = answer()
    for rows in (result.ranking, *(mode["ranking"] for mode in result.modes)):
        keys = [(row["mode"], row["label"]) for row in rows]
        assert len(set(keys)) == len(keys)
        assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
        speeds = [row["tokens_per_s_per_gpu"] for row in rows]
        assert speeds == pytest.approx(sorted(speeds, reverse=True), rel=1e-5)


def test_an_estimate_of_any_row_of_the_answer_gives_its_numbers() -> None:
    result = answer()
    for row in [*result.best_per_mode.values(), *result.pareto[::7], *result.ranking]:
        again = estimate(job(), json.loads(json.dumps(row)))
        assert {name: again[name] for name in METRICS} == pytest.approx(
            {n: row[n] for n in METRICS}, rel=1e-9
        )
        assert again["label"] == row["label"]
        assert again["mode"] == row["mode"]


def test_the_job_in_the_document_is_the_job() -> None:
    assert load_job(answer().document["job"]) == job()


def test_an_impossible_limit_is_answered_with_near_misses() -> None:
    result = answer("IMPOSSIBLE")
    assert not result.feasible
    assert result.best is None
    assert result.pareto == []
    assert result.nearest_misses
    assert all(miss["constraint"] == "TPOT" for miss in result.nearest_misses)
    assert all(miss["gpus"] <= 4 for miss in result.nearest_misses)
    for mode in result.modes:
        assert mode["status"] == "infeasible"
        assert "TPOT" in mode["reason"]
        assert result.best_per_mode[mode["name"]]["reason"] == mode["reason"]
        assert result.best_per_mode[mode["name"]]["gpus"] <= 4
        assert mode["nearest"]


def test_a_cluster_that_is_too_small_is_explained_for_every_mode() -> None:
    result = answer("TOO_SMALL")
    assert not result.feasible
    for mode in result.modes:
        assert mode["status"] in ("infeasible", "no_layout")
        assert mode["reason"]
        assert result.best_per_mode[mode["name"]]["feasible"] is False
    colocated = result.best_per_mode["colocated"]
    assert colocated["reason"].startswith("memory of group PA PF DA DF is ")
    assert "its weights (" in colocated["reason"]


def test_a_mode_without_any_layout_says_so() -> None:
    scenario, partition = scenario_from_job(job()), parse_partition("PA | PF | DA | DF")
    nothing = ModeOutcome(
        "x",
        partition,
        None,
        np.zeros(0, dtype=np.int64),
        0,
        0,
        "exhaustive",
        "no layout fits",
        Proof("exact", 0, 0),
    )
    result = build_result(job(), scenario, SearchOutcome([nothing], 0, 0, 0.1, "exhaustive", ""))
    assert not result.feasible
    assert result.modes[0]["status"] == "no_layout"
    assert result.best_per_mode["x"]["reason"] == "no layout fits"
    assert result.nearest_misses == []
    assert result.modes[0]["proof"]["words"] == "no layout to search"
    assert result.modes[0]["proof"]["considered_log10"] is None
    assert json.loads(result.to_json()) == result.document


def test_files_are_written_together_and_read_back(tmp_path: Path) -> None:
    result = answer()
    written = write_result(result, tmp_path / "new" / "folder", "<html></html>")
    names = ["result.json", "pareto.csv", "candidates.parquet", "report.html"]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in written[0].parent.iterdir()) == sorted(names)
    again = read_result(tmp_path / "new" / "folder")
    assert again.document == result.document
    pd.testing.assert_frame_equal(again.candidates, result.candidates, check_dtype=False)
    front = pd.read_csv(written[1])
    assert front["label"].tolist() == [row["label"] for row in result.pareto]
    assert front["tokens_per_s_per_gpu"].tolist() == [row["tokens_per_s_per_gpu"] for row in result.pareto]


def test_candidates_hold_the_best_first_by_rank() -> None:
    result = answer()
    table = result.candidates
    assert result.best is not None
    first = table[table["rank"] == 1].iloc[0]
    assert first["label"] == result.best["label"]
    assert first["tokens_per_s_per_gpu"] == result.best["tokens_per_s_per_gpu"]
    assert (table["feasible"] == (table["rank"] > 0)).all()


def test_nothing_changes_when_a_file_cannot_be_replaced(tmp_path: Path) -> None:
    write_result(answer(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / files.REPORT).mkdir()
    other = answer("IMPOSSIBLE")
    with pytest.raises(InputError, match="--out: cannot be written"):
        write_result(other, tmp_path, "<html></html>")
    (tmp_path / files.REPORT).rmdir()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_written_is_found_before_the_search(tmp_path: Path) -> None:
    check_folder(tmp_path / "does" / "not" / "exist" / "yet")
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InputError, match="is a file"):
        check_folder(blocked / "below")
    for name in ("x" * 300, "~nobody-of-this-name/x"):
        with pytest.raises(InputError, match="cannot be a path"):
            check_folder(name)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"label": "TP8"}', "\udcff"])
def test_what_is_no_result_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError):
        read_result(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_result(tmp_path / "nowhere")


def test_an_answer_is_plain_json() -> None:
    result = answer("IMPOSSIBLE")
    assert isinstance(result, Result)
    assert json.loads(result.to_json()) == result.document


def test_one_gpu_is_answered_and_no_row_is_over_it(tmp_path: Path) -> None:
    result = afd_dse.optimize(
        {
            "model": "Llama-3.1-8B",
            "cluster": {"pools": [{"name": "one", "accelerator": "h100_sxm", "count": 1}]},
            "workload": {"input_tokens": 512, "output_tokens": 128},
            "slo": {"tpot_ms": 50},
            "search": {"space": "quick", "modes": ["colocated", "pd", "afd"]},
        }
    )
    assert result.best_per_mode["pd"]["reason"] == "needs at least 2 GPUs, the cluster has 1"
    assert all(row.get("gpus", 0) <= 1 for row in result.best_per_mode.values())
    write_result(result, tmp_path / "out", page(result.document))
    assert (tmp_path / "out" / "report.html").is_file()


def test_modes_are_compared_when_gpus_cost_nothing() -> None:
    result = afd_dse.optimize(
        {
            "model": "Llama-3.1-8B",
            "cluster": {
                "pools": [{"name": "free", "accelerator": "h100_sxm", "count": 4, "usd_per_gpu_hour": 0}]
            },
            "workload": {"input_tokens": 512, "output_tokens": 128},
            "slo": {"tpot_ms": 50},
            "search": {"space": "quick", "modes": ["colocated", "pd"], "objective": "usd_per_mtok"},
        }
    )
    assert result.best is not None
    assert result.best["usd_per_mtok"] == 0
