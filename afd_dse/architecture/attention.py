"""From the fields of a ``config.json`` to the attention of each layer."""

from typing import Literal

from afd_dse.architecture.families import Family
from afd_dse.architecture.fields import Fields
from afd_dse.architecture.model import Attention, Gqa, LinearAttention, Mla

Span = Literal["full", "sliding", "linear"]

_SPANS: dict[str, Span] = {
    "full_attention": "full",
    "global_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "linear",
}
_HEADS = ("num_attention_heads", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_attention_groups", "attn_config.kv_n_heads")


def read_attention(fields: Fields, family: Family, layers: int, hidden: int) -> list[Attention]:
    """The attention of every layer, in order; problems go to ``fields``."""
    if family.attention == "mla":
        return _mla(fields, family, layers)
    spans = _spans(fields, family, layers)
    kinds: dict[Span, Attention] = {}
    for span in dict.fromkeys(spans):
        kinds[span] = _linear(fields) if span == "linear" else _gqa(fields, family, span, hidden)
    return [kinds[span] for span in spans]


def _gqa(fields: Fields, family: Family, span: Span, hidden: int) -> Gqa:
    heads = fields.whole(*_HEADS)
    kv_heads = fields.whole(*_KV_HEADS)
    own = family.own_head_dim
    head_dim = fields.whole("head_dim") if own else fields.optional_whole("head_dim", minimum=1)
    if family.name == "gemma4" and span == "full":
        # NOTE: its global layers have their own shape; its key doubles as value (attention_k_eq_v), which
        # saves the value projection but not the cache: it is counted here like any other.
        kv_heads = fields.optional_whole("num_global_key_value_heads", minimum=1) or kv_heads
        head_dim = fields.whole("global_head_dim")
    if head_dim is None:
        if not fields.problems and hidden % heads:
            fields.report(
                "head_dim", None, f"is missing and {hidden} / {heads} heads is not whole", "state head_dim"
            )
        head_dim = max(hidden // heads, 1)
    if not fields.problems and heads % kv_heads:
        key = fields.present(_KV_HEADS)[0]
        fields.report(key, kv_heads, f"does not divide the {heads} attention heads", "check both counts")
    return Gqa(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=_window(fields) if span == "sliding" else 0,
        query_rank=fields.optional_whole("share_q_dim", minimum=1) or 0,
        gated=fields.flag("attn_output_gate", family.gated_attention) if family.gated_attention else False,
    )


def _window(fields: Fields) -> int:
    # NOTE: chunked attention (Llama 4) restarts every chunk: its chunk bounds what it reads, as a window.
    return fields.whole("sliding_window", "attention_chunk_size")


def _spans(fields: Fields, family: Family, layers: int) -> list[Span]:
    listed = fields.sequence("layer_types", layers)
    if listed is not None:
        unknown = [item for item in listed if not isinstance(item, str) or item not in _SPANS]
        if unknown:
            fields.report(
                "layer_types",
                unknown[0],
                "is not a known kind of attention",
                f"known are {', '.join(_SPANS)}",
            )
            return ["full"] * layers
        return [_SPANS[str(item)] for item in listed]
    if fields.raw("layer_types") is not None:
        return ["full"] * layers
    interval = fields.optional_whole("full_attention_interval", minimum=1)
    if interval is not None:
        return ["full" if (layer + 1) % interval == 0 else "linear" for layer in range(layers)]
    interval = fields.optional_whole("sliding_window_pattern", "_sliding_window_pattern", minimum=1)
    if interval is not None:
        return ["full" if (layer + 1) % interval == 0 else "sliding" for layer in range(layers)]
    if family.layer_pattern:
        fields.report(
            "layer_types", None, "is missing", "layers of this model type differ: list the kind of each"
        )
        return ["full"] * layers
    if family.name == "llama4":
        return _chunked_spans(fields, layers)
    if fields.flag("use_sliding_window", False):
        first = fields.whole("max_window_layers", minimum=0)
        return ["full" if layer < first else "sliding" for layer in range(layers)]
    if family.windowed and fields.raw("sliding_window") is not None:
        return ["sliding"] * layers
    return ["full"] * layers


def _chunked_spans(fields: Fields, layers: int) -> list[Span]:
    """Llama 4: layers with rotary positions attend within chunks, every fourth (without) to everything."""
    if fields.raw("attention_chunk_size") is None:
        return ["full"] * layers
    rotary = fields.sequence("no_rope_layers", layers) if fields.raw("no_rope_layers") else None
    if rotary is None:
        interval = fields.optional_whole("no_rope_layer_interval", minimum=1) or 4
        rotary = [(layer + 1) % interval != 0 for layer in range(layers)]
    return ["sliding" if uses_rotary else "full" for uses_rotary in rotary]


def _mla(fields: Fields, family: Family, layers: int) -> list[Attention]:
    if not fields.has_key("q_lora_rank"):
        fields.report("q_lora_rank", None, "is missing", "state it, or null for a plain query projection")
    sparse = family.sparse_attention or fields.raw("index_topk") is not None
    full = Mla(
        heads=fields.whole(*_HEADS),
        query_rank=fields.optional_whole("q_lora_rank", minimum=1) or 0,
        kv_rank=fields.whole("kv_lora_rank"),
        nope_head_dim=fields.whole("qk_nope_head_dim"),
        rope_head_dim=fields.whole("qk_rope_head_dim"),
        v_head_dim=fields.whole("v_head_dim"),
        index_topk=fields.whole("index_topk") if sparse else 0,
        index_heads=fields.whole("index_n_heads") if sparse else 0,
        index_head_dim=fields.whole("index_head_dim") if sparse else 0,
    )
    indexers = fields.sequence("indexer_types", layers) if sparse else None
    if indexers is None:
        return [full] * layers
    # NOTE: a "shared" layer reuses the choice of the last full indexer: sparse, but with no indexer itself.
    shared = Mla(
        heads=full.heads,
        query_rank=full.query_rank,
        kv_rank=full.kv_rank,
        nope_head_dim=full.nope_head_dim,
        rope_head_dim=full.rope_head_dim,
        v_head_dim=full.v_head_dim,
        index_topk=full.index_topk,
    )
    for indexer in indexers:
        if indexer not in ("full", "shared"):
            fields.report("indexer_types", indexer, "is not a known kind of indexer", "use full or shared")
            break
    return [shared if indexer == "shared" else full for indexer in indexers]


def _linear(fields: Fields) -> LinearAttention:
    key_heads = fields.whole("linear_num_key_heads")
    value_heads = fields.whole("linear_num_value_heads")
    if not fields.problems and value_heads % key_heads:
        fields.report(
            "linear_num_key_heads",
            key_heads,
            f"does not divide the {value_heads} value heads",
            "check both counts",
        )
    return LinearAttention(
        key_heads=key_heads,
        key_head_dim=fields.whole("linear_key_head_dim"),
        value_heads=value_heads,
        value_head_dim=fields.whole("linear_value_head_dim"),
        conv_kernel=fields.whole("linear_conv_kernel_dim"),
    )
