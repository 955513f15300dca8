"""Deployment modes by name: those of ``search_spaces/modes.yaml``, presets, and any other partition by its text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import yaml

from afd_dse.errors import DatabaseError, InputError, Problem
from afd_dse.resources import parse_yaml, search_spaces_root
from afd_dse.spec.cells import PARTITIONS, parse_partition
from afd_dse.spec.presets import Preset, presets
from afd_dse.spec.suggest import closest, normalised

ALL = "all"
ALL_PARTITIONS = "all_partitions"


@dataclass(frozen=True, slots=True)
class Mode:
    """A partition of the cells that has a name; ``partition`` is its canonical text."""

    name: str
    partition: str
    title: str
    summary: str
    also_known_as: tuple[str, ...]


@lru_cache(maxsize=1)
def named_modes() -> tuple[Mode, ...]:
    """Modes with a name, in the order of reports. Raises :class:`DatabaseError` when the file is unusable."""
    path = search_spaces_root() / "modes.yaml"
    try:
        entries = parse_yaml(path.read_text(encoding="utf-8"))["modes"]
        modes = tuple(
            Mode(
                name,
                _canonical(entry["partition"], "partition"),
                entry["title"],
                entry["summary"],
                tuple(entry["also_known_as"]),
            )
            for name, entry in entries.items()
        )
    except (OSError, yaml.YAMLError, KeyError, AttributeError, TypeError, InputError) as error:
        raise DatabaseError(f"{path}: unusable list of modes ({error})") from error
    if len({mode.partition for mode in modes}) != len(modes):
        raise DatabaseError(f"{path}: two modes have the same partition")
    return modes


def resolve_mode(value: str, field: str = "search.modes") -> tuple[str, str]:
    """Name and canonical partition of one mode, given by name or alias (also of a preset) or partition text.

    A partition without a name is named by its text. Raises :class:`InputError` naming ``field``.
    """
    spelling = normalised(value)
    every: list[Mode | Preset] = [*named_modes(), *presets()]
    for mode in every:
        if spelling in {normalised(name) for name in (mode.name, *mode.also_known_as)}:
            return mode.name, mode.partition
    if not _reads_as_partition(value):
        known = [mode.name for mode in every]
        near = closest(value, known)
        hint = f"did you mean {' or '.join(near)}? Use" if near else "use"
        remedy = f"{hint} all, one of {', '.join(known)}, or a partition such as 'PA PF | DA | DF'"
        raise InputError(Problem(field, value, "unknown mode", remedy))
    partition = _canonical(value, field)
    return mode_name(partition), partition


def resolve_modes(value: str | Sequence[str], field: str = "search.modes") -> list[tuple[str, str]]:
    """Distinct modes as (name, canonical partition), in the given order.

    ``"all"`` are the named ones, ``"all_partitions"`` all 15 set partitions of the cells, the named ones first.
    """
    if isinstance(value, str):
        if value in (ALL, ALL_PARTITIONS):
            named = {mode.partition: mode.name for mode in named_modes()}
            others = [] if value == ALL else [text for text in _every_partition() if text not in named]
            return [(name, text) for text, name in named.items()] + [(text, text) for text in others]
        return [resolve_mode(value, field)]
    found = [resolve_mode(text, f"{field}[{index}]") for index, text in enumerate(value)]
    return list(dict.fromkeys(found))


def mode_name(partition: str) -> str:
    """Name of a canonical partition text, the text itself where it has none."""
    return next((mode.name for mode in named_modes() if mode.partition == partition), partition)


def _reads_as_partition(value: str) -> bool:
    words = value.replace("|", " ").replace(",", " ").split()
    return "|" in value or (len(words) > 1 and all(len(word) <= 2 for word in words))


def _canonical(text: str, field: str) -> str:
    return parse_partition(text, field).text


def _every_partition() -> list[str]:
    return [partition.text for partition in PARTITIONS]
