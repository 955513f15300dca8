from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.architecture.catalogue import load_model
from afd_dse.cost.columns import Candidates
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.memory import (
    TERMS,
    GroupMemory,
    group_memory,
    kv_bytes,
    kv_bytes_of_request,
    max_concurrent_sequences,
    running_limit,
)
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
    # A thousand tokens take 32 pages of 32.
    assert kv_bytes(case, cut, np.array([3.0]), 1000.0) == pytest.approx(3 * 1024 * 61 * (512 + 64) * 2)
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
    assert memory.shape == (3, len(TERMS))


@settings(max_examples=8)
@given(scenario_names, seeds, st.floats(1.0, 4.0))
def test_more_sequences_never_take_less_memory(name: str, seed: int, factor: float) -> None:
    case = scenario(name)
    # Chunks hold what decode leaves: with the chunk fixed, a fuller batch may carry fewer prefill tokens.
    candidates = block(case, seed, partitions=[p for p in PARTITIONS if not p.shares_steps])
    fuller = candidates.replace(batch_size=candidates.number("batch_size") * factor)
    before, after = evaluate(case, candidates).memory, evaluate(case, fuller).memory
    assert (after >= before * (1 - 1e-12)).all()


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
        assert none <= shared <= private
    if (
        sequences > 1.5 and prefix > 32
    ):  # longer than any page: a shorter one may fit into a page that was begun
        assert none < shared < private


def test_a_group_of_both_phases_keeps_a_shared_prefix_once() -> None:
    base = build("Qwen/Qwen3-32B-FP8", [{"name": "main", "accelerator": "h100", "count": 8}])
    shared = replace(base, workload=replace(base.workload, prefix=10_000.0, prefix_shared=True))
    candidates = layout(base, PARTITIONS[0], np.random.default_rng(0), plain=True, batch_size=4.0)
    cache = TERMS.index("kv_cache")
    more = evaluate(shared, candidates).memory[0, 0, cache] - evaluate(base, candidates).memory[0, 0, cache]
    tp = candidates.integer("decode_tp")[0]
    # 2048 + 512 tokens are 80 pages of 32, with the prefix 393.
    assert more == pytest.approx(313 * 32 * 64 * 2 * 128 * np.ceil(8 / tp) * 2)


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


COLOCATED = (Cell.PA, Cell.PF, Cell.DA, Cell.DF)


def unit(tp: int, dp: int = 1, *, ep: int = 1, moe: bool = True) -> dict[Phase, Cut]:
    """Both phases on one unit of ``tp`` × ``dp`` GPUs, its experts cut ``ep`` ways and ``tp · dp / ep`` in width."""
    one, none = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    width = tp * dp // ep if moe else tp
    cut = Cut(
        none, none, tp * one, dp * one, one, one, width * one, (ep if moe else dp) * one, none, one, one
    )
    return dict.fromkeys(Phase, cut)


def budget(tokens: float) -> dict[Phase, np.ndarray]:
    return {Phase.PREFILL: np.array([tokens]), Phase.DECODE: np.zeros(1)}


def with_pool(case: Scenario, **fractions: float) -> Scenario:
    return replace(case, pools=[replace(pool, **fractions) for pool in case.pools])  # type: ignore[arg-type]


def engine(
    model: str, framework: str, accelerator: str, gpus: int = 1, isl: int = 1023, osl: int = 1, **job: Any
) -> Scenario:
    pools = [{"name": "main", "accelerator": accelerator, "count": gpus}]
    return build(model, pools, framework=framework, isl=isl, osl=osl, **job)


def tokens_held(case: Scenario, cuts: dict[Phase, Cut], step: float = 8192.0) -> float:
    """Tokens of the KV cache, to a sequence of 1024."""
    return float(max_concurrent_sequences(case, COLOCATED, cuts, budget(step))[0]) * 1024


@settings(max_examples=20)
@given(
    scenario_names, seeds, st.sampled_from(PARTITIONS), st.floats(0.0, 20_000.0), st.floats(10.0, 100_000.0)
)
def test_the_most_sequences_fit_and_one_more_does_not(
    name: str, seed: int, partition: Any, tokens: float, context: float
) -> None:
    """One memory, read both ways: what the search calls feasible is what the cache holds."""
    base = scenario(name)
    case = replace(base, workload=replace(base.workload, isl=context, osl=64.0))
    candidates = layout(case, partition, np.random.default_rng(seed))
    cuts = {phase: Cut.of(candidates, phase) for phase in Phase}
    step = {phase: np.array([tokens]) for phase in Phase}
    for group in partition.groups:
        if Cell.DA not in group:
            continue
        most = max_concurrent_sequences(case, group, cuts, step)

        def slack(sequences: np.ndarray, group: tuple[Cell, ...] = group) -> float:
            return float(group_memory(case, [group], cuts, sequences, np.zeros(1), step)[0].slack[0])

        if most[0] > 0:
            assert slack(most) >= -1e-9
        assert slack(most + 1.0) < 1e-9


def test_a_group_without_attention_has_no_sequences() -> None:
    with pytest.raises(ValueError, match="DF has no KV cache"):
        max_concurrent_sequences(scenario(), (Cell.DF,), unit(8, ep=8), budget(0.0))


@settings(max_examples=20)
@given(scenario_names, st.sampled_from([1, 2, 4]), st.floats(0.0, 20_000.0), st.floats(1.0, 4.0))
def test_a_larger_token_budget_or_longer_sequences_never_hold_more(
    name: str, tp: int, tokens: float, factor: float
) -> None:
    case = scenario(name)
    cuts = unit(tp, ep=tp, moe=case.moe is not None)

    def held(step: float, length: float) -> float:
        lengths = np.array([length])
        return float(
            max_concurrent_sequences(case, COLOCATED, cuts, budget(step), sequence_tokens=lengths)[0]
        )

    assert held(tokens * factor, 1000.0) <= held(tokens, 1000.0)
    assert held(tokens, 1000.0 * factor) <= held(tokens, 1000.0)


def test_tensorrt_llm_gives_the_cache_a_share_of_what_a_forward_pass_leaves_free() -> None:
    case = engine("meta-llama/Meta-Llama-3.1-8B", "trtllm", "h100")
    cuts = unit(1, moe=False)
    half, all_of_it = (tokens_held(with_pool(case, free_fraction=f), cuts) for f in (0.5, 1.0))
    assert half / all_of_it == pytest.approx(0.5, rel=0.01)
    # 79.2 GiB to hand out, 15 GiB of weights, 128 KiB a token; the rest is context and about a GiB of activations.
    assert all_of_it * 2**17 / 2**30 == pytest.approx(79.2 - 15.0 - 4.1 - 1.0, abs=0.3)


def test_vllm_holds_what_its_own_profile_of_llama_3_8b_says() -> None:
    """vllm-project/vllm pull request 10511, one H100: 53.29 GiB for the cache at gpu_memory_utilization 0.9."""
    case = with_pool(engine("meta-llama/Meta-Llama-3.1-8B", "vllm", "h100"), usable_fraction=0.9)
    assert tokens_held(case, unit(1, moe=False)) * 2**17 / 2**30 == pytest.approx(53.29, rel=0.01)


def test_sglang_holds_the_tokens_that_it_logged_for_qwen3_235b() -> None:
    """vllm-project/vllm issue 21348, 4 × H100: 367,404 tokens at mem_fraction_static 0.93."""
    case = with_pool(engine("Qwen/Qwen3-235B-A22B-FP8", "sglang", "h100", 4), static_fraction=0.93)
    assert tokens_held(case, unit(4)) == pytest.approx(367_404, rel=0.01)


# Measured runs whose requests queued for 10 s and more: output tokens/s × TPOT is what ran at once. From SemiAnalysis
# InferenceX (October 2025 to April 2026), the last one from NVIDIA's runs for aiconfigurator, as aiconfigurator-core
# publishes them. The fp8 and fp4 checkpoints on B200 keep an fp8 cache. Framework, model, accelerator, GPUs, types,
# isl, osl, sequences that ran.
FP8 = {"gemm": "fp8", "kv_cache": "fp8"}
FP4 = {"gemm": "nvfp4", "kv_cache": "fp8"}
SATURATED = [
    ("trtllm", "meta-llama/Llama-3.1-70B", "b200", 1, FP8, 7373, 922, 73.3),
    ("trtllm", "meta-llama/Llama-3.1-70B", "b200", 1, FP8, 922, 7373, 75.5),
    ("trtllm", "meta-llama/Llama-3.1-70B", "b200", 1, FP4, 7373, 922, 91.8),
    ("trtllm", "meta-llama/Llama-3.1-70B", "b200", 1, FP4, 922, 7373, 94.4),
    ("vllm", "MiniMaxAI/MiniMax-M2.5", "b200", 2, {"kv_cache": "fp8"}, 7373, 922, 103.4),
    ("vllm", "nvidia/MiniMax-M2.5-NVFP4", "b200", 2, {"kv_cache": "fp8"}, 7373, 922, 202.2),
    ("vllm", "MiniMaxAI/MiniMax-M2.5", "h100", 4, {}, 7373, 922, 29.3),
    ("vllm", "meta-llama/Llama-3.1-70B", "h100", 2, {"gemm": "fp8"}, 7373, 922, 28.8),
    ("vllm", "Qwen/Qwen3-32B", "h100", 2, {}, 4096, 1024, 62.8),
]


@pytest.mark.parametrize(
    ("framework", "model", "accelerator", "gpus", "types", "isl", "osl", "ran"), SATURATED
)
def test_engines_that_queued_ran_as_many_sequences_as_their_cache_holds(
    framework: str,
    model: str,
    accelerator: str,
    gpus: int,
    types: dict[str, str],
    isl: int,
    osl: int,
    ran: float,
) -> None:
    case = engine(model, framework, accelerator, gpus, isl, osl, quantization=types)
    limit = running_limit(case, COLOCATED, unit(gpus, moe=case.moe is not None), budget(8192.0))
    assert limit[0] == pytest.approx(ran, rel=0.1)


def test_sglang_without_flags_holds_less_and_large_models_get_the_flag() -> None:
    small = engine("Qwen/Qwen3-32B", "sglang", "h100")
    cuts, step = unit(1, moe=False), budget(8192.0)
    lengths = {"input_tokens": np.array([1023.0]), "output_tokens": np.array([2.0])}
    plain = running_limit(small, COLOCATED, cuts, step, **lengths)[0]
    # 512 MiB + 1.5 MiB × 8192 + 2 MiB × 512 kept free of 79.65 GiB: mem_fraction_static 0.83.
    assert plain == (0.8297 * (79.2 * 2**30 - 1.95e9) - 65.52e9) // (1024 * 2**18)
    flagged = max_concurrent_sequences(small, COLOCATED, cuts, step)[0]
    assert plain < flagged
    # DeepSeek-V3's weights alone are 0.88 of four B200: no run without the flag, one with it.
    large = engine("deepseek-ai/DeepSeek-V3", "sglang", "b200", 4)
    assert running_limit(large, COLOCATED, unit(4), budget(16384.0))[0] >= 1.0


def test_a_share_that_the_job_sets_replaces_the_rule_of_the_framework() -> None:
    pools = [{"name": "main", "accelerator": "h100", "count": 1, "usable_memory_fraction": 0.8}]
    for framework in ("trtllm", "sglang", "vllm"):
        case = build("meta-llama/Meta-Llama-3.1-8B", pools, framework=framework)
        group = group_memory(case, [COLOCATED], unit(1, moe=False), np.ones(1), np.zeros(1), budget(0.0))[0]
        assert group.budget[0] == pytest.approx(0.8 * case.visible_bytes[0])


@pytest.mark.parametrize(
    ("accelerator", "gib"),
    [
        ("h100", 79.19),
        ("h200", 139.81),
        ("b200", 178.35),
        ("gb200", 184.31),
        ("b300", 267.69),
        ("gb300", 276.5),
    ],
)
def test_cuda_hands_out_what_pytorch_reports_as_the_total(accelerator: str, gib: float) -> None:
    case = engine("Qwen/Qwen3-8B", "trtllm", accelerator)
    assert case.visible_bytes[0] / 2**30 == pytest.approx(gib, abs=0.08)


def test_experts_alone_hold_their_share_of_the_copies_and_next_to_attention_all_of_their_ranks() -> None:
    """Frameworks size the buffers of an expert GPU for every copy of its own rank's tokens."""
    case = scenario()
    step = budget(4096.0)
    act = TERMS[2]
    assert act == "activations"

    def held(ep: int, group: tuple[Cell, ...]) -> float:
        cuts = unit(8, ep=ep)
        found = group_memory(case, [group], cuts, np.zeros(1), np.zeros(1), step)[0]
        return float(found.terms[act][0])

    together = COLOCATED
    assert held(8, together) > held(1, together)  # whole experts are wider than eighths of them
    alone = (Cell.PF, Cell.DF)
    # Eight GPUs that are sent one rank's tokens get an eighth of its copies each.
    assert held(8, alone) == pytest.approx(4096 / 8 * 8 * (3 * 7168 + 6 * 2048))


def test_a_group_without_any_budget_has_no_room_at_all() -> None:
    held = GroupMemory({"weights": np.array([1.0, 1.0, 1.0])}, np.array([0.0, -2.0, 4.0]))
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(held.slack, [-np.inf, -np.inf, 0.75])
