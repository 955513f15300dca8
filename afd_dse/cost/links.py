"""What moves between attention and FFN in a layer: expert dispatch and combine, or the transfer between groups."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from afd_dse.architecture.model import LayerKind, MoeFfn
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.station import Lookup, Part, StationTime, shapes_of
from afd_dse.cost.stations import ACTIVATION_BYTES
from afd_dse.network.traffic import Routing, attention_ffn_seconds, busiest_port, exchange_seconds
from afd_dse.operators.latency import Latency, Provenance
from afd_dse.rows import Column

# Dispatch sends 8-bit activations with one float32 scale per 128 elements, combine returns bfloat16 (DeepEP).
DISPATCH_BYTES_8BIT = 1.0 + 4.0 / 128.0
COMBINE_BYTES = 2.0
LOW_PRECISION_EXPERTS = ("fp8", "fp8_block", "nvfp4", "w4a8_mxfp4_mxfp8")
WAYS = ("dispatch", "combine")


@dataclass(frozen=True, slots=True)
class ExchangeShape:
    """Columns [n] of one exchange inside a group: distinct ``tokens_per_gpu`` of every GPU of ``ep``·``moe_tp``.

    ``low_latency`` 1 for decode, whose steps use the low-latency kernels; ``moving`` 0 where tokens need not move;
    ``imbalance`` load of the busiest rank over the mean one's as far as popularity makes it.
    """

    pool: Column
    ep: Column
    moe_tp: Column
    tokens_per_gpu: Column
    low_latency: Column
    moving: Column
    imbalance: Column


@dataclass(frozen=True, slots=True)
class TransferShape:
    """Columns [n] of one transfer between groups: ``tokens`` of a micro-batch of the whole unit.

    ``imbalance`` load of the busiest expert rank over the mean one's as far as popularity makes it.
    """

    pool: Column
    ffn_pool: Column
    attention_gpus: Column
    ep: Column
    moe_tp: Column
    tokens: Column
    low_latency: Column
    imbalance: Column


def routing_of(kind: LayerKind) -> Routing:
    """How the tokens of a layer spread; a dense layer sends each token to one place."""
    return Routing(kind.ffn.experts, kind.ffn.topk) if isinstance(kind.ffn, MoeFfn) else Routing(1, 1)


def element_bytes(scenario: Scenario, way: str) -> float:
    """Bytes that an activation element takes on the wire."""
    if way == "combine":
        return COMBINE_BYTES
    return DISPATCH_BYTES_8BIT if scenario.quantization.moe in LOW_PRECISION_EXPERTS else ACTIVATION_BYTES


def exchange(scenario: Scenario, shape: ExchangeShape) -> tuple[StationTime, StationTime]:
    """Dispatch and combine inside a group, seconds [n, kinds] each; measured where a table reaches, else modelled."""
    shapes = shapes_of(scenario, shape)
    dispatch, combine = (shapes.station([_over_links(_exchange, way)], way) for way in WAYS)
    return dispatch, combine


def transfer(scenario: Scenario, shape: TransferShape) -> tuple[StationTime, StationTime]:
    """Attention → FFN and FFN → attention between groups, seconds [n, kinds] each."""
    shapes = shapes_of(scenario, shape)
    there, back = (shapes.station([_over_links(_transfer, way)]) for way in WAYS)
    return there, back


def pack(scenario: Scenario, shape: TransferShape) -> StationTime:
    """Attention GPUs' kernels for the transfer, [n, kinds]: quantise and scatter the copies, sum what comes back."""
    return shapes_of(scenario, shape).station([Part(_packing, lambda kind: kind.ffn)])


def _over_links(add: Callable[[str, Lookup], None], way: str) -> Part:
    return Part(partial(add, way), lambda kind: kind.ffn)


def _exchange(way: str, look: Lookup) -> None:
    c, scenario, kind = look.columns, look.scenario, look.kind
    if not isinstance(kind.ffn, MoeFfn):
        return
    moving = c["moving"] > 0
    if not moving.any():
        return
    part = {name: column[moving] for name, column in c.items()}
    width = element_bytes(scenario, way)
    modelled = exchange_seconds(
        scenario.tiers,
        pool=part["pool"].astype(np.int64),
        ranks=part["ep"].astype(np.int64),
        moe_tp=part["moe_tp"].astype(np.int64),
        tokens_per_gpu=part["tokens_per_gpu"],
        bytes_per_token=float(scenario.model.hidden) * width,
        routing=routing_of(kind),
        low_latency=part["low_latency"] > 0,
        imbalance=part["imbalance"],
    )
    seconds, provenance = modelled, np.full(len(modelled), Provenance.SPEED_OF_LIGHT, dtype=np.int8)
    for low_latency in (False, True):
        at = (part["low_latency"] > 0) == low_latency
        if not at.any():
            continue
        database = look.database
        look_up = database.expert_dispatch if way == "dispatch" else database.expert_combine
        measured, covered = look_up(
            tokens_per_rank=(
                part["tokens_per_gpu"] * busiest_port(routing_of(kind), part["ep"], part["imbalance"])
            )[at],
            hidden=float(scenario.model.hidden),
            topk=float(kind.ffn.topk),
            experts=float(kind.ffn.experts),
            ep=part["ep"][at],
            dtype_bytes=width,
            low_latency=low_latency,
        )
        # The tables hold whole experts; cut ones (moe_tp > 1) are modelled.
        use = covered & (part["moe_tp"][at] == 1)
        seconds[at] = np.where(use, measured.seconds, seconds[at])
        provenance[at] = np.where(use, measured.provenance, provenance[at])
    look.add(f"expert {way}", Latency(seconds, provenance), moving)


def _transfer(way: str, look: Lookup) -> None:
    c, scenario, kind = look.columns, look.scenario, look.kind
    seconds = attention_ffn_seconds(
        scenario.tiers,
        attention_pool=c["pool"].astype(np.int64),
        ffn_pool=c["ffn_pool"].astype(np.int64),
        attention_gpus=c["attention_gpus"].astype(np.int64),
        ranks=c["ep"].astype(np.int64),
        moe_tp=c["moe_tp"].astype(np.int64),
        tokens=c["tokens"],
        bytes_per_token=float(scenario.model.hidden) * element_bytes(scenario, way),
        routing=routing_of(kind),
        low_latency=c["low_latency"] > 0,
        imbalance=c["imbalance"] if isinstance(kind.ffn, MoeFfn) else 1.0,
    )
    name = "attention to FFN" if way == "dispatch" else "FFN to attention"
    provenance = np.full(len(seconds), Provenance.SPEED_OF_LIGHT, dtype=np.int8)
    look.add(name, Latency(seconds, provenance))


def _packing(look: Lookup) -> None:
    c, database, scenario, kind = look.columns, look.database, look.scenario, look.kind
    hidden = float(scenario.model.hidden)
    copies = routing_of(kind).copies(c["ep"]) * c["moe_tp"]
    sent = (
        c["tokens"]
        / c["attention_gpus"]
        * hidden
        * (ACTIVATION_BYTES + copies * element_bytes(scenario, "dispatch"))
    )
    back = c["tokens"] / c["attention_gpus"] * hidden * (ACTIVATION_BYTES + copies * COMBINE_BYTES)
    look.add("pack for transfer", database.elementwise(bytes_moved=sent))
    look.add("sum returned copies", database.elementwise(bytes_moved=back))
