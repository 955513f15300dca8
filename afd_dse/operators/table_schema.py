"""What every operator table holds: its key columns, its axes and what was measured.

Declared once: the importer writes by it, the store reads by it, the check judges by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

ACCELERATORS: tuple[str, ...] = ("h100_sxm", "h200_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300")
FRAMEWORKS: tuple[str, ...] = ("trtllm", "sglang", "vllm")
NCCL = "nccl"
"""Folder of the framework-independent collectives."""

# NOTE: kernel_source is no key column: a version is chosen for a whole series, with every kernel it timed.
PROVENANCE_COLUMNS: tuple[str, ...] = ("kernel_source", "version")


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Columns of one operator's tables.

    ``text_keys`` and ``keys`` name a series (one weight shape, one data type, ...), ``axes`` the points on it
    (tokens, batch, context, message size). ``measured`` maps columns of the store to those of the source,
    ``scale`` multiplies them on the way (µs to ms). Rows of the source are kept where they equal ``only``.
    ``dependent`` axes follow from the others.
    """

    op: str
    source: str
    text_keys: tuple[str, ...]
    keys: tuple[str, ...]
    axes: tuple[str, ...]
    measured: Mapping[str, str] = field(default_factory=lambda: {"latency_ms": "latency"})
    scale: Mapping[str, float] = field(default_factory=dict)
    only: Mapping[str, int] = field(default_factory=dict)
    frameworks: tuple[str, ...] = FRAMEWORKS
    dependent: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Columns that name one series."""
        return self.text_keys + self.keys

    @property
    def point(self) -> tuple[str, ...]:
        """Columns that name one measured point: no two rows of a table share them."""
        return (*self.text_keys, *self.keys, "kernel_source", *self.axes)

    @property
    def text(self) -> tuple[str, ...]:
        """Columns of text."""
        return (*self.text_keys, *PROVENANCE_COLUMNS)

    @property
    def integers(self) -> tuple[str, ...]:
        """Columns of whole numbers."""
        return (*self.keys, *self.axes)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column, in the order of the file."""
        return (*self.point, "version", *self.measured)

    @property
    def positive(self) -> tuple[str, ...]:
        """Measured columns that a valid row has above zero (a notify phase may take no time)."""
        return tuple(name for name in self.measured if not name.endswith("notify_us"))


_ATTENTION_TEXT = ("attn_dtype", "kv_cache_dtype")
_ATTENTION_KEYS = ("head_dim", "window_size", "num_key_value_heads", "num_heads")
_SEQUENCES = ("batch_size", "isl", "step")
_MLA_TEXT = ("mla_dtype", "kv_cache_dtype")
_MODULE_TEXT = ("model", "architecture", "mla_dtype", "kv_cache_dtype", "gemm_type")
_MLA_KEYS = ("num_heads", "tp_size")
_MOE_TEXT = ("moe_dtype", "distribution")
_MOE_KEYS = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")


def _named(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_TABLES = (
    TableSchema("gemm", "gemm_perf", ("gemm_dtype",), ("n", "k"), ("m",)),
    TableSchema(
        "context_attention",
        "context_attention_perf",
        _ATTENTION_TEXT,
        _ATTENTION_KEYS,
        _SEQUENCES,
        only={"beam_width": 1},
    ),
    TableSchema(
        "generation_attention",
        "generation_attention_perf",
        _ATTENTION_TEXT,
        _ATTENTION_KEYS,
        _SEQUENCES,
        only={"beam_width": 1},
    ),
    TableSchema("context_mla", "context_mla_perf", _MLA_TEXT, _MLA_KEYS, _SEQUENCES),
    TableSchema("generation_mla", "generation_mla_perf", _MLA_TEXT, _MLA_KEYS, _SEQUENCES),
    TableSchema("mla_bmm", "mla_bmm_perf", ("op_name", "bmm_dtype"), ("num_heads",), ("num_tokens",)),
    TableSchema("mla_context_module", "mla_context_module_perf", _MODULE_TEXT, _MLA_KEYS, _SEQUENCES),
    TableSchema("mla_generation_module", "mla_generation_module_perf", _MODULE_TEXT, _MLA_KEYS, _SEQUENCES),
    TableSchema("dsa_context_module", "dsa_context_module_perf", _MODULE_TEXT, _MLA_KEYS, _SEQUENCES),
    TableSchema("dsa_generation_module", "dsa_generation_module_perf", _MODULE_TEXT, _MLA_KEYS, _SEQUENCES),
    TableSchema("wideep_context_mla", "wideep_context_mla_perf", _MODULE_TEXT, _MLA_KEYS, _SEQUENCES),
    TableSchema("wideep_generation_mla", "wideep_generation_mla_perf", _MODULE_TEXT, _MLA_KEYS, _SEQUENCES),
    TableSchema("moe", "moe_perf", _MOE_TEXT, _MOE_KEYS, ("num_tokens",)),
    TableSchema(
        "wideep_moe",
        "wideep_moe_perf",
        ("op_name", "moe_kernel", "simulation_mode", *_MOE_TEXT),
        (*_MOE_KEYS, "num_slots"),
        ("num_tokens", "dp_num_tokens", "rank0_num_tokens"),
        dependent=("dp_num_tokens", "rank0_num_tokens"),
    ),
    TableSchema("wideep_context_moe", "wideep_context_moe_perf", _MOE_TEXT, _MOE_KEYS, ("num_tokens",)),
    TableSchema("wideep_generation_moe", "wideep_generation_moe_perf", _MOE_TEXT, _MOE_KEYS, ("num_tokens",)),
    TableSchema(
        "gdn",
        "gdn_perf",
        ("model_name", "phase"),
        ("d_model", "d_conv", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim"),
        ("batch_size", "seq_len", "num_tokens"),
        dependent=("num_tokens",),
    ),
    TableSchema(
        "nccl", "nccl_perf", ("op_name", "nccl_dtype"), ("num_gpus",), ("message_size",), frameworks=(NCCL,)
    ),
    TableSchema(
        "custom_allreduce", "custom_allreduce_perf", ("allreduce_dtype",), ("num_gpus",), ("message_size",)
    ),
    TableSchema(
        "deepep_ll",
        "wideep_deepep_ll_perf",
        (),
        ("node_num", "hidden_size", "num_topk", "num_experts"),
        ("num_token",),
        _named("dispatch_avg_t_us", "combine_avg_t_us"),
    ),
    TableSchema(
        "deepep_normal",
        "wideep_deepep_normal_perf",
        (),
        ("node_num", "hidden_size", "num_topk", "num_experts", "dispatch_sms", "combine_sms"),
        ("num_token",),
        _named("dispatch_transmit_us", "dispatch_notify_us", "combine_transmit_us", "combine_notify_us"),
    ),
    TableSchema(
        "moe_a2a",
        "moe_a2a_perf",
        ("comm_backend", "phase", "comm_dtype"),
        ("ep_size", "node_num", "hidden_size", "topk", "num_experts", "sms"),
        ("num_tokens",),
        {"latency_ms": "latency", **_named("transmit_us", "notify_us")},
        # The source gives the latency of this one table in µs.
        scale={"latency_ms": 1e-3},
    ),
    TableSchema(
        "trtllm_alltoall",
        "trtllm_alltoall_perf",
        ("op_name", *_MOE_TEXT),
        ("hidden_size", "topk", "num_experts", "moe_ep_size"),
        ("num_tokens",),
    ),
)

SCHEMAS: Mapping[str, TableSchema] = {schema.op: schema for schema in _TABLES}
