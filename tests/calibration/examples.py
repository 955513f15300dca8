"""Tables of measured runs that the tests of the calibration and of its commands share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from afd_dse.calibration.measured import completed
from afd_dse.calibration.runs import METRICS, predict
from afd_dse.spec.calibration import Calibration

MEASURED_RUNS = Path(__file__).resolve().parents[1] / "data" / "measured_runs.csv"
RUN: Mapping[str, Any] = {
    "framework": "vllm",
    "model": "meta-llama/Meta-Llama-3.1-8B",
    "accelerator": "h100_sxm",
    "mode": "agg",
    "gemm_dtype": "",
    "moe_dtype": "",
    "kv_dtype": "",
    "isl": 1024,
    "osl": 256,
    "concurrency": 8,
    "tp": 1,
    "dp": 1,
    "ep": 1,
    "gpus": 1,
    "ttft_ms": 60,
    "tpot_ms": 8,
    "output_tokens_per_s_per_gpu": 900,
}
PD: Mapping[str, Any] = {
    "mode": "disagg",
    "prefill_workers": 1,
    "prefill_tp": 1,
    "prefill_dp": 1,
    "prefill_ep": 1,
    "decode_workers": 2,
    "decode_tp": 1,
    "decode_dp": 1,
    "decode_ep": 1,
    "gpus": 3,
}
# Kernels differ, so that what layers, steps and sequences cost can be told apart.
MODELS = (
    "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B",
    "Qwen/Qwen3-30B-A3B-FP8",
    "Qwen/Qwen3-32B-FP8",
)


def table(*changes: Mapping[str, Any], **everywhere: Any) -> pd.DataFrame:
    """A table of text as a file gives it: :data:`RUN` with the ``changes`` of each row."""
    rows = [{**RUN, **everywhere, **change} for change in changes or ({},)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return pd.DataFrame([{name: str(row.get(name, "")) for name in columns} for row in rows])


def grid(
    *, models: tuple[str, ...] = MODELS, accelerators: tuple[str, ...] = ("h100_sxm",), **everywhere: Any
) -> pd.DataFrame:
    """Runs of every model on every accelerator with two cuts, two lengths and five loads."""
    return table(
        *(
            {"model": model, "accelerator": place, "tp": tp, "gpus": tp, "isl": isl, "concurrency": load}
            for model in models
            for place in accelerators
            for tp in (1, 2)
            for isl in (512, 4096)
            for load in (1, 4, 16, 64, 128)
        ),
        **everywhere,
    )


def measured_as(runs: pd.DataFrame, truth: Calibration, noise: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """``runs`` with what engines with the overheads of ``truth`` would measure, times log-normal ``noise``."""
    found = predict(completed(runs), truth)
    rng = np.random.default_rng(seed)
    return runs.assign(
        **{name: (found[name] * np.exp(noise * rng.standard_normal(len(runs)))).map(str) for name in METRICS}
    )


def written(runs: pd.DataFrame, path: Path) -> Path:
    """``runs`` as a CSV file."""
    runs.to_csv(path, index=False)
    return path
