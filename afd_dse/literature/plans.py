"""The best plans of disaggregated and of colocated decode against each other (MegaScale-Infer, arXiv 2504.02263)."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from afd_dse.architecture.weights import legal_attention_tp, legal_dense_tp, legal_moe_tp
from afd_dse.cost.columns import PHASE_FIELDS, PHASES, Candidates
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.units import decode_units
from afd_dse.errors import InputError, Problem
from afd_dse.literature.answer import Answer, evaluator
from afd_dse.literature.cases import (
    SPLIT,
    WHOLE,
    BestDecode,
    accelerator_of,
    best_decode,
    best_of,
    decode_split,
    framework_of,
    job_of,
)
from afd_dse.literature.rows import Inputs, Row, finite
from afd_dse.operators.latency import IntArray
from afd_dse.search.layouts import with_loads
from afd_dse.spec.cells import parse_partition, partition_index
from afd_dse.spec.job import Job

# Batches of a colocated replica: 32 an octave, so that its best load is met within one per cent.
_BATCHES = 2.0 ** (np.arange(12 * 32 + 1) / 32.0)
_EXPERT_CUTS = (1, 2, 4, 8, 16)
_GPUS = 64
_FROM_ZERO = ("attention_pool", "ffn_pool", "redundant", "expert_policy")


def best_speedup(row: Row) -> Answer:
    """Decode tokens/s per GPU of the best disaggregated over the best colocated plan within a TPOT, a value a model."""
    inputs = row.inputs
    hardware = accelerator_of(row, "hardware", "gpus")
    found, notes = [], []
    for model in _models(inputs):
        job = _limited_job(row, model, hardware)
        split = best_decode(job, SPLIT)
        whole = _best_colocated(job)
        if split is None or whole is None:
            missing = "disaggregated" if split is None else "colocated"
            raise InputError(
                Problem("inputs.models", model, f"no {missing} layout fits", "loosen the limits")
            )
        found.append(split.rate / whole.rate)
        notes.append(f"{model}: {_unit(split)} against {_unit(whole)}")
    return Answer.of(*found, note="; ".join(notes))


def _best_colocated(job: Job, *, per_cost: bool = False) -> BestDecode | None:
    """The baseline of these papers: attention tensor-parallel, experts cut or spread, over all GPUs of a replica.

    A model that needs several nodes spreads both over whole nodes, their all-reduces included, as ``TP+EP`` says;
    nothing overlaps.
    """
    scenario, kind = scenario_from_job(job), parse_partition(WHOLE)
    tp, moe_tp = _tensor_parallel_cuts(scenario)
    if not len(tp):
        return None
    neutral: dict[str, Any] = {f"{phase}_{name}": 1 for phase in PHASES for name in PHASE_FIELDS}
    zero = {f"{phase}_{name}": 0 for phase in PHASES for name in _FROM_ZERO}
    cuts = {"decode_tp": tp, "decode_moe_tp": moe_tp, "decode_ep": tp // moe_tp}
    layouts = Candidates.of(
        **neutral | zero | cuts,
        partition=partition_index(kind),
        policy=0,
        batch_size=1.0,
        chunk_tokens=1.0,
    )
    candidates = with_loads(layouts, _BATCHES)
    return best_of(scenario, candidates, decode_units(scenario, kind, candidates), per_cost=per_cost)


def _tensor_parallel_cuts(scenario: Scenario) -> tuple[IntArray, IntArray]:
    """Legal (tp, moe_tp) of one replica: parts of a node, and whole nodes of the first pool."""
    pool, moe = scenario.pools[0], scenario.moe
    node = pool.accelerator.node_gpus
    sizes = {*(2**i for i in range(node.bit_length())), *range(node, pool.count + 1, node)}
    pairs = [(size, cut) for size in sorted(sizes) for cut in _EXPERT_CUTS if size % cut == 0]
    tp, moe_tp = np.array(pairs, dtype=np.int64).T
    types = scenario.quantization
    legal = legal_attention_tp(scenario.model, tp) & legal_dense_tp(scenario.model, tp, types.gemm)
    if moe is None:
        legal &= moe_tp == tp
    else:
        legal &= legal_moe_tp(scenario.model, moe_tp, types.moe) & (tp // moe_tp <= moe.experts)
    legal &= tp <= pool.count
    return tp[legal], moe_tp[legal]


def _models(inputs: Inputs) -> list[str]:
    return inputs.texts("models", "model", default=["mixtral-8x22b", "dbrx", "scaled-moe"])


def _limited_job(row: Row, model: str, hardware: Any) -> Job:
    """The job of one model under the row's lengths and TPOT, on as many GPUs as ``64 x A100`` says (64)."""
    inputs = row.inputs
    stated = inputs.raw("gpus", default=_GPUS)
    count = re.match(r"\s*(\d+)\s*[x×]", stated) if isinstance(stated, str) else None
    plain = (
        _GPUS if isinstance(stated, str) and finite(stated) is None else inputs.whole("gpus", default=_GPUS)
    )
    gpus = int(count.group(1)) if count else plain
    return job_of(
        model,
        hardware,
        framework=framework_of(row, model),
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
    pairs = _steps_of(inputs)
    for model in _models(inputs):
        job = _limited_job(row, model, hardware)
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


def _steps_of(inputs: Inputs) -> list[tuple[int, int]]:
    """Pairs of counts of micro-batches, from and to; one pair may stand alone."""
    stated = inputs.items("from_to", default=[[1, 2], [2, 3]])
    listed = stated if all(isinstance(pair, list) for pair in stated) else [stated]
    found = []
    for pair in listed:
        counts = Inputs({"from_to": pair}).counts("from_to")
        if len(counts) != 2:
            raise InputError(Problem("inputs.from_to", pair, "is no pair", "give [from, to]"))
        found.append((int(counts[0]), int(counts[1])))
    return found


@evaluator
def mode_speedup_per_cost(row: Row) -> Answer:
    """Tokens/s per dollar of decode disaggregated over two kinds of GPU against colocated decode, of the best model."""
    inputs = row.inputs
    prices = inputs.mapping("price") if inputs.has("price") else {}
    parts = [_priced(prices, inputs.text(role)) for role in ("attention", "experts")]
    colocated = _priced(prices, inputs.text("baseline").split()[0])
    found, notes = [], []
    for model in _models(inputs):
        mixed = best_decode(
            _limited_job(row, model, parts),
            SPLIT,
            allowed=lambda c: (c.integer("decode_attention_pool") == 0) & (c.integer("decode_ffn_pool") == 1),
            per_cost=True,
        )
        whole = _best_colocated(_limited_job(row, model, colocated), per_cost=True)
        if mixed is None or whole is None:
            notes.append(f"{model}: no {'mixed' if mixed is None else 'colocated'} layout fits")
            continue
        found.append(mixed.rate / whole.rate)
        notes.append(f"{model} {found[-1]:.2f}: {_unit(mixed)} against {_unit(whole)}")
    if not found:
        raise InputError(Problem("inputs", None, "no model fits either way", "; ".join(notes)))
    return Answer.of(max(found), note="; ".join(notes))


def _priced(prices: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A part at the row's price, at the catalogue's where the row states none."""
    return {"base": name} | ({"usd_per_gpu_hour": float(prices[name])} if name in prices else {})
