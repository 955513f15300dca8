"""Candidates of every mode on two axes of choice: the front of each, what lies behind it, the best, the limits."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.report.configuration import hover_texts, short_texts
from afd_dse.report.figures.nothing import NothingToShowError
from afd_dse.report.figures.theme import DIM, INK, LIGHT, marker, mode_styles, styled
from afd_dse.report.metrics import METRICS, Metric
from afd_dse.results.words import number
from afd_dse.search.pareto import front

CLOUD = 1500
"""Points behind the fronts that a chart shows at most; of more, one a tile of the chart is shown."""
_TICKS = [digit * 10.0**power for power in range(-4, 9) for digit in (1, 1.5, 2, 3, 4, 5, 7)]


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one mode; ``rows`` are their positions in the table ``source`` that they were taken from."""

    mode: str
    colour: str
    symbol: str
    x: FloatArray
    y: FloatArray
    rows: IntArray
    text: tuple[str, ...]
    source: str = ""

    @property
    def keys(self) -> list[int] | list[str]:
        """What names each point: its row, with the table in front where that has a name."""
        rows: list[int] = self.rows.tolist()
        return [f"{self.source}:{row}" for row in rows] if self.source else rows


@dataclass(frozen=True, slots=True)
class Marked:
    """One deployment that stands out, with the interval of its metrics where one is known: (low, high)."""

    x: float
    y: float
    label: str
    x_interval: tuple[float, float] | None = None
    y_interval: tuple[float, float] | None = None
    name: str = "recommended"


@dataclass(frozen=True, slots=True)
class FrontInfo:
    """Fronts by mode, points behind them, the best deployment, and the SLO's limits on either axis (None: none)."""

    x: Metric
    y: Metric
    fronts: tuple[Series, ...]
    behind: tuple[Series, ...]
    best: Marked | None
    x_limit: float | None
    y_limit: float | None


def front_info(
    document: Mapping[str, Any],
    points: pd.DataFrame,
    x: str = "tokens_per_s_per_user",
    y: str = "tokens_per_s_per_gpu",
    *,
    cloud: bool = False,
) -> FrontInfo:
    """Feasible points of every mode on axes ``x`` and ``y``: the front of each mode and, with ``cloud``, the rest.

    Raises :class:`NothingToShowError` when nothing is feasible or an axis has no values.
    """
    horizontal, vertical = METRICS[x], METRICS[y]
    feasible = (
        np.flatnonzero(points["feasible"].to_numpy(dtype=bool)) if len(points) else np.zeros(0, np.int64)
    )
    if not len(feasible):
        raise NothingToShowError("no deployment meets the limits, so there is no front")
    styles = mode_styles([entry["name"] for entry in document["modes"]])
    modes = points["mode"].to_numpy()
    groups = {mode: feasible[modes[feasible] == mode] for mode in styles}
    fronts, behind = fronts_of(points, groups, styles, horizontal, vertical, cloud=CLOUD if cloud else 0)
    if not fronts:
        raise NothingToShowError(f"no deployment has a value of {horizontal.label} and {vertical.label}")
    slo = document["job"]["slo"]
    best = document["best"]
    return FrontInfo(
        horizontal,
        vertical,
        fronts,
        behind,
        None if best is None else marked(best, points, x, y),
        limit_on(slo, x),
        limit_on(slo, y),
    )


def fronts_of(
    points: pd.DataFrame,
    groups: Mapping[str, IntArray],
    styles: Mapping[str, tuple[str, str]],
    x: Metric,
    y: Metric,
    *,
    cloud: int = 0,
    source: str = "",
) -> tuple[tuple[Series, ...], tuple[Series, ...]]:
    """The front of every group of rows, and at most about ``cloud`` points behind all of them."""
    xs, ys = _column(points, x), _column(points, y)
    on_fronts: dict[str, IntArray] = {}
    behind = []
    for name, candidates in groups.items():
        rows = candidates[np.isfinite(xs[candidates]) & np.isfinite(ys[candidates])]
        if not len(rows):
            continue
        on = rows[front(x.better * xs[rows], y.better * ys[rows])]
        on = on[np.argsort(xs[on], kind="stable")]
        on_fronts[name] = on
        if cloud:
            rest = np.setdiff1d(rows, on, assume_unique=True)
            rest = rest[thinned(xs[rest], ys[rest], max(cloud // len(groups), 50))]
            text = short_texts(points, rest)
            behind.append(Series(name, *styles[name], xs[rest], ys[rest], rest, text, source))
    texts = iter(hover_texts(points.iloc[np.concatenate([*on_fronts.values(), np.zeros(0, np.int64)])]))
    fronts = tuple(
        Series(name, *styles[name], xs[on], ys[on], on, tuple(islice(texts, len(on))), source)
        for name, on in on_fronts.items()
    )
    return fronts, tuple(behind)


def marked(deployment: Mapping[str, Any], points: pd.DataFrame, x: str, y: str) -> Marked | None:
    """A deployment on two axes; None where its values are not known."""
    same = points[(points["label"] == deployment["label"]) & (points["mode"] == deployment["mode"])]
    if same.empty:
        return None
    row = same.iloc[int((same["tpot_ms"] - deployment["tpot_ms"]).abs().to_numpy().argmin())]
    at = (float(row[x]), float(row[y]))
    if not all(map(math.isfinite, at)):
        return None
    intervals = deployment.get("intervals") or {}
    return Marked(*at, str(deployment["label"]), _interval(intervals, x), _interval(intervals, y))


def _interval(intervals: Mapping[str, Sequence[float]], metric: str) -> tuple[float, float] | None:
    """The interval of a metric; that of speed is TPOT's, turned over."""
    if metric == "tokens_per_s_per_user" and "tpot_ms" in intervals:
        low, high = intervals["tpot_ms"]
        return 1000.0 / high, 1000.0 / low
    found = intervals.get("ttft_ms" if metric == "ttft_percentile_ms" else metric)
    return None if found is None else (float(found[0]), float(found[1]))


def limit_on(slo: Mapping[str, Any], metric: str) -> float | None:
    """The SLO's limit in the unit of an axis, None where it has none."""
    if metric == "tokens_per_s_per_user":
        return None if slo["tpot_ms"] is None else 1000.0 / float(slo["tpot_ms"])
    key = {"ttft_percentile_ms": "ttft_ms"}.get(metric, metric)
    value = slo.get(key)
    return None if value is None else float(value)


def thinned(x: FloatArray, y: FloatArray, most: int) -> IntArray:
    """Indices of at most about ``most`` points that look like all of them: the first one of every tile they fall on."""
    if len(x) <= most:
        return np.arange(len(x))
    side = max(int(math.sqrt(2.0 * most)), 4)
    tile = _tile(x, side) * side + _tile(y, side)
    _, first = np.unique(tile, return_index=True)
    keep: IntArray = np.sort(first)[: 2 * most].astype(np.int64)
    return keep


def _tile(values: FloatArray, side: int) -> IntArray:
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    scale = np.log(values) if (values > 0).all() else values
    low, high = float(scale.min()), float(scale.max())
    width = (high - low) or 1.0
    return np.minimum(((scale - low) / width * side).astype(np.int64), side - 1)


def _column(points: pd.DataFrame, metric: Metric) -> FloatArray:
    return points[metric.name].to_numpy(dtype=np.float64)


def front_figure(info: FrontInfo) -> go.Figure:
    """One line a mode; customdata of a point is its key. Best and limits are marked."""
    figure = go.Figure()
    for series in info.behind:
        figure.add_scatter(
            x=series.x,
            y=series.y,
            text=series.text,
            customdata=series.keys,
            mode="markers",
            marker={"size": 5, "color": series.colour, "opacity": 0.28},
            legendgroup=series.mode,
            showlegend=False,
            hovertemplate="%{text}<extra></extra>",
        )
    for series in info.fronts:
        figure.add_scatter(
            x=series.x,
            y=series.y,
            text=series.text,
            customdata=series.keys,
            name=series.mode,
            legendgroup=series.mode,
            mode="lines+markers",
            line={"color": series.colour, "width": 2},
            marker=marker(series.colour, series.symbol, 8),
            hovertemplate="%{text}<extra></extra>",
        )
    if info.best is not None:
        _mark_best(figure, info.best)
    for axis, metric, limit in (("x", info.x, info.x_limit), ("y", info.y, info.y_limit)):
        _style_axis(figure, axis, metric)
        if limit is not None:
            _mark_limit(figure, axis, metric, limit)
    return styled(figure, 480)


def _mark_best(figure: go.Figure, best: Marked) -> None:
    errors = {
        f"error_{axis}": {
            "type": "data",
            "array": [interval[1] - value],
            "arrayminus": [value - interval[0]],
            "color": INK[0],
            "thickness": 1.5,
        }
        for axis, value, interval in (("x", best.x, best.x_interval), ("y", best.y, best.y_interval))
        if interval is not None
    }
    figure.add_scatter(
        x=[best.x],
        y=[best.y],
        mode="markers",
        name=best.name,
        marker={
            "symbol": "star",
            "size": 18,
            "color": LIGHT["orange"],
            "line": {"width": 1.5, "color": INK[0]},
        },
        hoverinfo="skip",
        **errors,
    )


def _mark_limit(figure: go.Figure, axis: str, metric: Metric, limit: float) -> None:
    # NOTE: on a logarithmic axis plotly wants the logarithm for a text, but not for a line.
    place = math.log10(limit) if metric.logarithmic else limit
    text = f"limit {number(limit)}"
    line = {"dash": "dash", "color": DIM[0], "width": 1.5}
    words = {"text": text, "showarrow": False, "font": {"color": DIM[0], "size": 12}}
    if axis == "x":
        figure.add_vline(x=limit, line=line)
        anchor = "right" if metric.better > 0 else "left"
        figure.add_annotation(x=place, y=1.0, yref="paper", xanchor=anchor, yanchor="bottom", **words)
    else:
        figure.add_hline(y=limit, line=line)
        figure.add_annotation(y=place, x=1.0, xref="paper", xanchor="right", yanchor="bottom", **words)


def _style_axis(figure: go.Figure, axis: str, metric: Metric) -> None:
    update = figure.update_xaxes if axis == "x" else figure.update_yaxes
    if metric.logarithmic:
        update(title=metric.title, type="log", tickvals=_TICKS, ticktext=[f"{tick:,.6g}" for tick in _TICKS])
    else:
        update(title=metric.title, rangemode="tozero", tickformat=",~r")
