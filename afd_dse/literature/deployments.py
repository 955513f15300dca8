"""Deployments that papers measured, evaluated from the operator tables: throughput and latency."""

import re
from typing import Any

from afd_dse.errors import InputError, Problem
from afd_dse.literature.answer import Answer, evaluator
from afd_dse.literature.cases import (
    UNLIMITED,
    WHOLE,
    accelerator_of,
    at_context,
    cache_type,
    decode_split,
    decode_whole,
    dtypes_of,
    framework_of,
    job_of,
    layers_of,
    node_gpus,
    shares,
)
from afd_dse.literature.plans import best_speedup
from afd_dse.literature.rows import Inputs, Row
from afd_dse.results.api import estimate
from afd_dse.spec.job import Job

_NODES = r"(\d+)\s*A\s*\+?\s*(\d+)\s*F"
_EP = r"\bEP\s*(\d+)\b"
# Cuts of an expert group that a row leaves open; the fastest counts.
_EXPERT_CUTS = (1, 2, 4, 8)
# DeepSeek's prefill unit (arXiv 2412.19437, section 3.4.1) and the tokens a GPU of its published profile.
_PREFILL_EP = 32
_PREFILL_TOKENS = 16384


@evaluator
def deployment_throughput(row: Row) -> Answer:
    """Decode tokens/s per GPU of a deployment: ``layout`` xAyF in nodes, or ``ep`` GPUs that do both (and prefill)."""
    whole = row.inputs.has("ep") or (row.stated(_EP) and not row.inputs.has("layout"))
    return _whole_throughput(row) if whole else _split_throughput(row)


def _split_throughput(row: Row) -> Answer:
    inputs = row.inputs
    described = row.stated(_NODES)
    layout = inputs.text("layout", default=described.group(0) if described else None)
    sizes = re.fullmatch(_NODES, layout)
    if sizes is None:
        raise InputError(Problem("inputs.layout", layout, "is not understood", "write nodes as 2A2F"))
    attention, ffn = int(sizes.group(1)), int(sizes.group(2))
    gpus = inputs.whole("gpus", default=8 * (attention + ffn))
    node = gpus // (attention + ffn)
    eight_bit = row.stated(r"FP8 attention") is not None
    model = inputs.text("model", default="stepfun-ai/step3-fp8")
    job = job_of(
        model,
        accelerator_of(row, "hardware", default="h800"),
        framework=framework_of(row, model),
        gpus=UNLIMITED,
        workload=at_context(inputs.positive("context")),
        quantization={"kv_cache": "fp8" if eight_bit else "bfloat16"} | cache_type(inputs),
    )
    batch = inputs.positive("batch") / (attention * node)
    steps = [
        decode_split(
            job,
            attention=attention * node,
            ffn=ffn * node,
            batch=batch,
            micro_batches=inputs.whole("m"),
            moe_tp=moe_tp,
        )
        for moe_tp in _EXPERT_CUTS
        if ffn * node % moe_tp == 0
    ]
    best = max(steps, key=lambda step: step.tokens_per_s_per_gpu)
    limit = inputs.number("tpot_ms", default=float("1e9"))
    note = f"{best.document['label']}, {1e3 * best.tpot_s:.1f} ms a token ({shares(best)})"
    if best.tpot_s * 1e3 > limit:
        note += f", over the {limit:g} ms asked for"
    return Answer.of(best.tokens_per_s_per_gpu, note=note)


def _whole_throughput(row: Row) -> Answer:
    inputs = row.inputs
    described = row.stated(_EP)
    ep, m = (
        inputs.whole("ep", default=int(described.group(1)) if described else None),
        inputs.whole("m", default=1),
    )
    batch = inputs.positive("batch") / ep if inputs.has("batch") else inputs.positive("batch_per_gpu")
    context = inputs.positive("context")
    workload: dict[str, Any] = at_context(context)
    if inputs.has("distribution"):
        workload["expert_distribution"] = inputs.text("distribution")
    job = job_of(
        inputs.text("model"),
        accelerator_of(row, "hardware"),
        framework=framework_of(row, inputs.text("model")),
        gpus=UNLIMITED,
        workload=workload,
    )
    decode = decode_whole(job, gpus=ep, batch=batch, micro_batches=m)
    prefill = _prefill_rate(job, inputs, m)
    note = f"{1e3 * decode.tpot_s:.1f} ms a token ({shares(decode)})"
    return Answer.of(decode.tokens_per_s_per_gpu, prefill, note=note)


def _prefill_rate(job: Job, inputs: Inputs, micro_batches: int) -> float:
    """Prompt tokens/s per GPU of an expert-parallel prefill unit whose steps are full."""
    gpus = inputs.whole("prefill_ep", default=_PREFILL_EP)
    tokens = inputs.positive("prefill_tokens_per_gpu", default=_PREFILL_TOKENS)
    unit = {"gpus": gpus, "tp": 1, "dp": gpus, "ep": gpus, "micro_batches": micro_batches}
    document = estimate(
        job,
        {
            "mode": WHOLE,
            "batch_size": 1.0,
            "chunk_tokens": tokens,
            "groups": [{"cells": ["PA", "PF"], **unit}, {"cells": ["DA", "DF"], **unit}],
        },
    )
    return tokens / (float(document["breakdown"]["prefill"]["step_ms"]) * 1e-3)


@evaluator
def attention_layer_latency(row: Row) -> Answer:
    """Time of one attention layer, µs, at each context on each device; the batch spread over ``gpus`` by data."""
    inputs = row.inputs
    gpus, batch = inputs.whole("gpus"), inputs.positive("batch")
    devices = inputs.texts("devices", "device", "hardware")
    linear, framework = (
        inputs.text("linear_dtype", default="bfloat16"),
        framework_of(row, inputs.raw("model")),
    )
    found, replaced = [], []
    for context in inputs.numbers("contexts", "context"):
        for device in devices:
            dtypes = {"gemm": linear, "moe": linear, "kv_cache": "bfloat16"} | cache_type(inputs)
            try:
                job = _one_layer_job(inputs.text("model"), device, framework, context, dtypes)
                step = decode_whole(job, gpus=gpus, batch=batch / gpus)
            except InputError:
                # A part that cannot compute in the type asked for uses bfloat16, as its owners must.
                dtypes |= {"gemm": "bfloat16", "moe": "bfloat16"}
                job = _one_layer_job(inputs.text("model"), device, framework, context, dtypes)
                step = decode_whole(job, gpus=gpus, batch=batch / gpus)
                replaced.append(device)
            found.append(1e3 * step.document["breakdown"]["decode"]["attention_ms"] / layers_of(job))
    note = f"{', '.join(dict.fromkeys(replaced))} in bfloat16: no {linear}" if replaced else ""
    return Answer.of(*found, note=note)


def _one_layer_job(model: str, device: str, framework: str, context: float, dtypes: dict[str, str]) -> Job:
    return job_of(
        model, device, framework=framework, gpus=UNLIMITED, workload=at_context(context), quantization=dtypes
    )


@evaluator
def mode_speedup(row: Row) -> Answer:
    """Throughput per GPU of disaggregated over colocated decode: at given points, or of the best within a TPOT."""
    return _speedup_at_points(row) if row.inputs.has("points") else best_speedup(row)


def _speedup_at_points(row: Row) -> Answer:
    inputs = row.inputs
    hardware = accelerator_of(row, "hardware")
    baseline = re.search(r"\bep\s*(\d+)", inputs.text("baseline"), re.IGNORECASE)
    if baseline is None:
        raise InputError(
            Problem("inputs.baseline", inputs.text("baseline"), "is not understood", "write e.g. dp4 ep4")
        )
    m, node = inputs.whole("m"), node_gpus(hardware)
    found, notes = [], []
    for number, value in enumerate(inputs.items("points")):
        point = inputs.part(f"points[{number}]", value)
        apart, together = point.numbers("batch")
        job = job_of(
            point.text("model"),
            hardware,
            framework=framework_of(row, point.text("model")),
            gpus=UNLIMITED,
            workload=at_context(point.positive("context")),
            quantization=dtypes_of(inputs),
        )
        split = decode_split(
            job,
            attention=point.whole("M") * node,
            ffn=point.whole("N", default=1) * node,
            batch=apart,
            micro_batches=m,
        )
        whole = decode_whole(job, gpus=int(baseline.group(1)), batch=together)
        found.append(split.tokens_per_s_per_gpu / whole.tokens_per_s_per_gpu)
        notes.append(
            f"{point.text('model')} {point.positive('context'):,.0f}: {1e3 * split.tpot_s:.1f} ms "
            f"({shares(split)}) against {1e3 * whole.tpot_s:.1f} ms ({shares(whole)})"
        )
    return Answer.of(*found, note="; ".join(notes))
