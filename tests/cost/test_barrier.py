"""Attention ranks that wait for the one with the most KV."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.cost.barrier import busiest_prompts, kv_excess
from afd_dse.cost.engines import decode_alone, prefill_alone
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.phase import Cut, StepLoad, _ranks_with_prompts
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.stations import AttentionShape
from afd_dse.spec.cells import Phase, parse_partition
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
    # The prompts' own moments: two lengths, not a lognormal of the same cv.
    assert traced.prompt_lengths is not None
    assert traced.prompt_lengths.fourth == pytest.approx(np.mean(prompts.astype(float) ** 4))
    assert apart.prompt_lengths is not None
    assert apart.prompt_lengths.fourth > 1.5 * traced.prompt_lengths.fourth


def prefill_shape(pieces: float, piece: float, before: float) -> AttentionShape:
    columns = [np.array([x]) for x in (0, 1, 1, 0.0, 0.0, pieces, piece, before)]
    return AttentionShape(*columns)


@given(
    st.floats(0.05, 2.0),
    st.floats(1.0, 20.0),
    st.floats(16.0, 8192.0),
    st.floats(0.0, 1e5),
    st.integers(1, 64),
)
def test_the_busiest_rank_has_as_many_prompt_tokens_and_attends_to_more(
    cv: float, pieces: float, piece: float, prefix: float, ranks: int
) -> None:
    case = varied(scenario(), cv, 0.0)
    case = replace(case, workload=replace(case.workload, isl=piece, prefix=prefix))
    even = prefill_shape(pieces, piece, prefix)
    busy = busiest_prompts(case, even, np.array([float(ranks)]))
    tokens = [np.asarray(s.prefill_sequences) * np.asarray(s.piece) for s in (even, busy)]
    assert tokens[1] == pytest.approx(tokens[0])
    own = [np.asarray(s.piece_prefix) + np.asarray(s.piece) / 2.0 - prefix for s in (even, busy)]
    assert (own[1] >= (1.0 + cv**2) * own[0] * (1.0 - 1e-6) - 1e-6 * prefix).all()
    assert (np.asarray(busy.piece_prefix) >= prefix * (1.0 - 1e-12) - 1e-6).all()
    assert (np.asarray(busy.prefill_sequences) >= 1.0).all()


def test_equal_prompts_leave_the_shape_as_it_is() -> None:
    even = prefill_shape(2.0, 512.0, 64.0)
    assert busiest_prompts(scenario(), even, np.array([8.0])) is even


def capacity(case: Scenario, **columns: float) -> float:
    """Requests/s of one prefill unit over what it would be for equal prompts."""
    row = layout(
        case,
        PD,
        np.random.default_rng(1),
        plain=True,
        prefill_tp=1,
        prefill_ep=columns["prefill_dp"],
        **columns,
    )
    return float(prefill_alone(case, PD, row)[0].capacity[0])


PD = parse_partition("PA PF | DA DF")


def test_uneven_prompts_cost_prefill_capacity_the_more_the_more_ranks_wait() -> None:
    even, uneven = (build(isl={"mean": 8192, "cv": cv}, osl=64) for cv in (0.0, 1.0))
    left = [
        capacity(uneven, prefill_dp=dp, chunk_tokens=8192) / capacity(even, prefill_dp=dp, chunk_tokens=8192)
        for dp in (1, 4, 16)
    ]
    assert 1.0 > left[0] > left[1] > left[2] > 0.2


def test_a_prompt_that_travels_alone_waits_for_no_other_rank() -> None:
    """The others have nothing to do: a lone prompt's attention does not depend on how many there are."""
    uneven = build(isl={"mean": 4096, "cv": 1.0}, osl=64)
    lone, full = prefill_shape(1.0, 4096.0, 0.0), prefill_shape(2.0, 4096.0, 0.0)
    for ranks in (2, 16):
        cut = Cut.of(
            layout(uneven, PD, np.random.default_rng(1), plain=True, prefill_dp=ranks, prefill_ep=ranks),
            Phase.PREFILL,
        )
        one, every = (
            _ranks_with_prompts(cut, StepLoad(*(np.array([x]) for x in (0.0, 1.0, 4096.0, 0.0, tokens))))
            for tokens in (4096.0 / ranks, 4096.0)
        )
        assert one == pytest.approx(1.0)
        assert every == pytest.approx(ranks)
    assert busiest_prompts(uneven, lone, np.array([1.0])).piece_prefix == pytest.approx(2048.0)
    assert (np.asarray(busiest_prompts(uneven, full, np.array([16.0])).piece_prefix) > 4096.0).all()
