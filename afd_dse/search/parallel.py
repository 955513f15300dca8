"""Independent tasks on several cores: this process and forked ones, each of which takes the next task."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

Result = TypeVar("Result")


def usable_processes() -> int:
    """Processes worth using here: one inside a process that others started, which may be one of many."""
    return processes_of_one_search() if multiprocessing.parent_process() is None else 1


def processes_of_one_search() -> int:
    """Processes worth using for the only search under way: two where cores and the system allow.

    Forked processes share what is loaded, which spawned ones would load again for longer than a search takes.
    """
    return min(2, _cores()) if sys.platform == "linux" else 1


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_processes(tasks: Sequence[Callable[[], Result]], processes: int) -> list[Result]:
    """Results of ``tasks``, in their order; the longest ones should come first.

    An error of a task is raised. Tasks of a process that died are done here.
    """
    if processes <= 1 or len(tasks) <= 1:
        return [task() for task in tasks]
    context = multiprocessing.get_context("fork")
    taken = context.Value("q", 0)
    # Threads of linear algebra would only wait for each other where every core has a process.
    with threadpool_limits(1, user_api="blas"):
        return _shared(tasks, processes, context, taken)


def _shared(
    tasks: Sequence[Callable[[], Result]], processes: int, context: ForkContext, taken: Any
) -> list[Result]:
    """The results; ``taken`` counts the tasks that some process has begun."""

    def work() -> list[tuple[int, Result]]:
        done: list[tuple[int, Result]] = []
        while True:
            with taken.get_lock():
                number, taken.value = taken.value, taken.value + 1
            if number >= len(tasks):
                return done
            done.append((number, tasks[number]()))

    helpers: list[tuple[Any, Connection]] = []
    try:
        for _ in range(min(processes, len(tasks)) - 1):
            receive, send = context.Pipe(duplex=False)
            helper = context.Process(target=_answer, args=(work, send))
            helper.start()
            send.close()
            helpers.append((helper, receive))
        found = dict(work())
        for helper, receive in helpers:
            found |= _answer_of(receive)
            helper.join()
    finally:
        for helper, _ in helpers:
            helper.kill()
    return [found[number] if number in found else task() for number, task in enumerate(tasks)]


def _answer(work: Callable[[], Any], send: Connection) -> None:
    """What a forked process does: the error of a task, if there is one, is an answer, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        answer = work()
    except Exception as error:
        answer = error
    send.send(answer)


def _answer_of(receive: Connection) -> dict[int, Any]:
    try:
        answer = receive.recv()
    except EOFError:
        return {}
    if isinstance(answer, Exception):
        raise answer
    return dict(answer)
