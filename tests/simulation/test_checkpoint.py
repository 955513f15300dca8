from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.errors import InputError
from afd_dse.simulation.checkpoint import Checkpoint, digest_of
from afd_dse.simulation.plant import Plant
from afd_dse.simulation.simulator import Simulator
from afd_dse.simulation.traffic import Requests
from tests.simulation.test_simulator import plants, requests
from tests.simulation.toys import LinearClock, colocated, traffic


@settings(max_examples=80, deadline=None)
@given(plants(), requests(), st.data())
def test_a_restored_simulation_ends_as_an_uninterrupted_one(
    tmp_path_factory: pytest.TempPathFactory, what: Plant, sent: Requests, data: st.DataObject
) -> None:
    whole = Simulator(what, LinearClock(1e-7), sent)
    whole.run()
    path = tmp_path_factory.mktemp("run") / "checkpoint"
    file = Checkpoint(path, digest_of("job", what, sent))
    first = Simulator(what, LinearClock(1e-7), sent)
    first.run(until=data.draw(st.integers(0, len(sent))))
    file.save(first)
    second = Simulator(what, LinearClock(1e-7), sent)
    assert file.restore(second)
    second.run()
    assert second.state() == whole.state()


def small(seed: int = 0) -> Simulator:
    rng = np.random.default_rng(seed)
    sent = traffic(np.cumsum(rng.exponential(0.1, 20)), rng.integers(1, 99, 20), rng.integers(1, 9, 20))
    return Simulator(colocated(), LinearClock(), sent)


def test_another_simulations_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    one, other = small(0), small(1)
    Checkpoint(path, digest_of("job", one.plant, one.requests)).save(one)
    before = path.read_bytes()
    with pytest.raises(InputError, match="another job, deployment, seed or option"):
        Checkpoint(path, digest_of("job", other.plant, other.requests)).restore(other)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04 cut off"])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not the checkpoint of a simulation"):
        Checkpoint(path, "digest").restore(small())


def test_a_save_leaves_one_file_and_a_missing_folder_is_named(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "checkpoint", "digest").save(small())
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    with pytest.raises(InputError, match="cannot be written"):
        Checkpoint(tmp_path / "none" / "checkpoint", "digest").save(small())


def test_without_a_file_a_simulation_starts_anew(tmp_path: Path) -> None:
    assert not Checkpoint(tmp_path / "checkpoint", "digest").restore(small())
