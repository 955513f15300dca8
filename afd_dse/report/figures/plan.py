"""Charts of a plan: requests and GPUs over time, and what they cost."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from afd_dse.report.figures.theme import MODE_COLOURS, styled

_Series = tuple[str, Sequence[float], int]


def plan_figure(document: Mapping[str, Any]) -> go.Figure:
    """Requests/s by class above, GPUs in use by hardware below, over hours."""
    series: list[_Series] = [
        (name, values, 1)
        for name, values in zip(document["classes"], document["requests_per_s"], strict=True)
    ]
    series += [(name, values, 2) for name, values in document["gpus"].items() if any(values)]
    return _stacked(document, ("requests/s", "GPUs in use"), series, 400)


def money_figure(document: Mapping[str, Any]) -> go.Figure:
    """USD per hour above, what has been spent by then below, over hours."""
    hours = document["demand"]["horizon"]["period_hours"]
    costs = [row["usd"] for row in document["periods"]]
    spent = [sum(costs[:place]) for place in range(len(costs))]
    series: list[_Series] = [
        ("USD per hour", [usd / hours for usd in costs], 1),
        ("USD spent before", spent, 2),
    ]
    return _stacked(
        document, ("USD per hour, starts and reservations included", "USD spent before"), series, 360
    )


def _stacked(
    document: Mapping[str, Any], titles: tuple[str, str], series: Sequence[_Series], height: int
) -> go.Figure:
    hours = [row["start_hours"] for row in document["periods"]]
    end = document["demand"]["horizon"]["hours"]
    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.12, subplot_titles=titles)
    for place, (name, values, row) in enumerate(series):
        line = {"color": MODE_COLOURS[place % len(MODE_COLOURS)], "width": 0.6, "shape": "hv"}
        # The last period lasts until the end of the plan.
        figure.add_scatter(
            x=[*hours, end],
            y=[*values, values[-1]],
            name=name,
            line=line,
            stackgroup=f"row {row}",
            row=row,
            col=1,
        )
    styled(figure, height)
    figure.update_annotations(font_size=13)
    figure.update_xaxes(title={"text": "hours", "font": {"size": 13}}, row=2, col=1)
    figure.update_xaxes(range=[0, end])
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(hovermode="x unified")
    return figure
