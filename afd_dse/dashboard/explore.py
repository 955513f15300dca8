"""What happens when a control of the explorer moves; everything heavy stays on the server."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dash import ALL, MATCH, Dash, Input, Output, State, ctx, html, no_update

from afd_dse.dashboard.chart import limits_words, picture, proof_words, rows_of
from afd_dse.dashboard.data import LIMITS
from afd_dse.dashboard.details import Pinned, details, pinned
from afd_dse.dashboard.layout import STEPS, rates
from afd_dse.dashboard.view import View, default_view, from_query, split_pin, to_query, toggled
from afd_dse.errors import AfdDseError, InputError
from afd_dse.report.metrics import METRICS

if TYPE_CHECKING:
    from afd_dse.dashboard.app import Session

_NAMES = tuple(LIMITS)
_VIEW = (
    Input("results", "value"),
    Input("x", "value"),
    Input("y", "value"),
    *(Input(f"limit-{name}", "value") for name in _NAMES),
    Input("front", "value"),
    Input({"type": "price", "name": ALL}, "value"),
    Input({"type": "power", "name": ALL}, "value"),
    State({"type": "price", "name": ALL}, "id"),
    State({"type": "power", "name": ALL}, "id"),
)


def register(app: Dash, session: "Session") -> None:
    """Connect the controls of the explorer."""
    _restore(app, session)
    _draw(app, session)
    _pin(app, session)
    _export(app, session)
    _in_the_browser(app)


def view_of(
    results: Sequence[str] | None,
    x: str,
    y: str,
    ttft: float | None,
    tpot: float | None,
    latency: float | None,
    front: Sequence[str] | None,
    prices: Sequence[float | None],
    powers: Sequence[float | None],
    price_ids: Sequence[Mapping[str, str]],
    power_ids: Sequence[Mapping[str, str]],
) -> View:
    """The view that the controls describe; an empty price or power is the usual one."""
    limits = dict(zip(_NAMES, (ttft, tpot, latency), strict=True))
    return View(
        tuple(results or ()),
        x,
        y,
        {name: None if value is None else float(value) for name, value in limits.items()},
        bool(front),
        {place["name"]: float(v) for place, v in zip(price_ids, prices, strict=True) if v is not None},
        {place["name"]: float(v) for place, v in zip(power_ids, powers, strict=True) if v},
    )


def _restore(app: Dash, session: "Session") -> None:
    @app.callback(
        Output("results", "options"),
        Output("results", "value"),
        Output("x", "value"),
        Output("y", "value"),
        *(Output(f"span-{name}", "data") for name in _NAMES),
        *(Output(f"limit-{name}", "value") for name in _NAMES),
        Output("front", "value"),
        Output("rates", "children"),
        Output("pins", "data"),
        Input("location", "search"),
        Input("library", "data"),
    )
    def restore(query: str | None, version: int) -> list[Any]:
        """Set all controls from the link; after a new search from its result."""
        library = session.library
        default = default_view(library)
        view = from_query(query or "", default, library)
        if ctx.triggered_id == "library" and version and library.datasets:
            newest = list(library)[-1]
            limits = {name: newest.slo[name] for name in LIMITS}
            view = View((newest.key,), limits=limits, prices=default.prices, powers=default.powers)
        spans = []
        for name in _NAMES:
            low, high = library.span(name)
            spans.append({"low": low, "high": high, "searched": default.limits.get(name)})
        return [
            [{"label": dataset.name, "value": dataset.key} for dataset in library],
            list(view.results),
            view.x,
            view.y,
            *spans,
            *(view.limits.get(name) for name in _NAMES),
            ["front"] if view.front_only else [],
            rates(library.accelerators(), view.prices, view.powers),
            list(view.pins),
        ]


def _draw(app: Dash, session: "Session") -> None:
    @app.callback(
        Output("chart-light", "data"),
        Output("sentence", "children"),
        Output("warning", "children"),
        Output("warning", "hidden"),
        Output("pick", "options"),
        Output("definition", "children"),
        Output("proof", "children"),
        *_VIEW,
    )
    def draw(*controls: Any) -> tuple[Any, ...]:
        """The chart under the controls."""
        view = view_of(*controls)
        found = picture(session.library, view, session.measured)
        options = [{"label": words, "value": key} for key, words in found.options]
        axes = (METRICS[view.x], METRICS[view.y])
        definition = " ".join(f"{metric.title}: {metric.definition}." for metric in axes)
        return (
            found.figure.to_plotly_json(),
            found.sentence,
            found.warning,
            not found.warning,
            options,
            definition,
            proof_words(session.library.chosen(view.results)),
        )

    @app.callback(Output("link", "data"), *_VIEW, Input("pins", "data"))
    def link(*controls: Any) -> str:
        """The link of the view, without what is as usual."""
        *settings, pins = controls
        view = view_of(*settings)
        pinned_too = View(
            view.results,
            view.x,
            view.y,
            view.limits,
            view.front_only,
            view.prices,
            view.powers,
            tuple(pins or ()),
        )
        return to_query(pinned_too, default_view(session.library))


def _pin(app: Dash, session: "Session") -> None:
    @app.callback(
        Output("pins", "data", allow_duplicate=True),
        Output("chart", "clickData"),
        Output("pick", "value"),
        Input("chart", "clickData"),
        Input("pick", "value"),
        Input({"type": "unpin", "key": ALL}, "n_clicks"),
        State("pins", "data"),
        prevent_initial_call=True,
    )
    def pin(clicked: Any, picked: str | None, unpinned: list[int | None], pins: list[str]) -> tuple[Any, ...]:
        """Pin or unpin what was clicked or chosen."""
        trigger = ctx.triggered_id
        if isinstance(trigger, dict) and any(unpinned):
            return [key for key in pins if key != trigger["key"]], no_update, no_update
        key = picked if trigger == "pick" else _clicked(clicked) if trigger == "chart" else None
        if key is None or split_pin(key, session.library) is None:
            return no_update, no_update, no_update
        return toggled(pins, key), None, None

    @app.callback(
        Output("details", "children"),
        Input("pins", "data"),
        Input({"type": "price", "name": ALL}, "value"),
        Input({"type": "power", "name": ALL}, "value"),
        State({"type": "price", "name": ALL}, "id"),
        State({"type": "power", "name": ALL}, "id"),
    )
    def show(pins: list[str], *rated: Any) -> Any:
        """The panel of the pinned deployments."""
        view = view_of((), "", "", None, None, None, (), *rated)
        try:
            return details(_pinned(session, pins, view))
        except AfdDseError as error:
            return [html.P(str(error), className="warning")]


def _clicked(data: Any) -> str | None:
    points = (data or {}).get("points") or [{}]
    key = points[0].get("customdata")
    return key if isinstance(key, str) else None


def _pinned(session: "Session", pins: Sequence[str], view: View) -> list[Pinned]:
    places = [(key, split_pin(key, session.library)) for key in pins]
    return [
        pinned(key, session.library.datasets[place[0]].repriced(view.prices, view.powers), place[1])
        for key, place in places
        if place is not None
    ]


def _export(app: Dash, session: "Session") -> None:
    states = [State(i.component_id, i.component_property) for i in _VIEW]

    @app.callback(
        Output("download", "data"),
        Input("csv", "n_clicks"),
        Input("json", "n_clicks"),
        State("pins", "data"),
        State("link", "data"),
        *states,
        prevent_initial_call=True,
    )
    def export(csv: int | None, as_json: int | None, pins: list[str], link: str, *controls: Any) -> Any:
        """A file of what is seen."""
        view = view_of(*controls)
        if ctx.triggered_id == "csv" and csv:
            text = rows_of(session.library, view).to_csv(index=False)
            return {"content": text, "filename": "afd-dse-candidates.csv", "type": "text/csv"}
        if not as_json:
            return no_update
        try:
            found = [pin.deployment for pin in _pinned(session, pins, view)]
        except InputError as error:
            found = [{"error": str(error)}]
        shown = rows_of(session.library, view)
        on_front = [] if shown.empty else json.loads(shown[shown["pareto"] > 0].to_json(orient="records"))
        document = {
            "link": link,
            "results": [dataset.name for dataset in session.library.chosen(view.results)],
            "limits": {**view.limits, "in_words": limits_words(view.limits)},
            "prices_usd_per_gpu_hour": dict(view.prices),
            "power_w": dict(view.powers),
            "candidates": len(shown),
            "front": on_front,
            "pinned": found,
        }
        text = json.dumps(document, indent=1, ensure_ascii=False)
        return {"content": text, "filename": "afd-dse-view.json", "type": "application/json"}


def _in_the_browser(app: Any) -> None:
    """What needs no server: sliders and their fields, colours, the address, the image."""
    for name in _NAMES:
        app.clientside_callback(
            f"function(a, b, span) {{ return afd.limit('{name}', a, b, span, {STEPS}); }}",
            Output(f"slider-{name}", "value"),
            Output(f"limit-{name}", "value", allow_duplicate=True),
            Input(f"slider-{name}", "value"),
            Input(f"limit-{name}", "value"),
            Input(f"span-{name}", "data"),
            prevent_initial_call=True,
        )
    paint = "function(figure, theme) { return afd.painted(figure, theme); }"
    app.clientside_callback(
        paint, Output("chart", "figure"), Input("chart-light", "data"), Input("theme", "data")
    )
    app.clientside_callback(
        paint,
        Output({"type": "detail", "name": MATCH}, "figure"),
        Input({"type": "detail-light", "name": MATCH}, "data"),
        Input("theme", "data"),
    )
    app.clientside_callback(
        "function(clicks) { return afd.theme(clicks); }",
        Output("theme", "data"),
        Output("theme-button", "children"),
        Input("theme-button", "n_clicks"),
    )
    app.clientside_callback(
        "function(link) { return afd.address(link); }",
        Output("copied", "title"),
        Input("link", "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        "function(clicks) { return clicks ? afd.copied() : ''; }",
        Output("copied", "children"),
        Input("copy", "n_clicks"),
    )
    app.clientside_callback(
        "function(clicks) { if (clicks) afd.image(); return ''; }",
        Output("png", "name"),
        Input("png", "n_clicks"),
    )
    app.clientside_callback(
        "function(panel) { return afd.panel(panel); }",
        Output("panel-explore", "hidden"),
        Output("panel-new", "hidden"),
        Output("to-explore", "className"),
        Output("to-new", "className"),
        Input("panel", "data"),
    )
    app.clientside_callback(
        "function(a, b) { return afd.toPanel(); }",
        Output("panel", "data", allow_duplicate=True),
        Input("to-explore", "n_clicks"),
        Input("to-new", "n_clicks"),
        prevent_initial_call=True,
    )
