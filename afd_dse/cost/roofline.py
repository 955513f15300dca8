"""What decoding costs at speed of light: batches that fill a GPU, seconds and dollars of a token, bytes of a stage."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.model import LayerKind, Quantization
from afd_dse.architecture.weights import kv_bytes_per_token
from afd_dse.architecture.work import TokenWork
from afd_dse.operators.latency import FloatArray

_SECONDS_PER_HOUR = 3600.0
_TOKENS = 1e6


def compute_bound_batch(
    peak_flops: npt.ArrayLike, hbm_bytes_per_s: npt.ArrayLike, weight_bytes: npt.ArrayLike = 2.0
) -> FloatArray:
    """Tokens at which a GEMM's compute takes as long as reading its weights, [n].

    2 FLOP a token and weight against ``weight_bytes`` a weight.
    """
    peak, bandwidth = np.asarray(peak_flops, dtype=np.float64), np.asarray(hbm_bytes_per_s, dtype=np.float64)
    return np.asarray(peak * np.asarray(weight_bytes) / (2.0 * bandwidth), dtype=np.float64)


def expert_utilisation(
    batch: npt.ArrayLike, full_batch: npt.ArrayLike, experts: int, topk: int
) -> FloatArray:
    """Share of peak that experts reach with ``batch`` [n] tokens in all: each sees batch·k/E of them; at most 1."""
    per_expert = np.asarray(batch, dtype=np.float64) * topk / experts
    return np.asarray(np.minimum(per_expert / np.asarray(full_batch), 1.0), dtype=np.float64)


def attention_seconds(
    work: TokenWork, peak_flops: npt.ArrayLike, hbm_bytes_per_s: npt.ArrayLike
) -> FloatArray:
    """Attention of one token at speed of light, seconds [n]: its core's FLOP or KV bytes, then its projections.

    Projection weights are shared by a large batch and cost no bandwidth (arXiv 2507.19427).
    """
    peak = np.asarray(peak_flops, dtype=np.float64)
    core = np.maximum(work.attention_flop / peak, work.kv_bytes / np.asarray(hbm_bytes_per_s))
    return np.asarray(core + work.projection_flop / peak, dtype=np.float64)


def ffn_seconds(work: TokenWork, peak_flops: npt.ArrayLike) -> FloatArray:
    """FFN of one token at peak, seconds [n]: its weights are shared by a large batch."""
    return np.asarray(work.ffn_flop / np.asarray(peak_flops, dtype=np.float64), dtype=np.float64)


def usd_per_mtok(gpu_seconds_per_token: npt.ArrayLike, usd_per_gpu_hour: npt.ArrayLike) -> FloatArray:
    """Dollars per million tokens, [n]."""
    seconds = np.asarray(gpu_seconds_per_token, dtype=np.float64)
    return np.asarray(seconds * np.asarray(usd_per_gpu_hour) / _SECONDS_PER_HOUR * _TOKENS, dtype=np.float64)


def stage_context(attention: LayerKind, quantization: Quantization, kv_bytes: npt.ArrayLike) -> FloatArray:
    """Context tokens whose KV cache of one layer is ``kv_bytes`` [n]; infinite where a layer keeps none."""
    byte = float(kv_bytes_per_token(attention, quantization, 1))
    budget = np.asarray(kv_bytes, dtype=np.float64)
    return np.asarray(budget / byte if byte > 0 else np.full(budget.shape, np.inf), dtype=np.float64)


def best_per_price(figures: Mapping[str, float], prices: Mapping[str, float]) -> str:
    """The device with the most of a figure (bytes/s for attention, FLOP/s for experts) per unit of price."""
    return max(figures, key=lambda name: figures[name] / prices[name])
