"""The demand file of a plan: classes of requests, how their rate changes, hardware on offer, and the rules."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from afd_dse.errors import InputError, Problem
from afd_dse.spec.base import Spec, complaint, refuse_equal_names
from afd_dse.spec.cluster import Cluster, Pool
from afd_dse.spec.document import plain, read_document
from afd_dse.spec.job import Framework, Job, ModelName, Quantization, Search, Slo, Speculative
from afd_dse.spec.problems import as_input_error
from afd_dse.spec.trace import read_requests
from afd_dse.spec.workload import TraceFile, Workload

HOURS_PER_DAY, DAYS_PER_WEEK = 24, 7
MOST_PERIODS = 24 * 366
Factor = Annotated[float, Field(ge=0)]


class RequestClass(Spec):
    """Requests of one kind: chat, coding, agents."""

    name: str = Field(min_length=1, examples=["chat"])
    """Name in the plan; unique."""
    share: float = Field(1.0, gt=0, examples=[0.7])
    """Share of all requests, relative to the other classes."""
    workload: Workload
    """Lengths, prefix and arrivals, as in a job."""
    slo: Slo
    """Limits, as in a job."""

    @model_validator(mode="after")
    def _arrivals_are_open(self) -> Self:
        if self.workload.arrival.kind == "closed_loop":
            message = "a plan has a rate of requests, a closed loop has not"
            remedy = "use poisson, gamma or mmpp, or leave it out"
            raise complaint(message, remedy, field="workload.arrival.kind", value="closed_loop")
        return self


class Hardware(Pool):
    """GPUs on offer: a pool of a job, its `count` what can be had at most, and how it is paid."""

    billing: Literal["hourly", "reserved"] = "hourly"
    """`hourly`: paid while used; `reserved`: the most that is ever used is paid for the whole horizon."""
    start_hours: float = Field(0.25, ge=0, examples=[0.25])
    """Time from the order of a deployment to its first request, paid but not serving."""
    start_usd_per_gpu: float = Field(0.0, ge=0, examples=[0.5])
    """Cost of starting a deployment, USD per GPU, besides the time that it takes."""


class Profile(Spec):
    """The request rate over time: a mean, shapes that repeat, growth; or a trace."""

    requests_per_s: float | None = Field(None, gt=0, le=1e9, examples=[40.0])
    """Mean rate of all classes together at the start; with a trace the mean that it is scaled to."""
    daily: tuple[Factor, ...] | None = Field(None, strict=False, examples=[[0.4] * 8 + [1.3] * 16])
    """24 factors, one for each hour of the day; only their ratios matter."""
    weekly: tuple[Factor, ...] | None = Field(None, strict=False, examples=[[1, 1, 1, 1, 1, 0.6, 0.5]])
    """7 factors, one for each day from the first on; only their ratios matter."""
    growth_percent_per_day: float = Field(0.0, gt=-100, le=100, examples=[0.5])
    """How much the rate grows from one day to the next."""
    trace: TraceFile | None = None
    """File with a `timestamp` column whose requests, counted by period, are the demand."""

    @field_validator("daily", "weekly")
    @classmethod
    def _right_number(cls, factors: tuple[float, ...] | None, info: Any) -> tuple[float, ...] | None:
        if factors is None:
            return None
        wanted = HOURS_PER_DAY if info.field_name == "daily" else DAYS_PER_WEEK
        if len(factors) != wanted:
            raise complaint(f"{len(factors)} factors are given", f"give {wanted}")
        if not any(factors):
            raise complaint("all factors are zero", "give at least one above 0")
        return factors

    @model_validator(mode="after")
    def _rate_or_trace(self) -> Self:
        if self.trace is None:
            if self.requests_per_s is None:
                remedy = "add requests_per_s, or a trace"
                raise complaint("this is needed", remedy, field="requests_per_s", value=None)
            return self
        for name in ("daily", "weekly"):
            if getattr(self, name) is not None:
                raise complaint(
                    "has no meaning with a trace", "leave it out", field=name, value=getattr(self, name)
                )
        if read_requests(Path(self.trace), "demand.trace").arrival_s is None:
            raise complaint(
                "the trace has no arrival times", "add a column timestamp", field="trace", value=self.trace
            )
        return self


class Horizon(Spec):
    """The time that is planned, in periods during which nothing changes."""

    hours: float = Field(24.0, gt=0, examples=[168])
    """Length of the plan."""
    period_hours: float = Field(1.0, gt=0, examples=[1])
    """Length of a period."""

    @model_validator(mode="after")
    def _whole_periods(self) -> Self:
        count = self.hours / self.period_hours
        if abs(count - round(count)) > 1e-9 or not 1 <= round(count) <= MOST_PERIODS:
            message = f"{self.hours:g} hours are {count:g} periods"
            remedy = f"choose a period that divides them into 1 to {MOST_PERIODS}"
            raise complaint(message, remedy, field="period_hours", value=self.period_hours)
        return self

    @property
    def periods(self) -> int:
        """Number of periods."""
        return round(self.hours / self.period_hours)


class Rules(Spec):
    """What the plan must be able to take besides the demand itself."""

    headroom: float = Field(0.1, ge=0, lt=1, examples=[0.2])
    """Share of the capacity that stays free: bursts inside a period, errors of the forecast."""
    redundancy: Literal["none", "deployment", "domain"] = "none"
    """What may fail without breaking an SLO: nothing, any one copy of a deployment (N+1), or any one scale-up domain
    with all copies in it."""


class DemandFile(Spec):
    """Everything that a plan needs to know: `afd-dse plan DEMAND`."""

    model: ModelName = Field(examples=["deepseek-ai/DeepSeek-V3"])
    """Model, as in a job."""
    quantization: Quantization = Quantization()
    """Data types that differ from the checkpoint's."""
    speculative: Speculative = Speculative()
    """Speculative decoding."""
    framework: Framework = "trtllm"
    """Serving framework whose measured kernels are used."""
    hardware: tuple[Hardware, ...] = Field(strict=False, min_length=1)
    """What can be had."""
    classes: tuple[RequestClass, ...] = Field(strict=False, min_length=1)
    """Kinds of requests; each is served by deployments of its own."""
    demand: Profile
    """The rate over time."""
    horizon: Horizon = Horizon()
    """The time that is planned."""
    rules: Rules = Rules()
    """Headroom and redundancy."""
    search: Search = Search(space="quick")
    """Modes, space and method by which deployments are found; the objective is always cost."""

    @field_validator("hardware", "classes")
    @classmethod
    def _distinct_names(cls, entries: tuple[Any, ...]) -> tuple[Any, ...]:
        refuse_equal_names(entries)
        return entries

    @model_validator(mode="after")
    def _starts_are_short(self) -> Self:
        for index, entry in enumerate(self.hardware):
            if entry.start_hours > self.horizon.period_hours:
                message = f"a start takes longer than a period of {self.horizon.period_hours:g} hours"
                remedy = "lower it, or lengthen horizon.period_hours"
                raise complaint(
                    message, remedy, field=f"hardware[{index}].start_hours", value=entry.start_hours
                )
        return self

    def job(self, request_class: RequestClass, hardware: Hardware, gpus: int) -> Job:
        """The job whose answers are the deployments of a class on up to ``gpus`` of one kind of hardware."""
        pool = Pool(**{name: getattr(hardware, name) for name in Pool.model_fields} | {"count": gpus})
        return Job(
            model=self.model,
            quantization=self.quantization,
            speculative=self.speculative,
            framework=self.framework,
            cluster=Cluster(pools=(pool,)),
            workload=request_class.workload,
            slo=request_class.slo,
            search=self.search.model_copy(update={"objective": "usd_per_mtok"}),
        )


def load_demand(path: Path) -> DemandFile:
    """Read and validate a demand file; relative paths in it start at its folder.

    Raises :class:`InputError` that lists every problem found.
    """
    data = plain(read_document(path))
    try:
        return DemandFile.model_validate(data, context={"folder": path.resolve().parent})
    except ValidationError as error:
        raise as_input_error(error, DemandFile) from None
    except OSError as error:
        remedy = "check the permissions of the files that it names"
        raise InputError(
            Problem(str(path), str(error.filename), f"unreadable ({error.strerror})", remedy)
        ) from None
