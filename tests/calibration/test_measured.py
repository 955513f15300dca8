from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from afd_dse.calibration.measured import REASON, completed, read_measured
from afd_dse.errors import InputError
from tests.calibration.examples import MEASURED_RUNS, PD, RUN, table, written

NEEDED = ("framework", "model", "accelerator", "mode", "isl", "osl", "concurrency", "tpot_ms")


def test_a_file_is_read_as_text_so_that_no_cell_changes_its_meaning(tmp_path: Path) -> None:
    path = written(table(model="NA", framework_version="0.10"), tmp_path / "runs.csv")
    row = read_measured(path).iloc[0]
    assert (row["model"], row["framework_version"]) == ("NA", "0.10")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as CSV"),
        (b"framework,model\n", "holds no row"),
        (b"a,b\n1,2,3\n4,5,6,7\n", "cannot be read as CSV"),
        (b"\xff\xfe\x00\x81\n\x80,\xff\n", "cannot be read as CSV"),
        (None, "cannot be read as CSV"),
    ],
    ids=["empty", "header alone", "ragged", "binary", "missing"],
)
def test_a_file_without_a_table_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_measured(path)
    assert caught.value.problems[0].field == str(path)


def test_every_missing_column_is_named() -> None:
    with pytest.raises(InputError) as caught:
        completed(pd.DataFrame({"isl": ["1"], "colour": ["red"]}))
    assert [p.field for p in caught.value.problems] == [name for name in NEEDED if name != "isl"]


def test_the_needed_columns_suffice_and_the_rest_is_filled_in() -> None:
    row = completed(table()[list(NEEDED)]).iloc[0]
    assert row[REASON] == ""
    assert row["id"] == "row 1"
    assert [row[name] for name in ("tp", "pp", "dp", "moe_tp", "ep")] == [1.0] * 5
    assert np.isnan(row["ttft_ms"])
    assert (row["precision"], row["origin"]) == ("", "")


def test_an_empty_cut_is_one_and_only_that_of_the_rows_own_mode() -> None:
    rows = completed(table({"tp": "", "ep": ""}, {**PD, "decode_workers": "", "tp": ""}))
    assert rows.loc[0, ["tp", "ep"]].tolist() == [1.0, 1.0]
    assert np.isnan(rows.loc[0, "decode_workers"])
    assert rows.loc[1, "decode_workers"] == 1.0
    assert np.isnan(rows.loc[1, "tp"])
    assert (rows[REASON] == "").all()


@pytest.mark.parametrize(
    ("cut", "width"),
    [
        ({"tp": 4, "dp": 2, "ep": 8, "moe_tp": 1}, 1.0),
        ({"tp": 4, "dp": 2, "ep": 2, "moe_tp": ""}, 4.0),
        ({"tp": 8, "dp": 1, "ep": 4, "moe_tp": 8}, 2.0),
    ],
    ids=["as stated", "empty", "contradicts the others"],
)
def test_experts_fill_the_gpus_of_a_worker(cut: dict[str, Any], width: float) -> None:
    row = completed(table(cut)).iloc[0]
    assert row["moe_tp"] == width
    assert row[REASON] == ""


BAD = {
    "framework": ({"framework": " "}, "framework is empty"),
    "model": ({"model": ""}, "model is empty"),
    "accelerator": ({"accelerator": ""}, "accelerator is empty"),
    "mode": ({"mode": "afd"}, "mode is neither agg nor disagg"),
    "isl": ({"isl": "long"}, "isl is not a number from 1"),
    "endless isl": ({"isl": "inf"}, "isl is not a number from 1"),
    "osl": ({"osl": 0}, "osl is not a number from 1"),
    "concurrency": ({"concurrency": ""}, "concurrency is not a number from 1"),
    "tp": ({"tp": 1.5}, "tp is not a whole number"),
    "endless tp": ({"tp": "inf"}, "tp is not a whole number"),
    "ep": ({"tp": 2, "ep": 3}, "ep does not divide the tp x dp GPUs of a worker"),
    "workers": ({**PD, "decode_workers": -1}, "decode_workers is not a whole number"),
    "no tpot": ({"tpot_ms": ""}, "tpot_ms is not a number above 0"),
    "endless tpot": ({"tpot_ms": "inf"}, "tpot_ms is not a number above 0"),
    "no time": ({"tpot_ms": 0}, "tpot_ms is not a number above 0"),
}


@pytest.mark.parametrize(("change", "reason"), BAD.values(), ids=BAD)
def test_a_cell_that_makes_no_sense_is_the_reason_of_its_row_alone(
    change: dict[str, Any], reason: str
) -> None:
    rows = completed(table({}, change, {}))
    assert rows[REASON].tolist() == ["", reason, ""]


def test_a_line_that_ends_early_has_empty_cells(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    names = [
        "framework",
        "model",
        "accelerator",
        "mode",
        "isl",
        "osl",
        "concurrency",
        "tpot_ms",
        "gemm_dtype",
    ]
    cells = [str(RUN[name]) for name in names[:-1]]
    path.write_text(",".join(names) + "\n" + ",".join(cells) + "\n" + ",".join(cells) + ",fp8\n")
    rows = completed(read_measured(path))
    assert rows["gemm_dtype"].tolist() == ["", "fp8"]


def test_published_runs_are_complete_and_each_has_its_own_name() -> None:
    rows = completed(read_measured(MEASURED_RUNS))
    assert len(rows) == 1515
    assert (rows[REASON] == "").all()
    assert rows["id"].is_unique
    assert set(rows["framework"]) == {"trtllm", "sglang", "vllm"}
    assert set(rows["mode"]) == {"agg", "disagg"}
    # Little's law holds between what was measured: the columns belong together.
    seconds = (rows["ttft_ms"] + (rows["osl"] - 1.0) * rows["tpot_ms"]) / 1e3
    little = rows["concurrency"] * rows["osl"] / seconds / rows["gpus"]
    ratio = (little / rows["output_tokens_per_s_per_gpu"])[rows["ttft_ms"] > 0]
    assert ratio.median() == pytest.approx(1.0, abs=0.03)
