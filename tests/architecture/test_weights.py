"""Bytes per GPU: golden sizes, and laws over layouts."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.architecture import weights
from afd_dse.architecture.catalogue import load_model, model_names
from afd_dse.architecture.matrices import FloatArray, next_token_kind
from afd_dse.architecture.model import Gqa, LayerKind, ModelArchitecture, MoeFfn, Quantization
from afd_dse.architecture.quantization import quantization_for
from afd_dse.architecture.work import parameter_count

SHAPES = sorted({load_model(name).name for name in model_names() if not name.startswith("nvidia/")})
MODELS = st.sampled_from(SHAPES).map(load_model)
SHARDS = st.sampled_from([1, 2, 3, 4, 6, 8, 16, 32, 64])

GIB = 2**30


def test_bfloat16_weights_of_one_gpu_are_two_bytes_a_parameter() -> None:
    for name in SHAPES:
        model = load_model(name)
        plain = Quantization()
        held = weights.attention_side_bytes(model, plain, 1) + weights.ffn_side_bytes(model, plain)
        tables = 2 * (1 + (not model.tied_embeddings)) * model.vocabulary * model.hidden
        assert float(held) == pytest.approx(2 * parameter_count(model).layers + tables, rel=1e-9)


def test_deepseek_v3_weighs_what_its_checkpoint_does_and_its_first_layers_are_dense() -> None:
    model = load_model("DeepSeek-V3")
    held = weights.attention_side_bytes(model, model.quantization, 1) + weights.ffn_side_bytes(
        model, model.quantization
    )
    # 671e9 parameters in fp8, embedding, head and routers in bfloat16.
    assert float(held) == pytest.approx(673e9, rel=0.005)
    dense, moe = (
        float(weights.ffn_weight_bytes(kind, model, model.quantization, ep=8)) for kind in model.kinds
    )
    assert 3 * (moe - dense) / GIB == pytest.approx(3.0, abs=0.5)


def test_kimi_k2_5_weighs_what_its_checkpoint_does() -> None:
    # The repository of the int4 checkpoint holds 595 GB, 1 GB of it the vision tower.
    model = load_model("Kimi-K2.5")
    held = weights.attention_side_bytes(model, model.quantization, 1) + weights.ffn_side_bytes(
        model, model.quantization
    )
    assert float(held) == pytest.approx(594e9, rel=0.01)


def test_gpt_oss_weighs_what_its_checkpoint_does() -> None:
    # arXiv 2508.10925: checkpoints of 60.8 GiB and 12.8 GiB.
    for name, size in (("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)):
        model = load_model(name)
        held = weights.attention_side_bytes(model, model.quantization, 1) + weights.ffn_side_bytes(
            model, model.quantization
        )
        assert float(held) / GIB == pytest.approx(size, rel=0.01)


def test_scales_add_to_the_bytes_of_an_element() -> None:
    assert weights.WEIGHT_BYTES["fp8_block"] == 1 + 4 / 128**2
    assert weights.WEIGHT_BYTES["nvfp4"] == 0.5625
    assert weights.WEIGHT_BYTES["w4a16_mxfp4"] == 0.53125


def test_mla_replicates_its_latent_and_low_rank_projections_over_tp() -> None:
    model = load_model("DeepSeek-V3")
    kind = model.kinds[0]
    assert weights.kv_bytes_per_token(kind, Quantization(), [1, 8]).tolist() == [1152.0, 1152.0]
    fp8 = quantization_for(model, {"gemm": "fp8", "kv_cache": "fp8"})
    assert weights.kv_bytes_per_token(kind, fp8, [1, 128]).tolist() == [576.0, 576.0]
    whole, eighth = weights.attention_weight_bytes(kind, model, fp8, [1, 8])
    replicated = 7168 * 1536 + 7168 * 576
    assert eighth == pytest.approx(replicated + (whole - replicated) / 8)


def test_kv_heads_split_and_then_replicate() -> None:
    kind = load_model("Qwen3-235B-A22B").kinds[0]
    per_token = weights.kv_bytes_per_token(kind, Quantization(), np.array([1, 2, 4, 8, 16]))
    assert (per_token / (2 * 128 * 2)).tolist() == [4, 2, 1, 1, 1]


def test_the_indexer_of_dsa_adds_its_key_and_a_scale() -> None:
    dense, sparse = load_model("DeepSeek-V3").kinds[1], load_model("DeepSeek-V3.2").kinds[1]
    extra = weights.kv_bytes_per_token(sparse, Quantization(), 1) - weights.kv_bytes_per_token(
        dense, Quantization(), 1
    )
    assert float(extra) == 132.0


def test_flashmla_packs_an_fp8_latent_of_dsa_with_its_scales_and_a_wide_rope_key() -> None:
    dense, sparse = load_model("DeepSeek-V3"), load_model("DeepSeek-V3.2")
    fp8, wide = Quantization(kv_cache="fp8"), Quantization(kv_cache="bfloat16")

    def held(model: ModelArchitecture, quantization: Quantization) -> list[float]:
        kind = model.kinds[1]
        return [
            float(weights.kv_bytes_per_token(kind, quantization, 1, packed_latent=packed))
            for packed in (False, True)
        ]

    # FlashMLA's README: 512 values in fp8, four fp32 scales, 64 rope values in bfloat16: 656 bytes.
    assert held(sparse, fp8) == [576 + 132, 656 + 132]
    # Dense MLA and a bfloat16 cache know no such layout.
    assert held(dense, fp8) == [576, 576]
    assert held(sparse, wide) == [1152 + 132, 1152 + 132]


def test_absorbed_weights_are_a_second_copy_of_kv_b_and_only_of_mla() -> None:
    mla, gqa = load_model("DeepSeek-V3"), load_model("Qwen3-32B")
    # kv_b of DeepSeek-V3: a latent of 512 into 128 heads of 128 + 128.
    one = 512 * 128 * 256
    assert weights.absorbed_weight_bytes(mla.kinds[0], [1, 8], 2.0).tolist() == [2.0 * one, 2.0 * one / 8]
    assert float(weights.absorbed_weight_bytes(gqa.kinds[0], 1, 2.0)) == 0.0
    q = mla.quantization
    more = weights.attention_side_bytes(mla, q, 1, absorbed_bytes=1.0) - weights.attention_side_bytes(
        mla, q, 1
    )
    assert float(more) == pytest.approx(61 * one)


def test_a_framework_may_give_windowed_layers_more_than_their_window() -> None:
    sliding, full = load_model("gpt-oss-120b").kinds
    contexts = np.array([64, 128, 5000])
    assert weights.kv_tokens(sliding, contexts, window_share=0.8).tolist() == [64, 128, 4000]
    assert weights.kv_tokens(sliding, contexts, window_share=1.0).tolist() == contexts.tolist()
    assert weights.kv_tokens(full, contexts, window_share=0.8).tolist() == contexts.tolist()


def test_windows_bound_the_cache_and_linear_attention_has_a_state_instead() -> None:
    sliding, full = load_model("gpt-oss-120b").kinds
    contexts = np.array([64, 128, 5000])
    assert weights.kv_tokens(sliding, contexts).tolist() == [64, 128, 128]
    assert weights.kv_tokens(full, contexts).tolist() == [64, 128, 5000]
    linear, gated = load_model("Qwen3.5-397B-A17B").kinds
    assert weights.kv_tokens(linear, contexts).tolist() == [0, 0, 0]
    assert float(weights.kv_bytes_per_token(linear, Quantization(), 1)) == 0
    assert float(weights.state_bytes(gated, 1)) == 0
    # 64 heads of 128 x 128 in float32 and three past inputs of 12,288 channels in bfloat16.
    assert float(weights.state_bytes(linear, 1)) == 64 * 128 * 128 * 4 + 3 * 12288 * 2


def test_mtp_modules_come_on_top_when_asked_for() -> None:
    model = load_model("DeepSeek-V3")
    plain = Quantization()
    without = weights.attention_side_bytes(model, plain, 1) + weights.ffn_side_bytes(model, plain)
    with_mtp = weights.attention_side_bytes(model, plain, 1, next_token=True) + weights.ffn_side_bytes(
        model, plain, next_token=True
    )
    assert float(with_mtp - without) == pytest.approx(2 * parameter_count(model).next_token)
    kind = next_token_kind(load_model("Qwen3.5-397B-A17B"))
    assert kind is not None
    assert isinstance(kind.attention, Gqa)
    assert next_token_kind(load_model("Llama-3.1-8B")) is None


def test_legal_cuts_of_attention() -> None:
    tp = np.array([0, 1, 2, 3, 4, 6, 8, 16, 32, 64, 128])
    assert weights.legal_attention_tp(load_model("DeepSeek-V3"), tp).tolist() == [
        False, True, True, False, True, False, True, True, True, True, True,
    ]  # fmt: skip
    # 64 query heads over 4 KV heads; 16 key heads of linear attention stop at 16.
    assert tp[weights.legal_attention_tp(load_model("Qwen3-235B-A22B"), tp)].tolist() == [
        1,
        2,
        4,
        8,
        16,
        32,
        64,
    ]
    assert tp[weights.legal_attention_tp(load_model("Qwen3.5-397B-A17B"), tp)].tolist() == [1, 2, 4, 8, 16]
    # 96 query heads over 8 KV heads: 6 divides the queries but neither divides nor repeats the KV heads.
    assert tp[weights.legal_attention_tp(load_model("GLM-4.5"), tp)].tolist() == [1, 2, 4, 8, 16, 32]


def test_legal_cuts_of_experts() -> None:
    tp = np.array([1, 2, 3, 4, 8, 16])
    qwen, oss, dense = (load_model(name) for name in ("Qwen3-235B-A22B", "gpt-oss-120b", "Llama-3.1-8B"))
    assert tp[weights.legal_moe_tp(qwen, tp, "bfloat16")].tolist() == [1, 2, 3, 4, 8, 16]
    assert tp[weights.legal_moe_tp(qwen, tp, "fp8_block")].tolist() == [1, 2, 3, 4]
    assert tp[weights.legal_moe_tp(oss, tp, "w4a16_mxfp4")].tolist() == [1, 2, 3, 4, 8, 16]
    assert tp[weights.legal_dense_tp(dense, tp, "fp8_block")].tolist() == [1, 2, 4, 8, 16]
    assert weights.legal_ep(qwen, [0, 1, 3, 8, 128, 256]).tolist() == [False, True, False, True, True, False]
    assert weights.legal_ep(qwen, [9, 36, 8], [16, 16, 4]).tolist() == [True, True, False]
    assert weights.legal_ep(dense, [1, 2]).tolist() == [True, False]


def parts(model: ModelArchitecture, kind: LayerKind, shards: npt.ArrayLike) -> tuple[FloatArray, ...]:
    """Everything of a layer that ``shards`` GPUs share."""
    q = model.quantization
    return (
        weights.attention_weight_bytes(kind, model, q, shards),
        weights.ffn_weight_bytes(kind, model, q, moe_tp=shards, shared_tp=shards),
        weights.ffn_weight_bytes(kind, model, q, ep=shards),
        weights.kv_bytes_per_token(kind, q, shards),
        weights.state_bytes(kind, shards),
        weights.embedding_weight_bytes(model, shards),
    )


@given(model=MODELS, a=SHARDS, b=SHARDS)
def test_more_shards_never_hold_more_each(model: ModelArchitecture, a: int, b: int) -> None:
    for kind in model.kinds:
        for fewer, more in parts(model, kind, np.sort([a, b])):
            assert fewer >= more >= 0


@given(model=MODELS, shards=SHARDS)
def test_all_shards_together_hold_at_least_the_whole(model: ModelArchitecture, shards: int) -> None:
    for kind in model.kinds:
        for whole, part in parts(model, kind, np.array([1, shards])):
            assert part * shards >= whole * (1 - 1e-12)


@given(model=MODELS, moe_tp=SHARDS, ep=SHARDS, redundant=st.integers(0, 64))
def test_redundant_experts_cost_memory_and_nothing_is_lost(
    model: ModelArchitecture, moe_tp: int, ep: int, redundant: int
) -> None:
    for kind in model.kinds:
        held = weights.ffn_weight_bytes(
            kind, model, model.quantization, moe_tp=moe_tp, ep=ep, redundant=np.array([0, redundant])
        )
        assert held[1] >= held[0]
        if isinstance(kind.ffn, MoeFfn):
            slots = weights.expert_slots(kind.ffn, ep, redundant)
            assert slots * ep >= kind.ffn.experts + redundant
            assert (slots - 1) * ep < kind.ffn.experts + redundant


@given(model=MODELS, context=st.floats(1, 1e6), more=st.floats(0, 1e6))
def test_a_longer_context_never_needs_a_smaller_cache(
    model: ModelArchitecture, context: float, more: float
) -> None:
    for kind in model.kinds:
        assert weights.kv_tokens(kind, context + more) >= weights.kv_tokens(kind, context) >= 0
        assert weights.kv_tokens(kind, context) <= context


def test_arrays_of_layouts_broadcast_to_one_value_each() -> None:
    model = load_model("DeepSeek-V3")
    kind = model.kinds[1]
    held = weights.ffn_weight_bytes(
        kind, model, model.quantization, moe_tp=np.array([[1], [2]]), ep=np.array([1, 8, 32]), shared_tp=4
    )
    assert held.shape == (2, 3)
    single = weights.ffn_weight_bytes(kind, model, model.quantization, moe_tp=2, ep=32, shared_tp=4)
    assert held[1, 2] == float(single)
    dense = weights.ffn_weight_bytes(model.kinds[0], model, model.quantization, ep=np.array([1, 8]))
    assert dense[0] == dense[1]
