"""Where the groups of a deployment stand under the roofline of their accelerator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from afd_dse.report.figures.nothing import NothingToShowError
from afd_dse.report.figures.theme import DIM, LIGHT, PAGE, mode_styles, styled
from afd_dse.results.words import number, percent


@dataclass(frozen=True, slots=True)
class RooflineInfo:
    """Roofs (name, peak FLOP/s, bytes/s) and points (mode, colour, symbol, FLOP/byte, FLOP/s per GPU, text)."""

    roofs: tuple[tuple[str, float, float], ...]
    points: tuple[tuple[str, str, str, float, float, str], ...]


def roofline_info(document: Mapping[str, Any]) -> RooflineInfo:
    """Groups that decode, of the best deployment of every mode. Raises :class:`NothingToShowError` without any."""
    if "utilization" not in document:
        raise NothingToShowError(
            "the result holds no utilization; write the report anew with `afd-dse report`"
        )
    rows = [row for row in document["utilization"] if row["bytes_per_s_per_gpu"]]
    if not rows:
        raise NothingToShowError("no deployment is feasible")
    roofs = {
        (f"{row['accelerator']} {row['dtype']}", row["peak_flop_per_s"], row["hbm_bytes_per_s"]): None
        for row in rows
    }
    styles = mode_styles([entry["name"] for entry in document["modes"]])
    points = tuple(
        (
            row["mode"],
            *styles[row["mode"]],
            row["flop_per_s_per_gpu"] / row["bytes_per_s_per_gpu"],
            row["flop_per_s_per_gpu"],
            f"<b>{row['label']}</b>  {row['mode']}<br>group {' '.join(row['cells'])}, {row['gpus']} GPUs<br>"
            f"{number(row['flop_per_s_per_gpu'] / 1e12)} TFLOP/s a GPU: {percent(row['hfu'])} of the peak<br>"
            f"{number(row['bytes_per_s_per_gpu'] / 1e12)} TB/s a GPU: {percent(row['bandwidth_utilization'])} of HBM",
        )
        for row in rows
    )
    return RooflineInfo(tuple(roofs), points)


def roofline_figure(info: RooflineInfo) -> go.Figure:
    """FLOP/s over FLOP per byte, both logarithmic; one roof an accelerator and data type."""
    figure = go.Figure()
    least = min(0.5 * min(point[3] for point in info.points), 10.0)
    most = 8.0 * max(peak / rate for _, peak, rate in info.roofs)
    for index, (name, peak, rate) in enumerate(info.roofs):
        at = np.array([least, peak / rate, most])
        figure.add_scatter(
            x=at,
            y=np.minimum(peak, at * rate) / 1e12,
            mode="lines",
            name=f"roof of {name}",
            line={"color": DIM[0], "width": 2, "dash": ("solid", "dash", "dot")[index % 3]},
            hoverinfo="skip",
        )
    for mode in dict.fromkeys(point[0] for point in info.points):
        chosen: Sequence[tuple[str, str, str, float, float, str]] = [p for p in info.points if p[0] == mode]
        figure.add_scatter(
            x=[p[3] for p in chosen],
            y=[p[4] / 1e12 for p in chosen],
            text=[p[5] for p in chosen],
            mode="markers",
            name=mode,
            marker={
                "size": 12,
                "symbol": chosen[0][2],
                "color": chosen[0][1],
                "line": {"width": 1, "color": PAGE[0]},
            },
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_xaxes(title="useful FLOP per byte of HBM traffic", type="log", dtick=1)
    figure.update_yaxes(title="useful TFLOP/s per GPU", type="log", dtick=1)
    return styled(figure, 440)


def hfu_bars(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Share of peak FLOP/s and of HBM bandwidth by group, of one deployment."""
    groups = [f"{' '.join(row['cells'])}: {row['gpus']} GPUs" for row in rows]
    figure = go.Figure()
    for key, name, colour in (
        ("hfu", "of peak FLOP/s (HFU)", LIGHT["blue"]),
        ("bandwidth_utilization", "of HBM bandwidth", LIGHT["green"]),
    ):
        values = [None if row[key] is None else 100.0 * row[key] for row in rows]
        figure.add_bar(
            y=groups,
            x=values,
            name=name,
            orientation="h",
            marker_color=colour,
            text=["" if value is None else f"{value:.3g} %" for value in values],
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"%{{x:.3~g}} % {name}<extra>%{{y}}</extra>",
        )
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title="per cent", range=[0, 110])
    return styled(figure, 140 + 56 * len(groups), labels=groups)
