"""Pure functions of imbalance (to be replaced)."""

from functools import lru_cache

import numpy as np
from scipy import stats

from afd_dse.operators.latency import FloatArray


def kv_load_moments(isl: float, osl: float, isl_cv: float = 0.0, osl_cv: float = 0.0) -> tuple[float, float]:
    p1, p2 = isl, isl**2 * (1 + isl_cv**2)
    v = 1 + osl_cv**2
    d1, d2, d3 = osl, osl**2 * v, osl**3 * v**3
    age = (d2 / d1 - 1) / 2
    mean = p1 + age
    second = p2 + 2 * p1 * age + (2 * d3 - 3 * d2 + d1) / (6 * d1)
    return mean, float(np.sqrt(max(second - mean**2, 0.0)))


@lru_cache(maxsize=4096)
def _z(r: int) -> float:
    if r <= 1:
        return 0.0
    x = np.linspace(-8, 8, 4001)
    cdf = stats.norm.cdf(x) ** r
    return float(np.trapezoid(np.where(x > 0, 1 - cdf, -cdf), x))


def expected_max(mean: FloatArray, std: FloatArray, ranks: FloatArray) -> FloatArray:
    values, inverse = np.unique(ranks, return_inverse=True)
    return mean + std * np.array([_z(int(v)) for v in values])[inverse]
