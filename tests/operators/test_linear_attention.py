"""Gated delta net kernels: exact at measured points, sane elsewhere, honest about what is borrowed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.architecture.model import LinearAttention
from afd_dse.errors import InputError
from afd_dse.operators.attention import Rates
from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.latency import Provenance
from afd_dse.operators.linear_attention import gdn_table
from afd_dse.spec.catalogue import load_accelerator

QWEN = LinearAttention(key_heads=16, key_head_dim=128, value_heads=64, value_head_dim=128, conv_kernel=4)
FRAMEWORKS = ("trtllm", "sglang", "vllm")


def database(accelerator: str = "h200_sxm", framework: str = "vllm") -> OperatorDatabase:
    return OperatorDatabase(load_accelerator(accelerator), framework)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("phase", ["context", "generation"])
def test_sums_of_measured_kernels_come_back_exactly(framework: str, phase: str) -> None:
    table = gdn_table(Rates.of(load_accelerator("b200_sxm")), framework, phase)
    assert table is not None
    surfaces = table.surfaces
    shape = table.keys[surfaces.key]
    found = database("b200_sxm", framework).linear_attention(
        spec=QWEN,
        hidden=4096,
        value_heads=shape[:, 2],
        key_heads=shape[:, 0],
        phase=phase,
        batch=surfaces.u,
        tokens=surfaces.v,
    )
    np.testing.assert_allclose(found.seconds, surfaces.measured, rtol=1e-6)
    assert (found.provenance == Provenance.MEASURED).all()


@settings(max_examples=60, deadline=None)
@given(
    place=st.sampled_from([("h200_sxm", "trtllm"), ("b200_sxm", "sglang"), ("h20", "vllm")]),
    phase=st.sampled_from(["context", "generation"]),
    share=st.sampled_from([1, 2, 3, 4, 8, 16]),
    batch=st.floats(0.25, 4096),
    tokens=st.floats(1, 1e5),
)
def test_latency_is_positive_finite_and_grows_with_batch(
    place: tuple[str, str], phase: str, share: int, batch: float, tokens: float
) -> None:
    found = database(*place).linear_attention(
        spec=QWEN,
        hidden=4096,
        value_heads=64 / share,
        key_heads=max(16 / share, 1),
        phase=phase,
        batch=[batch, 2.0 * batch],
        tokens=tokens,
    )
    assert np.isfinite(found.seconds).all()
    assert found.seconds[0] > 1e-6
    assert found.seconds[1] >= 0.9 * found.seconds[0]


def test_decode_ignores_the_tokens_already_seen() -> None:
    found = database().linear_attention(
        spec=QWEN,
        hidden=4096,
        value_heads=64,
        key_heads=16,
        phase="generation",
        batch=32,
        tokens=[1, 100_000],
    )
    assert found.seconds[0] == found.seconds[1]


def test_unmeasured_head_counts_borrow_at_equal_work() -> None:
    asked = database("h200_sxm", "trtllm")
    shape = {"spec": QWEN, "hidden": 4096, "phase": "generation", "tokens": 1}
    split = asked.linear_attention(**shape, value_heads=8, key_heads=2, batch=512)
    whole = asked.linear_attention(**shape, value_heads=64, key_heads=16, batch=64)
    assert split.provenance == Provenance.BORROWED
    assert float(split.seconds) == pytest.approx(float(whole.seconds), rel=0.1)


def test_more_bandwidth_is_never_slower() -> None:
    plain = load_accelerator("b200_sxm")
    faster = plain.model_copy(update={"hbm_bytes_per_s": plain.hbm_bytes_per_s * 3})
    shape = {
        "spec": QWEN,
        "hidden": 4096,
        "value_heads": 64,
        "key_heads": 16,
        "phase": "generation",
        "tokens": 1,
    }
    batch = np.geomspace(1, 2048, 30)
    slow = OperatorDatabase(plain, "vllm", plain).linear_attention(**shape, batch=batch)
    fast = OperatorDatabase(faster, "vllm", plain).linear_attention(**shape, batch=batch)
    assert (fast.seconds <= slow.seconds).all()


def test_an_unknown_phase_is_an_error_that_names_it() -> None:
    with pytest.raises(InputError, match=r"phase.*decode.*context or generation"):
        database().linear_attention(
            spec=QWEN, hidden=4096, value_heads=64, key_heads=16, phase="decode", batch=1, tokens=1
        )
