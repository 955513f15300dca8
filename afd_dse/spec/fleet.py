"""The fleet file: several models that share one cluster, what each must serve, and by what the GPUs are split."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from afd_dse.errors import InputError, Problem
from afd_dse.spec.base import Spec, complaint, refuse_equal_names
from afd_dse.spec.calibration import CalibrationName
from afd_dse.spec.cluster import Cluster
from afd_dse.spec.document import plain, read_document
from afd_dse.spec.job import Demand, Framework, Job, ModelName, Quantization, Search, Slo, Speculative
from afd_dse.spec.problems import as_input_error
from afd_dse.spec.workload import Workload

FleetObjective = Literal["fewest_gpus", "usd_per_hour", "growth", "weighted_throughput"]
# What a fleet has no use for: its searches are enumerations, and its own objective splits the GPUs.
_WITHOUT = ("objective", "seed", "trials", "storage", "journal")
RESERVED = ("staircases", "fleet.json", "fleet.html")
"""Names that a model cannot have, because its folder would be one of the fleet's own."""


class FleetModel(Spec):
    """One model of a fleet: a job without a cluster."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=60, examples=["chat"])
    """Name in the result, and of the model's folder there; unique. Letters, digits, `.`, `_` and `-`."""
    model: ModelName = Field(examples=["deepseek-ai/DeepSeek-V3"])
    """Model, as in a job."""
    quantization: Quantization = Quantization()
    """Data types that differ from the checkpoint's."""
    speculative: Speculative = Speculative()
    """Speculative decoding."""
    framework: Framework | None = None
    """Serving framework; absent: that of the fleet."""
    workload: Workload
    """Lengths, prefix and arrivals, as in a job."""
    slo: Slo = Slo()
    """Limits, as in a job."""
    demand: Demand | None = None
    """Rate that the model must serve; needed unless the objective is `weighted_throughput`."""
    weight: float = Field(1.0, gt=0, examples=[2.0])
    """What an output token of this model is worth, relative to the others; for `weighted_throughput`."""

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name in RESERVED:
            raise complaint("the fleet's folder has a part of this name", "choose another")
        return name

    @model_validator(mode="after")
    def _arrivals_are_open(self) -> Self:
        if self.workload.arrival.kind == "closed_loop":
            message = "a fleet is split by rates of requests, a closed loop has none of its own"
            remedy = "use poisson, gamma or mmpp, or leave it out"
            raise complaint(message, remedy, field="workload.arrival.kind", value="closed_loop")
        return self


class FleetFile(Spec):
    """Everything that a fleet needs to know: `afd-dse fleet FLEET`."""

    cluster: Cluster
    """The accelerators that the models share."""
    models: tuple[FleetModel, ...] = Field(strict=False, min_length=1, max_length=100)
    """The models; each runs one deployment, with as many replicas as it takes, on GPUs of its own."""
    objective: FleetObjective = "fewest_gpus"
    """`fewest_gpus`, `usd_per_hour`: meet all demands on the fewest GPUs, at the least cost; `growth`: the largest
    factor by which all demands can grow together; `weighted_throughput`: most output tokens per second, each times its
    model's weight, where a demand is the least that a model must serve."""
    own_nodes: bool = False
    """Whether a model takes whole nodes: GPUs that its deployment leaves on its last node are not given to others."""
    framework: Framework = "trtllm"
    """Serving framework whose measured kernels are used, for models that name none."""
    search: Search = Search()
    """Modes and space in which deployments are found."""
    calibration: CalibrationName = "default"
    """What engines take beyond their kernels, as in a job."""

    @field_validator("models")
    @classmethod
    def _distinct_names(cls, entries: tuple[FleetModel, ...]) -> tuple[FleetModel, ...]:
        refuse_equal_names(entries)
        return entries

    @field_validator("search")
    @classmethod
    def _enumerated(cls, search: Search) -> Search:
        if search.method == "optuna":
            message = (
                "a fleet needs the best deployment for every number of GPUs, which sampling does not find"
            )
            raise complaint(
                message, "leave it out, or choose a smaller space", field="method", value="optuna"
            )
        defaults = Search()
        for name in _WITHOUT:
            if getattr(search, name) != getattr(defaults, name):
                message, value = "this means nothing in a fleet", getattr(search, name)
                remedy = "set objective at the top of the file" if name == "objective" else "leave it out"
                raise complaint(message, remedy, field=name, value=value)
        return search

    @model_validator(mode="after")
    def _demands_are_known(self) -> Self:
        for index, entry in enumerate(self.models):
            if entry.demand is None and self.objective != "weighted_throughput":
                message = f"the objective {self.objective} needs the demand of every model"
                remedy = "add demand: {requests_per_s: ...}, or choose weighted_throughput"
                raise complaint(message, remedy, field=f"models[{index}].demand", value=None)
        return self

    def job(self, entry: FleetModel, gpus: Mapping[str, int] | None = None) -> Job:
        """The job of one model: on the whole cluster, or on its share, ``gpus`` by the names of pools.

        Pools of which it gets nothing are left out.
        """
        cluster = self.cluster
        if gpus is not None:
            pools = [pool for pool in cluster.pools if gpus.get(pool.name, 0)]
            shares = tuple(pool.model_copy(update={"count": gpus[pool.name]}) for pool in pools)
            cluster = Cluster(scale_out_gb_s=cluster.scale_out_gb_s, pools=shares)
        return Job(
            model=entry.model,
            quantization=entry.quantization,
            speculative=entry.speculative,
            framework=entry.framework or self.framework,
            cluster=cluster,
            workload=entry.workload,
            slo=entry.slo,
            search=self.search.model_copy(update={"objective": "total_throughput"}),
            calibration=self.calibration,
        )


def load_fleet(source: str | Path | Mapping[str, Any], *, folder: str | Path | None = None) -> FleetFile:
    """Read and validate a fleet: the path of a file, or the fleet itself as a mapping.

    Relative paths in it start at ``folder``, by default the file's own, for a mapping the working directory. Raises
    :class:`InputError` that lists every problem found.
    """
    if isinstance(source, Mapping):
        data, start = plain(source, "fleet"), Path(folder) if folder is not None else Path.cwd()
    else:
        path = Path(source).expanduser()
        data, start = (
            plain(read_document(path)),
            Path(folder) if folder is not None else path.resolve().parent,
        )
    try:
        return FleetFile.model_validate(data, context={"folder": start.resolve()})
    except ValidationError as error:
        raise as_input_error(error, FleetFile) from None
    except OSError as error:
        message = f"unreadable ({error.strerror})"
        remedy = "check the permissions of the files that it names"
        raise InputError(Problem("fleet", str(error.filename), message, remedy)) from None
