"""The command ``dashboard``: the interactive page on this machine."""

import sys
from collections.abc import Sequence
from pathlib import Path


def run(results: Sequence[Path], port: int, measured: Path | None, *, browser: bool) -> None:
    """Serve until interrupted. Raises :class:`InputError` for a result, a file or a port that is not usable."""
    from afd_dse.cli.progress import waiting
    from afd_dse.dashboard.app import load_session, serve

    with waiting("reading results"):
        session = load_session(results, measured)

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    serve(session, port, browser=browser, say=say)
