"""Where the experts of a token lie: how many distinct GPUs or nodes a token must reach."""

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from afd_dse.operators.latency import FloatArray


def expected_distinct(groups: npt.ArrayLike, experts: npt.ArrayLike, topk: npt.ArrayLike) -> FloatArray:
    """Expected number of distinct groups that hold one of the ``topk`` experts of a token.

    ``groups`` N hold E/N experts each; a token draws k of E without replacement, so a group is missed with
    probability C(E − E/N, k) / C(E, k) and N·(1 − that) groups are hit.
    """
    n, e, k = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (groups, experts, topk)))
    rest = e - e / n
    possible = rest >= k
    safe = np.where(possible, rest, k)
    log_missed = gammaln(safe + 1) - gammaln(safe - k + 1) - gammaln(e + 1) + gammaln(e - k + 1)
    missed = np.where(possible, np.exp(np.minimum(log_missed, 0.0)), 0.0)
    result: FloatArray = n * (1.0 - missed)
    return result
