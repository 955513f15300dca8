"""Where the time of one deployment goes: stations and operators of a decode step and of a prefill step."""

from typing import Any

from afd_dse.architecture.model import Attention, Gqa, LayerKind, LinearAttention, MoeFfn
from afd_dse.cost.columns import Candidates
from afd_dse.cost.evaluate import engines_of
from afd_dse.cost.phase import Stations, Step
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.station import StationTime
from afd_dse.operators.latency import Provenance
from afd_dse.spec.cells import PARTITIONS, Phase

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
        Phase.DECODE: (engines.decode_stations.rows, engines.decode.step),
        Phase.PREFILL: (engines.prefill_stations.rows, engines.prefill.step),
    }
    return {phase.name.lower(): _phase(scenario, stations, step) for phase, (stations, step) in found.items()}


def _phase(scenario: Scenario, stations: Stations, step: Step) -> dict[str, Any]:
    times = float(stations.cut.micro_batches[0])
    link_s = float(step.link_s[0])
    to_ffn_s = _own(scenario, stations.to_ffn, times)
    rows = [
        *_operators(scenario, "attention", stations.attention, times, float(step.attention_s[0])),
        *_operators(scenario, "links", stations.to_ffn, times, to_ffn_s),
        *_operators(scenario, "FFN", stations.ffn, times, float(step.ffn_s[0])),
        *_operators(scenario, "links", stations.to_attention, times, link_s - to_ffn_s),
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


def _own(scenario: Scenario, time: StationTime, micro_batches: float) -> float:
    """Seconds that a station works in a step for its own phase."""
    return float((time.seconds[0] * scenario.layer_counts).sum()) * micro_batches


def _operators(
    scenario: Scenario, station: str, time: StationTime, micro_batches: float, busy_s: float
) -> list[dict[str, Any]]:
    """Operators of one station in the order of execution.

    What the station is busy beyond them (``busy_s`` in all) is the other phase on the same GPUs.
    """
    rows = []
    for operation in time.operations:
        seconds = float(operation.latency.seconds[0])
        if seconds <= 0.0:
            continue
        kind = scenario.model.kinds[operation.kind]
        provenance = Provenance(int(operation.latency.provenance[0])).name.lower()
        total = seconds * kind.count * micro_batches
        rows.append(_row(station, operation.name, kind_words(kind), seconds, total, provenance))
    waiting = busy_s - _own(scenario, time, micro_batches)
    if waiting > _LEAST_SHARE * busy_s:
        layers = scenario.model.layers
        per_layer = waiting / (layers * micro_batches)
        rows.append(
            _row(station, "waiting for the other phase", f"{layers} × any", per_layer, waiting, SHARING)
        )
    return rows


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
