"""The catalogue of accelerators: facts from ``operator_db/catalogue/accelerators.yaml`` by name or alias."""

from functools import lru_cache
from pathlib import Path

import yaml
from pydantic import ValidationError

from afd_dse.errors import DatabaseError, InputError, Problem
from afd_dse.resources import operator_db_root, parse_yaml
from afd_dse.spec.accelerator import Accelerator
from afd_dse.spec.suggest import choose, normalised

_FILE = Path("catalogue") / "accelerators.yaml"
_VENDOR = "nvidia"


def accelerator_names() -> tuple[str, ...]:
    """Canonical names in catalogue order, accelerators with tables of their own first."""
    return tuple(_catalogue()[0])


def accelerator_aliases() -> dict[str, tuple[str, ...]]:
    """Other spellings of each canonical name."""
    return dict(_catalogue()[1])


def load_accelerator(name: str, field: str = "accelerator") -> Accelerator:
    """Look up an accelerator by name or alias, in any case and with any separators.

    Raises :class:`InputError` naming ``field``, with the closest names, when it is not in the catalogue.
    """
    accelerators = _catalogue()[0]
    spelling = normalised(name).removeprefix(_VENDOR)
    canonical = _spellings().get(spelling)
    if canonical is None:
        # NOTE: a user who writes h100_pcie must not get the SXM part silently, so only exact aliases match.
        remedy = f"{choose(name, accelerators)}, or describe it inline: {{base: <name>, hbm_gb_s: ...}}"
        raise InputError(Problem(field, name, "unknown accelerator", remedy))
    return accelerators[canonical]


@lru_cache(maxsize=1)
def _spellings() -> dict[str, str]:
    accelerators, aliases = _catalogue()
    found: dict[str, str] = {}
    for name in accelerators:
        for spelling in (name, *aliases[name]):
            key = normalised(spelling)
            if found.setdefault(key, name) != name:
                raise DatabaseError(f"{_FILE}: {spelling!r} names both {found[key]} and {name}")
    return found


@lru_cache(maxsize=1)
def _catalogue() -> tuple[dict[str, Accelerator], dict[str, tuple[str, ...]]]:
    path = operator_db_root() / _FILE
    try:
        entries = parse_yaml(path.read_text(encoding="utf-8"))["accelerators"]
        aliases = {name: tuple(entry.pop("aliases", ())) for name, entry in entries.items()}
        accelerators = {name: Accelerator(name=name, **entry) for name, entry in entries.items()}
    except (OSError, yaml.YAMLError, KeyError, AttributeError, TypeError, ValidationError) as error:
        raise DatabaseError(f"{path}: unusable catalogue of accelerators ({error})") from error
    for name, accelerator in accelerators.items():
        measured = accelerators.get(accelerator.tables or accelerator.efficiency_from or "")
        if measured is None or measured.tables is None:
            raise DatabaseError(f"{path}: {name} needs tables, or efficiency_from an accelerator with tables")
    return accelerators, aliases
