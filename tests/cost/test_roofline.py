"""Costs at speed of light against Step-3's and MegaScale-Infer's tables."""

import numpy as np
import pytest

from afd_dse.architecture.catalogue import load_model
from afd_dse.architecture.model import Quantization
from afd_dse.architecture.work import token_work
from afd_dse.cost.roofline import (
    attention_seconds,
    best_per_price,
    compute_bound_batch,
    expert_utilisation,
    ffn_seconds,
    stage_context,
    usd_per_mtok,
)

EIGHT_BIT = Quantization(gemm="fp8", moe="fp8", kv_cache="fp8")


def test_the_published_batch_of_an_a100_comes_out() -> None:
    # arXiv 2504.02263: 312 TFLOPS and 2 TB/s in bfloat16.
    assert compute_bound_batch(312e12, 2e12) == pytest.approx(156)
    assert expert_utilisation(156.0, 156.0, 8, 2) == pytest.approx(0.25)
    assert expert_utilisation(np.array([624.0, 10_000.0]), 156.0, 8, 2) == pytest.approx([1.0, 1.0])


def test_the_published_cost_of_deepseek_v3_on_h800_comes_out() -> None:
    # arXiv 2507.19427: attention 0.054 USD at 8K and 0.197 at 32K, FFN 0.014 a million tokens.
    work = token_work(load_model("deepseek-v3"), EIGHT_BIT, [8192, 32768], latent_values=True)
    cost = usd_per_mtok(attention_seconds(work, 1980e12, 3.35e12), 2.0)
    assert cost == pytest.approx([0.054, 0.197], abs=0.0005)
    assert usd_per_mtok(ffn_seconds(work, 1980e12), 2.0) == pytest.approx([0.014, 0.014], abs=0.0005)


def test_a_stage_holds_the_published_context_of_step_3() -> None:
    model = load_model("step-3")
    assert stage_context(model.kinds[-1], EIGHT_BIT, 168e6) == pytest.approx(328e3, rel=0.01)


def test_a_layer_without_a_cache_holds_any_context() -> None:
    linear = load_model("Qwen/Qwen3.5-397B-A17B").kinds[0]
    assert np.isinf(stage_context(linear, EIGHT_BIT, 1.0))


def test_the_best_device_has_most_of_the_figure_for_its_price() -> None:
    assert best_per_price({"a": 10.0, "b": 30.0}, {"a": 1.0, "b": 4.0}) == "a"
