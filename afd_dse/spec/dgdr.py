"""Jobs in the words of a Dynamo deployment request (DynamoGraphDeploymentRequest, v1beta1), also as its manifest."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from afd_dse.errors import InputError, Problem
from afd_dse.spec.base import Spec, complaint
from afd_dse.spec.catalogue import load_accelerator
from afd_dse.spec.cluster import AcceleratorName
from afd_dse.spec.job import Demand, Quantization, Search, Speculative
from afd_dse.spec.problems import as_input_error

KIND = "DynamoGraphDeploymentRequest"
API_VERSION = "nvidia.com/v1beta1"
DEFAULT_ISL = 4000  # of the v1beta1 schema
DEFAULT_OSL = 1000
_NATIVE = {"cluster", "slo", "framework"}
_FOREIGN = {"hardware", "sla", "backend", "searchStrategy", "autoApply", "modelCache"}
_FOREIGN_WORKLOAD = {"isl", "osl", "requestRate"}
_POOL = "gpus"


class Hardware(Spec):
    """GPUs of the request."""

    gpu_sku: AcceleratorName = Field(alias="gpuSku", examples=["h200_sxm"])
    """Accelerator by its catalogue name."""
    total_gpus: int = Field(alias="totalGpus", ge=1, le=1_000_000, examples=[16])
    """GPUs at hand."""
    num_gpus_per_node: int | None = Field(None, alias="numGpusPerNode", ge=1, examples=[8])
    """GPUs of one node."""
    vram_mb: float | None = Field(None, alias="vramMb", gt=0, examples=[81559])
    """Memory of one GPU, MiB."""
    interconnect: str | None = None
    """Link inside a node; the catalogue's is used."""
    rdma: bool | None = None
    """Whether the network has RDMA; the model assumes it."""


class RequestWorkload(Spec):
    """Load of the request."""

    isl: float = Field(DEFAULT_ISL, ge=1, examples=[4000])
    """Input tokens of a request."""
    osl: float = Field(DEFAULT_OSL, ge=1, examples=[1000])
    """Output tokens of a request."""
    concurrency: float | None = Field(None, ge=1, examples=[128])
    """Requests in flight in a closed loop."""
    request_rate: float | None = Field(None, alias="requestRate", gt=0, examples=[10])
    """Requests per second that must be served."""

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        if self.concurrency is not None and self.request_rate is not None:
            message = "given together with concurrency"
            raise complaint(message, "keep one of them", field="requestRate", value=self.request_rate)
        return self


class Sla(Spec):
    """Limits of the request, in milliseconds."""

    ttft: float | None = Field(None, gt=0, examples=[2000])
    """Time to the first token, ms."""
    itl: float | None = Field(None, gt=0, examples=[30])
    """Time between output tokens, ms."""
    e2e_latency: float | None = Field(None, alias="e2eLatency", gt=0, examples=[30000])
    """Time of the whole request, ms."""
    optimization_type: Literal["latency", "throughput"] | None = Field(None, alias="optimizationType")
    """What to optimise within the limits."""


class DeploymentRequest(Spec):
    """What a deployment request wants, with the sections of a job file that it has no words for."""

    model: Any = Field(examples=["Qwen/Qwen3-32B"])
    """Model name."""
    backend: Literal["auto", "vllm", "sglang", "trtllm"] = "auto"
    """Serving framework."""
    hardware: Hardware = Field(examples=[{"gpuSku": "h200_sxm", "totalGpus": 16}])
    """GPUs at hand."""
    workload: RequestWorkload = RequestWorkload()
    """Load."""
    sla: Sla = Sla()
    """Limits."""
    image: Any = None
    """Container image."""
    runtime_version_override: Any = Field(None, alias="runtimeVersionOverride")
    """Runtime version."""
    model_cache: Any = Field(None, alias="modelCache")
    """Volume with the weights."""
    overrides: Any = None
    """Changes to the generated objects."""
    features: Any = None
    """Platform features."""
    search_strategy: Any = Field(None, alias="searchStrategy")
    """Depth of profiling."""
    auto_apply: Any = Field(None, alias="autoApply")
    """Whether to deploy the answer."""
    quantization: Quantization = Quantization()
    """As in a job file."""
    speculative: Speculative = Speculative()
    """As in a job file."""
    demand: Demand | None = None
    """As in a job file; `workload.requestRate` says the same."""
    search: Search = Search()
    """As in a job file."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _one_demand(self) -> Self:
        if self.demand is not None and self.workload.request_rate is not None:
            raise complaint(
                "given together with workload.requestRate", "keep one of them", field="demand", value=None
            )
        return self


_IGNORED = (
    "image",
    "runtime_version_override",
    "model_cache",
    "overrides",
    "features",
    "search_strategy",
    "auto_apply",
)


def unwrap(data: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The ``spec`` of a Kubernetes object with the prefix of its paths; anything else unchanged.

    Raises :class:`InputError` when the object is of another kind or version.
    """
    if "apiVersion" not in data and "kind" not in data:
        return dict(data), ""
    problems = []
    for key, expected in (("kind", KIND), ("apiVersion", API_VERSION)):
        if data.get(key) != expected:
            problems.append(
                Problem(key, data.get(key), "this object cannot be read as a job", f"it must be {expected}")
            )
    if unknown := [key for key in data if key not in ("apiVersion", "kind", "metadata", "spec", "status")]:
        problems += [Problem(key, None, "unknown key", "the request stands under spec") for key in unknown]
    if not isinstance(data.get("spec"), dict):
        remedy = "put model, hardware, workload and sla under spec"
        problems.append(Problem("spec", data.get("spec"), "a mapping is needed", remedy))
    if problems:
        raise InputError(problems)
    return dict(data["spec"]), "spec."


def is_request(data: Mapping[str, Any]) -> bool:
    """Whether ``data`` speaks the words of a deployment request and not those of a job file."""
    if _NATIVE & data.keys():
        return False
    workload = data.get("workload")
    spoken = isinstance(workload, Mapping) and bool(_FOREIGN_WORKLOAD & workload.keys())
    return spoken or bool(_FOREIGN & data.keys())


def job_mapping(data: Mapping[str, Any], *, prefix: str = "", context: Mapping[str, Any]) -> dict[str, Any]:
    """The job file that a deployment request amounts to; its ``notes`` say what was ignored or assumed.

    Raises :class:`InputError` in the request's own field names.
    """
    try:
        request = DeploymentRequest.model_validate(dict(data), context=dict(context))
    except ValidationError as error:
        raise as_input_error(error, DeploymentRequest, prefix=prefix) from None
    hardware, workload, sla = request.hardware, request.workload, request.sla
    notes: list[str] = []
    rate = workload.request_rate
    demand = {"requests_per_s": rate} if rate is not None else _dumped(request.demand)
    search = request.search.model_dump(mode="json", exclude_unset=True)
    if rate is not None and "objective" not in search:
        search["objective"] = "fewest_gpus"
        notes.append(
            f"{prefix}workload.requestRate: the objective is the fewest GPUs that serve it (fewest_gpus)"
        )
    arrival: dict[str, Any] = {"kind": "poisson"}
    if workload.concurrency is not None:
        arrival = {"kind": "closed_loop", "concurrency": workload.concurrency}
    job = {
        "model": request.model,
        "cluster": {
            "pools": [{"name": _POOL, "accelerator": _accelerator(hardware), "count": hardware.total_gpus}]
        },
        "workload": {"input_tokens": workload.isl, "output_tokens": workload.osl, "arrival": arrival},
        "slo": {"ttft_ms": sla.ttft, "tpot_ms": sla.itl, "request_latency_ms": sla.e2e_latency},
        "demand": demand,
        "search": search,
        "quantization": _dumped(request.quantization),
        "speculative": _dumped(request.speculative),
    }
    if request.backend != "auto":
        job["framework"] = request.backend
    job["notes"] = [*notes, *_notes(request, prefix)]
    return job


def _accelerator(hardware: Hardware) -> str | dict[str, Any]:
    """Catalogue name, with the request's node size and memory where they differ from the catalogue's."""
    catalogued = load_accelerator(hardware.gpu_sku)
    changes: dict[str, Any] = {}
    if hardware.num_gpus_per_node not in (None, catalogued.node_gpus):
        changes["node_gpus"] = hardware.num_gpus_per_node
        if catalogued.scale_up_gpus == catalogued.node_gpus:  # the scale-up domain is the node
            changes["scale_up_gpus"] = hardware.num_gpus_per_node
    if hardware.vram_mb is not None:
        changes["hbm_gib"] = hardware.vram_mb / 1024
    return {"base": hardware.gpu_sku, **changes} if changes else hardware.gpu_sku


def _notes(request: DeploymentRequest, prefix: str) -> list[str]:
    notes = []
    if request.backend == "auto":
        notes.append(f"{prefix}backend: auto means trtllm here; name another to compare")
    for name, default in (("isl", DEFAULT_ISL), ("osl", DEFAULT_OSL)):
        if name not in request.workload.model_fields_set:
            notes.append(f"{prefix}workload.{name}: not given, so {default} as in {API_VERSION}")
    if request.sla.optimization_type == "latency":
        message = "ignored: latency is bounded by the limits, and throughput is optimised within them"
        notes.append(f"{prefix}sla.optimizationType: {message}")
    hardware = request.hardware
    described = [name for name in ("interconnect", "rdma") if getattr(hardware, name) is not None]
    fields = {name: DeploymentRequest.model_fields[name].alias or name for name in _IGNORED}
    ignored = [f"{prefix}hardware.{name}" for name in described]
    ignored += [f"{prefix}{alias}" for name, alias in fields.items() if getattr(request, name) is not None]
    if ignored:
        notes.append(f"ignored, as it does not change the answer: {', '.join(ignored)}")
    return notes


def _dumped(part: Spec | None) -> dict[str, Any] | None:
    return None if part is None else part.model_dump(mode="json", exclude_unset=True)
