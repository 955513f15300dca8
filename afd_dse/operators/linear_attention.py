"""Gated delta net kernels: short convolution and delta rule (chunked in prefill, recurrent in decode)."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.architecture.model import LinearAttention
from afd_dse.errors import InputError, Problem
from afd_dse.operators import speed_of_light as sol
from afd_dse.operators.attention import OperatorSource, Rates, places, reshape, rows_of
from afd_dse.operators.latency import FloatArray, IntArray, Latency, Provenance
from afd_dse.operators.store import has_table, load_table
from afd_dse.operators.surfaces import Blend, Surfaces, answer, bare
from afd_dse.spec.accelerator import Accelerator

CHUNK = 64.0  # tokens of one chunk of the chunked delta rule
# Smallest state element that a framework stores (TensorRT-LLM; the others store float32): a bound for all.
STATE_BYTES = 2.0
ACTIVATION_BYTES = 2.0
# NOTE: some prefill rows of many short sequences take up to 7 times as long as one sequence with as many tokens.
DISTURBED = 1.5

_SHAPE = ["num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim", "d_conv"]


def gdn_light(
    accelerator: Accelerator,
    phase: str,
    *,
    key_heads: FloatArray,
    key_dim: FloatArray,
    value_heads: FloatArray,
    value_dim: FloatArray,
    conv_kernel: FloatArray,
    batch: FloatArray,
    tokens: FloatArray,
) -> FloatArray:
    """Speed of light of both kernels, one after another; heads of one GPU, ``tokens`` a sequence (1 in decode)."""
    channels = 2.0 * key_heads * key_dim + value_heads * value_dim
    total = batch * tokens
    state = batch * value_heads * key_dim * value_dim
    conv_moved = 2.0 * total * channels * ACTIVATION_BYTES
    rule_moved = total * (channels + value_heads * (value_dim + 2.0)) * ACTIVATION_BYTES
    if phase == "generation":
        conv_moved = conv_moved + 2.0 * batch * channels * conv_kernel * ACTIVATION_BYTES
        rule_moved = rule_moved + 2.0 * state * STATE_BYTES
        flop = total * value_heads * 6.0 * key_dim * value_dim
    else:
        rule_moved = rule_moved + state * STATE_BYTES
        flop = total * value_heads * (6.0 * key_dim * value_dim + 2.0 * CHUNK * (key_dim + value_dim))
    conv = sol.seconds(accelerator, "bfloat16", 2.0 * total * channels * conv_kernel, conv_moved)
    return conv + sol.seconds(accelerator, "bfloat16", flop, rule_moved)


@dataclass(frozen=True, slots=True)
class GdnTable:
    """Surfaces over (batch, tokens a sequence) and their keys [K, 5] in the order of ``_SHAPE``."""

    surfaces: Surfaces
    keys: IntArray


def _points(table: pd.DataFrame) -> pd.DataFrame:
    """Latency of all kernels of a point.

    Rows of models that differ in hidden size only are repeats of one timing: the fastest counts.
    """
    point = [*_SHAPE, "batch_size", "seq_len"]
    fastest = table.groupby([*point, "kernel_source"], as_index=False)["latency_ms"].min()
    summed = fastest.groupby(point, as_index=False).agg(
        latency_ms=("latency_ms", "sum"), kernels=("kernel_source", "size")
    )
    whole = summed["kernels"] == fastest["kernel_source"].nunique()
    return pd.DataFrame(summed[whole])


def _undisturbed(points: pd.DataFrame) -> pd.DataFrame:
    tokens = points["batch_size"] * points["seq_len"]
    single = points[points["batch_size"] == 1].set_index([*_SHAPE, "seq_len"])["latency_ms"]
    index = pd.MultiIndex.from_frame(points[_SHAPE].assign(seq_len=tokens))
    bound = single.reindex(index).to_numpy(dtype=np.float64)
    slow = (points["latency_ms"].to_numpy(dtype=np.float64) > DISTURBED * bound) & (tokens.to_numpy() >= 1024)
    return points.loc[~slow]


@lru_cache(maxsize=64)
def gdn_table(rates: Rates, framework: str, phase: str) -> GdnTable | None:
    """Surfaces of one phase, None if nobody measured them."""
    table = load_table(str(rates.accelerator.tables), framework, "gdn")
    if table is None:
        return None
    points = _points(table[table["phase"] == phase])
    if phase == "context":
        points = _undisturbed(points)
    if points.empty:
        return None
    keys, key = np.unique(points[_SHAPE].to_numpy(dtype=np.int64), axis=0, return_inverse=True)

    def light(ids: IntArray, batch: FloatArray, tokens: FloatArray) -> FloatArray:
        key_heads, key_dim, value_heads, value_dim, conv = keys[ids].astype(np.float64).T
        return gdn_light(
            rates.accelerator,
            phase,
            key_heads=key_heads,
            key_dim=key_dim,
            value_heads=value_heads,
            value_dim=value_dim,
            conv_kernel=conv,
            batch=batch,
            tokens=tokens,
        )

    surfaces = Surfaces(
        key.reshape(-1).astype(np.int64),
        points["batch_size"].to_numpy(dtype=np.float64),
        points["seq_len"].to_numpy(dtype=np.float64),
        points["latency_ms"].to_numpy(dtype=np.float64) * 1e-3,
        np.full(len(points), "gdn", dtype=object),
        light,
    )
    return GdnTable(surfaces, keys)


def _nearest(table: GdnTable, wanted: FloatArray) -> tuple[int, float, Provenance]:
    """(key, heads asked per heads of the key, claim) for key heads, dims, value heads, dims, convolution."""
    present = table.surfaces.keys_present
    keys = table.keys[present].astype(np.float64)
    distance = np.abs(np.log(keys / wanted))
    order = np.lexsort((distance[:, 0], distance[:, 2], distance[:, 4] + distance[:, 1] + distance[:, 3]))
    best = int(order[0])
    claim = Provenance.MEASURED if np.all(keys[best] == wanted) else Provenance.BORROWED
    return int(present[best]), float(wanted[2] / keys[best, 2]), claim


def linear_attention(
    database: OperatorSource,
    *,
    spec: LinearAttention,
    hidden: int,
    value_heads: npt.ArrayLike,
    key_heads: npt.ArrayLike,
    phase: str,
    batch: npt.ArrayLike,
    tokens: npt.ArrayLike,
) -> Latency:
    """Convolution and delta-rule kernels of one layer, without its projections; heads of one GPU.

    ``phase`` is ``context`` (``tokens`` new tokens a sequence) or ``generation`` (one each: ``tokens`` is ignored).
    Head counts that nobody measured borrow from the nearest, at the batch that gives it equal work. The kernels do not
    see ``hidden``. Raises :class:`InputError` for another phase.
    """
    del hidden
    if phase not in ("context", "generation"):
        raise InputError(Problem("phase", phase, "unknown phase", "use context or generation"))
    shape, (v, k, b, t) = rows_of(value_heads, key_heads, batch, tokens)
    if phase == "generation":
        t = np.ones_like(t)
    dims = (spec.key_head_dim, spec.value_head_dim, spec.conv_kernel)
    key_dim, value_dim, conv = (np.full_like(k, dim) for dim in dims)
    wanted = np.stack([k, key_dim, v, value_dim, conv], axis=1)
    light = gdn_light(
        database.accelerator,
        phase,
        key_heads=k,
        key_dim=key_dim,
        value_heads=v,
        value_dim=value_dim,
        conv_kernel=conv,
        batch=b,
        tokens=t,
    )
    for place in places(database):
        if not has_table(place.accelerator, place.framework, "gdn"):
            continue
        table = gdn_table(place.rates(database), place.framework, phase)
        if table is None:
            continue
        distinct, inverse = np.unique(wanted, axis=0, return_inverse=True)
        chosen = [_nearest(table, one) for one in distinct]
        inverse = inverse.reshape(-1)
        keys = np.array([key for key, _, _ in chosen], dtype=np.int64)[inverse]
        ratio = np.array([share for _, share, _ in chosen])[inverse]
        claim = np.array([level for _, _, level in chosen], dtype=np.int8)[inverse]
        if not place.own:
            claim = np.full_like(claim, Provenance.BORROWED)
        blend = Blend(keys[:, None], np.ones((len(b), 1)), claim, ratio[:, None])
        return reshape(answer(light, table.surfaces(blend, b, t), claim), shape)
    return reshape(bare(light), shape)
