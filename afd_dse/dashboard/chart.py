"""The chart of a view: fronts under its limits, what lies behind them, measured runs, and in words what is seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from afd_dse.dashboard.data import LIMIT_NAMES, LIMITS, Dataset, Library
from afd_dse.dashboard.measured import on_axes
from afd_dse.dashboard.view import View
from afd_dse.operators.latency import IntArray
from afd_dse.report.figures.front import CLOUD, FrontInfo, Marked, Series, front_figure, fronts_of, limit_on
from afd_dse.report.figures.theme import DIM, INK, mode_styles, styled
from afd_dse.report.metrics import METRICS
from afd_dse.results.proof import proof_parts
from afd_dse.results.words import number, percent


@dataclass(frozen=True, slots=True)
class Picture:
    """The figure, a sentence on it, a warning (empty: none), and the points of the fronts as (key, words)."""

    figure: go.Figure
    sentence: str
    warning: str
    options: tuple[tuple[str, str], ...]


def picture(library: Library, view: View, measured: pd.DataFrame | None = None) -> Picture:
    """What ``view`` shows of ``library``; a few thousand points are drawn, however many candidates there are."""
    datasets = [found.repriced(view.prices, view.powers) for found in library.chosen(view.results)]
    if not datasets:
        return _empty("No result is chosen: tick one on the left, or run a search.")
    passing = [np.flatnonzero(dataset.within(view.limits)) for dataset in datasets]
    kept = sum(len(rows) for rows in passing)
    total = sum(len(dataset.points) for dataset in datasets)
    if kept == 0:
        return _nothing(datasets, view, total)
    info = _info(datasets, passing, view)
    if not info.fronts:
        return _empty("This result has no values on these axes: choose others.")
    figure = front_figure(info)
    seen = _add_measured(figure, datasets, view, measured)
    best = (
        ""
        if info.best is None
        else (
            f" Best {info.y.words} within the limits: {info.best.label}, {number(info.best.y)} {info.y.unit}."
        )
    )
    runs = f" {seen} measured runs of the same question are shown." if seen else ""
    sentence = f"{kept:,} of {total:,} candidates meet the limits.{best}{runs}"
    figure.update_layout(uirevision=f"{view.x} {view.y} {' '.join(view.results)}")
    return Picture(figure, sentence, _loosened(datasets, view), _options(info, datasets))


def proof_words(datasets: Sequence[Dataset]) -> str:
    """What the searches of ``datasets`` have shown, each under its name where there are several; empty for none."""
    if not datasets:
        return ""
    said = []
    for dataset in datasets:
        name = f"{dataset.name}: " if len(datasets) > 1 else ""
        said.append(f"{name}{'; '.join(proof_parts(dataset.document))}.")
    return f"As searched: {' '.join(said)}"


def _info(datasets: Sequence[Dataset], passing: Sequence[IntArray], view: View) -> FrontInfo:
    """Fronts by mode of a single result; of several the front of each."""
    x, y = METRICS[view.x], METRICS[view.y]
    cloud = 0 if view.front_only else CLOUD // len(datasets)
    fronts: list[Series] = []
    behind: list[Series] = []
    if len(datasets) == 1:
        (dataset,), (rows,) = datasets, passing
        codes = dataset.mode_codes[rows]
        groups = {mode: rows[codes == code] for code, mode in enumerate(dataset.modes)}
        found = fronts_of(dataset.points, groups, dataset.styles, x, y, cloud=cloud, source=dataset.key)
        fronts, behind = list(found[0]), list(found[1])
    else:
        styles = mode_styles([dataset.name for dataset in datasets])
        for dataset, rows in zip(datasets, passing, strict=True):
            groups = {dataset.name: rows}
            found = fronts_of(dataset.points, groups, styles, x, y, cloud=cloud, source=dataset.key)
            fronts += found[0]
            behind += found[1]
    limits = {**dict.fromkeys(LIMITS), **view.limits}
    best = _best(datasets, fronts, y.better)
    return FrontInfo(
        x, y, tuple(fronts), tuple(behind), best, limit_on(limits, view.x), limit_on(limits, view.y)
    )


def _best(datasets: Sequence[Dataset], fronts: Sequence[Series], better: int) -> Marked | None:
    if not fronts:
        return None
    series = max(fronts, key=lambda one: float((better * one.y).max()))
    place = int((better * series.y).argmax())
    points = next(dataset.points for dataset in datasets if dataset.key == series.source)
    label = str(points["label"].iloc[int(series.rows[place])])
    return Marked(float(series.x[place]), float(series.y[place]), label, name="best within the limits")


def _options(info: FrontInfo, datasets: Sequence[Dataset]) -> tuple[tuple[str, str], ...]:
    tables = {dataset.key: dataset.points["label"] for dataset in datasets}
    return tuple(
        (str(key), f"{label} ({series.mode}): {number(y)} {info.y.unit} at {number(x)} {info.x.unit}")
        for series in info.fronts
        for key, label, x, y in zip(
            series.keys, tables[series.source].iloc[series.rows].tolist(), series.x, series.y, strict=True
        )
    )


def _loosened(datasets: Sequence[Dataset], view: View) -> str:
    """Says where limits are looser than those searched under: there the search kept nothing."""
    found = []
    for dataset in datasets:
        wide = [LIMIT_NAMES[name] for name in LIMITS if _is_looser(view.limits.get(name), dataset.slo[name])]
        if wide:
            of = f" of {dataset.name}" if len(datasets) > 1 else ""
            found.append(f"{' and '.join(wide)}: looser than the search{of} was run with.")
    if not found:
        return ""
    more = "Candidates beyond its own limits were not kept: to see them, run it again under New search."
    return f"{' '.join(found)} {more}"


def _is_looser(limit: float | None, searched: float | None) -> bool:
    return searched is not None and (limit is None or limit > searched * (1.0 + 1e-4))


def _nothing(datasets: Sequence[Dataset], view: View, total: int) -> Picture:
    """Nothing meets the limits: the closest candidate, and which limit stands in its way."""
    found = [(dataset, dataset.closest(view.limits)) for dataset in datasets]
    closest = [(dataset, *entry) for dataset, entry in found if entry is not None]
    if not closest:
        why = "none of them fits the GPUs and serves the demand" if total else "the search kept none"
        return _empty(f"None of the {total:,} candidates can be shown: {why}.", warning=_misses(datasets))
    dataset, row, limit, excess = min(closest, key=lambda entry: entry[3])
    record = dataset.points.iloc[row]
    name = LIMIT_NAMES[limit]
    value = float(record[LIMITS[limit]])
    warning = (
        f"No candidate meets these limits. {name} stands in the way: the closest is {record['label']} "
        f"({record['mode']}) with {number(value)} ms, {percent(excess)} over {number(view.limits[limit])} ms."
    )
    key = f"{dataset.key}:{row}"
    figure = go.Figure(
        go.Scatter(
            x=[record[view.x]],
            y=[record[view.y]],
            customdata=[key],
            text=[f"{record['label']} ({record['mode']})"],
            mode="markers+text",
            textposition="top center",
            textfont={"color": INK[0]},
            name="closest achievable",
            marker={"symbol": "diamond-open", "size": 16, "color": INK[0], "line": {"width": 2}},
            hovertemplate="%{text}<extra>closest achievable</extra>",
        )
    )
    figure.update_xaxes(title=METRICS[view.x].title)
    figure.update_yaxes(title=METRICS[view.y].title, rangemode="tozero")
    options = ((key, f"closest achievable: {record['label']} ({record['mode']})"),)
    return Picture(styled(figure, 480), f"0 of {total:,} candidates meet the limits.", warning, options)


def _misses(datasets: Sequence[Dataset]) -> str:
    misses = [miss for dataset in datasets for miss in dataset.document["nearest_misses"]]
    return (
        f"Nearest miss: {misses[-1]['label']} ({misses[-1]['mode']}): {misses[-1]['reason']}."
        if misses
        else ""
    )


def _empty(sentence: str, warning: str = "") -> Picture:
    return Picture(styled(go.Figure(), 480), sentence, warning, ())


def _add_measured(
    figure: go.Figure, datasets: Sequence[Dataset], view: View, measured: pd.DataFrame | None
) -> int:
    """Measured runs of the same model, accelerator and lengths as hollow points; how many there are."""
    if measured is None:
        return 0
    found = [on_axes(measured, dataset, view.x, view.y) for dataset in datasets]
    x, y, text = (np.concatenate([part[i] for part in found]) for i in range(3))
    if len(x):
        figure.add_scatter(
            x=x,
            y=y,
            text=text,
            mode="markers",
            name="measured",
            marker={
                "symbol": "circle-open",
                "size": 10,
                "color": INK[0],
                "line": {"width": 2, "color": DIM[0]},
            },
            hovertemplate="%{text}<extra>measured</extra>",
        )
    return len(x)


def rows_of(library: Library, view: View) -> pd.DataFrame:
    """The candidates within the limits of a view, at its prices, with the name of their result in front."""
    datasets: Sequence[Dataset] = [d.repriced(view.prices, view.powers) for d in library.chosen(view.results)]
    parts = [d.points[d.within(view.limits)].assign(result=d.name) for d in datasets]
    if not parts:
        return pd.DataFrame()
    joined = pd.concat(parts, ignore_index=True)
    return joined[["result", *(name for name in joined.columns if name != "result")]]


def limits_words(limits: Mapping[str, float | None]) -> str:
    """The limits in one line."""
    found = [
        f"{LIMIT_NAMES[name]} ≤ {number(value)} ms" for name, value in limits.items() if value is not None
    ]
    return ", ".join(found) or "no limits"
