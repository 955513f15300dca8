"""Chart of a fleet: what every model could serve with any number of GPUs, and what it gets."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from afd_dse.report.figures.theme import MODE_COLOURS, styled


def staircases_figure(document: Mapping[str, Any]) -> go.Figure:
    """Staircases of all models over the GPUs of all pools together, their shares as points.

    Rates are multiples of the demand where every model has one, else output tokens per second.
    """
    relative = all(model["demand"] for model in document["models"])
    figure = go.Figure()
    served = [model for model in document["models"] if model["steps"]]
    for place, model in enumerate(served):
        colour = MODE_COLOURS[place % len(MODE_COLOURS)]

        def height(row: Mapping[str, Any], model: Mapping[str, Any] = model) -> float:
            if relative:
                return float(row["requests_per_s"] / model["demand"]["requests_per_s"])
            return float(row["tokens_per_s"])

        gpus, heights, texts = [0], [0.0], [""]
        for row in sorted(model["steps"], key=lambda row: (_gpus(row), -height(row))):
            # With several pools a step may need more GPUs in all than a stronger one.
            if height(row) > heights[-1]:
                gpus.append(_gpus(row))
                heights.append(height(row))
                texts.append(f"{row['label']} ({row['mode']})")
        have = sum(pool["count"] for pool in document["gpus_by_pool"].values())
        line = {"color": colour, "width": 1.6, "shape": "hv"}
        figure.add_scatter(
            x=[*gpus, have],
            y=[*heights, heights[-1]],
            text=[*texts, texts[-1]],
            name=model["name"],
            mode="lines",
            line=line,
        )
        if model["deployment"] is not None:
            figure.add_scatter(
                x=[model["deployment"]["gpus"]],
                y=[height(model["deployment"])],
                text=[model["deployment"]["label"]],
                name=f"{model['name']}: its share",
                mode="markers",
                marker={"color": colour, "size": 11, "symbol": "star"},
                showlegend=False,
            )
    if relative:
        figure.add_hline(y=1.0, line={"width": 1, "dash": "dash"}, annotation_text="demand")
    styled(figure, 400)
    figure.update_xaxes(title={"text": "GPUs", "font": {"size": 13}}, rangemode="tozero")
    unit = (
        "largest rate within the SLO, multiples of the demand"
        if relative
        else "output tokens/s within the SLO"
    )
    figure.update_yaxes(title={"text": unit, "font": {"size": 13}}, rangemode="tozero")
    return figure


def _gpus(step: Mapping[str, Any]) -> int:
    return sum(step["gpus_by_pool"].values())
