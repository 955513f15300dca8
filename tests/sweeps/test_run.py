import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import afd_dse
from afd_dse.errors import InputError
from afd_dse.results.result import read_result
from afd_dse.search.storage import open_storage
from afd_dse.sweeps import address as addresses
from afd_dse.sweeps.engines import Lost
from afd_dse.sweeps.run import Step
from afd_dse.sweeps.store import Store
from tests.sweeps.small import BASE, SWEEP, driver, log, wait_until, written


class Here:
    """An engine in this process, which can stop, or lose tasks, after some."""

    name = "here"

    def __init__(self, stop_after: int | None = None, lost: bool = False, noise: str = "") -> None:
        self.stop_after, self.lost, self.noise, self.done = stop_after, lost, noise, 0

    def run(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        for task in tasks:
            if self.done == self.stop_after:
                raise KeyboardInterrupt
            self.done += 1
            sys.stdout.write(self.noise)
            yield task, Lost("its machine burnt down") if self.lost else work(task)


def two(**axes: Any) -> dict[str, Any]:
    return {"base": BASE, "axes": axes or {"slo.tpot_ms": [15, 30]}}


def test_a_sweep_gives_for_every_job_what_a_search_gives(tmp_path: Path) -> None:
    result = afd_dse.sweep(two(), out=tmp_path, engine=Here())
    assert result.counts == {
        "points": 2, "feasible": 2, "infeasible": 0, "bad_input": 0, "failed": 0, "missing": 0
    }  # fmt: skip
    for limit, point in zip((15, 30), result.document["points"], strict=True):
        alone = afd_dse.optimize(BASE | {"slo": BASE["slo"] | {"tpot_ms": limit}})
        stored = read_result(tmp_path / "results" / f"{point['address']}.json").document
        for key in ("job", "best", "best_per_mode", "pareto", "considered"):
            assert stored[key] == alone.document[key]
        assert alone.best is not None
        assert point["best"]["tokens_per_s_per_gpu"] == alone.best["tokens_per_s_per_gpu"]


def test_the_summary_holds_every_job_and_mode_in_the_words_of_the_result(tmp_path: Path) -> None:
    modes = BASE | {"search": {"modes": ["colocated", "pd"], "space": "quick"}}
    result = afd_dse.sweep({"base": modes, "axes": {"slo.tpot_ms": [15, 0.01]}}, out=tmp_path, engine=Here())
    table = pd.read_parquet(tmp_path / "summary.parquet")
    assert table.equals(result.table)
    assert list(table["slo.tpot_ms"]) == ["15", "15", "0.01", "0.01"]
    assert list(table["mode"]) == ["colocated", "pd"] * 2
    assert list(table["status"]) == ["feasible"] * 2 + ["infeasible"] * 2
    assert list(table["best"]) == [True, False, False, False]
    assert table["reason"][2:].str.contains("TPOT|GPU").all()
    written = pd.read_csv(tmp_path / "summary.csv")
    assert list(written.columns) == list(table.columns)
    assert written["tokens_per_s_per_gpu"][0] == pytest.approx(table["tokens_per_s_per_gpu"][0])


def test_a_second_sweep_computes_only_what_lacks(tmp_path: Path) -> None:
    afd_dse.sweep(two(), out=tmp_path, engine=Here())
    more = afd_dse.sweep(two(**{"slo.tpot_ms": [30, 45, 15]}), out=tmp_path, engine=Here(stop_after=1))
    assert (more.document["computed"], more.document["reused"]) == (1, 2)
    assert [point["status"] for point in more.document["points"]] == ["feasible"] * 3
    assert len(log(tmp_path)) == 3


def test_equal_jobs_are_computed_once(tmp_path: Path) -> None:
    twice = two() | {"jobs": [{"name": "again", "set": {"slo.tpot_ms": 15}}]}
    result = afd_dse.sweep(twice, out=tmp_path, engine=Here(stop_after=2))
    assert result.counts["feasible"] == 3
    assert result.document["computed"] == 2


def test_what_was_done_before_an_interruption_is_kept_and_summed_up(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        afd_dse.sweep(two(), out=tmp_path, engine=Here(stop_after=1))
    assert list(pd.read_csv(tmp_path / "summary.csv")["status"]) == ["feasible", "missing"]
    assert afd_dse.sweep(two(), out=tmp_path, engine=Here(stop_after=1)).document["reused"] == 1


def test_a_damaged_result_is_computed_again(tmp_path: Path) -> None:
    first = afd_dse.sweep(two(), out=tmp_path, engine=Here())
    broken = tmp_path / "results" / f"{first.document['points'][0]['address']}.json"
    broken.write_text(broken.read_text()[:1000])
    again = afd_dse.sweep(two(), out=tmp_path, engine=Here())
    assert (again.document["computed"], again.document["reused"]) == (1, 1)
    assert read_result(broken).feasible


def test_bad_jobs_and_lost_ones_are_recorded_and_stop_nothing(tmp_path: Path) -> None:
    # That an accelerator cannot compute in a data type only the search itself finds out.
    axes = {"model": ["Qwen/Qwen3-30B-A3B-FP8", "No/Such-Model"], "quantization.gemm": ["fp8_block", "nvfp4"]}
    result = afd_dse.sweep(two(**axes), out=tmp_path, engine=Here())
    statuses = [point["status"] for point in result.document["points"]]
    assert statuses == ["feasible", "bad_input", "bad_input", "bad_input"]
    reasons = [point["reason"] for point in result.document["points"]]
    assert "nvfp4" in reasons[1]
    assert "No/Such-Model" in reasons[2]
    lost = afd_dse.sweep(two(), out=tmp_path / "lost", engine=Here(lost=True))
    assert [point["reason"] for point in lost.document["points"]] == ["its machine burnt down"] * 2
    assert lost.counts["failed"] == 2
    # What failed is tried again.
    assert afd_dse.sweep(two(), out=tmp_path / "lost", engine=Here()).counts["feasible"] == 2


def test_a_search_space_that_is_not_valid_spoils_its_own_jobs_only(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("name: half a space\n")
    spaces = {"search.space": ["quick", str(tmp_path / "space.yaml")]}
    result = afd_dse.sweep(two(**spaces), out=tmp_path / "out", engine=Here())
    assert [point["status"] for point in result.document["points"]] == ["feasible", "bad_input"]
    assert "search.space" in result.document["points"][1]["reason"]


def test_a_worker_with_another_package_computes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from afd_dse.sweeps import work

    monkeypatch.setattr(work, "fingerprint", lambda: addresses.fingerprint() | {"operator_db": "other"})
    result = afd_dse.sweep(two(), out=tmp_path, engine=Here())
    assert result.counts["failed"] == 2
    assert "another afd-dse (operator_db differ)" in result.document["points"][0]["reason"]
    assert list((tmp_path / "results").iterdir()) == []


def test_two_sweeps_don_t_write_one_folder_at_a_time(tmp_path: Path) -> None:
    with Store(tmp_path).opened(), pytest.raises(InputError, match=r"process .* is computing a sweep there"):
        afd_dse.sweep(two(), out=tmp_path, engine=Here())


def test_progress_counts_every_job_once(tmp_path: Path) -> None:
    steps: list[Step] = []
    afd_dse.sweep(two(), out=tmp_path, engine=Here(), progress=steps.append)
    assert [(step.done, step.total) for step in steps] == [(0, 2), (1, 2), (2, 2)]
    assert [step.name for step in steps] == ["", "15", "30"]


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = afd_dse.sweep(two(), engine=Here())
    assert result.document["out"] is None
    assert result.counts["feasible"] == 2
    assert list(tmp_path.iterdir()) == []


def test_a_driver_is_killed_and_the_next_one_computes_only_what_lacks(tmp_path: Path) -> None:
    file, out = written(tmp_path), tmp_path / "out"
    first = driver(file, "--workers", 2, "--out", out)
    wait_until(lambda: len(log(out)) >= 2 or first.poll() is not None)
    first.kill()
    first.communicate()
    before = len(list((out / "results").glob("*.json")))
    assert 2 <= before < 5
    second = driver(file, "--workers", 2, "--out", out, "--json")
    text, errors = second.communicate()
    assert second.returncode == 0, errors
    document = json.loads(text)
    assert (document["computed"], document["reused"]) == (5 - before, before)
    assert document["counts"]["feasible"] == len(SWEEP["axes"]["slo.tpot_ms"])
    assert Counter(entry["address"] for entry in log(out)).most_common(1)[0][1] == 1
    assert len(list((out / "results").iterdir())) == 5


def test_processes_that_share_a_study_together_do_the_trials_asked_for(tmp_path: Path) -> None:
    search = {"modes": ["colocated"], "space": "quick", "method": "optuna", "trials": 120}
    base = BASE | {"search": search | {"storage": str(tmp_path / "study.journal")}}
    shared = {"base": base, "axes": {"slo.tpot_ms": [30]}, "processes_per_study": 2}
    result = afd_dse.sweep(shared, out=tmp_path / "out", workers=2)
    assert result.counts["feasible"] == 1
    assert result.document["computed"] == 1
    storage = open_storage(base["search"]["storage"])
    assert storage is not None
    ids = {s.study_name.split()[-1] == "tickets": s._study_id for s in storage.get_all_studies()}
    assert len(storage.get_all_trials(ids[False])) == 120
    notes = [ticket.user_attrs for ticket in storage.get_all_trials(ids[True])]
    assert len([note for note in notes if note["size"] == 0 and "claims" not in note]) == 2, (
        "two processes were at work"
    )
    assert len({note["pid"] for note in notes}) == 2
