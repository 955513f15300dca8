"""Measured runs beside predictions: read from CSV, matched by question, put on the axes of a chart."""

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.dashboard.data import Dataset
from afd_dse.errors import InputError, Problem
from afd_dse.operators.latency import FloatArray
from afd_dse.report.metrics import mean_input_tokens
from afd_dse.results.words import number

NEEDED = ("model", "accelerator", "isl", "osl", "ttft_ms", "tpot_ms", "output_tokens_per_s_per_gpu")
# Lengths count as the same question within this share: benchmarks draw them around a mean.
_SAME = 0.05

Texts = npt.NDArray[np.object_]


def read_measured(path: str | Path) -> pd.DataFrame:
    """Runs in the columns of ``docs/dashboard.md``, one a row. Raises :class:`InputError` where they are not usable."""
    where = Path(path).expanduser()
    remedy = f"give a CSV file with the columns {', '.join(NEEDED)}"
    try:
        found = pd.read_csv(where)
    except (OSError, ValueError, pd.errors.ParserError) as error:
        message = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise InputError(Problem("--measured", str(path), message, remedy)) from error
    if missing := [name for name in NEEDED if name not in found]:
        raise InputError(Problem("--measured", str(path), f"has no column {', '.join(missing)}", remedy))
    for name in NEEDED[2:]:
        if not pd.api.types.is_numeric_dtype(found[name]):
            raise InputError(
                Problem(
                    "--measured", str(path), f"column {name} holds text", "give numbers, or leave it empty"
                )
            )
    return found


def matching(runs: pd.DataFrame, dataset: Dataset) -> pd.DataFrame:
    """The runs of the dataset's model on one of its accelerators, with its lengths within 5 %."""
    document = dataset.document
    model, isl = _plain(str(document["model"]["name"])), mean_input_tokens(document)
    osl = dataset.job.workload.osl
    if isl is None:
        return runs.iloc[:0]
    accelerators = {_plain(name) for name, _, _ in dataset.pools.values()}
    same = (
        runs["model"].map(_plain).eq(model)
        & runs["accelerator"].map(_plain).isin(accelerators)
        & (runs["isl"].sub(isl).abs() <= _SAME * isl)
        & (runs["osl"].sub(osl).abs() <= _SAME * osl)
    )
    return runs[same]


def _plain(name: Any) -> str:
    """A name without its organisation and without case."""
    return str(name).rsplit("/", 1)[-1].casefold()


def on_axes(runs: pd.DataFrame, dataset: Dataset, x: str, y: str) -> tuple[FloatArray, FloatArray, Texts]:
    """Matching runs on two metrics, with their texts; a metric that no run tells has no points."""
    found = matching(runs, dataset)
    output = found["output_tokens_per_s_per_gpu"].to_numpy(dtype=np.float64)
    tpot, ttft = found["tpot_ms"].to_numpy(dtype=np.float64), found["ttft_ms"].to_numpy(dtype=np.float64)
    osl, isl = found["osl"].to_numpy(dtype=np.float64), found["isl"].to_numpy(dtype=np.float64)
    usd, watts = next((usd, watts) for _, usd, watts in dataset.pools.values())
    known: dict[str, FloatArray] = {
        "tokens_per_s_per_gpu": output,
        "input_tokens_per_s_per_gpu": output * isl / osl,
        "total_tokens_per_s_per_gpu": output * (1.0 + isl / osl),
        "tokens_per_s_per_user": 1000.0 / tpot,
        "tpot_ms": tpot,
        "ttft_percentile_ms": ttft,
        "request_latency_ms": ttft + (osl - 1.0) * tpot,
    }
    if len(dataset.pools) == 1:  # else nobody knows which GPUs a run used
        known |= {
            "usd_per_mtok": usd / 3600.0 / output * 1e6,
            "joules_per_token": watts / output,
            "tokens_per_s_per_mw": 1e6 * output / watts,
        }
    nothing = np.full(len(found), np.nan)
    xs, ys = known.get(x, nothing), known.get(y, nothing)
    usable = np.isfinite(xs) & np.isfinite(ys)
    texts = np.array([_text(record) for record in found.to_dict("records")], dtype=object)
    return xs[usable], ys[usable], texts[usable]


def _text(run: dict[Any, Any]) -> str:
    parts = [
        f"{name.upper()}{run[key]:.0f}"
        for key, name in (("tp", "tp"), ("dp", "dp"), ("ep", "ep"), ("gpus", "GPUs "))
        if isinstance(run.get(key), int | float) and np.isfinite(run[key])
    ]
    load = f", concurrency {run['concurrency']:.0f}" if np.isfinite(run.get("concurrency", np.nan)) else ""
    name = f"<b>{escape(str(run.get('framework', 'measured')))}</b> {escape(str(run.get('mode', '')))}"
    return (
        f"{name} {' '.join(parts)}{load}<br>"
        f"{number(run['output_tokens_per_s_per_gpu'])} tokens/s per GPU, TPOT {number(run['tpot_ms'])} ms, "
        f"TTFT {number(run['ttft_ms'])} ms"
    )
