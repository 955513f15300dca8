import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.calibration.kv_capacity import (
    APE,
    MEASURED,
    PREDICTED,
    REASON,
    kv_capacity_summary,
    predict_kv_capacity,
)
from afd_dse.cost.memory import running_limit
from afd_dse.cost.phase import Cut
from afd_dse.errors import InputError
from afd_dse.spec.cells import Cell, Phase
from tests.strategies import build

COLOCATED = (Cell.PA, Cell.PF, Cell.DA, Cell.DF)
QWEN, LLAMA = "Qwen/Qwen3-32B-FP8", "meta-llama/Meta-Llama-3.1-8B"
# Maxima that TensorRT-LLM engines reported: system, model, tp, isl, osl, free fraction, maximum, token budget. The
# maximum sequence length is isl + osl + 1000, the cache bfloat16.
ENGINES = [
    ("h100_sxm", QWEN, 2, 2048, 2048, 0.8, 75, 4096),
    ("h100_sxm", QWEN, 4, 4096, 4096, 0.8, 93, 8192),
    ("gb300", QWEN, 1, 2048, 4096, 0.9, 123, 4096),
    ("gb300", QWEN, 2, 4096, 2048, 0.8, 232, 8192),
    ("h100_sxm", LLAMA, 4, 2048, 2048, 0.8, 363, 4096),
    ("gb300", LLAMA, 4, 4096, 4096, 0.9, 856, 8192),
]


def engines(**columns: Any) -> pd.DataFrame:
    names = (
        "system",
        "model",
        "tp",
        "isl",
        "osl",
        "free_gpu_memory_fraction",
        MEASURED,
        "max_num_tokens",
    )
    table = pd.DataFrame(ENGINES, columns=list(names))
    table["max_seq_len"] = table["isl"] + table["osl"] + 1000
    return table.assign(kv_dtype="bfloat16", backend="trtllm", **columns)


def test_maxima_of_engines_are_predicted_within_two_per_cent() -> None:
    found = predict_kv_capacity(engines())
    assert (found[REASON] == "").all()
    assert found[APE].max() < 2.0
    summary = kv_capacity_summary(found)
    assert summary["kv_capacity_rows"] == summary["kv_capacity_predicted"] == len(ENGINES)
    assert summary["kv_capacity_mape"] == pytest.approx(found[APE].mean())
    assert summary["kv_capacity_median_ape"] == pytest.approx(found[APE].median())
    assert summary["kv_capacity_unsupported"] == {}


def test_errors_are_per_cent_of_what_was_measured_and_the_table_comes_back_whole() -> None:
    table = engines(note="mine").set_index(pd.Index(list("abcdef")))
    found = predict_kv_capacity(table)
    pd.testing.assert_frame_equal(found[table.columns], table)
    expected = 100 * np.abs(found[PREDICTED] / table[MEASURED] - 1)
    assert found[APE].tolist() == pytest.approx(expected.tolist())


def test_a_row_that_cannot_be_read_gets_a_reason_and_leaves_the_others_alone() -> None:
    table = engines().astype(object)
    table.loc[0, "system"] = "h900"
    table.loc[1, "model"] = "nobody/knows-it"
    table.loc[2, "tp"] = 0
    table.loc[3, "free_gpu_memory_fraction"] = 80
    table.loc[4, "kv_dtype"] = "int3"
    found = predict_kv_capacity(table)
    for row, words in enumerate(("h900", "nobody/knows-it", "tp", "free_gpu_memory_fraction", "kv_dtype")):
        assert words in found[REASON][row]
        assert np.isnan(found[PREDICTED][row])
        assert np.isnan(found[APE][row])
    assert found[REASON][5] == ""
    assert found[APE][5] < 1.0
    summary = kv_capacity_summary(found)
    assert summary["kv_capacity_predicted"] == 1
    assert sum(summary["kv_capacity_unsupported"].values()) == 5


def test_without_any_prediction_there_is_no_error_to_report() -> None:
    summary = kv_capacity_summary(predict_kv_capacity(engines().assign(system="h900")))
    assert summary["kv_capacity_mape"] is None
    assert summary["kv_capacity_median_ape"] is None


def test_a_missing_column_is_named() -> None:
    with pytest.raises(InputError, match=f"{MEASURED}.*is not a column") as caught:
        predict_kv_capacity(engines().drop(columns=[MEASURED, "tp"]))
    assert [problem.field for problem in caught.value.problems] == ["tp", MEASURED]


def test_empty_fields_take_the_defaults_of_the_engine() -> None:
    sparse = engines()[["system", "model", "tp", "isl", "osl", MEASURED]]
    given_ = sparse.assign(
        backend="trtllm", free_gpu_memory_fraction=0.9, max_seq_len=sparse["isl"] + sparse["osl"], dp=1, ep=1
    )
    blank = given_.assign(free_gpu_memory_fraction=np.nan, max_seq_len="", kv_dtype="", backend="", dp=None)
    full = predict_kv_capacity(given_)[PREDICTED]
    assert predict_kv_capacity(sparse)[PREDICTED].tolist() == full.tolist()
    assert predict_kv_capacity(blank)[PREDICTED].tolist() == full.tolist()


def test_an_fp8_cache_holds_twice_as_many_and_ranks_add_up() -> None:
    wide, narrow = (
        predict_kv_capacity(engines().assign(kv_dtype=dtype))[PREDICTED] for dtype in ("bfloat16", "fp8")
    )
    assert (narrow / wide).tolist() == pytest.approx([2.0] * len(ENGINES), rel=0.03)
    deepseek = pd.DataFrame(
        {"system": "b200_sxm", "model": "deepseek-ai/DeepSeek-V3", "tp": [8, 1], "dp": [1, 8], "ep": 8}
        | {"isl": 4096, "osl": 1024, MEASURED: 100, "max_num_tokens": 1024}
    )
    whole, spread = predict_kv_capacity(deepseek)[PREDICTED]
    # Each of eight ranks holds its own sequences, beside attention weights that are no longer cut.
    assert 5.0 < spread / whole < 8.0


def test_experts_off_the_attention_s_gpus_are_refused() -> None:
    table = engines(ep=8, moe_tp=1)
    assert predict_kv_capacity(table)[REASON].str.contains("moe_tp times ep").all()


@settings(max_examples=10)
@given(st.permutations(range(len(ENGINES))))
def test_the_order_of_the_rows_does_not_matter(order: list[int]) -> None:
    straight = predict_kv_capacity(engines())
    shuffled = predict_kv_capacity(engines().iloc[order])
    assert shuffled[PREDICTED].tolist() == straight[PREDICTED].iloc[order].tolist()


@pytest.mark.skipif("AFD_DSE_VALIDATION" not in os.environ, reason="needs a folder of measured runs")
def test_all_measured_maxima_are_within_the_target() -> None:
    table = pd.read_csv(Path(os.environ["AFD_DSE_VALIDATION"]) / "kv_capacity_dev.csv")
    summary = kv_capacity_summary(predict_kv_capacity(table))
    assert summary["kv_capacity_predicted"] == len(table)
    assert summary["kv_capacity_mape"] <= 1.0
    assert summary["kv_capacity_median_ape"] <= 0.5


@pytest.mark.skipif("AFD_DSE_VALIDATION" not in os.environ, reason="needs a folder of measured runs")
def test_no_measured_run_is_called_impossible_for_its_memory() -> None:
    """Engines queue what their cache does not hold: a run proves that weights and at least one sequence fit."""
    runs = pd.read_csv(Path(os.environ["AFD_DSE_VALIDATION"]) / "measured_dev.csv", keep_default_na=False)
    # NVFP4 in a row of gpt-oss on Hopper is a slip: its checkpoint is MXFP4 everywhere.
    slip = runs["model"].str.contains("gpt-oss") & runs["accelerator"].str.startswith("h")
    runs.loc[slip, ["gemm_dtype", "moe_dtype"]] = ""
    refused: list[str] = []
    by = ["framework", "model", "accelerator", "gemm_dtype", "moe_dtype", "mode"]
    for _, same in runs.groupby(by, sort=False):
        row = same.iloc[0]
        types = {"gemm": row["gemm_dtype"], "moe": row["moe_dtype"]}
        case = build(
            row["model"],
            [{"name": "main", "accelerator": row["accelerator"], "count": 8}],
            framework=row["framework"],
            quantization={role: dtype for role, dtype in types.items() if dtype},
        )
        sides = [("", COLOCATED, 8192.0)]
        if row["mode"] == "disagg":
            sides = [("prefill_", COLOCATED[:2], 8192.0), ("decode_", COLOCATED[2:], 0.0)]
        for prefix, group, tokens in sides:
            cut = _cut(same, prefix, case.moe is not None)
            held = running_limit(
                case,
                group,
                dict.fromkeys(Phase, cut),
                {Phase.PREFILL: np.full(len(same), tokens), Phase.DECODE: np.zeros(len(same))},
                input_tokens=same["isl"].to_numpy(dtype=float),
                output_tokens=same["osl"].to_numpy(dtype=float),
            )
            refused += same["id"][held < 1.0].tolist()
    assert refused == []


def _cut(runs: pd.DataFrame, prefix: str, moe: bool) -> Cut:
    tp, dp, ep = (runs[f"{prefix}{name}"].astype(int).to_numpy() for name in ("tp", "dp", "ep"))
    one, none = np.ones_like(tp), np.zeros_like(tp)
    width, experts = (tp * dp // ep, ep) if moe else (tp, dp)
    return Cut(none, none, tp, dp, one, one, width, experts, none, one, one)
