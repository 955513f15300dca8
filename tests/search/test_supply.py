"""What prefill supplies, against all units with all numbers of replicas, each solved to the last."""

import numpy as np
import pytest

from afd_dse.cost.evaluate import MAX_UTILIZATION
from afd_dse.cost.scenario import Scenario
from afd_dse.search import supply
from afd_dse.search.sides import limits_of, tabulate_prefill
from afd_dse.search.supply import Receivers, Supplies
from afd_dse.spec.cells import parse_partition
from tests.strategies import build, grid

POOLS = [
    {"name": "some", "accelerator": "h100", "count": 6},
    {"name": "others", "accelerator": "h200", "count": 8},
]
GRID = grid(gpus=[1, 2, 3, 4, 6], ffn_gpus=[1, 2, 3, 4], tp=[1, 2, 4], chunk_tokens=[2048, 8192])


def scenario(scale_out_gb_s: float, ttft_ms: float) -> Scenario:
    return build(
        "Qwen/Qwen3-30B-A3B-FP8",
        isl=4096,
        slo={"ttft_ms": ttft_ms, "tpot_ms": 30},
        cluster={"pools": POOLS, "scale_out_gb_s": scale_out_gb_s},
    )


@pytest.mark.parametrize("text", ["PA PF | DA DF", "PA | PF | DA DF"])
@pytest.mark.parametrize(("scale_out_gb_s", "ttft_ms"), [(50.0, 300.0), (0.5, 1200.0)], ids=["fast", "slow"])
@pytest.mark.parametrize("to", [Receivers(1, 1, False), Receivers(4, 0, True)], ids=["far", "near"])
def test_nothing_serves_more_on_as_many_gpus_than_what_is_supplied(
    text: str, scale_out_gb_s: float, ttft_ms: float, to: Receivers
) -> None:
    case, partition = scenario(scale_out_gb_s, ttft_ms), parse_partition(text)
    side = tabulate_prefill(case, partition, GRID)
    [limit] = limits_of(case)
    found = Supplies(case, side)(limit, to)
    fitting = np.flatnonzero(side.units.memory_slack >= 0.0)
    every = supply._handed_over(case, side, supply._choices(case, side, fitting), to)
    every = supply._held_to(every, [limit])
    low, _ = supply._halved(case, every, supply._bracket(case, every), 40)
    assert ((low > 0.0) & (low < MAX_UTILIZATION)).any()
    served = np.minimum(low * every.capacity, every.links / every.transfer_s)
    supplied = np.minimum(found.rate, found.links / found.transfer_s)
    for gpus, rate in zip(every.gpus_by_pool, served, strict=True):
        within = (found.gpus_by_pool <= gpus).all(axis=1)
        assert rate <= supplied[within].max(initial=0.0) * (1.0 + 2e-9)


def test_limits_solved_at_once_give_what_each_gives_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    case = build(
        "Qwen/Qwen3-30B-A3B-FP8",
        isl=4096,
        slo={"ttft_ms": 300, "tpot_ms": 30, "request_latency_ms": 9000},
        cluster={"pools": POOLS},
    )
    side = tabulate_prefill(case, parse_partition("PA | PF | DA DF"), GRID)
    limits, to = limits_of(case), Receivers(2, 0, False)
    assert len(limits) > 10
    together = Supplies(case, side)
    at_once = [together(limit, to) for limit in limits]
    monkeypatch.setattr(supply, "CHOICES_AT_ONCE", 0)
    one_by_one = Supplies(case, side)
    sizes = set()
    for limit, found in zip(limits, at_once, strict=True):
        alone = one_by_one(limit, to)
        sizes.add(len(found.rate))
        for name in supply.Supply.__slots__:
            np.testing.assert_array_equal(getattr(found, name), getattr(alone, name))
    assert len(sizes) > 1
