"""Experts that the GPUs do not hold: which of them a step misses, and what fetching them costs it."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from afd_dse.architecture.model import MoeFfn
from afd_dse.architecture.weights import expert_slots, expert_weight_bytes
from afd_dse.cost.expert_copies import Copying, ExpertSide, copy_window, link_wait, round_of
from afd_dse.cost.expert_load import selection_probability
from afd_dse.cost.phase import Cut, Stations
from afd_dse.cost.reconfiguration import exposed_copy
from afd_dse.cost.scenario import Scenario
from afd_dse.network.tiers import LINK_EFFICIENCY
from afd_dse.operators.latency import FloatArray

Keeping = Literal["hot", "recent"]
KEEPINGS: tuple[Keeping, ...] = ("hot", "recent")
Loading = Literal["on_demand", "prefetch", "foreseen"]
LOADINGS: tuple[Loading, ...] = ("on_demand", "prefetch", "foreseen")
# Experts that are missing must come: where tokens want the whole port too, either gets half of it.
_LEAST_FREE = 0.5
_BISECTIONS, _LONGEST = 60, 40.0  # of the logarithm of the characteristic number of steps


@dataclass(frozen=True, slots=True)
class ExpertCache:
    """How experts are kept that do not fit.

    ``resident`` share of its experts that each rank holds in HBM; the others lie in the memory of hosts, behind the
    rank's scale-out port. ``keeps``: the most popular ones for ever (``hot``), or those used last (``recent``).
    ``loads``: when the experts are due (``on_demand``), as soon as a micro-batch is routed (``prefetch``), or a layer
    ahead by a forecast that is always right (``foreseen``: a bound of what forecasts can do).
    """

    resident: float
    keeps: Keeping = "hot"
    loads: Loading = "prefetch"


def expected_misses(selection: FloatArray, tokens: FloatArray, held: float, keeps: Keeping) -> FloatArray:
    """Experts that ``tokens`` [n] of a step choose and the cache does not hold, of all E, expected, [n].

    ``selection`` [E] probability that a token chooses each expert, ``held`` experts in the cache. ``recent``: after a
    step the cache holds what was used last, of a step that needs more than fits a random part; by the approximation of
    Che et al. (2002), an expert is there if it was used within a characteristic number of steps, equal for all.
    """
    hit = 1.0 - (1.0 - selection[None, :]) ** tokens[:, None]
    if held >= len(selection):
        return np.zeros(len(tokens))
    if keeps == "hot":
        rank = np.argsort(np.argsort(-selection, kind="stable"), kind="stable")
        absent = np.clip(rank - held + 1.0, 0.0, 1.0)
        return np.asarray((hit * absent).sum(axis=1))
    return np.asarray((hit * (1.0 - _present(hit, held))).sum(axis=1))


def _present(hit: FloatArray, held: float) -> FloatArray:
    """Probability [n, E] that an expert which a step needs with probability ``hit`` [n, E] is still in the cache."""
    needed = hit.sum(axis=1)
    low, high = np.zeros(len(hit)), np.full(len(hit), _LONGEST)
    with np.errstate(divide="ignore"):
        log_idle = np.log1p(-hit)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        full = -np.expm1(np.exp(middle)[:, None] * log_idle).sum(axis=1) > held
        low, high = np.where(full, low, middle), np.where(full, middle, high)
    kept = -np.expm1(np.exp(low)[:, None] * log_idle)
    crowded = (needed >= held)[:, None]
    return np.asarray(np.where(crowded, hit * (held / np.maximum(needed, held))[:, None], kept))


def with_missing_experts(scenario: Scenario, cache: ExpertCache, stations: Stations) -> Stations:
    """The stations with what each micro-batch waits for experts that its ranks have to fetch.

    Misses are those of the mean rank, each micro-batch's for itself. A fetch takes the rank's scale-out port at the
    rate of long transfers, less what the exchange of tokens takes of it, and is hidden by the window of the loading
    policy (:func:`afd_dse.cost.expert_copies.copy_window`).
    """
    copying = _copying(stations)
    side = ExpertSide(stations.ffn, stations.to_ffn, stations.to_attention)
    attention = stations.attention.seconds
    turn = round_of(copying, attention, side, np.zeros(attention.shape))
    window, free = copy_window(copying, side, turn)
    outside = stations.split | (copying.ffn_gpus > scenario.tiers.domain_gpus[copying.pool])
    free = np.where(np.asarray(outside)[:, None], np.maximum(free, _LEAST_FREE), 1.0)
    if cache.loads == "foreseen":
        window = np.maximum(window, turn.period / copying.micro_batches[:, None])
    fetch = _fetch_seconds(scenario, cache, stations, free)
    exposed = exposed_copy(fetch, window, overlapped=cache.loads != "on_demand")
    return replace(stations, ffn=stations.ffn.plus(link_wait("exposed fetch of experts", exposed)))


def freed_bytes(scenario: Scenario, cut: Cut, cache: ExpertCache) -> FloatArray:
    """HBM of a GPU that experts kept elsewhere leave free, bytes [n]."""
    total = np.zeros(len(cut.ep))
    for kind in scenario.model.kinds:
        if isinstance(kind.ffn, MoeFfn):
            size = expert_weight_bytes(kind, scenario.model, scenario.quantization, cut.moe_tp)
            total += kind.count * expert_slots(kind.ffn, cut.ep, cut.redundant) * size / cut.pp
    return np.asarray((1.0 - cache.resident) * total)


def _copying(stations: Stations) -> Copying:
    cut = stations.cut
    return Copying(
        pool=cut.ffn_pool,
        ffn_gpus=cut.ffn_gpus,
        moe_tp=cut.moe_tp,
        slots=np.zeros(len(cut.ep)),
        policy=cut.expert_policy,
        micro_batches=cut.micro_batches.astype(np.float64),
        split=stations.split,
    )


def _fetch_seconds(
    scenario: Scenario, cache: ExpertCache, stations: Stations, free: FloatArray
) -> FloatArray:
    """Time in which the mean rank takes in what it misses, seconds [n, kinds]."""
    cut, tiers = stations.cut, scenario.tiers
    seconds = np.zeros(free.shape)
    for number, kind in enumerate(scenario.model.kinds):
        if not isinstance(kind.ffn, MoeFfn):
            continue
        given = scenario.workload.expert_popularity
        shares = np.array(given) if given else np.full(kind.ffn.experts, 1.0 / kind.ffn.experts)
        selection = selection_probability(shares, kind.ffn.topk)
        held = cache.resident * kind.ffn.experts
        misses = expected_misses(selection, stations.expert_tokens, held, cache.keeps) / cut.ep
        size = misses * expert_weight_bytes(kind, scenario.model, scenario.quantization, cut.moe_tp)
        rate = tiers.scale_out_bytes_per_s[cut.ffn_pool] * LINK_EFFICIENCY * free[:, number]
        # One fetch is started for all that a micro-batch misses, if it misses anything.
        seconds[:, number] = size / rate + np.minimum(misses, 1.0) * tiers.scale_out_latency_s[cut.ffn_pool]
    return seconds
