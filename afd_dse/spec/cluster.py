"""The hardware of a job: pools of equal accelerators, taken from the catalogue or described in place."""

from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from afd_dse.errors import InputError
from afd_dse.spec.accelerator import Accelerator
from afd_dse.spec.base import Spec, complain_about, complaint
from afd_dse.spec.catalogue import accelerator_names, load_accelerator
from afd_dse.spec.suggest import choose

PEAK_DTYPES = ("bfloat16", "fp8", "fp4", "int8")

# Fields in the units of data sheets, and what they are inside: (field of Accelerator, factor).
_EDGE_UNITS = {
    "hbm_gib": ("hbm_bytes", 2.0**30),
    "hbm_gb_s": ("hbm_bytes_per_s", 1e9),
    "scale_up_gb_s": ("scale_up_bytes_per_s", 1e9),
    "scale_out_gb_s": ("scale_out_bytes_per_s", 1e9),
}
_PLAIN = (
    "hbm_bytes",
    "hbm_bytes_per_s",
    "scale_up_gpus",
    "scale_up_bytes_per_s",
    "scale_up_latency_s",
    "scale_out_bytes_per_s",
    "scale_out_latency_s",
    "node_gpus",
    "power_w",
    "usd_per_gpu_hour",
)
_OPTIONAL = ("scale_up_latency_s", "scale_out_latency_s")


def _canonical_accelerator(name: str) -> str:
    try:
        return load_accelerator(name).name
    except InputError as error:
        raise complain_about(error) from None


AcceleratorName = Annotated[str, AfterValidator(_canonical_accelerator)]
Positive = Annotated[float, Field(gt=0)]


class AcceleratorOverride(Spec):
    """An accelerator described in the job: a catalogue entry with changes (`base`), or a complete new one."""

    base: AcceleratorName | None = Field(None, examples=["b200_sxm"])
    """Catalogue entry that supplies every field not given here; absent, all fields are needed."""
    name: str | None = Field(None, min_length=1)
    """Name in reports; default: that of `base`. Needed without `base`."""
    peak_tflops: dict[str, Positive] | None = Field(None, examples=[{"bfloat16": 989.0, "fp8": 1979.0}])
    """Dense peak by data type (bfloat16, fp8, fp4, int8), TFLOP/s; with `base`, only the given types change."""
    peak_flops: dict[str, Positive] | None = None
    """The same in FLOP/s; give one of the two."""
    hbm_gib: Positive | None = Field(None, examples=[80.0])
    """Memory of a GPU, GiB."""
    hbm_bytes: Positive | None = None
    """Memory of a GPU, bytes; give this or `hbm_gib`."""
    hbm_gb_s: Positive | None = Field(None, examples=[3350.0])
    """Memory bandwidth, GB/s."""
    hbm_bytes_per_s: Positive | None = None
    """Memory bandwidth, bytes/s; give this or `hbm_gb_s`."""
    scale_up_gpus: int | None = Field(None, ge=1, examples=[8])
    """GPUs of one scale-up (NVLink) domain."""
    scale_up_gb_s: Positive | None = Field(None, examples=[450.0])
    """Scale-up bandwidth per GPU and direction, GB/s."""
    scale_up_bytes_per_s: Positive | None = None
    """Scale-up bandwidth per GPU and direction, bytes/s; give this or `scale_up_gb_s`."""
    scale_up_latency_s: Positive | None = None
    """Latency of one transfer inside the scale-up domain, seconds."""
    scale_out_gb_s: Positive | None = Field(None, examples=[50.0])
    """Network bandwidth per GPU and direction, GB/s."""
    scale_out_bytes_per_s: Positive | None = None
    """Network bandwidth per GPU and direction, bytes/s; give this or `scale_out_gb_s`."""
    scale_out_latency_s: Positive | None = None
    """Latency of one transfer over the network, seconds."""
    node_gpus: int | None = Field(None, ge=1, examples=[8])
    """GPUs of one node (tray)."""
    power_w: Positive | None = Field(None, examples=[1730.0])
    """All-in power of one GPU with its share of node, network and cooling, watts."""
    usd_per_gpu_hour: float | None = Field(None, ge=0, examples=[2.5])
    """Price of one GPU for one hour, USD."""
    efficiency_from: AcceleratorName | None = Field(None, examples=["h100_sxm"])
    """Catalogue accelerator whose measured kernel efficiencies are borrowed; needed without `base`."""

    @field_validator("peak_tflops", "peak_flops")
    @classmethod
    def _known_dtypes(cls, peaks: dict[str, float] | None) -> dict[str, float] | None:
        for dtype in peaks or {}:
            if dtype not in PEAK_DTYPES:
                raise complaint(
                    "unknown data type", choose(dtype, PEAK_DTYPES), field=dtype, value=dtype
                )  # fmt: skip
        if peaks is not None and not peaks:
            raise complaint("no data type given", "give at least bfloat16")
        return peaks

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        pairs = {edge: plain for edge, (plain, _) in _EDGE_UNITS.items()} | {"peak_tflops": "peak_flops"}
        for edge, plain in pairs.items():
            if getattr(self, edge) is not None and getattr(self, plain) is not None:
                value = getattr(self, edge)
                raise complaint(f"given together with {plain}", "keep one of them", field=edge, value=value)
        if self.base is None:
            self._check_complete()
        elif self.efficiency_from is not None and load_accelerator(self.base).tables:
            message = f"{self.base} has measured tables of its own"
            raise complaint(message, "leave it out", field="efficiency_from", value=self.efficiency_from)
        return self

    def _check_complete(self) -> None:
        if self.name is not None and self.name in accelerator_names():
            remedy = f"write base: {self.name} to change it, or choose another name"
            raise complaint("a catalogue entry has this name", remedy, field="name", value=self.name)
        given = self._changes()
        needed = [field for field in _PLAIN if field not in _OPTIONAL]
        edges = {plain: edge for edge, (plain, _) in _EDGE_UNITS.items()}
        missing = [edges.get(field, field) for field in needed if field not in given]
        missing += [] if self.peak_tflops or self.peak_flops else ["peak_tflops"]
        missing += [field for field in ("name", "efficiency_from") if getattr(self, field) is None]
        if missing:
            remedy = "add them, or start from a catalogue entry with base: <name>"
            raise complaint(f"an accelerator without `base` needs {', '.join(missing)}", remedy)

    def _changes(self) -> dict[str, Any]:
        """Given fields under their names in :class:`Accelerator`, in SI units, without the peaks."""
        found = {field: getattr(self, field) for field in _PLAIN}
        for edge, (plain, factor) in _EDGE_UNITS.items():
            if (value := getattr(self, edge)) is not None:
                found[plain] = value * factor
        return {field: value for field, value in found.items() if value is not None}

    def resolve(self) -> Accelerator:
        """The accelerator described, in SI units."""
        peaks = self.peak_flops or {dtype: 1e12 * peak for dtype, peak in (self.peak_tflops or {}).items()}
        changes = self._changes()
        if self.base is not None:
            base = load_accelerator(self.base)
            changes["peak_flops"] = base.peak_flops | peaks
            changes["name"] = self.name or base.name
            changes["efficiency_from"] = self.efficiency_from or base.efficiency_from
            return base.model_copy(update=changes)
        assert self.efficiency_from is not None
        assert self.name is not None
        lender = load_accelerator(self.efficiency_from)
        return Accelerator(
            name=self.name,
            generation=lender.generation,
            efficiency_from=lender.tables or lender.efficiency_from,
            peak_flops=peaks,
            source="the job",
            **changes,
        )

    def reference(self) -> Accelerator:
        """The catalogue entry under the changes; the accelerator itself when there is none."""
        return self.resolve() if self.base is None else load_accelerator(self.base)


def _accelerator_form(value: object) -> str:
    return "<inline>" if isinstance(value, dict | AcceleratorOverride) else "<name>"


class Pool(Spec):
    """Equal accelerators of a cluster."""

    name: str = Field(min_length=1, examples=["main"])
    """Name of the pool in reports; unique in the cluster."""
    accelerator: Annotated[
        Annotated[AcceleratorName, Tag("<name>")] | Annotated[AcceleratorOverride, Tag("<inline>")],
        Discriminator(_accelerator_form),
    ] = Field(examples=["b200_sxm"])
    """Catalogue name, or a mapping that changes a catalogue entry: {base: b200_sxm, hbm_gb_s: 16000}."""
    count: int = Field(ge=1, le=1_000_000, examples=[128])
    """GPUs in the pool: a budget, of which a deployment may use fewer."""
    usd_per_gpu_hour: float | None = Field(None, ge=0, examples=[4.0])
    """Price of one GPU for one hour, USD; absent: the catalogue's reference price."""
    power_w: float | None = Field(None, gt=0)
    """All-in power of one GPU, watts; absent: the catalogue's."""
    usable_memory_fraction: float | None = Field(None, ge=0.01, le=1, examples=[0.9])
    """Share of the memory that a deployment may fill; absent: the framework's own default."""

    _scale_out_bytes_per_s: float | None = PrivateAttr(default=None)

    @property
    def reference(self) -> Accelerator:
        """The catalogue entry, untouched: the rates that its measured efficiencies refer to."""
        if isinstance(self.accelerator, str):
            return load_accelerator(self.accelerator)
        return self.accelerator.reference()

    @property
    def resolved(self) -> Accelerator:
        """The accelerator with everything that the job changes: rates, network of the cluster, power, price."""
        inline = None if isinstance(self.accelerator, str) else self.accelerator
        accelerator = self.reference if inline is None else inline.resolve()
        changes: dict[str, Any] = {}
        own_network = inline is not None and (inline.scale_out_gb_s or inline.scale_out_bytes_per_s)
        if self._scale_out_bytes_per_s is not None and not own_network:
            changes["scale_out_bytes_per_s"] = self._scale_out_bytes_per_s
        if self.usd_per_gpu_hour is not None:
            changes["usd_per_gpu_hour"] = self.usd_per_gpu_hour
        if self.power_w is not None:
            changes["power_w"] = self.power_w
        return accelerator.model_copy(update=changes)


class Cluster(Spec):
    """Pools of accelerators and the network between them."""

    scale_out_gb_s: float | None = Field(None, gt=0, examples=[50.0])
    """Network bandwidth between nodes per GPU and direction, GB/s; absent: each accelerator's own. A pool that
    states the rate in its accelerator keeps it."""
    pools: tuple[Pool, ...] = Field(
        strict=False,
        min_length=1,
        examples=[[{"name": "main", "accelerator": "b200_sxm", "count": 128}]],
    )
    """Pools of equal accelerators; several make the cluster heterogeneous."""

    @field_validator("pools")
    @classmethod
    def _distinct_and_networked(cls, pools: tuple[Pool, ...], info: ValidationInfo) -> tuple[Pool, ...]:
        names: dict[str, int] = {}
        for index, pool in enumerate(pools):
            if (first := names.setdefault(pool.name, index)) != index:
                message = f"pools[{first}] has the same name"
                raise complaint(message, "give every pool its own", field=f"[{index}].name", value=pool.name)
        rate = info.data.get("scale_out_gb_s")
        if rate is None:
            return pools
        networked = tuple(pool.model_copy() for pool in pools)
        for pool in networked:
            pool._scale_out_bytes_per_s = rate * 1e9
        return networked

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(pool.count for pool in self.pools)
