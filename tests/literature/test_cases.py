"""From a published setting to a job."""

import pytest

from afd_dse.errors import InputError
from afd_dse.literature.cases import accelerator_of, best_decode, dtypes_of, framework_of, job_of
from afd_dse.literature.plans import _best_colocated
from afd_dse.literature.rows import Inputs, Row


def row(quantity: str = "", **inputs: object) -> Row:
    return Row("id", "any", quantity, Inputs(inputs), "1", "exact", "exact")


@pytest.mark.parametrize(
    "asked",
    [
        row(hardware="H20"),
        row(device="h20"),
        row(accelerator="nvidia-h20"),
        row(gpus="8 x H20"),
        row("decode on 8 x H20"),
    ],
)
def test_the_hardware_is_found_under_any_of_its_names(asked: Row) -> None:
    assert accelerator_of(asked, "hardware", "gpus") == "h20"


def test_stated_links_replace_those_of_the_catalogue_and_no_hardware_is_refused() -> None:
    found = accelerator_of(row(hardware="a100", nvlink_gb_s=400, nic="8x200Gb/s"), "hardware")
    assert found == {"base": "a100_sxm", "scale_up_gb_s": 200.0, "scale_out_gb_s": 25.0}
    with pytest.raises(InputError, match=r"inputs\.hardware: names no accelerator"):
        accelerator_of(row("somewhere"), "hardware")


def test_data_types_are_as_the_row_says() -> None:
    assert dtypes_of(Inputs({}))["kv_cache"] == "bfloat16"
    assert dtypes_of(Inputs({"kv_dtype": "fp8"})) == {
        "gemm": "fp8_block",
        "moe": "fp8_block",
        "kv_cache": "fp8",
    }
    assert dtypes_of(Inputs({"dtype": "bf16", "kv_dtype": "bf16"})) == {"kv_cache": "bfloat16"}


@pytest.mark.parametrize(
    ("asked", "model", "framework"),
    [
        (row(), "deepseek-v3", "trtllm"),
        (row(), "step-3", "vllm"),
        (row("against SGLang"), "step-3", "sglang"),
        (row("against vLLM", framework="trtllm"), "step-3", "trtllm"),
        (row(), {"model_type": "inline"}, "trtllm"),
    ],
)
def test_kernels_are_those_that_the_row_names_or_that_serve_the_model(
    asked: Row, model: object, framework: str
) -> None:
    assert framework_of(asked, model) == framework


def test_a_baseline_that_needs_two_nodes_is_tensor_parallel_over_both() -> None:
    job = job_of(
        "scaled-moe",
        "a100",
        framework="trtllm",
        gpus=32,
        workload={"input_tokens": 571, "output_tokens": 159},
        slo={"tpot_ms": 150},
    )
    best = _best_colocated(job)
    assert best is not None
    assert best.cut("tp") == best.attention_gpus == best.ffn_gpus == 16
    assert (best.cut("pp"), best.cut("micro_batches")) == (1, 1)
    assert best.tpot_s <= 0.150
    # Attention in parallel over requests would not send every layer's sums across the nodes.
    free = best_decode(job, "PA PF | DA DF", tp=[2, 8], moe_tp=[1], micro_batches=[1])
    assert free is not None
    assert free.rate > best.rate
