"""The capacity report of a plan: what to get, when, for how much and at what risk first; then the evidence."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from afd_dse.results.files import write_files
from afd_dse.results.plan import break_even_rows
from afd_dse.results.words import count, number, percent

PLAN, PAGE = "plan.json", "plan.html"
# Okabe and Ito's palette.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; margin: 0 auto; max-width: 1080px; padding: 24px 16px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; } h2 { font-size: 19px; margin: 28px 0 8px; }
.dim { color: #666; } .no { color: #a33; } .yes { color: #00704f; }
.numbers { display: flex; flex-wrap: wrap; gap: 12px 36px; margin: 16px 0; }
.numbers b { display: block; font-size: 24px; line-height: 1.2; }
table { border-collapse: collapse; font-size: 14px; width: 100%; } th { color: #666; font-weight: 600; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid #eee; vertical-align: top; }
@media print { section { break-inside: avoid; } }
"""


def write_plan(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``plan.json`` and ``plan.html``, both or neither; the paths."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return write_files(folder, {PLAN: text.encode(), PAGE: capacity_page(document).encode()})


def capacity_page(document: Mapping[str, Any]) -> str:
    """The report as one HTML file that needs no network."""
    model = document["demand"]["model"]
    title = f"Capacity plan: {model if isinstance(model, str) else 'own model'}"
    parts = [f"<h1>{escape(title)}</h1>", _answer(document)]
    if document["feasible"]:
        figure = plotly.io.to_html(plan_figure(document), include_plotlyjs=False, full_html=False)
        parts += ["<h2>Demand and GPUs over time</h2>", figure, _section("Risk", _risk(document))]
    if document.get("break_even"):
        parts.append(_section("Hardware and modes", _break_even(document)))
    if document["feasible"]:
        parts.append(_section("Schedule", _schedule(document)))
    parts.append(_section("Deployments to choose from", _options(document)))
    parts.append(_section("Assumptions", _assumptions(document)))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>\n"
        f"{''.join(parts)}\n</body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = ("".join(f"<td>{escape(str(value))}</td>" for value in row) for row in rows)
    return f"<table><tr>{names}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _answer(document: Mapping[str, Any]) -> str:
    if not document["feasible"]:
        return f"<p class='no'>{escape(str(document['reason']))}</p>"
    total = document["totals"]
    peaks = ", ".join(f"{gpus} × {name}" for name, gpus in total["peak_gpus"].items() if gpus)
    hours = document["demand"]["horizon"]["hours"]
    numbers = (
        (peaks, "GPUs at the peak"),
        (f"${total['usd']:,.0f}", f"for {hours:g} hours"),
        (f"${number(total['usd_per_mtok'])}", "per million output tokens"),
        (f"{total['energy_kwh']:,.0f} kWh", f"{number(total['joules_per_token'])} J per token"),
        (percent(total["mean_load"]), "of the capacity in use"),
    )
    cells = "".join(f"<div><b>{escape(big)}</b>{escape(small)}</div>" for big, small in numbers)
    lines = []
    if total["reserved_gpus"]:
        kept = ", ".join(f"{gpus} × {name}" for name, gpus in total["reserved_gpus"].items())
        lines.append(f"Reserve {kept} for the whole time; the rest is started and stopped with the demand.")
    bad = sorted(
        {row["class"] for row in document["failures"] if row["lost"] == "deployment" and not row["slo_kept"]}
    )
    lines.append(
        f"The loss of one copy breaks the SLO of {', '.join(bad)} at its tightest."
        if bad
        else "The loss of any one copy of a deployment keeps every SLO."
    )
    lines.append(
        f"The cost is within {percent(total['gap_to_optimum'])} of what these deployments allow at best."
    )
    lines.append(f"All the hardware on offer serves {percent(document['most_load'])} of the busiest period.")
    return f"<div class='numbers'>{cells}</div>" + "".join(f"<p>{escape(line)}</p>" for line in lines)


def plan_figure(document: Mapping[str, Any]) -> go.Figure:
    """Requests/s by class above, GPUs in use by hardware below, over hours."""
    hours = [row["start_hours"] for row in document["periods"]]
    figure = make_subplots(
        rows=2, shared_xaxes=True, vertical_spacing=0.08, subplot_titles=("requests/s", "GPUs in use")
    )
    series = [
        (name, values, 1)
        for name, values in zip(document["classes"], document["requests_per_s"], strict=True)
    ]
    series += [(name, values, 2) for name, values in document["gpus"].items()]
    for place, (name, values, row) in enumerate(series):
        line = {"color": _COLOURS[place % len(_COLOURS)], "width": 0.5, "shape": "hv"}
        figure.add_scatter(x=hours, y=values, name=name, line=line, stackgroup=f"row {row}", row=row, col=1)
    figure.update_xaxes(title_text="hours", row=2, col=1)
    figure.update_layout(
        template="simple_white",
        height=560,
        margin={"l": 10, "r": 10, "t": 30, "b": 10},
        hovermode="x unified",
    )
    return figure


def _risk(document: Mapping[str, Any]) -> str:
    rows = [
        (
            row["class"],
            "one copy" if row["lost"] == "deployment" else "one scale-up domain",
            row["period"],
            "–" if row["load"] is None else percent(row["load"]),
            "kept" if row["slo_kept"] else "broken: requests queue",
        )
        for row in document["failures"]
    ]
    other = [
        (
            f"× {row['factor']:g}",
            f"${row['usd']:,.0f}" if row["feasible"] else "cannot be served",
            row["peak_gpus"] or "–",
        )
        for row in document["sensitivity"]
    ]
    return _table(("class", "lost", "tightest period", "load of the rest", "SLO"), rows) + _table(
        ("demand", "cost", "GPUs at the peak"), other
    )


def _break_even(document: Mapping[str, Any]) -> str:
    rows = break_even_rows(document)
    head = (
        "class",
        "hardware",
        "deployment",
        "mode",
        "tokens/s/GPU",
        "$/Mtok",
        "$/GPU-h",
        "break-even $/GPU-h",
    )
    return _table(head, rows)


def _schedule(document: Mapping[str, Any]) -> str:
    def words(entries: Sequence[Mapping[str, Any]]) -> str:
        return "; ".join(f"{e['class']}: {e['copies']} × {e['label']} on {e['hardware']}" for e in entries)

    rows = [
        (
            f"{row['start_hours']:g}",
            row["gpus"],
            words(row["running"]),
            words(row["starts"]),
            words(row["stops"]),
        )
        for row in document["periods"]
    ]
    return _table(("hour", "GPUs", "running", "starts", "stops"), rows)


def _options(document: Mapping[str, Any]) -> str:
    rows = [
        (
            row["class"],
            row["hardware"],
            row["label"],
            row["mode"],
            row["gpus"],
            number(row["requests_per_s"]),
            percent(row["rated"]),
            number(row["ttft_percentile_ms"]),
            number(row["tpot_ms"]),
        )
        for row in document["options"]
    ]
    head = ("class", "hardware", "deployment", "mode", "GPUs", "requests/s", "rated at", "TTFT ms", "TPOT ms")
    return _table(head, rows)


def _assumptions(document: Mapping[str, Any]) -> str:
    demand = document["demand"]
    rules = demand["rules"]
    lines = [
        f"{percent(rules['headroom'])} of the capacity stay free; redundancy: {rules['redundancy']}.",
        "A deployment is rated at the largest share of its estimated rate at which a simulation keeps the SLO.",
        "Latencies are estimates from measured kernels, not measurements of whole systems.",
        "A class is served by deployments of its own; a copy starts and stops as a whole.",
    ]
    for kind in demand["hardware"]:
        price = kind["usd_per_gpu_hour"]
        shown = "the catalogue's price" if price is None else f"${price:g} per GPU-hour"
        lines.append(f"{kind['name']}: up to {kind['count']} GPUs, {shown}, {kind['billing']}.")
    if document["feasible"]:
        total = document["totals"]
        lines.append(
            f"{count(total['requests'])} requests, {count(total['output_tokens'])} output tokens in all."
        )
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
