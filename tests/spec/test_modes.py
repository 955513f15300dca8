"""Modes by name, alias and partition text."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.errors import InputError
from afd_dse.spec.cells import PARTITIONS, parse_partition
from afd_dse.spec.modes import mode_name, named_modes, resolve_mode, resolve_modes

NAMED = {
    "colocated": "PA PF DA DF",
    "pd": "PA PF | DA DF",
    "afd": "PA DA | PF DF",
    "pd_afd": "PA PF | DA | DF",
    "pd_afd_both": "PA | PF | DA | DF",
    "shared_experts": "PA | DA | PF DF",
    "attention_offload": "PA PF DF | DA",
    "pd_prefill_afd": "PA | PF | DA DF",
}


def test_the_eight_modes_of_the_field_have_their_partitions() -> None:
    assert {mode.name: parse_partition(mode.partition) for mode in named_modes()} == {
        name: parse_partition(text) for name, text in NAMED.items()
    }


def test_all_are_the_named_ones_and_all_partitions_are_fifteen() -> None:
    assert [name for name, _ in resolve_modes("all")] == list(NAMED)
    every = resolve_modes("all_partitions")
    assert every[:8] == resolve_modes("all")
    assert {text for _, text in every} == {partition.text for partition in PARTITIONS}
    assert len(every) == 15
    assert all(name == text for name, text in every[8:])


@pytest.mark.parametrize("mode", named_modes(), ids=lambda mode: mode.name)
def test_a_mode_is_found_by_name_alias_and_partition(mode) -> None:  # type: ignore[no-untyped-def]
    for spelling in (
        mode.name,
        mode.name.upper(),
        mode.name.replace("_", "-"),
        mode.partition,
        *mode.also_known_as,
    ):
        assert resolve_mode(spelling) == (mode.name, mode.partition)
    assert mode_name(mode.partition) == mode.name


def test_an_unnamed_partition_is_named_by_its_canonical_text() -> None:
    assert resolve_mode("df|da pf|pa") == ("PA | PF DA | DF", "PA | PF DA | DF")


@given(st.sampled_from(PARTITIONS), st.randoms(use_true_random=False), st.sampled_from([" ", "  ", ", "]))
def test_order_case_and_spacing_do_not_matter(partition, random, gap) -> None:  # type: ignore[no-untyped-def]
    groups = [[random.choice([cell.name, cell.name.lower()]) for cell in group] for group in partition.groups]
    for group in groups:
        random.shuffle(group)
    random.shuffle(groups)
    text = random.choice(["|", " | "]).join(gap.join(group) for group in groups)
    assert resolve_mode(text)[1] == partition.text


def test_the_same_mode_twice_is_one_mode() -> None:
    assert resolve_modes(["pd", "DA DF | PA PF", "disagg", "afd"]) == [
        ("pd", NAMED["pd"]),
        ("afd", NAMED["afd"]),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pdd", "unknown mode"),
        ("", "unknown mode"),
        ("PA PF | DA", "every cell"),
        ("PA PF DA DF PA", "every cell"),
        ("PA PF | | DA DF", "every cell"),
        ("PA PF | DA | XX", "unknown cell"),
        ("|", "every cell"),
    ],
)
def test_a_mode_that_is_none_is_an_error_at_its_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_modes(["pd", text])
    (problem,) = caught.value.problems
    assert problem.field == "search.modes[1]"
    assert message in problem.message
    assert problem.remedy


def test_no_spelling_means_two_modes() -> None:
    spellings = [{mode.name, *mode.also_known_as} for mode in named_modes()]
    assert all(not one & other for one, other in itertools.combinations(spellings, 2))
