"""Which model types are read, and the few facts of each that no field of its ``config.json`` states."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from afd_dse.errors import InputError, Problem

NESTED = ("text_config", "llm_config", "language_config")

ExpertLayers = Literal[
    "none", "every", "after_dense", "sparse_step", "from_start", "enumerated", "interleaved"
]
_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size")
_PLAIN_WIDTH = ("intermediate_size",)


@dataclass(frozen=True, slots=True)
class Family:
    """What a model type implies.

    ``experts`` says which layers route tokens; ``expert_width`` the fields that hold an expert's width;
    ``expert_modules`` where checkpoints keep experts within a layer;
    ``shared_experts`` the field without which a file does not say whether there are shared experts;
    ``own_head_dim`` that ``head_dim`` is not ``hidden / heads`` where the file is silent, so that it must be there;
    ``layer_pattern`` that the kinds of attention alternate, so that the file must say how; ``windowed`` that
    a ``sliding_window`` holds for every layer; ``tied`` whether embeddings are tied where the file is silent
    (Hugging Face omits a value that equals the class's default).
    """

    name: str
    architectures: tuple[str, ...]
    attention: Literal["gqa", "mla"] = "gqa"
    sparse_attention: bool = False
    experts: ExpertLayers = "none"
    expert_width: tuple[str, ...] = _WIDTH
    expert_modules: tuple[str, ...] = ("mlp.experts", "block_sparse_moe.experts", "ffn.experts")
    shared_experts: str = ""
    own_head_dim: bool = False
    layer_pattern: bool = False
    windowed: bool = False
    gated_attention: bool = False
    tied: bool = False


_LLAMA = Family("llama", ("LlamaForCausalLM",))
_MISTRAL = Family("mistral", ("MistralForCausalLM", "Mistral3ForConditionalGeneration"), windowed=True)
_QWEN3_VL = Family("qwen3", ("Qwen3VLForConditionalGeneration",), own_head_dim=True)
_QWEN3_VL_MOE = Family(
    "qwen3_moe", ("Qwen3VLMoeForConditionalGeneration",), own_head_dim=True, experts="sparse_step"
)
_QWEN3_5 = Family(
    "qwen3_5",
    ("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"),
    layer_pattern=True,
    own_head_dim=True,
    gated_attention=True,
)
_QWEN3_5_MOE = Family(
    "qwen3_5_moe",
    ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
    experts="sparse_step",
    shared_experts="shared_expert_intermediate_size",
    layer_pattern=True,
    own_head_dim=True,
    gated_attention=True,
)
_DEEPSEEK_V3 = Family(
    "deepseek_v3",
    ("DeepseekV3ForCausalLM",),
    attention="mla",
    experts="after_dense",
    shared_experts="n_shared_experts",
)
_KIMI = Family(
    "kimi_k2",
    ("DeepseekV3ForCausalLM", "KimiK2ForCausalLM", "KimiK25ForConditionalGeneration"),
    attention="mla",
    experts="after_dense",
    shared_experts="n_shared_experts",
)
_STEP3 = Family(
    "step3",
    ("Step3VLForConditionalGeneration", "Step3TextForCausalLM", "Step3ForCausalLM"),
    experts="enumerated",
    shared_experts="share_expert_dim",
    own_head_dim=True,
)
_GEMMA3 = Family(
    "gemma3",
    ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    own_head_dim=True,
    layer_pattern=True,
    tied=True,
)
_GEMMA4 = Family(
    "gemma4",
    ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    own_head_dim=True,
    experts="every",
    expert_modules=("experts",),
    layer_pattern=True,
    tied=True,
)
_LLAMA4 = Family(
    "llama4",
    ("Llama4ForConditionalGeneration", "Llama4ForCausalLM"),
    experts="interleaved",
    expert_width=_PLAIN_WIDTH,
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "mistral3": _MISTRAL,
    "qwen2": Family("qwen2", ("Qwen2ForCausalLM",)),
    "qwen2_moe": Family(
        "qwen2_moe",
        ("Qwen2MoeForCausalLM",),
        shared_experts="shared_expert_intermediate_size",
        experts="sparse_step",
    ),
    "qwen3": Family("qwen3", ("Qwen3ForCausalLM",), own_head_dim=True),
    "qwen3_moe": Family("qwen3_moe", ("Qwen3MoeForCausalLM",), own_head_dim=True, experts="sparse_step"),
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_text": _QWEN3_VL,
    "qwen3_vl_moe": _QWEN3_VL_MOE,
    "qwen3_vl_moe_text": _QWEN3_VL_MOE,
    "qwen3_next": Family(
        "qwen3_next",
        ("Qwen3NextForCausalLM",),
        experts="sparse_step",
        shared_experts="shared_expert_intermediate_size",
        layer_pattern=True,
        own_head_dim=True,
        gated_attention=True,
    ),
    "qwen3_5": _QWEN3_5,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5_MOE,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "deepseek_v2": Family(
        "deepseek_v2",
        ("DeepseekV2ForCausalLM",),
        attention="mla",
        experts="after_dense",
        shared_experts="n_shared_experts",
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": Family(
        "deepseek_v32",
        ("DeepseekV32ForCausalLM", "DeepseekV3ForCausalLM"),
        attention="mla",
        sparse_attention=True,
        experts="after_dense",
        shared_experts="n_shared_experts",
    ),
    "kimi_k2": _KIMI,
    "kimi_k25": _KIMI,
    "glm4_moe": Family(
        "glm4_moe",
        ("Glm4MoeForCausalLM",),
        own_head_dim=True,
        experts="after_dense",
        shared_experts="n_shared_experts",
    ),
    "glm_moe_dsa": Family(
        "glm_moe_dsa",
        ("GlmMoeDsaForCausalLM",),
        attention="mla",
        sparse_attention=True,
        experts="after_dense",
        shared_experts="n_shared_experts",
    ),
    "gpt_oss": Family(
        "gpt_oss",
        ("GptOssForCausalLM",),
        own_head_dim=True,
        experts="every",
        expert_width=_PLAIN_WIDTH,
        layer_pattern=True,
    ),
    "minimax_m2": Family(
        "minimax_m2", ("MiniMaxM2ForCausalLM",), own_head_dim=True, experts="every", expert_width=_PLAIN_WIDTH
    ),
    "mixtral": Family(
        "mixtral", ("MixtralForCausalLM",), experts="every", expert_width=_PLAIN_WIDTH, windowed=True
    ),
    "dbrx": Family(
        "dbrx", ("DbrxForCausalLM",), experts="every", expert_width=("ffn_config.ffn_hidden_size",)
    ),
    "step3_text": _STEP3,
    "step3_vl": _STEP3,
    "ernie4_5_moe": Family(
        "ernie4_5_moe", ("Ernie4_5_MoeForCausalLM", "Ernie4_5MoeForCausalLM"), experts="from_start"
    ),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4,
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
}


def language_part(config: Mapping[str, object], path: str) -> tuple[Mapping[str, object], str]:
    """The part of ``config`` that describes the language model, and its dotted path."""
    for key in NESTED:
        nested = config.get(key)
        if nested is None:
            continue
        if not isinstance(nested, Mapping):
            raise InputError(
                Problem(
                    f"{path}.{key}",
                    nested,
                    "is not usable",
                    "it must be a mapping of the text model's fields",
                )
            )
        return nested, f"{path}.{key}"
    return config, path


def family_of(config: Mapping[str, object], path: str) -> Family:
    """The family that ``model_type`` (or, where that is absent, ``architectures``) names.

    Raises InputError for an unknown one; a nested text model decides over the file around it.
    """
    inner, inner_path = language_part(config, path)
    outer_type = _model_type(config, path)
    inner_type = _model_type(inner, inner_path)
    if outer_type is None and inner_type is None:
        return _by_architecture(config, path)
    if outer_type is not None:
        _known(outer_type, f"{path}.model_type")
    if inner_type is not None:
        _known(inner_type, f"{inner_path}.model_type")
    accepted = {
        name for kind in (outer_type, inner_type) if kind is not None for name in FAMILIES[kind].architectures
    }
    for architecture in _architectures(config, path):
        if architecture not in accepted:
            raise _unknown_architecture(architecture, path, accepted)
    return FAMILIES[outer_type or inner_type or ""]


def _model_type(level: Mapping[str, object], path: str) -> str | None:
    value = level.get("model_type")
    if value is None:
        return None
    if not isinstance(value, str):
        raise InputError(Problem(f"{path}.model_type", value, "is not usable", "it must be a text"))
    return value


def _known(model_type: str, field: str) -> None:
    if model_type in FAMILIES:
        return
    near = difflib.get_close_matches(model_type, FAMILIES, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InputError(
        Problem(
            field, model_type, "is not a supported model type", f"{hint}supported are {', '.join(FAMILIES)}"
        )
    )


def _architectures(config: Mapping[str, object], path: str) -> list[str]:
    value = config.get("architectures")
    if value is None:
        return []
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise InputError(
            Problem(f"{path}.architectures", value, "is not usable", "it must be a list of names")
        )
    return [str(item) for item in value]


def _by_architecture(config: Mapping[str, object], path: str) -> Family:
    names = _architectures(config, path)
    known = {name: family for family in FAMILIES.values() for name in family.architectures}
    if not names:
        raise InputError(
            Problem(f"{path}.model_type", None, "is missing", f"name one of {', '.join(FAMILIES)}")
        )
    if names[0] not in known:
        raise _unknown_architecture(names[0], path, set(known))
    return known[names[0]]


def _unknown_architecture(name: str, path: str, accepted: set[str]) -> InputError:
    return InputError(
        Problem(
            f"{path}.architectures",
            name,
            "is not a supported architecture",
            f"expected one of {', '.join(sorted(accepted))}",
        )
    )
