"""Latent attention blocks, dense and sparse: exact at measured points, honest about what is borrowed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.architecture.model import Mla
from afd_dse.operators import dsa, mla
from afd_dse.operators.attention import Rates
from afd_dse.operators.block import BlockDtypes, launch_overhead
from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.latency import Provenance
from afd_dse.operators.store import load_table
from afd_dse.spec.catalogue import load_accelerator

DIMS = mla.MODULE_DIMS
DECODE = {"mla": DIMS, "hidden": 7168, "gemm_dtype": "fp8_block", "kv_dtype": "fp8"}
PREFILL = DECODE | {"attention_dtype": "bfloat16"}
SPARSE_HIDDEN, SPARSE = dsa.MODELS["deepseek-ai/DeepSeek-V3.2"]
FRAMEWORKS = ("trtllm", "sglang", "vllm")


def database(accelerator: str = "h200_sxm", framework: str = "trtllm") -> OperatorDatabase:
    return OperatorDatabase(load_accelerator(accelerator), framework)


@pytest.mark.parametrize("accelerator", ["h200_sxm", "b200_sxm"])
def test_whole_block_decode_rows_come_back_exactly(accelerator: str) -> None:
    table = load_table(accelerator, "trtllm", "mla_generation_module")
    assert table is not None
    rows = table[(table["gemm_type"] == "fp8_block") & (table["kv_cache_dtype"] == "fp8")].sample(
        300, random_state=1
    )
    found = database(accelerator).mla_generation(
        **DECODE, heads=rows["num_heads"], batch=rows["batch_size"], context=rows["step"] + 1
    )
    np.testing.assert_allclose(found.seconds, rows["latency_ms"] * 1e-3, rtol=1e-6)
    assert (found.provenance == Provenance.MEASURED).all()


@pytest.mark.parametrize(("accelerator", "framework"), [("h200_sxm", "trtllm"), ("b200_sxm", "vllm")])
def test_whole_block_prefill_rows_come_back_exactly(accelerator: str, framework: str) -> None:
    table = load_table(accelerator, framework, "mla_context_module")
    assert table is not None
    kept = (
        (table["gemm_type"] == "fp8_block")
        & (table["kv_cache_dtype"] == "fp8")
        & (table["mla_dtype"] == "bfloat16")
    )
    rows = table[kept].sample(300, random_state=2)
    found = database(accelerator, framework).mla_context(
        **PREFILL, heads=rows["num_heads"], batch=rows["batch_size"], tokens=rows["isl"], prefix=0
    )
    close = np.isclose(found.seconds, rows["latency_ms"] * 1e-3, rtol=1e-6)
    assert close.mean() > 0.99  # a disturbed row may be excluded
    assert (found.provenance[close] == Provenance.MEASURED).all()


@pytest.mark.parametrize(("accelerator", "framework"), [("h200_sxm", "sglang"), ("b200_sxm", "trtllm")])
@pytest.mark.parametrize("op", ["dsa_generation_module", "dsa_context_module"])
def test_sparse_rows_come_back_exactly(accelerator: str, framework: str, op: str) -> None:
    rates = Rates.of(load_accelerator(accelerator))
    table = dsa.dsa_table(
        rates, framework, op, SPARSE, SPARSE_HIDDEN, BlockDtypes("fp8_block", "bfloat16", "fp8")
    )
    assert table is not None
    names = {number: triple for triple, number in table.keys.items()}
    rows = np.random.default_rng(5).choice(len(table.surfaces.key), 300)
    chosen = [names[int(key)] for key in table.surfaces.key[rows]]
    heads, batch = np.array([one[1] for one in chosen]), np.array([one[2] for one in chosen])
    u, v = table.surfaces.u[rows], table.surfaces.v[rows]
    asked = database(accelerator, framework)
    shape = {
        "mla": SPARSE,
        "hidden": SPARSE_HIDDEN,
        "gemm_dtype": "fp8_block",
        "kv_dtype": "fp8",
        "heads": heads,
    }
    if op == "dsa_generation_module":
        found = asked.mla_generation(**shape, batch=u, context=v)
    else:
        found = asked.mla_context(**shape, attention_dtype="bfloat16", batch=batch, tokens=u, prefix=v - 1)
    np.testing.assert_allclose(found.seconds, table.surfaces.measured[rows], rtol=1e-6)
    assert (found.provenance == Provenance.MEASURED).all()


@settings(max_examples=60, deadline=None)
@given(
    accelerator=st.sampled_from(["h200_sxm", "b200_sxm", "h20", "l40s"]),
    framework=st.sampled_from(FRAMEWORKS),
    sparse=st.booleans(),
    gemm_dtype=st.sampled_from(["bfloat16", "fp8", "fp8_block"]),
    kv_dtype=st.sampled_from(["bfloat16", "fp8"]),
    heads=st.integers(1, 128),
    batch=st.floats(0.25, 4096),
    context=st.floats(1, 2e6),
)
def test_block_latency_is_positive_and_finite_everywhere(
    accelerator: str,
    framework: str,
    sparse: bool,
    gemm_dtype: str,
    kv_dtype: str,
    heads: int,
    batch: float,
    context: float,
) -> None:
    asked = database(accelerator, framework)
    shape = {
        "mla": SPARSE if sparse else DIMS,
        "hidden": 7168,
        "heads": heads,
        "gemm_dtype": gemm_dtype,
        "kv_dtype": kv_dtype,
        "batch": batch,
    }
    decode = asked.mla_generation(**shape, context=context)
    prefill = asked.mla_context(**shape, attention_dtype="bfloat16", tokens=min(context, 1e5), prefix=context)
    for found in (decode, prefill):
        assert np.isfinite(found.seconds)
        assert found.seconds > 5e-6


def test_cache_reading_does_not_shrink_with_tensor_parallelism() -> None:
    # One GPU reads the whole latent cache however few of the heads it has: far from the 8 times less of split heads.
    for framework in FRAMEWORKS:
        found = database("h200_sxm", framework).mla_generation(
            **DECODE, heads=[16, 2], batch=256, context=32768
        )
        assert found.seconds[1] > 0.7 * found.seconds[0]
        read = (
            256 * 32768 * (DIMS.kv_rank + DIMS.rope_head_dim) / load_accelerator("h200_sxm").hbm_bytes_per_s
        )
        assert found.seconds[1] > read


@settings(max_examples=20, deadline=None)
@given(more=st.floats(1.0, 20.0), batch=st.floats(1, 1024), context=st.floats(1, 1e6), sparse=st.booleans())
def test_more_bandwidth_is_never_slower(more: float, batch: float, context: float, sparse: bool) -> None:
    plain = load_accelerator("b200_sxm")
    faster = plain.model_copy(update={"hbm_bytes_per_s": plain.hbm_bytes_per_s * more})
    shape = DECODE | {"mla": SPARSE if sparse else DIMS, "heads": 16, "batch": batch, "context": context}
    slow = OperatorDatabase(plain, "trtllm", plain).mla_generation(**shape)
    fast = OperatorDatabase(faster, "trtllm", plain).mla_generation(**shape)
    assert fast.seconds <= slow.seconds * (1 + 1e-12)


def test_composed_blocks_agree_with_whole_block_measurements() -> None:
    for accelerator in ("h200_sxm", "b200_sxm"):
        asked = database(accelerator)
        batch, context = (
            values.reshape(-1) for values in np.meshgrid([1.0, 8.0, 64.0, 256.0], [1025.0, 16385.0])
        )
        for heads in (16.0, 128.0):
            shape = {"context_phase": False, "heads": np.full(8, heads), "batch": batch, "length": context}
            dtypes = BlockDtypes("fp8_block", "bfloat16", "fp8")
            whole = mla._block(asked, DIMS, 7168, dtypes, **shape).seconds
            parts = mla._composed(asked, DIMS, 7168, dtypes, **shape).seconds
            assert np.abs(np.log(parts / whole)).max() < np.log(1.25)
            assert np.median(np.abs(parts / whole - 1.0)) < 0.08


def test_sglang_blocks_agree_with_its_own_whole_block_rows() -> None:
    # Whole-block rows of an older SGLang (in the database, not used as a source) check the composed value.
    table = load_table("h200_sxm", "sglang", "wideep_generation_mla")
    assert table is not None
    rows = table[(table["kernel_source"] == "fa3") & (table["isl"] >= 128)]
    found = database("h200_sxm", "sglang").mla_generation(
        **DECODE, heads=rows["num_heads"], batch=rows["batch_size"], context=rows["isl"]
    )
    assert np.median(np.abs(found.seconds / (rows["latency_ms"] * 1e-3) - 1.0)) < 0.25


def test_an_fp8_cache_is_not_slower_than_a_bfloat16_one_on_sglang() -> None:
    asked = database("h200_sxm", "sglang")
    shape = DECODE | {"heads": 128, "batch": 128, "context": 16384}
    assert (
        asked.mla_generation(**shape).seconds
        < 1.1 * asked.mla_generation(**(shape | {"kv_dtype": "bfloat16"})).seconds
    )


def test_host_launches_are_taken_out_of_vllm_decode_rows_where_they_are_in() -> None:
    op = "mla_generation_module"
    assert launch_overhead(load_accelerator("b200_sxm"), "vllm", op, mla.MODULE_MODEL) == 0.0
    for accelerator in ("h200_sxm", "gb200"):
        overhead = launch_overhead(load_accelerator(accelerator), "vllm", op, mla.MODULE_MODEL)
        assert 20e-6 < overhead < 60e-6
        found = database(accelerator, "vllm").mla_generation(**DECODE, heads=16, batch=8, context=1025)
        assert found.provenance == Provenance.INTERPOLATED


def test_unmeasured_gemm_types_change_the_projections_and_say_so() -> None:
    asked = database("h200_sxm")
    shape = DECODE | {"heads": 128, "batch": [1, 1024], "context": 1025}
    block = asked.mla_generation(**shape)
    tensor = asked.mla_generation(**(shape | {"gemm_dtype": "fp8"}))
    assert (tensor.provenance == Provenance.BORROWED).all()
    np.testing.assert_allclose(tensor.seconds, block.seconds, rtol=0.3)


def test_other_dimensions_borrow_and_say_so() -> None:
    other = replace(DIMS, heads=32, query_rank=0, kv_rank=256)
    found = database().mla_generation(
        **(DECODE | {"mla": other, "hidden": 4096}), heads=32, batch=16, context=4096
    )
    assert found.provenance == Provenance.BORROWED
    sparse = Mla(64, 1024, 512, 128, 64, 128, index_topk=1024, index_heads=32, index_head_dim=128)
    found = database().mla_generation(
        **(DECODE | {"mla": sparse, "hidden": 4096}), heads=64, batch=16, context=4096
    )
    assert found.provenance == Provenance.BORROWED


def test_head_counts_of_other_models_are_interpolated() -> None:
    found = database().mla_generation(**DECODE, heads=[8, 12, 16], batch=64, context=4097)
    assert found.provenance.tolist() == [Provenance.MEASURED, Provenance.INTERPOLATED, Provenance.MEASURED]
    assert found.seconds[0] < found.seconds[1] < found.seconds[2]


def test_sparse_attention_outruns_dense_attention_at_long_context() -> None:
    shape = {"heads": 128, "batch": 32, "context": 131072}
    asked = database("b200_sxm")
    sparse = asked.mla_generation(**(DECODE | {"mla": SPARSE}), **shape).seconds
    dense = asked.mla_generation(**DECODE, **shape).seconds
    assert sparse < 0.7 * dense
    lengths = asked.mla_generation(
        **(DECODE | {"mla": SPARSE}), heads=128, batch=32, context=[131072, 1048576]
    ).seconds
    assert lengths[1] > 2.0 * lengths[0]


def test_a_prefix_costs_extra_and_is_borrowed() -> None:
    for framework in FRAMEWORKS:
        found = database("b200_sxm", framework).mla_context(
            **PREFILL, heads=16, batch=1, tokens=2048, prefix=[0, 1, 8192, 65536]
        )
        assert (np.diff(found.seconds) > 0.0).all()
        assert (found.provenance[1:] == Provenance.BORROWED).all()


def test_a_block_of_rows_equals_its_rows_one_by_one() -> None:
    generator = np.random.default_rng(11)
    heads, batch = generator.choice([1, 12, 16, 128], 20), np.exp(generator.uniform(0, 7, 20))
    context = np.exp(generator.uniform(0, 14, 20))
    for dims in (DIMS, SPARSE):
        asked = database("h200_sxm", "sglang")
        block = asked.mla_generation(**(DECODE | {"mla": dims}), heads=heads, batch=batch, context=context)
        for row in range(20):
            one = asked.mla_generation(
                **(DECODE | {"mla": dims}), heads=heads[row], batch=batch[row], context=context[row]
            )
            assert one.seconds == pytest.approx(block.seconds[row], rel=1e-12)
            assert one.provenance == block.provenance[row]
