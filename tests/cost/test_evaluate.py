from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from afd_dse.cost.columns import CHUNKED, PRIORITIZED, TILE_SHARED, Candidates
from afd_dse.cost.evaluate import evaluate, group_gpus
from afd_dse.cost.evaluation import CONSTRAINTS, METRICS, Evaluation
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario, Slo
from afd_dse.spec.cells import PARTITIONS, Phase, parse_partition
from tests.strategies import SCENARIOS, block, build, layout, overridden, scenario, scenario_names, seeds

SEPARATE = tuple(p for p in PARTITIONS if not p.is_joint)
SHARES_STEPS = tuple(p for p in PARTITIONS if p.shares_steps)


def close(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.allclose(one, other, rtol=1e-9, atol=0.0))


def same(one: Evaluation, other: Evaluation) -> None:
    for name in METRICS:
        assert close(one.metrics[name], other.metrics[name]), name
    assert close(one.memory, other.memory)
    assert np.allclose(one.slack, other.slack, rtol=1e-9, atol=1e-9)
    assert close(one.gpus_by_pool, other.gpus_by_pool)
    assert np.allclose(one.provenance, other.provenance, rtol=1e-9, atol=1e-12)


@settings(max_examples=15)
@given(scenario_names, seeds)
def test_the_laws_of_every_row_hold(name: str, seed: int) -> None:
    """One evaluation for all of them: it takes most of the time."""
    case = scenario(name)
    candidates = block(case, seed)
    found = evaluate(case, candidates)
    the_metrics_of_a_row_agree_with_each_other(case, candidates, found)
    outputs_are_finite_and_not_negative_where_the_queue_is_stable(found)
    the_gpus_of_all_groups_and_replicas_are_the_gpus_of_the_deployment(candidates, found)
    the_parts_of_a_step_fit_into_it(candidates, found)


def the_metrics_of_a_row_agree_with_each_other(
    case: Scenario, candidates: Candidates, found: Evaluation
) -> None:
    m, workload = found.metrics, case.workload
    dp, replicas = candidates.number("decode_dp"), candidates.number("decode_replicas")
    in_flight = candidates.number("batch_size") * dp * replicas
    assert close(m["tokens_per_s"], m["requests_per_s"] * workload.osl)
    assert close(in_flight, m["requests_per_s"] * workload.osl * m["tpot_s"])
    assert close(m["tokens_per_s_per_user"], 1.0 / m["tpot_s"])
    assert close(m["latency_s"], m["ttft_s"] + (workload.osl - 1.0) * m["tpot_s"])
    assert close(m["concurrency"], m["requests_per_s"] * m["latency_s"])
    assert close(m["tokens_per_s_per_gpu"] * m["gpus"], m["tokens_per_s"])
    assert close(m["gpus"], found.gpus_by_pool.sum(axis=1))
    price = found.gpus_by_pool @ np.array([pool.usd_per_gpu_hour for pool in case.pools])
    assert close(m["usd_per_mtok"] * m["tokens_per_s"] * 3600.0, price * 1e6)
    power = found.gpus_by_pool @ np.array([pool.power_w for pool in case.pools])
    assert close(m["joules_per_token"] * m["tokens_per_s"], power)


def outputs_are_finite_and_not_negative_where_the_queue_is_stable(found: Evaluation) -> None:
    stable = found.metrics["prefill_utilization"] < 1.0
    for metric, values in found.metrics.items():
        assert (values >= 0.0).all(), metric
        assert np.isfinite(values[stable]).all(), metric
    assert np.isfinite(found.slack).all()
    assert np.isfinite(found.memory).all()
    assert (found.memory >= 0.0).all()
    assert np.allclose(found.provenance.sum(axis=1), 1.0)
    assert (found.provenance >= 0.0).all()
    # An overloaded queue is never feasible.
    assert not found.feasible[~stable].any()
    assert np.isinf(found.metrics["ttft_s"][~stable]).all()


def the_gpus_of_all_groups_and_replicas_are_the_gpus_of_the_deployment(
    candidates: Candidates, found: Evaluation
) -> None:
    gpus = found.metrics["gpus"]
    for row, number in enumerate(candidates.integer("partition")):
        one = candidates.take(np.array([row]))
        count = 0
        for group in PARTITIONS[number].groups:
            phase = "prefill" if group[0] < 2 else "decode"
            value = {
                key: int(one.integer(f"{phase}_{key}")[0])
                for key in ("tp", "dp", "cp", "pp", "moe_tp", "ep", "replicas")
            }
            if any(cell % 2 == 0 for cell in group):  # holds attention: of the phase whose attention it is
                phase = "prefill" if 0 in group else "decode"
                value = {key: int(one.integer(f"{phase}_{key}")[0]) for key in value}
                unit = value["tp"] * value["dp"] * value["cp"] * value["pp"]
            else:
                unit = value["moe_tp"] * value["ep"]
            count += unit * value["replicas"]
        assert gpus[row] == count
        cuts = {phase: Cut.of(one, phase) for phase in Phase}
        assert sum(float(found[0]) for found in group_gpus(PARTITIONS[number], cuts)) == count


@settings(max_examples=6)
@given(scenario_names, seeds)
def test_a_block_is_its_rows_in_any_order(name: str, seed: int) -> None:
    case = scenario(name)
    candidates = block(case, seed)
    found = evaluate(case, candidates)
    order = np.random.default_rng(seed).permutation(len(candidates))
    shuffled = evaluate(case, candidates.take(order))
    back = np.argsort(order)
    for metric in METRICS:
        assert close(shuffled.metrics[metric][back], found.metrics[metric]), metric
    for row in np.random.default_rng(seed).choice(len(candidates), 5, replace=False):
        at = np.array([row])
        alone = evaluate(case, candidates.take(at))
        for metric in METRICS:
            assert close(alone.metrics[metric], found.metrics[metric][at]), metric
        groups = alone.memory.shape[1]
        assert close(alone.memory, found.memory[at][:, :groups])
        assert not found.memory[at][:, groups:].any()
        assert np.allclose(alone.provenance, found.provenance[at], rtol=1e-9, atol=1e-12)


def test_what_was_evaluated_before_does_not_change_the_answer() -> None:
    fresh, used = build(), scenario()
    for seed in range(3):
        evaluate(used, block(used, seed))
    candidates = block(used, 77)
    same(evaluate(fresh, candidates), evaluate(used, candidates))


@lru_cache(maxsize=len(SCENARIOS))
def unchanged(name: str) -> tuple[Candidates, Evaluation]:
    """What every faster scenario is held against."""
    candidates = block(scenario(name), 5, each=3)
    return candidates, evaluate(scenario(name), candidates)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("rate", ["hbm_bytes_per_s", "scale_up_bytes_per_s", "scale_out_bytes_per_s"])
def test_more_bandwidth_never_slows_a_step(name: str, rate: str) -> None:
    """At equal batch; a shorter decode step admits more requests, so waiting is another matter."""
    candidates, slow = unchanged(name)
    before, after = slow.metrics, evaluate(overridden(name, **{rate: 1.4}), candidates).metrics
    for metric in ("itl_tail_s", "kv_transfer_s"):
        assert (after[metric] <= before[metric] * (1 + 1e-9)).all(), metric
    # Where the phases take turns on shared GPUs, a faster decode may come back more often and leave prefill less, and
    # prefill whose steps wait less for links is at work for more of the time in which decode comes.
    plain = np.array([not p.is_joint or p.shares_steps for p in PARTITIONS])[candidates.integer("partition")]
    plain &= candidates.integer("policy") != TILE_SHARED
    for metric in ("tpot_s", "decode_step_s", "prefill_step_s", "prefill_full_service_s"):
        assert (after[metric] <= before[metric] * (1 + 1e-9))[plain].all(), metric


def the_parts_of_a_step_fit_into_it(candidates: Candidates, found: Evaluation) -> None:
    m = found.metrics
    parts = [m[f"decode_{part}_s"] for part in ("attention", "ffn", "link")]
    split = np.array([PARTITIONS[p].splits(Phase.DECODE) for p in candidates.integer("partition")])
    # Both ways of a full-duplex link work at once: one of them at least half of the sum.
    single = [*parts[:2], np.where(split, parts[2] / 2, parts[2])]
    busiest, together = np.max(single, axis=0), np.sum(parts, axis=0)
    step, outside = m["decode_step_s"], m["decode_outside_s"]
    assert (busiest + outside <= step * (1 + 1e-9)).all()
    assert (step <= (together + outside) * (1 + 1e-9)).all()
    serial = candidates.integer("decode_micro_batches") == 1
    assert close((together + outside)[serial], step[serial])
    assert (m["itl_tail_s"] >= m["decode_step_s"] * (1 - 1e-9)).all()


@settings(max_examples=3)
@given(scenario_names, seeds)
def test_a_looser_limit_never_forbids_what_a_tighter_one_allows(name: str, seed: int) -> None:
    base = scenario(name)
    candidates = block(base, seed, each=2)
    middle = evaluate(base, candidates).metrics
    limits = [float(np.median(middle[key])) for key in ("ttft_percentile_s", "tpot_s")]
    tight = Slo(limits[0], limits[1], limits[0] + limits[1] * base.workload.osl)
    looser = [
        replace(tight, ttft_s=np.inf),
        replace(tight, tpot_s=2 * limits[1]),
        replace(tight, latency_s=1e9),
        Slo(),
    ]
    allowed = evaluate(with_slo(base, tight), candidates)
    for slo in looser:
        found = evaluate(with_slo(base, slo), candidates)
        assert (found.feasible >= allowed.feasible).all()
        assert (found.slack >= allowed.slack - 1e-12).all()


def with_slo(case: Scenario, slo: Slo) -> Scenario:
    """The same scenario under other limits; station times do not depend on them and are kept."""
    changed = replace(case, slo=slo)
    changed.__dict__["shape_memory"] = case.shape_memory
    return changed


def test_feasible_means_that_no_constraint_is_violated_and_worst_names_one() -> None:
    case = build(slo={"ttft_ms": 1000, "tpot_ms": 20})
    found = evaluate(case, block(case, 3, each=4))
    assert np.array_equal(found.feasible, (found.slack >= 0).all(axis=1))
    assert 0 < found.feasible.sum() < len(found.feasible)
    rows = np.arange(len(found.slack))
    assert np.array_equal(found.slack[rows, found.worst], found.slack.min(axis=1))
    tpot = found.slack[:, CONSTRAINTS.index("TPOT")]
    assert np.array_equal(tpot < 0, found.metrics["tpot_s"] > 0.020)
    ttft = found.slack[:, CONSTRAINTS.index("TTFT")]
    assert np.array_equal(ttft < 0, found.metrics["ttft_percentile_s"] > 1.0)


def colocated(case: Scenario, **columns: Any) -> Candidates:
    return layout(case, PARTITIONS[0], np.random.default_rng(4), plain=True, **columns)


def policies(case: Scenario, batch: float) -> tuple[dict[str, float], dict[str, float]]:
    one = colocated(case, batch_size=batch, chunk_tokens=2048.0)
    found = [evaluate(case, one.replace(policy=policy)) for policy in (CHUNKED, PRIORITIZED)]
    first, second = ({k: float(v[0]) for k, v in e.metrics.items()} for e in found)
    return first, second


def test_whole_prompts_delay_single_tokens_more_than_chunks_do() -> None:
    case = build(isl=16384, osl=256)
    chunked, prioritized = policies(case, 16.0)
    assert prioritized["itl_tail_s"] > 2 * chunked["itl_tail_s"]
    assert prioritized["itl_tail_s"] > prioritized["tpot_s"] > prioritized["decode_step_s"]


@pytest.mark.parametrize("batch", [1.0, 8.0])
def test_both_policies_cost_more_than_decode_alone_and_little_without_prompts(batch: float) -> None:
    case = build(isl=1, osl=8192)
    for found in policies(case, batch):
        assert found["decode_step_s"] <= found["tpot_s"] <= found["decode_step_s"] * 1.02


def test_the_tail_of_waiting_shows_in_the_judged_ttft_only() -> None:
    base = scenario()
    candidates = block(base, 11, partitions=SEPARATE, each=3)
    median = evaluate(with_slo(base, Slo(percentile=50.0)), candidates).metrics
    tail = evaluate(with_slo(base, Slo(percentile=99.0)), candidates).metrics
    assert np.array_equal(median["ttft_s"], tail["ttft_s"])
    assert np.array_equal(median["ttft_s"], median["ttft_percentile_s"])
    assert (tail["ttft_percentile_s"] >= tail["ttft_s"]).all()
    assert (tail["ttft_percentile_s"] > tail["ttft_s"]).any()


def test_accepted_drafts_speed_up_tokens_and_rejected_ones_slow_them() -> None:
    cases = [
        build(speculative={"draft_tokens": drafts, "accepted_tokens_per_step": accepted})
        for drafts, accepted in ((0, 1.0), (1, 1.0), (1, 1.9))
    ]
    candidates = block(cases[0], 2, partitions=SEPARATE, each=2)
    none, wasted, useful = (evaluate(case, candidates).metrics for case in cases)
    assert (wasted["tpot_s"] > none["tpot_s"]).all()
    assert close(wasted["tpot_s"], useful["tpot_s"] * 1.9)
    assert close(useful["decode_step_s"], useful["tpot_s"] * 1.9)
    assert (useful["tpot_s"] < none["tpot_s"]).mean() > 0.5


def test_one_draft_costs_prefill_one_more_layer() -> None:
    plain, drafting = build(), build(speculative={"draft_tokens": 3, "accepted_tokens_per_step": 2.0})
    candidates = block(plain, 2, partitions=(SEPARATE[0],), each=3, plain=True)
    before, after = (evaluate(case, candidates).metrics["prefill_step_s"] for case in (plain, drafting))
    # The module reads the prompt once, however many tokens it drafts later: one layer of 61, and a second head.
    assert (after > before).all()
    assert (after < before * (1 + 2 / 61)).all()


def test_a_cached_prefix_costs_attention_but_no_new_tokens() -> None:
    base = build(isl=2048)
    cached = build(isl=2048, workload={"prefix_tokens": 8192})
    longer = build(isl=2048 + 8192)
    candidates = block(base, 9, partitions=SEPARATE, each=2).replace(chunk_tokens=2048.0)
    short, warm, cold = (
        evaluate(case, candidates).metrics["prefill_service_s"] for case in (base, cached, longer)
    )
    assert (short < warm).all()
    assert (warm < cold).all()


@pytest.mark.parametrize("key", ["pp", "cp"])
def test_pipeline_and_context_parallel_candidates_are_evaluated(key: str) -> None:
    case = scenario()
    pd = parse_partition("PA PF | DA DF")
    one = layout(
        case,
        pd,
        np.random.default_rng(1),
        plain=True,
        batch_size=4.0,
        decode_tp=2,
        decode_dp=2,
        decode_ep=4,
        decode_moe_tp=1,
    )
    columns = {f"{phase}_{key}": 2 for phase in ("prefill", "decode")}
    if key == "cp":
        columns |= {f"{phase}_ep": one.integer(f"{phase}_ep") * 2 for phase in ("prefill", "decode")}
    before, after = evaluate(case, one), evaluate(case, one.replace(**columns))
    assert after.metrics["gpus"][0] == 2 * before.metrics["gpus"][0]
    stable = after.metrics["prefill_utilization"] < 1
    assert stable.all()
    assert all(np.isfinite(values).all() for values in after.metrics.values())
    assert (after.memory[0, 1] <= before.memory[0, 1] * (1 + 1e-12)).all()
