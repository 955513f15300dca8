"""The requests of a job: their lengths, what of them is cached already, and how they arrive."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from afd_dse.errors import InputError
from afd_dse.spec.base import Spec, absolute, complain_about, complaint
from afd_dse.spec.routing import ExpertDistribution
from afd_dse.spec.trace import Statistics, Trace, read_trace
from afd_dse.spec.trace_rows import MOST_TOKENS

# Standard deviation / mean of a uniform distribution between 0 and twice its mean.
LARGEST_UNIFORM_CV = 3.0**-0.5


def _trace_file(text: str, info: ValidationInfo) -> str:
    path = absolute(text, info)
    try:
        read_trace(path)
    except InputError as error:
        raise complain_about(error) from None
    return str(path)


TraceFile = Annotated[str, Field(min_length=1, examples=["requests.csv"]), AfterValidator(_trace_file)]


class TokenDistribution(Spec):
    """Token lengths that vary: mean and coefficient of variation."""

    mean: float = Field(ge=1, le=MOST_TOKENS, examples=[4096])
    """Mean tokens of a request."""
    cv: float = Field(0.0, ge=0, le=100, examples=[0.5])
    """Coefficient of variation: standard deviation / mean."""
    shape: Literal["lognormal", "uniform"] = "lognormal"
    """Distribution that a simulation draws from; formulas need its mean and cv only."""

    @model_validator(mode="after")
    def _uniform_stays_positive(self) -> Self:
        if self.shape == "uniform" and self.cv > LARGEST_UNIFORM_CV:
            message = (
                f"a uniform distribution of positive lengths has a cv of at most {LARGEST_UNIFORM_CV:.3f}"
            )
            raise complaint(message, "lower it, or write shape: lognormal", field="cv", value=self.cv)
        return self


class TokenTrace(Spec):
    """Token lengths read from a trace."""

    trace: TraceFile
    """CSV or JSON-lines file with `input_tokens` and `output_tokens` (or the columns of the Azure and Mooncake
    traces), relative to the job file."""


def _length_form(value: object) -> str:
    if isinstance(value, TokenTrace) or (isinstance(value, dict) and "trace" in value):
        return "<trace>"
    return "<distribution>" if isinstance(value, dict | TokenDistribution) else "<number>"


TokenLengths = Annotated[
    Annotated[float, Field(ge=1, le=MOST_TOKENS), Tag("<number>")]
    | Annotated[TokenDistribution, Tag("<distribution>")]
    | Annotated[TokenTrace, Tag("<trace>")],
    Discriminator(_length_form),
]


_FIELDS_OF_KIND = {"gamma": ("cv",), "mmpp": ("peak_ratio", "peak_share", "peak_s")}


class Arrival(Spec):
    """The process by which requests arrive."""

    kind: Literal["poisson", "gamma", "mmpp", "closed_loop", "trace"] = Field("poisson", examples=["poisson"])
    """`poisson`: independent users; `gamma`: independent gaps that vary by `cv`; `mmpp`: Poisson arrivals whose rate
    jumps between a base and a peak; `closed_loop`: each request that ends starts the next, as benchmarks do; `trace`:
    at the times of `file`."""
    concurrency: float | None = Field(None, ge=1, le=1e9, examples=[128])
    """Requests in flight in a closed loop; absent: the search chooses."""
    file: TraceFile | None = None
    """Trace with a `timestamp` column, relative to the job file."""
    cv: float | None = Field(None, gt=0, le=100, examples=[2.0])
    """Coefficient of variation of the gaps of `gamma`: 1 is Poisson, above it bursts."""
    peak_ratio: float | None = Field(None, gt=1, le=1000, examples=[5.0])
    """Rate of `mmpp` at its peak / rate at its base."""
    peak_share: float | None = Field(None, gt=0, lt=1, examples=[0.1])
    """Share of the time that `mmpp` is at its peak."""
    peak_s: float | None = Field(None, gt=0, examples=[10.0])
    """Mean length of a peak of `mmpp`, s."""

    @model_validator(mode="after")
    def _fields_fit_kind(self) -> Self:
        if self.concurrency is not None and self.kind != "closed_loop":
            remedy = "write kind: closed_loop, or leave it out"
            raise complaint(
                f"has no meaning with kind: {self.kind}", remedy, field="concurrency", value=self.concurrency
            )
        for kind, names in _FIELDS_OF_KIND.items():
            for name in names:
                given = getattr(self, name)
                if given is None and kind == self.kind:
                    message, remedy = f"this is needed with kind: {kind}", f"add {name}"
                elif given is not None and kind != self.kind:
                    message = f"has no meaning with kind: {self.kind}"
                    remedy = f"write kind: {kind}, or leave it out"
                else:
                    continue
                raise complaint(message, remedy, field=name, value=given)
        if self.kind == "trace":
            if self.file is None:
                raise complaint(
                    "this is needed with kind: trace", "add file: requests.csv", field="file", value=None
                )
            if read_trace(Path(self.file)).interarrival_s is None:
                remedy = "add a column timestamp (ms), timestamp_s (s), or dates and times"
                raise complaint("the trace has no arrival times", remedy, field="file", value=self.file)
        elif self.file is not None:
            remedy = "write kind: trace, or leave it out"
            raise complaint(f"has no meaning with kind: {self.kind}", remedy, field="file", value=self.file)
        return self


class Workload(Spec):
    """Requests: their lengths, what of them is cached, how they arrive."""

    input_tokens: TokenLengths = Field(examples=[4096])
    """New prompt tokens of a request: a number, {mean:, cv:}, or {trace: file}."""
    output_tokens: TokenLengths = Field(examples=[1024])
    """Generated tokens of a request: a number, {mean:, cv:}, or {trace: file}."""
    prefix_tokens: float = Field(0.0, ge=0, le=MOST_TOKENS, examples=[0])
    """Prompt tokens whose KV cache exists already when the request arrives: read, not computed."""
    prefix_sharing: Literal["private", "shared"] = "private"
    """Whether every request holds its own copy of the prefix, or the requests of an attention rank share one."""
    arrival: Arrival = Arrival()
    """How requests arrive."""
    expert_distribution: ExpertDistribution = "uniform"
    """How tokens fall on experts: `uniform` (each token draws at random, no favourites), `balanced` (every expert gets
    the same number), a skewed draw as the measured tables hold it, {kind: power_law, exponent:}, or
    {histogram: file}."""

    @model_validator(mode="after")
    def _traces_have_columns(self) -> Self:
        for name in ("input_tokens", "output_tokens"):
            lengths = getattr(self, name)
            if isinstance(lengths, TokenTrace) and getattr(read_trace(Path(lengths.trace)), name) is None:
                message, remedy = f"the trace has no column {name}", f"add it, or give {name} as a number"
                raise complaint(message, remedy, field=f"{name}.trace", value=lengths.trace)
        return self

    def _lengths(self, name: Literal["input_tokens", "output_tokens"]) -> Statistics:
        lengths: float | TokenDistribution | TokenTrace = getattr(self, name)
        if isinstance(lengths, TokenTrace):
            found: Statistics | None = getattr(
                read_trace(Path(lengths.trace), f"workload.{name}.trace"), name
            )
            assert found is not None
            return found
        if isinstance(lengths, TokenDistribution):
            return Statistics(lengths.mean, lengths.cv)
        return Statistics(float(lengths), 0.0)

    @property
    def isl(self) -> float:
        """Mean new prompt tokens."""
        return self._lengths("input_tokens").mean

    @property
    def isl_cv(self) -> float:
        """Coefficient of variation of the new prompt tokens."""
        return self._lengths("input_tokens").cv

    @property
    def osl(self) -> float:
        """Mean generated tokens."""
        return self._lengths("output_tokens").mean

    @property
    def osl_cv(self) -> float:
        """Coefficient of variation of the generated tokens."""
        return self._lengths("output_tokens").cv

    @property
    def prefix(self) -> float:
        """Prompt tokens that are cached already."""
        return float(self.prefix_tokens)

    @property
    def arrival_trace(self) -> Trace | None:
        """The trace that requests arrive by, None for other arrivals."""
        if self.arrival.file is None:
            return None
        return read_trace(Path(self.arrival.file), "workload.arrival.file")

    @property
    def arrival_cv2(self) -> float:
        """Squared coefficient of variation of inter-arrival times.

        1 for Poisson, the trace's own, 0 in a closed loop, where a request comes when another one ends. For a rate
        that jumps: the mixture of both exponential gaps, its value where the rate jumps rarely; what successive short
        gaps do together only a simulation shows.
        """
        arrival = self.arrival
        if arrival.kind == "closed_loop":
            return 0.0
        if arrival.cv is not None:
            return arrival.cv**2
        if arrival.peak_ratio is not None and arrival.peak_share is not None:
            share, ratio = arrival.peak_share, arrival.peak_ratio
            return 2.0 * (1.0 - share + share * ratio) * (1.0 - share + share / ratio) - 1.0
        trace = self.arrival_trace
        return 1.0 if trace is None or trace.interarrival_s is None else trace.interarrival_s.cv**2
