from pathlib import Path

import numpy as np
import pytest

from afd_dse.cost import evaluate as evaluator
from afd_dse.cost.columns import ALL_COLUMNS, Candidates
from afd_dse.cost.scenario import Scenario
from afd_dse.errors import InputError
from afd_dse.search import sampled
from afd_dse.search.pool import Found, pareto_rows, scores
from afd_dse.search.run import search
from afd_dse.search.sampled import SampledSpace, search_sampled
from afd_dse.search.space import load_space
from afd_dse.spec.cells import PARTITIONS, Partition, parse_partition
from tests.strategies import build, scenario, space

SMALL = space(gpus=[1, 2, 4], ffn_gpus=[1, 2], tp=[1, 2], chunk_tokens=[2048, 8192])
PD = parse_partition("PA PF | DA DF")


def case_of(**sections: object) -> Scenario:
    return build(
        "Qwen/Qwen3-30B-A3B-FP8",
        [{"name": "main", "accelerator": "h100", "count": 8}],
        slo={"ttft_ms": 500, "tpot_ms": 20},
        **sections,
    )


CASE = case_of()


def draw(
    partition: Partition, trials: int, seed: int = 1, journal: Path | None = None, case: Scenario = CASE
) -> tuple[Found, int]:
    found, evaluated = search_sampled(
        case,
        SMALL,
        partition,
        "throughput_per_gpu",
        seed=seed,
        trials=trials,
        journal=None if journal is None else str(journal),
        progress=lambda rows: None,
    )
    assert found is not None
    return found, evaluated


def rows(found: Found) -> list[tuple[float, ...]]:
    table = np.stack([found.candidates.number(name) for name in ALL_COLUMNS], axis=1)
    return sorted(map(tuple, table.tolist()))


@pytest.mark.parametrize(
    "partition", [PARTITIONS[0], PD, parse_partition("PA | DA | PF DF")], ids=lambda p: p.text
)
def test_sampling_reaches_nearly_the_best_of_a_small_space(partition: Partition) -> None:
    exact = search(CASE, SMALL, [("mode", partition)], "throughput_per_gpu", method="exhaustive").modes[0]
    value = scores(CASE, "throughput_per_gpu", exact.found)[exact.ranking[0]]
    # One population may settle on a lesser layout (two of five seeds do for one partition, 13 % short): a second one
    # must not settle on it as well.
    assert any(
        scores(CASE, "throughput_per_gpu", draw(partition, 2000, seed)[0]).max() >= 0.95 * value
        for seed in (1, 2)
    )


def test_equal_seeds_draw_equal_candidates_and_others_do_not() -> None:
    one, again, other = draw(PD, 120), draw(PD, 120), draw(PD, 120, seed=2)
    assert rows(one[0]) == rows(again[0])
    assert one[1] == again[1]
    assert rows(one[0]) != rows(other[0])


def test_no_candidate_is_evaluated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, ...]] = []

    def counting(case: Scenario, candidates: Candidates) -> evaluator.Evaluation:
        seen.extend(map(tuple, np.stack([candidates.number(name) for name in ALL_COLUMNS], axis=1).tolist()))
        return evaluator.evaluate(case, candidates)

    monkeypatch.setattr(sampled, "evaluate", counting)
    draw(PARTITIONS[0], 600)
    assert len(seen) == len(set(seen)) > 50


def test_an_interrupted_study_goes_on_from_its_journal(tmp_path: Path) -> None:
    journal = tmp_path / "study.log"
    first, evaluated = draw(PD, 200, journal=journal)
    whole, more = draw(PD, 400, journal=journal)
    assert more > evaluated
    best_first, best_whole = (scores(CASE, "throughput_per_gpu", found).max() for found in (first, whole))
    assert best_whole >= best_first
    # Nothing is left to draw: the same answer again, from the journal alone.
    again, _ = draw(PD, 400, journal=journal)
    assert scores(CASE, "throughput_per_gpu", again).max() == best_whole
    fronts = [rows(found.take(pareto_rows(found))) for found in (again, whole)]
    assert fronts[0] == fronts[1]


def test_a_journal_is_not_continued_for_another_job(tmp_path: Path) -> None:
    journal = tmp_path / "study.log"
    other = case_of(osl=256)
    draw(PD, 100, journal=journal)
    fresh = draw(PD, 100, case=other)
    assert rows(draw(PD, 100, journal=journal, case=other)[0]) == rows(fresh[0])


def test_a_journal_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"search\.storage"):
        draw(PD, 10, journal=tmp_path / "no" / "such" / "folder" / "study.log")


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
def test_every_parameter_set_is_a_candidate_of_the_partition_within_the_cluster(partition: Partition) -> None:
    drawn = SampledSpace(CASE, SMALL, partition)
    rng = np.random.default_rng(0)
    params = [{name: int(rng.integers(size)) for name, size in drawn.ranges.items()} for _ in range(40)]
    candidates = drawn.decode(params)
    assert {PARTITIONS[p] for p in candidates.integer("partition")} == {partition}
    found = evaluator.evaluate(CASE, candidates)
    assert np.isfinite(found.metrics["tpot_s"]).all()
    if partition.is_joint:
        assert (candidates.integer("prefill_replicas") == candidates.integer("decode_replicas")).all()
        units = candidates.replace(prefill_replicas=1, decode_replicas=1)
        fits = evaluator.evaluate(CASE, units).gpus_by_pool <= CASE.pool_counts
        assert (found.gpus_by_pool <= CASE.pool_counts)[fits].all()


def test_two_pools_are_sampled_within_their_budgets() -> None:
    case = scenario("qwen3-30b on h20 and l40s")
    where = space(gpus=[1, 4], ffn_gpus=[1, 4], micro_batches=[2], chunk_tokens=[2048])
    found, _ = search_sampled(
        case, where, PD, "total_throughput", seed=0, trials=200, journal=None, progress=lambda rows: None
    )
    feasible = found.evaluation.feasible
    assert feasible.any()
    assert (found.evaluation.gpus_by_pool[feasible] <= case.pool_counts).all()


def test_a_study_that_starts_from_a_smaller_space_is_never_worse_than_it() -> None:
    case = CASE
    where = load_space("quick").model_copy(update={"start": "quick"})
    partition = parse_partition("PA | DA | PF DF")
    smaller = search(case, load_space("quick"), [("mode", partition)], "throughput_per_gpu").modes[0]
    for trials in (1, 200):
        found = search(
            case, where, [("mode", partition)], "throughput_per_gpu", method="optuna", trials=trials
        ).modes[0]
        assert found.method == "optuna"
        scores = [
            float(one.found.evaluation.metrics["tokens_per_s_per_gpu"][one.ranking[0]])
            for one in (smaller, found)
            if one.found is not None
        ]
        assert scores[1] >= scores[0] > 0


def test_what_a_study_starts_from_is_found_again_among_its_candidates() -> None:
    case = CASE
    for partition in (parse_partition("PA | DA | PF DF"), parse_partition("PA PF | DA | DF")):
        sampled = SampledSpace(case, load_space("quick"), partition)
        rng = np.random.default_rng(0)
        params = [{name: int(rng.integers(size)) for name, size in sampled.ranges.items()} for _ in range(20)]
        candidates = sampled.decode(params)
        again = sampled.decode(sampled.encode(candidates))
        assert len(again) == len(candidates)
        for name, column in candidates.columns.items():
            assert np.array_equal(again.columns[name], column), name


@pytest.mark.parametrize("content", ["my notes\n", "x", "[1, 2]\n", '{"a": 1}\n', "3\n"])
def test_a_file_that_is_no_journal_is_refused_and_left_as_it_was(content: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"search\.storage: this file is not a journal"):
        search(CASE, SMALL, [("pd", PD)], "throughput_per_gpu", method="optuna", trials=4, journal=str(path))
    assert path.read_text(encoding="utf-8") == content
