"""Staircases of partitions whose phases have GPUs of their own.

Where only rate and GPUs count, a decode unit's TPOT matters no longer once it holds the limit: of all units of a size
that receive KV alike the strongest is left, repeated as often as it fits, and paired with the best prefill of every
size.
"""

from collections.abc import Iterator

import numpy as np

from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import join_rows
from afd_dse.search.crossing import evaluations
from afd_dse.search.joint import with_largest_batch
from afd_dse.search.pairs import (
    COMBINATION_BLOCK,
    LATENCY_REFINEMENT,
    Paired,
    assembled,
    decode_choices,
    paired_rates,
    throttled,
)
from afd_dse.search.pool import Found
from afd_dse.search.sides import DecodeSide, PrefillSide, limits_of
from afd_dse.search.stair_steps import best_within, largest_of_each, steps
from afd_dse.search.supply import Receivers, Supplies, Supply, repeated
from afd_dse.spec.cells import Partition


def paired_steps(
    scenario: Scenario, partition: Partition, supplies: Supplies, decode: DecodeSide
) -> tuple[Found | None, int]:
    """The steps of all pairs of units with all numbers of replicas, evaluated; and how many rows were computed."""
    parts: list[tuple[Paired, FloatArray, FloatArray]] = []
    for limit in limits_of(scenario):
        for rows, receivers, pool in decode_choices(scenario, decode, limit):
            strongest = _strongest(decode, rows)
            for inside in (False, True):
                to = Receivers(receivers, pool, inside)
                supply = supplies(limit, to)
                if len(supply.rate):
                    parts.extend(_pairs(scenario, partition, supplies.side, decode, strongest, supply, to))
    if not parts:
        return None, 0
    sizes, rates = (np.concatenate([part[number] for part in parts]) for number in (1, 2))
    coupled = np.isfinite(scenario.slo.latency_s)
    if coupled:
        # The limit was split at a few shares, and what a pair lost by that is found from its own latency below.
        reached = best_within(sizes, rates, sizes)
        left = np.flatnonzero(rates * LATENCY_REFINEMENT > reached)
        left = left[largest_of_each(sizes[left], rates[left])]
    else:
        left = steps(sizes, rates)
    candidates = throttled(scenario, partition, join_rows([part[0] for part in parts]).take(left))
    found = Found(candidates, evaluate(scenario, candidates))
    computed = len(found)
    found = found.take(found.evaluation.feasible)
    if coupled and len(found):
        computed += evaluations(len(found)) + len(found)
        found = join_rows([found, with_largest_batch(scenario, found.candidates, LATENCY_REFINEMENT)])
    return (found if len(found) else None), computed


def _strongest(decode: DecodeSide, rows: IntArray) -> IntArray:
    """Of decode rows that receive KV alike the one with the largest rate for every size and number of ranks."""
    size = np.column_stack([decode.units.gpus_by_pool[rows], decode.candidates.number("decode_dp")[rows]])
    return rows[largest_of_each(size, decode.units.requests_per_s[rows])]


def _pairs(
    scenario: Scenario,
    partition: Partition,
    prefill: PrefillSide,
    decode: DecodeSide,
    strongest: IntArray,
    supply: Supply,
    to: Receivers,
) -> Iterator[tuple[Paired, FloatArray, FloatArray]]:
    """Steps of one class: pairs, GPUs by pool, and rates."""
    u = decode.units
    each, most = paired_rates(scenario, decode, strongest, supply)
    place = np.arange(len(strongest))
    near = prefill.units.gpus_by_pool[supply.unit].sum(axis=1)
    domain = scenario.tiers.domain_gpus[prefill.candidates.integer("prefill_attention_pool")[supply.unit]]
    which, replicas = repeated(u.gpus_by_pool[strongest], place, scenario.pool_counts)
    per_block = max(COMBINATION_BLOCK // len(supply.rate), 1)
    for start in range(0, len(which), per_block):
        w, many = which[start : start + per_block], replicas[start : start + per_block]
        size = u.gpus_by_pool[strongest[w]]
        rate = np.minimum(many[:, None] * each[w], most[w])
        taken = size[:, None, :] * many[:, None, None] + supply.gpus_by_pool[None, :, :]
        inside = size.sum(axis=1)[:, None] + near[None, :] <= domain
        usable = (taken <= scenario.pool_counts + 1e-9).all(axis=2) & (inside == to.inside) & (rate > 0.0)
        i, k = np.nonzero(usable)
        if not len(i):
            continue
        best = steps(taken[i, k], rate[i, k])
        i, k = i[best], k[best]
        d = strongest[w[i]]
        pairs = assembled(
            partition,
            prefill.candidates.take(supply.unit[k]),
            supply.replicas[k],
            decode.candidates.take(d),
            many[i],
        )
        admitted = rate[i, k] / many[i]
        tpot = decode.tpot_at(d, admitted)
        yield Paired(pairs, admitted, u.requests_per_s[d], tpot), taken[i, k], rate[i, k]
