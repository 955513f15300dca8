"""The supply bound of disaggregated experts and what whole nodes cost (Baidu, arXiv 2602.09721)."""

from dataclasses import dataclass, replace

from afd_dse.architecture.model import ModelArchitecture, MoeFfn
from afd_dse.cost import imbalance
from afd_dse.errors import InputError, Problem
from afd_dse.literature.answer import Answer, evaluator
from afd_dse.literature.rows import Inputs, Row
from afd_dse.literature.units import BYTES_PER_S, FLOPS, named
from afd_dse.network import supply
from afd_dse.network.hardware import CATALOGUE, SupplyHardware, supply_hardware
from afd_dse.spec.profiles import load_profile

_PROFILE = "baidu"
_NODES = ("ffn_nodes", "N_F", "n_f")
_RATES = {
    "scale_out_bytes_per_s": named(BYTES_PER_S, "scale_out"),
    "scale_up_bytes_per_s": named(BYTES_PER_S, "scale_up"),
}
_PEAKS = named(FLOPS, "fp8", "peak", "bf16")


@dataclass(frozen=True, slots=True)
class _Experts:
    experts: int
    topk: int
    intermediate: int


def moe_of(model: ModelArchitecture) -> MoeFfn:
    """The routed experts of ``model``; InputError for a dense one."""
    for kind in model.kinds:
        if isinstance(kind.ffn, MoeFfn):
            return kind.ffn
    raise InputError(Problem("inputs.model", model.name, "has no experts", "name a mixture-of-experts model"))


def _experts(inputs: Inputs) -> _Experts:
    """Experts as the row states them; what it leaves out from the catalogue's model."""
    stated = {
        "experts": ("num_experts", "experts"),
        "topk": ("topk", "top_k"),
        "intermediate": ("moe_intermediate_size", "intermediate", "intermediate_size"),
    }
    given = {key: inputs.whole(*names) for key, names in stated.items() if any(inputs.has(n) for n in names)}
    if len(given) < len(stated):
        moe = moe_of(inputs.model())
        given = {
            "experts": moe.experts,
            "topk": moe.topk,
            "intermediate": moe.intermediate,
        } | given
    elif inputs.has("model"):
        inputs.raw("model")  # a label only: the row states everything
    return _Experts(**given)


def _hardware(inputs: Inputs) -> SupplyHardware:
    """The named hardware of the paper's profile (or of ``profile``), with the figures that the row states itself.

    A part that the paper does not count, where the row names no profile, is as the catalogue has it.
    """
    names = ("hardware", "accelerator")
    if any(inputs.has(name) for name in names):
        name, profile = inputs.text(*names), inputs.text("profile", default=_PROFILE)
        if not inputs.has("profile") and not load_profile(profile).has(name):
            profile = CATALOGUE
        base = supply_hardware(name, profile)
        links = base.fabric
        stated = {key: inputs.scaled(units, default=getattr(links, key)) for key, units in _RATES.items()}
        nodes = inputs.whole("gpus_per_node", "node_gpus", default=links.node_gpus)
        peak = inputs.scaled(_PEAKS, default=base.peak_flops)
        return replace(base, fabric=replace(links, node_gpus=nodes, **stated), peak_flops=peak)
    stated = {key: inputs.scaled(units) for key, units in _RATES.items()}
    fabric = supply.Fabric(**stated, node_gpus=inputs.whole("gpus_per_node", "node_gpus", default=8))
    return SupplyHardware("as stated", "row", fabric, inputs.scaled(_PEAKS), "the row")


def _counted(hardware: SupplyHardware) -> str:
    """Whose figures these are, where they are not the paper's or the row's."""
    return f"{hardware.name} at the catalogue's line rates" if hardware.profile == CATALOGUE else ""


@evaluator
def hfu_bound(row: Row) -> Answer:
    """Largest share of FLOPS that the network lets FFN GPUs use, per cent, for each count of FFN nodes."""
    inputs = row.inputs
    experts, hardware = _experts(inputs), _hardware(inputs)
    found = supply.hfu_bound(
        hardware.fabric,
        inputs.counts(*_NODES),
        topk=experts.topk,
        intermediate=experts.intermediate,
        peak_flops=hardware.peak_flops,
        dispatch_bytes=inputs.positive("dispatch_bytes", default=supply.DISPATCH_BYTES),
        combine_bytes=inputs.positive("combine_bytes", default=supply.COMBINE_BYTES),
    )
    # The bound does not depend on how many experts a GPU holds, nor on the size of a node.
    inputs.used.update(("num_experts", "experts", "gpus_per_node"))
    return Answer.of(*(100.0 * found), note=_counted(hardware))


@evaluator
def hfu_intensity_ratio(row: Row) -> Answer:
    """Arithmetic intensity of the experts relative to one FFN node."""
    inputs = row.inputs
    experts, hardware = _experts(inputs), _hardware(inputs)
    ends = supply.boundaries(hardware.fabric, topk=experts.topk, experts=experts.experts)
    found = supply.relative_intensity(
        hardware.fabric, inputs.counts(*_NODES), topk=experts.topk, experts=experts.experts
    )
    note = f"boundaries {ends.scale_out_full:g}, {ends.no_reuse:g}, {ends.one_expert:g} FFN nodes"
    note = "; ".join(text for text in (note, _counted(hardware)) if text)
    return Answer.of(*found, note=note)


@evaluator
def node_discrete_efficiency(row: Row) -> Answer:
    """Throughput per node that is left when expert imbalance is met by whole attention nodes.

    By fewer requests where the row describes expert parallelism (``EP``) or says ``discrete: false``.
    """
    inputs = row.inputs
    whole = not (row.stated(r"\bEP\b|continuous") and not row.stated(r"\bAFD\b|discrete"))
    whole = bool(inputs.raw("discrete")) if "discrete" in inputs.values else whole
    balance = inputs.positive("sigma", "balance")
    if balance > 1:
        raise InputError(Problem("inputs.sigma", balance, "exceeds 1", "give mean over maximum load"))
    nodes = inputs.whole("N_A", "attention_nodes"), inputs.whole("N_F", "ffn_nodes")
    loss = imbalance.node_discrete_efficiency if whole else imbalance.continuous_efficiency
    found = loss(*nodes, balance)
    return Answer.of(float(found))
