from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.trial import FrozenTrial

from afd_dse.cost import evaluate as evaluator
from afd_dse.cost.columns import ALL_COLUMNS, Candidates
from afd_dse.cost.scenario import Scenario
from afd_dse.errors import InputError
from afd_dse.operators.latency import IntArray
from afd_dse.search import sampled, study
from afd_dse.search import trials as trials_
from afd_dse.search.encoding import SampledSpace
from afd_dse.search.moves import gaps, moves, neighbours, priorities
from afd_dse.search.pool import Found, pareto_rows, scores
from afd_dse.search.run import search, size_of
from afd_dse.search.sampled import evaluations_of, search_sampled
from afd_dse.search.space import load_space
from afd_dse.search.trials import DecodeTrials, Deployments, Measured
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


def drawn_at_random(held: SampledSpace, count: int) -> IntArray:
    drawn: IntArray = np.random.default_rng(0).integers(held.sizes, size=(count, len(held.sizes)))
    return drawn


def rows(found: Found) -> list[tuple[float, ...]]:
    table = np.stack([found.candidates.number(name) for name in ALL_COLUMNS], axis=1)
    return sorted(map(tuple, table.tolist()))


def volume(case: Scenario, found: Found) -> float:
    """Area under the front, from the limit on TPOT on."""
    m = found.take(pareto_rows(found)).evaluation.metrics
    speed, throughput = m["tokens_per_s_per_user"], m["tokens_per_s_per_gpu"]
    return float(np.sum((speed - np.append(speed[1:], 1.0 / case.slo.tpot_s)) * throughput))


@pytest.mark.parametrize("partition", PARTITIONS[::3], ids=lambda p: p.text)
def test_sampling_reaches_nearly_the_best_of_a_small_space(partition: Partition) -> None:
    exact = search(CASE, SMALL, [("mode", partition)], "throughput_per_gpu", method="exhaustive").modes[0]
    value = scores(CASE, "throughput_per_gpu", exact.found)[exact.ranking[0]]
    assert scores(CASE, "throughput_per_gpu", draw(partition, 300)[0]).max() >= 0.95 * value


@pytest.mark.parametrize(
    ("text", "gpus", "share", "least"),
    [
        ("PA PF DA DF", 16, 0.02, 1.02),
        ("PA DA | PF DF", 32, 0.02, 0.99),
        ("PA PF DF | DA", 16, 0.02, 1.0),
        ("PA PF | DA | DF", 32, 0.01, 1.0),
    ],
)
def test_a_fiftieth_of_the_evaluations_or_less_spans_the_exact_front(
    text: str, gpus: int, share: float, least: float
) -> None:
    """A share of the layouts under every load of the grid. Sampling finds loads in between, so it may span more."""
    partition = parse_partition(text)
    case = build(
        "Qwen/Qwen3-30B-A3B-FP8",
        [{"name": "main", "accelerator": "h100", "count": gpus}],
        slo={"ttft_ms": 2000, "tpot_ms": 30},
    )
    where = load_space("default")
    exact = search(case, where, [("mode", partition)], "throughput_per_gpu", method="exhaustive").modes[0]
    assert exact.found is not None
    most = int(share * size_of(case, where, partition))
    found, evaluated = search_sampled(
        case,
        where,
        partition,
        "throughput_per_gpu",
        seed=0,
        trials=max(n for n in range(most) if evaluations_of(n, partition) <= most),
        journal=None,
        progress=lambda rows: None,
    )
    assert found is not None
    assert evaluated <= most
    assert volume(case, found) >= least * volume(case, exact.found)


def test_equal_seeds_draw_equal_candidates_and_others_do_not() -> None:
    one, again, other = draw(PD, 120), draw(PD, 120), draw(PD, 120, seed=2)
    assert rows(one[0]) == rows(again[0])
    assert one[1] == again[1]
    assert rows(one[0]) != rows(other[0])


@pytest.mark.parametrize("partition", [PARTITIONS[0], PD], ids=lambda p: p.text)
def test_no_candidate_is_evaluated_twice(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, ...]] = []
    name = "evaluate" if partition.is_joint else "decode_units"
    original = getattr(trials_, name)

    def counting(case: Scenario, *given: Any) -> Any:
        seen.extend(map(tuple, np.stack([given[-1].number(name) for name in ALL_COLUMNS], axis=1).tolist()))
        return original(case, *given)

    monkeypatch.setattr(trials_, name, counting)
    draw(partition, 300)
    assert len(seen) == len(set(seen)) > 50


class StoppedError(Exception):
    """Stands for whatever ends a process."""


@pytest.mark.parametrize("partition", [PARTITIONS[0], PD], ids=lambda p: p.text)
def test_a_study_that_was_interrupted_ends_as_one_that_was_not(
    partition: Partition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    kind = Deployments if partition.is_joint else DecodeTrials
    measure = kind.measure

    def failing(self: Any, block: Candidates) -> Measured:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise StoppedError
        return measure(self, block)

    journal = tmp_path / "study.log"
    with monkeypatch.context() as patched:
        patched.setattr(kind, "measure", failing)
        with pytest.raises(StoppedError):
            draw(partition, 240, journal=journal)
    seen = 0

    def counted(*given: Any) -> FrozenTrial:
        nonlocal seen
        seen += 1
        return study.tell(*given)

    with monkeypatch.context() as patched:
        patched.setattr(sampled, "tell", counted)
        continued = draw(partition, 240, journal=journal)
        again, seen = seen, 0
        whole = draw(partition, 240)
    assert 0 < again < seen
    assert rows(continued[0]) == rows(whole[0])
    assert continued[1] == whole[1]
    # Nothing is left to draw: the same answer again, from the journal alone.
    assert rows(draw(partition, 240, journal=journal)[0]) == rows(whole[0])


def test_more_trials_go_on_from_a_journal_and_never_make_it_worse(tmp_path: Path) -> None:
    journal = tmp_path / "study.log"
    first, evaluated = draw(PD, 100, journal=journal)
    more, total = draw(PD, 200, journal=journal)
    assert total > evaluated
    assert volume(CASE, more) >= volume(CASE, first)


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
    params = drawn_at_random(drawn, 40)
    candidates = drawn.decode(params)
    again = drawn.canonical(params)
    assert np.array_equal(drawn.canonical(again), again)
    same = drawn.decode(again)
    assert all(np.array_equal(same.columns[name], column) for name, column in candidates.columns.items())
    assert {PARTITIONS[p] for p in candidates.integer("partition")} == {partition}
    found = evaluator.evaluate(CASE, candidates)
    assert np.isfinite(found.metrics["tpot_s"]).all()
    if not partition.is_joint:
        assert (candidates.integer("decode_replicas") == 1).all()
    else:
        assert (candidates.integer("prefill_replicas") == candidates.integer("decode_replicas")).all()
        units = candidates.replace(prefill_replicas=1, decode_replicas=1)
        fits = evaluator.evaluate(CASE, units).gpus_by_pool <= CASE.pool_counts
        assert (found.gpus_by_pool <= CASE.pool_counts)[fits].all()


def test_random_draws_take_every_legal_cut_about_as_often_as_any_other() -> None:
    held = SampledSpace(CASE, SMALL, PD)
    start = drawn_at_random(held, 3000)
    found = held.drawn(start, np.random.default_rng(1))
    assert np.array_equal(held.canonical(found), found)
    cut = [number for name, number in held.index.items() if name.startswith("group_0")]
    even, uneven = (
        np.unique(rows[:, cut], axis=0, return_counts=True)[1] for rows in (found, held.canonical(start))
    )
    assert len(even) >= len(uneven) > 3
    assert even.max() < 1.5 * even.min()
    assert uneven.max() > 2.0 * uneven.min()


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
        held = SampledSpace(case, load_space("quick"), partition)
        params = drawn_at_random(held, 20)
        candidates = held.decode(params)
        encoded = held.encode(candidates)
        assert np.array_equal(encoded, held.canonical(params))
        again = held.decode(encoded)
        for name, column in candidates.columns.items():
            assert np.allclose(again.columns[name], column, rtol=1e-12, atol=0), name


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
def test_neighbours_are_other_candidates_of_the_space(partition: Partition) -> None:
    held = SampledSpace(CASE, SMALL, partition)
    steps = moves(held)
    for row in held.canonical(drawn_at_random(held, 5)):
        near = neighbours(held, steps, row)
        assert len(near) > 3
        assert np.array_equal(near, held.canonical(near))
        assert ((near >= 0) & (near < held.sizes)).all()
        assert (near != row).any(axis=1).all()
        assert len(np.unique(near, axis=0)) == len(near)


def test_gaps_are_what_a_front_leaves_open_between_its_points() -> None:
    speed, throughput = np.array([100.0, 60.0, 50.0]), np.array([1.0, 4.0, 10.0])
    assert gaps(speed, throughput).tolist() == pytest.approx([120.0, 60.0, 0.05 * 50.0 * 10.0])
    chance = priorities(gaps(speed, throughput))
    assert chance.sum() == pytest.approx(1.0)
    assert chance.argmax() == 1  # between two large gaps


def test_a_study_ends_when_nothing_new_is_left() -> None:
    tiny = space(
        gpus=[4],
        tp=[4],
        micro_batches=[1],
        chunk_tokens=[2048],
        batch={"first": 2, "last": 4, "per_octave": 1},
    )
    tiny = tiny.model_copy(update={"whole": tiny.whole.model_copy(update={"policies": ["chunked"]})})
    found, evaluated = search_sampled(
        CASE,
        tiny,
        PARTITIONS[0],
        "throughput_per_gpu",
        seed=0,
        trials=5000,
        journal=None,
        progress=lambda n: None,
    )
    assert found is not None
    assert evaluated < 100


@pytest.mark.parametrize("content", ["my notes\n", "x", "[1, 2]\n", '{"a": 1}\n', "3\n"])
def test_a_file_that_is_no_journal_is_refused_and_left_as_it_was(content: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"search\.storage: this file is not a journal"):
        search(CASE, SMALL, [("pd", PD)], "throughput_per_gpu", method="optuna", trials=4, journal=str(path))
    assert path.read_text(encoding="utf-8") == content


def test_first_draws_are_spread_evenly_over_every_parameter() -> None:
    sizes = np.array([3, 10, 60])
    found = sampled._latin_hypercube(sizes, 60, np.random.default_rng(5))
    assert found.shape == (60, 3)
    for column, size in zip(found.T, sizes, strict=True):
        assert np.bincount(column, minlength=size).tolist() == [60 // size] * size
