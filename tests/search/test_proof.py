import math

import pytest

from afd_dse.cost.scenario import Scenario
from afd_dse.search.count import deployments
from afd_dse.search.proof import Proof, enumerated, explained, of_all, power
from afd_dse.search.run import search, size_of
from afd_dse.spec.cells import PARTITIONS, Partition, parse_partition
from tests.search.brute_force import everything
from tests.strategies import build, space

SMALL = space(gpus=[1, 2], ffn_gpus=[1, 2], tp=[1, 2], micro_batches=[1], chunk_tokens=[2048])
PD, COLOCATED = parse_partition("PA PF | DA DF"), parse_partition("PA PF DA DF")


def case_of(**sections: object) -> Scenario:
    return build("Qwen/Qwen3-30B-A3B-FP8", [{"name": "main", "accelerator": "h100", "count": 4}], **sections)


def test_an_exact_mode_says_over_how_many_layouts_and_how_many_were_evaluated() -> None:
    proof = Proof("exact", 158_489_319_246, 119_339)
    assert proof.words == "exact over N = 10^11.2 layouts, 119,339 evaluated"


def test_powers_of_ten_stand_for_large_counts_only() -> None:
    assert power(9_999) == "9,999"
    assert power(10_000) == "10^4.0"


def test_a_mode_with_more_evaluations_than_listed_layouts_says_that_loads_lie_between() -> None:
    assert "loads between those listed included" in Proof("exact", 1_440, 4_056).words
    assert "loads between" not in Proof("exact", 1_440, 1_440).words


def test_a_mode_that_is_not_exact_says_why() -> None:
    proof = Proof("sampled", 10**12, 4_000, ("enumerating takes 5,000,000 evaluations, more than 4,000,000",))
    assert proof.words.startswith(
        "sampled from N = 10^12.0 layouts, 4,000 evaluated; not proven: enumerating"
    )


def test_the_whole_answer_is_as_strong_as_its_weakest_mode() -> None:
    exact, bounded, drawn = (
        Proof("exact", 1000, 10),
        Proof("bounded", 10, 10, ("w",)),
        Proof("sampled", 5, 1, ("s",)),
    )
    assert of_all([exact, exact]).kind == "exact"
    assert of_all([exact, bounded]).kind == "bounded"
    total = of_all([exact, drawn, bounded])
    assert (total.kind, total.considered, total.evaluated, total.why) == ("sampled", 1015, 21, ("s", "w"))


def test_an_answer_of_several_kinds_names_the_modes_that_are_not_exact() -> None:
    parts = explained(
        ["a", "b", "c"],
        [Proof("exact", 2000, 10), Proof("sampled", 5, 1, ("why",)), Proof("exact", 3000, 20)],
    )
    assert parts == [
        "exact over N = 5,000 layouts in 2 of 3 modes, 30 evaluated",
        "b: sampled from N = 5 layouts, 1 evaluated; not proven: why",
    ]


@pytest.mark.parametrize(
    ("partition", "sections", "kind"),
    [
        (PD, {"slo": {"ttft_ms": 500, "tpot_ms": 20}}, "exact"),
        (PD, {"slo": {"request_latency_ms": 20_000}}, "bounded"),
        (COLOCATED, {"slo": {"request_latency_ms": 20_000}}, "exact"),
        (PD, {"workload": {"arrival": {"kind": "closed_loop", "concurrency": 16}}}, "bounded"),
        (COLOCATED, {"workload": {"arrival": {"kind": "closed_loop", "concurrency": 16}}}, "bounded"),
    ],
)
def test_a_limit_that_is_met_by_a_shortcut_keeps_an_enumeration_from_being_called_exact(
    partition: Partition, sections: dict[str, object], kind: str
) -> None:
    found = enumerated(case_of(**sections), partition, "throughput_per_gpu", 10, 10)
    assert found.kind == kind
    assert bool(found.why) == (kind != "exact")
    assert found.assumes


def test_the_fewest_gpus_under_a_limit_on_waiting_are_not_proven_where_phases_share() -> None:
    case = case_of(slo={"ttft_ms": 500}, demand={"requests_per_s": 2.0})
    assert enumerated(case, COLOCATED, "fewest_gpus", 10, 10).kind == "bounded"
    assert enumerated(case, COLOCATED, "throughput_per_gpu", 10, 10).kind == "exact"


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
def test_the_size_of_a_space_is_the_number_of_deployments_that_brute_force_lists(
    partition: Partition,
) -> None:
    case = case_of()
    where = space(
        gpus=[1, 2],
        ffn_gpus=[1, 2],
        tp=[1, 2],
        micro_batches=[1],
        chunk_tokens=[512, 2048],
        policies=["chunked"],
    )
    assert deployments(case, where, partition) == len(everything(case, where.whole, partition))


def test_sampled_and_enumerated_searches_of_one_space_state_what_they_have_shown() -> None:
    case = case_of(slo={"ttft_ms": 500, "tpot_ms": 20})
    modes = [("pd", PD), ("colocated", COLOCATED)]
    exact = search(case, SMALL, modes, "throughput_per_gpu", method="exhaustive")
    assert {mode.proof.kind for mode in exact.modes} == {"exact"}
    assert exact.explanation.startswith("exact over N = ")
    drawn = search(case, SMALL, modes, "throughput_per_gpu", method="optuna", trials=20)
    assert {mode.proof.kind for mode in drawn.modes} == {"sampled"}
    assert drawn.modes[0].proof.why == ("sampling was asked for",)
    rows = size_of(case, SMALL, COLOCATED)
    short = SMALL.model_copy(update={"exhaustive_rows": rows - 1})
    forced = search(case, short, modes[1:], "throughput_per_gpu", trials=20).modes[0].proof
    assert forced.why == (f"enumerating takes {rows:,} evaluations, more than {rows - 1:,}",)
    assert math.isclose(forced.considered, drawn.modes[1].proof.considered)
