"""Results for tests: the small answer, and one with as many candidates as a large search may keep."""

from functools import lru_cache

import numpy as np

from afd_dse.dashboard.data import Library
from afd_dse.results.result import Result
from tests.results.examples import answer, full

MANY = 100_000


def library(*names: str) -> Library:
    found = Library()
    for name in names or ("SMALL",):
        found.add(many() if name == "MANY" else answer(name))
    return found


@lru_cache(maxsize=1)
def many() -> Result:
    """The small answer's candidates over and over, each a little faster or slower, all sound."""
    random = np.random.default_rng(7)
    candidates = full().candidates
    rows = candidates.iloc[random.integers(0, len(candidates), MANY)].reset_index(drop=True)
    speed, rate = random.lognormal(0.0, 0.15, (2, MANY))
    tpot = rows["tpot_ms"] * speed
    spread = rows.assign(
        tpot_ms=tpot,
        tokens_per_s_per_user=1000.0 / tpot,
        tokens_per_s_per_gpu=rows["tokens_per_s_per_gpu"] * rate,
        feasible=True,
        slack_memory=0.1,
    )
    return Result(full().document, spread)
