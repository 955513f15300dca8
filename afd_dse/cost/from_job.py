"""From a validated job to the scenario that the evaluator works on."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from afd_dse.architecture.catalogue import load_model
from afd_dse.architecture.model import ModelArchitecture, MoeFfn, Quantization
from afd_dse.architecture.quantization import quantization_for
from afd_dse.cost.expert_load import histogram_popularity, power_law_popularity
from afd_dse.cost.imbalance import LengthMoments, paired_kv_load_moments
from afd_dse.cost.scenario import EngineOverheads, FrameworkProfile, Launch, Pool, Scenario, Slo, Workload
from afd_dse.errors import DatabaseError, InputError, Problem
from afd_dse.resources import operator_db_root, parse_yaml
from afd_dse.spec.calibration import Calibration, Intervals, Metric, load_calibration
from afd_dse.spec.job import Job
from afd_dse.spec.routing import PowerLaw, read_histogram
from afd_dse.spec.trace import read_requests
from afd_dse.spec.workload import TokenTrace
from afd_dse.spec.workload import Workload as Asked

INFINITE = float("inf")
_JUDGED: tuple[Metric, Metric] = ("tpot", "ttft")
_NOT_NUMBERS = ("source", "launches", "overlap", "context_parallel", "pipeline_apart")
_SWITCHES = ("prefill_first", "packed_latent", "mixed_attention", "mixed_experts")


@lru_cache(maxsize=1)
def _profiles() -> dict[str, FrameworkProfile]:
    path = operator_db_root() / "catalogue" / "frameworks.yaml"
    try:
        entries = parse_yaml(path.read_text(encoding="utf-8"))
        return {name: _profile(name, entry) for name, entry in entries.items()}
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise DatabaseError(f"{path}: unusable framework catalogue ({error})") from error


def _profile(name: str, entry: dict[str, Any]) -> FrameworkProfile:
    simple: dict[str, Any] = {
        key: bool(value) if key in _SWITCHES else float(value)
        for key, value in entry.items()
        if key not in _NOT_NUMBERS
    }
    return FrameworkProfile(
        name,
        launches=_launches(entry["launches"]),
        overlap=_launch(entry["overlap"]) if "overlap" in entry else None,
        context_parallel=_launches(entry["context_parallel"]),
        pipeline_apart=_launches(entry["pipeline_apart"]),
        **simple,
    )


def _launches(entries: dict[str, Any]) -> dict[str, Launch]:
    return {of: _launch(takes) for of, takes in entries.items()}


def _launch(takes: str | dict[str, Any]) -> Launch:
    """What the catalogue says of something that a release runs: words alone, or the fields of :class:`Launch`."""
    if isinstance(takes, str):
        return Launch(takes)
    return Launch(**takes | {"families": tuple(takes.get("families", ()))})


def framework_profile(name: str) -> FrameworkProfile:
    """The catalogue's profile of a framework."""
    return _profiles()[name]


def engine_overheads(calibration: Calibration, framework: str, generation: str) -> EngineOverheads:
    """Overheads of ``framework`` on ``generation`` in SI units."""
    fitted = calibration.overheads_of(framework, generation)
    return EngineOverheads(
        layer_s=fitted.layer_overhead_us * 1e-6,
        dense_layer_s=fitted.dense_layer_overhead_us * 1e-6,
        linear_layer_s=fitted.linear_layer_overhead_us * 1e-6,
        step_s=fitted.step_overhead_ms * 1e-3,
        sequence_s=fitted.sequence_overhead_us * 1e-6,
        request_s=fitted.request_overhead_ms * 1e-3,
        admission_steps=fitted.admission_steps,
        prompts_ahead=fitted.prompts_ahead,
    )


def scenario_from_job(job: Job) -> Scenario:
    """Resolve model, data types, pools and limits of ``job``.

    Raises :class:`InputError` when the model is unknown or a pool cannot compute in the data types asked for.
    """
    model = load_model(job.model)
    profile = framework_profile(job.framework)
    calibration = load_calibration(job.calibration)
    pools = tuple(
        Pool(
            name=pool.name,
            accelerator=pool.resolved,
            reference=pool.reference,
            count=pool.count,
            usd_per_gpu_hour=pool.resolved.usd_per_gpu_hour,
            power_w=pool.resolved.power_w,
            # A share that the job sets replaces the framework's own rule.
            usable_fraction=pool.usable_memory_fraction or profile.usable_fraction,
            overheads=engine_overheads(calibration, job.framework, pool.resolved.generation),
            static_fraction=1.0 if pool.usable_memory_fraction else profile.static_fraction,
            free_fraction=1.0 if pool.usable_memory_fraction else profile.free_fraction,
        )
        for pool in job.cluster.pools
    )
    if job.speculative.draft_tokens and not model.next_token_layers:
        raise InputError(
            Problem(
                "speculative.draft_tokens",
                job.speculative.draft_tokens,
                f"{model.name} has no next-token (MTP) module to draft with",
                "set draft_tokens to 0",
            )
        )
    arrival = job.workload.arrival
    return Scenario(
        model=model,
        quantization=_quantization(job, model, pools),
        framework=profile,
        pools=pools,
        workload=Workload(
            isl=job.workload.isl,
            osl=job.workload.osl,
            isl_cv=job.workload.isl_cv,
            osl_cv=job.workload.osl_cv,
            prefix=job.workload.prefix,
            prefix_shared=job.workload.prefix_sharing == "shared",
            arrival_cv2=job.workload.arrival_cv2,
            concurrency_limit=INFINITE if arrival.concurrency is None else arrival.concurrency,
            requests_per_s=job.demand.requests_per_s if job.demand else 0.0,
            **_traced(job.workload),
            **_routing(job, model),
        ),
        slo=_limits(job, calibration.intervals.get(job.framework)),
        intervals=calibration.intervals.get(job.framework),
        draft_tokens=job.speculative.draft_tokens,
        accepted_per_step=job.speculative.accepted_tokens_per_step,
        only_launchable=job.search.launchable,
    )


def _limits(job: Job, intervals: Intervals | None) -> Slo:
    """The limits that predictions must keep: those of the job, or tighter ones that make ``slo.confidence`` sure.

    Every limit is kept with the same probability, their product being ``slo.confidence``, at the scatter of estimates
    on borrowed kernels: no estimate is less sure than asked.
    """
    slo = job.slo
    asked = Slo(
        ttft_s=INFINITE if slo.ttft_ms is None else slo.ttft_ms / 1e3,
        tpot_s=INFINITE if slo.tpot_ms is None else slo.tpot_ms / 1e3,
        latency_s=INFINITE if slo.request_latency_ms is None else slo.request_latency_ms / 1e3,
        percentile=slo.percentile,
    )
    limits = sum(limit < INFINITE for limit in (asked.ttft_s, asked.tpot_s, asked.latency_s))
    if slo.confidence is None or not limits:
        return asked
    if intervals is None:
        raise InputError(
            Problem(
                "slo.confidence",
                slo.confidence,
                f"the calibration knows no scatter of {job.framework}",
                "set calibration: default, or leave slo.confidence out",
            )
        )
    sure = slo.confidence ** (1.0 / limits)
    tpot, ttft = (intervals.of(metric, borrowed=True).ratio(sure) for metric in _JUDGED)
    return Slo(
        ttft_s=asked.ttft_s / ttft,
        tpot_s=asked.tpot_s / tpot,
        latency_s=asked.latency_s / tpot,
        percentile=asked.percentile,
        confidence=slo.confidence,
        asked=asked,
    )


def _traced(workload: Asked) -> dict[str, Any]:
    """Load of a decode slot and lengths of prompts of requests traced whole; nothing where they are not."""
    prompts, outputs = workload.input_tokens, workload.output_tokens
    if not isinstance(prompts, TokenTrace) or not isinstance(outputs, TokenTrace):
        return {}
    if prompts.trace != outputs.trace:
        return {}
    state = Path(prompts.trace).stat()
    load, lengths = _traced_loads(prompts.trace, state.st_mtime_ns, state.st_size)
    return {"slot_load": load, "prompts": lengths}


@lru_cache(maxsize=16)
def _traced_loads(path: str, modified: int, size: int) -> tuple[tuple[float, float], LengthMoments]:
    """As :func:`_traced`, read once while the file (``modified``, ``size``) stays the same."""
    seen = read_requests(Path(path), "workload.input_tokens.trace")
    mean, variance = paired_kv_load_moments(seen.input_tokens, seen.output_tokens)
    return (float(mean), float(variance)), LengthMoments.empirical(seen.input_tokens)


def _routing(job: Job, model: ModelArchitecture) -> dict[str, Any]:
    """How tokens fall on the experts of ``model``: the tables to read, and the popularity of each expert."""
    asked, field = job.workload.expert_distribution, "workload.expert_distribution"
    if isinstance(asked, str):
        return {"expert_distribution": asked}
    experts = next((kind.ffn.experts for kind in model.kinds if isinstance(kind.ffn, MoeFfn)), None)
    if experts is None:
        message = f"{model.name} has no experts"
        raise InputError(Problem(field, asked.model_dump(), message, "leave it out"))
    if isinstance(asked, PowerLaw):
        popularity = power_law_popularity(experts, asked.exponent)
    else:
        counts = read_histogram(Path(asked.histogram), f"{field}.histogram")
        if len(counts) != experts:
            message = f"the file has {len(counts)} experts, {model.name} has {experts}"
            remedy = "give one row for every expert"
            raise InputError(Problem(f"{field}.histogram", asked.histogram, message, remedy))
        popularity = histogram_popularity(counts)
    return {"expert_popularity": tuple(popularity.tolist()), "expert_persistence": asked.persistence}


# NOTE: checkpoints with MXFP4 experts name only the weights' type. Blackwell computes them with 8-bit activations
# (the frameworks' default there), earlier generations with 16-bit ones.
_MXFP4_ON_BLACKWELL = "w4a8_mxfp4_mxfp8"


def _quantization(job: Job, model: ModelArchitecture, pools: tuple[Pool, ...]) -> Quantization:
    """One set of data types for the whole deployment; every pool must be able to compute in it."""
    if choices := job.quantization.choices:
        message, remedy = "several data types are listed where one is needed", "give one of them"
        raise InputError(
            [Problem(f"quantization.{role}", list(types), message, remedy) for role, types in choices.items()]
        )
    asked = {key: value for key, value in job.quantization.model_dump().items() if value is not None}
    if model.quantization.moe == "w4a16_mxfp4" and all(
        pool.accelerator.generation.startswith("blackwell") for pool in pools
    ):
        asked.setdefault("moe", _MXFP4_ON_BLACKWELL)
    found = [quantization_for(model, asked, pool.accelerator.generation) for pool in pools]
    return found[0]
