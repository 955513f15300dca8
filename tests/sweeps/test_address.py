import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from afd_dse import load_job
from afd_dse.resources import operator_db_root, search_spaces_root
from afd_dse.sweeps import address as module
from afd_dse.sweeps.address import address, fingerprint
from tests.sweeps.small import BASE


def of(folder: Path | None = None, **changes: Any) -> str:
    return address(load_job(copy.deepcopy(BASE) | changes, folder=folder))


def test_equal_jobs_have_one_address_and_every_change_gives_another() -> None:
    assert of() == of() == of(framework="trtllm")
    others = [
        of(framework="sglang"),
        of(slo={"ttft_ms": 1000, "tpot_ms": 21}),
        of(calibration="none"),
        of(search={"modes": ["pd"], "space": "quick"}),
    ]
    assert len({of(), *others}) == 5


@pytest.mark.parametrize("storage", ["study.journal", "sqlite:///study.db"])
def test_where_trials_are_kept_does_not_count(tmp_path: Path, storage: str) -> None:
    search = BASE["search"]
    assert of(tmp_path, search=search | {"storage": storage}) == of(search=search)


@pytest.mark.parametrize("field", ["model", "space", "start of a space", "trace"])
def test_a_file_counts_by_its_content_and_not_by_its_path(tmp_path: Path, field: str) -> None:
    catalogued = operator_db_root() / "catalogue" / "models"
    quick = (search_spaces_root() / "quick.yaml").read_text()

    def make(folder: Path, mark: str) -> str:
        folder.mkdir()
        if field == "model":
            config = json.loads(next(catalogued.glob("Qwen--Qwen3-30B-A3B*.json")).read_text())
            (folder / "config.json").write_text(json.dumps(config | {"remark": mark}))
            return of(folder, model=str(folder))
        if field == "trace":
            (folder / "t.csv").write_text(f"input_tokens,output_tokens\n{len(mark)},5\n7,7\n")
            return of(
                folder, workload={"input_tokens": {"trace": "t.csv"}, "output_tokens": {"trace": "t.csv"}}
            )
        (folder / "space.yaml").write_text(f"# {mark}\n{quick}")
        if field == "start of a space":
            (folder / "start.yaml").write_text(quick.replace("name: quick", f"name: quick{mark}"))
            (folder / "space.yaml").write_text(f"{quick}start: {folder / 'start.yaml'}\n")
        return of(folder, search={"modes": ["colocated"], "space": "space.yaml"})

    if field == "start of a space":  # the space itself names its start by its path
        one = make(tmp_path / "one", "1")
        (tmp_path / "one" / "start.yaml").write_text(quick.replace("name: quick", "name: other"))
        assert of(tmp_path / "one", search={"modes": ["colocated"], "space": "space.yaml"}) != one
        return
    one, same, other = (
        make(tmp_path / name, mark) for name, mark in (("one", "1"), ("same", "1"), ("other", "22"))
    )
    assert one == same != other


@pytest.mark.parametrize("changed", ["operator_db", "search_spaces"])
def test_a_changed_table_or_space_changes_every_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    root = {"operator_db": operator_db_root, "search_spaces": search_spaces_root}[changed]()
    shutil.copytree(root, tmp_path / changed)
    before = of()
    monkeypatch.setattr(module, f"{changed}_root", lambda: tmp_path / changed)
    fingerprint.cache_clear()
    try:
        assert of() == before
        table = next((tmp_path / changed).rglob("*.parquet" if changed == "operator_db" else "*.yaml"))
        table.write_bytes(table.read_bytes() + b"\n")
        fingerprint.cache_clear()
        assert of() != before
    finally:
        monkeypatch.undo()
        fingerprint.cache_clear()
    assert of() == before
