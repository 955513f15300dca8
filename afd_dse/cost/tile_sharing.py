"""Both phases on the same GPUs at once, tile by tile: how much longer the kernels of each take (ExpertPlex).

While both have work, decode runs on a share q of the SMs (whole clusters of thread blocks) and prefill on the rest.
"""

import numpy as np

from afd_dse.architecture.model import DenseFfn
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray
from afd_dse.operators.speed_of_light import gemm_work, moe_work, peak_flops
from afd_dse.rows import Column

# ExpertPlex (arXiv 2607.18002) reports that sharing costs less than 12 % of a kernel's time; all of it is counted.
SHARING_OVERHEAD = 0.12
# Share of the SMs that keeps HBM busy; an assumption, since no table times kernels on a part of a GPU.
SMS_THAT_FILL_HBM = 0.5
# A tile of a grouped GEMM: 128 x 128 results over the hidden size; an SM yields between tiles only.
TILE = 128
# A GPU computes this many tiles at once (132 SMs on Hopper, 148 on Blackwell; the smaller waits longer per FLOP).
TILES_AT_ONCE = 132
CHECK_S = 1e-6  # looking whether the other phase has work


def tile_wait_s(scenario: Scenario, pool: Column) -> FloatArray:
    """What a decode kernel waits for before it gets its SMs, at most: one tile of prefill and one check, [n]."""
    q = scenario.quantization
    dtype = q.gemm if scenario.moe is None else q.moe
    rates = np.array([peak_flops(p.accelerator, dtype) for p in scenario.pools])
    flop = 2.0 * TILE * TILE * scenario.model.hidden
    result: FloatArray = flop / (rates[np.asarray(pool, dtype=np.int64)] / TILES_AT_ONCE) + CHECK_S
    return result


def ffn_bounds(
    scenario: Scenario, *, pool: Column, tokens: Column, moe_tp: Column, ep: Column, redundant: Column
) -> tuple[FloatArray, FloatArray]:
    """Shares of the FFN's time at speed of light in which compute and HBM are busy, [n] each; the larger one is 1.

    Over all layers, of one rank with its even part of ``tokens``.
    """
    compute, memory = np.zeros(len(tokens)), np.zeros(len(tokens))
    q, hidden = scenario.quantization, float(scenario.model.hidden)
    number = np.asarray(pool, dtype=np.int64)
    bandwidth = np.array([p.accelerator.hbm_bytes_per_s for p in scenario.pools])[number]
    for kind in scenario.model.kinds:
        if isinstance(kind.ffn, DenseFfn):
            width = kind.ffn.intermediate / (moe_tp * ep)
            work = gemm_work(q.gemm, tokens, (3.0 if kind.ffn.gated else 2.0) * width, hidden)
        else:
            work = moe_work(
                q.moe,
                tokens=tokens,
                hidden=hidden,
                intermediate=kind.ffn.intermediate,
                topk=kind.ffn.topk,
                experts=kind.ffn.experts,
                moe_tp=moe_tp,
                local_experts=np.ceil((kind.ffn.experts + redundant) / ep),
                gated=kind.ffn.gated,
                spread=False,
            )
        dtype = q.gemm if isinstance(kind.ffn, DenseFfn) else q.moe
        rates = np.array([peak_flops(p.accelerator, dtype) for p in scenario.pools])[number]
        compute += kind.count * work.flop / rates
        memory += kind.count * work.bytes / bandwidth
    longest = np.maximum(np.maximum(compute, memory), 1e-30)
    return compute / longest, memory / longest


def slowdown(
    sms: FloatArray, compute: FloatArray, memory: FloatArray, other_memory: FloatArray
) -> FloatArray:
    """Time of a kernel on the share ``sms`` of the SMs over that on all of them, [n] ≥ 1, before any overhead.

    ``compute`` and ``memory`` are the shares of its time in which each is busy, as :func:`ffn_bounds` gives them.
    Compute shrinks with the SMs, bandwidth only below :data:`SMS_THAT_FILL_HBM` of them; the kernel beside it takes
    ``other_memory`` of the bandwidth on the other SMs, and what both ask for beyond all of it, both wait for.
    """
    own = np.minimum(sms / SMS_THAT_FILL_HBM, 1.0)
    others = other_memory * np.minimum((1.0 - sms) / SMS_THAT_FILL_HBM, 1.0)
    crowded = np.maximum(memory * own + others, 1.0)
    result: FloatArray = np.maximum(compute / sms, memory / own * crowded)
    return np.maximum(result, 1.0)
