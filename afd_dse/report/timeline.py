"""The page of a simulation: what users saw, and how queues, engines and caches filled over time."""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from afd_dse.report.figures.theme import MODE_COLOURS
from afd_dse.results.files import write_files
from afd_dse.results.words import number, percent

SIMULATION, PAGE = "simulation.json", "timeline.html"
_COUNTS = (
    ("waiting", "waiting"),
    ("prefilling", "in prefill"),
    ("moving", "in transfer"),
    ("decoding", "decoding"),
)
_SHARES = (
    ("kv_used", "KV cache of decode"),
    ("prefill_busy", "engines with prefill"),
    ("decode_busy", "engines that work"),
)
_ROWS = (
    ("ttft_ms", "TTFT"),
    ("tpot_ms", "TPOT"),
    ("itl_ms", "between tokens"),
    ("request_latency_ms", "request latency"),
)
_COLUMNS = ("p50", "p90", "p95", "p99", "mean")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; margin: 0 auto; max-width: 1080px; padding: 24px 16px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; } h2 { font-size: 19px; margin: 28px 0 8px; }
.dim { color: #666; } .no { color: #a33; } .yes { color: #00704f; }
table { border-collapse: collapse; font-size: 14px; } th { color: #666; font-weight: 600; }
th, td { text-align: right; padding: 5px 18px 5px 0; border-bottom: 1px solid #eee; }
td { font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
"""


def write_simulation(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``simulation.json`` and ``timeline.html``, both or neither; the paths."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return write_files(folder, {SIMULATION: text.encode(), PAGE: timeline_page(document).encode()})


def timeline_page(document: Mapping[str, Any]) -> str:
    """The page as one HTML file that needs no network."""
    deployment, traffic = document["deployment"], document["traffic"]
    title = f"{deployment['label']} ({deployment['mode']}) under {traffic['requests']:,} requests"
    verdict = "the SLO is kept" if document["met"] else document["reason"]
    figure = plotly.io.to_html(timeline_figure(document["timeline"]), include_plotlyjs=False, full_html=False)
    rate = traffic["offered_requests_per_s"]
    offered = "all at once" if rate is None else f"{number(rate)} requests/s"
    lines = [
        f"Arrivals: {traffic['arrival'].replace('_', ' ')}, {offered}; {number(traffic['mean_input_tokens'])} tokens "
        f"in and {number(traffic['mean_output_tokens'])} out on average; seed {traffic['seed']}.",
        f"Served: {number(document['requests_per_s'])} requests/s, {number(document['tokens_per_s_per_gpu'])} tokens/s "
        f"per GPU on {deployment['gpus']} GPUs.",
    ]
    if document["goodput"] is not None:
        lines.append(f"{percent(document['goodput'])} of the requests stay within every limit.")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>\n"
        f"<h1>{escape(title)}</h1><p class='{'yes' if document['met'] else 'no'}'>{escape(str(verdict))}</p>"
        f"{''.join(f'<p class=dim>{escape(line)}</p>' for line in lines)}"
        f"<h2>What users see</h2>{_times(document)}<h2>Over time</h2>{figure}\n</body></html>\n"
    )


def timeline_figure(timeline: Mapping[str, Any]) -> go.Figure:
    """Requests by state above, shares of engines and cache below, over seconds of service."""
    figure = make_subplots(
        rows=2, shared_xaxes=True, vertical_spacing=0.08, subplot_titles=("requests", "share in use")
    )
    for row, series in enumerate((_COUNTS, _SHARES), start=1):
        for key, words in series:
            values = timeline[key]
            if any(values):
                colour = MODE_COLOURS[len(figure.data) % len(MODE_COLOURS)]
                line = {"color": colour, "width": 1.2, "shape": "hv"}
                figure.add_scatter(
                    x=timeline["time_s"], y=values, name=words, line=line, mode="lines", row=row, col=1
                )
    figure.update_xaxes(title_text="s", row=2, col=1)
    figure.update_yaxes(rangemode="tozero", row=1, col=1)
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%", row=2, col=1)
    figure.update_layout(
        template="simple_white",
        height=620,
        margin={"l": 10, "r": 10, "t": 30, "b": 10},
        hovermode="x unified",
    )
    return figure


def _times(document: Mapping[str, Any]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("ms", *_COLUMNS, "formula (mean)"))
    rows = []
    for key, words in _ROWS:
        values = [document[key].get(name) for name in _COLUMNS] + [document["formula"].get(key)]
        cells = "".join(f"<td>{'–' if value is None else number(value)}</td>" for value in values)
        rows.append(f"<tr><td>{words}</td>{cells}</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"
