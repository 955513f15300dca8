"""Work of one token against published operator counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.architecture.catalogue import load_model, model_names
from afd_dse.architecture.quantization import quantization_for
from afd_dse.architecture.work import parameters, token_work

# arXiv 2507.19427 (Step-3): per token at 8K of context the KV bytes at 8 bit and the FLOP of attention, its linear
# projections and FFN; at 32K the KV bytes and attention FLOP.
STEP_3_COUNTS = {
    "deepseek-v3": (2.88e8, 1.47e11, 2.28e10, 4.84e10, 1.15e9, 5.89e11),
    "kimi-k2": (2.88e8, 7.37e10, 1.23e10, 4.84e10, 1.15e9, 2.95e11),
    "qwen3-235b-a22b": (7.89e8, 2.52e10, 1.34e10, 2.84e10, 3.15e9, 1.01e11),
    "qwen3-32b": (1.07e9, 1.72e10, 1.21e10, 5.03e10, 4.29e9, 6.87e10),
    "step-3": (2.56e8, 3.27e10, 2.07e10, 5.33e10, 1.02e9, 1.31e11),
}


@pytest.mark.parametrize("name", STEP_3_COUNTS)
def test_operator_counts_of_the_step_3_paper_come_out(name: str) -> None:
    model = load_model(name)
    eight_bit = quantization_for(model, {"kv_cache": "fp8"})
    work = token_work(model, eight_bit, np.array([8192, 32768]), latent_values=True)
    ours = (
        work.kv_bytes[0],
        work.attention_flop[0],
        work.projection_flop[0],
        work.ffn_flop[0],
        work.kv_bytes[1],
        work.attention_flop[1],
    )
    assert ours == pytest.approx(STEP_3_COUNTS[name], rel=0.01)


def test_the_weighted_sum_of_mla_is_over_the_latent_only() -> None:
    model = load_model("deepseek-v3")
    exact = token_work(model, model.quantization, 8192).attention_flop
    paper = token_work(model, model.quantization, 8192, latent_values=True).attention_flop
    assert float(exact / paper) == pytest.approx((576 + 512) / (576 + 576))


def test_sparse_attention_reads_no_more_than_it_chooses_but_indexes_everything() -> None:
    model = load_model("DeepSeek-V3.2")
    flop = token_work(model, model.quantization, np.array([2048.0, 4096.0, 6144.0])).attention_flop
    assert flop[1] - flop[0] == pytest.approx(flop[2] - flop[1])
    assert float(flop[1] - flop[0]) == pytest.approx(61 * 2 * 64 * 128 * 2048)


@pytest.mark.parametrize("name", ["DeepSeek-V3", "gpt-oss-120b", "Qwen3.5-397B-A17B", "Llama-3.1-8B"])
def test_projections_and_ffn_take_two_flop_an_active_parameter(name: str) -> None:
    model = load_model(name)
    work = token_work(model, model.quantization, 1)
    outside = 2 * model.vocabulary * model.hidden * (2 - model.tied_embeddings)
    active = 2 * parameters(model)[1] - outside
    assert float(work.projection_flop + work.ffn_flop) == pytest.approx(active, rel=0.01)


@given(name=st.sampled_from(model_names()), context=st.floats(1, 1e6), factor=st.floats(1, 10))
def test_work_never_falls_with_context(name: str, context: float, factor: float) -> None:
    model = load_model(name)
    work = token_work(model, model.quantization, np.array([context, context * factor]))
    for part in (work.attention_flop, work.projection_flop, work.ffn_flop, work.kv_bytes):
        assert part[1] >= part[0] >= 0
