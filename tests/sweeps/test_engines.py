import multiprocessing
import os
import signal
import time
from collections import Counter
from pathlib import Path

from afd_dse.sweeps.engines import ATTEMPTS, LocalEngine, Lost
from tests.sweeps.small import wait_until
from tests.sweeps.toys import Toy, counts, gone, play, trace


def toys(folder: Path, count: int, seconds: float = 0.0) -> list[Toy]:
    return [Toy(number, str(folder), seconds) for number in range(count)]


def test_every_task_is_computed_once_and_comes_back_with_its_outcome(tmp_path: Path) -> None:
    tasks = toys(tmp_path, 5)
    found = dict(LocalEngine(2).run(play, tasks))
    assert found == {task: task.number**2 for task in tasks}
    assert counts(tmp_path, "began") == Counter(range(5))


def test_a_task_whose_process_dies_is_computed_again_and_its_neighbours_are_not(tmp_path: Path) -> None:
    tasks = [Toy(0, str(tmp_path), 0.3), Toy(1, str(tmp_path), deadly=1), Toy(2, str(tmp_path))]
    found = dict(LocalEngine(2).run(play, tasks))
    assert sorted(found.values(), key=str) == [0, 1, 4]
    assert counts(tmp_path, "began") == {0: 1, 1: 2, 2: 1}


def test_a_task_that_kills_every_process_is_given_up_and_the_others_are_done(tmp_path: Path) -> None:
    tasks = [Toy(0, str(tmp_path), deadly=99), Toy(1, str(tmp_path))]
    found = {task.number: outcome for task, outcome in LocalEngine(1).run(play, tasks)}
    assert found[1] == 1
    assert isinstance(found[0], Lost)
    assert "3 times" in found[0].reason
    assert counts(tmp_path, "began") == {0: ATTEMPTS, 1: 1}


def _drive(folder: str) -> None:
    for _ in LocalEngine(2).run(play, toys(Path(folder), 2, seconds=60.0)):
        pass


def test_no_process_outlives_an_engine_that_is_killed(tmp_path: Path) -> None:
    driver = multiprocessing.get_context("spawn").Process(target=_drive, args=(str(tmp_path),))
    driver.start()
    wait_until(lambda: len(trace(tmp_path)) == 2)
    assert driver.pid is not None
    os.kill(driver.pid, signal.SIGKILL)
    driver.join()
    workers = [pid for _, _, pid in trace(tmp_path)]
    wait_until(lambda: all(gone(pid) for pid in workers))


def test_closing_an_engine_ends_what_still_runs(tmp_path: Path) -> None:
    tasks = [Toy(0, str(tmp_path)), Toy(1, str(tmp_path), 60.0)]
    began = time.monotonic()
    outcomes = LocalEngine(2).run(play, tasks)
    assert next(outcomes) == (tasks[0], 0)
    outcomes.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < 30.0
