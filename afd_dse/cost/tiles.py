"""Expert work in tiles: a GEMM computes whole tiles of rows, so a few tokens cost as much as a tile."""

import numpy as np
import numpy.typing as npt
from scipy.special import betainc

from afd_dse.operators.latency import FloatArray

_REACH = 8.0
_TERMS = 20


def tile_count(tokens_per_expert: npt.ArrayLike, tile: npt.ArrayLike) -> FloatArray:
    """Tiles Σ_e ⌈m_e / tile⌉ over the last axis of ``tokens_per_expert`` (ExpertPlex, arXiv 2607.18002)."""
    tokens = np.asarray(tokens_per_expert, dtype=np.float64)
    return np.asarray(np.ceil(tokens / np.asarray(tile, dtype=np.float64)).sum(axis=-1), dtype=np.float64)


def expected_tiles(tokens: npt.ArrayLike, probability: FloatArray, tile: int) -> FloatArray:
    """Expected tiles [n] when each of ``tokens`` [n] goes to each expert with its ``probability`` [E].

    E⌈m/t⌉ = Σ_j P(m > j·t) for binomial m; where m spreads over a tile and more, its remainder is even and
    E⌈m/t⌉ = (E[m] + (t − 1)/2) / t to nine digits.
    """
    n = np.asarray(tokens, dtype=np.float64)
    count = n.reshape(-1, 1)
    mean = count * probability
    std = np.sqrt(mean * (1.0 - probability))
    first = np.maximum(np.floor((mean - _REACH * std) / tile), 0.0)
    found = first.copy()
    for term in range(_TERMS):
        found += _above((first + term) * tile, count, probability)
    even = (mean + 0.5 * (tile - 1.0)) / tile
    result: FloatArray = np.where(std >= tile, even, found).sum(axis=1).reshape(n.shape)
    return result


def _above(value: FloatArray, tokens: FloatArray, probability: FloatArray) -> FloatArray:
    """P(m > ``value``) of a binomial m of ``tokens`` trials, also of a fractional number of them."""
    left = tokens - value
    tail = betainc(value + 1.0, np.where(left > 0, left, 1.0), probability)
    return np.asarray(np.where(left > 0, tail, 0.0), dtype=np.float64)
