"""Studies in files and databases: who does which trials, what is left of a process that dies, what is refused."""

import multiprocessing
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState

from afd_dse.errors import InputError
from afd_dse.search.pool import scores
from afd_dse.search.storage import LEASE_S, Crew, open_storage
from afd_dse.search.trials import DecodeTrials
from tests.search.test_sampled import CASE, PD, draw

SPAWN = multiprocessing.get_context("spawn")
DIRECTIONS = ("maximize",)


# The URL of a database on a server that holds nothing else: its tables are dropped.
SERVER = os.environ.get("AFD_DSE_DATABASE")
KINDS = [
    "journal",
    "sqlite",
    pytest.param("server", marks=pytest.mark.skipif(not SERVER, reason="AFD_DSE_DATABASE names no database")),
]


def reference(folder: Path, kind: str) -> str:
    if kind == "server":
        return emptied(str(SERVER))
    return f"sqlite:///{folder}/study.db" if kind == "sqlite" else str(folder / "study.journal")


def emptied(url: str) -> str:
    engine, tables = sqlalchemy.create_engine(url), sqlalchemy.MetaData()
    tables.reflect(engine)
    tables.drop_all(engine)
    engine.dispose()
    return url


def completed(where: str) -> int:
    """Completed trials of the one study of a storage, its tickets aside."""
    storage = open_storage(where)
    assert storage is not None
    names = [n for n in optuna.get_all_study_names(storage) if not n.endswith("tickets")]
    if not names:
        return 0
    study = optuna.load_study(study_name=names[0], storage=storage)
    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))


def wait_until(true: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def point(x: int) -> optuna.trial.FrozenTrial:
    distributions = {"x": optuna.distributions.IntDistribution(0, 1_000_000)}
    return optuna.trial.create_trial(params={"x": x}, distributions=distributions, values=[float(x)])


@pytest.mark.parametrize("wanted", [1, 97])
def test_processes_that_share_a_study_together_do_exactly_what_is_wanted(wanted: int) -> None:
    storage = InMemoryStorage()
    seen: list[list[int]] = []

    def work(member: int) -> None:
        crew, count, own = Crew(storage, "study", DIRECTIONS, wanted), -1, 0
        while count:
            with crew.batch(3 + 4 * member) as count:
                crew.publish([point(1000 * member + own + i) for i in range(count)])
                own += count
        crew.fetch()
        seen.append([own])
        crew.leave()

    threads = [threading.Thread(target=work, args=(member,)) for member in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    study = optuna.load_study(study_name="study", storage=storage)
    assert len(study.trials) == wanted
    assert len({trial.params["x"] for trial in study.trials}) == wanted
    assert sum(own for (own,) in seen) == wanted


def test_each_sees_the_trials_of_the_others_once_and_never_its_own() -> None:
    storage = InMemoryStorage()
    one, other = (Crew(storage, "study", DIRECTIONS, 10) for _ in range(2))
    assert one.alone
    assert not other.alone
    one.publish([point(1), point(2)])
    other.publish([point(3)])
    assert [[trial.params["x"] for trial in batch] for batch in other.fetch()] == [[1, 2]]
    assert [[trial.params["x"] for trial in batch] for batch in one.fetch()] == [[3]]
    assert one.fetch() == other.fetch() == []


def test_what_one_process_has_in_hand_the_other_leaves_alone() -> None:
    storage = InMemoryStorage()
    one, other = (Crew(storage, "study", DIRECTIONS, 100) for _ in range(2))
    with one.batch(10):
        assert one.claim(["a", "b"]) == set()
        with other.batch(10):
            assert other.claim(["b", "c"]) == {"b"}
            assert one.claim(["c", "d"]) == {"c"}
        assert one.claim(["c"]) == set()
    assert other.claim(["a", "b", "c", "d"]) == set()


def test_part_of_a_batch_does_not_count() -> None:
    storage = InMemoryStorage()
    one = Crew(storage, "study", DIRECTIONS, 10)
    study = optuna.load_study(study_name="study", storage=storage)
    one.publish([point(1), point(2)])
    torn = point(3)
    torn.user_attrs = {"batch": "torn", "size": 2}
    study.add_trial(torn)
    other = Crew(storage, "study", DIRECTIONS, 3)
    assert [[trial.params["x"] for trial in batch] for batch in other.fetch()] == [[1, 2]]
    one.leave()
    with other.batch(10) as count:
        assert count == 1


def test_a_process_of_another_machine_counts_until_its_lease_ends() -> None:
    storage = InMemoryStorage()
    crew = Crew(storage, "study", DIRECTIONS, 10)
    note = {"name": "x", "size": 10, "host": "elsewhere", "pid": 1, "time": time.time() - LEASE_S + 1.0}
    tickets = optuna.load_study(study_name="study tickets", storage=storage)
    tickets.add_trial(optuna.trial.create_trial(state=TrialState.RUNNING, user_attrs=note))
    began = time.monotonic()
    with crew.batch(10) as count:
        assert count == 10
    assert time.monotonic() - began > 0.9


def _hold(where: str, folder: str) -> None:
    """Take a batch and never come back with it."""

    def never(*_: object) -> None:
        Path(folder, "held").touch()
        time.sleep(600.0)

    DecodeTrials.measure = never  # type: ignore[assignment,method-assign]
    draw(PD, 4, journal=where)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_killed_process_held_is_done_by_the_one_that_remains(tmp_path: Path, kind: str) -> None:
    where = reference(tmp_path, kind)
    victim = SPAWN.Process(target=_hold, args=(where, str(tmp_path)))
    victim.start()
    wait_until((tmp_path / "held").exists)
    assert completed(where) == 0
    # All four are held: who comes now waits, and takes over when the holder dies.
    survivor = threading.Thread(target=draw, args=(PD, 4), kwargs={"journal": where})
    survivor.start()
    time.sleep(1.0)
    assert survivor.is_alive()
    assert completed(where) == 0
    victim.kill()
    victim.join()
    survivor.join(timeout=120.0)
    assert not survivor.is_alive()
    assert completed(where) == 4


def _draw(where: str, wanted: int, best: "multiprocessing.Queue[float]") -> None:
    found, _ = draw(PD, wanted, journal=where)
    best.put(float(scores(CASE, "throughput_per_gpu", found).max()))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sqlite"])
def test_two_processes_end_with_the_same_answer_after_the_trials_asked_for(tmp_path: Path, kind: str) -> None:
    where = reference(tmp_path, kind)
    best: multiprocessing.Queue[float] = SPAWN.Queue()
    processes = [SPAWN.Process(target=_draw, args=(where, 150, best)) for _ in range(2)]
    for process in processes:
        process.start()
    answers = [best.get(timeout=120.0) for _ in processes]
    for process in processes:
        process.join()
    assert answers[0] == answers[1] > 0.0
    assert completed(where) == 150


@pytest.mark.parametrize("kind", KINDS)
def test_a_study_goes_on_from_where_it_was(tmp_path: Path, kind: str) -> None:
    where = reference(tmp_path, kind)
    _, first = draw(PD, 20, journal=where)
    assert completed(where) == 20
    _, more = draw(PD, 30, journal=where)
    assert completed(where) == 30
    assert more >= first


def test_a_database_of_something_else_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("create table customers (name text)")
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(InputError, match=r"search\.storage: this database holds other tables"):
        open_storage(f"sqlite:///{tmp_path}/other.db")
    assert (tmp_path / "other.db").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sqlite:///{folder}/notes.txt", "cannot be used: .*not a database"),
        ("{folder}/notes.txt", "this file is not a journal"),
        ("{folder}/no/such/study.journal", "cannot be used"),
        ("nosuch://host/studies", "cannot be used"),
    ],
)
def test_a_storage_that_cannot_be_used_is_bad_input(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "notes.txt").write_text("Remember the milk, the bread and a good deal of other things. " * 40)
    with pytest.raises(InputError, match=rf"search\.storage: {words}"):
        open_storage(text.format(folder=tmp_path))


def test_a_driver_that_is_not_installed_is_named() -> None:
    with pytest.raises(InputError, match=r"its driver is not installed.*install the driver psycopg2"):
        open_storage("postgresql+psycopg2://user@localhost/studies")
