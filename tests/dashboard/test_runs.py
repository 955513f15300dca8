import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import afd_dse
from afd_dse import load_job
from afd_dse.dashboard import runs
from afd_dse.dashboard.app import HOST, Session, server
from afd_dse.dashboard.runs import Run, Searcher
from afd_dse.errors import InputError
from tests.results.examples import SMALL, answer, job


@pytest.fixture
def searcher() -> Iterator[Searcher]:
    found = Searcher()
    yield found
    found.end()


def ended(run: Run, seconds: float = 120.0) -> Run:
    until = time.monotonic() + seconds
    while run.running and time.monotonic() < until:
        run.poll()
        time.sleep(0.05)
    assert not run.running
    return run


def test_a_search_in_a_process_gives_the_answer_of_the_api_and_tells_how_far_it_is(
    searcher: Searcher,
) -> None:
    run = ended(searcher.search(job("TINY").model_dump(mode="json")))
    assert run.error == ""
    assert run.result is not None
    assert run.result.document["best"] == answer("TINY").document["best"]
    assert run.mode.split()[-1] in answer("TINY").document["best_per_mode"]
    assert 0 < run.evaluated <= answer("TINY").document["evaluated"]
    assert len(run.result.candidates) == len(answer("TINY").candidates)


def test_a_file_that_cannot_be_read_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise FileNotFoundError("no such table")

    monkeypatch.setattr(afd_dse, "optimize", fails)
    ours, theirs = multiprocessing.Pipe()
    kind, words = runs._answer(job("TINY").model_dump(mode="json"), theirs)
    assert kind == "error"
    assert "FileNotFoundError: no such table" in words
    assert not ours.poll()


def test_searches_follow_each_other_in_one_process(searcher: Searcher) -> None:
    failed = ended(searcher.search({**SMALL, "model": "no/such-model"}))
    assert "model" in failed.error
    first = multiprocessing.active_children()
    run = ended(searcher.search(job("TINY").model_dump(mode="json")))
    assert multiprocessing.active_children() == first
    assert run.result is not None
    assert failed.result is None


def test_a_search_can_be_ended_and_another_one_begun(searcher: Searcher) -> None:
    others = set(multiprocessing.active_children())
    run = searcher.search(job().model_dump(mode="json"))
    run.cancel()
    assert not run.running
    assert run.error == "cancelled"
    assert set(multiprocessing.active_children()) == others
    assert ended(searcher.search(job("TINY").model_dump(mode="json"))).result is not None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a search has one process")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one core a search has one process")
def test_ending_a_search_ends_the_process_that_shares_it(searcher: Searcher) -> None:
    others = set(multiprocessing.active_children())
    large = load_job(Path(__file__).parents[2] / "examples" / "deepseek-v3_b200x128.yaml")
    run = searcher.search(large.model_dump(mode="json"))
    (process,) = set(multiprocessing.active_children()) - others
    assert process.pid is not None
    until = time.monotonic() + 60.0
    while not (sharing := children(process.pid)) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(sharing) == 1
    run.cancel()
    while set(sharing) & set(processes()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not set(sharing) & set(processes())


def children(parent: int) -> list[int]:
    """Processes that ``parent`` has started and that still run."""
    return [pid for pid, of in processes().items() if of == parent]


def processes() -> dict[int, int]:
    """All processes that run, and who started them."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has just ended
        if state != "Z":
            found[int(stat.parent.name)] = int(parent)
    return found


def test_a_process_that_dies_is_told_and_replaced(searcher: Searcher) -> None:
    others = set(multiprocessing.active_children())
    run = searcher.search(job().model_dump(mode="json"))
    (process,) = set(multiprocessing.active_children()) - others
    process.kill()
    assert "without an answer" in ended(run).error
    assert ended(searcher.search(job("TINY").model_dump(mode="json"))).result is not None


def test_a_port_in_use_is_an_input_error() -> None:
    first = server(Session(), 0)
    try:
        with pytest.raises(InputError, match="--port"):
            server(Session(), first.port)
        assert first.host == HOST
    finally:
        first.server_close()
