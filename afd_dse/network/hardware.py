"""The links and peak of an FFN GPU for the supply bound: from the catalogue, or as a paper counts them."""

from dataclasses import dataclass

from afd_dse.errors import InputError, Problem
from afd_dse.network.supply import Fabric
from afd_dse.operators.speed_of_light import peak_flops
from afd_dse.spec.catalogue import load_accelerator
from afd_dse.spec.profiles import PublishedHardware, load_profile, profile_names
from afd_dse.spec.suggest import choose

CATALOGUE = "catalogue"


@dataclass(frozen=True, slots=True)
class SupplyHardware:
    """One GPU as the supply bound sees it, and where its figures come from."""

    name: str
    profile: str
    fabric: Fabric
    peak_flops: float
    source: str


def supply_profiles() -> tuple[str, ...]:
    """Names of the hardware profiles that state links: the catalogue and the published ones."""
    return (CATALOGUE, *(name for name in profile_names() if _states_links(name)))


def supply_hardware(name: str, profile: str = CATALOGUE, *, dtype: str = "fp8") -> SupplyHardware:
    """The hardware called ``name`` in ``profile``.

    The catalogue's links are line rates and its domain is the scale-up domain (72 GPUs in 18 nodes on NVL72); its peak
    is that of ``dtype``, or of bfloat16 where the part lacks it. Raises InputError for an unknown name or profile.
    """
    if profile.casefold() == CATALOGUE:
        part = load_accelerator(name)
        fabric = Fabric(
            part.scale_out_bytes_per_s,
            part.scale_up_bytes_per_s,
            part.node_gpus,
            part.scale_up_gpus / part.node_gpus,
        )
        return SupplyHardware(part.name, CATALOGUE, fabric, peak_flops(part, dtype), part.source)
    if profile.casefold() not in supply_profiles():
        raise InputError(Problem("profile", profile, "states no links", choose(profile, supply_profiles())))
    published = load_profile(profile)
    entry = published.part(name, "accelerator")
    links = _fabric(entry)
    assert links is not None  # supply_profiles() lists no others
    return SupplyHardware(
        entry.name,
        published.name,
        links,
        entry.peak_flops,
        published.source,
    )


def _states_links(profile: str) -> bool:
    return all(_fabric(part) is not None for part in load_profile(profile).hardware.values())


def _fabric(part: PublishedHardware) -> Fabric | None:
    if part.scale_out_bytes_per_s is None or part.scale_up_bytes_per_s is None:
        return None
    return Fabric(part.scale_out_bytes_per_s, part.scale_up_bytes_per_s, part.node_gpus)
