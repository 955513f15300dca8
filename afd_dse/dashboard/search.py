"""What happens on the form of a new search: checking, running, watching, taking the answer over."""

from typing import TYPE_CHECKING, Any

from dash import ALL, Dash, Input, Output, State, ctx, html, no_update

from afd_dse.dashboard.data import Library
from afd_dse.dashboard.form import Value, by_field, checked, form_values, job_text, stored_text
from afd_dse.dashboard.layout import aria
from afd_dse.results.asked import pools_text, slo_text

if TYPE_CHECKING:
    from afd_dse.dashboard.app import Session

_FIELD = {"type": "field", "path": ALL}
_ERROR = {"type": "error", "path": ALL}


def register(app: Dash, session: "Session") -> None:
    """Connect the form."""
    _form(app, session)
    _running(app, session)


def _form(app: Dash, session: "Session") -> None:
    @app.callback(
        Output("job-text", "value"), Input(_FIELD, "value"), State(_FIELD, "id"), State("job-text", "value")
    )
    def write(values: list[Value], places: list[dict[str, str]], text: str) -> Any:
        """The job file of the form."""
        given = {place["path"]: value for place, value in zip(places, values, strict=True)}
        changed = job_text(given, text or "")
        return no_update if text and checked(changed) == checked(text) else changed

    @app.callback(
        Output(_ERROR, "children"),
        Output("job-problems", "children"),
        Output("job-summary", "children"),
        Output("run", "disabled"),
        Input("job-text", "value"),
        State(_ERROR, "id"),
    )
    def check(text: str, places: list[dict[str, str]]) -> tuple[Any, ...]:
        """What is wrong, next to its field."""
        job, problems = checked(text or "")
        at, others = by_field(problems)
        summary = (
            ""
            if job is None
            else f"Ready: {pools_text(job.model_dump(mode='json'))}; {slo_text(job.slo.model_dump())}."
        )
        return (
            [at.get(place["path"], "") for place in places],
            [html.Li(text) for text in others],
            summary,
            job is None,
        )

    @app.callback(
        Output("job-text", "value", allow_duplicate=True),
        Output(_FIELD, "value"),
        Output("panel", "data", allow_duplicate=True),
        Input("edit", "n_clicks"),
        State("results", "value"),
        State(_FIELD, "id"),
        prevent_initial_call=True,
    )
    def edit(clicks: int | None, chosen: list[str], places: list[dict[str, str]]) -> tuple[Any, ...]:
        """Take the job of the first shown result into the form."""
        datasets = session.library.chosen(chosen or [])
        if not clicks or not datasets:
            return no_update, [no_update] * len(places), no_update
        job = datasets[0].document["job"]
        values = form_values(job)
        return stored_text(job), [values[place["path"]] for place in places], "new"


def _running(app: Dash, session: "Session") -> None:
    @app.callback(
        Output("progress", "children"),
        Output("tick", "disabled"),
        Output("cancel", "disabled"),
        Output("library", "data"),
        Output("panel", "data", allow_duplicate=True),
        Input("run", "n_clicks"),
        Input("cancel", "n_clicks"),
        Input("tick", "n_intervals"),
        State("job-text", "value"),
        prevent_initial_call=True,
    )
    def run(started: int | None, cancelled: int | None, ticks: int | None, text: str) -> tuple[Any, ...]:
        """Start, end, or watch the search."""
        if ctx.triggered_id == "run":
            _start(session, text)
        elif ctx.triggered_id == "cancel" and session.run is not None:
            session.run.cancel()
        return _state(session.library, session)


def _start(session: "Session", text: str) -> None:
    """Search for the job of ``text``; one search at a time."""
    job, _ = checked(text)
    if job is None or (session.run is not None and session.run.running):
        return
    session.run = session.searcher.search(job.model_dump(mode="json"))


def _state(library: Library, session: "Session") -> tuple[Any, ...]:
    """Words on the run, whether watching and cancelling are over, and the library's version if it grew."""
    found = session.run
    if found is None:
        return "", True, True, no_update, no_update
    found.poll()
    if found.running:
        words = f"Searching: {found.mode}; {found.evaluated:,} candidates evaluated in {found.seconds:.0f} s."
        return [html.Progress(**aria("search")), " ", words], False, False, no_update, no_update
    session.run = None
    if found.result is None:
        return html.Span(f"No answer: {found.error}.", className="error"), True, True, no_update, no_update
    dataset = library.add(found.result)
    return f"Done in {found.seconds:.0f} s: {dataset.name}.", True, True, len(library.datasets), "explore"
