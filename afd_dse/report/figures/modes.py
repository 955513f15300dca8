"""Modes side by side: the best deployment of each by the objective, and where decode steps and first tokens go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from afd_dse.report.figures.nothing import feasible_modes
from afd_dse.report.figures.theme import INK, LIGHT, STATION_COLOURS, mode_styles, stacked_bars, styled
from afd_dse.report.metrics import OBJECTIVES
from afd_dse.results.words import number

# Parts of a decode step and of the time to the first token: name in the document, words, colour.
DECODE_PARTS = (
    ("attention_ms", "attention", STATION_COLOURS["attention"]),
    ("ffn_ms", "FFN", STATION_COLOURS["FFN"]),
    ("links_ms", "links", STATION_COLOURS["links"]),
    ("outside_ms", "outside the layers", STATION_COLOURS["outside the layers"]),
)
FIRST_TOKEN_PARTS = (
    ("wait_ms", "waiting in the queue", LIGHT["vermilion"]),
    ("service_ms", "prefill", LIGHT["blue"]),
    ("kv_transfer_ms", "KV transfer", LIGHT["orange"]),
)


@dataclass(frozen=True, slots=True)
class ModesInfo:
    """One value a mode in the unit of the objective, best first; what is not feasible is not here."""

    modes: tuple[str, ...]
    values: tuple[float, ...]
    labels: tuple[str, ...]
    colours: tuple[str, ...]
    title: str


@dataclass(frozen=True, slots=True)
class PartsInfo:
    """Milliseconds by part (name, colour, one value a bar), bar by bar, and what they are compared with."""

    bars: tuple[str, ...]
    parts: tuple[tuple[str, str, tuple[float, ...]], ...]
    whole_ms: tuple[float, ...]
    whole: str
    title: str


def modes_info(document: Mapping[str, Any]) -> ModesInfo:
    """The feasible modes by the objective. Raises :class:`NothingToShowError` when there is none."""
    metric = OBJECTIVES[document["job"]["search"]["objective"]]
    ordered = sorted(feasible_modes(document), key=lambda d: -metric.better * d[metric.name])
    styles = mode_styles([entry["name"] for entry in document["modes"]])
    return ModesInfo(
        tuple(d["mode"] for d in ordered),
        tuple(d[metric.name] for d in ordered),
        tuple(d["label"] for d in ordered),
        tuple(styles[d["mode"]][0] for d in ordered),
        metric.title,
    )


def modes_figure(info: ModesInfo) -> go.Figure:
    """A bar a mode, best on top, with value and label beside it."""
    figure = go.Figure(
        go.Bar(
            y=info.modes,
            x=info.values,
            text=[f"{number(value)}  {label}" for value, label in zip(info.values, info.labels, strict=True)],
            orientation="h",
            marker_color=info.colours,
            hovertemplate="%{y}: %{text}<extra></extra>",
            textposition="outside",
            textfont={"color": INK[0]},
            cliponaxis=False,
        )
    )
    figure.update_yaxes(autorange="reversed")
    # Room for the labels beside the longest bar.
    figure.update_xaxes(title=info.title, range=[0.0, 1.45 * max(info.values)], tickformat=",~r")
    return styled(figure, 90 + 36 * len(info.modes), legend=False, labels=info.modes)


def decode_info(deployments: Sequence[Mapping[str, Any]]) -> PartsInfo:
    """Work of the stations in a decode step of every deployment, and the step itself."""
    return _parts(deployments, "decode", DECODE_PARTS, "step_ms", "decode step", "ms in a decode step")


def first_token_info(deployments: Sequence[Mapping[str, Any]]) -> PartsInfo:
    """Waiting, prefill and exposed KV transfer of every deployment; their sum is the mean TTFT."""
    found = [d for d in deployments if d["breakdown"]["prefill"]["wait_ms"] is not None]
    return _parts(found, "prefill", FIRST_TOKEN_PARTS, None, "TTFT", "ms to the first token")


def _parts(
    deployments: Sequence[Mapping[str, Any]],
    phase: str,
    parts: Sequence[tuple[str, str, str]],
    whole: str | None,
    name: str,
    title: str,
) -> PartsInfo:
    steps = [d["breakdown"][phase] for d in deployments]
    shown = [
        (words, colour, tuple(step[key] or 0.0 for step in steps))
        for key, words, colour in parts
        if any(step[key] for step in steps)
    ]
    wholes = [
        d["ttft_ms"] if whole is None else step[whole] for d, step in zip(deployments, steps, strict=True)
    ]
    bars = tuple(d["mode"] for d in deployments)
    if len(set(bars)) < len(bars):
        bars = tuple(f"{d['label']} ({d['mode']})" for d in deployments)
    return PartsInfo(bars, tuple(shown), tuple(wholes), name, title)


def parts_figure(info: PartsInfo) -> go.Figure:
    """Stacked parts, a diamond at the whole: what lies beyond it overlaps."""
    figure = go.Figure()
    stacked_bars(figure, info.bars, info.parts, "%{x:.4~g} ms")
    figure.add_scatter(
        y=info.bars,
        x=info.whole_ms,
        mode="markers",
        name=info.whole,
        marker={"symbol": "diamond", "size": 12, "color": INK[0]},
        hovertemplate=f"{info.whole}: %{{x:.4~g}} ms<extra>%{{y}}</extra>",
    )
    figure.update_xaxes(title=info.title, tickformat=",~r")
    return styled(figure, 184 + 34 * len(info.bars), labels=info.bars)
