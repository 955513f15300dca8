"""The adapter of aiconfigurator, on output as its version 0.12 writes it; with the real one where it is installed."""

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import Figure, Options
from benchmarks.incumbent import QUESTIONS, best_of, compared, results_of

LOG = """\
23:32:36 [aiconfigurator] [I] [main.py:3154] Loading AIConfigurator version: 0.12.0
23:32:48 [aiconfigurator] [I] [main.py:2152] Experiment agg completed with 236 results.
23:32:56 [aiconfigurator] [I] [main.py:2152] Experiment disagg completed with 1,035 results.
23:32:57 [aiconfigurator] [I] [main.py:2262] All experiments completed in 16.51 seconds
"""
AGG = """\
model,isl,osl,concurrency,ttft,tpot,tokens/s/gpu,parallel,tokens/s/gpu_cluster
Qwen/Qwen3-32B,4096,1024,96,1075.877,27.161,860.331,tp4pp1dp1etp1ep1,830.25
Qwen/Qwen3-32B,4096,1024,48,1329.883,27.328,840.538,tp2pp1dp1etp1ep1,840.538
"""
DISAGG = """\
model,(p)workers,(d)workers,ttft,tpot,tokens/s/gpu
Qwen/Qwen3-32B,4,1,764.266,29.365,815.37
"""


def written(folder: Path, **files: str) -> Path:
    for mode, text in files.items():
        path = folder / "Qwen" / "a_run" / mode / "best_config_topn.csv"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    return folder


def double(folder: Path, script: str) -> str:
    """A Python whose aiconfigurator is ``script``."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n{script}", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_log_says_how_many_configurations_each_mode_has() -> None:
    assert results_of(LOG) == {"agg": 236, "disagg": 1035}
    assert results_of("nothing of the kind") == {}


def test_the_best_of_a_mode_is_its_first_row_over_all_gpus_where_that_is_told(tmp_path: Path) -> None:
    assert best_of(written(tmp_path, agg=AGG, disagg=DISAGG)) == {
        "agg": {"tokens_per_s_per_gpu": 830.25, "ttft_ms": 1075.877, "tpot_ms": 27.161},
        "disagg": {"tokens_per_s_per_gpu": 815.37, "ttft_ms": 764.266, "tpot_ms": 29.365},
    }


@pytest.mark.parametrize(
    "text", ["", "ttft,tpot,tokens/s/gpu\n", "ttft,tpot\n1,2\n", "a,tokens/s/gpu\n1,2\n"]
)
def test_a_mode_that_found_nothing_or_writes_other_columns_is_left_out(tmp_path: Path, text: str) -> None:
    assert best_of(written(tmp_path, agg=AGG, afd=text)).keys() == {"agg"}


def test_without_it_the_comparison_is_skipped_with_a_word_on_how_to_get_it() -> None:
    (found,) = compared("qwen3-32b", Options(aic_python=None))
    assert found.value is None
    assert "--aic-python" in found.note


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import sys; sys.exit('No module named aiconfigurator')", "exit code 1: No module named"),
        ("print('no such model')", "exit code 0: no such model"),
    ],
)
def test_where_it_fails_the_comparison_says_so(tmp_path: Path, script: str, words: str) -> None:
    (found,) = compared("qwen3-32b", Options(aic_python=double(tmp_path, script), limit_s=60.0))
    assert found.value is None
    assert words in found.note


def test_ratios_are_of_both_whole_answers_to_one_question(tmp_path: Path) -> None:
    script = f"""
import sys, pathlib, time
folder = pathlib.Path(sys.argv[sys.argv.index("--save-dir") + 1]) / "run" / "agg"
folder.mkdir(parents=True)
(folder / "best_config_topn.csv").write_text({AGG!r})
assert sys.argv[sys.argv.index("--model") + 1] == "Qwen/Qwen3-32B"
assert sys.argv[sys.argv.index("--total-gpus") + 1] == "8"
time.sleep(1)
print({LOG!r})
"""
    found = {
        f.name: f for f in compared("qwen3-32b", Options(aic_python=double(tmp_path, script), limit_s=300.0))
    }
    facts = found["times faster to the whole answer"].facts
    ours, theirs = facts["ours"], facts["theirs"]
    assert theirs["wall_s"] >= 1.0
    assert found["times faster to the whole answer"].value == theirs["wall_s"] / ours["wall_s"]
    assert (theirs["version"], theirs["search_s"]) == ("0.12.0", 16.51)
    assert found["times the layouts, considered"].value == ours["considered"] / 1271
    assert ours["considered"] > ours["evaluated"] > 0
    rate = value_of(found["best tokens/s per GPU, ours / theirs"]) * 830.25
    assert rate == pytest.approx(ours["best"]["tokens_per_s_per_gpu"])


def value_of(figure: Figure) -> Any:
    assert figure.value is not None
    return figure.value


@pytest.mark.skipif("AIC_PYTHON" not in os.environ, reason="AIC_PYTHON names no Python with aiconfigurator")
@pytest.mark.slow
def test_the_real_one_answers_a_small_question() -> None:
    found = {f.name: f for f in compared("qwen3-32b", Options(aic_python=os.environ["AIC_PYTHON"]))}
    theirs = found["times faster to the whole answer"].facts["theirs"]
    assert theirs["results"].keys() >= {"agg", "disagg"}
    assert 0.3 < value_of(found["best tokens/s per GPU, ours / theirs"]) < 3.0


def test_both_are_asked_the_same() -> None:
    for question in QUESTIONS.values():
        job, words = question.job(), question.command("python", "folder")
        asked = dict(zip(words[5:-1:2], words[6:-1:2], strict=True))
        pool = job["cluster"]["pools"][0]
        assert (asked["--system"], asked["--total-gpus"]) == (pool["accelerator"], str(pool["count"]))
        assert (asked["--model"], asked["--backend"]) == (job["model"], job["framework"])
        assert float(asked["--isl"]) == job["workload"]["input_tokens"]
        assert float(asked["--osl"]) == job["workload"]["output_tokens"]
        assert float(asked["--ttft"]) == job["slo"]["ttft_ms"]
        assert float(asked["--tpot"]) == job["slo"]["tpot_ms"]
