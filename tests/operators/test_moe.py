import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.errors import InputError
from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.latency import Latency, Provenance
from afd_dse.operators.moe import MoeTable, busiest_share, clean_rows, load_frame
from afd_dse.operators.speed_of_light import moe_work, seconds
from afd_dse.spec.catalogue import load_accelerator

H200, B200 = load_accelerator("h200_sxm"), load_accelerator("b200_sxm")
DEEPSEEK = {"hidden": 7168, "intermediate": 2048, "topk": 8, "experts": 256, "moe_tp": 1}
GLM = {"hidden": 5120, "intermediate": 1536, "topk": 8, "experts": 160, "moe_tp": 1}
KEYS = ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "num_tokens"]


@pytest.fixture(scope="module")
def trtllm() -> OperatorDatabase:
    return OperatorDatabase(H200, "trtllm")


def ask(database: OperatorDatabase, **changes: object) -> Latency:
    arguments: dict[str, object] = {"dtype": "fp8_block", "tokens": 512, "ep": 32, **DEEPSEEK}
    return database.moe(**(arguments | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("accelerator", "framework", "dtype", "distribution"),
    [
        ("h200_sxm", "trtllm", "fp8_block", "balanced"),
        ("h200_sxm", "sglang", "bfloat16", "balanced"),
        ("h100_sxm", "vllm", "fp8", "power_law_1.2"),
        ("b200_sxm", "trtllm", "nvfp4", "balanced"),
        ("b200_sxm", "sglang", "w4a8_mxfp4_mxfp8", "balanced"),
        ("gb200", "trtllm", "w4a16_mxfp4", "power_law_1.01"),
    ],
)
def test_measured_points_come_back_exactly_from_the_fastest_kernel(
    accelerator: str, framework: str, dtype: str, distribution: str
) -> None:
    rates = load_accelerator(accelerator)
    frame = load_frame(accelerator, framework)
    assert frame is not None
    rows = clean_rows(frame, rates, dtype)
    rows = rows[(rows["distribution"] == distribution) & rows["gated"]]
    # Where some kernel's tokens fell unevenly, its rows bound the answer, but are not points of it.
    rows = rows[~rows.groupby(KEYS[:-1])["uneven"].transform("any")]
    # A kernel that has no row at a point is interpolated there, so only points that all kernels of a key have compare.
    kernels = rows.groupby(KEYS[:-1])["kernel_source"].transform("nunique")
    here = rows.groupby(KEYS)["kernel_source"].transform("nunique")
    best = rows[kernels == here].groupby(KEYS, as_index=False)["latency_ms"].min()
    best = best.sample(min(400, len(best)), random_state=2)
    found = OperatorDatabase(rates, framework).moe(
        dtype=dtype,
        tokens=best["num_tokens"],
        hidden=best["hidden_size"],
        intermediate=best["inter_size"],
        topk=best["topk"],
        experts=best["num_experts"],
        moe_tp=best["moe_tp_size"],
        ep=best["moe_ep_size"],
        distribution=distribution,
    )
    np.testing.assert_allclose(found.seconds, best["latency_ms"] * 1e-3, rtol=1e-6)
    assert (found.provenance == Provenance.MEASURED).all()


def test_groups_between_measured_ones_are_interpolated_and_others_borrowed(trtllm: OperatorDatabase) -> None:
    assert ask(trtllm, ep=32).provenance == Provenance.MEASURED
    assert ask(trtllm, ep=48).provenance == Provenance.INTERPOLATED
    assert ask(trtllm, ep=32, tokens=700).provenance == Provenance.INTERPOLATED
    assert ask(trtllm, ep=8, **GLM).provenance == Provenance.BORROWED
    assert (
        ask(trtllm, ep=8, experts=16, intermediate=10752, hidden=6144, topk=4).provenance
        == Provenance.BORROWED
    )


def test_tokens_that_a_rank_only_passes_on_take_time_on_a_borrowed_shape_too() -> None:
    """The same experts with the same load, as one of 8 ranks and as one of 64: that handles eight times as many."""
    database = OperatorDatabase(H200, "sglang")
    few, many = (
        ask(database, **GLM | {"experts": 20 * ep}, ep=ep, tokens=1024.0 * ep / 8.0) for ep in (8, 64)
    )
    assert few.provenance == many.provenance == Provenance.BORROWED
    assert many.seconds > 1.1 * few.seconds


def test_a_group_between_two_lies_between_them_in_time(trtllm: OperatorDatabase) -> None:
    tokens = np.array([64.0, 512.0, 4096.0])
    small, between, large = (ask(trtllm, ep=ep, tokens=tokens).seconds for ep in (32, 48, 64))
    assert (between <= small).all()
    assert (between >= large).all()


def test_the_busiest_rank_of_an_uneven_group_holds_one_expert_more() -> None:
    share = busiest_share(
        np.array([256.0, 256.0, 256.0]), np.array([48.0, 32.0, 32.0]), np.array([6.0, 8.0, 9.0])
    )
    np.testing.assert_allclose(share, [6 / 256, 1 / 32, 1 / 32])


def test_replicated_experts_load_more_weights_but_share_the_same_tokens(trtllm: OperatorDatabase) -> None:
    few, many = (ask(trtllm, tokens=64, local_experts=held).seconds for held in (8, 12))
    assert many > few  # bound by weights
    few, many = (ask(trtllm, tokens=200_000, local_experts=held).seconds for held in (8, 12))
    assert many == pytest.approx(few, rel=0.15)  # bound by tokens


def test_random_routing_hits_fewer_experts_than_even_routing_until_all_are_hit(
    trtllm: OperatorDatabase,
) -> None:
    tokens = np.array([16.0, 32.0, 4096.0])
    even, chance = (ask(trtllm, tokens=tokens, distribution=name).seconds for name in ("balanced", "uniform"))
    assert (chance[:2] < 0.8 * even[:2]).all()
    assert chance[2] == pytest.approx(even[2], rel=1e-6)


def test_efficiency_is_held_above_the_largest_token_count(trtllm: OperatorDatabase) -> None:
    tokens = np.array([16384.0, 65536.0])
    work = moe_work("fp8_block", tokens=tokens, local_experts=8, **DEEPSEEK)
    efficiency = seconds(H200, "fp8_block", work.flop, work.bytes) / ask(trtllm, tokens=tokens).seconds
    assert efficiency[1] == pytest.approx(efficiency[0])


def synthetic(kernels: dict[str, float]) -> pd.DataFrame:
    """Two ep sizes; each kernel at its own efficiency."""
    parts = []
    for kernel, efficiency in kernels.items():
        for ep in (8, 32):
            tokens = np.array([64.0, 1024.0])
            part = pd.DataFrame({"num_tokens": tokens, "kernel_source": kernel, "moe_ep_size": ep})
            work = moe_work("fp8", tokens=tokens, local_experts=256 / ep, **DEEPSEEK)
            part["latency_ms"] = seconds(H200, "fp8", work.flop, work.bytes) / efficiency * 1e3
            part["efficiency"] = efficiency
            parts.append(part)
    rows = pd.concat(parts, ignore_index=True)
    shape = {"hidden_size": 7168, "inter_size": 2048, "topk": 8, "num_experts": 256, "moe_tp_size": 1}
    return rows.assign(distribution="balanced", gated=True, uneven=False, **shape)


def test_no_value_lies_between_two_kernels() -> None:
    table = MoeTable(synthetic({"slow": 0.2, "fast": 0.5}), H200, "fp8")
    for local in (8.0, 16.0, 24.0, 32.0):
        plan = table.plan((7168.0, 2048.0, 8.0, 256.0, 1.0), local, "balanced", True)
        efficiency, _ = table.efficiency(
            [plan], np.zeros(4, dtype=np.int64), np.array([10.0, 64.0, 300.0, 5000.0])
        )
        np.testing.assert_allclose(efficiency, 0.5)
    other = table.plan((5120.0, 1536.0, 8.0, 160.0, 1.0), 20.0, "balanced", True)
    assert table.efficiency([other], np.zeros(1, dtype=np.int64), np.array([100.0]))[0][0] in (
        pytest.approx(0.2),
        pytest.approx(0.5),
    )


def test_uneven_tokens_bound_a_kernel_from_above_but_never_speak_alone() -> None:
    rows = synthetic({"other": 0.2, "uneven": 0.5})
    rows.loc[(rows["kernel_source"] == "uneven") & (rows["moe_ep_size"] == 8), "uneven"] = True
    shape, tokens = (7168.0, 2048.0, 8.0, 256.0, 1.0), np.array([64.0])

    def efficiency(frame: pd.DataFrame, local: float) -> float:
        table = MoeTable(frame, H200, "fp8")
        return float(
            table.efficiency(
                [table.plan(shape, local, "balanced", True)], np.zeros(1, dtype=np.int64), tokens
            )[0][0]
        )

    assert efficiency(rows, 32.0) == pytest.approx(0.5)  # faster in spite of it than the other kernel
    slow = rows.assign(efficiency=rows["efficiency"].where(~rows["uneven"], 0.01))
    assert efficiency(slow, 32.0) == pytest.approx(0.2)
    alone = slow[slow["kernel_source"] == "uneven"]
    assert efficiency(alone, 32.0) == pytest.approx(0.5)  # the even series of the other group size answers


def test_series_that_cannot_have_been_routed_evenly_are_marked() -> None:
    frame = load_frame("b200_sxm", "vllm")
    assert frame is not None
    rows = clean_rows(frame, B200, "fp8_block")
    deepseek = rows[
        (rows["hidden_size"] == 7168) & (rows["num_experts"] == 256) & (rows["distribution"] == "balanced")
    ]
    deepseek = deepseek[~deepseek["uneven"]]
    assert set(deepseek["moe_ep_size"]) == {1}
    good = load_frame("h200_sxm", "trtllm")
    assert good is not None
    kept = clean_rows(good, H200, "fp8_block")
    assert (~kept["uneven"]).sum() > 0.99 * (good["moe_dtype"] == "fp8_block").sum()


def test_ungated_experts_never_use_gated_kernels() -> None:
    database = OperatorDatabase(H200, "trtllm")
    shape = {
        "hidden": 2688,
        "intermediate": 1856,
        "topk": 6,
        "experts": 128,
        "moe_tp": 1,
        "ep": 4,
        "tokens": 256,
    }
    plain = database.moe(dtype="bfloat16", gated=False, **shape)
    frame = load_frame("h200_sxm", "trtllm")
    assert frame is not None
    row = frame[
        (frame["kernel_source"] == "moe_torch_flow_nongated")
        & (frame["moe_dtype"] == "bfloat16")
        & (frame["hidden_size"] == 2688)
        & (frame["moe_ep_size"] == 4)
        & (frame["moe_tp_size"] == 1)
        & (frame["num_tokens"] == 256)
        & (frame["distribution"] == "balanced")
    ]
    assert plain.seconds == pytest.approx(row["latency_ms"].iloc[0] * 1e-3)
    assert plain.provenance == Provenance.MEASURED


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.floats(0.1, 1e6),
            st.sampled_from([1024, 2880, 5120, 7168, 12288]),
            st.sampled_from([512, 1536, 10752]),
            st.sampled_from([1, 4, 8]),
            st.sampled_from([16, 128, 160, 256, 384]),
            st.sampled_from([1, 2, 3, 4, 12, 16]),
        ),
        min_size=1,
        max_size=12,
    ),
    dtype=st.sampled_from(["bfloat16", "fp8", "fp8_block", "nvfp4", "int4_wo", "w4a16_mxfp4"]),
)
def test_any_shape_is_finite_and_rows_do_not_depend_on_each_other(
    rows: list[tuple[float, int, int, int, int, int]], dtype: str
) -> None:
    database = SHARED
    t, h, i, k, e, ep = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    shape = {"tokens": t, "hidden": h, "intermediate": i, "topk": k, "experts": e, "ep": ep}
    together = database.moe(dtype=dtype, moe_tp=1, **shape)
    assert np.isfinite(together.seconds).all()
    assert (together.seconds > 0).all()
    for row in range(len(rows)):
        alone = database.moe(dtype=dtype, moe_tp=1, **{name: value[row] for name, value in shape.items()})
        assert float(alone.seconds) == pytest.approx(float(together.seconds[row]), rel=1e-12)
        assert alone.provenance == together.provenance[row]


SHARED = OperatorDatabase(B200, "trtllm")


@settings(max_examples=30, deadline=None)
@given(tokens=st.floats(1, 1e5), ep=st.integers(1, 256), faster=st.floats(1.0, 10.0))
def test_more_bandwidth_is_never_slower(tokens: float, ep: int, faster: float) -> None:
    wide = OperatorDatabase(
        B200.model_copy(update={"hbm_bytes_per_s": B200.hbm_bytes_per_s * faster}), "trtllm", B200
    )
    wide._moe._tables = SHARED._moe._tables
    base = ask(SHARED, tokens=tokens, ep=ep).seconds
    assert ask(wide, tokens=tokens, ep=ep).seconds <= base * (1 + 1e-12)


def test_unknown_routing_is_refused(trtllm: OperatorDatabase) -> None:
    with pytest.raises(InputError, match=r"power_law_1\.01"):
        ask(trtllm, distribution="zipf")
