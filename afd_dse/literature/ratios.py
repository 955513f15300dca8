"""The ratio of attention to expert GPUs (FastAFD, 2026), and what balanced experts gain (AFORE, arXiv 2610.03203)."""

import re
from itertools import pairwise
from typing import Any

import numpy as np

from afd_dse.architecture.weights import WEIGHT_BYTES
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.reconfiguration import exposed_copy, imbalanced_step
from afd_dse.errors import InputError, Problem
from afd_dse.literature.answer import Answer, evaluator
from afd_dse.literature.cases import (
    UNLIMITED,
    DecodeStep,
    accelerator_of,
    at_context,
    decode_split,
    dtypes_of,
    framework_of,
    job_of,
    layers_of,
    node_gpus,
    shares,
)
from afd_dse.literature.rows import Inputs, Row
from afd_dse.network.tiers import LINK_EFFICIENCY
from afd_dse.spec.job import Job

_PROBE = 33  # sequences whose memory shows what one takes


@evaluator
def best_ratio(row: Row) -> Answer:
    """Attention nodes per FFN node with the most tokens/s per GPU, every attention GPU's memory full of requests."""
    inputs = row.inputs
    hardware = accelerator_of(row, "hardware")
    m, node = inputs.whole("m", default=2), node_gpus(hardware)
    cases = _cases(row)
    found, notes = [], []
    for model, context in cases:
        job = job_of(
            model,
            hardware,
            framework=framework_of(row, model),
            gpus=UNLIMITED,
            workload=at_context(float(context)),
            quantization=dtypes_of(inputs),
        )
        steps = {
            int(ratio): _fullest(job, attention=int(ratio) * node, ffn=node, micro_batches=m)
            for ratio in inputs.counts("candidates")
        }
        best = max(steps, key=lambda ratio: steps[ratio].tokens_per_s_per_gpu)
        found.append(float(best))
        rates = ", ".join(f"{ratio}: {step.tokens_per_s_per_gpu:.0f}" for ratio, step in steps.items())
        notes.append(f"{model} {float(context):,.0f}: {rates}")
    return Answer.of(*found, note="tokens/s per GPU by ratio; " + "; ".join(notes))


def _cases(row: Row) -> list[Any]:
    """Pairs of model and context: ``cases``, every model at every context, or those of the description.

    Which reads ``(Qwen3-235B 8K, 16K; MiniMax-M2.5 8K, 16K)``.
    """
    inputs = row.inputs
    if inputs.has("cases"):
        return inputs.items("cases")
    if inputs.has("models") or inputs.has("model"):
        contexts = inputs.numbers("contexts", "context")
        return [(model, context) for model in inputs.texts("models", "model") for context in contexts]
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
    """The decode unit with the most whole sequences that fit an attention GPU: memory grows in proportion to them."""

    def step(batch: int) -> DecodeStep:
        return decode_split(
            job, attention=attention, ffn=ffn, batch=float(batch), micro_batches=micro_batches
        )

    one = step(1)
    if not one.fits:
        raise InputError(
            Problem("inputs.context", None, "not one sequence fits a GPU", "shorten the context")
        )
    each = step(_PROBE).held_bytes - one.held_bytes
    batch = 1 + int((_PROBE - 1) * (one.free_bytes / each))
    found = step(batch)
    # Activations don't grow in exact proportion: the last few sequences are tried.
    while not found.fits:
        batch -= 1
        found = step(batch)
    return found


@evaluator
def rebalancing_gain(row: Row) -> Answer:
    """Throughput gained by each step of a chain of lower max/mean expert loads, per cent, and in total.

    The stations of decode at the batch that memory allows; the same stations with the experts' time scaled. The last
    step (overlap) hides the copy that ``prefetch`` pays for in every layer.
    """
    inputs = row.inputs
    chain = inputs.mapping("max_over_mean")
    sizes = re.search(r"(\d+)\s*A\s*\+?\s*(\d+)\s*F", inputs.text("layout"))
    if sizes is None:
        raise InputError(
            Problem("inputs.layout", inputs.text("layout"), "is not understood", "write 4P 4A 8F")
        )
    m = inputs.whole("m", default=3)
    hardware = accelerator_of(row, "hardware")
    job = job_of(
        inputs.text("model"),
        hardware,
        framework=framework_of(row, inputs.text("model")),
        gpus=UNLIMITED,
        workload={
            "input_tokens": inputs.positive("isl", default=1024.0),
            "output_tokens": inputs.positive("osl", default=1024.0),
        },
    )
    unit = _fullest(job, attention=int(sizes.group(1)), ffn=int(sizes.group(2)), micro_batches=m)
    parts, layers = unit.document["breakdown"]["decode"], float(layers_of(job))
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
        f"{1e3 * unit.tpot_s:.1f} ms a step at balance ({shares(unit)}), {m} micro-batches; copy of an expert "
        f"{copy:.2f} ms, window {window:.2f} ms"
    )
    return Answer.of(*gains, 100.0 * (times[0] / times[-1] - 1.0), note=note)


def _copy_ms(job: Job, inputs: Inputs, hardware: Any) -> float:
    """Time to copy one expert of one layer over scale-up at line rate, or as the row states it."""
    if inputs.has("copy_ms"):
        return inputs.positive("copy_ms")
    scenario = scenario_from_job(job)
    moe = scenario.moe
    if moe is None:
        raise InputError(Problem("inputs.model", job.model, "has no experts", "name a mixture of experts"))
    weights = 3.0 * moe.intermediate * scenario.model.hidden
    byte = weights * WEIGHT_BYTES[scenario.quantization.moe]
    return 1e3 * byte / (float(scenario.tiers.scale_up_bytes_per_s[0]) * LINK_EFFICIENCY)
