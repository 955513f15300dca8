import pytest

from afd_dse.architecture.catalogue import load_model
from afd_dse.calibration.recipes import recipe
from afd_dse.errors import InputError

HOPPER, BLACKWELL = "hopper", "blackwell"


def kv_cache(framework: str, generation: str, gemm: str = "fp8", asked: str = "") -> str:
    return recipe(load_model("meta-llama/Llama-3.1-70B"), framework, generation, gemm, "", asked).kv_cache


@pytest.mark.parametrize(
    ("framework", "generation", "stored"),
    [
        ("trtllm", HOPPER, "fp8"),
        ("trtllm", BLACKWELL, "fp8"),
        ("vllm", HOPPER, "bfloat16"),
        ("vllm", BLACKWELL, "fp8"),
        ("sglang", HOPPER, "bfloat16"),
        ("sglang", BLACKWELL, "bfloat16"),
    ],
)
def test_the_cache_of_a_quantised_run_is_what_the_framework_s_recipe_says(
    framework: str, generation: str, stored: str
) -> None:
    assert kv_cache(framework, generation) == stored


def test_a_run_in_bfloat16_has_a_cache_in_bfloat16() -> None:
    assert kv_cache("trtllm", HOPPER, gemm="bfloat16") == "bfloat16"
    assert kv_cache("trtllm", HOPPER, gemm="") == "bfloat16"


def test_what_a_row_states_goes_before_every_recipe() -> None:
    assert kv_cache("trtllm", HOPPER, asked="bfloat16") == "bfloat16"
    assert kv_cache("sglang", HOPPER, asked="fp8") == "fp8"


def test_fp8_is_block_scaled_where_the_publisher_s_release_is() -> None:
    def gemm(model: str, dtype: str = "fp8") -> str:
        return recipe(load_model(model), "trtllm", HOPPER, dtype, "", "").gemm

    assert gemm("deepseek-ai/DeepSeek-V3") == "fp8_block"  # its own
    assert gemm("Qwen/Qwen3-32B") == "fp8_block"  # that of Qwen3-32B-FP8
    assert gemm("meta-llama/Llama-3.1-70B") == "fp8"  # no release: per tensor
    assert gemm("Qwen/Qwen3-32B", "bfloat16") == "bfloat16"


def test_mxfp4_experts_run_as_they_are_whatever_a_table_calls_them() -> None:
    model = load_model("openai/gpt-oss-120b")
    for stated in ("", "nvfp4", "w4a16_mxfp4"):
        assert recipe(model, "trtllm", BLACKWELL, "", stated, "").moe == "w4a8_mxfp4_mxfp8"
        assert recipe(model, "trtllm", HOPPER, stated and "nvfp4", stated, "").moe == "w4a16_mxfp4"


def test_a_type_that_the_accelerator_cannot_compute_in_is_refused() -> None:
    with pytest.raises(InputError, match="nvfp4"):
        recipe(load_model("meta-llama/Llama-3.1-70B"), "trtllm", HOPPER, "nvfp4", "", "")
