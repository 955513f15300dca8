"""Experts copied between ranks while the pipeline runs: what the copy takes, what it gains, when it is worth it."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.model import MoeFfn
from afd_dse.architecture.weights import expert_weight_bytes
from afd_dse.cost.expert_barrier import PREFETCH_OVERLAPPED
from afd_dse.cost.reconfiguration import exposed_copy, worth_copying
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.station import PartTable, StationTable, StationTime
from afd_dse.network.tiers import LINK_EFFICIENCY
from afd_dse.operators.latency import FloatArray, IntArray, Latency, Provenance

# Links busier than this leave nothing to copy with: the time is bounded, and the copy is never worth it.
_LEAST_FREE = 1e-3


@dataclass(frozen=True, slots=True)
class Copying:
    """Expert groups that copy, columns [n]: where they lie, how they are cut, and how their pipeline runs.

    ``slots`` experts that each rank takes in per layer and micro-batch; ``split``: attention runs on other GPUs.
    """

    pool: IntArray
    ffn_gpus: IntArray
    moe_tp: IntArray
    slots: FloatArray
    policy: IntArray
    micro_batches: FloatArray
    split: bool


@dataclass(frozen=True, slots=True)
class ExpertSide:
    """The stations that depend on how experts are placed, of one micro-batch in a layer."""

    ffn: StationTime
    to_ffn: StationTime
    to_attention: StationTime

    def where(self, mask: npt.NDArray[np.bool_], other: "ExpertSide") -> "ExpertSide":
        """These stations where ``mask`` [n, kinds] is true, the ``other`` ones elsewhere."""
        return ExpertSide(*(getattr(self, name).where(mask, getattr(other, name)) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a layer's micro-batches, seconds [n, kinds].

    ``total`` of the stations that a micro-batch visits, ``work`` of the one that runs the experts, ``link`` that a port
    is busy with it, ``slowest`` the longest of all stations, ``period`` until the next round.
    """

    total: FloatArray
    work: FloatArray
    link: FloatArray
    slowest: FloatArray
    period: FloatArray


def round_of(copying: Copying, attention: FloatArray, side: ExpertSide, exposed: FloatArray) -> Round:
    """The round when copying takes ``exposed`` seconds before the experts; ``attention`` and it [n, kinds]."""
    ffn = side.ffn.seconds + exposed
    there, back = side.to_ffn.seconds, side.to_attention.seconds
    # Both ways of a full-duplex port work at once; inside a group the combine follows the dispatch.
    link = np.maximum(there, back) if copying.split else there + back
    work = ffn if copying.split else attention + ffn
    slowest = np.maximum(np.maximum(work, link), attention)
    total = attention + there + ffn + back
    return Round(total, work, link, slowest, np.maximum(copying.micro_batches[:, None] * slowest, total))


def copy_window(copying: Copying, side: ExpertSide, turn: Round) -> tuple[FloatArray, FloatArray]:
    """Time from a micro-batch's routing to its expert work, and the free share of the links, [n, kinds] each.

    The routing is known when the micro-batch leaves attention. It then travels to the experts and waits while these
    work on the micro-batches before it: for m·s − S a layer where they are the slowest station (s its time, S that of
    the whole round), half of that where attention takes turns with them.
    """
    m = copying.micro_batches[:, None]
    queue = np.where(turn.work >= turn.slowest, np.maximum(m * turn.work - turn.total, 0.0), 0.0)
    window = side.to_ffn.seconds + (queue if copying.split else queue / 2.0)
    return window, np.clip(1.0 - m * turn.link / np.maximum(turn.period, 1e-30), _LEAST_FREE, 1.0)


def copy_seconds(scenario: Scenario, copying: Copying, free: FloatArray) -> FloatArray:
    """Time in which every rank takes in its copies over the ``free`` share of its link, seconds [n, kinds].

    Zero for layers without experts. Scale-up where the group lies in one domain, scale-out otherwise.
    """
    tiers, pool = scenario.tiers, copying.pool
    inside = copying.ffn_gpus <= tiers.domain_gpus[pool]
    rate = np.where(inside, tiers.scale_up_bytes_per_s[pool], tiers.scale_out_bytes_per_s[pool])
    latency = np.where(inside, tiers.scale_up_latency_s[pool], tiers.scale_out_latency_s[pool])
    seconds = np.zeros(free.shape)
    for number, kind in enumerate(scenario.model.kinds):
        if isinstance(kind.ffn, MoeFfn):
            size = copying.slots * expert_weight_bytes(
                kind, scenario.model, scenario.quantization, copying.moe_tp
            )
            seconds[:, number] = size / (rate * LINK_EFFICIENCY * free[:, number]) + latency
    return seconds


def with_copies(
    scenario: Scenario, copying: Copying, attention: FloatArray, copied: ExpertSide, otherwise: ExpertSide
) -> tuple[ExpertSide, FloatArray, npt.NDArray[np.bool_]]:
    """The stations under a policy that copies, the exposed seconds of the copies, and where they are made, [n, kinds].

    ``copied`` are the stations with the copies in place, ``otherwise`` without them. Copies are made in the layers
    whose round they shorten, what of them does not fit the window included (AFORE, arXiv 2610.03203).
    """
    none = np.zeros(attention.shape)
    window, free = copy_window(copying, copied, round_of(copying, attention, copied, none))
    copy = copy_seconds(scenario, copying, free)
    overlapped = (copying.policy == PREFETCH_OVERLAPPED)[:, None]
    exposed = np.where(overlapped, exposed_copy(copy, window), exposed_copy(copy, window, overlapped=False))
    made = worth_copying(
        round_of(copying, attention, otherwise, none).period,
        round_of(copying, attention, copied, exposed).period,
        0.0,
    )
    exposed = np.where(made, exposed, 0.0)
    chosen = copied.where(made, otherwise)
    waiting = link_wait("exposed copy of experts", exposed)
    return replace(chosen, ffn=chosen.ffn.plus(waiting)), exposed, made


def link_wait(name: str, seconds: FloatArray) -> StationTime:
    """A station that does nothing but wait ``seconds`` [n, kinds] for a link, under the operator's ``name``."""
    waiting = StationTable.zeros(*seconds.shape)
    rows, level = np.arange(len(seconds)), np.full(len(seconds), Provenance.SPEED_OF_LIGHT, dtype=np.int8)
    for number in range(seconds.shape[1]):
        part = PartTable.zeros(len(seconds))
        part.add(name, Latency(seconds[:, number], level))
        waiting.add(part, rows, [number])
    return waiting.time
