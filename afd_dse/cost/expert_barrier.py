"""Waiting for the busiest expert rank: its load over the mean one's, by routing, copies and placement policy."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from afd_dse.cost.columns import EXPERT_POLICIES
from afd_dse.cost.expert_load import max_over_mean, place_experts, selection_probability
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import distinct_rows

STATIC, HISTORY, PREFETCH, PREFETCH_OVERLAPPED = range(len(EXPERT_POLICIES))
# Tokens at which a curve is computed. Beyond them chance no longer counts, and what is left is the popularity's own.
_TOKENS = 2.0 ** np.arange(0, 18)
_PLACEMENTS = 8  # random placements over which copying is averaged


def copies_experts(policy: IntArray) -> npt.NDArray[np.bool_]:
    """Whether a policy copies experts between ranks while the pipeline runs, [n]; it needs redundant slots."""
    return np.asarray(policy) >= PREFETCH


class ExpertLoads:
    """Load of the busiest expert rank over the mean one's, remembered by (ranks, copies, policy).

    ``popularity`` [E] share of each expert, each token takes ``topk`` of them. ``persistence`` is the share of the
    excess over a balanced placement that past routing tells: 1 if popularity never changes, 0 if it is new each time.
    """

    def __init__(self, popularity: FloatArray, topk: int, persistence: float) -> None:
        self._popularity, self._topk, self._persistence = popularity, topk, persistence
        self.even = bool(np.ptp(popularity) <= 1e-12)
        self._curves: dict[tuple[int, int, int], FloatArray] = {}
        self._placements: dict[tuple[int, int], tuple[FloatArray, FloatArray]] = {}

    def imbalance(
        self, tokens: FloatArray, ranks: IntArray, redundant: IntArray, policy: IntArray
    ) -> FloatArray:
        """Busiest over mean rank, [n] ≥ 1, for ``tokens`` of the whole group at once; chance included.

        ``static`` places experts without regard to popularity, ``history`` balances what past routing shows of it,
        ``prefetch`` (overlapped or not) levels the tokens at hand: it copies experts into its ``redundant`` slots once
        they are routed. Without such slots it can do no more than ``history``.
        """
        known = np.where((policy >= PREFETCH) & (redundant == 0), HISTORY, np.minimum(policy, PREFETCH))
        result = np.ones(len(tokens))
        first, inverse = distinct_rows([ranks, redundant, known])
        at = np.log2(np.maximum(tokens, 1.0))
        for number, example in enumerate(first):
            rows = np.flatnonzero(inverse == number)
            curve = self._curve(int(ranks[example]), int(redundant[example]), int(known[example]))
            result[rows] = np.interp(at[rows], np.log2(_TOKENS), curve)
        return result

    def lasting(self, ranks: IntArray, redundant: IntArray, policy: IntArray) -> FloatArray:
        """Busiest over mean rank without chance, [n]: what the popularity of experts alone makes of it."""
        many = np.full(len(ranks), _TOKENS[-1])
        return np.ones(len(ranks)) if self.even else self.imbalance(many, ranks, redundant, policy)

    def _curve(self, ranks: int, redundant: int, policy: int) -> FloatArray:
        key = (ranks, redundant, policy)
        if key not in self._curves:
            self._curves[key] = self._computed(*key)
        return self._curves[key]

    def _computed(self, ranks: int, redundant: int, policy: int) -> FloatArray:
        if ranks == 1:
            return np.ones(len(_TOKENS))
        if policy == PREFETCH:
            levels = [self._levelled(ranks, redundant, seed) for seed in range(_PLACEMENTS)]
            return np.minimum(self._curve(ranks, redundant, HISTORY), np.mean(levels))
        balanced, unaware = self._placed(ranks, redundant)
        if self.even:
            return balanced
        if policy == STATIC:
            return np.maximum(unaware, balanced)
        return np.asarray(balanced + (1.0 - self._persistence) * np.maximum(unaware - balanced, 0.0))

    def _placed(self, ranks: int, redundant: int) -> tuple[FloatArray, FloatArray]:
        """The curves of balanced experts and of experts placed at random, which several policies are made of."""
        key = (ranks, redundant)
        if key not in self._placements:
            arguments = (_TOKENS, self._popularity, self._topk, ranks)
            balanced = max_over_mean(*arguments, redundant=redundant, placement="balanced")
            unaware = balanced
            if not self.even:
                unaware = max_over_mean(*arguments, redundant=redundant, placement="random")
            self._placements[key] = balanced, unaware
        return self._placements[key]

    def _levelled(self, ranks: int, redundant: int, seed: int) -> float:
        """Busiest over mean rank after copying, from the random placement ``seed``.

        Copy after copy, the hottest expert of the fullest rank goes into a free slot of the emptiest one, and takes as
        much of its tokens along as evens the two out.
        """
        probability = selection_probability(self._popularity, self._topk)
        placed = place_experts(self._popularity, ranks, placement="random", seed=seed)
        load = np.concatenate([probability[placed.expert], np.zeros(redundant)])
        rank = np.concatenate([placed.rank, np.full(redundant, ranks)])
        held = placed.rank_moments(probability)[0].copy()
        free = np.full(ranks, redundant // ranks) + (np.arange(ranks) < redundant % ranks)
        for copy in range(len(placed.expert), len(load)):
            full, empty = int(np.argmax(held)), int(np.argmin(np.where(free > 0, held, np.inf)))
            here = np.flatnonzero(rank == full)
            hottest = here[np.argmax(load[here])]
            moved = min(float(load[hottest]), float(held[full] - held[empty]) / 2.0)
            if moved <= 0.0:
                break
            load[hottest], load[copy], rank[copy] = load[hottest] - moved, moved, empty
            held[full], held[empty] = held[full] - moved, held[empty] + moved
            free[empty] -= 1
        return float(held.max() * ranks / self._topk)


@lru_cache(maxsize=64)
def shared_loads(shares: tuple[float, ...], topk: int, persistence: float) -> ExpertLoads:
    """One object for all scenarios of that routing: its curves take long, and are the same."""
    return ExpertLoads(np.array(shares), topk, persistence)
