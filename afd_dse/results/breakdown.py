"""Where the time of one deployment goes: stations and operators of a decode step and of a prefill step."""

from typing import Any

import numpy as np

from afd_dse.architecture.model import Attention, Gqa, LayerKind, LinearAttention, MoeFfn
from afd_dse.cost.cells import PARTITIONS, Phase
from afd_dse.cost.columns import Candidates
from afd_dse.cost.evaluate import engines_of
from afd_dse.cost.phase import Stations, Step
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.stations import StationTime
from afd_dse.operators.latency import Provenance

NETWORK = "network model"
"""Provenance of what is computed from bandwidths and latencies of links, not looked up."""
SHARING = "sharing model"
"""Provenance of what one phase costs the other on shared GPUs."""
_LEAST_SHARE = 1e-9  # below it a remainder is rounding, not work


def breakdown(scenario: Scenario, candidates: Candidates) -> dict[str, dict[str, Any]]:
    """Stations and operators by phase of a block of one candidate.

    ``ms_per_step`` is work of one GPU (or link) in one step over all layers and micro-batches, ``share`` its part of
    all such work: with several micro-batches in flight stations overlap, and their sum exceeds the step. Where both
    phases share steps, the prefill step is the one that carries both. Raises ValueError for several candidates.
    """
    if len(candidates) != 1:
        raise ValueError("the breakdown is of one candidate")
    partition = PARTITIONS[int(candidates.integer("partition")[0])]
    engines = engines_of(scenario, partition, candidates)
    found = {
        Phase.DECODE: (engines.decode_stations, engines.decode.step),
        Phase.PREFILL: (engines.prefill_stations, engines.prefill.step),
    }
    return {phase.name.lower(): _phase(scenario, stations, step) for phase, (stations, step) in found.items()}


def _phase(scenario: Scenario, stations: Stations, step: Step) -> dict[str, Any]:
    times = float(stations.cut.micro_batches[0])
    rows = [
        *_operators(scenario, "attention", stations.attention, times, float(step.attention_s[0])),
        *_links(scenario, "to FFN" if stations.split else "dispatch", stations.to_ffn[0], times),
        *_operators(scenario, "FFN", stations.ffn, times, float(step.ffn_s[0])),
        *_links(scenario, "to attention" if stations.split else "combine", stations.to_attention[0], times),
        *_outside(stations, float(step.outside_s[0])),
    ]
    work = sum(row["ms_per_step"] for row in rows)
    for row in rows:
        row["share"] = row["ms_per_step"] / work
    by_station: dict[str, float] = {}
    for row in rows:
        by_station[row["station"]] = by_station.get(row["station"], 0.0) + row["ms_per_step"]
    return {
        "step_ms": 1e3 * float(step.seconds[0]),
        "micro_batches": int(times),
        "stations": [
            {"station": name, "ms_per_step": value, "share": value / work}
            for name, value in by_station.items()
        ],
        "operators": rows,
    }


def _row(
    station: str, name: str, layers: str, per_layer_s: float, per_step_s: float, provenance: str
) -> dict[str, Any]:
    return {
        "station": station,
        "operator": name,
        "layers": layers,
        "ms_per_layer": 1e3 * per_layer_s,
        "ms_per_step": 1e3 * per_step_s,
        "provenance": provenance,
    }


def _operators(
    scenario: Scenario, station: str, time: StationTime, micro_batches: float, busy_s: float
) -> list[dict[str, Any]]:
    """Operators of one station in the order of execution.

    What the station does beyond them is packing; what it is busy beyond that (``busy_s`` in all) is the other phase on
    the same GPUs.
    """
    kinds = scenario.model.kinds
    rows = []
    rest = time.seconds[0].copy()
    for operation in time.operations:
        seconds = float(operation.latency.seconds[0])
        if seconds <= 0.0:
            continue
        kind = kinds[operation.kind]
        provenance = Provenance(int(operation.latency.provenance[0])).name.lower()
        total = seconds * kind.count * micro_batches
        rows.append(_row(station, operation.name, kind_words(kind), seconds, total, provenance))
        rest[operation.kind] -= seconds
    for number, kind in enumerate(kinds):
        if rest[number] > _LEAST_SHARE * time.seconds[0, number]:
            seconds = float(rest[number])
            total = seconds * kind.count * micro_batches
            source = Provenance.SPEED_OF_LIGHT.name.lower()
            rows.append(_row(station, "packing for the transfer", kind_words(kind), seconds, total, source))
    own = float((time.seconds[0] * scenario.layer_counts).sum()) * micro_batches
    if busy_s - own > _LEAST_SHARE * busy_s:
        layers = scenario.model.layers
        waiting = busy_s - own
        per_layer = waiting / (layers * micro_batches)
        rows.append(
            _row(station, "waiting for the other phase", f"{layers} × any", per_layer, waiting, SHARING)
        )
    return rows


def _links(scenario: Scenario, name: str, seconds: np.ndarray, micro_batches: float) -> list[dict[str, Any]]:
    return [
        _row(
            "links", name, kind_words(kind), float(value), float(value) * kind.count * micro_batches, NETWORK
        )
        for kind, value in zip(scenario.model.kinds, seconds, strict=True)
        if value > 0.0
    ]


def _outside(stations: Stations, outside_s: float) -> list[dict[str, Any]]:
    head, host, hops = (float(part[0]) for part in (stations.head_s, stations.overhead_s, stations.hop_s))
    drafting = outside_s - head - host - hops
    parts = (
        ("LM head and sampling", head, "operator tables"),
        ("scheduling and host", host, "framework profile"),
        ("hops between pipeline stages", hops, NETWORK),
        (
            "drafting of next tokens",
            drafting if drafting > _LEAST_SHARE * outside_s else 0.0,
            "operator tables",
        ),
    )
    return [
        _row("outside", name, "once a step", value, value, source)
        for name, value, source in parts
        if value > 0.0
    ]


def kind_words(kind: LayerKind) -> str:
    """A kind of layer in words: ``58 × MLA + MoE 256/8``."""
    if isinstance(kind.ffn, MoeFfn):
        ffn = f"MoE {kind.ffn.experts}/{kind.ffn.topk}"
    else:
        ffn = f"dense {kind.ffn.intermediate}"
    return f"{kind.count} × {attention_words(kind.attention)} + {ffn}"


def attention_words(attention: Attention) -> str:
    """Kind of an attention in the field's words."""
    match attention:
        case Gqa(heads=heads, kv_heads=kv_heads, window=window):
            name = "MHA" if kv_heads == heads else "MQA" if kv_heads == 1 else "GQA"
            return f"{name} window {window}" if window else name
        case LinearAttention():
            return "linear attention"
        case _:
            return "MLA sparse (DSA)" if attention.index_topk else "MLA"
