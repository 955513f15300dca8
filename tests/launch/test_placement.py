from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.errors import InputError
from afd_dse.launch.placement import places_of, read_hosts
from afd_dse.launch.plan import DECODE, PREFILL, Plan
from tests.launch.deployments import plan

SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 16, 24])


def sized(prefill: tuple[int, int], decode: tuple[int, int]) -> Plan:
    """The engines of a PD deployment with other (GPUs, replicas)."""
    base = plan("vllm", "pd")
    sizes = {PREFILL: prefill, DECODE: decode}
    engines = (
        replace(engine, gpus=sizes[engine.role][0], replicas=sizes[engine.role][1]) for engine in base.engines
    )
    return replace(base, engines=tuple(engines))


@given(st.tuples(SIZES, st.integers(1, 9)), st.tuples(SIZES, st.integers(1, 9)))
def test_every_engine_has_its_gpus_and_none_is_taken_twice(
    prefill: tuple[int, int], decode: tuple[int, int]
) -> None:
    found = sized(prefill, decode)
    places = places_of(found)
    taken = [
        (host, gpu) for role in places for place in places[role] for host in place.hosts for gpu in place.gpus
    ]
    assert len(taken) == len(set(taken)) == sum(e.gpus * e.replicas for e in found.engines)
    assert {gpu for _, gpu in taken} <= set(range(8))
    for engine in found.engines:
        assert len(places[engine.role]) == engine.replicas
        assert all(len(place.hosts) == engine.nodes for place in places[engine.role])
    # Engines that share a node are told apart, so that their ports differ.
    numbers = [(host, place.number) for role in places for place in places[role] for host in place.hosts]
    assert len(numbers) == len(set(numbers))


def test_engines_smaller_than_a_node_share_it() -> None:
    places = places_of(sized((2, 4), (4, 2)))
    assert {host for role in places for place in places[role] for host in place.hosts} == {"main-0", "main-1"}


def test_addresses_are_taken_in_their_order_and_too_few_are_named(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("10.0.0.1  # first\n\n10.0.0.2\n")
    hosts = read_hosts(file, ["main"])
    assert hosts == {"main": ["10.0.0.1", "10.0.0.2"]}
    assert places_of(sized((8, 1), (8, 1)), hosts)[DECODE][0].hosts == ("10.0.0.2",)
    with pytest.raises(InputError, match="has 2 addresses of pool main"):
        places_of(sized((8, 2), (8, 1)), hosts)


def test_several_pools_are_named_before_their_addresses(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a 10.0.0.1\nb 10.0.0.2\n")
    assert read_hosts(file, ["a", "b"]) == {"a": ["10.0.0.1"], "b": ["10.0.0.2"]}
    file.write_text("10.0.0.1\nc 10.0.0.2\na 1 2\n")
    with pytest.raises(InputError) as caught:
        read_hosts(file, ["a", "b"])
    assert [problem.field for problem in caught.value.problems] == [f"--hosts line {n}" for n in (1, 2, 3)]
