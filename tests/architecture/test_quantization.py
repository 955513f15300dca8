"""Data types: what checkpoints say in their several dialects, and what a job makes of it."""

from typing import Any

import pytest

from afd_dse.architecture.catalogue import load_model
from afd_dse.architecture.config import read_config
from afd_dse.architecture.model import Quantization
from afd_dse.architecture.quantization import quantization_for
from afd_dse.errors import InputError

Config = dict[str, Any]

DENSE: Config = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "vocab_size": 1000,
}
MOE: Config = DENSE | {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "head_dim": 64,
}
NVFP4 = {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}
INT4 = {"weights": {"num_bits": 4, "type": "int", "group_size": 32}, "targets": ["Linear"]}
FP8 = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}, "targets": ["Linear"]}
BLOCK = {"weights": {"num_bits": 8, "type": "float", "strategy": "block"}, "targets": ["Linear"]}


def stored(quantization: object, base: Config = MOE) -> tuple[str, str, str]:
    read = read_config(base | {"quantization_config": quantization}, "x").quantization
    return read.gemm, read.moe, read.kv_cache


def compressed(group: object, **more: object) -> Config:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}} | more


def test_without_a_word_everything_is_bfloat16() -> None:
    assert read_config(MOE, "x").quantization == Quantization()


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8_block", "fp8_block", "bfloat16")),
        ({"quant_method": "fp8"}, ("fp8", "fp8", "bfloat16")),
        ({"quant_method": "mxfp4"}, ("bfloat16", "w4a16_mxfp4", "bfloat16")),
        ({"quant_method": "awq", "bits": 4}, ("int4_wo", "int4_wo", "bfloat16")),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, ("int4_wo", "int4_wo", "bfloat16")),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("nvfp4", "nvfp4", "bfloat16")),
        ({"quant_algo": "FP8", "kv_cache_scheme": "FP8"}, ("fp8", "fp8", "fp8")),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, ("fp8", "fp8", "fp8")),
        (compressed(NVFP4), ("nvfp4", "nvfp4", "bfloat16")),
        (compressed(FP8), ("fp8", "fp8", "bfloat16")),
        (compressed(BLOCK), ("fp8_block", "fp8_block", "bfloat16")),
        (compressed(INT4, ignore=["re:.*self_attn.*"]), ("bfloat16", "int4_wo", "bfloat16")),
        (compressed(FP8, kv_cache_scheme={"num_bits": 8, "type": "float"}), ("fp8", "fp8", "fp8")),
    ],
)
def test_each_dialect_is_understood(quantization: Config, expected: tuple[str, str, str]) -> None:
    assert stored(quantization) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        "re:.*self_attn.*",
        "model.layers.*.self_attn",
        "self_attn",
        "*.self_attn.*",
        "model.language_model.layers.*.self_attn.o_proj",
    ],
)
def test_excluded_attention_stays_in_bfloat16(pattern: str) -> None:
    assert stored({"quant_algo": "NVFP4", "ignore": [pattern]})[:2] == ("bfloat16", "nvfp4")


def test_excluding_single_layers_does_not_decide_for_the_model() -> None:
    assert stored({"quant_algo": "NVFP4", "ignore": ["model.layers.1.self_attn*", "lm_head"]})[0] == "nvfp4"


def test_excluding_routers_and_norms_excludes_no_expert() -> None:
    excluded = ["gate", "lm_head", "model.layers.0.mlp.gate", "e_score_correction_bias"]
    assert stored({"quant_method": "fp8", "modules_to_not_convert": excluded})[:2] == ("fp8", "fp8")


def test_a_dense_model_follows_its_ffn() -> None:
    assert stored({"quant_algo": "NVFP4", "ignore": ["*self_attn*"]}, DENSE)[0] == "nvfp4"


def test_layers_quantised_one_by_one_are_read_by_role() -> None:
    layers = {f"model.layers.{layer}.mlp.experts": {"quant_algo": "NVFP4"} for layer in range(4)}
    layers |= {f"model.layers.{layer}.self_attn.o_proj": {"quant_algo": "FP8"} for layer in range(4)}
    assert stored({"quant_algo": "MIXED_PRECISION", "quantized_layers": layers})[:2] == ("fp8", "nvfp4")


def test_a_separate_file_counts_where_the_config_is_silent() -> None:
    separate = {
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    }
    read = read_config(MOE, "x", separate_quantization=separate).quantization
    assert (read.gemm, read.moe, read.kv_cache) == ("nvfp4", "nvfp4", "fp8")
    own = MOE | {"quantization_config": {"quant_method": "fp8"}}
    assert read_config(own, "x", separate_quantization=separate).quantization.gemm == "fp8"


@pytest.mark.parametrize(
    ("quantization", "field"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "weight_block_size"),
        ({"quant_method": "gptq", "bits": 8}, "bits"),
        ({"quant_algo": "W8A8_SQ"}, "quant_algo"),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "INT8"}, "kv_cache_scheme"),
        (compressed({"weights": {"num_bits": 8, "type": "int"}}), "config_groups.group_0"),
        ({"quant_algo": "FP8", "ignore": ["re:("]}, ""),
        ("fp8", ""),
    ],
)
def test_what_is_not_modelled_is_named(quantization: object, field: str) -> None:
    with pytest.raises(InputError, match=f"model.quantization_config{'.' if field else ''}{field}"):
        stored(quantization)


def test_a_job_overrides_role_by_role() -> None:
    model = load_model("gpt-oss-120b")
    merged = quantization_for(model, {"moe": "w4a8_mxfp4_mxfp8", "kv_cache": "fp8", "gemm": None})
    assert merged == Quantization("bfloat16", "w4a8_mxfp4_mxfp8", "bfloat16", "fp8")
    assert quantization_for(model) == model.quantization


@pytest.mark.parametrize(
    "overrides", [{"gemm": "w4a16_mxfp4"}, {"kv_cache": "nvfp4"}, {"weights": "fp8"}, {"moe": 8}]
)
def test_an_unknown_role_or_type_is_named(overrides: dict[str, object]) -> None:
    (role,) = overrides
    with pytest.raises(InputError, match=rf"quantization\.{role}"):
        quantization_for(load_model("DeepSeek-V3"), overrides)


@pytest.mark.parametrize(
    ("model", "overrides", "generation", "roles"),
    [
        ("DeepSeek-V3", {}, "hopper", []),
        ("DeepSeek-V3", {}, "ampere", ["gemm", "moe"]),
        ("DeepSeek-V3", {"gemm": "bfloat16", "moe": "bfloat16"}, "ampere", []),
        ("DeepSeek-V3", {"moe": "nvfp4"}, "hopper", ["moe"]),
        ("DeepSeek-V3", {"moe": "nvfp4"}, "blackwell", []),
        ("DeepSeek-V3", {"moe": "nvfp4"}, "blackwell_ultra", []),
        ("gpt-oss-20b", {}, "hopper", []),
        ("gpt-oss-20b", {"moe": "w4a8_mxfp4_mxfp8"}, "hopper", ["moe"]),
        ("Llama-3.1-8B", {"moe": "nvfp4"}, "hopper", []),
        ("Llama-3.1-8B", {"attention": "fp8"}, "ampere", ["attention"]),
    ],
)
def test_an_accelerator_must_run_the_types(
    model: str, overrides: dict[str, object], generation: str, roles: list[str]
) -> None:
    if not roles:
        quantization_for(load_model(model), overrides, generation)
        return
    with pytest.raises(InputError) as error:
        quantization_for(load_model(model), overrides, generation)
    assert [problem.field for problem in error.value.problems] == [f"quantization.{role}" for role in roles]


def test_an_unknown_generation_is_named() -> None:
    with pytest.raises(InputError, match="pascal"):
        quantization_for(load_model("DeepSeek-V3"), {}, "pascal")
