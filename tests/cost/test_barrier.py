"""Attention ranks that wait for the one with the most KV."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.cost.barrier import kv_excess
from afd_dse.cost.engines import decode_alone
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Scenario
from afd_dse.spec.cells import parse_partition
from afd_dse.spec.load import load_job
from tests.strategies import block, build, layout, scenario, scenario_names, seeds

AFD = parse_partition("PA PF | DA | DF")


def varied(case: Scenario, isl_cv: float, osl_cv: float) -> Scenario:
    return replace(case, workload=replace(case.workload, isl_cv=isl_cv, osl_cv=osl_cv))


def unit(case: Scenario, **columns: float) -> float:
    row = layout(
        case, AFD, np.random.default_rng(1), plain=True, decode_tp=1, decode_micro_batches=2, **columns
    )
    return float(decode_alone(case, AFD, row)[0].step.attention_s[0])


@pytest.mark.parametrize("ranks", [2, 16, 64])
def test_the_busiest_rank_agrees_with_simulated_batches(ranks: int) -> None:
    """Requests of lognormal lengths are drawn as a running batch holds them: by their output, at an even age."""
    case = build(isl={"mean": 1000, "cv": 0.8}, osl={"mean": 500, "cv": 0.6})
    rng, slots, draws = np.random.default_rng(ranks), 64, 400

    def lognormal(mean: float, cv: float, size: tuple[int, ...], weighted: bool) -> np.ndarray:
        sigma = np.sqrt(np.log1p(cv**2))
        # Weighting a lognormal by its value moves its logarithm by one variance.
        mu = np.log(mean) - sigma**2 / 2 + (sigma**2 if weighted else 0.0)
        return rng.lognormal(mu, sigma, size)

    size = (draws, ranks, slots)
    prompts, outputs = lognormal(1000, 0.8, size, False), lognormal(500, 0.6, size, True)
    loads = (prompts + rng.random(size) * outputs).sum(axis=2)
    simulated = loads.max(axis=1).mean() / loads.mean() - 1
    found = kv_excess(case, np.array([float(slots)]), np.array([ranks]))[0]
    # The sum of 64 lognormal loads is still skewed to the right, which a Gaussian leaves out.
    assert found == pytest.approx(simulated, rel=0.12)
    assert case.kv_load[0] == pytest.approx(loads.mean() / slots, rel=0.02)


def test_one_rank_waits_for_nobody() -> None:
    fixed, wild = varied(scenario(), 0.0, 0.0), varied(scenario(), 2.0, 0.0)
    one = {"decode_dp": 1, "batch_size": 32.0}
    assert unit(wild, **one) == pytest.approx(unit(fixed, **one), rel=1e-12)


def test_the_more_lengths_vary_and_the_more_ranks_there_are_the_longer_the_wait() -> None:
    attention = [
        unit(varied(scenario(), cv, 0.0), decode_dp=dp, batch_size=32.0)
        for cv, dp in ((0.0, 8), (0.5, 8), (1.0, 8), (1.0, 64))
    ]
    assert attention == sorted(attention)
    assert attention[0] < attention[-1]


def test_fixed_lengths_leave_the_spread_of_ages() -> None:
    case = build(isl=1, osl=8192)
    assert case.kv_load[1] == pytest.approx(8192**2 / 12, rel=1e-3)
    assert unit(case, decode_dp=32, batch_size=8.0) > 1.01 * unit(case, decode_dp=1, batch_size=8.0)


@settings(max_examples=8)
@given(scenario_names, seeds, st.floats(0.0, 1.5))
def test_a_larger_batch_never_makes_a_step_much_faster(name: str, seed: int, cv: float) -> None:
    """The excess falls with the batch, but the load of the busiest rank grows with it."""
    case = varied(scenario(name), cv, cv)
    rows = block(case, seed, partitions=(AFD,), each=4)
    steps = [
        decode_alone(case, AFD, rows.replace(batch_size=batch))[0].step.seconds
        for batch in (4.0, 16.0, 64.0, 256.0)
    ]
    for smaller, larger in itertools.pairwise(steps):
        # Measured kernels are not strictly monotone.
        assert (larger >= 0.97 * smaller).all()


def test_requests_traced_whole_load_slots_as_they_are_and_not_as_lognormal_ones(tmp_path: Path) -> None:
    # Long prompts with short answers, short prompts with long ones: a slot rarely holds both.
    rng = np.random.default_rng(5)
    prompts = np.where(rng.random(4000) < 0.5, 4000, 200)
    outputs = np.where(prompts == 200, 900, 20)
    path = tmp_path / "requests.csv"
    path.write_text(
        "input_tokens,output_tokens\n" + "\n".join(f"{p},{d}" for p, d in zip(prompts, outputs, strict=True))
    )

    def scenario_of(inputs: Any, outputs: Any) -> Scenario:
        return scenario_from_job(
            load_job(
                {
                    "model": "qwen3-30b-a3b",
                    "cluster": {"pools": [{"name": "main", "accelerator": "h200", "count": 8}]},
                    "workload": {"input_tokens": inputs, "output_tokens": outputs, "prefix_tokens": 64},
                }
            )
        )

    traced, steps = scenario_of({"trace": str(path)}, {"trace": str(path)}), outputs.sum()
    # Every step of every request is seen once: the slots' loads, one by one.
    mean = sum(d * p + d * (d - 1) / 2 for p, d in zip(prompts, outputs, strict=True)) / steps
    assert traced.kv_load[0] == pytest.approx(64 + mean)
    assert traced.decode_context == traced.kv_load[0]
    apart = scenario_of({"trace": str(path)}, float(outputs.mean()))
    assert apart.kv_load[0] > 2.0 * traced.kv_load[0]
