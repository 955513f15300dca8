"""The picture of the growth curves, for docs/performance.md; needs a Chromium."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from afd_dse.report.figures.theme import DIM, LIGHT, marker, styled
from tests.browser import browser

WIDTH, HEIGHT = 1080, 560
_ROWS = (
    ("cpu_s", "processor seconds", 1.0, "blue"),
    ("peak_bytes", "peak memory, GiB", 2.0**-30, "vermilion"),
)
_TITLES = {
    "GPUs": "GPUs of one pool",
    "pools": "kinds of GPUs in one cluster",
    "models": "models, one job each",
}
# Axes of seconds and of memory leave this factor around what they show; memory shows its bound.
_MARGIN, _BOUND_GIB = 1.5, 4.0


def growth_figure(curves: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Seconds and memory of a whole answer over each axis of ``curves`` (documents of :class:`growth.Curve`)."""
    titles = [_TITLES[curve["axis"]] for curve in curves] + [""] * len(curves)
    figure = make_subplots(
        rows=2, cols=len(curves), subplot_titles=titles, vertical_spacing=0.08, shared_yaxes="rows"
    )
    for row, (key, words, factor, colour) in enumerate(_ROWS, start=1):
        seen = [factor * point[key] for curve in curves for point in curve["points"]]
        for column, curve in enumerate(curves, start=1):
            sizes = [point["size"] for point in curve["points"]]
            figure.add_scatter(
                x=sizes,
                y=[factor * point[key] for point in curve["points"]],
                mode="lines+markers",
                line={"color": LIGHT[colour], "width": 2},
                marker=marker(LIGHT[colour], "circle", 8),
                row=row,
                col=column,
            )
            _say_exponent(figure, curve["exponents"][key], row, column)
            _size_axis(figure, sizes, row, column)
            if row == 2:
                figure.add_hline(y=_BOUND_GIB, line={"color": DIM[0], "dash": "dot"}, row=row, col=column)
        _value_axis(figure, seen + ([_BOUND_GIB] if row == 2 else []), row, words)
    return styled(figure, HEIGHT, legend=False)


def _say_exponent(figure: go.Figure, exponent: float | None, row: int, column: int) -> None:
    text = "" if exponent is None else f"∝ size<sup>{exponent:.2f}</sup> over the larger half"
    where = {"xref": "x domain", "yref": "y domain", "x": 0.98, "y": 0.03, "xanchor": "right"}
    figure.add_annotation(text=text, showarrow=False, row=row, col=column, **where)


def _size_axis(figure: go.Figure, sizes: Sequence[int], row: int, column: int) -> None:
    """Every size is a tick, with its number below the lower chart."""
    words = [f"{size:,}" if row == 2 else "" for size in sizes]
    figure.update_xaxes(type="log", tickvals=sizes, ticktext=words, tickangle=0, row=row, col=column)


def _value_axis(figure: go.Figure, values: Sequence[float], row: int, words: str) -> None:
    """One logarithmic axis for all charts of a row, with ticks at 1, 2 and 5 of every decade."""
    low, high = min(values) / _MARGIN, max(values) * _MARGIN
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    span = [math.log10(low), math.log10(high)]
    figure.update_yaxes(
        type="log", range=span, tickvals=ticks, ticktext=[f"{tick:,g}" for tick in ticks], row=row
    )
    figure.update_yaxes(title_text=words, row=row, col=1)


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
