"""The chart of the supply bound, in two steps: what is shown, and the plotly figure of it."""

import math
from dataclasses import dataclass

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
    for place, name in info.boundaries:
        figure.add_vline(x=place, line={"color": _DEAD, "dash": "dash", "width": 1})
        figure.add_annotation(
            x=_exponent(place),
            y=1.0,
            yref="paper",
            text=name,
            showarrow=False,
            textangle=-90,
            xshift=-8,
            yanchor="top",
        )
    if info.dead_zone is not None:
        figure.add_vrect(
            x0=info.dead_zone[0],
            x1=info.dead_zone[1],
            fillcolor=_DEAD,
            opacity=0.15,
            line_width=0,
            annotation_text="dead zone",
            annotation_position="bottom right",
        )
    figure.update_xaxes(title="FFN nodes", type="log", tickvals=_ticks(nodes))
    figure.update_yaxes(title="HFU at most, %", range=[0, 105], secondary_y=False)
    figure.update_yaxes(title="arithmetic intensity", rangemode="tozero", showgrid=False, secondary_y=True)
    figure.update_layout(
        title=info.title,
        template="plotly_white",
        legend={"orientation": "h", "y": -0.18},
        hovermode="x unified",
    )
    return figure


def supply_page(analysis: HfuAnalysis) -> str:
    """The chart as one HTML file that needs no network."""
    figure = supply_figure(supply_info(analysis))
    html: str = figure.to_html(include_plotlyjs=True, full_html=True)
    return html


def _exponent(value: float) -> float:
    """Annotations on a logarithmic axis are placed by exponent."""
    return math.log10(value)


def _ticks(nodes: list[float]) -> list[float]:
    powers = [2.0**k for k in range(13)]
    return [tick for tick in powers if min(nodes) <= tick <= max(nodes)] or nodes
