from pathlib import Path

import pytest

from afd_dse.errors import InputError
from afd_dse.launch.api import TARGETS, best_run, launch_files, resource_name
from afd_dse.resources import operator_db_root
from tests.launch.deployments import deployment, job, result


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["colocated", "pd"])
def test_every_target_is_written_with_a_readme(target: str, name: str) -> None:
    found = launch_files(result("vllm", name), deployment("vllm", name), target=target)
    assert found.target == target
    assert found.framework == (TARGETS[target] or "vllm")
    assert len(found.files) >= 2
    label = deployment("vllm", name)["label"]
    assert found.files["README.md"].startswith(f"# deepseek-ai/DeepSeek-V3 as {label} on {target}\n")
    assert all(text.endswith("\n") for text in found.files.values())


def test_the_framework_of_the_job_is_the_target_unless_another_is_named() -> None:
    assert launch_files(result("sglang", "pd"), deployment("sglang", "pd")).target == "sglang"
    other = launch_files(result("sglang", "pd"), deployment("sglang", "pd"), target="trtllm")
    assert any("estimated with kernels of sglang" in text for text in other.warnings)


def test_what_no_release_runs_is_refused_with_the_best_that_it_does() -> None:
    ranked = result("sglang", "afd", "pd")
    with pytest.raises(InputError) as caught:
        launch_files(ranked, deployment("sglang", "afd"))
    [problem] = caught.value.problems
    assert problem.field == "--target"
    assert deployment("sglang", "pd")["label"] in problem.remedy
    assert best_run(ranked, None) == deployment("sglang", "pd")
    alone = result("sglang", "afd")
    with pytest.raises(InputError, match="search with --launchable"):
        launch_files(alone, deployment("sglang", "afd"))
    assert best_run(alone, None) is None
    # What one target does not run, another may.
    assert best_run(alone, "vllm") == deployment("sglang", "afd")


@pytest.mark.parametrize("target", ["dynamo", "llm-d"])
def test_afd_is_started_by_scripts_alone(target: str) -> None:
    ranked = result("vllm", "afd", "colocated")
    assert "attention.sh" in launch_files(ranked, deployment("vllm", "afd")).files
    with pytest.raises(InputError, match="no release of"):
        launch_files(ranked, deployment("vllm", "afd"), target=target)
    assert best_run(ranked, target) == deployment("vllm", "colocated")


def test_an_unknown_target_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="llm-d"):
        launch_files(result("vllm", "pd"), deployment("vllm", "pd"), target="llmd")


def test_conditions_are_what_a_release_needs() -> None:
    assert launch_files(result("vllm", "colocated"), deployment("vllm", "colocated")).conditions == ()
    overlapped = launch_files(result("vllm", "overlapped"), deployment("vllm", "overlapped"))
    assert overlapped.conditions == ("--enable-dbo",)


def test_what_a_framework_does_not_bring_is_named() -> None:
    def text(framework: str, name: str) -> str:
        return launch_files(result(framework, name), deployment(framework, name)).files["README.md"]

    assert "NIXL" in text("vllm", "pd")
    assert "DeepEP" in text("sglang", "pd")
    assert "NIXL" not in text("vllm", "colocated")
    assert "DeepEP" not in text("trtllm", "pd")
    assert "DeepEP" in text("vllm", "afd")  # of its prefill
    assert "vLLM 0.30" in text("vllm", "afd")


def test_engines_that_leave_gaps_on_nodes_may_need_more_of_them_than_there_are() -> None:
    found = launch_files(result("vllm", "uneven"), deployment("vllm", "uneven"))
    assert "its engines do not share nodes of 8 GPUs: 17 are needed, main has 16" in found.warnings
    assert not any(
        "nodes" in text for text in launch_files(result("vllm", "pd"), deployment("vllm", "pd")).warnings
    )


def test_a_checkpoint_of_other_types_is_asked_for() -> None:
    stored = {"job": job("vllm", quantization={"kv_cache": "fp8", "moe": "fp8"})}
    given = {**deployment("vllm", "colocated")}
    given["quantization"] = {**given["quantization"], "moe": "fp8"}
    found = launch_files(stored, given)
    assert any("moe in fp8, the checkpoint stores fp8_block" in text for text in found.warnings)
    named = launch_files(stored, given, checkpoint="/models/mine")
    assert not any("checkpoint stores" in text for text in named.warnings)
    assert "/models/mine" in named.files["serve.sh"]


def test_a_model_given_by_its_config_is_served_from_the_folder_of_that(tmp_path: Path) -> None:
    shape = operator_db_root() / "catalogue" / "models" / "deepseek-ai--DeepSeek-V3.json"
    (tmp_path / "config.json").write_text(shape.read_text())
    stored = {"job": job("vllm", model=str(tmp_path / "config.json"))}
    found = launch_files(stored, deployment("vllm", "colocated"))
    assert f"vllm serve {tmp_path}" in found.files["serve.sh"]


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3-1"),
        ("/models/My Model_v2/", "model"),
        (
            "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8-with-a-long-tail",
            "qwen3-235b-a22b-instruct-2507-fp8-with-a",
        ),
    ],
)
def test_names_are_such_as_kubernetes_takes(checkpoint: str, name: str) -> None:
    assert resource_name(checkpoint) == name
