"""Ray as an engine: tasks on all machines of a cluster, with Ray's own fault tolerance."""

import importlib
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from afd_dse.errors import InputError, Problem
from afd_dse.sweeps.engines import ATTEMPTS, Lost

T = TypeVar("T")
R = TypeVar("R")

# Tasks handed over and not yet done, for each CPU of the cluster: enough that none idles, few enough to wait for fast.
_AHEAD = 4
_ANSWER_S = 10.0
_LEAST_AHEAD = 64  # so that a cluster which grows with the queue sees one


class RayEngine:
    """A Ray cluster.

    ``address`` is that of a running one (``auto``: the one on this machine), absent: ``RAY_ADDRESS``, else a new one on
    this machine only. ``workers`` bounds how many tasks run at once; absent: one a CPU of the cluster. Raises
    :class:`InputError` where Ray is not installed, and where nothing answers at the address.
    """

    name = "ray"

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self.workers = workers
        self.address = address or os.environ.get("RAY_ADDRESS") or None
        self._ray = _import_ray()
        _check_answers(self.address)

    def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[T, R | Lost]]:
        """Apply ``work`` to every task as Ray tasks of one CPU, spread over the nodes."""
        ray = self._ray
        waiting = deque(tasks)
        busy: dict[Any, T] = {}
        with self._connected():
            remote = ray.remote(
                num_cpus=1, max_retries=ATTEMPTS - 1, retry_exceptions=False, scheduling_strategy="SPREAD"
            )(work)
            try:
                while waiting or busy:
                    while waiting and len(busy) < self._ahead():
                        task = waiting.popleft()
                        busy[remote.remote(task)] = task
                    done, _ = ray.wait(list(busy), num_returns=1)
                    for reference in done:
                        task = busy.pop(reference)
                        try:
                            outcome: R | Lost = ray.get(reference)
                        except ray.exceptions.RayError as error:
                            outcome = Lost(f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")
                        yield task, outcome
            finally:
                for reference in busy:
                    ray.cancel(reference, force=True)

    def _ahead(self) -> int:
        if self.workers is not None:
            return self.workers
        return max(_LEAST_AHEAD, _AHEAD * int(self._ray.cluster_resources().get("CPU", 1)))

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """A connection to the cluster, or to a new one; one that the caller has already made is used and kept."""
        ray = self._ray
        if ray.is_initialized():
            yield
            return
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address is None:
            # Nothing of a user's work is to be reported to anyone.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options |= {"num_cpus": self.workers, "include_dashboard": False}
        try:
            ray.init(address=self.address or "local", **options)
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            raise _no_answer(self.address, error) from error
        try:
            yield
        finally:
            ray.shutdown()


def _check_answers(address: str | None) -> None:
    """Raise :class:`InputError` where nothing listens at ``host:port``: Ray itself would try for minutes."""
    text = address or ""
    parts = urlsplit(text if "://" in text else f"//{text}")
    try:
        if parts.hostname and parts.port:
            socket.create_connection((parts.hostname, parts.port), timeout=_ANSWER_S).close()
    except (OSError, ValueError) as error:
        raise _no_answer(address, error) from error


def _no_answer(address: str | None, error: Exception) -> InputError:
    message = f"no Ray cluster answers ({' '.join(str(error).split())})"
    remedy = "start one with `ray start --head`, or leave the address out"
    return InputError(Problem("--address", address, message, remedy))


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        remedy = "pip install 'afd-dse[ray]' (in a checkout: pip install -c requirements.lock -e '.[ray]')"
        raise InputError(Problem("--engine", "ray", "Ray is not installed", remedy)) from None
