"""Searches in a process of their own: they report how far they are, and can be ended."""

import multiprocessing
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from threading import Lock
from typing import Any

from afd_dse.errors import AfdDseError, InputError
from afd_dse.resources import return_freed_memory
from afd_dse.results.result import Result

# A process that forks a server with threads may hang; a fresh interpreter does not.
_CONTEXT = multiprocessing.get_context("spawn")


class Searcher:
    """A process that searches, kept for the next search: modules and operator tables are loaded by then."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._link: Connection | None = None
        self._finalizer: Finalize | None = None
        self._reading = Lock()  # several pages may ask at once

    def search(self, document: dict[str, Any]) -> "Run":
        """Begin to search for the job ``document``; one search at a time."""
        if self._process is None or not self._process.is_alive():
            self._start()
        assert self._link is not None
        self._link.send(document)
        return Run(self)

    def _start(self) -> None:
        self.end()
        self._link, theirs = _CONTEXT.Pipe()
        # NOTE: not a daemon, which could not share a search with a process of its own.
        self._process = _CONTEXT.Process(target=_serve, args=(theirs,))
        self._process.start()
        theirs.close()
        # At the latest before Python waits for its children.
        self._finalizer = Finalize(self, _end, args=(self._process, self._link), exitpriority=1)

    def reports(self) -> list[tuple[str, Any]]:
        """What it has said since it was last asked. Raises :class:`EOFError` when the process has died."""
        found: list[tuple[str, Any]] = []
        link = self._link  # another page may end it meanwhile
        try:
            with self._reading:
                while link is not None and link.poll():
                    found.append(link.recv())
        except (EOFError, OSError) as error:
            if not found:
                raise EOFError from error
        return found

    def end(self) -> None:
        """End the process, and what it does."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._link = self._finalizer = None


def _end(process: BaseProcess, link: Connection) -> None:
    link.close()
    process.terminate()
    process.join(timeout=5.0)
    if process.is_alive():
        process.kill()


@dataclass
class Run:
    """A search under way; ``poll`` brings it up to date."""

    searcher: Searcher
    mode: str = "reading tables"
    evaluated: int = 0
    error: str = ""
    result: Result | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def running(self) -> bool:
        """Whether it has neither ended nor failed."""
        return self.result is None and not self.error

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self.started

    def poll(self) -> None:
        """Take in what the process has reported."""
        if not self.running:
            return
        try:
            for kind, content in self.searcher.reports():
                self._take(kind, content)
        except EOFError:
            self.error = "the search ended without an answer; it may have run out of memory"

    def _take(self, kind: str, content: Any) -> None:
        if kind == "progress":
            self.mode, self.evaluated = content[0], self.evaluated + content[1]
        elif kind == "error":
            self.error = content
        else:
            self.result = content

    def cancel(self) -> None:
        """End it without an answer."""
        if self.running:
            self.searcher.end()
            self.error = "cancelled"


def _serve(link: Connection) -> None:
    """What the process does: a job comes, words on how far it is and the answer go, each with its kind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is meant for the server, which ends this process
    try:
        while True:
            link.send(_answer(link.recv(), link))
            return_freed_memory()
    except (EOFError, OSError):
        return  # the server has gone


def _answer(document: dict[str, Any], link: Connection) -> tuple[str, Any]:
    from afd_dse import load_job, optimize
    from afd_dse.search.parallel import processes_of_one_search

    def progress(mode: str, rows: int) -> None:
        # NOTE: a process that shares the search says so, too: words as few as these are written at once and do not mix.
        # When nobody listens any more it ends.
        link.send(("progress", (mode, rows)))

    try:
        return "answer", optimize(load_job(document), progress=progress, processes=processes_of_one_search())
    except InputError as error:
        return "error", "; ".join(str(problem) for problem in error.problems)
    except AfdDseError as error:
        return "error", str(error)
    except Exception as error:  # whatever it is, the page must say so instead of waiting for ever
        return "error", f"{type(error).__name__}: {error}; this is a fault of the program"
