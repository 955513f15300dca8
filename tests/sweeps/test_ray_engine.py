"""Ray on this machine: a cluster of two nodes, of which one dies, and a driver that dies."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import afd_dse
from afd_dse.errors import InputError
from afd_dse.sweeps import ray_engine
from afd_dse.sweeps.engines import ATTEMPTS, Lost
from afd_dse.sweeps.ray_engine import RayEngine
from tests.sweeps.small import driver, log, wait_until, written
from tests.sweeps.toys import Toy, counts, gone, play, trace

ray = pytest.importorskip("ray")
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args=NODE)
    yield found
    found.shutdown()


def test_a_node_dies_in_the_middle_and_nothing_is_lost_or_done_twice(cluster: Any, tmp_path: Path) -> None:
    second = cluster.add_node(**{name: value for name, value in NODE.items() if name != "include_dashboard"})
    tasks = [Toy(number, str(tmp_path), held=number >= 3) for number in range(8)]

    def kill() -> None:
        # Both nodes hold a task that waits for our sign, after others have ended.
        wait_until(lambda: len({pid for _, number, pid in trace(tmp_path) if number >= 3}) == 2)
        workers = {pid for _, number, pid in trace(tmp_path) if number >= 3}
        cluster.remove_node(second, allow_graceful=False)
        wait_until(lambda: any(gone(pid) for pid in workers))
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    found = list(RayEngine(address=cluster.address).run(play, tasks))
    killer.join()
    assert dict(found) == {task: task.number**2 for task in tasks}
    assert len(found) == len(tasks)
    # The task that ran on the dead node is all that began twice, and nothing ended twice.
    assert counts(tmp_path, "ended") == Counter(range(8))
    assert counts(tmp_path, "began").total() == 9


def test_a_task_that_kills_every_worker_is_given_up_and_the_others_are_done(
    cluster: Any, tmp_path: Path
) -> None:
    tasks = [Toy(0, str(tmp_path), deadly=99), Toy(1, str(tmp_path)), Toy(2, str(tmp_path), deadly=1)]
    found = {task.number: outcome for task, outcome in RayEngine(address=cluster.address).run(play, tasks)}
    assert (found[1], found[2]) == (1, 4)
    assert isinstance(found[0], Lost)
    assert counts(tmp_path, "began") == {0: ATTEMPTS, 1: 1, 2: 2}


def test_a_driver_is_killed_and_the_next_one_computes_only_what_lacks(cluster: Any, tmp_path: Path) -> None:
    file, out = written(tmp_path), tmp_path / "out"
    first = driver(file, "--engine", "ray", "--address", cluster.address, "--out", out)
    wait_until(lambda: len(log(out)) >= 2 or first.poll() is not None)
    first.kill()
    first.communicate()
    before = len(list((out / "results").glob("*.json")))
    assert 2 <= before < 5
    result = afd_dse.sweep(file, out=out, engine="ray", address=cluster.address)
    assert result.counts["points"] == 5
    assert result.document["computed"] == 5 - before
    assert result.document["reused"] == before
    assert Counter(entry["address"] for entry in log(out)).most_common(1)[0][1] == 1
    assert len(list((out / "results").iterdir())) == 5


def test_without_ray_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(ray_engine.importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"--engine: Ray is not installed.*afd-dse\[ray\]"):
        RayEngine()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:port"])
def test_an_address_where_no_cluster_answers_is_bad_input(tmp_path: Path, address: str) -> None:
    with pytest.raises(InputError, match="--address: no Ray cluster answers"):
        afd_dse.sweep(written(tmp_path), out=tmp_path / "out", engine="ray", address=address)
    assert not (tmp_path / "out").exists()
