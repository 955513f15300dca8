"""The attention barrier against closed forms, published values and simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from afd_dse.cost.imbalance import (
    LengthMoments,
    attended_growth,
    attended_moments,
    barrier_overhead,
    expected_max,
    gaussian_maximum,
    kv_load_moments,
    lognormal_maximum,
    node_discrete_efficiency,
    optimal_attention_ratio,
    paired_kv_load_moments,
)

# arXiv 2601.21351: prompts of 100 tokens, geometric outputs of 500.
PROMPT, OUTPUT = LengthMoments.fixed(100.0), LengthMoments.geometric(500.0, least=0)


def test_the_published_load_of_a_slot_is_prompt_plus_mean_output() -> None:
    mean, _ = kv_load_moments(PROMPT, OUTPUT)
    assert mean == pytest.approx(600.0, rel=1e-12)


def test_the_published_barrier_overheads_come_out() -> None:
    mean, variance = kv_load_moments(PROMPT, OUTPUT)
    overhead = barrier_overhead(mean, variance, 256.0, np.array([2, 4, 8, 16, 32]))
    assert 100 * overhead == pytest.approx([2.9, 5.4, 7.4, 9.3, 10.8], rel=0.05)


def test_the_published_ratios_come_out() -> None:
    ratio = optimal_attention_ratio(
        600.0,
        np.array([128.0, 256.0, 512.0]),
        attention_slope=0.019,
        ffn_slope=1.0,
        intercept_difference=-548.6,
    )
    assert ratio == pytest.approx([7.1, 9.3, 10.3], rel=0.02)


def test_the_published_node_discrete_efficiency_comes_out() -> None:
    assert node_discrete_efficiency(5, 1, 0.8) == pytest.approx(0.96, abs=0.005)


@pytest.mark.parametrize(
    ("mean", "ranks"), [(0.5641895835, 2), (0.8462843753, 3), (1.5387527308, 10), (2.5075936356, 100)]
)
def test_the_maximum_of_gaussians_has_its_tabulated_mean(mean: float, ranks: int) -> None:
    # Harter (1961), expected values of normal order statistics.
    assert gaussian_maximum(ranks) == pytest.approx(mean, abs=1e-9)


def test_the_maximum_of_thousands_agrees_with_simulation() -> None:
    drawn = np.random.default_rng(1).standard_normal((4000, 2048)).max(axis=1)
    assert gaussian_maximum(2048) == pytest.approx(drawn.mean(), abs=4 * drawn.std() / np.sqrt(len(drawn)))


def test_columns_of_ranks_keep_their_shape_and_order() -> None:
    ranks = np.array([[1, 64], [8, 1]])
    found = gaussian_maximum(ranks)
    assert found.shape == (2, 2)
    assert found[0, 0] == pytest.approx(0.0, abs=1e-12)
    assert found[0, 1] > found[1, 0] > found[1, 1]
    assert expected_max(np.full(2, 5.0), np.array([0.0, 2.0]), np.array([64, 1])) == pytest.approx([5.0, 5.0])


def _stationary_loads(prompts: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """The load of every step of every request: what a slot that is always refilled holds over time."""
    ages = np.concatenate([np.arange(d) for d in outputs])
    return np.repeat(prompts, outputs) + ages


@pytest.mark.parametrize("kind", ["fixed", "geometric", "geometric from 0", "lognormal", "empirical"])
def test_moments_agree_with_a_slot_that_is_simulated_step_by_step(kind: str) -> None:
    rng = np.random.default_rng(7)
    requests = 200_000
    prompts = np.round(rng.lognormal(5.0, 0.5, requests))
    output = {
        "fixed": np.full(requests, 40),
        "geometric": rng.geometric(1 / 40, requests),
        "geometric from 0": rng.geometric(1 / 41, requests) - 1,
        # Rounding a continuous length adds a twelfth of a token's variance: invisible here.
        "lognormal": np.round(rng.lognormal(np.log(40) - 0.125, 0.5, requests)).astype(int),
        "empirical": rng.choice([1, 10, 200], requests),
    }[kind]
    moments = {
        "fixed": LengthMoments.fixed(40.0),
        "geometric": LengthMoments.geometric(40.0),
        "geometric from 0": LengthMoments.geometric(40.0, least=0),
        "lognormal": LengthMoments.lognormal(40.0, np.sqrt(np.expm1(0.25))),
        "empirical": LengthMoments.empirical(output),
    }[kind]
    mean, variance = kv_load_moments(LengthMoments.empirical(prompts), moments)
    loads = _stationary_loads(prompts, output)
    assert mean == pytest.approx(loads.mean(), rel=0.01)
    assert np.sqrt(variance) == pytest.approx(loads.std(), rel=0.02)


def test_lengths_seen_together_keep_their_correlation() -> None:
    rng = np.random.default_rng(3)
    outputs = rng.integers(1, 300, 5000)
    prompts = 1000.0 - 3.0 * outputs
    mean, variance = paired_kv_load_moments(prompts, outputs)
    loads = _stationary_loads(prompts, outputs)
    assert mean == pytest.approx(loads.mean(), rel=1e-12)
    assert variance == pytest.approx(loads.var(), rel=1e-9)
    apart, _ = kv_load_moments(LengthMoments.empirical(prompts), LengthMoments.empirical(outputs))
    assert mean < apart


def test_the_barrier_agrees_with_simulated_ranks() -> None:
    rng = np.random.default_rng(11)
    ranks, slots, draws = 8, 64, 3000
    # A geometric output's stationary age is geometric too, from 0.
    loads = 100 + rng.geometric(1 / 501, (draws, ranks, slots)) - 1
    busiest = loads.sum(axis=2).max(axis=1)
    mean, variance = kv_load_moments(PROMPT, OUTPUT)
    overhead = barrier_overhead(mean, variance, slots, ranks)
    assert slots * mean * (1 + overhead) == pytest.approx(busiest.mean(), rel=0.01)


@given(st.floats(1, 1e5), st.floats(0, 3), st.floats(1, 1e4), st.floats(0, 3))
def test_a_slot_holds_at_least_the_prompt_and_varies_more_with_either_length(
    isl: float, isl_cv: float, osl: float, osl_cv: float
) -> None:
    mean, variance = kv_load_moments(
        LengthMoments.lognormal(isl, isl_cv), LengthMoments.lognormal(osl, osl_cv)
    )
    assert mean >= isl + (osl - 1) / 2 - 1e-6 * mean
    _, calmer = kv_load_moments(LengthMoments.fixed(isl), LengthMoments.lognormal(osl, osl_cv))
    assert variance >= calmer - 1e-6 * mean**2


@given(st.integers(1, 3000), st.integers(1, 512), st.floats(1, 1e5), st.floats(0, 1e9))
@settings(max_examples=50)
def test_more_ranks_wait_longer_and_more_slots_average_out(
    ranks: int, slots: int, mean: float, variance: float
) -> None:
    here = barrier_overhead(mean, variance, slots, ranks)
    assert here >= -1e-12
    assert barrier_overhead(mean, variance, slots, ranks + 1) >= here - 1e-12
    assert barrier_overhead(mean, variance, slots * 2, ranks) <= here + 1e-12


@given(st.integers(1, 64), st.integers(1, 32), st.floats(0.01, 1.0))
def test_whole_nodes_lose_no_less_than_the_continuous_rebalancing(n_a: int, n_f: int, sigma: float) -> None:
    efficiency = float(node_discrete_efficiency(n_a, n_f, sigma))
    continuous = sigma * (n_a + n_f) / (sigma * n_a + n_f)
    assert sigma - 1e-9 <= efficiency <= continuous + 1e-9
    assert node_discrete_efficiency(n_a, n_f, 1.0) == pytest.approx(1.0)


def attended_in_windows(lengths: np.ndarray, tokens: float) -> np.ndarray:
    """What each ``tokens`` in a row of a long queue of prompts attend to in their own prompts: ∫ age."""
    ends = np.cumsum(lengths)
    cut = np.arange(0.0, ends[-1], tokens)
    prompt = np.searchsorted(ends, cut, side="right")
    cut, prompt = cut[prompt < len(lengths)], prompt[prompt < len(lengths)]
    before = np.concatenate([[0.0], np.cumsum(lengths**2 / 2.0)])
    return np.diff(before[prompt] + (cut - (ends - lengths)[prompt]) ** 2 / 2.0)


def drawn_lengths(kind: str, count: int) -> tuple[np.ndarray, LengthMoments]:
    rng = np.random.default_rng(3)
    if kind == "geometric":
        return rng.geometric(1.0 / 300.0, count).astype(float), LengthMoments.geometric(300.0)
    if kind == "empirical":
        seen = np.array([100.0, 200.0, 200.0, 900.0])
        return rng.choice(seen, count), LengthMoments.empirical(seen)
    cv = float(kind)
    sigma = np.sqrt(np.log1p(cv**2))
    lengths = rng.lognormal(np.log(300.0) - sigma**2 / 2.0, sigma, count)
    return lengths, LengthMoments.lognormal(300.0, cv)


@pytest.mark.parametrize("kind", ["0.3", "0.5", "1.0", "geometric", "empirical"])
@pytest.mark.parametrize("tokens", [64.0, 512.0, 4096.0])
def test_the_busiest_rank_of_full_prefill_steps_agrees_with_simulated_queues(
    kind: str, tokens: float
) -> None:
    lengths, moments = drawn_lengths(kind, 400_000)
    seen = attended_in_windows(lengths, tokens)
    mean, variance = attended_moments(moments, tokens)
    assert mean == pytest.approx(seen.mean(), rel=0.02)
    # Four lengths are far from smooth, and bounded: few ranks of many agree with no fitted distribution.
    coarse = kind == "empirical"
    assert np.sqrt(variance) == pytest.approx(seen.std(), rel=0.3 if coarse else 0.15)
    seen = np.random.default_rng(4).permutation(seen)
    for ranks in (1, 2, 8, 32):
        whole = seen[: len(seen) // ranks * ranks].reshape(-1, ranks)
        simulated = whole.max(axis=1).mean() / (tokens * moments.first / 2.0)
        assert attended_growth(moments, tokens, ranks) == pytest.approx(
            simulated, rel=0.3 if coarse else 0.12
        )


@given(st.floats(1.0, 1e6), st.floats(1.0, 1e6), st.integers(1, 512))
def test_equal_prompts_wait_for_no_other(length: float, tokens: float, ranks: int) -> None:
    assert attended_growth(LengthMoments.fixed(length), tokens, ranks) == pytest.approx(1.0, abs=1e-6)


@given(st.floats(0.01, 3.0), st.floats(1.0, 1e6), st.integers(1, 256))
def test_more_ranks_wait_longer_and_more_tokens_a_step_even_prompts_out(
    cv: float, tokens: float, ranks: int
) -> None:
    lengths = LengthMoments.lognormal(1000.0, cv)
    growth = attended_growth(
        lengths, np.array([tokens, tokens, 2.0 * tokens]), np.array([ranks, ranks + 1, ranks])
    )
    # Long prompts are found more often than they arrive, also by a rank alone.
    assert growth[0] >= (1.0 + cv**2) * (1.0 - 1e-9)
    assert growth[1] >= growth[0] * (1.0 - 1e-9)
    assert growth[2] <= growth[0] * (1.0 + 1e-9)


@pytest.mark.parametrize("cv", [0.0, 0.3, 1.0, 4.0])
def test_the_maximum_of_lognormals_is_exact_for_one_and_two(cv: float) -> None:
    # E[max of two] = 2·Φ(σ/√2) of mean one.
    sigma = np.sqrt(np.log1p(cv**2))
    assert lognormal_maximum(cv, 1) == pytest.approx(1.0, rel=1e-9)
    assert lognormal_maximum(cv, 2) == pytest.approx(2.0 * ndtr(sigma / np.sqrt(2.0)), rel=1e-9)


def test_moments_of_geometric_lengths_are_those_of_draws() -> None:
    drawn = np.random.default_rng(2).geometric(0.05, 2_000_000).astype(float)
    for least, seen in ((1, drawn), (0, drawn - 1.0)):
        found = LengthMoments.geometric(20.0 - (1 - least), least=least)
        expected = [np.mean(seen**k) for k in (1, 2, 3, 4)]
        assert [found.first, found.second, found.third, found.fourth] == pytest.approx(expected, rel=0.01)
