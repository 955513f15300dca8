"""Deployments that papers measured, evaluated from the operator tables: throughput, speed-ups, ratios."""

import re
from itertools import pairwise
from typing import Any

import numpy as np

from afd_dse.cost.reconfiguration import exposed_copy, imbalanced_step
from afd_dse.errors import InputError, Problem
from afd_dse.literature.answer import Answer, evaluator
from afd_dse.literature.cases import (
    SPLIT,
    WHOLE,
    BestDecode,
    DecodeStep,
    accelerator_of,
    at_context,
    best_decode,
    decode_split,
    decode_whole,
    framework_of,
    job_of,
)
from afd_dse.literature.rows import Inputs, Row
from afd_dse.spec.job import Job

# Cuts of an expert group that a row leaves open; the fastest counts.
_EXPERT_CUTS = (1, 2, 4, 8)
_FP8 = {"gemm": "fp8_block", "moe": "fp8_block", "kv_cache": "bfloat16"}
_POOL = 4096  # GPUs of a pool that must not limit anything
# DeepSeek's prefill unit (arXiv 2412.19437, section 3.4.1) and the tokens a GPU of its published profile.
_PREFILL_EP = 32
_PREFILL_TOKENS = 16384
# NOTE: TensorRT-LLM does not serve Step-3; its decode kernels for 64 query heads on one key head, which the tables
# hold, are twenty times slower than the others'.
_SERVES_STEP3 = "vllm"


@evaluator
def deployment_throughput(row: Row) -> Answer:
    """Decode tokens/s per GPU of a deployment: ``layout`` xAyF in nodes, or ``ep`` GPUs that do both (and prefill)."""
    return _split_throughput(row) if row.inputs.has("layout") else _whole_throughput(row)


def _split_throughput(row: Row) -> Answer:
    inputs = row.inputs
    layout = inputs.text("layout")
    sizes = re.fullmatch(r"(\d+)A(\d+)F", layout)
    if sizes is None:
        raise InputError(Problem("inputs.layout", layout, "is not understood", "write nodes as 2A2F"))
    attention, ffn = int(sizes.group(1)), int(sizes.group(2))
    gpus = inputs.whole("gpus", default=8 * (attention + ffn))
    node = gpus // (attention + ffn)
    eight_bit = row.stated(r"FP8 attention") is not None
    job = job_of(
        inputs.text("model", default="stepfun-ai/step3-fp8"),
        accelerator_of(row, "hardware", default="h800"),
        framework=framework_of(row, _SERVES_STEP3),
        gpus=_POOL,
        workload=at_context(inputs.positive("context")),
        quantization={
            "kv_cache": inputs.text("kv_dtype", default="fp8" if eight_bit else "bfloat16"),
        },
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
    note = f"{best.document['label']}, {1e3 * best.tpot_s:.1f} ms a token ({_shares(best)})"
    if best.tpot_s * 1e3 > limit:
        note += f", over the {limit:g} ms asked for"
    return Answer.of(best.tokens_per_s_per_gpu, note=note)


def _whole_throughput(row: Row) -> Answer:
    inputs = row.inputs
    ep, batch, m = inputs.whole("ep"), inputs.positive("batch_per_gpu"), inputs.whole("m", default=1)
    context = inputs.positive("context")
    workload: dict[str, Any] = at_context(context)
    if inputs.has("distribution"):
        workload["expert_distribution"] = inputs.text("distribution")
    job = job_of(
        inputs.text("model"),
        accelerator_of(row, "hardware"),
        framework=framework_of(row),
        gpus=_POOL,
        workload=workload,
    )
    decode = decode_whole(job, gpus=ep, batch=batch, micro_batches=m)
    prefill = _prefill_rate(job, inputs, m)
    note = f"{1e3 * decode.tpot_s:.1f} ms a token ({_shares(decode)})"
    return Answer.of(decode.tokens_per_s_per_gpu, prefill, note=note)


def _prefill_rate(job: Job, inputs: Inputs, micro_batches: int) -> float:
    """Prompt tokens/s per GPU of an expert-parallel prefill unit whose steps are full."""
    from afd_dse.results.api import estimate

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


def _shares(step: DecodeStep) -> str:
    """Where a step goes and how much of it is measured, in words."""
    parts = step.document["breakdown"]["decode"]
    trust = step.document["provenance"]
    return (
        f"attention {parts['attention_ms']:.1f}, FFN {parts['ffn_ms']:.1f}, links {parts['links_ms']:.1f} ms; "
        f"{100 * (trust['measured'] + trust['interpolated']):.0f} % from the part's own tables"
    )


@evaluator
def attention_layer_latency(row: Row) -> Answer:
    """Time of one attention layer, µs, at each context on each device; the batch spread over ``gpus`` by data."""
    inputs = row.inputs
    gpus, batch = inputs.whole("gpus"), inputs.positive("batch")
    devices = inputs.raw("devices")
    if not isinstance(devices, list) or not all(isinstance(name, str) for name in devices):
        raise InputError(Problem("inputs.devices", devices, "is not a list of names", "list accelerators"))
    linear, framework = inputs.text("linear_dtype", default="bfloat16"), framework_of(row, _SERVES_STEP3)
    found, replaced = [], []
    for context in inputs.numbers("contexts"):
        for device in devices:
            dtypes = {"gemm": linear, "moe": linear, "kv_cache": inputs.text("kv_dtype", default="bfloat16")}
            try:
                job = _one_layer_job(inputs.text("model"), device, framework, context, dtypes)
                step = decode_whole(job, gpus=gpus, batch=batch / gpus)
            except InputError:
                # A part that cannot compute in the type asked for uses bfloat16, as its owners must.
                dtypes |= {"gemm": "bfloat16", "moe": "bfloat16"}
                job = _one_layer_job(inputs.text("model"), device, framework, context, dtypes)
                step = decode_whole(job, gpus=gpus, batch=batch / gpus)
                replaced.append(device)
            found.append(1e3 * step.document["breakdown"]["decode"]["attention_ms"] / _layers(job))
    note = f"{', '.join(dict.fromkeys(replaced))} in bfloat16: no {linear}" if replaced else ""
    return Answer.of(*found, note=note)


def _one_layer_job(model: str, device: str, framework: str, context: float, dtypes: dict[str, str]) -> Job:
    return job_of(
        model, device, framework=framework, gpus=_POOL, workload=at_context(context), quantization=dtypes
    )


def _layers(job: Job) -> int:
    from afd_dse.architecture.catalogue import load_model

    return load_model(job.model).layers


@evaluator
def mode_speedup(row: Row) -> Answer:
    """Throughput per GPU of disaggregated over colocated decode: at given points, or of the best within a TPOT."""
    return _speedup_at_points(row) if row.inputs.has("points") else _best_speedup(row)


def _speedup_at_points(row: Row) -> Answer:
    inputs = row.inputs
    hardware, framework = accelerator_of(row, "hardware"), framework_of(row)
    baseline = re.search(r"dp(\d+)\s+ep(\d+)", inputs.text("baseline"))
    if baseline is None:
        raise InputError(
            Problem("inputs.baseline", inputs.text("baseline"), "is not understood", "write e.g. dp4 ep4")
        )
    m, node = inputs.whole("m"), _node_gpus(hardware)
    found, notes = [], []
    for number, value in enumerate(inputs.raw("points")):
        point = inputs.part(f"points[{number}]", value)
        apart, together = point.numbers("batch")
        job = job_of(
            point.text("model"),
            hardware,
            framework=framework,
            gpus=_POOL,
            workload=at_context(point.positive("context")),
            quantization=_dtypes(inputs),
        )
        split = decode_split(
            job,
            attention=point.whole("M") * node,
            ffn=point.whole("N", default=1) * node,
            batch=apart,
            micro_batches=m,
        )
        whole = decode_whole(job, gpus=int(baseline.group(2)), batch=together)
        found.append(split.tokens_per_s_per_gpu / whole.tokens_per_s_per_gpu)
        notes.append(
            f"{point.text('model')} {point.positive('context'):,.0f}: {1e3 * split.tpot_s:.1f} ms "
            f"({_shares(split)}) against {1e3 * whole.tpot_s:.1f} ms ({_shares(whole)})"
        )
    return Answer.of(*found, note="; ".join(notes))


def _dtypes(inputs: Inputs) -> dict[str, str]:
    """Eight-bit weights with a bfloat16 cache where the row says ``fp8``; else the checkpoint's own."""
    return _FP8 if inputs.text("dtype", default="fp8") == "fp8" else {}


def _node_gpus(hardware: str | dict[str, Any]) -> int:
    from afd_dse.spec.catalogue import load_accelerator

    return load_accelerator(hardware if isinstance(hardware, str) else str(hardware["base"])).node_gpus


def _best_speedup(row: Row) -> Answer:
    inputs = row.inputs
    hardware = accelerator_of(row, "hardware", "gpus")
    found, notes = [], []
    for model in _models(inputs):
        job = _limited_job(row, model, hardware, 64)
        split = best_decode(job, SPLIT)
        whole = best_decode(job, WHOLE, allowed=_without_attention_data_parallelism, pp=[1, 2, 4])
        if split is None or whole is None:
            missing = "disaggregated" if split is None else "colocated"
            raise InputError(
                Problem("inputs.models", model, f"no {missing} layout fits", "loosen the limits")
            )
        found.append(split.rate / whole.rate)
        notes.append(f"{model}: {_unit(split)} against {_unit(whole)}")
    return Answer.of(*found, note="; ".join(notes))


def _without_attention_data_parallelism(candidates: Any) -> Any:
    """The baseline's layouts: tensor-parallel attention, experts cut or spread over the same GPUs, pipelined nodes."""
    return candidates.integer("decode_dp") == 1


def _models(inputs: Inputs) -> list[str]:
    names = inputs.raw("models", default=["mixtral-8x22b", "dbrx", "scaled-moe"])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(Problem("inputs.models", names, "is not a list of names", "list the models"))
    return names


def _limited_job(row: Row, model: str, hardware: Any, gpus: int) -> Job:
    inputs = row.inputs
    return job_of(
        model,
        hardware,
        framework=framework_of(row),
        gpus=gpus,
        workload={
            "input_tokens": inputs.positive("isl", default=571.0),
            "output_tokens": inputs.positive("osl", default=159.0),
        },
        slo={"tpot_ms": inputs.positive("tpot_ms", default=150.0)},
    )


def _unit(best: BestDecode) -> str:
    split = f"{best.attention_gpus}A{best.ffn_gpus}F"
    tp, m = best.cut("tp"), best.cut("micro_batches")
    stages = f" PP{best.cut('pp')}" if best.cut("pp") > 1 else ""
    return (
        f"{split} TP{tp}{stages} m={m} batch {best.batch:.0f}: {best.rate:.0f} at {1e3 * best.tpot_s:.0f} ms"
    )


@evaluator
def micro_batch_gain(row: Row) -> Answer:
    """Decode throughput gained by more micro-batches of the same size, on the best plan of each model.

    One value for a step where the models agree to the published digits is their mean; the last step one a model.
    """
    inputs = row.inputs
    hardware = accelerator_of(row, "hardware", default="a100_sxm")
    gains: list[list[float]] = []
    notes = []
    pairs = [(int(a), int(b)) for a, b in inputs.raw("from_to", default=[[1, 2], [2, 3]])]
    for model in _models(inputs):
        job = _limited_job(row, model, hardware, 64)
        best = best_decode(job, SPLIT)
        if best is None:
            raise InputError(Problem("inputs.models", model, "no disaggregated layout fits", "more memory"))
        size = best.batch / best.cut("micro_batches")

        def rate(m: int, job: Job = job, best: BestDecode = best, size: float = size) -> float:
            step = decode_split(
                job,
                attention=best.attention_gpus,
                ffn=best.ffn_gpus,
                batch=size * m,
                micro_batches=m,
                tp=best.cut("tp"),
                moe_tp=best.cut("moe_tp"),
            )
            return step.tokens_per_s_per_gpu

        gains.append([rate(b) / rate(a) for a, b in pairs])
        notes.append(f"{model}: {_unit(best)}; gains {', '.join(f'{gain:.2f}' for gain in gains[-1])}")
    table = np.array(gains)
    first = [float(table[:, step].mean()) for step in range(len(pairs) - 1)]
    return Answer.of(*first, *(float(gain) for gain in table[:, -1]), note="; ".join(notes))


@evaluator
def mode_speedup_per_cost(row: Row) -> Answer:
    """Tokens/s per dollar of decode disaggregated over two kinds of GPU against colocated decode, of the best model."""
    inputs = row.inputs
    prices = inputs.mapping("price")
    parts = [_priced(prices, inputs.text(role)) for role in ("attention", "experts")]
    colocated = _priced(prices, inputs.text("baseline").split()[0])
    found, notes = [], []
    for model in _models(inputs):
        mixed = best_decode(
            _limited_job(row, model, parts, 64),
            SPLIT,
            allowed=lambda c: (c.integer("decode_attention_pool") == 0) & (c.integer("decode_ffn_pool") == 1),
            per_cost=True,
        )
        whole = best_decode(
            _limited_job(row, model, colocated, 64),
            WHOLE,
            allowed=_without_attention_data_parallelism,
            per_cost=True,
            pp=[1, 2, 4],
        )
        if mixed is None or whole is None:
            notes.append(f"{model}: no {'mixed' if mixed is None else 'colocated'} layout fits")
            continue
        found.append(mixed.rate / whole.rate)
        notes.append(f"{model} {found[-1]:.2f}: {_unit(mixed)} against {_unit(whole)}")
    if not found:
        raise InputError(Problem("inputs", None, "no model fits either way", "; ".join(notes)))
    return Answer.of(max(found), note="; ".join(notes))


def _priced(prices: Any, name: str) -> dict[str, Any]:
    return {"base": name, "usd_per_gpu_hour": float(prices[name])}


@evaluator
def best_ratio(row: Row) -> Answer:
    """Attention nodes per FFN node with the most tokens/s per GPU, every attention GPU's memory full of requests."""
    inputs = row.inputs
    hardware = accelerator_of(row, "hardware")
    m, node = inputs.whole("m", default=2), _node_gpus(hardware)
    cases = inputs.raw("cases", default=_cases_in(row))
    found, notes = [], []
    for model, context in cases:
        job = job_of(
            model,
            hardware,
            framework=framework_of(row),
            gpus=_POOL,
            workload=at_context(float(context)),
            quantization=_dtypes(inputs),
        )
        steps = {
            int(ratio): _fullest(job, attention=int(ratio) * node, ffn=node, micro_batches=m)
            for ratio in inputs.numbers("candidates")
        }
        best = max(steps, key=lambda ratio: steps[ratio].tokens_per_s_per_gpu)
        found.append(float(best))
        rates = ", ".join(f"{ratio}: {step.tokens_per_s_per_gpu:.0f}" for ratio, step in steps.items())
        notes.append(f"{model} {float(context):,.0f}: {rates}")
    return Answer.of(*found, note="tokens/s per GPU by ratio; " + "; ".join(notes))


def _cases_in(row: Row) -> list[tuple[str, float]]:
    """Models and contexts from a description such as ``(Qwen3-235B 8K, 16K; MiniMax-M2.5 8K, 16K)``."""
    found = row.stated(r"\(([^)]*)\)")
    cases: list[tuple[str, float]] = []
    for part in found.group(1).split(";") if found else []:
        words = part.replace(",", " ").split()
        cases += [
            (words[0], 1024.0 * float(word[:-1])) for word in words[1:] if re.fullmatch(r"\d+[kK]", word)
        ]
    if not cases:
        raise InputError(Problem("inputs.cases", None, "is missing", "list [model, context] pairs"))
    return cases


def _fullest(job: Job, *, attention: int, ffn: int, micro_batches: int) -> DecodeStep:
    """The decode unit with the most whole sequences that fit an attention GPU; bisection, memory grows with them."""

    def step(batch: int) -> DecodeStep:
        return decode_split(
            job, attention=attention, ffn=ffn, batch=float(batch), micro_batches=micro_batches
        )

    low, high = 1, 4096
    if not step(low).fits:
        raise InputError(
            Problem("inputs.context", None, "not one sequence fits a GPU", "shorten the context")
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if step(middle).fits else (low, middle)
    return step(low)


@evaluator
def rebalancing_gain(row: Row) -> Answer:
    """Throughput gained by each step of a chain of lower max/mean expert loads, per cent, and in total.

    The stations of decode at the batch that memory allows; the same stations with the experts' time scaled. The last
    step (overlap) hides the copy that ``prefetch`` pays for in every layer.
    """
    inputs = row.inputs
    chain = inputs.mapping("max_over_mean")
    sizes = re.search(r"(\d+)A\s*(\d+)F", inputs.text("layout"))
    if sizes is None:
        raise InputError(
            Problem("inputs.layout", inputs.text("layout"), "is not understood", "write 4P 4A 8F")
        )
    m = inputs.whole("m", default=3)
    hardware = accelerator_of(row, "hardware")
    job = job_of(
        inputs.text("model"),
        hardware,
        framework=framework_of(row),
        gpus=_POOL,
        workload={
            "input_tokens": inputs.positive("isl", default=1024.0),
            "output_tokens": inputs.positive("osl", default=1024.0),
        },
    )
    unit = _fullest(job, attention=int(sizes.group(1)), ffn=int(sizes.group(2)), micro_batches=m)
    parts, layers = unit.document["breakdown"]["decode"], float(_layers(job))
    attention, links, experts = (
        np.array([[parts[name] / layers / m]]) for name in ("attention_ms", "links_ms", "ffn_ms")
    )
    copy = _copy_ms(job, inputs, hardware)

    def step(factor: float, exposed: float) -> float:
        found = imbalanced_step(
            [attention, links / 2.0],
            experts,
            [links / 2.0],
            max_over_mean=factor,
            exposed=exposed,
            layers=np.array([layers]),
            micro_batches=np.array([float(m)]),
        )
        return float(found[0] + parts["outside_ms"])

    times = [step(float(factor), 0.0) for factor in chain.values()]
    # Prefetch without overlap shows the copy in every layer, and does nothing where that does not pay.
    window = float(experts[0, 0]) * (m - 1)
    shown = exposed_copy(copy, window, overlapped=False), exposed_copy(copy, window)
    last = float(list(chain.values())[-1])
    times[-1:] = [min(step(last, float(exposed)), times[-2]) for exposed in shown]
    gains = [100.0 * (before / after - 1.0) for before, after in pairwise(times)]
    note = (
        f"{1e3 * unit.tpot_s:.1f} ms a step at balance ({_shares(unit)}), {m} micro-batches; copy of an expert "
        f"{copy:.2f} ms, window {window:.2f} ms"
    )
    return Answer.of(*gains, 100.0 * (times[0] / times[-1] - 1.0), note=note)


def _copy_ms(job: Job, inputs: Inputs, hardware: Any) -> float:
    """Time to copy one expert of one layer over scale-up at line rate, or as the row states it."""
    if inputs.has("copy_ms"):
        return inputs.positive("copy_ms")
    from afd_dse.cost.from_job import scenario_from_job
    from afd_dse.network.tiers import LINK_EFFICIENCY

    scenario = scenario_from_job(job)
    moe = scenario.moe
    if moe is None:
        raise InputError(Problem("inputs.model", job.model, "has no experts", "name a mixture of experts"))
    weights = 3.0 * moe.intermediate * scenario.model.hidden
    from afd_dse.architecture.weights import WEIGHT_BYTES

    byte = weights * WEIGHT_BYTES[scenario.quantization.moe]
    return 1e3 * byte / (float(scenario.tiers.scale_up_bytes_per_s[0]) * LINK_EFFICIENCY)
