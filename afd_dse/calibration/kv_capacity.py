"""Measured maximum concurrent sequences of an engine against the memory model that the search uses."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.memory import max_concurrent_sequences
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario
from afd_dse.errors import InputError, Problem
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.cells import Cell, Phase
from afd_dse.spec.load import load_job

MEASURED = "measured_max_concurrent_seqs"
PREDICTED = "predicted_max_concurrent_seqs"
APE = "kv_capacity_ape"
REASON = "reason"

REQUIRED = ("system", "model", "tp", "isl", "osl", MEASURED)
# Columns that a table may lack, or leave empty in a row, and what is taken then: one rank, TensorRT-LLM's token budget.
_DEFAULTS: Mapping[str, float] = {"dp": 1.0, "ep": 1.0, "pp": 1.0, "max_num_tokens": 8192.0}
_WHOLE = ("tp", "dp", "ep", "pp", "moe_tp", "isl", "osl", "max_seq_len", "max_num_tokens")
_KV_DTYPES: Mapping[str, str | None] = {
    "": None,
    "auto": None,
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "bfloat16",
    "fp16": "bfloat16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
}
_COLOCATED = (Cell.PA, Cell.PF, Cell.DA, Cell.DF)


def predict_kv_capacity(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``runs`` with what the memory model predicts for each.

    ``runs`` has one row an engine: ``system``, ``model``, ``tp``, ``isl``, ``osl`` (tokens) and
    ``measured_max_concurrent_seqs``; optional are ``backend`` (trtllm), ``dp``, ``ep``, ``pp`` (1), ``moe_tp``
    (tp · dp / ep), ``kv_dtype`` (the checkpoint's), ``max_seq_len`` (isl + osl), ``max_num_tokens`` (8192) and
    ``free_gpu_memory_fraction`` (the framework's). An engine's maximum is what its KV cache holds of sequences of
    ``max_seq_len`` tokens over all attention-DP ranks.

    Added are ``predicted_max_concurrent_seqs``, ``kv_capacity_ape`` (per cent of the measured number) and ``reason``,
    empty or why a row has no prediction. Raises InputError for a missing column.
    """
    missing = [name for name in REQUIRED if name not in runs.columns]
    if missing:
        raise InputError(
            [Problem(name, None, "is not a column of the measured table", "add it") for name in missing]
        )
    rows = _completed(runs)
    reasons = _unusable(rows)
    predicted = pd.Series(np.nan, index=rows.index)
    usable = rows[reasons == ""]
    for _, engines in usable.groupby(["system", "model", "backend", "kv_dtype"], sort=False):
        try:
            predicted[engines.index] = _capacity(_scenario(engines.iloc[0]), engines)
        except InputError as error:
            reasons[engines.index] = "; ".join(str(problem) for problem in error.problems)
    measured = rows[MEASURED]
    result = runs.copy()
    result[PREDICTED] = predicted.to_numpy()
    result[APE] = (100.0 * (predicted - measured).abs() / measured).to_numpy()
    result[REASON] = reasons.to_numpy()
    return result


def kv_capacity_summary(predictions: pd.DataFrame) -> dict[str, Any]:
    """Errors over the predicted rows, per cent, and how many rows have none for which reason.

    ``predictions`` as :func:`predict_kv_capacity` returns them; errors are None where nothing was predicted.
    """
    ape = predictions[APE].dropna()
    reasons = predictions.loc[predictions[REASON] != "", REASON].value_counts()
    return {
        "kv_capacity_rows": len(predictions),
        "kv_capacity_predicted": len(ape),
        "kv_capacity_mape": float(ape.mean()) if len(ape) else None,
        "kv_capacity_median_ape": float(ape.median()) if len(ape) else None,
        "kv_capacity_unsupported": {str(reason): int(count) for reason, count in reasons.items()},
    }


def _completed(runs: pd.DataFrame) -> pd.DataFrame:
    """All columns that a prediction needs, numbers as floats (NaN where unreadable), rows numbered anew."""
    rows = runs.reset_index(drop=True)
    found = pd.DataFrame(index=rows.index)
    for name in ("system", "model", "backend", "kv_dtype"):
        column = rows[name] if name in rows else pd.Series("", index=rows.index)
        found[name] = column.fillna("").astype(str).str.strip()
    found["backend"] = found["backend"].replace("", "trtllm")
    for name in (*_WHOLE, "free_gpu_memory_fraction", MEASURED):
        column = rows[name] if name in rows else pd.Series(np.nan, index=rows.index)
        found[name] = pd.to_numeric(column, errors="coerce")
        # What cannot be read stays NaN and gets its reason; what is empty gets its default.
        empty = column.isna() | (column.astype(str).str.strip() == "")
        found[f"{name} given"] = ~empty
    defaults: dict[str, Any] = {**_DEFAULTS}
    defaults["max_seq_len"] = found["isl"] + found["osl"]
    for name, value in defaults.items():
        found[name] = found[name].where(found[f"{name} given"], value)
    shards = found["tp"] * found["dp"] / found["ep"]
    found["moe_tp"] = found["moe_tp"].where(found["moe_tp given"], shards)
    return found


def _unusable(rows: pd.DataFrame) -> pd.Series:
    """Why a row cannot be predicted, empty where it can."""
    reasons = pd.Series("", index=rows.index)

    def complain(bad: pd.Series, text: str) -> None:
        reasons[bad & (reasons == "")] = text

    for name in ("system", "model"):
        complain(rows[name] == "", f"{name} is empty")
    for name in (*_WHOLE, MEASURED):
        value = rows[name]
        complain(~((value >= 1.0) & (value % 1.0 == 0.0)), f"{name} is not a whole number from 1")
    fraction = rows["free_gpu_memory_fraction"]
    given = rows["free_gpu_memory_fraction given"]
    complain(
        given & ~((fraction > 0.0) & (fraction <= 1.0)),
        "free_gpu_memory_fraction is not above 0 and at most 1",
    )
    known = ", ".join(name for name in _KV_DTYPES if name)
    complain(~rows["kv_dtype"].isin(list(_KV_DTYPES)), f"kv_dtype is none of {known}")
    complain(
        rows["moe_tp"] * rows["ep"] != rows["tp"] * rows["dp"],
        "moe_tp times ep is not tp times dp: the experts are not on the GPUs of the attention",
    )
    return reasons


def _scenario(engine: pd.Series) -> Scenario:
    kv_cache = _KV_DTYPES[engine["kv_dtype"]]
    return scenario_from_job(
        load_job(
            {
                "model": engine["model"],
                "framework": engine["backend"],
                "quantization": {} if kv_cache is None else {"kv_cache": kv_cache},
                "cluster": {"pools": [{"name": "main", "accelerator": engine["system"], "count": 1}]},
                "workload": {"input_tokens": 1, "output_tokens": 1},
            }
        )
    )


def _capacity(scenario: Scenario, engines: pd.DataFrame) -> FloatArray:
    def whole(name: str) -> Any:
        return engines[name].to_numpy(dtype=np.int64)

    one, zero = np.ones(len(engines), dtype=np.int64), np.zeros(len(engines), dtype=np.int64)
    moe = scenario.moe is not None
    cut = Cut(
        attention_pool=zero,
        ffn_pool=zero,
        tp=whole("tp"),
        dp=whole("dp"),
        cp=one,
        pp=whole("pp"),
        moe_tp=whole("moe_tp") if moe else whole("tp"),
        ep=whole("ep") if moe else whole("dp"),
        redundant=zero,
        micro_batches=one,
        replicas=one,
    )
    fraction = engines["free_gpu_memory_fraction"].fillna(scenario.pools[0].free_fraction)
    budget = engines["max_num_tokens"].to_numpy(dtype=np.float64)
    held = max_concurrent_sequences(
        scenario,
        _COLOCATED,
        dict.fromkeys(Phase, cut),
        {Phase.PREFILL: budget, Phase.DECODE: np.zeros(len(engines))},
        sequence_tokens=engines["max_seq_len"].to_numpy(dtype=np.float64),
        free_fraction=fraction.to_numpy(dtype=np.float64),
    )
    result: FloatArray = held * cut.dp
    return result


__all__ = [
    "APE",
    "MEASURED",
    "PREDICTED",
    "REASON",
    "REQUIRED",
    "kv_capacity_summary",
    "predict_kv_capacity",
]
