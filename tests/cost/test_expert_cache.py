from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.architecture.weights import expert_slots, expert_weight_bytes
from afd_dse.cost.expert_cache import (
    KEEPINGS,
    LOADINGS,
    ExpertCache,
    expected_misses,
    freed_bytes,
    with_missing_experts,
)
from afd_dse.cost.expert_load import power_law_popularity, selection_probability
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.phase import Cut, StepLoad, phase_stations, run_step
from afd_dse.cost.scenario import Scenario
from afd_dse.spec.cells import Phase
from afd_dse.spec.load import load_job

TOKENS = np.array([1.0, 4.0, 32.0, 512.0, 8192.0])


def counted(selection: np.ndarray, tokens: int, held: int, keeps: str, steps: int, seed: int) -> float:
    """Mean misses of a cache that is stepped through: needed experts first fill it, then those used before."""
    rng = np.random.default_rng(seed)
    order = list(np.argsort(-selection, kind="stable"))  # used last first
    pinned, missed = set(order[:held]), 0
    for _ in range(steps):
        needed = set(np.flatnonzero(rng.random(len(selection)) < 1.0 - (1.0 - selection) ** tokens).tolist())
        there = pinned if keeps == "hot" else set(order[:held])
        missed += len(needed - there)
        used = list(needed)
        rng.shuffle(used)
        order = used + [expert for expert in order if expert not in needed]
    return missed / steps


@pytest.mark.parametrize("keeps", KEEPINGS)
@pytest.mark.parametrize(
    ("tokens", "exponent", "held"), [(1, 1.0, 16), (4, 0.6, 40), (32, 1.0, 48), (512, 0.0, 30)]
)
def test_misses_are_those_of_a_cache_stepped_through(
    keeps: str, tokens: int, exponent: float, held: int
) -> None:
    selection = selection_probability(power_law_popularity(64, exponent), 4)
    expected = expected_misses(selection, np.array([float(tokens)]), float(held), keeps)[0]  # type: ignore[arg-type]
    assert counted(selection, tokens, held, keeps, 4000, seed=1) == pytest.approx(
        expected, rel=0.05, abs=0.03
    )


@given(st.floats(0.0, 1.5), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_more_room_misses_less_and_more_tokens_miss_more(exponent: float, one: float, other: float) -> None:
    selection = selection_probability(power_law_popularity(32, exponent), 4)
    low, high = sorted((one, other))
    for keeps in KEEPINGS:
        less = expected_misses(selection, TOKENS, 32.0 * high, keeps)
        more = expected_misses(selection, TOKENS, 32.0 * low, keeps)
        assert (less <= more + 1e-9).all()
        assert (np.diff(more) >= -1e-6).all()
        needed = (1.0 - (1.0 - selection) ** TOKENS[:, None]).sum(axis=1)
        assert (more <= needed + 1e-9).all()
        # A step cannot find more than the cache holds.
        assert (more >= needed - 32.0 * low - 1e-6).all()


@given(st.floats(0.0, 1.5), st.floats(0.05, 0.95))
def test_what_was_used_last_is_no_better_a_guess_than_what_is_popular(exponent: float, share: float) -> None:
    selection = selection_probability(power_law_popularity(32, exponent), 4)
    hot = expected_misses(selection, TOKENS, float(round(32.0 * share)), "hot")
    recent = expected_misses(selection, TOKENS, float(round(32.0 * share)), "recent")
    assert (hot <= recent + 1e-6).all()


def scenario() -> Scenario:
    return scenario_from_job(
        load_job(
            {
                "model": "deepseek-ai/DeepSeek-V3",
                "cluster": {"pools": [{"name": "main", "accelerator": "h200_sxm", "count": 64}]},
                "workload": {
                    "input_tokens": 2000,
                    "output_tokens": 300,
                    "expert_distribution": {"kind": "power_law", "exponent": 0.8},
                },
                "slo": {"tpot_ms": 100},
            }
        )
    )


def cut(**changes: int) -> Cut:
    degrees = dict.fromkeys(Cut.__slots__, 1) | {"attention_pool": 0, "ffn_pool": 0, "redundant": 0}
    degrees |= {"dp": 8, "ep": 8, "micro_batches": 3, "expert_policy": 0} | changes
    return Cut(**{name: np.array([value]) for name, value in degrees.items()})


def step_seconds(cache: ExpertCache | None, sequences: float = 32.0, split: bool = False) -> float:
    given_ = scenario()
    one = np.ones(1)
    load = StepLoad(sequences * one, 0.0 * one, 0.0 * one, 0.0 * one, 0.0 * one)
    stations = phase_stations(given_, cut(), Phase.DECODE, split, load)
    if cache is not None:
        stations = with_missing_experts(given_, cache, stations)
    return float(run_step(given_, stations).seconds[0])


@pytest.mark.parametrize("split", [False, True])
def test_the_earlier_experts_are_fetched_the_less_of_it_shows(split: bool) -> None:
    plain = step_seconds(None, split=split)
    times = {loads: step_seconds(ExpertCache(0.9, "hot", loads), split=split) for loads in LOADINGS}
    assert plain <= times["foreseen"] <= times["prefetch"] < times["on_demand"]
    less = step_seconds(ExpertCache(0.5, "hot", "on_demand"), split=split)
    assert less > times["on_demand"]
    assert step_seconds(ExpertCache(1.0), split=split) == pytest.approx(plain, rel=1e-12)


def test_what_is_exposed_is_bytes_over_bandwidth() -> None:
    given_, one = scenario(), np.ones(1)
    load = StepLoad(4096.0 * one, 0.0 * one, 0.0 * one, 0.0 * one, 0.0 * one)
    stations = phase_stations(given_, cut(), Phase.DECODE, False, load)
    fetched = with_missing_experts(given_, ExpertCache(0.5, "hot", "on_demand"), stations)
    kind = next(k for k, entry in enumerate(given_.model.kinds) if hasattr(entry.ffn, "experts"))
    size = float(expert_weight_bytes(given_.model.kinds[kind], given_.model, given_.quantization))
    # With so many tokens every expert is needed: half of the 32 of a rank come over 50 GB/s at 85 %.
    extra = float((fetched.ffn.seconds - stations.ffn.seconds)[0, kind])
    assert extra == pytest.approx(16.0 * size / (50e9 * 0.85), rel=0.01)
    assert stations.ffn.seconds[0, kind] + extra == fetched.ffn.seconds[0, kind]


def test_experts_elsewhere_leave_their_bytes_free() -> None:
    given_, layout = scenario(), cut(redundant=8)
    free = float(freed_bytes(given_, layout, ExpertCache(0.25))[0])
    kinds = [kind for kind in given_.model.kinds if hasattr(kind.ffn, "experts")]
    whole = sum(
        kind.count
        * float(expert_weight_bytes(kind, given_.model, given_.quantization))
        * float(expert_slots(kind.ffn, 8, 8))  # type: ignore[arg-type]
        for kind in kinds
    )
    assert free == pytest.approx(0.75 * whole)
    assert float(freed_bytes(given_, layout, ExpertCache(1.0))[0]) == 0.0
    wide = replace(layout, pp=np.array([2]))
    assert float(freed_bytes(given_, wide, ExpertCache(0.25))[0]) == pytest.approx(free / 2.0)
