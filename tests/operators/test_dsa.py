"""Sparse attention after prefixes that no table holds: other tables, held-out rows, no steps."""

import numpy as np
import pytest

from afd_dse.operators import dsa
from afd_dse.operators.block import BlockDtypes
from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.latency import FloatArray, Provenance
from afd_dse.operators.store import load_table
from afd_dse.spec.catalogue import load_accelerator

HIDDEN, SPARSE = dsa.MODELS["deepseek-ai/DeepSeek-V3.2"]
TYPES = BlockDtypes("fp8_block", "bfloat16", "fp8")


def prefill(
    framework: str,
    heads: float | FloatArray,
    batch: float | FloatArray,
    tokens: float | FloatArray,
    prefix: float | FloatArray,
    accelerator: str = "b200_sxm",
) -> tuple[FloatArray, FloatArray]:
    part = load_accelerator(accelerator)
    columns = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (heads, batch, tokens, prefix)))
    h, b, t, p = (np.atleast_1d(column).copy() for column in columns)
    found = dsa.context(
        OperatorDatabase(part, framework, part), SPARSE, HIDDEN, TYPES, heads=h, batch=b, tokens=t, prefix=p
    )
    return found.seconds, np.asarray(found.provenance)


@pytest.mark.parametrize("heads", [16.0, 128.0])
def test_tables_without_prefixes_agree_with_one_that_measured_a_long_one(heads: float) -> None:
    measured, trust = prefill("sglang", heads, 1.0, 4096.0, 131072.0)
    assert trust == Provenance.MEASURED
    for framework in ("trtllm", "vllm"):
        found, trust = prefill(framework, heads, 1.0, 4096.0, 131072.0)
        assert found == pytest.approx(measured, rel=0.35)
        assert trust == Provenance.INTERPOLATED


@pytest.mark.parametrize("accelerator", ["b200_sxm", "h100_sxm"])
def test_measured_long_prefixes_follow_from_short_ones(
    accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = load_table(accelerator, "sglang", "dsa_context_module")
    assert table is not None
    rows = table[
        (table["model"] == "deepseek-ai/DeepSeek-V3.2")
        & (table["gemm_type"] == TYPES.gemm)
        & (table["kv_cache_dtype"] == TYPES.kv)
        & table["kernel_source"].str.contains("indexer")
        & ~table["kernel_source"].str.contains("skip")
        & (table["step"] >= 32768)
    ]
    shape = [rows[name].to_numpy(float) for name in ("num_heads", "batch_size", "isl", "step")]
    reached, measured = dsa._reached, rows["latency_ms"].to_numpy(float) * 1e-3
    monkeypatch.setattr(dsa, "_reached", lambda *asked: np.minimum(reached(*asked), 8192.0))
    ratio = prefill("sglang", *shape, accelerator=accelerator)[0] / measured
    assert len(ratio) > 1000
    assert np.median(np.abs(ratio - 1.0)) < 0.2
    assert np.median(ratio) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("framework", ["trtllm", "vllm", "sglang"])
@pytest.mark.parametrize("tokens", [256.0, 4096.0])
def test_a_longer_prefix_takes_longer_without_steps(framework: str, tokens: float) -> None:
    prefixes = np.geomspace(4096.0, 1e6, 60)
    seconds, _ = prefill(framework, 16.0, 1.0, tokens, prefixes)
    # Measured rows scatter by a few per cent.
    assert (seconds[1:] >= 0.95 * seconds[:-1]).all()
    assert (seconds[1:] <= 1.2 * seconds[:-1]).all()


def test_what_lies_beyond_the_longest_measured_prefix_goes_on_from_it() -> None:
    for framework, prefix in (("trtllm", 128.0), ("vllm", 128.0), ("sglang", 159744.0)):
        (at, after), _ = prefill(framework, 128.0, 1.0, 4096.0, np.array([prefix, prefix + 1.0]))
        assert after == pytest.approx(at, rel=1e-3)


def test_half_a_million_cached_tokens_cost_what_their_scores_do() -> None:
    """Held for such a prefix, the efficiency of a short block would make it 2 to 25 times too slow."""
    for framework in ("trtllm", "vllm", "sglang"):
        (near, far), _ = prefill(framework, 16.0, 1.0, 256.0, np.array([65536.0, 524288.0]))
        flop = 2.0 * 256.0 * (524288.0 - 65536.0) * SPARSE.index_heads * SPARSE.index_head_dim
        part = load_accelerator("b200_sxm")
        assert far - near == pytest.approx(flop / (0.4 * part.peak_flops["fp8"]), rel=0.6)


@pytest.mark.parametrize(("framework", "worst"), [("trtllm", 0.2), ("vllm", 0.1)])
def test_decode_over_the_longest_contexts_follows_from_shorter_ones(
    framework: str, worst: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = load_table("b200_sxm", framework, "dsa_generation_module")
    assert table is not None
    rows = table[
        (table["model"] == "deepseek-ai/DeepSeek-V3.2")
        & (table["gemm_type"] == TYPES.gemm)
        & (table["kv_cache_dtype"] == TYPES.kv)
        & (table["step"] == 131072)
    ]
    part, reached = load_accelerator("b200_sxm"), dsa._reached
    asked = {
        "heads": rows["num_heads"].to_numpy(float),
        "batch": rows["batch_size"].to_numpy(float),
        "context": rows["step"].to_numpy(float) + 1.0,
    }
    database = OperatorDatabase(part, framework, part)
    exact = dsa.generation(database, SPARSE, HIDDEN, TYPES, **asked).seconds
    monkeypatch.setattr(dsa, "_reached", lambda *shape: np.minimum(reached(*shape), 32768.0))
    found = dsa.generation(database, SPARSE, HIDDEN, TYPES, **asked)
    assert np.median(np.abs(found.seconds / exact - 1.0)) < worst
    assert (found.provenance == Provenance.INTERPOLATED).all()
    assert len(rows) > 30
