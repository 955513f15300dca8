"""The picture of the growth curves, for docs/performance.md; needs a Chromium."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from afd_dse.report.figures.theme import LIGHT, marker, styled
from tests.browser import browser

WIDTH, HEIGHT = 1080, 560
_ROWS = (("cpu_s", "processor s", 1.0, "blue"), ("peak_bytes", "peak memory, GiB", 2.0**-30, "vermilion"))


def growth_figure(curves: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Seconds and memory of a whole answer over each axis of ``curves`` (documents of :class:`growth.Curve`)."""
    titles = [f"{curve['axis']}" for curve in curves] + [""] * len(curves)
    figure = make_subplots(rows=2, cols=len(curves), subplot_titles=titles, vertical_spacing=0.1)
    for column, curve in enumerate(curves, start=1):
        sizes = [point["size"] for point in curve["points"]]
        for row, (key, words, factor, colour) in enumerate(_ROWS, start=1):
            values = [factor * point[key] for point in curve["points"]]
            figure.add_scatter(
                x=sizes,
                y=values,
                mode="lines+markers",
                name=words,
                line={"color": LIGHT[colour], "width": 2},
                marker=marker(LIGHT[colour], "circle", 8),
                row=row,
                col=column,
            )
            _say_exponent(figure, curve["exponents"][key], row, column)
            figure.update_yaxes(type="log", row=row, col=column, dtick="D2" if row == 1 else "D1")
            if column == 1:
                figure.update_yaxes(title_text=words, row=row, col=column)
        _axis(figure, sizes, column)
    return styled(figure, HEIGHT, legend=False)


def _say_exponent(figure: go.Figure, exponent: float | None, row: int, column: int) -> None:
    text = "" if exponent is None else f"∝ size<sup>{exponent:.2f}</sup>, larger half"
    where = {"xref": "x domain", "yref": "y domain", "x": 0.04, "y": 0.96, "xanchor": "left"}
    figure.add_annotation(text=text, showarrow=False, row=row, col=column, **where)


def _axis(figure: go.Figure, sizes: Sequence[int], column: int) -> None:
    """Every size is a tick; where they span orders of magnitude the axis is logarithmic."""
    for row in (1, 2):
        figure.update_xaxes(
            type="log",
            tickvals=sizes,
            ticktext=[f"{size:,}" if row == 2 else "" for size in sizes],
            row=row,
            col=column,
        )


def draw(curves: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the picture of ``curves`` to ``path`` (PNG)."""
    with tempfile.TemporaryDirectory(prefix="afd-dse-benchmarks-") as folder, browser() as chrome:
        page = Path(folder) / "growth.html"
        growth_figure(curves).write_html(page, include_plotlyjs=True, config={"displayModeBar": False})
        tab = chrome.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
        tab.goto(page.as_uri())
        tab.wait_for_selector(".scatterlayer")
        tab.wait_for_timeout(500)
        path.parent.mkdir(parents=True, exist_ok=True)
        tab.screenshot(path=path)
