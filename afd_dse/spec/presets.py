"""Systems of the literature as data: a partition, and what of a search space they use."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from afd_dse.errors import DatabaseError, InputError
from afd_dse.resources import parse_yaml, search_spaces_root
from afd_dse.spec.cells import parse_partition

Grids = Mapping[str, Mapping[str, Any]]
_STRUCTURES = ("whole", "split", "shared")


@dataclass(frozen=True, slots=True)
class Preset:
    """A system: ``partition`` is its canonical text; ``grids`` replaces lists of a space, by structure of a unit."""

    name: str
    partition: str
    title: str
    source: str
    also_known_as: tuple[str, ...]
    grids: Grids


@lru_cache(maxsize=1)
def presets() -> tuple[Preset, ...]:
    """All presets by name; raises :class:`DatabaseError` when a file is unusable."""
    return tuple(_read(path) for path in sorted((search_spaces_root() / "presets").glob("*.yaml")))


def grids_of(name: str) -> Grids:
    """What the preset ``name`` replaces in a space; nothing for a name that is none."""
    return next((preset.grids for preset in presets() if preset.name == name), MappingProxyType({}))


def _read(path: Path) -> Preset:
    try:
        entry = parse_yaml(path.read_text(encoding="utf-8"))
        grids = {structure: dict(fields) for structure, fields in entry["grids"].items()}
        if unknown := set(grids) - set(_STRUCTURES):
            raise DatabaseError(f"{path}: unknown structures {sorted(unknown)}")
        return Preset(
            path.stem,
            parse_partition(entry["partition"]).text,
            entry["title"],
            entry["source"],
            tuple(entry["also_known_as"]),
            MappingProxyType(grids),
        )
    except (OSError, yaml.YAMLError, KeyError, AttributeError, TypeError, ValueError, InputError) as error:
        raise DatabaseError(f"{path}: unusable preset ({error})") from error
