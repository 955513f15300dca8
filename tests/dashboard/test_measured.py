from pathlib import Path

import pandas as pd
import pytest

from afd_dse.dashboard.chart import picture
from afd_dse.dashboard.measured import matching, on_axes, read_measured
from afd_dse.dashboard.view import default_view
from afd_dse.errors import InputError
from tests.dashboard.many import library

RUNS = """id,framework,model,accelerator,mode,isl,osl,concurrency,tp,gpus,ttft_ms,tpot_ms,output_tokens_per_s_per_gpu
same,trtllm,qwen3-30b-a3b-fp8,H200_SXM,agg,1030,250,8,1,1,100,10,800
again,vllm,Qwen/Qwen3-30B-A3B-FP8,h200_sxm,agg,1024,256,16,,2,,12.5,1000
longer,trtllm,Qwen/Qwen3-30B-A3B-FP8,h200_sxm,agg,2048,256,8,1,1,100,10,800
elsewhere,trtllm,Qwen/Qwen3-30B-A3B-FP8,b200_sxm,agg,1024,256,8,1,1,100,10,800
other,trtllm,Qwen/Qwen3-32B,h200_sxm,agg,1024,256,8,1,1,100,10,800
"""


@pytest.fixture
def runs(tmp_path: Path) -> pd.DataFrame:
    (tmp_path / "runs.csv").write_text(RUNS)
    return read_measured(tmp_path / "runs.csv")


def test_only_runs_of_the_same_question_are_shown(runs: pd.DataFrame) -> None:
    dataset = next(iter(library()))
    assert list(matching(runs, dataset)["id"]) == ["same", "again"]
    x, y, text = on_axes(runs, dataset, "tokens_per_s_per_user", "tokens_per_s_per_gpu")
    assert list(x) == [100.0, 80.0]
    assert list(y) == [800.0, 1000.0]
    assert "concurrency 8" in text[0]
    # TTFT of the second run was not measured.
    assert len(on_axes(runs, dataset, "ttft_percentile_ms", "usd_per_mtok")[0]) == 1


def test_they_are_a_trace_of_their_own_and_counted(runs: pd.DataFrame) -> None:
    known = library()
    found = picture(known, default_view(known), runs)
    assert found.figure.data[-1].name == "measured"
    assert "2 measured runs" in found.sentence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "has no column model"),
        (RUNS.replace("800", "fast"), "holds text"),
        ("", "cannot be read"),
    ],
)
def test_a_file_that_is_no_table_of_runs_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        read_measured(tmp_path / "runs.csv")
    with pytest.raises(InputError, match="--measured"):
        read_measured(tmp_path / "nope.csv")
