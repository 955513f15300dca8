"""Measured runs as candidates of the cost model: what it predicts for each of them."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from afd_dse.architecture.catalogue import load_model
from afd_dse.architecture.model import DenseFfn, LayerKind, LinearAttention
from afd_dse.architecture.weights import legal_moe_tp
from afd_dse.calibration.measured import AGGREGATED, DISAGGREGATED, REASON
from afd_dse.calibration.recipes import recipe
from afd_dse.cost.closed_loop import ClosedLoop, closed_loop
from afd_dse.cost.columns import CHUNKED, PHASE_FIELDS, PHASES, PRIORITIZED, Candidates
from afd_dse.cost.evaluate import group_gpus
from afd_dse.cost.from_job import engine_overheads, framework_profile
from afd_dse.cost.memory import running_limit
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Pool, Scenario, Slo, Workload
from afd_dse.errors import InputError
from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.latency import FloatArray, Provenance
from afd_dse.spec.calibration import Calibration
from afd_dse.spec.catalogue import load_accelerator
from afd_dse.spec.cells import ATTENTION_CELL, Partition, Phase, parse_partition, partition_index

# Tokens that a step may carry: the default of vLLM and of TensorRT-LLM's recipes; SGLang's chunked prefill.
TOKEN_BUDGET = 8192.0
# Lengths that benchmarks of this origin draw, as a share of the nominal ones: uniform from 0.8 to 1.0.
VARIED_ORIGIN, VARIED_CV = "InferenceX", 0.2 / np.sqrt(12.0) / 0.9

_PARTITION = {AGGREGATED: "PA PF DA DF", DISAGGREGATED: "PA PF | DA DF"}
_QUESTION = ["model", "accelerator", "framework", "gemm_dtype", "moe_dtype", "kv_dtype", "mode", "isl", "osl"]
# What a prediction holds beside its metrics: what the overheads multiply, and what the estimate rests on.
FEATURES = ("batch", "running", "prompt_ms", "prefill_ms", "joint_ms", "joint_share", "queue_ms")
_ZERO = ("attention_pool", "ffn_pool", "redundant")
METRICS = ("tpot_ms", "ttft_ms", "output_tokens_per_s_per_gpu")
PREDICTED = (
    *METRICS,
    *FEATURES,
    "equal_lengths",
    "layers",
    "dense_layers",
    "linear_layers",
    "borrowed_share",
)


def predict(rows: pd.DataFrame, calibration: Calibration) -> pd.DataFrame:
    """Predictions of ``rows`` (as :func:`afd_dse.calibration.measured.completed` gives them), same index.

    Columns :data:`PREDICTED`, and ``reason`` where a row has no prediction: its own, or why the model cannot answer.
    """
    found = pd.DataFrame(np.nan, index=rows.index, columns=list(PREDICTED))
    reasons = rows[REASON].copy()
    usable = rows[reasons == ""]
    varied = usable["origin"].str.startswith(VARIED_ORIGIN)
    for key, group in usable.groupby([*_QUESTION, varied], sort=False):
        question = dict(zip([*_QUESTION, "varied"], key, strict=True))
        try:
            found.loc[group.index] = _predict_group(question, group, calibration)
        except InputError as error:
            reasons[group.index] = "; ".join(f"{p.field} {p.value}: {p.message}" for p in error.problems)
    found[REASON] = reasons
    return found


def _predict_group(question: dict[str, Any], group: pd.DataFrame, calibration: Calibration) -> pd.DataFrame:
    scenario = _scenario(question, calibration)
    partition = parse_partition(_PARTITION[question["mode"]])
    candidates = _candidates(scenario, partition, group)
    concurrency = group["concurrency"].to_numpy(np.float64)
    loop = closed_loop(
        scenario, partition, candidates, concurrency=concurrency, held=_held(scenario, partition, candidates)
    )
    gpus = _gpus(partition, candidates)
    columns: dict[str, Any] = {
        "tpot_ms": loop.tpot_s * 1e3,
        "ttft_ms": loop.ttft_s * 1e3,
        "output_tokens_per_s_per_gpu": loop.requests_per_s * question["osl"] / gpus,
        **_features(loop),
        "equal_lengths": float(not question["varied"]),
        "layers": _layers(scenario, lambda kind: True),
        "dense_layers": _layers(scenario, lambda kind: isinstance(kind.ffn, DenseFfn)),
        "linear_layers": _layers(scenario, lambda kind: isinstance(kind.attention, LinearAttention)),
        "borrowed_share": loop.provenance[:, Provenance.BORROWED]
        + loop.provenance[:, Provenance.SPEED_OF_LIGHT],
    }
    return pd.DataFrame(columns, index=group.index)[list(PREDICTED)]


def _layers(scenario: Scenario, of: Callable[[LayerKind], bool]) -> float:
    return float(sum(kind.count for kind in scenario.model.kinds if of(kind)))


def _features(loop: ClosedLoop) -> dict[str, FloatArray]:
    return {
        "batch": loop.batch,
        "running": loop.running,
        "prompt_ms": loop.prompt_s * 1e3,
        "prefill_ms": loop.prefill_s * 1e3,
        "joint_ms": loop.joint_s * 1e3,
        "joint_share": loop.joint_share,
        "queue_ms": loop.queue_s * 1e3,
    }


@lru_cache(maxsize=32)
def _database(accelerator: str, framework: str) -> OperatorDatabase:
    return OperatorDatabase(load_accelerator(accelerator), framework)


def _scenario(question: dict[str, Any], calibration: Calibration) -> Scenario:
    framework = str(question["framework"])
    database = _database(str(question["accelerator"]), framework)  # complains about an unknown one
    accelerator = database.accelerator
    model, profile = load_model(str(question["model"])), framework_profile(framework)
    quantization = recipe(
        model,
        framework,
        accelerator.generation,
        question["gemm_dtype"],
        question["moe_dtype"],
        question["kv_dtype"],
    )
    cv = VARIED_CV if question["varied"] else 0.0
    scenario = Scenario(
        model=model,
        quantization=quantization,
        framework=profile,
        pools=(
            Pool(
                name="main",
                accelerator=accelerator,
                reference=accelerator,
                count=1_000_000,
                usd_per_gpu_hour=accelerator.usd_per_gpu_hour,
                power_w=accelerator.power_w,
                usable_fraction=profile.usable_fraction,
                static_fraction=profile.static_fraction,
                free_fraction=profile.free_fraction,
                overheads=engine_overheads(calibration, framework, accelerator.generation),
            ),
        ),
        workload=Workload(
            isl=float(question["isl"]), osl=float(question["osl"]), isl_cv=cv, osl_cv=cv, arrival_cv2=0.0
        ),
        slo=Slo(),
    )
    # The database outlives the question: its tables are read once for all runs of a framework on an accelerator.
    scenario.__dict__["databases"] = (database,)
    return scenario


def _candidates(scenario: Scenario, partition: Partition, group: pd.DataFrame) -> Candidates:
    def whole(name: str) -> Any:
        return group[name].to_numpy(np.int64)

    columns: dict[str, Any] = {
        "partition": partition_index(partition),
        "policy": PRIORITIZED if scenario.framework.prefill_first else CHUNKED,
        "batch_size": 1.0,
        "chunk_tokens": TOKEN_BUDGET,
    }
    for phase in PHASES:
        columns |= {
            f"{phase}_{name}": 0 if name.endswith("pool") or name == "redundant" else 1
            for name in PHASE_FIELDS
        }
        prefix = f"{phase}_" if not partition.shares_steps else ""
        tp, dp, ep = whole(f"{prefix}tp"), whole(f"{prefix}dp"), whole(f"{prefix}ep")
        ranks = tp * dp
        if scenario.moe is None:
            ep, moe_tp = dp, tp
        else:
            # Experts that cannot be cut as narrow as a row says were spread over the ranks instead.
            legal = legal_moe_tp(scenario.model, ranks // ep, scenario.quantization.moe) & (ranks % ep == 0)
            ep = np.where(legal, ep, ranks)
            moe_tp = ranks // ep
        columns |= {f"{phase}_tp": tp, f"{phase}_dp": dp, f"{phase}_ep": ep, f"{phase}_moe_tp": moe_tp}
        if partition.shares_steps:
            columns[f"{phase}_pp"] = whole("pp")
        else:
            columns[f"{phase}_replicas"] = whole(f"{phase}_workers")
    return Candidates.of(**columns)


def _gpus(partition: Partition, candidates: Candidates) -> FloatArray:
    total: FloatArray = np.sum(group_gpus(partition, {p: Cut.of(candidates, p) for p in Phase}), axis=0)
    return total


def _held(scenario: Scenario, partition: Partition, candidates: Candidates) -> FloatArray:
    """Sequences that the KV cache of a decode rank holds at once, [n]."""
    cuts = {phase: Cut.of(candidates, phase) for phase in Phase}
    group = next(g for g in partition.groups if ATTENTION_CELL[Phase.DECODE] in g)
    budget = np.full(len(candidates), TOKEN_BUDGET)
    return running_limit(
        scenario, group, cuts, {Phase.PREFILL: budget, Phase.DECODE: np.zeros(len(candidates))}
    )
