"""The page as a web application on this machine, and the server that shows it."""

import logging
import socket
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import pandas as pd
from dash import Dash
from werkzeug.serving import BaseWSGIServer, make_server

from afd_dse.dashboard.data import Library
from afd_dse.dashboard.layout import page
from afd_dse.dashboard.runs import Run, Searcher
from afd_dse.errors import InputError, Problem
from afd_dse.report.figures.theme import TO_DARK
from afd_dse.report.html import asset
from afd_dse.results.result import read_result

HOST = "127.0.0.1"


@dataclass
class Session:
    """What the server holds: results, measured runs, what searches, and the search under way."""

    library: Library = field(default_factory=Library)
    measured: pd.DataFrame | None = None
    searcher: Searcher = field(default_factory=Searcher)
    run: Run | None = None


def load_session(results: Sequence[Path], measured: Path | None = None) -> Session:
    """Read results and measured runs. Raises :class:`InputError` that names the file that is not usable."""
    from afd_dse.dashboard.measured import read_measured

    session = Session(measured=None if measured is None else read_measured(measured))
    for path in results:
        session.library.add(read_result(path), path)
    return session


def create_app(session: Session) -> Dash:
    """The application; everything that it needs comes from this machine."""
    from afd_dse.dashboard import explore, search

    app = Dash(
        "afd_dse.dashboard",
        assets_folder=str(files("afd_dse.dashboard").joinpath("assets")),
        title="afd-dse",
        update_title="",
        suppress_callback_exceptions=True,
        serve_locally=True,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    app.index_string = _index()
    app.layout = lambda: page(session.library, session.measured is not None)
    explore.register(app, session)
    search.register(app, session)
    return app


def _index() -> str:
    """The page around the application: its language, and the script that paints charts dark."""
    import json

    colours = json.dumps(dict(TO_DARK))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}'
        f"<script>window.afdDark = {colours};\n{asset('theme.js')}</script>"
        "</head><body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body></html>"
    )


def server(session: Session, port: int) -> BaseWSGIServer:
    """A server on this machine only. Raises :class:`InputError` when the port is taken."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((HOST, port))
    except OSError as error:
        bound.close()
        remedy = "end what uses it, or choose another one with --port (0: any free one)"
        raise InputError(Problem("--port", port, f"cannot be used ({error.strerror})", remedy)) from error
    bound.listen()
    with bound:  # the server has a copy of its own
        number = bound.getsockname()[1]
        return make_server(HOST, number, create_app(session).server, threaded=True, fd=bound.fileno())


def serve(session: Session, port: int, *, browser: bool, say: Callable[[str], None]) -> None:
    """Serve until interrupted; ``say`` is told the address."""
    running = server(session, port)
    address = f"http://{HOST}:{running.port}/"
    say(f"{address} (end with Ctrl+C)")
    if browser:
        webbrowser.open(address)
    try:
        running.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        running.server_close()
        session.searcher.end()
