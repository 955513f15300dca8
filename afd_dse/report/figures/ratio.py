"""The landscape of A:F: the best that stored candidates reach at every ratio of attention to FFN GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.report.configuration import hover_texts
from afd_dse.report.figures.nothing import NothingToShowError
from afd_dse.report.figures.theme import DIM, marker, mode_styles, styled
from afd_dse.report.metrics import OBJECTIVES, Metric
from afd_dse.results.words import number
from afd_dse.spec.cells import Phase, parse_partition

PHASES = {Phase.PREFILL: "prefill", Phase.DECODE: "decode"}


@dataclass(frozen=True, slots=True)
class RatioSeries:
    """Best value of one mode at every A:F ratio that its candidates have, ascending."""

    mode: str
    colour: str
    symbol: str
    ratio: tuple[float, ...]
    value: tuple[float, ...]
    text: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RatioInfo:
    """One line a mode that splits attention from FFN, and the best that does not as a level (value, mode)."""

    metric: Metric
    series: tuple[RatioSeries, ...]
    unsplit: tuple[float, str] | None


def attention_gpus(points: pd.DataFrame, phase: str) -> FloatArray:
    """Attention GPUs of one unit of a phase, by candidate."""
    columns = [points[f"{phase}_{name}"].to_numpy(dtype=np.float64) for name in ("tp", "dp", "cp", "pp")]
    result: FloatArray = np.prod(columns, axis=0)
    return result


def ffn_gpus(points: pd.DataFrame, phase: str) -> FloatArray:
    """FFN GPUs of one unit of a phase, by candidate; meaningful where FFN has GPUs of its own."""
    columns = [points[f"{phase}_{name}"].to_numpy(dtype=np.float64) for name in ("moe_tp", "ep", "pp")]
    result: FloatArray = np.prod(columns, axis=0)
    return result


def ratio_info(document: Mapping[str, Any], points: pd.DataFrame) -> RatioInfo:
    """The landscape by the job's objective. Raises :class:`NothingToShowError` where no feasible candidate is split."""
    metric = OBJECTIVES[document["job"]["search"]["objective"]]
    if points.empty or "decode_tp" not in points:
        raise NothingToShowError(
            "candidates.parquet does not lie beside the result, and only it knows all ratios"
        )
    feasible = points[points["feasible"].to_numpy(dtype=bool)].reset_index(drop=True)
    styles = mode_styles([entry["name"] for entry in document["modes"]])
    series = []
    for mode, (colour, symbol) in styles.items():
        rows = feasible[feasible["mode"] == mode]
        split = _split_phase(rows)
        if split is None:
            continue
        ratio = attention_gpus(rows, split) / ffn_gpus(rows, split)
        value = rows[metric.name].to_numpy(dtype=np.float64)
        best = _best_by(ratio, metric.better * value)
        series.append(
            RatioSeries(
                mode,
                colour,
                symbol,
                tuple(ratio[best].tolist()),
                tuple(value[best].tolist()),
                hover_texts(rows.iloc[best]),
            )
        )
    if not series:
        raise NothingToShowError("no feasible candidate has attention and FFN on different GPUs")
    return RatioInfo(metric, tuple(series), _unsplit(document, metric, {entry.mode for entry in series}))


def _split_phase(rows: pd.DataFrame) -> str | None:
    """The phase whose attention and FFN are apart, decode where both are; None where there is none."""
    if rows.empty:
        return None
    partition = parse_partition(str(rows["partition"].iloc[0]))
    return next((PHASES[phase] for phase in (Phase.DECODE, Phase.PREFILL) if partition.splits(phase)), None)


def _best_by(key: FloatArray, score: FloatArray) -> IntArray:
    """Index of the best row of every distinct key, by ascending key."""
    order = np.lexsort((-score, key))
    _, first = np.unique(key[order], return_index=True)
    result: IntArray = order[first].astype(np.int64)
    return result


def _unsplit(document: Mapping[str, Any], metric: Metric, split: set[str]) -> tuple[float, str] | None:
    others = [d for d in document["best_per_mode"].values() if d["feasible"] and d["mode"] not in split]
    if not others:
        return None
    best = max(others, key=lambda d: metric.better * d[metric.name])
    return float(best[metric.name]), str(best["mode"])


def ratio_figure(info: RatioInfo) -> go.Figure:
    """Objective over A:F on a logarithmic axis; a dashed level for the best without a split."""
    figure = go.Figure()
    for series in info.series:
        figure.add_scatter(
            x=series.ratio,
            y=series.value,
            text=series.text,
            name=series.mode,
            mode="lines+markers",
            line={"color": series.colour, "width": 1.5},
            marker=marker(series.colour, series.symbol, 9),
            hovertemplate="A:F = %{x:.3~g}<br>%{text}<extra></extra>",
        )
    if info.unsplit is not None:
        value, mode = info.unsplit
        figure.add_hline(y=value, line={"dash": "dash", "color": DIM[0], "width": 1.5})
        figure.add_annotation(
            y=value,
            x=1.0,
            xref="paper",
            xanchor="right",
            yanchor="bottom",
            showarrow=False,
            text=f"{mode}: {number(value)}",
            font={"color": DIM[0], "size": 12},
        )
    ticks = [2.0**power for power in range(-7, 8)]
    words = [f"{max(t, 1):.0f}:{max(1 / t, 1):.0f}" for t in ticks]
    figure.update_xaxes(
        title="attention GPUs : FFN GPUs of a unit", type="log", tickvals=ticks, ticktext=words
    )
    figure.update_yaxes(title=info.metric.title, rangemode="tozero", tickformat=",~r")
    return styled(figure, 420)
