"""From the fields of a ``config.json`` to the FFN of each layer."""

from afd_dse.architecture.families import Family
from afd_dse.architecture.fields import Fields, is_whole
from afd_dse.architecture.model import DenseFfn, Ffn, MoeFfn

_EXPERTS = (
    "num_experts",
    "n_routed_experts",
    "num_local_experts",
    "moe_num_experts",
    "ffn_config.moe_num_experts",
)
_TOPK = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_k",
    "moe_top_k",
    "ffn_config.moe_top_k",
)
_SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size")


def read_ffn(fields: Fields, family: Family, layers: int) -> list[Ffn]:
    """The FFN of every layer, in order; problems go to ``fields``."""
    routed = _routed_layers(fields, family, layers)
    dense_width = "intermediate_size_mlp" if family.name == "llama4" else "intermediate_size"
    dense = DenseFfn(fields.whole(dense_width)) if not all(routed) else None
    moe = _moe(fields, family) if any(routed) else None
    return [moe if routes and moe else dense or DenseFfn(1) for routes in routed]


def _moe(fields: Fields, family: Family) -> MoeFfn:
    experts = fields.whole(*_EXPERTS)
    topk = fields.whole(*_TOPK)
    width = fields.whole(*family.expert_width)
    if not fields.problems and topk > experts:
        key = fields.present(_TOPK)[0]
        fields.report(key, topk, f"exceeds the {experts} experts", "check both counts")
    return MoeFfn(experts, topk, width, _shared_width(fields, family, width))


def _shared_width(fields: Fields, family: Family, expert_width: int) -> int:
    if family.name == "llama4":
        return expert_width
    if family.name == "gemma4":
        # NOTE: its dense FFN runs beside the experts in every layer, as a shared expert would.
        return fields.whole("intermediate_size")
    stated = fields.optional_whole(*_SHARED_WIDTH)
    if stated is not None:
        return stated
    stated_as = (*_SHARED_COUNT, *_SHARED_WIDTH)
    if family.shared_experts and not any(fields.has_key(key) for key in stated_as):
        fields.report(family.shared_experts, None, "is missing", "state it, 0 or null for none")
    return (fields.optional_whole(*_SHARED_COUNT) or 0) * expert_width


def _routed_layers(fields: Fields, family: Family, layers: int) -> list[bool]:
    """Whether each layer routes tokens to experts."""
    numbers = range(layers)
    if family.experts == "none":
        for key in fields.present(_EXPERTS):
            if fields.raw(key) not in (0, 1):
                fields.report(key, fields.raw(key), f"is no field of {family.name}", "check the model_type")
        return [False] * layers
    if family.name == "gemma4" and not fields.flag("enable_moe_block", False):
        return [False] * layers
    listed = fields.sequence("mlp_layer_types", layers)
    if listed is not None:
        for item in listed:
            if item not in ("dense", "sparse"):
                fields.report("mlp_layer_types", item, "is not a known kind of FFN", "use dense or sparse")
                break
        return [item == "sparse" for item in listed]
    if family.experts == "every":
        return [True] * layers
    if family.experts == "after_dense":
        return _after_dense(fields, layers)
    if family.experts == "sparse_step":
        step = fields.optional_whole("decoder_sparse_step", minimum=1) or 1
        dense = fields.indices("mlp_only_layers", layers) or set()
        return [layer not in dense and (layer + 1) % step == 0 for layer in numbers]
    if family.experts == "from_start":
        first = fields.whole("moe_layer_start_index", minimum=0)
        last = fields.optional_whole("moe_layer_end_index", minimum=-1)
        step = fields.optional_whole("moe_layer_interval", minimum=1) or 1
        last = layers - 1 if last is None or last < 0 else last
        return [first <= layer <= last and (layer + 1) % step == 0 for layer in numbers]
    if family.experts == "enumerated":
        chosen = fields.indices("moe_layers_enum", layers)
        if chosen is None and fields.raw("moe_layers_enum") is None:
            fields.report("moe_layers_enum", None, "is missing", "list the layers that route to experts")
        return [layer in (chosen or set(numbers)) for layer in numbers]
    chosen = fields.indices("moe_layers", layers)
    if chosen:
        return [layer in chosen for layer in numbers]
    step = fields.whole("interleave_moe_layer_step")
    return [(layer + 1) % step == 0 for layer in numbers]


def _after_dense(fields: Fields, layers: int) -> list[bool]:
    frequency = fields.raw("moe_layer_freq")
    if isinstance(frequency, list | tuple):
        listed = fields.sequence("moe_layer_freq", layers) or [1] * layers
        if not all(is_whole(item) for item in listed):
            fields.report("moe_layer_freq", frequency, "is not usable", "it must hold 0 or 1 a layer")
        return [bool(item) for item in listed]
    first = fields.whole("first_k_dense_replace", minimum=0)
    step = fields.optional_whole("moe_layer_freq", minimum=1) or 1
    if first >= layers:
        fields.report(
            "first_k_dense_replace", first, f"leaves none of {layers} layers to experts", "check both"
        )
    return [layer >= first and layer % step == 0 for layer in range(layers)]
