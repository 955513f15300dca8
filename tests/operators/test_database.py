import numpy as np
import pytest

from afd_dse.architecture.model import LinearAttention, Mla
from afd_dse.errors import InputError
from afd_dse.operators.borrowing import alike, rates_of, rescaled, sources
from afd_dse.operators.database import ELEMENTWISE_LAUNCH_S, OperatorDatabase
from afd_dse.operators.latency import Latency, Provenance
from afd_dse.spec.catalogue import accelerator_names, load_accelerator

H200 = load_accelerator("h200_sxm")
DEEPSEEK_V3 = Mla(128, 1536, 512, 128, 64, 128)
QWEN3_NEXT = LinearAttention(16, 128, 32, 128, 4)


def every_operator(database: OperatorDatabase) -> dict[str, Latency]:
    """One plausible block of every operator."""
    batch = np.array([1.0, 32.0])
    exchange = {"hidden": 7168, "topk": 8, "experts": 256, "ep": 8, "dtype_bytes": 1.0, "low_latency": True}
    return {
        "gemm": database.gemm(dtype="fp8", m=batch, n=4096, k=4096),
        "moe": database.moe(
            dtype="fp8", tokens=batch, hidden=4096, intermediate=1536, topk=8, experts=128, moe_tp=1, ep=4
        ),
        "elementwise": database.elementwise(bytes_moved=batch),
        "all_reduce": database.all_reduce(message_bytes=batch, gpus=4),
        "all_gather": database.all_gather(message_bytes=batch, gpus=4),
        "reduce_scatter": database.reduce_scatter(message_bytes=batch, gpus=4),
        "all_to_all": database.all_to_all(message_bytes=batch, gpus=4),
        "dispatch": database.expert_dispatch(tokens_per_rank=batch, **exchange)[0],
        "combine": database.expert_combine(tokens_per_rank=batch, **exchange)[0],
        "generation_attention": database.generation_attention(
            heads=8, kv_heads=1, head_dim=128, window=0, kv_dtype="fp8", batch=batch, context=4096
        ),
        "context_attention": database.context_attention(
            heads=8,
            kv_heads=1,
            head_dim=128,
            window=0,
            attention_dtype="bfloat16",
            kv_dtype="fp8",
            batch=batch,
            tokens=2048,
            prefix=0,
        ),
        "mla_generation": database.mla_generation(
            mla=DEEPSEEK_V3,
            hidden=7168,
            heads=16,
            gemm_dtype="fp8_block",
            kv_dtype="fp8",
            batch=batch,
            context=4096,
        ),
        "mla_context": database.mla_context(
            mla=DEEPSEEK_V3,
            hidden=7168,
            heads=16,
            gemm_dtype="fp8_block",
            attention_dtype="bfloat16",
            kv_dtype="fp8",
            batch=batch,
            tokens=2048,
            prefix=0,
        ),
        "linear_attention": database.linear_attention(
            spec=QWEN3_NEXT,
            hidden=2048,
            value_heads=32,
            key_heads=16,
            phase="generation",
            batch=batch,
            tokens=1,
        ),
    }


@pytest.mark.parametrize("framework", ["trtllm", "sglang", "vllm"])
@pytest.mark.parametrize("name", accelerator_names())
def test_every_accelerator_answers_every_operator_under_every_framework(name: str, framework: str) -> None:
    accelerator = load_accelerator(name)
    for operator, found in every_operator(OperatorDatabase(accelerator, framework)).items():
        assert found.seconds.shape == (2,), operator
        assert found.provenance.shape == (2,), operator
        assert np.isfinite(found.seconds).all(), operator
        assert (found.seconds > 0).all(), operator
        if accelerator.tables is None:
            assert (found.provenance >= Provenance.BORROWED).all(), operator


def test_construction_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a table was read")

    monkeypatch.setattr("afd_dse.operators.gemm.load_table", fail)
    database = OperatorDatabase(H200, "trtllm")
    with pytest.raises(AssertionError, match="a table was read"):
        database.gemm(dtype="fp8", m=1, n=1, k=1)


def test_arguments_broadcast_and_results_keep_the_shape() -> None:
    found = OperatorDatabase(H200, "trtllm").gemm(dtype="fp8", m=np.ones((3, 1)), n=[64, 128, 256, 512], k=64)
    assert found.seconds.shape == (3, 4)
    assert OperatorDatabase(H200, "trtllm").elementwise(bytes_moved=1e6).seconds.shape == ()


def test_memory_bound_kernels_take_their_bytes_and_a_launch() -> None:
    moved = H200.hbm_bytes_per_s * 0.8
    found = OperatorDatabase(H200, "trtllm").elementwise(bytes_moved=[0.0, moved])
    np.testing.assert_allclose(found.seconds, [ELEMENTWISE_LAUNCH_S, 1.0 + ELEMENTWISE_LAUNCH_S])


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(InputError, match="sglang"):
        OperatorDatabase(H200, "tgi")


def test_overridden_rates_divide_the_catalogues_efficiency() -> None:
    slow = H200.model_copy(update={"hbm_bytes_per_s": H200.hbm_bytes_per_s / 2})
    shape = {"dtype": "bfloat16", "m": 4, "n": 8192, "k": 8192}
    base = OperatorDatabase(H200, "trtllm").gemm(**shape)
    halved = OperatorDatabase(slow, "trtllm", H200).gemm(**shape)
    assert halved.seconds == pytest.approx(2 * base.seconds)
    assert halved.provenance == Provenance.MEASURED


def test_the_own_table_comes_first_then_its_data_type_elsewhere_then_types_alike() -> None:
    order = [(s.accelerator, s.framework, s.dtype) for s in sources(H200, "sglang", "fp8_block")]
    assert order[:4] == [
        ("h200_sxm", "sglang", "fp8_block"),
        ("h200_sxm", "trtllm", "fp8_block"),
        ("h200_sxm", "vllm", "fp8_block"),
        ("h200_sxm", "sglang", "fp8"),
    ]
    assert [s.own for s in sources(H200, "sglang", "fp8_block")].count(True) == 1
    assert len(order) == len(set(order))


def test_an_accelerator_without_tables_owns_none() -> None:
    h20 = load_accelerator("h20")
    found = sources(h20, "sglang", "bfloat16")
    assert found[0].accelerator == h20.efficiency_from
    assert not any(source.own for source in found)


def test_four_bit_weights_resemble_weight_only_kernels_without_fp4() -> None:
    assert "bfloat16" in alike(H200, "nvfp4")
    assert "bfloat16" not in alike(load_accelerator("b200_sxm"), "nvfp4")


def test_rates_come_from_the_reference_when_it_is_the_one() -> None:
    odd = H200.model_copy(update={"hbm_bytes_per_s": 1.0})
    assert rates_of("h200_sxm", odd) is odd
    assert rates_of("h100_sxm", odd) == load_accelerator("h100_sxm")


def test_a_borrowed_latency_keeps_the_launch_and_scales_the_rest() -> None:
    found = rescaled(np.array([12.0, 1.0]), np.array([4.0, 4.0]), np.array([2.0, 2.0]), floor_s=2.0)
    np.testing.assert_allclose(found, [2.0 + 10.0 / 2, 1.0])
