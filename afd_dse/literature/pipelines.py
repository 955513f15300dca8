"""Closed pipelines of attention, links and experts: step time, micro-batches, speed-up from step shares."""

import numpy as np

from afd_dse.cost import pipeline
from afd_dse.errors import InputError, Problem
from afd_dse.literature.answer import Answer, evaluator
from afd_dse.literature.rows import Row

_TIMES = ("T_a", "T_e", "T_f", "T_c", "T_c_each_way", "T_c_out", "T_c_back")


@evaluator
def min_micro_batches(row: Row) -> Answer:
    """Micro-batches that keep the slowest station busy: attention and experts alike, a link each way."""
    inputs = row.inputs.in_one_unit(*_TIMES)
    link = inputs.at_least_zero("Tc_over_Tf", "T_c_each_way", "T_c")[0]
    experts = inputs.positive("T_f", "T_e", default=1.0)
    attention = inputs.positive("T_a", default=experts)
    stations = [np.array([time]) for time in (attention, link, experts, link)]
    note = "the links are the bottleneck: none hides them" if link > max(attention, experts) else ""
    return Answer.of(float(pipeline.least_micro_batches(stations)[0]), note=note)


@evaluator
def closed_pipeline_total(row: Row) -> Answer:
    """Time of a step of m micro-batches through L layers of attention, link, experts, link, in the row's unit."""
    inputs = row.inputs.in_one_unit(*_TIMES)
    link = inputs.number("T_c_each_way", "T_c", default=0.0)
    times = (
        inputs.number("T_a"),
        inputs.number("T_c_out", default=link),
        inputs.number("T_e", "T_f"),
        inputs.number("T_c_back", default=link),
    )
    if min(times) < 0 or max(times) == 0:
        raise InputError(Problem("inputs.T_a", times, "must not be negative", "give times of stations"))
    stations = [np.array([[time]]) for time in times]
    layers, m = np.array([float(inputs.whole("L", "layers"))]), np.array([float(inputs.whole("m"))])
    return Answer.of(float(pipeline.step_time(stations, layers, m)[0]))


@evaluator
def step_share_speedup(row: Row) -> Answer:
    """Speed-up of attention and experts apart over expert parallelism, from the shares of the latter's step."""
    inputs = row.inputs

    def stated(name: str) -> float:
        found = row.stated(rf"\b{name}\s*=\s*(\d+)")
        default = float(found.group(1)) if found else (2.0 if name == "m" else 1.0)
        return inputs.positive(name, default=default)

    found = []
    micro, ffn_nodes = stated("m"), stated("N")
    for name, value in inputs.values.items():
        if name in ("m", "N"):
            continue
        point = inputs.part(name, value)
        inputs.used.add(name)
        attention, dense, experts = _three(name, point.numbers("shares"))
        apart, together = _two(name, point.numbers("batch"))
        found.append(
            pipeline.disaggregated_speedup(
                attention_share=np.array([attention]),
                dense_share=np.array([dense]),
                expert_share=np.array([experts]),
                batch_ratio=np.array([apart / together]),
                attention_nodes=np.array([point.positive("M")]),
                ffn_nodes=np.array([point.positive("N", default=ffn_nodes)]),
                micro_batches=np.array([point.positive("m", default=micro)]),
            )[0]
        )
    if not found:
        raise InputError(Problem("inputs", dict(inputs.values), "name no point", "give {name: {shares: …}}"))
    return Answer.of(*found)


def _three(name: str, values: list[float]) -> tuple[float, float, float]:
    if len(values) != 3:
        raise InputError(
            Problem(
                f"inputs.{name}.shares", values, "are not three", "give attention, dense and expert shares"
            )
        )
    return values[0], values[1], values[2]


def _two(name: str, values: list[float]) -> tuple[float, float]:
    if len(values) != 2 or min(values) <= 0:
        raise InputError(Problem(f"inputs.{name}.batch", values, "are not two", "give both batches"))
    return values[0], values[1]
