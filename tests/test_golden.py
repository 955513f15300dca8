"""Answers of the `quick` space as they stood when last looked at: nothing may change them unnoticed.

The numbers are this model's own, not measurements. Where a change is meant to move them, look at the new answers, and
write them down with `python tests/test_golden.py`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import afd_dse

GOLDEN = Path(__file__).with_name("golden.json")
JOBS: dict[str, dict[str, Any]] = {
    "deepseek-v3 on 128 B200": {
        "model": "DeepSeek-V3",
        "quantization": {"kv_cache": "fp8"},
        "cluster": {"pools": [{"name": "main", "accelerator": "b200_sxm", "count": 128}]},
        "workload": {"input_tokens": 4096, "output_tokens": 1024},
        "slo": {"ttft_ms": 2000, "tpot_ms": 30},
    },
    "qwen3-235b on 32 H200": {
        "model": "Qwen3-235B-A22B-FP8",
        "framework": "sglang",
        "cluster": {"pools": [{"name": "main", "accelerator": "h200_sxm", "count": 32}]},
        "workload": {"input_tokens": 2048, "output_tokens": 512},
        "slo": {"ttft_ms": 1000, "tpot_ms": 40, "percentile": 90},
    },
    "llama-3.1-70b on 8 H100": {
        "model": "Llama-3.1-70B",
        "framework": "vllm",
        "quantization": {"gemm": "fp8"},
        "cluster": {"pools": [{"name": "main", "accelerator": "h100_sxm", "count": 8}]},
        "workload": {"input_tokens": 1024, "output_tokens": 256},
        "slo": {"ttft_ms": 1000, "tpot_ms": 50},
    },
    "gpt-oss-120b on 72 GB200, too strict": {
        "model": "gpt-oss-120b",
        "cluster": {"pools": [{"name": "main", "accelerator": "gb200", "count": 72}]},
        "workload": {"input_tokens": 8192, "output_tokens": 1024},
        "slo": {"ttft_ms": 20, "tpot_ms": 1},
    },
}


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """What is remembered of an answer: by mode the layout, whether it is feasible, and its throughput per GPU."""
    result = afd_dse.optimize({**job, "search": {"space": "quick"}})
    return {
        name: {
            "label": found["label"],
            "feasible": found["feasible"],
            "tokens_per_s_per_gpu": found["tokens_per_s_per_gpu"],
        }
        for name, found in result.best_per_mode.items()
    }


@pytest.mark.parametrize("name", JOBS)
def test_an_answer_changes_only_on_purpose(name: str) -> None:
    golden, found = json.loads(GOLDEN.read_text(encoding="utf-8"))[name], answer(JOBS[name])
    assert {mode: (a["label"], a["feasible"]) for mode, a in found.items()} == {
        mode: (a["label"], a["feasible"]) for mode, a in golden.items()
    }
    for mode, expected in golden.items():
        assert found[mode]["tokens_per_s_per_gpu"] == pytest.approx(
            expected["tokens_per_s_per_gpu"], rel=1e-6
        )


if __name__ == "__main__":
    GOLDEN.write_text(
        json.dumps({name: answer(job) for name, job in JOBS.items()}, indent=1, sort_keys=True) + "\n",
        encoding="utf-8",
    )
