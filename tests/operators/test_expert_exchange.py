import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.expert_exchange import WIRE_BYTES, exchange_light, groups_hit
from afd_dse.operators.latency import Latency, Provenance
from afd_dse.operators.store import load_table
from afd_dse.spec.catalogue import load_accelerator

H200, GB200, B200 = (load_accelerator(name) for name in ("h200_sxm", "gb200", "b200_sxm"))
FP8, BF16, FP4 = WIRE_BYTES["fp8"], WIRE_BYTES["bfloat16"], WIRE_BYTES["nvfp4"]


@pytest.fixture(scope="module")
def sglang() -> OperatorDatabase:
    return OperatorDatabase(H200, "sglang")


def ask(database: OperatorDatabase, phase: str, **changes: object) -> tuple[Latency, np.ndarray]:
    arguments = {
        "tokens_per_rank": 128,
        "hidden": 7168,
        "topk": 8,
        "experts": 256,
        "ep": 8,
        "dtype_bytes": FP8 if phase == "dispatch" else BF16,
        "low_latency": True,
    }
    found: tuple[Latency, np.ndarray] = getattr(database, f"expert_{phase}")(**(arguments | changes))
    return found


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_low_latency_points_come_back_exactly_in_microseconds(sglang: OperatorDatabase, phase: str) -> None:
    rows = load_table("h200_sxm", "sglang", "deepep_ll")
    assert rows is not None
    found, covered = ask(
        sglang,
        phase,
        tokens_per_rank=rows["num_token"],
        hidden=rows["hidden_size"],
        topk=rows["num_topk"],
        experts=rows["num_experts"],
        ep=rows["node_num"] * 8,
    )
    np.testing.assert_allclose(found.seconds, rows[f"{phase}_avg_t_us"] * 1e-6, rtol=1e-6)
    assert (found.provenance == Provenance.MEASURED).all()
    assert covered.all()


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_normal_points_come_back_at_the_default_number_of_sms(sglang: OperatorDatabase, phase: str) -> None:
    rows = load_table("h200_sxm", "sglang", "deepep_normal")
    assert rows is not None
    rows = rows[rows[f"{phase}_sms"] == 20]
    found, _ = ask(
        sglang,
        phase,
        tokens_per_rank=rows["num_token"],
        hidden=rows["hidden_size"],
        topk=rows["num_topk"],
        experts=rows["num_experts"],
        ep=rows["node_num"] * 8,
        low_latency=False,
    )
    expected = (rows[f"{phase}_transmit_us"] + rows[f"{phase}_notify_us"]) * 1e-6
    np.testing.assert_allclose(found.seconds, expected, rtol=1e-6)


def test_the_frameworks_own_exchange_comes_back_in_seconds() -> None:
    rows = load_table("h200_sxm", "trtllm", "moe_a2a")
    assert rows is not None
    rows = rows[(rows["comm_backend"] == "trtllm_deepep_ll") & (rows["phase"] == "dispatch")]
    found, _ = ask(
        OperatorDatabase(H200, "trtllm"),
        "dispatch",
        tokens_per_rank=rows["num_tokens"],
        hidden=rows["hidden_size"],
        topk=rows["topk"],
        experts=rows["num_experts"],
        ep=rows["ep_size"],
        dtype_bytes=rows["comm_dtype"].map(WIRE_BYTES),
    )
    np.testing.assert_allclose(found.seconds, rows["transmit_us"] * 1e-6, rtol=1e-6)
    assert found.seconds.max() < 1e-3


def test_a_rack_reaches_sixty_four_ranks_and_includes_preparation() -> None:
    rows = load_table("gb200", "trtllm", "trtllm_alltoall")
    assert rows is not None
    two_sided = rows[(rows["kernel_source"] == "NVLinkTwoSided") & (rows["moe_dtype"] == "fp8")]
    here = two_sided[(two_sided["moe_ep_size"] == 64) & (two_sided["num_tokens"] == 128)].set_index("op_name")
    found, covered = ask(OperatorDatabase(GB200, "trtllm"), "dispatch", ep=64)
    expected = here.loc["alltoall_dispatch", "latency_ms"] + here.loc["alltoall_prepare", "latency_ms"]
    assert found.seconds == pytest.approx(expected * 1e-3)
    assert covered
    assert found.provenance == Provenance.MEASURED


def test_other_hidden_sizes_scale_with_their_bytes(sglang: OperatorDatabase) -> None:
    wide, _ = ask(sglang, "dispatch", hidden=7168, tokens_per_rank=1024)
    wider, _ = ask(sglang, "dispatch", hidden=14336, tokens_per_rank=1024)
    assert wider.provenance == Provenance.BORROWED
    assert wider.seconds == pytest.approx(2 * wide.seconds, rel=0.05)


def test_a_type_counted_without_its_scales_is_the_same_type_but_no_measured_point(
    sglang: OperatorDatabase,
) -> None:
    with_scales, _ = ask(sglang, "dispatch", dtype_bytes=FP8)
    without, _ = ask(sglang, "dispatch", dtype_bytes=1.0)
    assert with_scales.provenance == Provenance.MEASURED
    assert without.provenance == Provenance.INTERPOLATED
    assert without.seconds == pytest.approx(with_scales.seconds, rel=0.05)


def test_groups_between_measured_ones_are_interpolated_and_larger_ones_not_covered(
    sglang: OperatorDatabase,
) -> None:
    found, covered = ask(sglang, "dispatch", ep=[4, 24, 64, 128])
    assert covered.tolist() == [True, True, True, False]
    levels = [Provenance.BORROWED, Provenance.INTERPOLATED, Provenance.MEASURED, Provenance.BORROWED]
    assert found.provenance.tolist() == levels


def test_a_framework_without_rows_for_a_group_borrows_them_on_the_same_fabric() -> None:
    found, covered = ask(OperatorDatabase(GB200, "sglang"), "dispatch", ep=32)
    assert covered
    assert found.provenance == Provenance.BORROWED
    nodes, covered = ask(OperatorDatabase(B200, "vllm"), "dispatch", ep=16)
    assert covered
    assert nodes.provenance == Provenance.BORROWED


def test_a_single_rank_exchanges_nothing(sglang: OperatorDatabase) -> None:
    found, covered = ask(sglang, "combine", ep=1)
    assert found.seconds == 0.0
    assert covered


def test_groups_hit_match_a_count_over_random_draws() -> None:
    rng = np.random.default_rng(3)
    draws = [len({int(e) // 32 for e in rng.choice(256, 8, replace=False)}) for _ in range(4000)]
    assert float(groups_hit(8, 8)) == pytest.approx(np.mean(draws), rel=0.02)
    assert groups_hit(1, 8) == pytest.approx(1.0)


def test_bytes_between_nodes_take_the_slow_tier() -> None:
    shape = {"tokens": 1000, "hidden": 7168, "topk": 8, "wire_bytes": 1.0, "low_latency": False}
    inside, across = (exchange_light(H200, ep=ep, **shape) for ep in (8, 16))
    out = 1000 * 7168 * groups_hit(2, 8) / 2 / H200.scale_out_bytes_per_s
    assert across == pytest.approx(out + H200.scale_out_latency_s)
    assert inside < across


@settings(max_examples=50, deadline=None)
@given(
    phase=st.sampled_from(["dispatch", "combine"]),
    low_latency=st.booleans(),
    rows=st.lists(
        st.tuples(
            st.floats(0.5, 1e5),
            st.sampled_from([1024, 5120, 7168, 12288]),
            st.sampled_from([1, 4, 8, 22]),
            st.sampled_from([8, 128, 160, 512]),
            st.integers(2, 256),
            st.sampled_from([FP4, FP8, BF16]),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_any_shape_is_finite_and_rows_do_not_depend_on_each_other(
    phase: str, low_latency: bool, rows: list[tuple[float, int, int, int, int, float]]
) -> None:
    names = ("tokens_per_rank", "hidden", "topk", "experts", "ep", "dtype_bytes")
    columns = dict(
        zip(names, (np.array(column, dtype=float) for column in zip(*rows, strict=True)), strict=True)
    )
    together, covered = ask(SHARED, phase, low_latency=low_latency, **columns)
    assert np.isfinite(together.seconds).all()
    assert (together.seconds > 0).all()
    for i in range(len(rows)):
        one = {name: column[i] for name, column in columns.items()}
        alone, inside = ask(SHARED, phase, low_latency=low_latency, **one)
        assert float(alone.seconds) == pytest.approx(float(together.seconds[i]))
        assert (alone.provenance, inside) == (together.provenance[i], covered[i])


SHARED = OperatorDatabase(H200, "vllm")


@settings(max_examples=30, deadline=None)
@given(tokens=st.floats(1, 1e5), ep=st.integers(2, 128), faster=st.floats(1.0, 8.0))
def test_faster_links_are_never_slower(tokens: float, ep: int, faster: float) -> None:
    rates = {"scale_up_bytes_per_s": H200.scale_up_bytes_per_s * faster}
    rates["scale_out_bytes_per_s"] = H200.scale_out_bytes_per_s * faster
    wide = OperatorDatabase(H200.model_copy(update=rates), "vllm", H200)
    base, _ = ask(SHARED, "dispatch", tokens_per_rank=tokens, ep=ep)
    found, _ = ask(wide, "dispatch", tokens_per_rank=tokens, ep=ep)
    assert found.seconds <= base.seconds * (1 + 1e-12)


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
@pytest.mark.parametrize("ep", [4, 8, 32])
def test_one_nvl72_exchanges_about_as_fast_as_another(phase: str, ep: int) -> None:
    # DeepEP's kernels, the only ones timed under TensorRT-LLM on a GB300, take ten times as long in one tray.
    there, here = (
        ask(OperatorDatabase(load_accelerator(name), "trtllm"), phase, ep=ep)[0]
        for name in ("gb200", "gb300")
    )
    np.testing.assert_allclose(here.seconds, there.seconds, rtol=0.1)
    assert (here.provenance == Provenance.BORROWED).all()
