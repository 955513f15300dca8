"""Pinned deployments: what they achieve, where their time and memory go, how they are laid out; two side by side."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from dash import dcc, html

from afd_dse.dashboard.data import Dataset
from afd_dse.dashboard.layout import GRAPH_CONFIG, aria
from afd_dse.report.configuration import phase_words, policy_of
from afd_dse.report.figures import decode_info, first_token_info, memory_figure, memory_info, parts_figure
from afd_dse.report.metrics import METRICS
from afd_dse.results.deployment import Deployment
from afd_dse.results.stored import deployment_at
from afd_dse.results.words import constraint, number, percent

_PLAIN = (
    "batch_size",
    "chunk_tokens",
    "concurrency",
    "requests_per_s",
    "tokens_per_s",
    "memory_gib",
)
_UNITS = {
    "batch_size": "batch (sequences per attention rank)",
    "chunk_tokens": "prefill chunk (tokens)",
    "concurrency": "requests in flight",
    "requests_per_s": "requests/s",
    "tokens_per_s": "output tokens/s in all",
    "memory_gib": "memory of the fullest GPU (GiB)",
}


@dataclass(frozen=True)
class Pinned:
    """One pinned candidate: where it comes from, its row of the table, and its deployment evaluated anew."""

    key: str
    dataset: Dataset
    record: Mapping[Any, Any]
    deployment: Deployment


def pinned(key: str, dataset: Dataset, row: int) -> Pinned:
    """The candidate at ``row`` of ``dataset``. Raises :class:`InputError` where its layout is not in the table."""
    return Pinned(
        key, dataset, dataset.points.iloc[row].to_dict(), deployment_at(dataset.job, dataset.points, row)
    )


def details(pins: Sequence[Pinned]) -> list[Any]:
    """The panel below the chart; empty without pins."""
    if not pins:
        return []
    deployments = [_named(pin, several=len(pins) > 1) for pin in pins]
    memory = [
        html.Figure(
            [
                html.Figcaption(f"Memory by group: {pin.deployment['label']}"),
                _graph(f"memory-{place}", figure),
            ]
        )
        for place, pin in enumerate(pins)
        for figure in (memory_figure(memory_info(pin.deployment)),)
    ]
    return [
        html.H2("Pinned" if len(pins) == 1 else "Compared"),
        html.Div(
            _table(pins),
            className="scroll",
            tabIndex=0,
            role="region",
            **aria("Pinned deployments"),
        ),
        html.Div(
            [
                html.Figure(
                    [html.Figcaption("Decode step"), _graph("decode", parts_figure(decode_info(deployments)))]
                ),
                html.Figure(
                    [
                        html.Figcaption("Time to the first token"),
                        _graph("first", parts_figure(first_token_info(deployments))),
                    ]
                ),
                *memory,
            ],
            className="figures",
        ),
        *(_configuration(pin) for pin in pins),
    ]


def _named(pin: Pinned, several: bool) -> Deployment:
    """The deployment under a name for the axis of a chart that tells two of the same mode apart."""
    return {**pin.deployment, "mode": pin.deployment["label"] if several else pin.deployment["mode"]}


def _graph(name: str, figure: go.Figure) -> html.Div:
    place = {"type": "detail", "name": name}
    store = {"type": "detail-light", "name": name}
    return html.Div(
        [dcc.Store(id=store, data=json.loads(figure.to_json())), dcc.Graph(id=place, config=GRAPH_CONFIG)]
    )


def _table(pins: Sequence[Pinned]) -> html.Table:
    rows = [
        *_rows(pins, "result", lambda pin: pin.dataset.name),
        *_rows(pins, "mode", lambda pin: str(pin.record["mode"])),
        *(
            row
            for name, metric in METRICS.items()
            for row in _rows(pins, metric.title, _value(name), metric.definition)
        ),
        *(row for name in _PLAIN for row in _rows(pins, _UNITS[name], _value(name))),
        *(
            row
            for phase in ("prefill", "decode")
            for row in _rows(pins, f"{phase} layout", lambda pin, phase=phase: phase_words(pin.record, phase))
        ),
        *_rows(pins, "prefill policy", lambda pin: policy_of(pin.record) or "–"),
        *_rows(pins, "what binds as searched", _binding),
        *_rows(pins, "measured or interpolated", lambda pin: percent(_grounded(pin))),
    ]
    head = html.Tr([html.Th("", scope="col"), *(_head(pin) for pin in pins)])
    return html.Table([html.Thead(head), html.Tbody(rows)])


def _head(pin: Pinned) -> html.Th:
    label = str(pin.record["label"])
    button = html.Button(
        "unpin", id={"type": "unpin", "key": pin.key}, type="button", title=f"Remove {label}"
    )
    return html.Th([html.Span(label), " ", button], scope="col")


def _rows(pins: Sequence[Pinned], title: str, value: Any, definition: str = "") -> list[html.Tr]:
    values = [value(pin) for pin in pins]
    if all(text in ("", "–", "nan") for text in values):
        return []
    differs = len(set(values)) > 1
    cells = [html.Td(text, className="differs" if differs else "") for text in values]
    return [html.Tr([html.Th(title, scope="row", title=definition or None), *cells])]


def _value(name: str) -> Any:
    def read(pin: Pinned) -> str:
        value = pin.record.get(name)
        if value is None or value != value:
            return "–"
        return f"{value:.0f}" if name == "gpus" else value if isinstance(value, str) else number(float(value))

    return read


def _binding(pin: Pinned) -> str:
    found = pin.deployment["binding"]
    if found is None:
        return pin.deployment["reason"] or "nothing"
    return f"{constraint(found['constraint'])}, {percent(found['slack_percent'] / 100.0)} left"


def _grounded(pin: Pinned) -> float:
    shares = pin.deployment["provenance"]
    return float(shares["measured"] + shares["interpolated"])


def _configuration(pin: Pinned) -> html.Details:
    text = json.dumps(pin.deployment, indent=1, ensure_ascii=False)
    return html.Details(
        [
            html.Summary(f"{pin.deployment['label']}: full configuration"),
            html.P(pin.deployment["description"]),
            html.P("Save it as a file for afd-dse estimate JOB FILE.", className="dim"),
            html.Pre(text, tabIndex=0),
        ]
    )
