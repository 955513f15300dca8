import numpy as np
import pytest

from afd_dse.cost.columns import ALL_COLUMNS, Candidates
from afd_dse.search import prefill_sample
from afd_dse.search.prefill_sample import sample_prefill
from afd_dse.search.sides import PrefillSide, limits_of, tabulate_decode, tabulate_prefill
from afd_dse.search.space import load_space
from afd_dse.search.supply import Receivers, Supplies
from afd_dse.spec.cells import parse_partition
from tests.search.pairing import combine
from tests.strategies import build, scenario, space

CASE = build(
    "Qwen/Qwen3-30B-A3B-FP8",
    [{"name": "main", "accelerator": "h100", "count": 32}],
    slo={"ttft_ms": 2000, "tpot_ms": 30},
)
PD = parse_partition("PA PF | DA DF")
GRID = load_space("default").whole


def rows(candidates: Candidates) -> list[tuple[float, ...]]:
    return list(map(tuple, np.stack([candidates.number(name) for name in ALL_COLUMNS], axis=1).tolist()))


def best_supply(side: PrefillSide) -> np.ndarray:
    """Largest request rate within 8, 16 and 24 GPUs."""
    supply = Supplies(CASE, side)(limits_of(CASE)[0], Receivers(1, 0, False))
    gpus = supply.gpus_by_pool.sum(axis=1)
    return np.array([supply.rate[gpus <= most].max(initial=0.0) for most in (8, 16, 24)])


def test_a_few_per_cent_of_the_prefill_units_supply_what_all_do() -> None:
    whole = tabulate_prefill(CASE, PD, GRID)
    for seed in range(3):
        side = sample_prefill(CASE, PD, GRID, 25, seed, None)
        assert len(side.candidates) == 25 < 0.04 * len(whole.candidates)
        assert (best_supply(side) >= 0.99 * best_supply(whole)).all()


def test_units_are_distinct_each_evaluated_once_and_drawn_by_the_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluated: list[tuple[float, ...]] = []
    original = prefill_sample.prefill_units

    def counting(case: object, partition: object, candidates: Candidates) -> object:
        evaluated.extend(rows(candidates))
        return original(CASE, PD, candidates)

    monkeypatch.setattr(prefill_sample, "prefill_units", counting)
    one = sample_prefill(CASE, PD, GRID, 60, 1, None)
    assert evaluated == rows(one.candidates)
    assert len(set(evaluated)) == 60 == len(one.units.memory_slack)
    assert rows(sample_prefill(CASE, PD, GRID, 60, 1, None).candidates) == rows(one.candidates)
    assert rows(sample_prefill(CASE, PD, GRID, 60, 2, None).candidates) != rows(one.candidates)


def test_the_columns_of_sampled_units_are_those_of_the_same_units_tabulated() -> None:
    side = sample_prefill(CASE, PD, GRID, 40, 0, None)
    again = prefill_sample.prefill_units(CASE, PD, side.candidates)
    assert np.allclose(side.units.prefill.capacity, again.prefill.capacity)
    assert np.allclose(side.units.prefill.step.seconds, again.prefill.step.seconds)
    assert np.allclose(side.units.memory_slack, again.memory_slack)


def test_units_of_the_start_are_kept() -> None:
    small = GRID.model_copy(update={"gpus": [2, 4], "chunk_tokens": [512, 2048]})
    decode = tabulate_decode(CASE, PD, small, lambda done: None)
    pairs = combine(CASE, PD, Supplies(CASE, tabulate_prefill(CASE, PD, small)), decode, "throughput_per_gpu")
    assert pairs is not None
    side = sample_prefill(CASE, PD, GRID, 20, 0, pairs.candidates)

    def units(candidates: Candidates) -> set[tuple[float, ...]]:
        names = ["prefill_tp", "prefill_dp", "prefill_moe_tp", "prefill_ep", "prefill_micro_batches"]
        columns = [candidates.number(name) for name in [*names, "chunk_tokens"]]
        return set(map(tuple, np.stack(columns, axis=1).tolist()))

    assert units(pairs.candidates) <= units(side.candidates)
    assert len(side.candidates) == 20 + len(units(pairs.candidates))


def test_a_small_grid_is_tabulated_and_an_empty_one_stays_empty() -> None:
    tiny = space(gpus=[1, 2], tp=[1], micro_batches=[1], chunk_tokens=[2048]).whole
    whole = tabulate_prefill(CASE, PD, tiny)
    assert sorted(rows(sample_prefill(CASE, PD, tiny, 500, 0, None).candidates)) == sorted(
        rows(whole.candidates)
    )
    none = space(gpus=[64], ffn_gpus=[64]).whole
    assert len(sample_prefill(CASE, PD, none, 50, 0, None).candidates) == 0


def test_every_pool_has_units_of_its_own() -> None:
    case = scenario("qwen3-30b on h20 and l40s")
    side = sample_prefill(case, PD, GRID, 30, 0, None)
    pools = side.candidates.integer("prefill_attention_pool")
    fits = side.units.memory_slack >= 0.0
    assert set(pools[fits].tolist()) == {0, 1}
