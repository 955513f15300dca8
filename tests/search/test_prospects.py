import numpy as np
import pytest

from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray
from afd_dse.rows import take_rows
from afd_dse.search.pairs import best_rates
from afd_dse.search.pareto import NEAR
from afd_dse.search.pool import Found, pareto_rows, ranking
from afd_dse.search.prospects import Prospects
from afd_dse.search.sides import DecodeSide, tabulate_decode, tabulate_prefill, units_apart
from afd_dse.search.supply import Supplies
from afd_dse.spec.cells import Partition, Phase, parse_partition
from tests.search.pairing import combine
from tests.strategies import build, space

WHERE = space(
    gpus=[1, 2, 3, 4, 6, 8],
    ffn_gpus=[1, 2, 4],
    tp=[1, 2],
    chunk_tokens=[2048, 8192],
    batch={"first": 0.25, "last": 512, "per_octave": 4},
)
POOLS = [
    {"name": "some", "accelerator": "h100", "count": 12},
    {"name": "others", "accelerator": "h200", "count": 10},
]


def scenario(**slo: float) -> Scenario:
    return build("Qwen/Qwen3-30B-A3B-FP8", POOLS, slo={"ttft_ms": 800, "tpot_ms": 30} | slo)


CASE = scenario()
PARTITIONS = [parse_partition("PA PF | DA DF"), parse_partition("PA PF | DA | DF")]


def supplies_of(case: Scenario, partition: Partition) -> Supplies:
    return Supplies(case, tabulate_prefill(case, partition, WHERE.whole))


def table(
    case: Scenario, partition: Partition, rivals: Prospects | None, *, whole: bool = False
) -> DecodeSide:
    grid = WHERE.grid(partition, Phase.DECODE)
    return tabulate_decode(case, partition, grid, lambda rows: None, whole=whole, rivals=rivals)


def front_of(found: Found | None) -> FloatArray:
    assert found is not None
    m, rows = found.evaluation.metrics, pareto_rows(found)
    return np.column_stack([m["tokens_per_s_per_user"][rows], m["tokens_per_s_per_gpu"][rows]])


def reaches(front: FloatArray, other: FloatArray) -> bool:
    """Whether every point of ``other`` is beaten by one of ``front``, or is as good but for rounding."""
    as_good = (front[None, :, :] >= other[:, None, :] * (1.0 - 1e-7)).all(axis=2)
    return bool(as_good.any(axis=1).all())


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
def test_no_pair_serves_more_per_gpu_than_the_bound(partition: Partition) -> None:
    supplies = supplies_of(CASE, partition)
    side = table(CASE, partition, None, whole=True)
    rates = best_rates(CASE, supplies, units_apart(side.candidates, side.units), "throughput_per_gpu")
    each, gpus = side.units.requests_per_s, side.units.gpus_by_pool.sum(axis=1)
    bound = 1.0 / (gpus / each + supplies.least_gpus_per_request)
    assert (rates > 0.0).sum() > 100
    assert (rates <= bound * (1.0 + 1e-9)).all()
    # It is no idle one either: somewhere prefill and decode match.
    assert (rates / bound).max() > 0.9


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
def test_what_is_left_out_changes_neither_the_front_nor_the_best(partition: Partition) -> None:
    supplies = supplies_of(CASE, partition)
    every = table(CASE, partition, None)
    some = table(CASE, partition, Prospects(CASE, [supplies], "throughput_per_gpu"))
    assert some.evaluated < every.evaluated
    assert len(some.candidates) < len(every.candidates) / 2
    found = [combine(CASE, partition, supplies, side, "throughput_per_gpu") for side in (every, some)]
    assert reaches(front_of(found[1]), front_of(found[0]))
    best = [
        one.evaluation.metrics["tokens_per_s_per_gpu"][ranking(CASE, "throughput_per_gpu", one, 10)]
        for one in found
        if one is not None
    ]
    assert best[1] == pytest.approx(best[0])


def test_what_one_of_the_modes_needs_is_kept() -> None:
    partition = PARTITIONS[0]
    strong, weak = (
        Supplies(CASE, tabulate_prefill(CASE, partition, space(gpus=gpus, tp=[1], chunk_tokens=[2048]).whole))
        for gpus in ([1, 2], [8])
    )
    alone = {
        name: table(CASE, partition, Prospects(CASE, modes, "throughput_per_gpu"))
        for name, modes in {"strong": [strong], "weak": [weak], "both": [strong, weak]}.items()
    }
    for name, supplies in (("strong", strong), ("weak", weak)):
        fronts = [
            front_of(combine(CASE, partition, supplies, alone[which], "throughput_per_gpu"))
            for which in (name, "both")
        ]
        assert reaches(fronts[1], fronts[0])


def test_a_unit_is_hopeless_only_where_what_was_learnt_beats_its_bound() -> None:
    partition = PARTITIONS[0]
    supplies = supplies_of(CASE, partition)
    side = table(CASE, partition, None)
    within = np.flatnonzero((side.units.memory_slack >= 0.0) & (side.units.tpot_s <= CASE.slo.tpot_s))
    units = take_rows(side.units, within)
    prospects = Prospects(CASE, [supplies], "throughput_per_gpu")
    columns = (units.tpot_s, units.requests_per_s, units.gpus_by_pool.sum(axis=1))
    assert not prospects.hopeless(*columns).any()
    prospects.learn(units, lambda rows: side.candidates.take(within[rows]))
    hopeless = prospects.hopeless(*columns)
    assert 0 < hopeless.sum() < len(within)
    rates = best_rates(CASE, supplies, units_apart(side.candidates.take(within), units), "throughput_per_gpu")
    for row in np.flatnonzero(hopeless)[:: max(int(hopeless.sum()) // 50, 1)]:
        assert rates[row] <= NEAR * rates[units.tpot_s <= units.tpot_s[row]].max() * (1.0 + 1e-9)


def test_where_nothing_holds_the_limits_the_whole_table_stays_to_tell_what_is_nearest() -> None:
    case, partition = scenario(tpot_ms=0.01), PARTITIONS[0]
    rivals = Prospects(case, [supplies_of(case, partition)], "throughput_per_gpu")
    with_rivals, without = table(case, partition, rivals), table(case, partition, None)
    assert len(with_rivals.candidates) == len(without.candidates) > 0
