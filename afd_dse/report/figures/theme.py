"""What all charts look like: colours for modes, stations and memory in a light and a dark page, symbols, layout."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

# Okabe and Ito's hues, their lightness moved until every one has at least 3:1 contrast with the page (WCAG 1.4.11) and
# any two differ by at least 24 (CIE76) with normal vision, deuteranopia, protanopia and tritanopia: see the test.
LIGHT = {
    "blue": "#0053e1",
    "vermilion": "#9b460d",
    "green": "#175433",
    "purple": "#712b65",
    "orange": "#c08900",
    "sky": "#019fd0",
    "black": "#181b1f",
    "grey": "#8a8f98",
}
DARK = {
    "blue": "#34d8f7",
    "vermilion": "#d62500",
    "green": "#0c9f5f",
    "purple": "#f76ab6",
    "orange": "#eed722",
    "sky": "#005bf1",
    "black": "#f7f7f7",
    "grey": "#62666c",
}
# Surfaces and text: (light, dark). Text has at least 4.5:1 on the page and on cards.
PAGE, INK, DIM, GRID = (
    ("#fefefe", "#16191e"),
    ("#1c2026", "#eceef1"),
    ("#5a616b", "#a8afb9"),
    ("#e3e6ea", "#333840"),
)
TO_DARK: Mapping[str, str] = dict([*zip(LIGHT.values(), DARK.values(), strict=True), PAGE, INK, DIM, GRID])
"""What a page replaces, colour by colour, to show a chart in the dark: charts are made in light colours."""

MODE_COLOURS = tuple(
    LIGHT[name] for name in ("blue", "vermilion", "green", "purple", "orange", "sky", "black", "grey")
)
SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "triangle-down",
    "cross",
    "x",
    "pentagon",
    "hexagon",
    "star-square",
)
STATION_COLOURS = {
    "attention": LIGHT["green"],
    "FFN": LIGHT["blue"],
    "links": LIGHT["orange"],
    "outside the layers": LIGHT["grey"],
}
MEMORY_COLOURS = {
    "weights": LIGHT["blue"],
    "KV cache": LIGHT["green"],
    "activations": LIGHT["orange"],
    "framework": LIGHT["grey"],
}
TRUST_COLOURS = {
    "measured": LIGHT["green"],
    "interpolated": LIGHT["sky"],
    "borrowed": LIGHT["orange"],
    "speed of light": LIGHT["vermilion"],
}
_LETTER_PIXELS = 7.4
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def mode_styles(names: list[str]) -> dict[str, tuple[str, str]]:
    """Colour and symbol of every mode, the same in all charts; no two of up to 40 modes share both."""
    return {
        name: (MODE_COLOURS[index % len(MODE_COLOURS)], SYMBOLS[index % len(SYMBOLS)])
        for index, name in enumerate(names)
    }


def marker(colour: str, symbol: str, size: int) -> dict[str, object]:
    """A point of a line, set off from what lies under it."""
    return {"size": size, "symbol": symbol, "color": colour, "line": {"width": 1, "color": PAGE[0]}}


def stacked_bars(
    figure: go.Figure,
    bars: Sequence[str],
    parts: Sequence[tuple[str, str, Sequence[float]]],
    shown: str,
) -> None:
    """Add lying bars of stacked ``parts`` (name, colour, values); ``shown`` formats a value on hover."""
    for name, colour, values in parts:
        figure.add_bar(
            y=bars,
            x=values,
            name=name,
            orientation="h",
            marker_color=colour,
            hovertemplate=f"{name}: {shown}<extra>%{{y}}</extra>",
        )
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed")


def styled(figure: go.Figure, height: int, *, legend: bool = True, labels: Sequence[str] = ()) -> go.Figure:
    """Apply the look of the house; ``height`` in pixels, ``labels`` are the words on a vertical axis."""
    # NOTE: plotly makes room for labels only once they are drawn, and now and then too late.
    left = int(14 + _LETTER_PIXELS * max(map(len, labels), default=0))
    figure.update_layout(
        template=_TEMPLATE,
        height=height,
        showlegend=legend,
        # Below the plot: above it the legend would lie under plotly's own buttons.
        legend={
            "orientation": "h",
            "traceorder": "normal",
            "yref": "container",
            "yanchor": "bottom",
            "y": 0.0,
            "xanchor": "left",
            "x": 0.0,
        },
        hoverlabel={
            "align": "left",
            "bgcolor": PAGE[0],
            "bordercolor": DIM[0],
            "font": {"color": INK[0], "size": 13},
        },
        margin={"l": max(left, 8), "r": 12, "t": 28, "b": 8},
    )
    figure.update_yaxes(automargin=True)
    return figure


_AXIS: dict[str, Any] = {
    "gridcolor": GRID[0],
    "linecolor": DIM[0],
    "zerolinecolor": GRID[0],
    "tickfont": {"color": DIM[0]},
    "title": {"font": {"color": INK[0]}, "standoff": 10},
    "ticks": "outside",
    "tickcolor": GRID[0],
    "automargin": True,
}
# NOTE: a template of our own, not one of plotly's, so that every colour of a chart is one that the page can replace.
_TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 13, "color": INK[0]},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "modebar": {"color": DIM[0], "activecolor": INK[0], "bgcolor": "rgba(0,0,0,0)"},
        "colorway": list(MODE_COLOURS),
    }
)
