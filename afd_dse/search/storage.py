"""Studies that outlive a process and that several processes share: Optuna's own storages, and who does which trials."""

import copy
import json
import math
import os
import platform
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from afd_dse.errors import InputError, Problem

FIELD = "search.storage"
LEASE_S = 600.0
"""How long a ticket counts whose process may have died: many times what a batch takes."""
_WAIT_S = 0.2  # between two looks at what other workers are doing
_LOCK_TIMEOUT_S = 60  # SQLite has one writer at a time
_TABLES = {"studies", "version_info", "alembic_version"}  # of Optuna
_TRIES = 10
Directions = Sequence[Literal["minimize", "maximize"]]
# User attributes of a published trial: name and size of its batch.
_BATCH, _SIZE = "batch", "size"


def is_url(reference: str) -> bool:
    """Whether a storage is a database, and not a journal file."""
    return "://" in reference


def open_storage(reference: str | None) -> BaseStorage | None:
    """The storage that ``reference`` names: a journal file, or a database by its URL; None: in memory.

    Raises :class:`InputError` where it cannot be used, and for a file that holds something else, which opening would
    spoil.
    """
    if reference is None:
        return None
    return _database(reference) if is_url(reference) else _journal(reference)


def _journal(reference: str) -> BaseStorage:
    path = Path(reference)
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
        ours = not first or "op_code" in json.loads(first)
    except FileNotFoundError:
        ours = True
    except OSError as error:
        raise _unusable(reference, error, "give a writable file") from error
    except (ValueError, TypeError):
        ours = False
    if not ours:
        remedy = "give a new file, or the journal of an earlier search"
        raise InputError(Problem(FIELD, reference, "this file is not a journal", remedy))
    try:
        return JournalStorage(JournalFileBackend(reference))
    except OSError as error:
        raise _unusable(reference, error, "give a writable file") from error


def _database(reference: str) -> BaseStorage:
    import sqlalchemy

    sqlite = reference.startswith("sqlite")
    options: dict[str, Any] = (
        {"connect_args": {"timeout": _LOCK_TIMEOUT_S}} if sqlite else {"pool_pre_ping": True}
    )
    try:
        engine = sqlalchemy.create_engine(reference, **options)
        try:
            tables = set(sqlalchemy.inspect(engine).get_table_names())
        finally:
            engine.dispose()
        if tables and not tables & _TABLES:
            remedy = "give an empty database, or that of an earlier search"
            raise InputError(Problem(FIELD, reference, "this database holds other tables", remedy))
        for _ in range(_TRIES):
            try:
                return RDBStorage(reference, engine_kwargs=options)
            except sqlalchemy.exc.DatabaseError as error:
                # NOTE: of processes that make the tables of a new database at once, one comes first.
                if "already exists" not in str(error):
                    raise
                time.sleep(_WAIT_S)
        return RDBStorage(reference, engine_kwargs=options)
    except ImportError as error:
        module = error.name or str(error)
        remedy = f"install the driver {module}, or use sqlite:///FILE"
        raise InputError(Problem(FIELD, reference, "its driver is not installed", remedy)) from error
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError, OSError) as error:
        raise _unusable(reference, error, "give a database that answers and may be written") from error


def _unusable(reference: str, error: Exception, remedy: str) -> InputError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return InputError(Problem(FIELD, reference, f"cannot be used: {reason}", remedy))


class Crew:
    """The processes that work on one study, seen from one of them: how many trials it takes, and what others found.

    Each process samples in a study of its own memory and publishes whole batches of completed trials, one write a trial
    (told one by one, a trial of this search is two dozen writes). Before a batch it draws a ticket for its size in a
    second study. Tickets are numbered by the storage, so of several processes that want the last trials all agree who
    gets them: together they complete exactly what is wanted. A process that dies leaves a ticket that no longer counts:
    one of this machine that does not run, or any that is older than :data:`LEASE_S`. Optuna's heartbeat does the same,
    but only where Optuna runs the objective itself, one trial at a time.
    """

    def __init__(self, storage: BaseStorage | None, name: str, directions: Directions, wanted: int) -> None:
        self._wanted, self._done = wanted, 0
        self._known: set[str] = set()
        self._study = self._tickets = None
        self._claims: list[str] = []
        self.alone = True
        """Whether no other process was at work when this one joined."""
        if storage is not None:
            options: dict[str, Any] = {"storage": storage, "load_if_exists": True}
            self._study = optuna.create_study(study_name=name, directions=directions, **options)
            self._tickets = optuna.create_study(study_name=f"{name} tickets", **options)
            self._presence = self._draw(0)
            self.alone = self._present() == 1

    def fetch(self) -> list[list[FrozenTrial]]:
        """Batches of completed trials that this process has neither published nor fetched before, in order."""
        if self._study is None:
            return []
        fresh = {name: batch for name, batch in self._batches().items() if name not in self._known}
        self._known.update(fresh)
        return list(fresh.values())

    @contextmanager
    def batch(self, most: int) -> Iterator[int]:
        """How many trials to evaluate and publish next, at most ``most``; 0 when all that are wanted are completed.

        Where others hold the last of them it waits for them, and takes over from those that die.
        """
        if self._study is None:
            yield min(most, self._wanted - self._done)
            return
        while (left := self._wanted - self._completed()) > 0:
            # The last trials are divided, so that nobody waits long for another.
            mine = self._draw(min(most, math.ceil(left / self._present())))
            room = self._room(mine)
            try:
                if room > 0:
                    yield room
                    return
            finally:
                self._give_back(mine, *self._claims)
                self._claims.clear()
            time.sleep(_WAIT_S * (0.5 + random.random()))
        yield 0

    def claim(self, keys: Sequence[str]) -> set[str]:
        """Say which candidates are about to be evaluated; those of them that other processes are evaluating now.

        Fetch afterwards: what others have completed meanwhile is claimed no longer.
        """
        if self._tickets is None:
            return set()
        # NOTE: everybody writes before reading, so of two that draw the same candidate at once at least one gives way.
        self._claims.append(self._draw(0, claims=list(keys)))
        others = [t.user_attrs for t in self._held() if t.user_attrs["name"] not in self._claims]
        return set(keys) & {key for note in others for key in note.get("claims", ())}

    def publish(self, trials: Sequence[FrozenTrial]) -> None:
        """Make completed trials known to the others."""
        self._done += len(trials)
        if self._study is not None:
            name = uuid.uuid4().hex
            self._known.add(name)
            batch = {_BATCH: name, _SIZE: len(trials)}
            for trial in trials:
                marked = copy.copy(trial)
                marked.user_attrs = trial.user_attrs | batch
                self._study.add_trial(marked)

    def leave(self) -> None:
        """Say that this process works on the study no longer."""
        if self._tickets is not None:
            self._give_back(self._presence)

    def _batches(self) -> dict[str, list[FrozenTrial]]:
        """All whole batches by name; what a process that died has published of another one does not count."""
        assert self._study is not None
        found: dict[str, list[FrozenTrial]] = {}
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            found.setdefault(trial.user_attrs.get(_BATCH, ""), []).append(trial)
        return {
            name: batch
            for name, batch in found.items()
            if len(batch) == batch[0].user_attrs.get(_SIZE, len(batch))
        }

    def _completed(self) -> int:
        return sum(map(len, self._batches().values()))

    def _draw(self, size: int, **more: Any) -> str:
        """Draw a ticket; its name."""
        assert self._tickets is not None
        name = uuid.uuid4().hex
        note = {"name": name, "size": size, "host": platform.node(), "pid": os.getpid(), "time": time.time()}
        self._tickets.add_trial(create_trial(state=TrialState.RUNNING, user_attrs=note | more))
        return name

    def _held(self) -> list[FrozenTrial]:
        """Tickets of processes that are alive, in order."""
        assert self._tickets is not None
        held = self._tickets.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return sorted(
            (ticket for ticket in held if _alive(ticket.user_attrs)), key=lambda ticket: ticket.number
        )

    def _present(self) -> int:
        """Processes at work, this one included."""
        notes = [ticket.user_attrs for ticket in self._held()]
        here = {note["name"] for note in notes if note["size"] == 0 and "claims" not in note}
        return len(here | {self._presence})

    def _room(self, mine: str) -> int:
        """Trials that the ticket ``mine`` admits: what is wanted less what is done and what earlier tickets hold."""
        # NOTE: tickets first. Whoever gives one back meanwhile has published its trials, which then count as done.
        before = 0
        for ticket in self._held():
            if ticket.user_attrs["name"] == mine:
                return min(int(ticket.user_attrs["size"]), self._wanted - self._completed() - before)
            before += int(ticket.user_attrs["size"])
        return 0  # taken for dead; the next ticket is younger

    def _give_back(self, *names: str) -> None:
        assert self._tickets is not None
        for ticket in self._tickets.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if ticket.user_attrs["name"] in names:
                self._tickets.tell(ticket.number, 0.0, skip_if_finished=True)


@contextmanager
def crew_of(reference: str | None, name: str, directions: Directions, wanted: int) -> Iterator[Crew]:
    """A :class:`Crew` on the study ``name`` of a storage, which is left at the end, however the work ends."""
    crew = Crew(open_storage(reference), name, directions, wanted)
    try:
        yield crew
    finally:
        crew.leave()


def _alive(note: Mapping[str, Any]) -> bool:
    if time.time() - note["time"] > LEASE_S and (note["size"] or "claims" in note):
        return False
    if note["host"] != platform.node():
        return bool(time.time() - note["time"] < LEASE_S)
    try:
        os.kill(note["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs, as another user
    return True


__all__ = ["FIELD", "LEASE_S", "Crew", "crew_of", "is_url", "open_storage"]
