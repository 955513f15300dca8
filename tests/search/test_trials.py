import numpy as np
import pytest

from afd_dse.cost.evaluation import CONSTRAINTS
from afd_dse.search.encoding import SampledSpace
from afd_dse.search.pool import pareto_rows
from afd_dse.search.sides import tabulate_decode, tabulate_prefill
from afd_dse.search.supply import Supplies
from afd_dse.search.trials import DecodeTrials, Deployments, Trials
from afd_dse.spec.cells import PARTITIONS, Partition, Phase, parse_partition
from tests.strategies import build, space

WHERE = space(gpus=[1, 2, 4, 6], ffn_gpus=[1, 2], tp=[1, 2], chunk_tokens=[2048, 8192])
CASE = build(
    "Qwen/Qwen3-30B-A3B-FP8",
    [{"name": "main", "accelerator": "h100", "count": 12}],
    slo={"ttft_ms": 500, "tpot_ms": 20},
)
PD = parse_partition("PA PF | DA DF")


def trials_of(partition: Partition) -> Trials:
    if partition.is_joint:
        return Deployments(CASE, partition, "throughput_per_gpu")
    supplies = Supplies(CASE, tabulate_prefill(CASE, partition, WHERE.grid(partition, Phase.PREFILL)))
    return DecodeTrials(CASE, partition, "throughput_per_gpu", supplies)


@pytest.mark.parametrize("partition", PARTITIONS[::2], ids=lambda p: p.text)
def test_what_a_candidate_would_reach_at_its_own_speed_is_what_it_reaches(partition: Partition) -> None:
    held = SampledSpace(CASE, WHERE, partition)
    rng = np.random.default_rng(0)
    block = held.decode(held.drawn(rng.integers(held.sizes, size=(300, len(held.sizes))), rng))
    trials = trials_of(partition)
    measured = trials.measure(block)
    speed, throughput = trials.reach(block, measured.speed)
    within = (measured.slack[:, CONSTRAINTS.index("TPOT")] >= 1e-9) & (measured.slack >= 0.0).all(axis=1)
    assert within.sum() > 10
    assert speed[within] == pytest.approx(measured.speed[within])
    assert throughput[within] == pytest.approx(measured.throughput[within])
    # The objective is throughput per GPU itself.
    assert measured.score[within] == pytest.approx(measured.throughput[within])
    beyond = measured.slack[:, CONSTRAINTS.index("TPOT")] < -1e-9
    assert not throughput[beyond].any()


def test_a_faster_decode_unit_makes_no_worse_pair() -> None:
    trials = trials_of(PD)
    held = SampledSpace(CASE, WHERE, PD)
    rng = np.random.default_rng(0)
    block = held.decode(held.drawn(rng.integers(held.sizes, size=(200, len(held.sizes))), rng))
    speed = trials.measure(block).speed
    throughputs = [trials.reach(block, factor * speed)[1] for factor in (1.0, 1.2, 1.5)]
    assert (np.diff(throughputs, axis=0) >= -1e-9).all()


def test_all_decode_units_lead_to_the_front_of_the_enumeration() -> None:
    """What units promise one by one is what their pairs do, or less where throttling makes them faster."""
    side = tabulate_decode(CASE, PD, WHERE.whole, lambda done: None, whole=True)
    trials = trials_of(PD)
    measured = trials.measure(side.candidates)
    found, evaluated = trials.found()
    assert found is not None
    assert len(found) <= evaluated < len(side.candidates)
    best = found.take(pareto_rows(found)).evaluation.metrics
    holds = (measured.slack >= 0.0).all(axis=1)
    for speed, throughput in zip(measured.speed[holds], measured.throughput[holds], strict=True):
        as_fast = best["tokens_per_s_per_user"] >= speed * (1.0 - 1e-6)
        assert best["tokens_per_s_per_gpu"][as_fast].max(initial=0.0) >= throughput * (1.0 - 1e-3)


def test_a_unit_beyond_memory_or_without_a_partner_is_not_feasible() -> None:
    trials = trials_of(PD)
    held = SampledSpace(CASE, WHERE, PD)
    every = held.decode(
        np.unique(
            held.drawn(np.zeros((50, len(held.sizes)), dtype=np.int64), np.random.default_rng(0)), axis=0
        )
    )
    huge = trials.measure(every.replace(batch_size=1e6))
    assert (huge.slack < 0.0).any(axis=1).all()
    assert not huge.throughput.any()
    assert np.isinf(huge.score).all()
