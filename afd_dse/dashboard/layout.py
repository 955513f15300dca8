"""What the page consists of: controls, chart, pinned deployments; and the form of a new search."""

from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from afd_dse.dashboard.data import LIMIT_NAMES, LIMITS, Library
from afd_dse.dashboard.form import Field, fields
from afd_dse.report.metrics import METRICS, X_AXES, Y_AXES

STEPS = 1000
"""Positions of a limit's slider."""
GRAPH_CONFIG: Any = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"],
}


LIVE: dict[str, Any] = {"aria-live": "polite"}


def aria(label: str) -> dict[str, Any]:
    """The name of an element for those who do not see it, as an argument."""
    return {"aria-label": label}


def page(library: Library, has_measured: bool) -> html.Div:
    """The whole page; values of the controls come from the link."""
    exploring = bool(library.datasets)
    return html.Div(
        [
            dcc.Location(id="location", refresh=False),
            dcc.Store(id="library", data=0),
            dcc.Store(id="theme", data=""),
            dcc.Store(id="pins", data=[]),
            dcc.Store(id="link", data=""),
            dcc.Store(id="chart-light"),
            dcc.Store(id="panel", data="explore" if exploring else "new"),
            dcc.Download(id="download"),
            dcc.Interval(id="tick", interval=500, disabled=True),
            html.A("Skip to the chart", href="#chart", className="skip"),
            _header(),
            html.Main(
                [
                    html.Div(
                        _explore(has_measured), id="panel-explore", className="explore", hidden=not exploring
                    ),
                    html.Div(_new_search(), id="panel-new", hidden=exploring),
                ]
            ),
        ]
    )


def _header() -> html.Header:
    return html.Header(
        [
            html.Strong("afd-dse", className="brand"),
            html.Nav(
                [
                    html.Button("Explore", id="to-explore", type="button"),
                    html.Button("New search", id="to-new", type="button"),
                ],
                **aria("Pages"),
            ),
            html.Div(
                [
                    html.Button("Copy link", id="copy", type="button", title="A link to exactly this view"),
                    html.Button("CSV", id="csv", type="button", title="All candidates within the limits"),
                    html.Button(
                        "JSON",
                        id="json",
                        type="button",
                        title="The view, its limits and the pinned deployments",
                    ),
                    html.Button("PNG", id="png", type="button", title="The chart as an image"),
                    html.Button("Dark page", id="theme-button", type="button"),
                ],
                className="tools",
                role="group",
                **aria("Export and appearance"),
            ),
            html.Span(id="copied", role="status", className="dim"),
        ]
    )


def _explore(has_measured: bool) -> list[Any]:
    controls = html.Aside(
        [
            _fieldset("Results", [dcc.Checklist(id="results", options=[], value=[])]),
            _fieldset(
                "Axes",
                [
                    labelled("x", "Horizontal", _axis("x", X_AXES)),
                    labelled("y", "Vertical", _axis("y", Y_AXES)),
                ],
            ),
            _fieldset("Limits", [_limit(name) for name in LIMITS]),
            _fieldset("Price and power", [html.Div(id="rates")]),
            dcc.Checklist(id="front", options=[{"label": "Fronts only", "value": "front"}], value=[]),
            html.Button("Edit this job", id="edit", type="button"),
        ],
        className="controls",
        **aria("Controls"),
    )
    hint = "Click a point to pin it: two pins are compared."
    if has_measured:
        hint += " Hollow points are measured runs with the same model, accelerator and lengths."
    content = html.Div(
        [
            html.P(id="sentence", role="status", className="sentence"),
            html.P(id="warning", role="alert", className="warning", hidden=True),
            html.Div(
                dcc.Graph(id="chart", config=GRAPH_CONFIG, responsive=True, style={"height": "520px"}),
                role="group",
                **aria("Chart of the candidates; the list below pins its points without a mouse"),
            ),
            html.P(id="definition", className="dim"),
            html.P(id="proof", className="dim"),
            labelled(
                "pick",
                "Pin a deployment of the fronts",
                dcc.Dropdown(id="pick", options=[], placeholder="choose …"),
            ),
            html.P(hint, className="dim"),
        ],
        className="content",
    )
    pinned = html.Div(
        dcc.Loading(html.Div(id="details", **LIVE), type="dot", delay_show=300), className="pinned"
    )
    return [controls, content, pinned]


def labelled(name: str, text: str, control: Any) -> html.Div:
    """A control with its label; the page's script connects labels that HTML alone cannot."""
    return html.Div([html.Label(text, htmlFor=name, id=f"{name}-label"), control], className="labelled")


def _fieldset(title: str, children: list[Any]) -> html.Fieldset:
    return html.Fieldset([html.Legend(title), *children])


def _axis(name: str, metrics: tuple[str, ...]) -> dcc.Dropdown:
    options = [
        {"label": METRICS[key].title, "value": key, "title": METRICS[key].definition} for key in metrics
    ]
    return dcc.Dropdown(id=name, options=options, value=metrics[0], clearable=False, searchable=False)


def _limit(name: str) -> html.Div:
    """A slider for the eye and a field for the exact value of one limit."""
    return html.Div(
        [
            html.Label(f"{LIMIT_NAMES[name]} ≤", id=f"slider-{name}-label"),
            dcc.Slider(
                id=f"slider-{name}",
                min=0,
                max=STEPS,
                step=1,
                value=STEPS,
                marks=None,
                updatemode="drag",
                allow_direct_input=False,
            ),
            dcc.Store(id=f"span-{name}"),
            html.Label(
                f"{LIMIT_NAMES[name]} limit in ms; empty is none",
                htmlFor=f"limit-{name}",
                className="hidden-label",
            ),
            dcc.Input(id=f"limit-{name}", type="number", min=0, placeholder="none", debounce=0.4),
            html.Span("ms", className="dim"),
        ],
        className="limit",
    )


def rates(
    known: Mapping[str, tuple[float, float]], prices: Mapping[str, float], powers: Mapping[str, float]
) -> list[Any]:
    """A field for price and power of every accelerator; ``known`` are the usual ones."""
    rows = []
    for name, (usd, watts) in known.items():
        for kind, unit, value, usual in (
            ("price", "$ per GPU hour", prices.get(name, usd), usd),
            ("power", "W per GPU", powers.get(name, watts), watts),
        ):
            place = f"{kind}-{name}"
            rows.append(
                html.Div(
                    [
                        html.Label(f"{name}, {unit}", htmlFor=f"{kind}-{name}", id=f"{place}-label"),
                        dcc.Input(
                            id={"type": kind, "name": name},
                            type="number",
                            min=0,
                            value=value,
                            placeholder=f"{usual:g}",
                            debounce=0.4,
                        ),
                    ],
                    className="labelled rate",
                )
            )
    return rows


def _new_search() -> html.Div:
    groups = (
        ("Model", ("model", "framework")),
        ("Cluster", ("cluster.",)),
        ("Workload", ("workload.", "demand.")),
        ("Limits", ("slo.",)),
        ("Search", ("search.",)),
    )
    return html.Div(
        [
            html.H1("New search"),
            html.P(
                "Fields are checked as you type. The job file says the same and can hold more: edit either."
            ),
            html.Div(
                [
                    html.Form(
                        [
                            _fieldset(title, [_form_field(f) for f in fields() if f.path.startswith(starts)])
                            for title, starts in groups
                        ],
                        id="form",
                        className="form",
                    ),
                    html.Div(
                        [
                            html.Label("Job file (YAML)", htmlFor="job-text"),
                            dcc.Textarea(id="job-text", spellCheck=False, value=""),
                            html.Ul(id="job-problems", role="alert"),
                            html.P(id="job-summary", role="status", className="dim"),
                            html.Div(
                                [
                                    html.Button("Run", id="run", type="button", className="primary"),
                                    html.Button("Cancel", id="cancel", type="button", disabled=True),
                                ],
                                className="tools",
                            ),
                            html.Div(id="progress", role="status"),
                        ],
                        className="job",
                    ),
                ],
                className="search",
            ),
        ]
    )


def _form_field(field: Field) -> html.Div:
    place = {"type": "field", "path": field.path}
    control: Any
    if field.closed:
        control = dcc.Dropdown(
            id=place, options=list(field.choices), value=field.default, clearable=False, searchable=False
        )
    else:
        listed = f"choices-{field.path}" if field.choices else None
        control = dcc.Input(
            id=place,
            type="number" if field.kind == "number" else "text",
            value=field.default,
            debounce=0.3,
            name=field.path,
            list=listed,
        )
    offered = html.Datalist(
        [html.Option(value=choice) for choice in field.choices], id=f"choices-{field.path}"
    )
    return html.Div(
        [
            html.Label(field.label, id=f"label-{field.path}"),
            control,
            html.Small(field.help, className="dim"),
            html.P(id={"type": "error", "path": field.path}, className="error", role="alert"),
            *([offered] if field.choices and not field.closed else []),
        ],
        className="labelled field",
    )
