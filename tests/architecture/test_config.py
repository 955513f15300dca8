"""Reading config.json: what comes out for each family, and what each fault is called."""

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.architecture.catalogue import catalogue_entry, model_names
from afd_dse.architecture.config import read_config
from afd_dse.architecture.families import FAMILIES
from afd_dse.architecture.model import DenseFfn, Gqa, LinearAttention, Mla, MoeFfn
from afd_dse.errors import InputError
from afd_dse.resources import operator_db_root

Config = dict[str, Any]

SHAPES = sorted({catalogue_entry(name).config for name in model_names()})


def catalogued(file: str) -> Config:
    content = json.loads((operator_db_root() / "catalogue" / "models" / file).read_text())
    assert isinstance(content, dict)
    return content


def llama(**changes: object) -> Config:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 1024,
        "vocab_size": 1000,
        **changes,
    }


def mixture(**changes: object) -> Config:
    base = llama(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"])
    return (
        base
        | {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256, "head_dim": 64}
        | changes
    )


def hybrid(**changes: object) -> Config:
    linear = {
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "head_dim": 64,
    }
    return {"model_type": "qwen3_5", "text_config": llama(model_type="qwen3_5_text") | linear | changes}


def without(config: Mapping[str, object], key: str) -> Config:
    return {name: value for name, value in config.items() if name != key}


def faults(config: Mapping[str, object]) -> dict[str, str]:
    """Field and message of every problem that reading ``config`` raises."""
    with pytest.raises(InputError) as error:
        read_config(config, "x")
    return {problem.field: str(problem) for problem in error.value.problems}


def test_a_dense_model_has_one_kind_of_layer() -> None:
    model = read_config(llama(), "small")
    (kind,) = model.kinds
    assert (model.name, model.family, model.hidden, model.vocabulary) == ("small", "llama", 512, 1000)
    assert kind.attention == Gqa(heads=8, kv_heads=2, head_dim=64)
    assert kind.ffn == DenseFfn(1024)
    assert kind.count == model.layers == 4


def test_an_explicit_head_dim_wins_over_hidden_by_heads() -> None:
    attention = read_config(llama(head_dim=128), "x").kinds[0].attention
    assert isinstance(attention, Gqa)
    assert attention.head_dim == 128


def test_a_null_head_dim_counts_as_absent() -> None:
    assert read_config(llama(head_dim=None), "x") == read_config(llama(), "x")


def test_deepseek_v3_has_three_dense_layers_and_a_latent_of_512_and_64() -> None:
    model = read_config(catalogued("deepseek-ai--DeepSeek-V3.json"), "v3")
    dense, moe = model.kinds
    assert (dense.count, moe.count, model.next_token_layers) == (3, 58, 1)
    assert dense.attention == moe.attention == Mla(128, 1536, 512, 128, 64, 128)
    assert moe.ffn == MoeFfn(experts=256, topk=8, intermediate=2048, shared_intermediate=2048)
    assert model.quantization.gemm == model.quantization.moe == "fp8_block"


def test_v3_2_and_glm_5_carry_an_indexer() -> None:
    v32 = read_config(catalogued("deepseek-ai--DeepSeek-V3.2.json"), "v3.2").kinds[1].attention
    glm = read_config(catalogued("zai-org--GLM-5.json"), "glm").kinds[1].attention
    assert isinstance(v32, Mla)
    assert isinstance(glm, Mla)
    assert (v32.index_topk, v32.index_heads, v32.index_head_dim) == (2048, 64, 128)
    assert (glm.index_topk, glm.index_heads, glm.v_head_dim) == (2048, 32, 256)


def test_layers_that_share_an_indexer_have_none_of_their_own() -> None:
    config = catalogued("zai-org--GLM-5.json") | {"indexer_types": ["full", "shared"] * 39}
    counts = {
        kind.attention.index_heads: kind.count
        for kind in read_config(config, "x").kinds
        if isinstance(kind.attention, Mla) and isinstance(kind.ffn, MoeFfn)
    }
    assert sum(counts.values()) == 75
    assert set(counts) == {0, 32}


def test_gpt_oss_alternates_a_window_of_128_with_full_attention() -> None:
    model = read_config(catalogued("openai--gpt-oss-120b.json"), "oss")
    windows = {kind.attention.window: kind.count for kind in model.kinds if isinstance(kind.attention, Gqa)}
    assert windows == {128: 18, 0: 18}
    assert model.kinds[0].ffn == MoeFfn(experts=128, topk=4, intermediate=2880)
    assert (model.quantization.gemm, model.quantization.moe) == ("bfloat16", "w4a16_mxfp4")


def test_qwen3_5_nests_its_text_model_and_mixes_linear_with_gated_full_attention() -> None:
    model = read_config(catalogued("Qwen--Qwen3.5-397B-A17B.json"), "q")
    linear, full = model.kinds
    assert (linear.count, full.count) == (45, 15)
    assert linear.attention == LinearAttention(16, 128, 64, 128, 4)
    assert full.attention == Gqa(heads=32, kv_heads=2, head_dim=256, gated=True)
    assert full.ffn == MoeFfn(512, 10, 1024, shared_intermediate=1024)
    assert model.next_token_layers == 1


def test_step_3_shares_one_kv_head_and_a_low_rank_query() -> None:
    model = read_config(catalogued("stepfun-ai--step3.json"), "s")
    assert [kind.count for kind in model.kinds] == [5, 56]
    assert model.kinds[0].attention == Gqa(heads=64, kv_heads=1, head_dim=256, query_rank=2048)


def test_dbrx_nests_its_fields_and_spells_them_its_own_way() -> None:
    (kind,) = read_config(catalogued("databricks--dbrx-base.json"), "d").kinds
    assert kind.attention == Gqa(heads=48, kv_heads=8, head_dim=128)
    assert kind.ffn == MoeFfn(16, 4, 10752)


def test_llama_4_interleaves_experts_and_chunks_three_layers_of_four() -> None:
    config = llama(
        model_type="llama4_text",
        architectures=["Llama4ForCausalLM"],
        num_local_experts=16,
        num_experts_per_tok=1,
        interleave_moe_layer_step=2,
        intermediate_size_mlp=2048,
        attention_chunk_size=128,
    )
    first, second, fourth = read_config(config, "x").kinds
    assert (first.ffn, first.count) == (DenseFfn(2048), 2)
    assert second.ffn == MoeFfn(16, 1, 1024, shared_intermediate=1024)
    windows = [kind.attention.window for kind in (first, second, fourth) if isinstance(kind.attention, Gqa)]
    assert windows == [128, 128, 0]


def test_gemma_alternates_by_pattern_and_ties_its_embeddings_unless_told() -> None:
    config = llama(
        model_type="gemma3_text",
        architectures=["Gemma3ForCausalLM"],
        head_dim=64,
        sliding_window=64,
        sliding_window_pattern=4,
    )
    model = read_config(config, "x")
    assert model.tied_embeddings
    assert [kind.count for kind in model.kinds] == [3, 1]
    assert not read_config(config | {"tie_word_embeddings": False}, "x").tied_embeddings


def test_a_qwen_window_counts_only_when_switched_on() -> None:
    switched_off = read_config(mixture(sliding_window=64, max_window_layers=2, use_sliding_window=False), "x")
    assert len(switched_off.kinds) == 1
    on = read_config(mixture(sliding_window=64, max_window_layers=2, use_sliding_window=True), "x")
    assert [kind.attention.window for kind in on.kinds if isinstance(kind.attention, Gqa)] == [0, 64]


def test_sparse_step_and_mlp_only_layers_choose_the_routed_layers() -> None:
    model = read_config(mixture(decoder_sparse_step=2, mlp_only_layers=[3]), "x")
    assert {type(kind.ffn): kind.count for kind in model.kinds} == {DenseFfn: 3, MoeFfn: 1}


def test_a_dense_model_that_ernie_starts_late_is_dense_before() -> None:
    counts = [kind.count for kind in read_config(catalogued("baidu--ERNIE-4.5-300B-A47B-PT.json"), "e").kinds]
    assert counts == [3, 51]


@pytest.mark.parametrize("model_type", ["deepseek_v4", "nemotron_h", "Llama", "minimax_m3"])
def test_an_unknown_model_type_is_named_with_those_that_are_known(model_type: str) -> None:
    (message,) = faults(llama(model_type=model_type)).values()
    assert model_type in message
    assert "qwen3_moe" in message


def test_an_unknown_nested_model_type_is_an_error_too() -> None:
    config = hybrid()
    config["text_config"]["model_type"] = "kimi_linear"
    assert "model.text_config.model_type" in faults(config)


def test_a_foreign_architecture_of_a_known_model_type_is_named() -> None:
    assert "EagleForCausalLM" in faults(llama(architectures=["EagleForCausalLM"]))["model.architectures"]


def test_without_a_model_type_the_architecture_decides() -> None:
    assert read_config(without(llama(), "model_type"), "x").family == "llama"
    assert "model.model_type" in faults(without(without(llama(), "model_type"), "architectures"))


REQUIRED = {
    "MiniMaxAI--MiniMax-M2.5.json": "num_hidden_layers hidden_size vocab_size num_attention_heads num_key_value_heads "
    "intermediate_size num_local_experts num_experts_per_tok",
    "Qwen--Qwen3-235B-A22B.json": "num_hidden_layers hidden_size vocab_size num_attention_heads num_key_value_heads "
    "moe_intermediate_size num_experts num_experts_per_tok",
    "deepseek-ai--DeepSeek-V3.json": "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim "
    "n_routed_experts n_shared_experts first_k_dense_replace moe_intermediate_size intermediate_size",
    "zai-org--GLM-5.json": "index_topk index_n_heads index_head_dim",
    "openai--gpt-oss-120b.json": "layer_types sliding_window",
    "baidu--ERNIE-4.5-300B-A47B-PT.json": "moe_layer_start_index moe_k moe_num_experts",
    "databricks--dbrx-base.json": "d_model n_heads n_layers attn_config ffn_config",
}


@pytest.mark.parametrize(("file", "field"), [(f, k) for f, keys in REQUIRED.items() for k in keys.split()])
def test_a_missing_essential_field_is_named(file: str, field: str) -> None:
    spellings = {
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "attn_config": "num_key_value_heads",
        "ffn_config": "num_experts",
        "n_routed_experts": "num_experts",
        "num_local_experts": "num_experts",
        "moe_num_experts": "num_experts",
        "moe_k": "num_experts_per_tok",
    }
    found = faults(without(catalogued(file), field))
    assert any(name in (f"model.{field}", f"model.{spellings.get(field)}") for name in found)
    assert all("missing" in message for message in found.values())


@pytest.mark.parametrize(
    "field",
    ["num_hidden_layers", "moe_layers_enum", "share_expert_dim", "head_dim", "moe_top_k", "vocab_size"],
)
def test_fields_of_a_nested_model_are_never_defaulted(field: str) -> None:
    config = catalogued("stepfun-ai--step3.json")
    del config["text_config"][field]
    found = faults(config)
    assert len(found) == 1
    assert all(name.startswith("model.text_config.") for name in found)


@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True, [8], math.inf, math.nan, {"a": 1}])
@pytest.mark.parametrize(
    "field", ["num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"]
)
def test_a_count_that_is_no_positive_whole_number_is_named_with_its_value(field: str, value: object) -> None:
    found = faults(llama(**{field: value}))
    assert repr(value) in found[f"model.{field}"]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (llama(num_key_value_heads=3), "num_key_value_heads"),
        (llama(hidden_size=500, num_attention_heads=12, num_key_value_heads=12), "head_dim"),
        (mixture(num_experts_per_tok=17), "num_experts_per_tok"),
        (mixture(num_local_experts=32), "num_experts"),
        (mixture(mlp_only_layers="some"), "mlp_only_layers"),
        (mixture(mlp_only_layers=[4]), "mlp_only_layers"),
        (llama(num_experts=8), "num_experts"),
        (llama(layer_types=["full_attention"] * 3), "layer_types"),
        (llama(layer_types=["full_attention"] * 3 + ["mamba"]), "layer_types"),
        (llama(layer_types=[["full_attention"]] * 4), "layer_types"),
        (llama(layer_types=["sliding_attention"] * 4), "sliding_window"),
        (llama(tie_word_embeddings="no"), "tie_word_embeddings"),
        (llama(num_hidden_layers=10**9), "num_hidden_layers"),
        (llama(num_kv_shared_layers=2), "num_kv_shared_layers"),
        (llama(num_nextn_predict_layers=-1), "num_nextn_predict_layers"),
        (llama(text_config="nothing"), "text_config"),
        (llama(architectures="LlamaForCausalLM"), "architectures"),
        (llama(model_type=3), "model_type"),
    ],
)
def test_values_that_cannot_be_are_named(config: Config, field: str) -> None:
    assert f"model.{field}" in faults(config)


def test_value_heads_of_linear_attention_must_divide_over_its_key_heads() -> None:
    assert "model.text_config.linear_num_key_heads" in faults(hybrid(linear_num_key_heads=3))


def test_every_bad_field_is_listed_at_once_and_only_once() -> None:
    config = llama(
        num_attention_heads=0, intermediate_size=-2, layer_types=["sliding_attention", "full_attention"] * 2
    )
    with pytest.raises(InputError) as error:
        read_config(config, "x")
    fields = [problem.field for problem in error.value.problems]
    assert sorted(fields) == ["model.intermediate_size", "model.num_attention_heads", "model.sliding_window"]


def test_infinity_and_nan_in_fields_that_do_not_matter_are_let_through() -> None:
    assert read_config(llama(time_step_limit=[0.0, math.inf], rope=math.nan), "x") == read_config(
        llama(), "x"
    )


def test_every_family_names_an_architecture() -> None:
    assert all(family.architectures for family in FAMILIES.values())


@given(data=st.data(), file=st.sampled_from(SHAPES))
def test_order_and_unknown_fields_change_nothing(data: st.DataObject, file: str) -> None:
    config = catalogued(file)
    shuffled = dict(data.draw(st.permutations(list(config.items()))))
    extra = data.draw(
        st.dictionaries(st.from_regex(r"zz_[a-z]{1,8}", fullmatch=True), st.integers() | st.text())
    )
    assert read_config(extra | shuffled, "x") == read_config(config, "x")


@given(
    kv_heads=st.integers(1, 16),
    group=st.integers(1, 8),
    layers=st.integers(1, 80),
    first=st.integers(0, 79),
    topk=st.integers(1, 8),
)
def test_counts_of_layers_add_up(kv_heads: int, group: int, layers: int, first: int, topk: int) -> None:
    config = mixture(
        num_hidden_layers=layers,
        num_attention_heads=kv_heads * group,
        num_key_value_heads=kv_heads,
        head_dim=64,
        mlp_only_layers=list(range(min(first, layers))),
    ) | {"num_experts_per_tok": topk}
    model = read_config(config, "x")
    assert model.layers == layers
    routed = sum(kind.count for kind in model.kinds if isinstance(kind.ffn, MoeFfn))
    assert routed == layers - min(first, layers)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def paths(config: Mapping[str, object], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every field of ``config``, nested ones included."""
    found: list[tuple[str, ...]] = []
    for key, value in config.items():
        found.append((*prefix, key))
        if isinstance(value, Mapping):
            found.extend(paths(value, (*prefix, key)))
    return found


@given(data=st.data(), file=st.sampled_from(SHAPES), value=JSON)
def test_no_value_of_any_field_raises_anything_but_an_input_error(
    data: st.DataObject, file: str, value: object
) -> None:
    config = catalogued(file)
    *around, key = data.draw(st.sampled_from(paths(config)))
    level = config
    for step in around:
        level = level[step]
    level[key] = value
    try:
        read_config(config, "x")
    except InputError as error:
        problems = error.problems
    else:
        problems = ()
    assert all(problem.field.startswith("model.") for problem in problems)
