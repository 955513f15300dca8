"""The busiest expert rank against simulated routing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.cost.expert_load import (
    Placement,
    expected_busiest_rank,
    histogram_popularity,
    max_over_mean,
    place_experts,
    power_law_popularity,
    redundant_copies,
    selection_probability,
)
from afd_dse.operators.latency import FloatArray


def _routed(
    popularity: FloatArray, topk: int, tokens: int, draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Tokens of each expert, [draws, E]: every token takes ``topk`` distinct experts with the asked probabilities.

    Systematic sampling over a shuffled order has exactly the asked inclusion probabilities.
    """
    probability = selection_probability(popularity, topk)
    counts = np.zeros((draws, len(popularity)), dtype=np.int64)
    for draw in range(draws):
        for _ in range(tokens):
            order = rng.permutation(len(popularity))
            ends = np.cumsum(probability[order])
            picked = order[np.searchsorted(ends, rng.random() + np.arange(topk) - 1e-12)]
            counts[draw, picked] += 1
    return counts


@pytest.mark.parametrize("ranks", [2, 8, 32])
@pytest.mark.parametrize("tokens", [4, 64, 512])
def test_even_routing_agrees_with_simulation(ranks: int, tokens: int) -> None:
    rng = np.random.default_rng(ranks * tokens)
    experts, topk, draws = 64, 6, 150
    chosen = rng.random((draws, tokens, experts)).argpartition(topk, axis=2)[:, :, :topk]
    loads = np.stack([(chosen * ranks // experts == r).sum(axis=(1, 2)) for r in range(ranks)], axis=1)
    busiest = loads.max(axis=1)
    found = expected_busiest_rank(tokens, power_law_popularity(experts, 0.0), topk, ranks)
    error = 4 * busiest.std() / np.sqrt(draws)
    assert found == pytest.approx(busiest.mean(), abs=error + 0.01 * busiest.mean() + 0.1)


@pytest.mark.parametrize("placement", ["contiguous", "balanced"])
@pytest.mark.parametrize(("exponent", "redundant"), [(0.5, 0), (1.2, 0), (1.2, 16)])
def test_skewed_routing_agrees_with_simulation(placement: Placement, exponent: float, redundant: int) -> None:
    rng = np.random.default_rng(5)
    popularity, topk, tokens, ranks = power_law_popularity(32, exponent), 4, 96, 8
    counts = _routed(popularity, topk, tokens, 60, rng)
    placed = place_experts(popularity, ranks, redundant=redundant, placement=placement)
    held = np.zeros((len(counts), len(placed.expert)), dtype=np.int64)
    for expert, copies in enumerate(placed.copies):
        held[:, placed.expert == expert] = rng.multinomial(counts[:, expert], np.full(copies, 1 / copies))
    busiest = np.stack([held[:, placed.rank == r].sum(axis=1) for r in range(ranks)]).max(axis=0)
    found = expected_busiest_rank(tokens, popularity, topk, ranks, redundant=redundant, placement=placement)
    assert found == pytest.approx(busiest.mean(), rel=0.04)


@pytest.mark.parametrize("exponent", [0.0, 1.0])
@pytest.mark.parametrize("tokens", [1, 2, 8])
def test_a_handful_of_tokens_agrees_with_simulation_with_copies_too(exponent: float, tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    popularity, topk, ranks, redundant = power_law_popularity(64, exponent), 8, 16, 16
    counts = _routed(popularity, topk, tokens, 600, rng)
    placed = place_experts(popularity, ranks, redundant=redundant, placement="balanced")
    held = np.zeros((len(counts), len(placed.expert)), dtype=np.int64)
    for expert, copies in enumerate(placed.copies):
        held[:, placed.expert == expert] = rng.multinomial(counts[:, expert], np.full(copies, 1 / copies))
    busiest = np.stack([held[:, placed.rank == r].sum(axis=1) for r in range(ranks)]).max(axis=0)
    found = expected_busiest_rank(tokens, popularity, topk, ranks, redundant=redundant, placement="balanced")
    assert found == pytest.approx(busiest.mean(), rel=0.06)


def test_random_placement_lies_between_balanced_and_the_worst() -> None:
    popularity = power_law_popularity(128, 1.0)
    found = {
        name: float(expected_busiest_rank(4096, popularity, 8, 16, placement=name))
        for name in ("balanced", "random", "contiguous")
    }
    assert found["balanced"] < found["random"] < found["contiguous"]


def test_random_placement_agrees_with_many_shuffles() -> None:
    popularity, topk, ranks, tokens = power_law_popularity(64, 0.8), 4, 8, 10_000
    rng, probability = np.random.default_rng(2), selection_probability(power_law_popularity(64, 0.8), 4)
    shuffled = [rng.permutation(probability).reshape(ranks, -1).sum(axis=1).max() for _ in range(2000)]
    found = expected_busiest_rank(tokens, popularity, topk, ranks, placement="random")
    assert found / tokens == pytest.approx(np.mean(shuffled), rel=0.05)


def test_one_rank_takes_everything_and_no_tokens_are_no_load() -> None:
    popularity = power_law_popularity(16, 1.0)
    assert expected_busiest_rank(np.array([0.0, 10.0]), popularity, 2, 1) == pytest.approx([0.0, 20.0])
    assert max_over_mean(np.array([0.0, 10.0]), popularity, 2, 1) == pytest.approx([1.0, 1.0])


def test_a_histogram_is_a_popularity_and_nonsense_is_refused() -> None:
    assert histogram_popularity([1, 3, 0]) == pytest.approx([0.25, 0.75, 0.0])
    for wrong in ([0, 0], [1, -1], [[1, 2]], [np.nan, 1]):
        with pytest.raises(ValueError, match="counts per expert"):
            histogram_popularity(wrong)
    with pytest.raises(ValueError, match="top-k"):
        selection_probability(power_law_popularity(4, 0.0), 5)
    with pytest.raises(ValueError, match="do not fill"):
        place_experts(power_law_popularity(4, 0.0), 5)


def test_copies_go_where_each_relieves_most() -> None:
    assert redundant_copies(np.array([0.5, 0.3, 0.1, 0.1]), 3).tolist() == [3, 2, 1, 1]


@given(st.integers(2, 64), st.floats(0, 3), st.data())
def test_selection_probabilities_sum_to_topk_and_never_exceed_one(
    experts: int, exponent: float, data: st.DataObject
) -> None:
    topk = data.draw(st.integers(1, experts))
    probability = selection_probability(power_law_popularity(experts, exponent), topk)
    assert probability.sum() == pytest.approx(topk)
    assert (probability <= 1.0 + 1e-12).all()
    assert (np.diff(probability) <= 1e-12).all()


@given(
    experts=st.sampled_from([8, 64, 256]),
    exponent=st.floats(0, 2),
    tokens=st.integers(1000, 10**6),  # of few tokens, copies chosen at random may meet on a rank
    ranks=st.sampled_from([1, 2, 8]),
    redundant=st.sampled_from([0, 8]),
)
@settings(max_examples=60, deadline=None)
def test_the_busiest_rank_is_bounded_and_copies_help_a_balanced_placement(
    experts: int, exponent: float, tokens: int, ranks: int, redundant: int
) -> None:
    popularity, topk = power_law_popularity(experts, exponent), 4
    plain, copied = (
        float(max_over_mean(tokens, popularity, topk, ranks, redundant=more, placement="balanced"))
        for more in (0, redundant)
    )
    assert 1.0 <= plain <= ranks + 1e-9
    # Greedy packing is no optimum: it may lose a little where there was nothing to gain.
    assert copied <= plain * 1.10 + 1e-9


@given(exponent=st.floats(0, 2), tokens=st.integers(1, 10**5))
@settings(max_examples=30, deadline=None)
def test_more_tokens_are_more_load_but_fall_more_evenly(exponent: float, tokens: int) -> None:
    popularity = power_law_popularity(64, exponent)
    few, many = expected_busiest_rank(np.array([tokens, 4 * tokens]), popularity, 4, 8)
    assert few * (1 - 1e-3) <= many <= 4 * few * (1 + 0.01)


@given(
    st.sampled_from([8, 60, 128]),
    st.integers(1, 8),
    st.integers(0, 8),
    st.sampled_from(["random", "balanced"]),
)
def test_every_slot_lies_on_a_rank_with_room(
    experts: int, ranks: int, redundant: int, placement: Placement
) -> None:
    placed = place_experts(
        power_law_popularity(experts, 1.0), ranks, redundant=redundant, placement=placement
    )
    assert len(placed.expert) == experts + redundant
    assert placed.copies.min() >= 1
    assert np.bincount(placed.rank, minlength=ranks).max() <= -(-(experts + redundant) // ranks)
