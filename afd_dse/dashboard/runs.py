"""A search in a process of its own: it reports how far it is, and can be ended."""

import multiprocessing
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from afd_dse.errors import AfdDseError, InputError
from afd_dse.results.result import Result, read_result

# A process that forks a server with threads may hang; a fresh interpreter does not.
_CONTEXT = multiprocessing.get_context("spawn")


@dataclass
class Run:
    """A search under way; ``poll`` brings it up to date."""

    document: dict[str, Any]
    mode: str = "reading tables"
    evaluated: int = 0
    error: str = ""
    result: Result | None = None
    started: float = field(default_factory=time.monotonic)
    _folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="afd-dse-run-"), repr=False
    )
    _process: BaseProcess | None = field(default=None, repr=False)
    _messages: Connection | None = field(default=None, repr=False)

    def start(self) -> None:
        """Begin to search."""
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        self._messages = ours
        self._process = _CONTEXT.Process(
            target=_search, args=(self.document, self._folder.name, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

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
        if self._messages is None or not self.running:
            return
        try:
            while self._messages.poll():
                self._take(self._messages.recv())
        except EOFError:
            if self.running:
                self.error = "the search ended without an answer; it may have run out of memory"

    def _take(self, message: tuple[str, Any]) -> None:
        kind, content = message
        if kind == "progress":
            self.mode, self.evaluated = content[0], self.evaluated + content[1]
        elif kind == "error":
            self.error = content
        else:
            self.result = read_result(self._folder.name)
            self._folder.cleanup()

    def cancel(self) -> None:
        """End it without an answer."""
        if self._process is not None and self._process.is_alive():
            self._process.terminate()
            self._process.join(timeout=5.0)
        if self.running:
            self.error = "cancelled"


def _search(document: dict[str, Any], folder: str, messages: Connection) -> None:
    """What the process does; every message is a pair of its kind and its content."""
    from afd_dse import load_job, optimize
    from afd_dse.results.analysis import analysed
    from afd_dse.results.files import write_result

    try:
        job = load_job(document)
        result = optimize(job, progress=lambda mode, rows: messages.send(("progress", (mode, rows))))
        messages.send(("progress", ("what would change the answer", 0)))
        write_result(analysed(job, result), Path(folder))
        messages.send(("done", None))
    except InputError as error:
        messages.send(("error", "; ".join(str(problem) for problem in error.problems)))
    except AfdDseError as error:
        messages.send(("error", str(error)))
    except Exception as error:  # whatever it is, the page must say so instead of waiting for ever
        messages.send(("error", f"{type(error).__name__}: {error}; this is a fault of the program"))
    finally:
        messages.close()
