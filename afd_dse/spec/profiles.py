"""Hardware as papers count it, by profile: ``operator_db/catalogue/published_profiles.yaml``."""

from collections.abc import Mapping
from functools import lru_cache

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from afd_dse.errors import DatabaseError, InputError, Problem
from afd_dse.resources import operator_db_root, parse_yaml
from afd_dse.spec.catalogue import load_accelerator
from afd_dse.spec.suggest import choose, normalised


class PublishedHardware(BaseModel):
    """The figures that a paper uses for one part, SI; None where it states none."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    peak_flops: float
    hbm_bytes_per_s: float | None = None
    scale_up_bytes_per_s: float | None = None
    scale_out_bytes_per_s: float | None = None
    node_gpus: int = 8
    usd_per_gpu_hour: float | None = None

    @classmethod
    def of_catalogue(cls, name: str, field: str = "hardware") -> "PublishedHardware":
        """A part as the catalogue of accelerators has it, by its peak of eight-bit types where it computes in them."""
        part = load_accelerator(name, field)
        return cls(
            name=part.name,
            peak_flops=part.peak_flops.get("fp8", part.peak_flops["bfloat16"]),
            hbm_bytes_per_s=part.hbm_bytes_per_s,
            scale_up_bytes_per_s=part.scale_up_bytes_per_s,
            scale_out_bytes_per_s=part.scale_out_bytes_per_s,
            node_gpus=part.node_gpus,
            usd_per_gpu_hour=part.usd_per_gpu_hour,
        )


class PublishedProfile(BaseModel):
    """All parts of one paper, by name in its order, and where they come from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    source: str
    hardware: Mapping[str, PublishedHardware]

    def part(self, name: str, field: str = "hardware") -> PublishedHardware:
        """A part by name, with or without its form factor; InputError with the names that there are."""
        wanted = normalised(name)
        for known, part in self.hardware.items():
            if wanted in (known, f"{known}sxm", f"{known}nvl72", f"ascend{known}"):
                return part
        raise InputError(
            Problem(field, name, f"is not in the profile {self.name}", choose(name, self.hardware))
        )

    def has(self, name: str) -> bool:
        """Whether :meth:`part` finds ``name``."""
        try:
            self.part(name)
        except InputError:
            return False
        return True


def profile_names() -> tuple[str, ...]:
    """Names of the profiles."""
    return tuple(_profiles())


def load_profile(name: str, field: str = "profile") -> PublishedProfile:
    """A profile by name; InputError with the names that there are."""
    found = _profiles().get(name.casefold())
    if found is None:
        raise InputError(Problem(field, name, "is not a known hardware profile", choose(name, _profiles())))
    return found


@lru_cache(maxsize=1)
def _profiles() -> dict[str, PublishedProfile]:
    path = operator_db_root() / "catalogue" / "published_profiles.yaml"
    try:
        entries = parse_yaml(path.read_text(encoding="utf-8"))
        return {
            name: PublishedProfile(
                name=name,
                source=entry["source"],
                hardware={
                    str(part): PublishedHardware(name=str(part), **figures)
                    for part, figures in entry["hardware"].items()
                },
            )
            for name, entry in entries.items()
        }
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValidationError) as error:
        raise DatabaseError(f"{path}: unusable catalogue of published hardware ({error})") from error
