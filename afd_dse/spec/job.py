"""The job file as one validated object: model, cluster, workload, SLO and search."""

from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from afd_dse.errors import InputError
from afd_dse.resources import search_spaces_root
from afd_dse.spec.base import Framework, Spec, absolute, complain_about, complaint
from afd_dse.spec.calibration import CalibrationName
from afd_dse.spec.cluster import AcceleratorOverride, Cluster, Pool
from afd_dse.spec.modes import ALL, ALL_PARTITIONS, resolve_mode, resolve_modes
from afd_dse.spec.suggest import choose
from afd_dse.spec.workload import Arrival, TokenDistribution, TokenTrace, Workload

__all__ = [
    "AcceleratorOverride",
    "Arrival",
    "Cluster",
    "Demand",
    "Framework",
    "Job",
    "Pool",
    "Quantization",
    "Search",
    "Slo",
    "Speculative",
    "TokenDistribution",
    "TokenTrace",
    "Workload",
    "job_warnings",
]

GemmDtype = Literal["bfloat16", "fp8", "fp8_block", "nvfp4", "int4_wo"]
MoeDtype = Literal["bfloat16", "fp8", "fp8_block", "nvfp4", "int4_wo", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8"]
AttentionDtype = Literal["bfloat16", "fp8"]
Objective = Literal["throughput_per_gpu", "total_throughput", "usd_per_mtok", "fewest_gpus"]
Method = Literal["auto", "exhaustive", "optuna"]

ROLES = ("gemm", "moe", "attention", "kv_cache")
"""What has a data type of its own."""
DEFAULT_SPACE = "default"
_NOT_SPACES = ("modes.yaml",)


def _types_form(value: object) -> str:
    return "<several>" if isinstance(value, list | tuple) else "<one>"


def _distinct_types(value: Any) -> Any:
    """A list of one as that one; no type twice."""
    if not isinstance(value, list | tuple):
        return value
    for index, dtype in enumerate(value):
        if dtype in value[:index]:
            raise complaint("this stands twice", "keep one of them", field=f"[{index}]", value=dtype)
    return value[0] if len(value) == 1 else value


_Several = Field(strict=False, min_length=1)
GemmTypes = Annotated[
    Annotated[GemmDtype, Tag("<one>")] | Annotated[tuple[GemmDtype, ...], _Several, Tag("<several>")],
    Discriminator(_types_form),
    BeforeValidator(_distinct_types),
]
MoeTypes = Annotated[
    Annotated[MoeDtype, Tag("<one>")] | Annotated[tuple[MoeDtype, ...], _Several, Tag("<several>")],
    Discriminator(_types_form),
    BeforeValidator(_distinct_types),
]
AttentionTypes = Annotated[
    Annotated[AttentionDtype, Tag("<one>")]
    | Annotated[tuple[AttentionDtype, ...], _Several, Tag("<several>")],
    Discriminator(_types_form),
    BeforeValidator(_distinct_types),
]


class Quantization(Spec):
    """Data types by role; what is absent is read from the model's own configuration.

    A role may list several types: the search then answers over all combinations that can run. It knows their speed and
    memory; whether a model quantised so still answers well enough is for its user to judge.
    """

    gemm: GemmTypes | None = Field(None, examples=["fp8_block", ["fp8_block", "nvfp4"]])
    """Projections and dense FFN."""
    moe: MoeTypes | None = Field(None, examples=["fp8_block", ["fp8_block", "nvfp4"]])
    """Routed experts."""
    attention: AttentionTypes | None = Field(None, examples=["bfloat16"])
    """What the attention kernels compute in."""
    kv_cache: AttentionTypes | None = Field(None, examples=["fp8", ["bfloat16", "fp8"]])
    """What the KV cache stores."""

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """The roles that list several types, and these."""
        return {role: value for role in ROLES if isinstance(value := getattr(self, role), tuple)}

    def alternatives(self) -> list["Quantization"]:
        """Every combination of the listed types, each with one type a role, in the order of the lists."""
        choices = self.choices
        return [
            self.model_copy(update=dict(zip(choices, picked, strict=True)))
            for picked in product(*choices.values())
        ]


class Speculative(Spec):
    """Draft tokens by the model's own next-token modules (MTP)."""

    draft_tokens: int = Field(0, ge=0, le=16, examples=[1])
    """Tokens drafted in one decode step; 0: none."""
    accepted_tokens_per_step: float = Field(1.0, ge=1, examples=[1.8])
    """Mean tokens that one step yields, the certain one included: between 1 and 1 + `draft_tokens`."""

    @model_validator(mode="after")
    def _no_more_than_drafted(self) -> Self:
        if self.accepted_tokens_per_step > 1 + self.draft_tokens:
            message = f"more than 1 + draft_tokens = {1 + self.draft_tokens}"
            remedy = "raise draft_tokens, or accept fewer"
            value = self.accepted_tokens_per_step
            raise complaint(message, remedy, field="accepted_tokens_per_step", value=value)
        return self


class Slo(Spec):
    """Limits that a deployment must keep; an absent or null one is no limit."""

    ttft_ms: float | None = Field(None, gt=0, examples=[2000])
    """Time to the first token, queueing included, ms."""
    tpot_ms: float | None = Field(None, gt=0, examples=[30])
    """Mean time between output tokens of a request, ms."""
    request_latency_ms: float | None = Field(None, gt=0, examples=[30000])
    """Time of the whole request, ms."""
    percentile: float = Field(50.0, ge=50, le=99.9, examples=[90])
    """Percentile of the requests at which TTFT is judged, 50 to 99.9."""
    confidence: float | None = Field(None, ge=0.5, le=0.99, examples=[0.9])
    """Probability with which a deployment must keep its limits, by the scatter of predictions against measured runs;
    absent: the limits hold for the predictions themselves."""

    @property
    def is_open(self) -> bool:
        """Whether nothing is limited."""
        return self.ttft_ms is None and self.tpot_ms is None and self.request_latency_ms is None


class Demand(Spec):
    """A load in requests."""

    requests_per_s: float = Field(gt=0, le=1e9, examples=[20.0])
    """Requests per second that the deployment must sustain."""


def _canonical_mode(text: str) -> str:
    try:
        return resolve_mode(text)[0]
    except InputError as error:
        raise complain_about(error) from None


def _modes_form(value: object) -> str:
    return "<all>" if isinstance(value, str) else "<list>"


def _one_mode_as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) and value not in (ALL, ALL_PARTITIONS) else value


ModeName = Annotated[str, AfterValidator(_canonical_mode)]


def _writable_file(text: str, info: ValidationInfo) -> str:
    """Absolute path of a file that may be made or written."""
    path = absolute(text, info)
    if path.is_dir() or not path.parent.is_dir():
        message = "this is a folder" if path.is_dir() else f"the folder {path.parent} does not exist"
        raise complaint(message, "give the path of a file in an existing folder")
    return str(path)


class Search(Spec):
    """What is searched, by what objective, and how."""

    modes: Annotated[
        Annotated[Literal["all", "all_partitions"], Tag("<all>")]
        | Annotated[tuple[ModeName, ...], Field(strict=False, min_length=1), Tag("<list>")],
        Discriminator(_modes_form),
        BeforeValidator(_one_mode_as_list),
    ] = Field("all", examples=["all", ["colocated", "pd", "PA PF | DA | DF"]])
    """Deployment modes: `all` with a name, `all_partitions` (15), or a list of names (of modes, or of systems as in
    search_spaces/presets) and partitions of the cells PA PF DA DF (P prefill, D decode, A attention, F FFN)."""
    objective: Objective = "throughput_per_gpu"
    """`throughput_per_gpu` and `total_throughput`: output tokens per second; `usd_per_mtok`: price of a million output
    tokens; `fewest_gpus`: GPUs that serve `demand.requests_per_s`."""
    space: str = Field(DEFAULT_SPACE, min_length=1, examples=[DEFAULT_SPACE])
    """Search space: a file relative to the job file, or one that ships with the package (`default`, `quick`, …), also
    by its path `search_spaces/default.yaml`."""
    launchable: bool = False
    """`true`: only deployments that a release of the framework runs today, with what it takes."""
    method: Method = "auto"
    """`exhaustive` enumerates the space, `optuna` samples it, `auto` decides and says why."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of a sampled search; the same seed finds the same answer."""
    trials: int | None = Field(None, ge=1, le=100_000_000, examples=[20000])
    """Layouts that a sampled search may evaluate; absent: the method's own default."""
    storage: str | None = Field(None, min_length=1, examples=["study.journal", "sqlite:///study.db"])
    """Where a sampled search keeps its trials, to be continued from there and shared by several processes: a journal
    file, relative to the job file, or the URL of a database (`sqlite:///study.db`, `postgresql://user@host/studies`)."""
    journal: str | None = Field(None, min_length=1, examples=["study.journal"])
    """Older name of `storage`, for a file."""

    @field_validator("modes")
    @classmethod
    def _distinct(cls, modes: str | tuple[str, ...]) -> str | tuple[str, ...]:
        return modes if isinstance(modes, str) else tuple(dict.fromkeys(modes))

    @field_validator("space")
    @classmethod
    def _existing_space(cls, text: str, info: ValidationInfo) -> str:
        shipped = {path.stem: path for path in sorted(search_spaces_root().glob("*.yaml"))}
        spaces = {name: path for name, path in shipped.items() if path.name not in _NOT_SPACES}
        own = absolute(text, info)
        if own.is_file() and own not in (path.resolve() for path in spaces.values()):
            return str(own)
        for name, path in spaces.items():
            if text in (name, path.name, f"search_spaces/{path.name}") or own == path.resolve():
                return name
        remedy = f"{choose(text, spaces)}, or the path of a file" if spaces else "give the path of a file"
        raise complaint("no such search space", remedy)

    @field_validator("journal")
    @classmethod
    def _writable_journal(cls, text: str | None, info: ValidationInfo) -> str | None:
        return None if text is None else _writable_file(text, info)

    @field_validator("storage")
    @classmethod
    def _usable_storage(cls, text: str | None, info: ValidationInfo) -> str | None:
        if text is None or "://" not in text:
            return None if text is None else _writable_file(text, info)
        url = urlsplit(text)
        if url.password:
            shown = text.replace(f":{url.password}@", ":…@")
            remedy = "leave it out; the database's own ways (PGPASSWORD, ~/.pgpass, …) keep it secret"
            raise complaint("a password would be written into every result", remedy, value=shown)
        if url.scheme.partition("+")[0] != "sqlite":
            return text
        if not url.path.strip("/"):
            raise complaint("a database in memory is shared with nobody", "write sqlite:///FILE")
        return f"{url.scheme}:///{_writable_file(url.path.removeprefix('/'), info)}"

    @model_validator(mode="after")
    def _one_storage(self) -> Self:
        if self.storage is not None and self.journal is not None:
            message = "storage says where trials are kept"
            raise complaint(message, "leave journal out", field="journal", value=self.journal)
        return self

    @property
    def partitions(self) -> list[tuple[str, str]]:
        """The modes as (name, canonical partition)."""
        return resolve_modes(self.modes)

    @property
    def space_path(self) -> Path:
        """Absolute path of the search space."""
        return (
            Path(self.space)
            if Path(self.space).is_absolute()
            else search_spaces_root() / f"{self.space}.yaml"
        )


def _model_form(value: object) -> str:
    return "<inline>" if isinstance(value, dict) else "<name>"


def _model_reference(text: str, info: ValidationInfo) -> str:
    if not text.strip():
        raise complaint("the model is empty", "give a catalogue name, or a path to a config.json")
    path = absolute(text, info)
    is_path = text.startswith((".", "/", "~")) or text.endswith(".json")
    is_config = (path / "config.json").is_file() or (path.is_file() and path.suffix == ".json")
    if is_config and (is_path or not _is_catalogued(text)):
        return str(path)
    if is_path:
        message = "the folder holds no config.json" if path.is_dir() else "no such file"
        raise complaint(message, "give the path of a config.json or of its folder, relative to the job file")
    return text.strip()


def _is_catalogued(text: str) -> bool:
    # NOTE: the catalogue of models belongs to the next room; asked only when a folder has the name of a model.
    from afd_dse.architecture.catalogue import resolve_name

    try:
        resolve_name(text)
    except InputError:
        return False
    return True


def _filled(value: dict[str, Any]) -> dict[str, Any]:
    if not value:
        raise complaint("the model is empty", "give the content of its config.json")
    return value


ModelName = Annotated[
    Annotated[str, AfterValidator(_model_reference), Tag("<name>")]
    | Annotated[dict[str, Any], AfterValidator(_filled), Tag("<inline>")],
    Discriminator(_model_form),
]


class Job(Spec):
    """Everything that a search needs to know: `afd-dse optimize JOB`."""

    model: ModelName = Field(examples=["deepseek-ai/DeepSeek-V3"])
    """Catalogue name, path to a Hugging Face config.json (or its folder) relative to the job file, or its content as a
    mapping."""
    quantization: Quantization = Quantization()
    """Data types that differ from the checkpoint's."""
    speculative: Speculative = Speculative()
    """Speculative decoding."""
    framework: Framework = "trtllm"
    """Serving framework whose measured kernels are used."""
    cluster: Cluster = Field(
        examples=[{"pools": [{"name": "main", "accelerator": "b200_sxm", "count": 128}]}]
    )
    """The accelerators at hand."""
    workload: Workload = Field(examples=[{"input_tokens": 4096, "output_tokens": 1024}])
    """What the users ask for."""
    slo: Slo = Slo()
    """Limits that a deployment must keep; absent: none."""
    demand: Demand | None = None
    """The load that must be served; needed by the objective `fewest_gpus`."""
    search: Search = Search()
    """What is searched, and how."""
    calibration: CalibrationName = "default"
    """What engines take beyond their kernels: `default` (fitted to published runs), `none`, or a file that
    `afd-dse calibrate` wrote."""
    notes: tuple[str, ...] = Field((), strict=False)
    """Remarks that go with the job, such as what a foreign format said that a job cannot."""

    @model_validator(mode="before")
    @classmethod
    def _null_section_is_absent(cls, data: Any) -> Any:
        optional = ("quantization", "speculative", "slo", "demand", "search")
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if not (value is None and key in optional)}
        return data

    @model_validator(mode="after")
    def _objective_has_demand(self) -> Self:
        if self.search.objective == "fewest_gpus" and self.demand is None:
            remedy = "add demand: {requests_per_s: ...}, or choose another objective"
            message = "needs demand.requests_per_s"
            raise complaint(message, remedy, field="search.objective", value=self.search.objective)
        return self


def job_warnings(job: Job) -> list[str]:
    """What is legal in ``job`` but may not be meant; one sentence each."""
    found = list(job.notes)
    if job.slo.is_open:
        found.append("slo: no limit is set, so the answer may make users wait as long as it pleases")
    # NOTE: models belong to the next room; read on demand, so that validation alone stays light.
    from afd_dse.architecture.catalogue import served_by

    serving = served_by(job.model)
    if serving and job.framework not in serving:
        found.append(
            f"framework: {job.framework} does not serve {job.model}, and its kernels were not made for it; served by "
            f"{', '.join(serving)}"
        )
    for index, pool in enumerate(job.cluster.pools):
        accelerator, where = pool.resolved, f"cluster.pools[{index}]"
        if accelerator.tables is None:
            found.append(
                f"{where}.accelerator: {accelerator.name} has no measured tables; its latencies rest on its speed of "
                f"light and the efficiencies of {accelerator.efficiency_from}"
            )
        if pool.count > accelerator.node_gpus and pool.count % accelerator.node_gpus:
            found.append(
                f"{where}.count: {pool.count} is not a multiple of the {accelerator.node_gpus} GPUs of a node of "
                f"{accelerator.name}"
            )
    return found
