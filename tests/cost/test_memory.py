from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.architecture.catalogue import load_model
from afd_dse.cost.columns import Candidates
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.memory import TERMS, group_memory, kv_bytes, kv_bytes_of_request
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario
from afd_dse.spec.cells import PARTITIONS, Cell, Phase
from tests.strategies import block, build, layout, scenario, scenario_names, seeds

MILLION = 1_000_000
PD = next(p for p in PARTITIONS if p.text == "PA PF | DA DF")
AFD = next(p for p in PARTITIONS if p.text == "PA PF | DA | DF")


def whole(case: Scenario, tp: int, dp: int, **columns: Any) -> Candidates:
    """A PD deployment whose decode unit is ``tp`` × ``dp`` GPUs with the experts over all of them."""
    decode = {
        "decode_tp": tp,
        "decode_dp": dp,
        "decode_cp": 1,
        "decode_pp": 1,
        "decode_moe_tp": 1,
        "decode_ep": tp * dp,
    }
    decode |= {
        "decode_redundant": 0,
        "decode_micro_batches": 1,
        "decode_attention_pool": 0,
        "decode_ffn_pool": 0,
    }
    return layout(case, PD, np.random.default_rng(0), **(decode | columns))


def decode_memory(case: Scenario, candidates: Candidates) -> dict[str, float]:
    found = evaluate(case, candidates)
    return dict(zip(TERMS, found.memory[0, 1].tolist(), strict=True)) | {
        "budget": float(found.memory_budget[0, 1])
    }


def most_sequences(case: Scenario, tp: int, dp: int) -> float:
    """Sequences of a unit of eight GPUs that fill its memory (memory is linear in the batch)."""
    low, high = (sum_of(decode_memory(case, whole(case, tp, dp, batch_size=batch))) for batch in (1.0, 2.0))
    budget = decode_memory(case, whole(case, tp, dp, batch_size=1.0))["budget"]
    return (1.0 + (budget - low) / (high - low)) * dp


def sum_of(memory: dict[str, float]) -> float:
    return sum(memory[term] for term in TERMS)


@pytest.mark.parametrize("kv_cache", ["fp8", "bfloat16"])
def test_attention_dp_holds_several_times_the_long_contexts_of_tensor_parallelism(kv_cache: str) -> None:
    """DeepSeek-V3 on 8 × B200, a million tokens each: TP8 keeps the whole latent cache on every GPU, DP8 an eighth."""
    case = build(isl=MILLION - 1000, osl=1000, quantization={"kv_cache": kv_cache})
    tp8, dp8 = most_sequences(case, 8, 1), most_sequences(case, 1, 8)
    assert 6.0 < dp8 / tp8 < 8.0
    # By hand: 61 layers of 576 latent elements; what B200's 180 GB leave beside 1/8 of 671 GB of weights.
    size = 1.0 if kv_cache == "fp8" else 2.0
    assert tp8 == pytest.approx((192.27e9 * 0.97 - 671e9 / 8 - 4.2e9) / (61 * 576 * size * MILLION), rel=0.08)


def test_weights_of_deepseek_v3_add_up_to_the_checkpoint() -> None:
    case = scenario()
    memory = decode_memory(case, whole(case, 8, 1, batch_size=1.0))
    # 671 billion parameters, all but embedding and head (2 × 0.93 billion) in one byte each.
    assert memory["weights"] * 8 == pytest.approx(671e9 + 2 * 0.93e9, rel=0.05)


def test_the_cache_of_a_token_of_deepseek_v3_is_the_latent_and_the_rope_key_of_every_layer() -> None:
    case = scenario()
    cut = Cut.of(whole(case, 1, 8, batch_size=1.0), Phase.DECODE)
    assert kv_bytes(case, cut, np.array([3.0]), 1000.0) == pytest.approx(3 * 1000 * 61 * (512 + 64) * 2)
    assert kv_bytes_of_request(case) == pytest.approx(2048 * 61 * 576 * 2)


def test_a_sliding_window_keeps_only_its_own_tokens() -> None:
    case = build("openai/gpt-oss-120b", [{"name": "main", "accelerator": "b200", "count": 8}], isl=8192)
    # Half of the 36 layers see 128 tokens, the others everything: 8 KV heads of 64, keys and values, two bytes.
    assert kv_bytes_of_request(case) == pytest.approx(18 * (128 + 8192) * 2 * 8 * 64 * 2)


def test_experts_alone_hold_no_cache_and_attention_alone_no_experts() -> None:
    case = scenario()
    candidates = layout(
        case,
        AFD,
        np.random.default_rng(3),
        decode_tp=1,
        decode_dp=4,
        decode_moe_tp=1,
        decode_ep=8,
        decode_redundant=0,
    )
    memory = evaluate(case, candidates).memory[0]
    weights, cache = TERMS.index("weights"), TERMS.index("kv_cache")
    assert memory[2, cache] == 0.0
    assert memory[1, cache] > 0.0
    assert memory[1, weights] < 20e9 < 75e9 < memory[2, weights] < 90e9
    assert memory[3].tolist() == [0.0] * len(TERMS)


@settings(max_examples=8)
@given(scenario_names, seeds, st.floats(1.0, 4.0))
def test_more_sequences_never_take_less_memory(name: str, seed: int, factor: float) -> None:
    case = scenario(name)
    candidates = block(case, seed)
    fuller = candidates.replace(batch_size=candidates.number("batch_size") * factor)
    # Chunks hold what decode leaves: with the chunk fixed, a fuller batch may carry fewer prefill tokens.
    separate = np.array([not PARTITIONS[p].shares_steps for p in candidates.integer("partition")])
    before, after = evaluate(case, candidates).memory, evaluate(case, fuller).memory
    assert (after[separate] >= before[separate] * (1 - 1e-12)).all()


@settings(max_examples=8)
@given(scenario_names, seeds)
def test_the_slack_is_what_the_sum_of_the_terms_leaves_in_the_tightest_group(name: str, seed: int) -> None:
    case = scenario(name)
    candidates = block(case, seed)
    found = evaluate(case, candidates)
    for row, number in enumerate(candidates.integer("partition")):
        groups = len(PARTITIONS[number].groups)
        free = 1.0 - found.memory[row, :groups].sum(axis=1) / found.memory_budget[row, :groups]
        assert found.slack[row, 0] == pytest.approx(free.min())
        assert (found.memory[row, groups:] == 0.0).all()
        assert (found.memory_budget[row, groups:] == 0.0).all()


@given(scenario_names, seeds, st.floats(1.0, 500.0), st.floats(1.0, 1e5), st.floats(1.0, 1e5))
def test_a_shared_prefix_takes_less_memory_than_private_ones(
    name: str, seed: int, sequences: float, context: float, prefix: float
) -> None:
    base = scenario(name)
    cut = Cut.of(layout(base, PD, np.random.default_rng(seed)), Phase.DECODE)

    def held(**workload: Any) -> float:
        case = replace(base, workload=replace(base.workload, **workload))
        return float(kv_bytes(case, cut, np.array([sequences]), context)[0])

    none, private, shared = held(), held(prefix=prefix), held(prefix=prefix, prefix_shared=True)
    assert none <= shared * (1 + 1e-12)
    assert shared <= private * (1 + 1e-12)
    if sequences > 1.5:
        assert none < shared < private


def test_a_group_of_both_phases_keeps_a_shared_prefix_once() -> None:
    base = build("Qwen/Qwen3-32B-FP8", [{"name": "main", "accelerator": "h100", "count": 8}])
    shared = replace(base, workload=replace(base.workload, prefix=10_000.0, prefix_shared=True))
    candidates = layout(base, PARTITIONS[0], np.random.default_rng(0), plain=True, batch_size=4.0)
    cache = TERMS.index("kv_cache")
    more = evaluate(shared, candidates).memory[0, 0, cache] - evaluate(base, candidates).memory[0, 0, cache]
    tp = candidates.integer("decode_tp")[0]
    assert more == pytest.approx(10_000 * 64 * 2 * 128 * np.ceil(8 / tp) * 2)


@pytest.mark.parametrize("text", ["PA PF DF | DA", "PA DF | PF DA", "PA DF | PF | DA"])
def test_experts_that_serve_another_groups_attention_are_held_as_they_are_cut(text: str) -> None:
    """Decode FFN apart from decode attention computes shared experts cut over ``moe_tp``: so it must hold them."""
    case = scenario()
    partition = next(p for p in PARTITIONS if p.text == text)
    cells = {cell: number for number, group in enumerate(partition.groups) for cell in group}
    # Eight GPUs in every group; decode attention of eight GPUs as one rank.
    columns = {f"{phase}_{key}": 1 for phase in ("prefill", "decode") for key in ("cp", "pp", "moe_tp")}
    columns |= {
        "prefill_tp": 1,
        "prefill_dp": 8,
        "decode_tp": 8,
        "decode_dp": 1,
        "prefill_ep": 8,
        "decode_ep": 8,
    }
    columns |= {"prefill_redundant": 0, "decode_redundant": 0}
    found = evaluate(case, layout(case, partition, np.random.default_rng(0), **columns))
    held = found.memory[0, cells[Cell.DF], TERMS.index("weights")]
    routed, shared, dense = 58 * 32 * 3 * 2048 * 7168, 58 * 3 * 2048 * 7168, 3 * 3 * 18432 * 7168
    assert held >= routed + shared + dense


@given(st.integers(1, 512), st.integers(1, 512))
def test_memory_of_a_group_grows_linearly_with_its_sequences(few: int, many: int) -> None:
    case = scenario()
    cuts = {phase: Cut.of(whole(case, 1, 8, batch_size=1.0), phase) for phase in Phase}
    tokens = {phase: np.array([1024.0]) for phase in Phase}

    def total(sequences: float) -> float:
        group = group_memory(
            case, [(Cell.DA, Cell.DF)], cuts, np.array([sequences]), np.array([0.0]), tokens
        )[0]
        return float(group.total[0])

    per_sequence = total(1.0) - total(0.0)
    assert total(few) - total(0.0) == pytest.approx(few * per_sequence, rel=1e-9)
    assert (total(many) - total(few)) * (many - few) >= 0


def test_drafting_needs_the_next_token_module() -> None:
    plain, drafting = scenario(), build(speculative={"draft_tokens": 1, "accepted_tokens_per_step": 1.8})
    one = whole(plain, 8, 1, batch_size=1.0)
    more = decode_memory(drafting, one)["weights"] - decode_memory(plain, one)["weights"]
    # The module is one more MoE layer: 256 experts of 3 · 2048 · 7168, an eighth of them on a GPU.
    assert more == pytest.approx(256 * 3 * 2048 * 7168 / 8, rel=0.25)
    assert load_model("deepseek-ai/DeepSeek-V3").next_token_layers == 1
