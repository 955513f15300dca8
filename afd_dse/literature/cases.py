"""From a published setting to a job, to one decode unit, or to the best of many: what the evaluator-run rows share."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.catalogue import load_model, served_by
from afd_dse.cost.columns import Candidates
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.units import DecodeUnits
from afd_dse.errors import InputError, Problem
from afd_dse.literature.rows import Inputs, Row
from afd_dse.operators.latency import FloatArray
from afd_dse.results.api import estimate
from afd_dse.search.sides import tabulate_decode
from afd_dse.search.space import Grid, load_space
from afd_dse.spec.catalogue import load_accelerator
from afd_dse.spec.cells import Phase, parse_partition
from afd_dse.spec.job import Job
from afd_dse.spec.load import load_job

# What a job that names no framework gets.
FRAMEWORK: str = Job.model_fields["framework"].default
_NAMED = {
    "tensorrt-llm": "trtllm",
    "trt-llm": "trtllm",
    "trtllm": "trtllm",
    "sglang": "sglang",
    "vllm": "vllm",
}

_HARDWARE = ("hardware", "accelerator", "device")
_TYPES = {"bf16": "bfloat16", "fp8_e4m3": "fp8"}

_GIB = 2.0**30
WHOLE, SPLIT = "PA PF | DA DF", "PA PF | DA | DF"

# GPUs of a pool that must not limit anything.
UNLIMITED = 4096
_FP8 = {"gemm": "fp8_block", "moe": "fp8_block", "kv_cache": "bfloat16"}

# Group sizes of a unit for rows that search one: whole nodes and their parts.
_SIZES = [1, 2, 4, 8, 16, 24, 32, 48, 64]


def framework_of(row: Row, model: object) -> str:
    """The framework whose kernels answer: the row's, the one that its description names, else a job's default.

    A ``model`` that the default does not serve gets the usual one of those that do.
    """
    if row.inputs.has("framework"):
        return row.inputs.text("framework")
    named = row.stated("|".join(re.escape(name) for name in _NAMED))
    if named:
        return _NAMED[named.group(0).lower()]
    serving = served_by(model)
    return FRAMEWORK if not serving or FRAMEWORK in serving else serving[0]


def accelerator_of(row: Row, *names: str, default: str | None = None) -> str | dict[str, Any]:
    """The accelerator: an input of ``names``, else ``hardware``, ``accelerator`` or ``device``, or the description.

    Links and memory that the row states replace the catalogue's. ``nvlink_gb_s`` is counted both ways, as NVLink is
    sold; ``nic`` is the NICs of a node of eight.
    """
    inputs = row.inputs
    # A count of GPUs may name them (``64 x A100``) or not.
    counts = [name for name in names if name == "gpus" and not isinstance(inputs.values.get(name), str)]
    spelled = dict.fromkeys((*names, *_HARDWARE))
    stated = next((name for name in spelled if inputs.has(name) and name not in counts), None)
    text = row.quantity if stated is None else inputs.text(stated)
    name = _accelerator_in(text) or (default if stated is None else None)
    if name is None:
        remedy = "name one of the catalogue"
        raise InputError(Problem(f"inputs.{stated or names[0]}", text, "names no accelerator", remedy))
    links: dict[str, Any] = {}
    if inputs.has("nvlink_gb_s"):
        links["scale_up_gb_s"] = inputs.positive("nvlink_gb_s") / 2.0
    if inputs.has("nic"):
        links["scale_out_gb_s"] = inputs.nics("nic") / 8e9
    if inputs.has("hbm_gib"):
        links["hbm_gib"] = inputs.positive("hbm_gib")
    return {"base": name, **links} if links else name


def _accelerator_in(text: str) -> str | None:
    """The first word of ``text`` that the catalogue knows."""
    for word in re.findall(r"[\w-]+", text):
        try:
            return load_accelerator(word).name
        except InputError:
            continue
    return None


def job_of(
    model: str,
    accelerators: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]],
    *,
    framework: str,
    gpus: int,
    workload: Mapping[str, Any],
    slo: Mapping[str, Any] | None = None,
    quantization: Mapping[str, str] | None = None,
    search: Mapping[str, Any] | None = None,
) -> Job:
    """A job as a user would write it; ``gpus`` of each accelerator, a pool each."""
    listed = [accelerators] if isinstance(accelerators, str | Mapping) else accelerators
    return load_job(
        {
            "model": model,
            "framework": framework,
            "cluster": {
                "pools": [
                    {"name": f"pool{number}", "accelerator": part, "count": gpus}
                    for number, part in enumerate(listed)
                ]
            },
            "workload": dict(workload),
            "slo": dict(slo or {}),
            "quantization": dict(quantization or {}),
            "search": dict(search or {}),
        }
    )


def at_context(context: float) -> dict[str, Any]:
    """A workload whose decode steps all see ``context`` tokens: single-token answers."""
    return {"input_tokens": context, "output_tokens": 1}


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode unit: seconds a token and user, tokens/s per decode GPU, and the deployment's document."""

    tpot_s: float
    tokens_per_s_per_gpu: float
    document: Mapping[str, Any]

    @property
    def fits(self) -> bool:
        """Whether the decode groups' memory suffices."""
        groups = [g for g in self.document["groups"] if g["cells"][0].startswith("D")]
        return all(g["memory_gib"]["total"] <= g["memory_gib"]["budget"] for g in groups)

    @property
    def held_bytes(self) -> float:
        """Memory of a GPU of decode attention."""
        return float(self._attention["total"]) * _GIB

    @property
    def free_bytes(self) -> float:
        """What the budget leaves of it."""
        return float(self._attention["budget"] - self._attention["total"]) * _GIB

    @property
    def _attention(self) -> Mapping[str, float]:
        found: Mapping[str, float] = next(
            group["memory_gib"] for group in self.document["groups"] if "DA" in group["cells"]
        )
        return found


def decode_whole(
    job: Job, *, gpus: int, batch: float, micro_batches: int = 1, tp: int = 1, moe_tp: int = 1
) -> DecodeStep:
    """Attention and experts on the same ``gpus``; ``batch`` sequences per attention rank of ``tp`` GPUs."""
    group = {"tp": tp, "dp": gpus // tp, "moe_tp": moe_tp, "ep": gpus // moe_tp}
    decode = [{"cells": ["DA", "DF"], "gpus": gpus, "micro_batches": micro_batches, **group}]
    return _decode(job, WHOLE, decode, batch, gpus // tp, gpus)


def decode_split(
    job: Job, *, attention: int, ffn: int, batch: float, micro_batches: int, tp: int = 1, moe_tp: int = 1
) -> DecodeStep:
    """Attention and experts on GPUs of their own; ``batch`` sequences per attention rank of ``tp`` GPUs."""
    decode = [
        {"cells": ["DA"], "gpus": attention, "tp": tp, "dp": attention // tp, "micro_batches": micro_batches},
        {
            "cells": ["DF"],
            "gpus": ffn,
            "moe_tp": moe_tp,
            "ep": ffn // moe_tp,
            "micro_batches": micro_batches,
        },
    ]
    return _decode(job, SPLIT, decode, batch, attention // tp, attention + ffn)


def _decode(
    job: Job, partition: str, decode: list[dict[str, Any]], batch: float, ranks: int, gpus: int
) -> DecodeStep:
    """Estimate the decode groups beside a prefill unit that nothing depends on."""
    prefill = {"cells": ["PA", "PF"], "gpus": 1, "tp": 1, "dp": 1, "ep": 1}
    document = estimate(
        job, {"mode": partition, "batch_size": batch, "chunk_tokens": 8192, "groups": [prefill, *decode]}
    )
    tpot = float(document["tpot_ms"]) * 1e-3
    return DecodeStep(tpot, batch * ranks / tpot / gpus, document)


@dataclass(frozen=True, slots=True)
class BestDecode:
    """The decode unit with the most tokens/s per GPU (or per dollar) within the limits, and its cut."""

    rate: float
    tpot_s: float
    candidates: Candidates

    def cut(self, name: str) -> int:
        """A degree of the decode side."""
        return int(self.candidates.integer(f"decode_{name}")[0])

    @property
    def attention_gpus(self) -> int:
        """GPUs of attention."""
        return self.cut("tp") * self.cut("dp") * self.cut("cp") * self.cut("pp")

    @property
    def ffn_gpus(self) -> int:
        """GPUs of the experts."""
        return self.cut("moe_tp") * self.cut("ep")

    @property
    def batch(self) -> float:
        """Sequences per attention rank."""
        return float(self.candidates.number("batch_size")[0])


Allowed = Callable[[Candidates], npt.NDArray[np.bool_]]


def best_decode(
    job: Job, partition: str, *, allowed: Allowed | None = None, per_cost: bool = False, **grid: Any
) -> BestDecode | None:
    """Search the decode units of ``partition`` over batches: most tokens/s per GPU, or per dollar an hour.

    Limits are the job's TPOT and memory. ``grid`` changes the space's grid, ``allowed`` masks layouts. None where
    nothing fits.
    """
    scenario = scenario_from_job(job)
    kind = parse_partition(partition)
    units = tabulate_decode(scenario, kind, _grid(kind.splits(Phase.DECODE), **grid), lambda rows: None)
    holds = None if allowed is None else allowed(units.candidates)
    return best_of(scenario, units.candidates, units.units, per_cost=per_cost, allowed=holds)


def best_of(
    scenario: Scenario,
    candidates: Candidates,
    units: DecodeUnits,
    *,
    per_cost: bool,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> BestDecode | None:
    """The best of some decode units that hold memory and TPOT, and are ``allowed`` [n]; None where none is."""
    rate = _rate(scenario, units, per_cost)
    holds = (units.memory_slack >= 0.0) & (units.tpot_s <= scenario.slo.tpot_s)
    if allowed is not None:
        holds = holds & allowed
    if not holds.any():
        return None
    best = int(np.flatnonzero(holds)[np.argmax(rate[holds])])
    return BestDecode(float(rate[best]), float(units.tpot_s[best]), candidates.take(np.array([best])))


def _grid(split: bool, **changes: Any) -> Grid:
    space = load_space("default")
    base = space.split if split else space.whole
    return base.model_copy(update={"gpus": _SIZES, "ffn_gpus": _SIZES, **changes})


def _rate(scenario: Scenario, units: DecodeUnits, per_cost: bool) -> FloatArray:
    prices = np.array([pool.usd_per_gpu_hour if per_cost else 1.0 for pool in scenario.pools])
    tokens = units.requests_per_s * scenario.workload.osl
    return np.asarray(tokens / (units.gpus_by_pool @ prices), dtype=np.float64)


def shares(step: DecodeStep) -> str:
    """Where a step goes and how much of it is measured, in words."""
    parts = step.document["breakdown"]["decode"]
    trust = step.document["provenance"]
    return (
        f"attention {parts['attention_ms']:.1f}, FFN {parts['ffn_ms']:.1f}, links {parts['links_ms']:.1f} ms; "
        f"{100 * (trust['measured'] + trust['interpolated']):.0f} % from the part's own tables"
    )


def layers_of(job: Job) -> int:
    """Layers of the job's model."""
    return load_model(job.model).layers


def dtypes_of(inputs: Inputs) -> dict[str, str]:
    """Eight-bit weights with a bfloat16 cache where the row says ``fp8`` (or nothing); else the checkpoint's own.

    ``kv_dtype`` states the cache's type.
    """
    weights = _FP8 if inputs.text("dtype", default="fp8") == "fp8" else {}
    return weights | cache_type(inputs)


def cache_type(inputs: Inputs) -> dict[str, str]:
    """The cache's type where ``kv_dtype`` states it."""
    stated = inputs.text("kv_dtype") if inputs.has("kv_dtype") else ""
    return {"kv_cache": _TYPES.get(stated, stated)} if stated else {}


def node_gpus(hardware: str | dict[str, Any]) -> int:
    """GPUs of a node of an accelerator."""
    return load_accelerator(hardware if isinstance(hardware, str) else str(hardware["base"])).node_gpus
