import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.errors import InputError
from afd_dse.operators import speed_of_light as light
from afd_dse.spec.catalogue import load_accelerator

DTYPES = sorted(light.PRECISIONS)
sizes = st.integers(1, 10**6)


def test_a_gemm_counts_two_flop_a_multiplication_and_each_operand_once() -> None:
    work = light.gemm_work("bfloat16", 3, 5, 7)
    assert work.flop == 2 * 3 * 5 * 7
    assert work.bytes == 2 * (3 * 7 + 5 * 7 + 3 * 5)


def test_seconds_are_the_larger_of_compute_and_memory() -> None:
    h200 = load_accelerator("h200_sxm")
    assert light.seconds(h200, "bfloat16", h200.peak_flops["bfloat16"], 1.0) == pytest.approx(1.0)
    assert light.seconds(h200, "bfloat16", 1.0, h200.hbm_bytes_per_s) == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["h200_sxm", "b200_sxm", "a100_sxm"])
def test_every_type_has_a_peak_on_every_generation(dtype: str, name: str) -> None:
    assert light.peak_flops(load_accelerator(name), dtype) > 0


def test_four_bit_types_compute_in_bfloat16_where_there_is_no_fp4() -> None:
    h200, b200 = load_accelerator("h200_sxm"), load_accelerator("b200_sxm")
    assert light.peak_flops(h200, "nvfp4") == h200.peak_flops["bfloat16"]
    assert light.peak_flops(b200, "nvfp4") == b200.peak_flops["fp4"]


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="fp8_block"):
        light.precision("fp9")


@given(tokens=st.integers(1, 4096), topk=st.integers(1, 8), experts=st.sampled_from([8, 64, 256]))
def test_experts_hit_by_chance_lie_between_one_token_and_all(tokens: int, topk: int, experts: int) -> None:
    hit = float(light.active_experts(tokens, topk, experts, experts))
    assert min(topk, experts) * (1 - 1e-9) <= hit <= experts


def test_experts_hit_match_a_count_over_random_draws() -> None:
    rng = np.random.default_rng(7)
    draws = [len({int(e) for _ in range(40) for e in rng.choice(64, 4, replace=False)}) for _ in range(400)]
    assert float(light.active_experts(40, 4, 64, 64)) == pytest.approx(np.mean(draws), rel=0.01)


def moe(**changes: float | bool) -> light.Work:
    shape = {
        "tokens": 512.0,
        "hidden": 7168,
        "intermediate": 2048,
        "topk": 8,
        "experts": 256,
        "moe_tp": 1,
        "local_experts": 32,
    }
    return light.moe_work("fp8", **(shape | changes))


def test_experts_do_six_flop_a_weight_pair_and_ungated_ones_four() -> None:
    pairs = 512 * 8 * 32 / 256
    assert moe().flop == pytest.approx(6 * pairs * 7168 * 2048)
    assert moe(gated=False).flop == pytest.approx(4 * pairs * 7168 * 2048)


def test_a_spread_batch_loads_as_many_experts_as_it_has_pairs() -> None:
    few, more = moe(tokens=8), moe(tokens=16)
    assert few.bytes == pytest.approx(more.bytes / 2)
    assert moe(tokens=8, spread=False).bytes < few.bytes


def test_tensor_parallel_experts_split_their_width() -> None:
    assert moe(moe_tp=4).flop == pytest.approx(moe().flop / 4)


@given(tokens=st.integers(1, 300), prefix=st.integers(0, 300), window=st.integers(0, 200))
def test_attended_pairs_equal_a_count(tokens: int, prefix: int, window: int) -> None:
    seen = [min(prefix + i, window) if window else prefix + i for i in range(1, tokens + 1)]
    work = light.context_attention_work(
        "bfloat16",
        "bfloat16",
        heads=1,
        kv_heads=1,
        head_dim=1,
        window=window,
        batch=1,
        tokens=tokens,
        prefix=prefix,
    )
    assert work.flop == pytest.approx(4 * sum(seen))


@given(batch=sizes, context=sizes, window=st.sampled_from([0, 128, 4096]))
def test_a_window_never_adds_decode_work(batch: int, context: int, window: int) -> None:
    shape = {"heads": 8, "kv_heads": 1, "head_dim": 128, "batch": batch, "context": context}
    full = light.generation_attention_work("fp8", window=0, **shape)
    capped = light.generation_attention_work("fp8", window=window, **shape)
    assert capped.flop <= full.flop
    assert capped.bytes <= full.bytes


def test_latent_decode_reads_the_latent_once_for_all_heads() -> None:
    one = light.mla_generation_work("fp8", heads=1, kv_rank=512, rope_head_dim=64, batch=1, context=1000)
    many = light.mla_generation_work("fp8", heads=128, kv_rank=512, rope_head_dim=64, batch=1, context=1000)
    assert many.flop == pytest.approx(128 * one.flop)
    assert many.bytes - one.bytes == pytest.approx(127 * (2 * 512 + 64) * 2)


def test_absorbed_products_are_one_gemm_a_head() -> None:
    one, many = (light.mla_bmm_work("bfloat16", tokens=4, heads=h, n=512, k=128) for h in (1, 16))
    assert many.flop == pytest.approx(16 * one.flop)
    assert light.mla_context_work(
        "bfloat16", heads=1, nope_head_dim=128, rope_head_dim=64, v_head_dim=128, batch=1, tokens=2, prefix=0
    ).flop == pytest.approx(2 * 3 * (128 + 64 + 128))
