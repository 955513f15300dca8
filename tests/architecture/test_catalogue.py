"""Models by name, alias, path and mapping; the catalogue against what publishers say."""

import json
import os
from pathlib import Path

import pytest
import yaml

from afd_dse.architecture.catalogue import catalogue_entry, load_model, model_names, resolve_name
from afd_dse.architecture.model import Gqa, Mla
from afd_dse.architecture.work import parameter_count, parameters
from afd_dse.errors import InputError
from afd_dse.resources import operator_db_root

CATALOGUE = operator_db_root() / "catalogue"

WANTED = [
    "DeepSeek-V3",
    "DeepSeek-R1",
    "DeepSeek-V3.2",
    "Kimi-K2",
    "Kimi-K2.5",
    "Qwen3-235B-A22B",
    "Qwen3-235B-A22B-FP8",
    "Qwen3-30B-A3B",
    "Qwen3-32B",
    "Qwen3-32B-FP8",
    "Qwen3.5-397B-A17B",
    "GLM-4.5",
    "GLM-4.5-Air",
    "GLM-4.6",
    "GLM-5",
    "gpt-oss-120b",
    "gpt-oss-20b",
    "MiniMax-M2.5",
    "Mixtral-8x22B",
    "DBRX",
    "Llama-3.1-8B",
    "Llama-3.1-70B",
    "Llama-3.1-405B",
    "Llama-3.3-70B",
    "Step-3",
    "ERNIE-4.5-300B",
    "Qwen3-8B",
    "Qwen3-Coder-480B",
]


@pytest.mark.parametrize("name", model_names())
def test_every_catalogued_model_reads_under_its_own_name(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert resolve_name(name) == name
    assert model.layers > 0


@pytest.mark.parametrize("name", WANTED)
def test_the_models_of_the_field_are_known_by_their_short_names(name: str) -> None:
    assert load_model(name) == load_model(name.upper()) == load_model(name.lower())


@pytest.mark.parametrize("name", model_names())
def test_parameters_are_within_two_per_cent_of_the_published_ones(name: str) -> None:
    published = catalogue_entry(name).published
    count = parameter_count(load_model(name))
    assert count.total(published.total_counts) == pytest.approx(published.total, rel=0.02)
    tolerance = max(0.02 * published.active, 0.5 * published.active_to)
    assert count.active(published.active_counts) == pytest.approx(published.active, abs=tolerance)


def test_parameters_leave_mtp_modules_out_and_count_both_embedding_tables() -> None:
    # arXiv 2412.19437: 671 billion, 37 billion active; 685 billion with the MTP module.
    model = load_model("DeepSeek-V3")
    total, active = parameters(model)
    assert (total, active) == pytest.approx((671e9, 37e9), rel=0.02)
    assert total + parameter_count(model).next_token == pytest.approx(685e9, rel=0.005)


def test_every_shape_file_belongs_to_a_model_and_holds_sorted_fields() -> None:
    files = {path.name for path in (CATALOGUE / "models").glob("*.json")}
    assert files == {catalogue_entry(name).config for name in model_names()}
    for file in files:
        config = json.loads((CATALOGUE / "models" / file).read_text())
        assert list(config) == sorted(config)


def test_no_alias_hides_a_model_or_another_alias() -> None:
    content = yaml.safe_load((CATALOGUE / "models.yaml").read_text())
    for shape, item in content["models"].items():
        for name, own in {shape: item, **item.get("variants", {})}.items():
            for alias in own.get("aliases", ()):
                assert resolve_name(alias) == name


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B"),
        ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B"),
        ("Meta-Llama-3.1-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1"),
        ("deepseek-v3-0324", "deepseek-ai/DeepSeek-V3"),
        ("nvidia/DeepSeek-R1-0528-FP4-v2", "nvidia/DeepSeek-R1-NVFP4"),
        ("nvidia/DeepSeek-V3.1-NVFP4", "nvidia/DeepSeek-V3-NVFP4"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "nvidia/Llama-3.1-8B-Instruct-FP8"),
        ("zhipuai/GLM-5", "zai-org/GLM-5"),
        ("ZAI-ORG/glm-5", "zai-org/GLM-5"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "Qwen/Qwen3-235B-A22B"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", "Qwen/Qwen3-235B-A22B-FP8"),
        ("Qwen3-235B-A22B-FP8", "Qwen/Qwen3-235B-A22B-FP8"),
        ("nvidia/Qwen3-235B-A22B-FP8", "nvidia/Qwen3-235B-A22B-FP8"),
        ("moonshotai/Kimi-K2-Instruct-0905", "moonshotai/Kimi-K2-Instruct"),
        ("databricks/dbrx-instruct", "databricks/dbrx-base"),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "mistralai/Mixtral-8x22B-v0.1"),
        ("  openai/gpt-oss-120b ", "openai/gpt-oss-120b"),
        ("step-3", "stepfun-ai/step3"),
    ],
)
def test_spellings_that_people_use_lead_to_one_name(spelling: str, name: str) -> None:
    assert resolve_name(spelling) == name


@pytest.mark.skipif("AFD_DSE_VALIDATION" not in os.environ, reason="needs a folder of measured runs")
def test_every_model_of_the_measured_runs_is_known() -> None:
    import pandas as pd

    folder = Path(os.environ["AFD_DSE_VALIDATION"])
    for file in ("measured_dev.csv", "kv_capacity_dev.csv"):
        for name in pd.read_csv(folder / file)["model"].unique():
            load_model(name)


@pytest.mark.parametrize(
    "name",
    [
        "MiniMaxAI/MiniMax-M2.5",
        "Qwen/Qwen3-235B-A22B-FP8",
        "Qwen/Qwen3-32B",
        "Qwen/Qwen3-32B-FP8",
        "Qwen/Qwen3.5-397B-A17B",
        "deepseek-ai/DeepSeek-R1",
        "deepseek-ai/DeepSeek-V3",
        "meta-llama/Llama-3.1-70B",
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Meta-Llama-3.1-8B",
        "moonshotai/Kimi-K2.5",
        "nvidia/Llama-3.1-8B-Instruct-FP8",
        "openai/gpt-oss-120b",
        "zhipuai/GLM-5",
    ],
)
def test_names_that_published_measurements_use_are_known(name: str) -> None:
    assert load_model(name).layers > 0


def test_a_quantised_variant_has_the_shape_of_its_base_and_its_own_types() -> None:
    base, variant = load_model("Llama-3.1-70B"), load_model("nvidia/Llama-3.1-70B-Instruct-FP8")
    assert base.kinds == variant.kinds
    assert base.quantization.gemm == "bfloat16"
    assert (variant.quantization.gemm, variant.quantization.kv_cache) == ("fp8", "fp8")


def test_r1_has_the_shape_of_v3_under_its_own_name() -> None:
    v3, r1 = load_model("DeepSeek-V3"), load_model("DeepSeek-R1")
    assert (r1.name, r1.kinds, r1.quantization) == ("deepseek-ai/DeepSeek-R1", v3.kinds, v3.quantization)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("DeepSeek-V33", "deepseek-ai/DeepSeek-V3"),
        ("DeepSeek-V9", "deepseek-ai/DeepSeek-V3"),
        ("Qwen3-235B-A23B", "Qwen/Qwen3-235B-A22B"),
        ("someone/DeepSeek-V3", "deepseek-ai/DeepSeek-V3"),
        ("gptoss-120b", "openai/gpt-oss-120b"),
    ],
)
def test_an_unknown_name_suggests_the_closest(wrong: str, right: str) -> None:
    with pytest.raises(InputError, match=right) as error:
        load_model(wrong)
    assert wrong in str(error.value)


def test_a_name_like_no_other_lists_what_there_is() -> None:
    with pytest.raises(InputError, match="openai/gpt-oss-120b"):
        load_model("zzz")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text((CATALOGUE / "models" / "Qwen--Qwen3-8B.json").read_text())
    return folder


def test_a_folder_its_file_and_its_mapping_are_the_same_model(checkpoint: Path) -> None:
    file = checkpoint / "config.json"
    models = [
        load_model(checkpoint),
        load_model(str(checkpoint)),
        load_model(file),
        load_model("my-model", checkpoint.parent),
        load_model("./my-model/config.json", checkpoint.parent),
    ]
    assert all(model == models[0] for model in models)
    assert models[0].name == "my-model"
    inline = load_model(json.loads(file.read_text()))
    assert inline.kinds == models[0].kinds == load_model("Qwen3-8B").kinds


def test_a_quantisation_file_beside_the_config_is_read(checkpoint: Path) -> None:
    quantization = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (checkpoint / "hf_quant_config.json").write_text(json.dumps(quantization))
    assert load_model(checkpoint).quantization.gemm == "fp8"


def test_bare_infinity_in_a_file_is_let_through(checkpoint: Path) -> None:
    file = checkpoint / "config.json"
    file.write_text(file.read_text().replace("{", '{"limit": [0, Infinity], "other": NaN,', 1))
    assert load_model(checkpoint).layers == 36


def test_a_fault_in_a_file_names_file_and_field(checkpoint: Path) -> None:
    file = checkpoint / "config.json"
    config = json.loads(file.read_text())
    del config["hidden_size"]
    file.write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"config\.json.*hidden_size"):
        load_model(file)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '"llama"', "\x00"])
def test_a_file_that_is_no_mapping_is_refused(checkpoint: Path, content: str) -> None:
    (checkpoint / "config.json").write_text(content)
    with pytest.raises(InputError, match=r"config\.json"):
        load_model(checkpoint)


def test_a_path_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    for reference in (tmp_path / "none", tmp_path, str(tmp_path / "none" / "config.json"), "./none"):
        with pytest.raises(InputError, match="does not exist"):
            load_model(reference, tmp_path)
    with pytest.raises(InputError, match="empty"):
        load_model(" ")


def test_kv_cache_of_mla_and_gqa_is_as_published() -> None:
    # arXiv 2412.19437: 512 latent and 64 rotary elements a token a layer; Qwen3-235B caches 4 heads of 128, twice.
    v3, qwen = load_model("DeepSeek-V3").kinds[0].attention, load_model("Qwen3-235B-A22B").kinds[0].attention
    assert isinstance(v3, Mla)
    assert isinstance(qwen, Gqa)
    assert v3.kv_rank + v3.rope_head_dim == 576
    assert 2 * qwen.kv_heads * qwen.head_dim == 1024
