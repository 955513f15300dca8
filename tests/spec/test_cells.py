import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.errors import InputError
from afd_dse.spec.cells import (
    PARTITIONS,
    Cell,
    Partition,
    Phase,
    parse_partition,
    partition_index,
    phase_of,
)
from tests.strategies import partitions


def named(text: str) -> Partition:
    return parse_partition(text)


def test_there_are_as_many_partitions_as_the_bell_number_of_four() -> None:
    as_sets = {frozenset(frozenset(group) for group in partition.groups) for partition in PARTITIONS}
    assert len(PARTITIONS) == len(as_sets) == 15


def test_every_partition_places_every_cell_in_exactly_one_group() -> None:
    for partition in PARTITIONS:
        assert sorted(cell for group in partition.groups for cell in group) == list(Cell)
        assert all(partition.groups)


def test_the_index_table_agrees_with_the_partitions() -> None:
    for number, partition in enumerate(PARTITIONS):
        assert partition_index(partition) == number


@given(partitions, st.data())
def test_a_partition_is_read_back_from_any_spelling(partition: Partition, data: st.DataObject) -> None:
    groups = data.draw(st.permutations(partition.groups))
    words = []
    for group in groups:
        cells = data.draw(st.permutations(group))
        cased = [data.draw(st.sampled_from([c.name, c.name.lower(), c.name.title()])) for c in cells]
        words.append(data.draw(st.sampled_from([" ", ",", "  ", ", "])).join(cased))
    text = data.draw(st.sampled_from(["|", " | ", "  |"])).join(words)
    assert parse_partition(text) == partition
    assert parse_partition(partition.text) == partition
    assert parse_partition(partition.text).text == partition.text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "PA PF DA",
        "PA PF DA DF DF",
        "PA PF | DA DF |",
        "| PA PF DA DF",
        "PA PF DA DX",
        "PA|PF|DA|DF|PA",
        "PAPFDADF",
    ],
)
def test_a_wrong_partition_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_partition(text, field="search.modes[0]")
    assert caught.value.problems[0].field == "search.modes[0]"
    assert caught.value.problems[0].value == text
    assert caught.value.problems[0].remedy


def test_an_unknown_cell_is_named() -> None:
    with pytest.raises(InputError, match="DX"):
        parse_partition("PA PF DA DX")


def test_joint_partitions_are_those_with_a_group_of_both_phases() -> None:
    separate = {"PA PF | DA DF", "PA PF | DA | DF", "PA | PF | DA DF", "PA | PF | DA | DF"}
    assert {p.text for p in PARTITIONS if not p.is_joint} == separate


def test_a_phase_is_split_when_its_attention_and_ffn_lie_apart() -> None:
    split = named("PA PF | DA | DF")
    assert not split.splits(Phase.PREFILL)
    assert split.splits(Phase.DECODE)


def test_two_partitions_carry_both_phases_in_one_step() -> None:
    assert {p.text for p in PARTITIONS if p.shares_steps} == {"PA PF DA DF", "PA DA | PF DF"}


def test_phases_of_cells() -> None:
    assert [phase_of(cell) for cell in Cell] == [Phase.PREFILL, Phase.PREFILL, Phase.DECODE, Phase.DECODE]
    assert PARTITIONS[partition_index(named("DF | PA DA PF"))].group_of == (0, 0, 0, 1)
