"""The report page: one file that needs no network; the answer first, then a card for each question."""

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from afd_dse.report.answer import answer_of
from afd_dse.report.cards import Card, cards_of, definitions
from afd_dse.report.figures.theme import TO_DARK
from afd_dse.report.metrics import METRICS, X_AXES, Y_AXES, points_of
from afd_dse.results.result import headline

DATA_ID = "result"
"""Id of the element that holds the result's document as JSON."""
CHARTS_ID = "charts"
"""Id of the element that holds the charts, their texts and the configurations of the points in them."""


def page(document: Mapping[str, Any], candidates: pd.DataFrame | None = None) -> str:
    """The page of a result's document and its candidates. A card that has nothing to show says why."""
    points = points_of(document, pd.DataFrame() if candidates is None else candidates)
    cards = cards_of(document, points)
    text: str = template().render(
        title=f"{document['model']['name']}: {headline(document)}",
        answer=answer_of(document),
        cards=cards,
        x_axes=[METRICS[name] for name in X_AXES],
        y_axes=[METRICS[name] for name in Y_AXES],
        style=Markup(asset("report.css")),
        library=Markup(get_plotlyjs()),
        script=Markup(asset("theme.js") + asset("report.js")),
        data_id=DATA_ID,
        data=embedded(document),
        charts_id=CHARTS_ID,
        charts=embedded(_charts(cards, points)),
    )
    return text


def asset(name: str) -> str:
    """A file of the page."""
    return files("afd_dse.report").joinpath("assets", name).read_text(encoding="utf-8")


def template(name: str = "report.html.j2") -> Any:
    """A template of the room by its file's name."""
    environment = Environment(
        loader=PackageLoader("afd_dse.report", "assets"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def embedded(data: object) -> Markup:
    """JSON that can stand in an element of a page."""
    # NOTE: "<" is escaped so that no text of the job can end the element that holds the data.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _charts(cards: Iterable[Card], points: pd.DataFrame) -> dict[str, Any]:
    """All charts as plotly's JSON; the texts of their points stand once, in ``texts``, and are named by number."""
    texts: dict[str, int] = {}
    charts: dict[str, dict[str, Any]] = {}
    shown: set[int] = set()
    for chart in (chart for card in cards for chart in card.charts):
        charts[chart.key] = {name: _packed(figure, texts) for name, figure in chart.variants.items()}
        if chart.key == "front":
            shown |= {int(row) for figure in chart.variants.values() for row in _rows(figure)}
    return {
        "charts": charts,
        "texts": list(texts),
        "points": _configurations(points, sorted(shown)),
        "metrics": definitions(),
        "dark": dict(TO_DARK),
    }


def _packed(figure: go.Figure, texts: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(figure.to_json())
    for trace in found["data"]:
        if isinstance(trace.get("text"), list):
            trace["text"] = [texts.setdefault(text, len(texts)) for text in trace["text"]]
    return found


def _rows(figure: go.Figure) -> Iterable[int]:
    return (row for trace in figure.data if trace.customdata is not None for row in trace.customdata)


def _configurations(points: pd.DataFrame, rows: list[int]) -> dict[str, Any]:
    """Columns and values of ``rows``, by row; what has no bound or is not known is null."""
    if not rows:
        return {"columns": [], "rows": {}}
    chosen = points.iloc[rows]
    values = chosen.astype(object).where(chosen.notna() & ~chosen.isin([np.inf, -np.inf]), None)
    listed = [[_plain(value) for value in row] for row in values.to_numpy().tolist()]
    return {"columns": list(points.columns), "rows": dict(zip(map(str, rows), listed, strict=True))}


def _plain(value: Any) -> Any:
    """``value`` with eight digits at most: enough to tell two points apart."""
    return float(f"{value:.8g}") if isinstance(value, float) else value
