import stat
from pathlib import Path

import pandas as pd
import pytest

from afd_dse.calibration import files
from afd_dse.calibration.files import check_target, write_calibration, write_predictions
from afd_dse.errors import InputError
from afd_dse.spec.calibration import Calibration, load_calibration


def test_a_calibration_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    shipped = load_calibration("default")
    path = tmp_path / "own.yaml"
    write_calibration(shipped, path)
    assert load_calibration(str(path)) == shipped


def test_predictions_are_read_back_with_empty_cells_where_there_is_none(tmp_path: Path) -> None:
    table = pd.DataFrame({"id": ["a", "b"], "predicted_tpot_ms": [12.5, None], "reason": ["", "no, never"]})
    write_predictions(table, tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    assert found["predicted_tpot_ms"].tolist() == ["12.5", ""]
    assert found["reason"].tolist() == ["", "no, never"]


def test_a_written_file_is_for_everyone_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("old")
    write_calibration(Calibration(source="x", overheads={}), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["own.yaml"]


def test_what_fails_to_be_written_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(files.Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_calibration(Calibration(source="x", overheads={}), path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["own.yaml"]


def test_a_target_must_be_a_file_in_an_existing_folder(tmp_path: Path) -> None:
    check_target(tmp_path / "new.csv", "--out")
    (tmp_path / "there.csv").write_text("old")
    check_target(tmp_path / "there.csv", "--out")
    for bad, message in ((tmp_path, "is a folder"), (tmp_path / "no" / "new.csv", "does not exist")):
        with pytest.raises(InputError, match=message) as caught:
            check_target(bad, "--out")
        assert caught.value.problems[0].field == "--out"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["there.csv"]
