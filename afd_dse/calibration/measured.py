"""Measured runs: the table of one row a run, checked and completed."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from afd_dse.errors import InputError, Problem

TEXT = (
    "framework",
    "framework_version",
    "model",
    "accelerator",
    "precision",
    "gemm_dtype",
    "moe_dtype",
    "kv_dtype",
    "mode",
)
AGGREGATED, DISAGGREGATED = "agg", "disagg"
MEASURED = ("ttft_ms", "tpot_ms", "output_tokens_per_s_per_gpu")
_NEEDED = ("framework", "model", "accelerator", "mode", "isl", "osl", "concurrency", "tpot_ms")
# How a worker is cut, by mode: columns that may be empty, and what empty means.
_LAYOUT: Mapping[str, tuple[str, ...]] = {
    AGGREGATED: ("tp", "pp", "dp", "moe_tp", "ep"),
    DISAGGREGATED: tuple(
        f"{side}_{name}" for side in ("prefill", "decode") for name in ("workers", "tp", "dp", "ep")
    ),
}
NUMBERS = ("isl", "osl", "concurrency", "gpus", *_LAYOUT[AGGREGATED], *_LAYOUT[DISAGGREGATED], *MEASURED)
REASON = "reason"


def read_measured(path: Path) -> pd.DataFrame:
    """The table in a CSV file, as text and numbers (NaN where a cell is empty or unreadable).

    Raises :class:`InputError` for an unreadable file, one without rows, or one that lacks a needed column.
    """
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(
            Problem(str(path), None, f"cannot be read as CSV ({error})", "give a table with one row a run")
        ) from None
    if frame.empty:
        raise InputError(Problem(str(path), None, "holds no row", "give a table with one row a run"))
    return frame


def completed(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of :func:`read_measured` with every column, ``id`` numbered where absent, and ``reason``.

    ``reason`` says why a row cannot be predicted, empty where it can. Raises :class:`InputError` for a missing column.
    """
    missing = [name for name in _NEEDED if name not in frame.columns]
    if missing:
        raise InputError(
            [Problem(name, None, "is not a column of the measured table", "add it") for name in missing]
        )
    rows = pd.DataFrame(index=pd.RangeIndex(len(frame)))
    frame = frame.reset_index(drop=True)
    empty = pd.Series("", index=rows.index)
    rows["id"] = frame["id"] if "id" in frame else [f"row {number + 1}" for number in rows.index]
    for name in (*TEXT, "origin"):
        rows[name] = frame.get(name, empty).astype(str).str.strip()
    for name in NUMBERS:
        rows[name] = pd.to_numeric(frame.get(name, empty), errors="coerce")
    rows["mode"] = rows["mode"].replace("", AGGREGATED)
    for mode, names in _LAYOUT.items():
        for name in names:
            rows.loc[(rows["mode"] == mode) & rows[name].isna(), name] = 1.0
    rows.loc[rows["moe_tp"].isna() | (rows["moe_tp"] * rows["ep"] != rows["tp"] * rows["dp"]), "moe_tp"] = (
        rows["tp"] * rows["dp"] / rows["ep"]
    )
    rows[REASON] = _reasons(rows)
    return rows


def _reasons(rows: pd.DataFrame) -> pd.Series:
    reasons = pd.Series("", index=rows.index)

    def complain(bad: pd.Series, text: str) -> None:
        reasons[bad & (reasons == "")] = text

    for name in ("framework", "model", "accelerator"):
        complain(rows[name] == "", f"{name} is empty")
    complain(~rows["mode"].isin(_LAYOUT), "mode is neither agg nor disagg")
    for name in ("isl", "osl", "concurrency"):
        complain(~(rows[name] >= 1.0), f"{name} is not a number from 1")
    for mode, names in _LAYOUT.items():
        here = rows["mode"] == mode
        for name in names:
            complain(
                here & ~((rows[name] >= 1.0) & (rows[name] % 1.0 == 0.0)), f"{name} is not a whole number"
            )
    complain(~(rows["tpot_ms"] > 0.0) | ~np.isfinite(rows["tpot_ms"]), "tpot_ms is not a number above 0")
    return reasons
