"""Grouped-query attention: exact at measured points, sane between and beyond them, honest about what is borrowed."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.operators.attention import (
    Rates,
    attended_pairs,
    attention_table,
    equal_work_tokens,
)
from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.latency import Provenance
from afd_dse.operators.surfaces import Blend, Surfaces, blend_counts, disturbed, preferred_kernels
from afd_dse.spec.catalogue import load_accelerator

PLACES = [(a, f) for a in ("h200_sxm", "b200_sxm") for f in ("trtllm", "sglang", "vllm")]
FULL = {"heads": 8, "kv_heads": 1, "head_dim": 128, "window": 0, "kv_dtype": "fp8"}


def database(accelerator: str = "h200_sxm", framework: str = "trtllm") -> OperatorDatabase:
    return OperatorDatabase(load_accelerator(accelerator), framework)


@pytest.mark.parametrize(("accelerator", "framework"), PLACES)
@pytest.mark.parametrize("op", ["generation_attention", "context_attention"])
def test_measured_points_come_back_exactly(accelerator: str, framework: str, op: str) -> None:
    table = attention_table(Rates.of(load_accelerator(accelerator)), framework, op, "bfloat16", "fp8")
    assert table is not None
    rows = np.random.default_rng(7).choice(len(table.surfaces.key), 400)
    surfaces = table.surfaces
    head_dim, window, kv_heads, heads = table.keys[surfaces.key[rows]].T
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "window": window}
    asked = database(accelerator, framework)
    if op == "generation_attention":
        found = asked.generation_attention(
            **shape, kv_dtype="fp8", batch=surfaces.u[rows], context=surfaces.v[rows]
        )
    else:
        found = asked.context_attention(
            **shape,
            attention_dtype=table.attention_dtype,
            kv_dtype=table.kv_dtype,
            batch=surfaces.u[rows],
            tokens=surfaces.v[rows],
            prefix=0,
        )
    np.testing.assert_allclose(found.seconds, surfaces.measured[rows], rtol=1e-6)
    assert (found.provenance == Provenance.MEASURED).all()


@settings(max_examples=60, deadline=None)
@given(
    place=st.sampled_from([*PLACES, ("h20", "trtllm"), ("l40s", "vllm")]),
    heads=st.integers(1, 128),
    kv_heads=st.sampled_from([1, 2, 3, 8]),
    head_dim=st.sampled_from([64, 80, 128, 256]),
    window=st.sampled_from([0, 128, 4096]),
    kv_dtype=st.sampled_from(["bfloat16", "fp8"]),
    batch=st.floats(0.25, 4096),
    context=st.floats(1, 2e6),
)
def test_decode_latency_is_positive_and_finite_everywhere(
    place: tuple[str, str],
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int,
    kv_dtype: str,
    batch: float,
    context: float,
) -> None:
    found = database(*place).generation_attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=window,
        kv_dtype=kv_dtype,
        batch=batch,
        context=context,
    )
    assert found.seconds.shape == ()
    assert np.isfinite(found.seconds)
    assert found.seconds > 1e-6
    assert found.seconds < 1e5


@settings(max_examples=60, deadline=None)
@given(
    place=st.sampled_from([*PLACES, ("h20", "sglang")]),
    window=st.sampled_from([0, 128, 4096]),
    dtype=st.sampled_from(["bfloat16", "fp8"]),
    batch=st.floats(0.25, 256),
    tokens=st.floats(1, 1e5),
    prefix=st.floats(0, 1e6),
)
def test_a_longer_prefix_is_never_faster(
    place: tuple[str, str], window: int, dtype: str, batch: float, tokens: float, prefix: float
) -> None:
    found = database(*place).context_attention(
        heads=8,
        kv_heads=1,
        head_dim=64,
        window=window,
        attention_dtype=dtype,
        kv_dtype="fp8",
        batch=batch,
        tokens=tokens,
        prefix=[prefix, 2.0 * prefix + 1.0],
    )
    assert np.isfinite(found.seconds).all()
    assert found.seconds[0] > 0.0
    assert found.seconds[1] >= 0.85 * found.seconds[0]


@settings(max_examples=40, deadline=None)
@given(more=st.floats(1.0, 50.0), batch=st.floats(0.25, 4096), context=st.floats(1, 2e6))
def test_more_bandwidth_is_never_slower(more: float, batch: float, context: float) -> None:
    plain = load_accelerator("h200_sxm")
    faster = plain.model_copy(update={"hbm_bytes_per_s": plain.hbm_bytes_per_s * more})
    slow = OperatorDatabase(plain, "trtllm", plain).generation_attention(**FULL, batch=batch, context=context)
    fast = OperatorDatabase(faster, "trtllm", plain).generation_attention(
        **FULL, batch=batch, context=context
    )
    assert fast.seconds <= slow.seconds


def test_a_block_of_mixed_rows_equals_its_rows_one_by_one() -> None:
    generator = np.random.default_rng(3)
    count = 60
    rows = {
        "heads": generator.choice([1, 7, 8, 12, 64, 96], count),
        "kv_heads": generator.choice([1, 2, 8], count),
        "head_dim": generator.choice([64, 128, 256], count),
        "window": generator.choice([0, 128, 4096], count),
        "batch": np.exp(generator.uniform(-1.0, 8.0, count)),
        "context": np.exp(generator.uniform(0.0, 14.0, count)),
    }
    asked = database("b200_sxm", "vllm")
    block = asked.generation_attention(kv_dtype="fp8", **rows)
    for number in range(count):
        one = asked.generation_attention(
            kv_dtype="fp8", **{name: value[number] for name, value in rows.items()}
        )
        assert one.seconds == pytest.approx(block.seconds[number], rel=1e-12)
        assert one.provenance == block.provenance[number]


def test_decode_time_grows_with_context_and_batch_up_to_measurement_noise() -> None:
    batch, context = np.meshgrid(np.geomspace(0.25, 4096, 40), np.geomspace(1, 2e6, 60), indexing="ij")
    for accelerator, framework in PLACES:
        seconds = (
            database(accelerator, framework)
            .generation_attention(**FULL, batch=batch, context=context)
            .seconds
        )
        for axis in (0, 1):
            change = np.diff(np.log(seconds), axis=axis)
            assert np.mean(change < np.log(0.97)) < 0.1
            assert change.min() > np.log(0.8)


def test_head_counts_between_measured_ones_are_interpolated() -> None:
    asked = database()
    found = asked.generation_attention(
        **(FULL | {"heads": [8, 36, 64], "kv_heads": [1, 6, 8]}), batch=64, context=4096
    )
    assert found.provenance[0] == Provenance.MEASURED
    known = asked.generation_attention(
        **(FULL | {"heads": [24, 48], "kv_heads": [4, 8]}), batch=64, context=4096
    )
    between = asked.generation_attention(**(FULL | {"heads": 36, "kv_heads": 6}), batch=64, context=4096)
    assert between.provenance == Provenance.INTERPOLATED
    assert known.seconds[0] < between.seconds < known.seconds[1]


@pytest.mark.parametrize(
    "change", [{"head_dim": 80}, {"window": 4096}, {"heads": 7, "kv_heads": 1}, {"heads": 8, "kv_heads": 3}]
)
def test_unmeasured_keys_borrow_and_say_so(change: dict[str, int]) -> None:
    found = database("b200_sxm", "vllm").generation_attention(**(FULL | change), batch=64, context=8192)
    assert found.provenance == Provenance.BORROWED


def test_an_accelerator_without_tables_borrows() -> None:
    found = database("h20").generation_attention(**FULL, batch=64, context=8191 + 1)
    own = database("h100_sxm").generation_attention(**FULL, batch=64, context=8191 + 1)
    assert found.provenance == Provenance.BORROWED
    assert own.provenance == Provenance.MEASURED
    # More bandwidth than an H100 (4.0 against 3.35 TB/s): faster in a memory-bound kernel.
    assert found.seconds < own.seconds


def test_an_unmeasured_window_costs_between_a_narrower_one_and_full_attention() -> None:
    asked = database()
    shape = FULL | {"head_dim": 128}
    window = asked.generation_attention(**(shape | {"window": 4096}), batch=64, context=65536)
    full = asked.generation_attention(**shape, batch=64, context=65536)
    capped = asked.generation_attention(**shape, batch=64, context=4096)
    assert window.seconds < full.seconds
    assert window.seconds == pytest.approx(float(capped.seconds), rel=0.05)


def test_long_prefixes_cost_what_their_pairs_cost() -> None:
    shape = {
        "heads": 32,
        "kv_heads": 4,
        "head_dim": 128,
        "window": 0,
        "attention_dtype": "bfloat16",
        "kv_dtype": "bfloat16",
    }
    asked = database()
    chunk = asked.context_attention(**shape, batch=1, tokens=2048, prefix=30720)
    whole = asked.context_attention(**shape, batch=1, tokens=[32768, 30720], prefix=0)
    assert chunk.provenance == Provenance.BORROWED
    # The last chunk of a long prompt is the difference of two prompts.
    assert float(chunk.seconds) == pytest.approx(float(whole.seconds[0] - whole.seconds[1]), rel=0.35)


@given(tokens=st.floats(1, 1e5), prefix=st.floats(1, 1e6), window=st.sampled_from([0.0, 128.0, 8192.0]))
def test_equal_work_tokens_have_as_many_pairs(tokens: float, prefix: float, window: float) -> None:
    t, p = np.array([tokens]), np.array([prefix])
    equal = equal_work_tokens(t, p, window)
    np.testing.assert_allclose(attended_pairs(equal, 0.0, window), attended_pairs(t, p, window), rtol=1e-6)


def test_vllm_prompts_of_one_token_run_the_decode_kernel() -> None:
    table = attention_table(
        Rates.of(load_accelerator("b200_sxm")), "vllm", "context_attention", "bfloat16", "fp8"
    )
    assert table is not None
    key = int(np.flatnonzero((table.keys == [128, 0, 1, 8]).all(axis=1))[0])
    assert table.surfaces.kernel_at(key, 1.0) == "vllm_flashinfer_trtllmdecode"
    assert table.surfaces.kernel_at(key, 2.0) == "vllm_flashinfer_trtllmprefill"


def test_overlapping_kernels_are_settled_by_preference_and_disjoint_ones_are_all_kept() -> None:
    key = np.zeros(6, dtype=np.int64)
    length = np.array([1.0, 8.0, 1.0, 8.0, 16.0, 32.0])
    kernel = np.array(["slow", "slow", "best", "best", "long", "long"], dtype=object)
    keep, band = preferred_kernels(key, length, kernel, ("best", "slow"))
    assert keep.tolist() == [False, False, True, True, True, True]
    assert band[keep].tolist() == [0, 0, 1, 1]


def test_a_disturbed_row_is_found_and_a_dip_is_not() -> None:
    key, batch = np.zeros(4, dtype=np.int64), np.ones(4)
    length = np.array([1.0, 2.0, 4.0, 8.0])
    kernel = np.full(4, "one", dtype=object)
    assert disturbed(key, batch, length, np.array([1.0, 1.5, 1.2, 2.0]), kernel).tolist() == [False] * 4
    assert disturbed(key, batch, length, np.array([1.0, 9.0, 1.2, 2.0]), kernel).tolist() == [
        False,
        True,
        False,
        False,
    ]


def test_latency_of_a_launch_plus_linear_work_is_recovered_between_points() -> None:
    def light(_: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        return u * v

    batch = np.array([1.0, 4.0, 16.0])
    points = Surfaces(
        np.zeros(3, dtype=np.int64),
        batch,
        np.ones(3),
        5.0 + 2.0 * batch,
        np.full(3, "k", dtype=object),
        light,
    )
    blend = Blend(np.zeros((2, 1), dtype=np.int64), np.ones((2, 1)), np.zeros(2, dtype=np.int8))
    asked = np.array([2.0, 9.0])
    estimate = points(blend, asked, np.ones(2))
    np.testing.assert_allclose(asked / estimate.efficiency, 5.0 + 2.0 * asked)


def test_points_left_out_are_predicted_within_three_per_cent() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "attention_accuracy.py"
    spec = importlib.util.spec_from_file_location("attention_accuracy", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    for op in ("generation_attention", "context_attention"):
        table = attention_table(Rates.of(load_accelerator("h200_sxm")), "trtllm", op, "bfloat16", "fp8")
        assert table is not None
        errors = np.concatenate([benchmark.leave_out(table.surfaces, axis) for axis in ("u", "v")])
        assert len(errors) > 10_000
        assert np.median(errors) < 0.03


def test_neighbouring_counts_are_weighted_by_their_logarithm() -> None:
    keys, weights, exact = blend_counts(np.array([1.0, 4.0, 16.0]), np.array([0.5, 4.0, 8.0, 99.0]))
    assert exact.tolist() == [False, True, False, False]
    np.testing.assert_allclose(weights[2], [0.5, 0.5])
    assert keys[0].tolist() == [0, 0]
    assert keys[3].tolist() == [2, 2]


@pytest.mark.parametrize(("framework", "least", "most"), [("trtllm", 4.0, 60.0), ("sglang", 1.0, 2.0)])
@pytest.mark.parametrize("accelerator", ["h200_sxm", "b200_sxm"])
def test_beyond_32_query_heads_a_key_head_one_framework_falls_back(
    accelerator: str, framework: str, least: float, most: float
) -> None:
    # Its grouped kernels end at 32; the one that it falls back to reads the cache once for every query head.
    shape = {
        "kv_heads": 1,
        "head_dim": 128,
        "window": 0,
        "kv_dtype": "bfloat16",
        "batch": 64,
        "context": 4096,
    }
    asked = database(accelerator, framework)
    fewer, more = (asked.generation_attention(heads=heads, **shape) for heads in (32, 64))
    assert more.provenance == Provenance.MEASURED
    assert least < float(more.seconds / fewer.seconds) < most
