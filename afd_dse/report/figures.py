"""Charts, each in two steps: what is to be shown, taken from a result's document; and the plotly figure of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from afd_dse.errors import AfdDseError
from afd_dse.results.words import number

# Okabe and Ito's palette: distinguishable with any colour vision, and in grey by its order of lightness.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
STATIONS = (
    ("attention_ms", "attention", "#009E73"),
    ("ffn_ms", "FFN", "#0072B2"),
    ("links_ms", "links", "#E69F00"),
    ("outside_ms", "outside the layers", "#999999"),
)
_MARGIN = {"l": 10, "r": 10, "t": 30, "b": 10}


class NothingToShowError(AfdDseError):
    """A chart has no data; the message says why."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one mode, fastest for a user first."""

    mode: str
    colour: str
    tokens_per_s_per_user: tuple[float, ...]
    tokens_per_s_per_gpu: tuple[float, ...]
    text: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FrontInfo:
    """Fronts by mode, the best deployment, and the least tokens/s per user that the SLO allows (None: no limit)."""

    series: tuple[Series, ...]
    best: tuple[float, float, str]
    least_tokens_per_s_per_user: float | None


@dataclass(frozen=True, slots=True)
class ModesInfo:
    """One value a mode in the unit of the objective, best first; what is not feasible is not here."""

    modes: tuple[str, ...]
    values: tuple[float, ...]
    labels: tuple[str, ...]
    colours: tuple[str, ...]
    unit: str


@dataclass(frozen=True, slots=True)
class StepInfo:
    """Work of a decode step by station and mode, ms, and the step itself."""

    modes: tuple[str, ...]
    parts: tuple[tuple[str, str, tuple[float, ...]], ...]
    step_ms: tuple[float, ...]


def mode_colours(document: Mapping[str, Any]) -> dict[str, str]:
    """A colour for every mode, the same in all charts."""
    names = [entry["name"] for entry in document["modes"]]
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}


def front_info(document: Mapping[str, Any]) -> FrontInfo:
    """The Pareto front of each mode. Raises :class:`NothingToShowError` when nothing is feasible."""
    best = document["best"]
    if best is None:
        raise NothingToShowError("no deployment meets the limits, so there is no front")
    colours = mode_colours(document)
    series = tuple(
        Series(
            entry["name"],
            colours[entry["name"]],
            tuple(point["tokens_per_s_per_user"] for point in entry["front"]),
            tuple(point["tokens_per_s_per_gpu"] for point in entry["front"]),
            tuple(
                f"{point['label']}<br>{point['gpus']} GPUs, TTFT {number(point['ttft_ms'])} ms, "
                f"TPOT {number(point['tpot_ms'])} ms"
                for point in entry["front"]
            ),
        )
        for entry in document["modes"]
        if entry["front"]
    )
    tpot = document["job"]["slo"]["tpot_ms"]
    at = (best["tokens_per_s_per_user"], best["tokens_per_s_per_gpu"], best["label"])
    return FrontInfo(series, at, None if tpot is None else 1000.0 / tpot)


def front_figure(info: FrontInfo) -> go.Figure:
    """Throughput per GPU against speed per user, one line a mode; best marked, SLO as a line."""
    figure = go.Figure()
    for series in info.series:
        figure.add_scatter(
            x=series.tokens_per_s_per_user,
            y=series.tokens_per_s_per_gpu,
            text=series.text,
            name=series.mode,
            mode="lines+markers",
            line={"color": series.colour, "width": 2},
            marker={"size": 5},
            hovertemplate="%{text}<br>%{x:.3s} tokens/s per user, %{y:.4s} per GPU<extra>%{fullData.name}</extra>",
        )
    x, y, label = info.best
    figure.add_scatter(
        x=[x],
        y=[y],
        mode="markers+text",
        text=[label],
        textposition="top right",
        name="best",
        marker={"symbol": "star", "size": 16, "color": "#D55E00", "line": {"width": 1, "color": "black"}},
        hoverinfo="skip",
    )
    if info.least_tokens_per_s_per_user is not None:
        limit = info.least_tokens_per_s_per_user
        figure.add_vline(x=limit, line={"dash": "dash", "color": "#666666"})
        # NOTE: on a logarithmic axis plotly wants the logarithm for a text, but not for a line.
        figure.add_annotation(
            x=math.log10(limit),
            y=1.0,
            yref="paper",
            text="TPOT limit",
            xanchor="right",
            yanchor="top",
            showarrow=False,
        )
    figure.update_xaxes(title="tokens/s per user (1000 / TPOT)", type="log", tickvals=_SPEEDS)
    figure.update_yaxes(title="tokens/s per GPU", rangemode="tozero")
    return _styled(figure, 460)


# Round speeds to mark on a logarithmic axis.
_SPEEDS = [digit * 10**power for power in range(-1, 4) for digit in (1, 2, 5)]
_UNITS = {
    "throughput_per_gpu": ("tokens_per_s_per_gpu", "tokens/s per GPU", True),
    "total_throughput": ("tokens_per_s", "tokens/s", True),
    "usd_per_mtok": ("usd_per_mtok", "$ per million tokens", False),
    "fewest_gpus": ("gpus", "GPUs", False),
}


def modes_info(document: Mapping[str, Any]) -> ModesInfo:
    """The feasible modes by the objective. Raises :class:`NothingToShowError` when there is none."""
    metric, unit, more = _UNITS[document["job"]["search"]["objective"]]
    feasible = [d for d in document["best_per_mode"].values() if d["feasible"]]
    if not feasible:
        raise NothingToShowError("no mode has a feasible deployment")
    ordered = sorted(feasible, key=lambda d: d[metric], reverse=more)
    colours = mode_colours(document)
    return ModesInfo(
        tuple(d["mode"] for d in ordered),
        tuple(d[metric] for d in ordered),
        tuple(d["label"] for d in ordered),
        tuple(colours[d["mode"]] for d in ordered),
        unit,
    )


def modes_figure(info: ModesInfo) -> go.Figure:
    """A bar a mode, best on top."""
    figure = go.Figure(
        go.Bar(
            y=info.modes,
            x=info.values,
            text=[f"{number(value)}  {label}" for value, label in zip(info.values, info.labels, strict=True)],
            orientation="h",
            marker_color=info.colours,
            hovertemplate="%{y}: %{text}<extra></extra>",
            textposition="auto",
        )
    )
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title=info.unit, rangemode="tozero")
    return _styled(figure, 90 + 36 * len(info.modes))


def step_info(document: Mapping[str, Any]) -> StepInfo:
    """Decode steps of the feasible modes. Raises :class:`NothingToShowError` when there is none."""
    feasible = [d for d in document["best_per_mode"].values() if d["feasible"]]
    if not feasible:
        raise NothingToShowError("no mode has a feasible deployment")
    steps: Sequence[Mapping[str, float]] = [d["breakdown"]["decode"] for d in feasible]
    return StepInfo(
        tuple(d["mode"] for d in feasible),
        tuple((name, colour, tuple(step[key] for step in steps)) for key, name, colour in STATIONS),
        tuple(step["step_ms"] for step in steps),
    )


def step_figure(info: StepInfo) -> go.Figure:
    """Stacked work by station, a diamond at the step's time: what lies beyond it overlaps."""
    figure = go.Figure()
    for name, colour, values in info.parts:
        figure.add_bar(
            y=info.modes,
            x=values,
            name=name,
            orientation="h",
            marker_color=colour,
            hovertemplate=f"{name}: %{{x:.3s}} ms<extra>%{{y}}</extra>",
        )
    figure.add_scatter(
        y=info.modes,
        x=info.step_ms,
        mode="markers",
        name="step",
        marker={"symbol": "diamond", "size": 11, "color": "black"},
        hovertemplate="step: %{x:.3s} ms<extra>%{y}</extra>",
    )
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title="ms of a decode step")
    return _styled(figure, 130 + 36 * len(info.modes))


def _styled(figure: go.Figure, height: int) -> go.Figure:
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin=_MARGIN,
        font={"family": "system-ui, sans-serif", "size": 13},
        # Below the plot: above it the legend would lie under plotly's own buttons.
        legend={"orientation": "h", "yanchor": "top", "y": -0.18, "xanchor": "left", "x": 0.0},
    )
    figure.update_yaxes(automargin=True)
    return figure
