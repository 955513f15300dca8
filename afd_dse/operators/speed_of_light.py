"""Least time an operator can take: FLOP and bytes against peak rates. Work is per GPU; arrays broadcast."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.errors import InputError, Problem
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.accelerator import Accelerator


@dataclass(frozen=True, slots=True)
class Precision:
    """One data type: bytes per weight and per activation element (block scales included), and its peaks.

    ``compute`` lists the keys of ``Accelerator.peak_flops`` to try: a weight-only or emulated type computes in
    a wider one where the hardware lacks its own.
    """

    weight_bytes: float
    activation_bytes: float
    compute: tuple[str, ...]


# Scales: fp8_block one float32 per 128 x 128 weights and per 128 activations; nvfp4 one byte per 16 elements;
# mxfp4 and mxfp8 one byte per 32; int4_wo one float16 per 128 weights.
PRECISIONS: dict[str, Precision] = {
    "bfloat16": Precision(2.0, 2.0, ("bfloat16",)),
    "float16": Precision(2.0, 2.0, ("bfloat16",)),
    "half": Precision(2.0, 2.0, ("bfloat16",)),
    "fp8": Precision(1.0, 1.0, ("fp8", "bfloat16")),
    "fp8_block": Precision(1.0 + 4.0 / 128**2, 1.0 + 4.0 / 128, ("fp8", "bfloat16")),
    "fp8_ootb": Precision(1.0, 1.0, ("fp8", "bfloat16")),
    "int8": Precision(1.0, 1.0, ("int8", "bfloat16")),
    "sq": Precision(1.0, 1.0, ("int8", "bfloat16")),
    "int8_wo": Precision(1.0, 2.0, ("bfloat16",)),
    "int4_wo": Precision(0.5 + 2.0 / 128, 2.0, ("bfloat16",)),
    "nvfp4": Precision(0.5 + 1.0 / 16, 0.5 + 1.0 / 16, ("fp4", "bfloat16")),
    "w4a16_mxfp4": Precision(0.5 + 1.0 / 32, 2.0, ("bfloat16",)),
    "w4a8_mxfp4_mxfp8": Precision(0.5 + 1.0 / 32, 1.0 + 1.0 / 32, ("fp8", "bfloat16")),
    "w4afp8": Precision(0.5 + 2.0 / 128, 1.0, ("fp8", "bfloat16")),
}

OUTPUT_BYTES = 2.0  # results leave in bfloat16


@dataclass(frozen=True, slots=True)
class Work:
    """FLOP and HBM bytes of an operator on one GPU, arrays of one shape."""

    flop: FloatArray
    bytes: FloatArray


def precision(dtype: str) -> Precision:
    """Look up ``dtype``; :class:`InputError` when it is unknown."""
    try:
        return PRECISIONS[dtype]
    except KeyError:
        known = ", ".join(sorted(PRECISIONS))
        raise InputError(Problem("dtype", dtype, "unknown data type", f"use one of {known}")) from None


def peak_flops(accelerator: Accelerator, dtype: str) -> float:
    """Dense peak FLOP/s that ``dtype`` computes at, in the first of its compute types the accelerator has."""
    for key in precision(dtype).compute:
        if key in accelerator.peak_flops:
            return accelerator.peak_flops[key]
    raise InputError(
        Problem(
            f"accelerator.{accelerator.name}.peak_flops",
            sorted(accelerator.peak_flops),
            f"no peak for {dtype}",
            f"give one of {', '.join(precision(dtype).compute)}",
        )
    )


def seconds(
    accelerator: Accelerator,
    dtype: str,
    flop: npt.ArrayLike,
    bytes_moved: npt.ArrayLike,
) -> FloatArray:
    """Speed of light: the larger of FLOP / peak and bytes / HBM bandwidth."""
    compute = np.asarray(flop, dtype=np.float64) / peak_flops(accelerator, dtype)
    memory = np.asarray(bytes_moved, dtype=np.float64) / accelerator.hbm_bytes_per_s
    return np.maximum(compute, memory)


def gemm_work(dtype: str, m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike) -> Work:
    """Work of [m, k] x [k, n]: 2 m n k FLOP; activations, weights and result moved once."""
    m_, n_, k_ = (np.asarray(value, dtype=np.float64) for value in (m, n, k))
    size = precision(dtype)
    moved = m_ * k_ * size.activation_bytes + n_ * k_ * size.weight_bytes + m_ * n_ * OUTPUT_BYTES
    return Work(2.0 * m_ * n_ * k_, moved)


def active_experts(
    tokens: npt.ArrayLike, topk: npt.ArrayLike, experts: npt.ArrayLike, local_experts: npt.ArrayLike
) -> FloatArray:
    """Expected number of the ``local_experts`` of a rank that see at least one of ``tokens`` (uniform routing)."""
    share = np.asarray(topk, dtype=np.float64) / np.asarray(experts, dtype=np.float64)
    missed = np.exp(np.asarray(tokens, dtype=np.float64) * np.log1p(-np.minimum(share, 1.0 - 1e-12)))
    return np.asarray(np.asarray(local_experts, dtype=np.float64) * (1.0 - missed), dtype=np.float64)


def moe_work(
    dtype: str,
    *,
    tokens: npt.ArrayLike,
    hidden: npt.ArrayLike,
    intermediate: npt.ArrayLike,
    topk: npt.ArrayLike,
    experts: npt.ArrayLike,
    moe_tp: npt.ArrayLike,
    local_experts: npt.ArrayLike,
    gated: npt.ArrayLike = True,
    spread: npt.ArrayLike = True,
) -> Work:
    """Work of one rank's experts: the grouped GEMMs of both projections and what they move.

    ``tokens`` are those of the whole expert group: a rank with ``local_experts`` of ``experts`` sees
    ``tokens * topk * local_experts / experts`` token-expert pairs, at least one. It loads the weights of the experts
    hit: with ``spread`` tokens fall on as many experts as there are pairs, else independently at random.
    """
    t, h, i, k, e, tp, local = (
        np.asarray(value, dtype=np.float64)
        for value in (tokens, hidden, intermediate, topk, experts, moe_tp, local_experts)
    )
    size = precision(dtype)
    width = i / tp
    first = np.where(np.asarray(gated, dtype=bool), 2.0, 1.0)
    pairs = np.maximum(t * k * local / e, 1.0)
    random = np.clip(active_experts(t, k, e, local), 1.0, np.maximum(local, 1.0))
    active = np.where(np.asarray(spread, dtype=bool), np.minimum(local, pairs), random)
    weights = active * (first + 1.0) * h * width * size.weight_bytes
    # In and out of the block, and the intermediate written and read back between the two grouped GEMMs.
    inner = width * (first * OUTPUT_BYTES + size.activation_bytes)
    moved = weights + pairs * (h * (size.activation_bytes + OUTPUT_BYTES) + inner)
    return Work(2.0 * pairs * (first + 1.0) * h * width, moved)


def _attended(tokens: FloatArray, prefix: FloatArray, window: FloatArray) -> FloatArray:
    """Number of (query, key) pairs of ``tokens`` causal queries after ``prefix`` cached ones, within ``window``."""
    full = tokens * prefix + tokens * (tokens + 1.0) / 2.0
    # Query i (1-based) sees min(prefix + i, window) keys: the first `ramp` queries grow, the others are at the window.
    ramp = np.clip(window - prefix, 0.0, tokens)
    sliding = ramp * prefix + ramp * (ramp + 1.0) / 2.0 + (tokens - ramp) * window
    return np.where(window > 0.0, sliding, full)


def generation_attention_work(
    kv_dtype: str,
    *,
    heads: npt.ArrayLike,
    kv_heads: npt.ArrayLike,
    head_dim: npt.ArrayLike,
    window: npt.ArrayLike,
    batch: npt.ArrayLike,
    context: npt.ArrayLike,
) -> Work:
    """Work of one new token per sequence over ``context`` cached ones (``window`` > 0 caps it); heads per GPU."""
    h, kv, d, w, b, c = (
        np.asarray(value, dtype=np.float64) for value in (heads, kv_heads, head_dim, window, batch, context)
    )
    seen = np.where(w > 0.0, np.minimum(c, w), c)
    moved = b * (2.0 * seen * kv * d * precision(kv_dtype).activation_bytes + 2.0 * h * d * OUTPUT_BYTES)
    return Work(4.0 * b * h * d * seen, moved)


def context_attention_work(
    attention_dtype: str,
    kv_dtype: str,
    *,
    heads: npt.ArrayLike,
    kv_heads: npt.ArrayLike,
    head_dim: npt.ArrayLike,
    window: npt.ArrayLike,
    batch: npt.ArrayLike,
    tokens: npt.ArrayLike,
    prefix: npt.ArrayLike,
) -> Work:
    """Work of causal attention of ``tokens`` new tokens per sequence after ``prefix`` cached ones; heads per GPU."""
    h, kv, d, w, b, t, p = (
        np.asarray(value, dtype=np.float64)
        for value in (heads, kv_heads, head_dim, window, batch, tokens, prefix)
    )
    keys = t + np.where(w > 0.0, np.minimum(p, w), p)
    moved = b * (
        2.0 * keys * kv * d * precision(kv_dtype).activation_bytes
        + t * h * d * (precision(attention_dtype).activation_bytes + OUTPUT_BYTES)
    )
    return Work(4.0 * b * h * d * _attended(t, p, w), moved)


def mla_generation_work(
    kv_dtype: str,
    *,
    heads: npt.ArrayLike,
    kv_rank: npt.ArrayLike,
    rope_head_dim: npt.ArrayLike,
    batch: npt.ArrayLike,
    context: npt.ArrayLike,
) -> Work:
    """Work of absorbed latent attention: scores on ``kv_rank + rope_head_dim``, values on ``kv_rank``."""
    h, r, rope, b, c = (
        np.asarray(value, dtype=np.float64) for value in (heads, kv_rank, rope_head_dim, batch, context)
    )
    moved = b * (c * (r + rope) * precision(kv_dtype).activation_bytes + h * (2.0 * r + rope) * OUTPUT_BYTES)
    return Work(2.0 * b * h * c * (2.0 * r + rope), moved)


def mla_context_work(
    attention_dtype: str,
    *,
    heads: npt.ArrayLike,
    nope_head_dim: npt.ArrayLike,
    rope_head_dim: npt.ArrayLike,
    v_head_dim: npt.ArrayLike,
    batch: npt.ArrayLike,
    tokens: npt.ArrayLike,
    prefix: npt.ArrayLike,
) -> Work:
    """Work of causal attention on decompressed heads: keys ``nope + rope`` wide, values ``v_head_dim`` wide."""
    h, nope, rope, v, b, t, p = (
        np.asarray(value, dtype=np.float64)
        for value in (heads, nope_head_dim, rope_head_dim, v_head_dim, batch, tokens, prefix)
    )
    size = precision(attention_dtype).activation_bytes
    moved = b * h * ((t + p) * (nope + rope + v) * size + t * ((nope + rope) * size + v * OUTPUT_BYTES))
    pairs = _attended(t, p, np.zeros_like(t))
    return Work(2.0 * b * h * pairs * (nope + rope + v), moved)


def mla_bmm_work(
    dtype: str, *, tokens: npt.ArrayLike, heads: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike
) -> Work:
    """Work of the absorbed projections: ``heads`` GEMMs [tokens, k] x [k, n]."""
    one = gemm_work(dtype, tokens, n, k)
    h = np.asarray(heads, dtype=np.float64)
    return Work(h * one.flop, h * one.bytes)
