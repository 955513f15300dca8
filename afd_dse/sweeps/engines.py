"""Engines: a function applied to tasks somewhere, outcomes in the order in which they arrive. Here: this machine."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")

ATTEMPTS = 3
"""How often a task is tried whose process or machine dies under it."""
# A process that forks while threads hold locks may hang; a fresh interpreter does not.
_CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Lost:
    """What becomes of a task that never came to an end: its process or machine died every time."""

    reason: str


class Engine(Protocol):
    """Where tasks are computed."""

    @property
    def name(self) -> str:
        """What a user calls it."""

    def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[T, R | Lost]]:
        """Apply ``work``, a function of a module, to every task; outcomes as they arrive, each task once.

        A task whose process or machine dies is computed again, up to :data:`ATTEMPTS` times, and the others are not.
        Closing the iterator ends what still runs.
        """


class LocalEngine:
    """Processes of this machine, as many as ``workers`` (absent: as there are cores)."""

    name = "local"

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or _cores()

    def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[T, R | Lost]]:
        """Apply ``work`` to every task in fresh processes, which end when this one does."""
        waiting = deque((task, 1) for task in tasks)
        alive, ours = _CONTEXT.Pipe(duplex=False)
        # NOTE: one process an executor. When a process dies its executor fails as a whole: in a shared one that would
        # end the neighbours' tasks too, and nobody could tell whose fault it was.
        slots = [_executor(alive) for _ in range(min(self.workers, len(tasks)))]
        idle = list(range(len(slots)))
        busy: dict[Future[R], tuple[int, T, int]] = {}
        try:
            while waiting or busy:
                while waiting and idle:
                    slot, (task, attempt) = idle.pop(), waiting.popleft()
                    busy[slots[slot].submit(work, task)] = slot, task, attempt
                for future in wait(busy, return_when=FIRST_COMPLETED).done:
                    slot, task, attempt = busy.pop(future)
                    idle.append(slot)
                    try:
                        outcome: R | Lost = future.result()
                    except BrokenProcessPool:
                        slots[slot].shutdown(wait=False)
                        slots[slot] = _executor(alive)
                        if attempt < ATTEMPTS:
                            waiting.appendleft((task, attempt + 1))
                            continue
                        outcome = Lost(f"its process died {attempt} times, perhaps for want of memory")
                    yield task, outcome
        finally:
            ours.close()  # whoever still computes ends at once
            for executor in slots:
                executor.shutdown(cancel_futures=True)
            alive.close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _executor(alive: Connection) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        max_workers=1, mp_context=_CONTEXT, initializer=_end_with_parent, initargs=(alive,)
    )


def _end_with_parent(alive: Connection) -> None:
    """End this process as soon as the other end of the pipe is closed: by the engine, or by its death."""

    def watch() -> None:
        try:
            alive.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
