"""What would change the answer: a tornado of the objective under every change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from afd_dse.report.figures.nothing import NothingToShowError
from afd_dse.report.figures.theme import INK, LIGHT, styled
from afd_dse.report.metrics import OBJECTIVES, Metric
from afd_dse.results.words import number, signed_percent

NOT_FEASIBLE = "not feasible"


@dataclass(frozen=True, slots=True)
class SensitivityInfo:
    """For every change the objective of the recommended layout, load set anew, and of the best known layout.

    Values are relative to the answer (0.1: 10 % more), None where nothing is feasible; most telling change first.
    """

    metric: Metric
    answer: float
    names: tuple[str, ...]
    recommended: tuple[float | None, ...]
    best: tuple[float | None, ...]
    best_labels: tuple[str, ...]


def sensitivity_info(document: Mapping[str, Any]) -> SensitivityInfo:
    """The changes of the document's ``what_if``. Raises :class:`NothingToShowError` where it has none."""
    if "what_if" not in document:
        raise NothingToShowError("the result holds no what-if; write the report anew with `afd-dse report`")
    rows = [row for row in document["what_if"] if "recommended" in row]
    if not rows:
        raise NothingToShowError("no deployment is feasible, so nothing can be varied")
    metric = OBJECTIVES[document["job"]["search"]["objective"]]
    # With fewest GPUs as the objective layouts do not change their size: what they serve per GPU is told instead.
    metric = OBJECTIVES["throughput_per_gpu"] if metric.name == "gpus" else metric
    answer = float(rows[0]["recommended"][metric.name])
    found = [
        (
            change_words(row),
            _relative(row["recommended"], metric, answer),
            _relative(row["best"], metric, answer),
            "" if row["best"] is None else f"{row['best']['label']} ({row['best']['mode']})",
        )
        for row in rows[1:]
    ]
    found.sort(key=lambda entry: -(float("inf") if entry[1] is None else abs(entry[1])))
    names, recommended, best, labels = zip(*found, strict=True)
    return SensitivityInfo(metric, answer, names, recommended, best, labels)


def change_words(row: Mapping[str, Any]) -> str:
    """A change in words: ``memory bandwidth × 0.8``."""
    return str(row["change"]) + ("" if row["factor"] == 1.0 else f" × {row['factor']:g}")


def _relative(found: Mapping[str, Any] | None, metric: Metric, answer: float) -> float | None:
    if found is None or not found["feasible"] or found[metric.name] is None or not answer:
        return None
    return float(found[metric.name]) / answer - 1.0


def _words(value: float | None) -> str:
    return NOT_FEASIBLE if value is None else signed_percent(value / 100.0)


def _label(
    figure: go.Figure, names: Sequence[str], percent: Sequence[float | None], other: Mapping[str, float]
) -> None:
    """Write what bar and diamond say beside them, beyond the diamond where that lies on the bar's side."""
    at: list[float] = []
    sides: list[str] = []
    words: list[str] = []
    for name, value in zip(names, percent, strict=True):
        ends, right = [0.0, value or 0.0, other.get(name, 0.0)], (value or 0.0) >= 0.0
        at.append(max(ends) if right else min(ends))
        sides.append("middle right" if right else "middle left")
        second = f"; ◆ {_words(other[name])}" if name in other else ""
        # Spaces that are not collapsed keep the words clear of the mark.
        words.append(f"\u00a0\u00a0{_words(value)}{second}\u00a0\u00a0")
    figure.add_scatter(
        x=at,
        y=list(names),
        text=words,
        textposition=sides,
        textfont={"color": INK[0]},
        mode="text",
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )


def sensitivity_figure(info: SensitivityInfo) -> go.Figure:
    """Bars of the recommended layout, diamonds of the best known one where that is another."""
    percent = [None if value is None else 100.0 * value for value in info.recommended]
    figure = go.Figure()
    for good, name, colour in (
        (False, "recommended layout, load set anew: worse", LIGHT["vermilion"]),
        (True, "better or equal", LIGHT["blue"]),
    ):
        chosen = [
            (change, value)
            for change, value in zip(info.names, percent, strict=True)
            if good == (value is not None and value * info.metric.better >= 0.0)
        ]
        figure.add_bar(
            y=[change for change, _ in chosen],
            x=[value or 0.0 for _, value in chosen],
            name=name,
            orientation="h",
            marker_color=colour,
            customdata=[_words(value) for _, value in chosen],
            hovertemplate="%{y}: %{customdata}<extra></extra>",
        )
    other = [
        (name, 100.0 * value, label)
        for name, mine, value, label in zip(
            info.names, info.recommended, info.best, info.best_labels, strict=True
        )
        if value is not None and (mine is None or abs(value - mine) > 1e-3)
    ]
    figure.add_scatter(
        y=[name for name, _, _ in other],
        x=[value for _, value, _ in other],
        text=[f"{label}: {signed_percent(value / 100.0)}" for _, value, label in other],
        mode="markers",
        name="best of the known layouts, where another",
        marker={"symbol": "diamond", "size": 11, "color": INK[0]},
        hovertemplate="%{text}<extra>%{y}</extra>",
    )
    _label(figure, info.names, percent, {name: value for name, value, _ in other})
    values = [value for value in percent if value is not None] + [value for _, value, _ in other] + [0.0]
    room = 0.3 * (max(values) - min(values) or 1.0)
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=info.names)
    figure.update_xaxes(
        title=f"change of {info.metric.words} (%); {number(info.answer)} {info.metric.unit} as asked",
        range=[min(values) - room, max(values) + room],
        zeroline=True,
        zerolinecolor=INK[0],
    )
    return styled(figure, 150 + 28 * len(info.names), labels=info.names)
