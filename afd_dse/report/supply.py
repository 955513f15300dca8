"""The chart of the supply bound, in two steps: what is shown, and the plotly figure of it."""

import math
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from afd_dse.network.hfu import HfuAnalysis

_BOUND, _INTENSITY, _DEAD = "#0072B2", "#D55E00", "#999999"


@dataclass(frozen=True, slots=True)
class SupplyInfo:
    """Curves over FFN nodes, the boundaries that lie within them with their names, and the dead zone."""

    title: str
    ffn_nodes: tuple[float, ...]
    hfu_percent: tuple[float, ...]
    intensity: tuple[float, ...]
    boundaries: tuple[tuple[float, str], ...]
    dead_zone: tuple[float, float] | None


def supply_info(analysis: HfuAnalysis) -> SupplyInfo:
    """What the chart shows of ``analysis``."""
    ends, nodes = analysis.boundaries, analysis.ffn_nodes
    named = (
        (ends.scale_out_full, "scale-out full"),
        (ends.no_reuse, "reuse gone"),
        (ends.one_expert, "one expert a GPU"),
    )
    return SupplyInfo(
        title=f"{analysis.model} on {analysis.hardware.name} ({analysis.hardware.profile})",
        ffn_nodes=tuple(map(float, nodes)),
        hfu_percent=tuple(float(100.0 * x) for x in analysis.bound),
        intensity=tuple(map(float, analysis.relative_intensity)),
        boundaries=tuple(pair for pair in named if nodes.min() <= pair[0] <= nodes.max()),
        dead_zone=analysis.dead_zone,
    )


def supply_figure(info: SupplyInfo) -> go.Figure:
    """Bound and intensity over FFN nodes, on a logarithmic axis."""
    figure = make_subplots(specs=[[{"secondary_y": True}]])
    nodes = list(info.ffn_nodes)
    figure.add_trace(
        go.Scatter(
            x=nodes,
            y=list(info.hfu_percent),
            name="HFU at most",
            mode="lines+markers",
            line={"color": _BOUND, "width": 2},
            hovertemplate="%{x:g} FFN nodes: %{y:.1f} %<extra></extra>",
        ),
        secondary_y=False,
    )
    figure.add_trace(
        go.Scatter(
            x=nodes,
            y=list(info.intensity),
            name="arithmetic intensity, 1 node = 1",
            mode="lines+markers",
            line={"color": _INTENSITY, "dash": "dot"},
            hovertemplate="%{x:g} FFN nodes: %{y:.2f} ×<extra></extra>",
        ),
        secondary_y=True,
    )
    for height, (place, name) in enumerate(info.boundaries):
        figure.add_vline(x=place, line={"color": _DEAD, "dash": "dash", "width": 1})
        figure.add_annotation(**_label(place, f"{name}: {place:g}", 1.02 + 0.05 * height, "bottom"))
    if info.dead_zone is not None:
        first, last = info.dead_zone
        figure.add_vrect(x0=first, x1=last, fillcolor=_DEAD, opacity=0.15, line_width=0)
        figure.add_annotation(**_label(first, "dead zone", 0.99, "top"))
    figure.update_xaxes(title="FFN nodes", type="log", tickvals=_ticks(nodes), range=_range(nodes))
    figure.update_yaxes(title="HFU at most, %", range=[0, 105], secondary_y=False)
    figure.update_yaxes(title="arithmetic intensity", rangemode="tozero", showgrid=False, secondary_y=True)
    figure.update_layout(
        title=info.title,
        template="plotly_white",
        legend={"orientation": "h", "y": -0.18},
        hovermode="x",
        margin={"t": 130},
    )
    return figure


def supply_page(analysis: HfuAnalysis) -> str:
    """The chart as one HTML file that needs no network."""
    figure = supply_figure(supply_info(analysis))
    html: str = figure.to_html(include_plotlyjs=True, full_html=True)
    return html


def _label(x: float, text: str, y: float, anchor: str) -> dict[str, Any]:
    """A label beside ``x``; annotations on a logarithmic axis are placed by exponent."""
    place = {"x": math.log10(x), "y": y, "yref": "paper", "xanchor": "left", "yanchor": anchor}
    return {**place, "text": text, "showarrow": False, "font": {"size": 12, "color": "#555"}}


def _range(nodes: list[float]) -> list[float]:
    return [math.log10(min(nodes)) - 0.05, math.log10(max(nodes)) + 0.05]


def _ticks(nodes: list[float]) -> list[float]:
    powers = [2.0**k for k in range(13)]
    return [tick for tick in powers if min(nodes) <= tick <= max(nodes)] or nodes
