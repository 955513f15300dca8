"""Tiles of expert work, counted and expected."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.cost.tiles import expected_tiles, tile_count


def test_the_published_example_has_seven_tiles() -> None:
    assert tile_count([0, 1, 64, 129, 300], 128) == 7


def test_columns_of_tiles_count_along_the_experts() -> None:
    assert tile_count([[1, 2], [128, 0]], 64).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(("tokens", "tile"), [(1, 128), (64, 16), (2000, 64), (50_000, 128)])
def test_the_expectation_agrees_with_simulated_counts(tokens: int, tile: int) -> None:
    rng = np.random.default_rng(tokens)
    probability = np.array([0.9, 0.3, 0.05, 0.002, 1.0, 0.0])
    counts = rng.binomial(tokens, probability, (20_000, len(probability)))
    drawn = tile_count(counts, tile)
    error = 5 * drawn.std() / np.sqrt(len(drawn)) + 1e-9
    assert expected_tiles(tokens, probability, tile) == pytest.approx(drawn.mean(), abs=error)


@given(st.integers(0, 10**6), st.sampled_from([1, 16, 128]), st.floats(0.001, 1))
@settings(max_examples=60)
def test_tiles_hold_all_tokens_and_waste_less_than_one_an_expert(tokens: int, tile: int, p: float) -> None:
    probability = np.full(8, p)
    found = float(expected_tiles(tokens, probability, tile))
    least = tokens * p * 8 / tile
    assert least - 1e-6 * least - 1e-9 <= found <= least + 8 + 1e-6 * least
