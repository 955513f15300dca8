"""The supply-bound analysis of one model on one GPU over counts of FFN nodes: bound, regimes, intensity, dead zone."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.model import ModelArchitecture, MoeFfn
from afd_dse.errors import InputError, Problem
from afd_dse.network import supply
from afd_dse.network.hardware import SupplyHardware
from afd_dse.network.supply import BoolArray, Boundaries
from afd_dse.operators.latency import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class HfuAnalysis:
    """Columns over FFN nodes [n], and what does not depend on them.

    ``bound`` largest share of peak FLOPS, ``relative_intensity`` of the experts' GEMMs against one node, ``bandwidth``
    usable input bytes/s of a GPU, ``tokens_per_gpu`` inputs of a stage of ``budget_s`` seconds (None without a budget).
    ``intensity`` FLOP per network byte.
    """

    model: str
    hardware: SupplyHardware
    moe: MoeFfn
    intensity: float
    boundaries: Boundaries
    ffn_nodes: FloatArray
    bound: FloatArray
    regime: IntArray
    relative_intensity: FloatArray
    bandwidth: FloatArray
    experts_per_gpu: FloatArray
    dead: BoolArray
    budget_s: float | None
    tokens_per_gpu: FloatArray | None

    @property
    def dead_zone(self) -> tuple[float, float] | None:
        """First and last FFN nodes of the dead zone, None where there is none."""
        nodes = self.ffn_nodes[self.dead]
        return (float(nodes.min()), float(nodes.max())) if len(nodes) else None


def hfu_analysis(
    model: ModelArchitecture,
    hardware: SupplyHardware,
    ffn_nodes: npt.ArrayLike,
    *,
    dispatch_bytes: float = supply.DISPATCH_BYTES,
    combine_bytes: float = supply.COMBINE_BYTES,
    tpot_s: float | None = None,
) -> HfuAnalysis:
    """Analyse ``model`` on ``hardware`` at each of ``ffn_nodes`` [n] (arXiv 2602.09721).

    With ``tpot_s`` the stage budget follows from it and three batches in flight over all layers. Raises InputError for
    a model without experts.
    """
    moe = next((kind.ffn for kind in model.kinds if isinstance(kind.ffn, MoeFfn)), None)
    if moe is None:
        raise InputError(Problem("model", model.name, "has no experts", "name a mixture-of-experts model"))
    nodes, fabric = np.asarray(ffn_nodes, dtype=np.float64), hardware.fabric
    exchange = {"dispatch_bytes": dispatch_bytes, "combine_bytes": combine_bytes}
    budget = None if tpot_s is None else float(supply.stage_budget(tpot_s, model.layers))
    tokens = None
    if budget is not None:
        tokens = supply.supplied_tokens(
            fabric, nodes, topk=moe.topk, hidden=model.hidden, budget_s=budget, **exchange
        )
    bound = supply.hfu_bound(
        fabric,
        nodes,
        topk=moe.topk,
        intermediate=moe.intermediate,
        peak_flops=hardware.peak_flops,
        **exchange,
    )
    return HfuAnalysis(
        model=model.name,
        hardware=hardware,
        moe=moe,
        intensity=float(supply.network_intensity(moe.intermediate, **exchange)),
        boundaries=supply.boundaries(fabric, topk=moe.topk, experts=moe.experts),
        ffn_nodes=nodes,
        bound=bound,
        regime=supply.regime(fabric, nodes, topk=moe.topk, experts=moe.experts),
        relative_intensity=supply.relative_intensity(fabric, nodes, topk=moe.topk, experts=moe.experts),
        bandwidth=supply.supplied_bandwidth(fabric, nodes, moe.topk),
        experts_per_gpu=supply.experts_per_gpu(fabric, nodes, moe.experts),
        dead=supply.dead_zone(
            fabric,
            nodes,
            topk=moe.topk,
            intermediate=moe.intermediate,
            peak_flops=hardware.peak_flops,
            **exchange,
        ),
        budget_s=budget,
        tokens_per_gpu=tokens,
    )
