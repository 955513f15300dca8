"""Data types by role: what a checkpoint says, and what a job makes of it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from typing import cast, get_args

from afd_dse.architecture.fields import Fields
from afd_dse.architecture.model import AttentionDtype, GemmDtype, ModelArchitecture, MoeDtype, Quantization
from afd_dse.errors import InputError, Problem

MXFP4 = "w4a16_mxfp4"

_ALGORITHMS: Mapping[str, GemmDtype] = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8_block",
    "FP8_BLOCK_SCALES": "fp8_block",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16": "int4_wo",
    "W4A16_AWQ": "int4_wo",
    "INT4_AWQ": "int4_wo",
}
_REGULAR = "re:"  # how compressed-tensors marks a regular expression
_EXCLUSIONS = ("ignore", "exclude_modules", "modules_to_not_convert")
_PREFIX = re.compile(r"^(language_model\.model\.|model\.language_model\.|model\.|language_model\.)")

# What the tensor cores of a generation, or weight-only kernels on it, can run.
_NATIVE: Mapping[str, frozenset[str]] = {
    "ampere": frozenset({"bfloat16", "int4_wo", "w4a16_mxfp4"}),
    "ascend": frozenset({"bfloat16", "int4_wo"}),
    "ada": frozenset({"bfloat16", "int4_wo", "w4a16_mxfp4", "fp8", "fp8_block"}),
    "hopper": frozenset({"bfloat16", "int4_wo", "w4a16_mxfp4", "fp8", "fp8_block"}),
    "blackwell": frozenset({*get_args(GemmDtype), *get_args(MoeDtype)}),
    "blackwell_ultra": frozenset({*get_args(GemmDtype), *get_args(MoeDtype)}),
}


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How the linear layers that ``covers`` accepts are stored."""

    dtype: str
    targets: tuple[str, ...]
    excluded: tuple[str, ...]

    def covers(self, spellings: tuple[str, ...]) -> bool:
        """Whether a module, known by any of ``spellings``, is stored this way."""
        targeted = not self.targets or any(
            target == "Linear" or _matches(target, name) for target in self.targets for name in spellings
        )
        return targeted and not any(
            _matches(pattern, name) for pattern in self.excluded for name in spellings
        )


def read_quantization(
    fields: Fields,
    separate: Mapping[str, object] | None,
    *,
    layers: int,
    routed: bool,
    linear: bool,
    expert_modules: Sequence[str],
) -> Quantization:
    """Data types that the checkpoint is stored in; problems go to ``fields``.

    A role has the type of its largest module in most layers: see :func:`_largest_gemm` for ``gemm``, an
    expert's down projection for ``moe``.
    """
    stated = fields.raw("quantization_config")
    key = "quantization_config"
    if stated is None and separate is not None:
        stated, key = separate.get("quantization", separate), "hf_quant_config.quantization"
    if stated is None:
        return Quantization()
    if not isinstance(stated, Mapping):
        fields.report(key, stated, "is not usable", "it must be a mapping")
        return Quantization()
    before = len(fields.problems)
    schemes = list(_schemes(fields, stated, key))
    for pattern in sorted({p for scheme in schemes for p in (*scheme.targets, *scheme.excluded)}):
        if not _compiles(pattern):
            fields.report(key, pattern, "holds an unusable regular expression", "mend or remove it")
    if len(fields.problems) > before:
        return Quantization()
    modules = [(f"layers.{layer}.{_largest_gemm(routed, linear)}",) for layer in range(layers)]
    gemm: str = _dtype_of(schemes, modules)
    experts = [
        tuple(f"layers.{layer}.{module}.0.down_proj" for module in expert_modules) for layer in range(layers)
    ]
    moe = _dtype_of(schemes, experts)
    if gemm == MXFP4:
        gemm = "bfloat16"  # only experts have MXFP4 kernels; loaders leave every other layer as it is
    return Quantization(
        gemm=cast(GemmDtype, gemm),
        moe=cast(MoeDtype, moe if routed else gemm),
        kv_cache=_kv_cache(fields, stated, key),
    )


def _largest_gemm(routed: bool, linear: bool) -> str:
    """The module that stands for all of ``gemm``: the FFN of a dense model, else attention's output."""
    if not routed:
        return "mlp.down_proj"
    return "linear_attn.out_proj" if linear else "self_attn.o_proj"


def quantization_for(
    model: ModelArchitecture,
    job_overrides: Mapping[str, object] | None = None,
    accelerator_generation: str | None = None,
) -> Quantization:
    """The checkpoint's data types with a job's on top, checked against what the accelerator can run.

    ``job_overrides`` maps roles (``gemm``, ``moe``, ``attention``, ``kv_cache``) to data types; None keeps
    the checkpoint's. ``accelerator_generation`` (ampere … blackwell_ultra), where given, must run the
    result: raises InputError otherwise, and for an unknown role or type.
    """
    allowed = {
        "gemm": get_args(GemmDtype),
        "moe": get_args(MoeDtype),
        "attention": get_args(AttentionDtype),
        "kv_cache": get_args(AttentionDtype),
    }
    changes: dict[str, str] = {}
    problems: list[Problem] = []
    for role, dtype in (job_overrides or {}).items():
        if dtype is None:
            continue
        if role not in allowed:
            problems.append(
                Problem(f"quantization.{role}", dtype, "is not a role", f"roles are {', '.join(allowed)}")
            )
        elif not isinstance(dtype, str) or dtype not in allowed[role]:
            problems.append(
                Problem(
                    f"quantization.{role}",
                    dtype,
                    "is not a data type of it",
                    f"use {', '.join(allowed[role])}",
                )
            )
        else:
            changes[role] = dtype
    if problems:
        raise InputError(problems)
    merged = replace(model.quantization, **changes)  # type: ignore[arg-type]
    if accelerator_generation is not None:
        problems = list(_unsupported(model, merged, accelerator_generation))
        if problems:
            raise InputError(problems)
    return merged


def _unsupported(model: ModelArchitecture, quantization: Quantization, generation: str) -> Iterable[Problem]:
    if generation not in _NATIVE:
        yield Problem("accelerator.generation", generation, "is unknown", f"known are {', '.join(_NATIVE)}")
        return
    runs = _NATIVE[generation]
    roles: dict[str, str] = {"gemm": quantization.gemm, "attention": quantization.attention}
    if model.is_moe:
        roles["moe"] = quantization.moe
    for role, dtype in roles.items():
        if dtype not in runs:
            choices = [
                name for name in sorted(runs) if role != "attention" or name in get_args(AttentionDtype)
            ]
            yield Problem(
                f"quantization.{role}",
                dtype,
                f"does not run on {generation}",
                f"set one of {', '.join(choices)}",
            )


def _schemes(fields: Fields, stated: Mapping[str, object], key: str) -> Iterable[_Scheme]:
    method = str(stated.get("quant_method") or "").lower().replace("_", "-")
    algorithm = stated.get("quant_algo")
    lists = [entries for name in _EXCLUSIONS if isinstance(entries := stated.get(name), list | tuple)]
    excluded = tuple(str(item) for entries in lists for item in entries)
    if algorithm is not None:
        yield from _by_algorithm(fields, stated, key, excluded)
    elif method == "fp8":
        yield _Scheme(_fp8(fields, stated, key), (), excluded)
    elif method == "mxfp4":
        yield _Scheme(MXFP4, (), excluded)
    elif method in ("awq", "gptq", "auto-round", "awq-marlin", "gptq-marlin"):
        if stated.get("bits", stated.get("w_bit")) != 4:
            fields.report(
                f"{key}.bits", stated.get("bits"), "is not usable", "only 4-bit weights are modelled"
            )
        yield _Scheme("int4_wo", (), excluded)
    elif isinstance(stated.get("config_groups"), Mapping):
        groups = cast(Mapping[str, object], stated["config_groups"])
        for name, group in groups.items():
            dtype = _group_dtype(group, stated.get("format"))
            if dtype is None:
                fields.report(f"{key}.config_groups.{name}", group, "is not modelled", _REMEDY)
                return
            targets = cast(Mapping[str, object], group).get("targets")
            yield _Scheme(dtype, tuple(map(str, targets)) if isinstance(targets, list) else (), excluded)
    else:
        fields.report(f"{key}.quant_method", stated.get("quant_method"), "is not modelled", _REMEDY)


_REMEDY = (
    "modelled are fp8 (per tensor or 128x128 blocks), NVFP4, MXFP4 experts and 4-bit integer weights "
    "(fp8, modelopt, compressed-tensors, mxfp4, awq, gptq)"
)


def _by_algorithm(
    fields: Fields, stated: Mapping[str, object], key: str, excluded: tuple[str, ...]
) -> Iterable[_Scheme]:
    algorithm = str(stated["quant_algo"]).upper()
    if algorithm == "MIXED_PRECISION" and isinstance(stated.get("quantized_layers"), Mapping):
        layers = cast(Mapping[str, object], stated["quantized_layers"])
        for module, how in layers.items():
            named = how.get("quant_algo") if isinstance(how, Mapping) else None
            if str(named).upper() not in _ALGORITHMS:
                fields.report(f"{key}.quantized_layers.{module}", named, "is not modelled", _REMEDY)
                return
            yield _Scheme(_ALGORITHMS[str(named).upper()], (module,), excluded)
    elif algorithm in _ALGORITHMS:
        yield _Scheme(_ALGORITHMS[algorithm], (), excluded)
    else:
        fields.report(f"{key}.quant_algo", algorithm, "is not modelled", _REMEDY)


def _fp8(fields: Fields, stated: Mapping[str, object], key: str) -> str:
    block = stated.get("weight_block_size")
    if block is None:
        return "fp8"
    if block not in ([128, 128], (128, 128)):
        fields.report(f"{key}.weight_block_size", block, "is not modelled", "only blocks of [128, 128] are")
    return "fp8_block"


def _group_dtype(group: object, fmt: object) -> str | None:
    """Data type of a group of compressed-tensors, or None where it is not modelled."""
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    kind, bits = weights.get("type"), weights.get("num_bits")
    if kind == "float" and bits == 8:
        return "fp8_block" if weights.get("strategy") == "block" else "fp8"
    if kind == "float" and bits == 4:
        mx = str(fmt or "").startswith("mxfp4") or weights.get("group_size") == 32
        return MXFP4 if mx else "nvfp4"
    if kind == "int" and bits == 4:
        return "int4_wo"
    return None


def _kv_cache(fields: Fields, stated: Mapping[str, object], key: str) -> AttentionDtype:
    scheme = stated.get("kv_cache_scheme", stated.get("kv_cache_quant_algo"))
    if scheme is None:
        return "bfloat16"
    if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 and scheme.get("type") == "float":
        return "fp8"
    if isinstance(scheme, str) and scheme.upper() == "FP8":
        return "fp8"
    fields.report(f"{key}.kv_cache_scheme", scheme, "is not modelled", "the KV cache is bfloat16 or fp8")
    return "bfloat16"


def _dtype_of(schemes: list[_Scheme], modules: Sequence[tuple[str, ...]]) -> str:
    """Return the data type of most of ``modules``, each given by its possible spellings."""
    found = [
        next((scheme.dtype for scheme in schemes if scheme.covers(spellings)), "bfloat16")
        for spellings in modules
    ]
    return max(dict.fromkeys(found), key=found.count)


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern.removeprefix(_REGULAR) if pattern.startswith(_REGULAR) else "")
    except re.error:
        return False
    return True


def _matches(pattern: str, module: str) -> bool:
    """Whether ``pattern`` (``re:…``, a glob, or a part of the dotted name) means ``module``."""
    if pattern.startswith(_REGULAR):
        return re.match(pattern.removeprefix(_REGULAR), module) is not None
    bare = _PREFIX.sub("", pattern)
    if "*" not in bare:
        return f".{bare}." in f".{module}."
    parts = module.split(".")
    expression = re.compile(translate(bare))
    return any(expression.match(".".join(parts[: end + 1])) is not None for end in range(len(parts)))
