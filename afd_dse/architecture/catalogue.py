"""Models by name: the catalogue, its aliases, and reading a user's own ``config.json``."""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from afd_dse.architecture.config import read_config
from afd_dse.architecture.model import ModelArchitecture
from afd_dse.architecture.quantization import quantization_for
from afd_dse.errors import DatabaseError, InputError, Problem
from afd_dse.resources import operator_db_root, parse_yaml

# Parts of a name that change neither shape nor data types: training stage, date of a release, first revisions; and at
# the end of a longer name any revision. The version of a family (DeepSeek-V3) is none.
_NOISE = re.compile(r"^(instruct|base|chat|hf|pt|it|\d{4}|v0\.\d)$")
_REVISION = re.compile(r"^v\d$")
_SYNONYMS = {"fp4": "nvfp4"}


@dataclass(frozen=True, slots=True)
class Published:
    """Parameter counts as published.

    ``total_counts`` and ``active_counts`` say which parts they include, ``active_to`` to what unit the active
    count is rounded where that is coarser than 2 %.
    """

    total: float
    active: float
    active_to: float
    total_counts: tuple[str, ...]
    active_counts: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model of the catalogue.

    ``config`` is the file of its shape; ``quantization`` what its checkpoint stores otherwise than that file
    says (a quantised variant of the same shape). ``served_by`` are the frameworks that serve it, empty for all.
    """

    name: str
    aliases: tuple[str, ...]
    config: str
    quantization: Mapping[str, str]
    published: Published
    served_by: tuple[str, ...] = ()


def model_names() -> tuple[str, ...]:
    """Names of the catalogued models, in the catalogue's order."""
    return tuple(_entries())


def catalogue_entry(name: str) -> CatalogueEntry:
    """The entry of a catalogue name or alias; InputError with the closest names for an unknown one."""
    return _entries()[resolve_name(name)]


def resolve_name(name: str, field: str = "model") -> str:
    """The catalogue's own name of a model.

    Case, a missing organisation, a training stage (``-Instruct``) and a release date (``-0528``) don't matter.
    Raises InputError with the closest names for an unknown one.
    """
    found = _lookup(name)
    if found is None:
        raise InputError(Problem(field, name, "is not in the catalogue", _suggestion(name)))
    return found


def served_by(reference: object) -> tuple[str, ...]:
    """The frameworks that serve a catalogued model, the usual one first; empty where all do or nothing is known."""
    name = _lookup(reference) if isinstance(reference, str) and not _looks_like_path(reference) else None
    return () if name is None else _entries()[name].served_by


def load_model(
    reference: str | Path | Mapping[str, object], base_directory: str | Path | None = None
) -> ModelArchitecture:
    """The architecture of a catalogue name, of a ``config.json`` (or its folder), or of an inline mapping of one.

    A relative path starts from ``base_directory`` (default: the working directory). An ``hf_quant_config.json``
    beside the file is read too. Raises InputError for whatever cannot be read, with the field where there is one.
    """
    if isinstance(reference, Mapping):
        return read_config(reference, _inline_name(reference))
    if isinstance(reference, str) and not reference.strip():
        raise InputError(
            Problem("model", reference, "is empty", "give a catalogue name, a path or a mapping")
        )
    path = _path(reference, base_directory)
    if isinstance(reference, str) and not _looks_like_path(reference):
        found = _lookup(reference)
        if found is not None:
            return _from_catalogue(found)
        if not path.exists():
            raise InputError(Problem("model", reference, "is not in the catalogue", _suggestion(reference)))
    return _from_path(path)


@lru_cache(maxsize=128)
def _from_catalogue(name: str) -> ModelArchitecture:
    entry = _entries()[name]
    file = operator_db_root() / "catalogue" / "models" / entry.config
    model = replace(read_config(_read_json(file), name), name=name)
    return replace(model, quantization=quantization_for(model, entry.quantization))


def _from_path(path: Path) -> ModelArchitecture:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            Problem("model", str(file), "does not exist", "name a config.json or the folder of one")
        )
    beside = file.with_name(file.name.replace("config.json", "hf_quant_config.json"))
    separate = _read_json(beside) if beside != file and beside.is_file() else None
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return read_config(_read_json(file), name, separate_quantization=separate, path=f"model({file.name})")


def _read_json(file: Path) -> Mapping[str, object]:
    """Content of a JSON object; bare ``NaN`` and ``Infinity``, which some files hold, are let through."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(
            Problem("model", str(file), f"is not readable: {error}", "give valid JSON")
        ) from error
    if not isinstance(content, dict):
        raise InputError(Problem("model", str(file), "is not a mapping", "give a model's config.json"))
    return content


def _inline_name(config: Mapping[str, object]) -> str:
    for key in ("name", "_name_or_path", "model_type"):
        value = config.get(key)
        if isinstance(value, str) and value:
            return value
    return "inline"


def _looks_like_path(reference: str) -> bool:
    return reference.startswith((".", "/", "~")) or reference.endswith(".json")


def _path(reference: str | Path, base_directory: str | Path | None) -> Path:
    path = Path(reference).expanduser()
    return path if path.is_absolute() or base_directory is None else Path(base_directory) / path


@lru_cache(maxsize=1)
def _catalogue() -> Mapping[str, Mapping[str, Any]]:
    file = operator_db_root() / "catalogue" / "models.yaml"
    try:
        content: Mapping[str, Mapping[str, Any]] = parse_yaml(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise DatabaseError(f"the model catalogue {file} is not readable: {error}") from error
    return content


@lru_cache(maxsize=1)
def _entries() -> Mapping[str, CatalogueEntry]:
    entries: dict[str, CatalogueEntry] = {}
    for shape, item in _catalogue()["models"].items():
        published = _published(item["parameters"])
        for name, own in {shape: item, **item.get("variants", {})}.items():
            entries[name] = CatalogueEntry(
                name=name,
                aliases=tuple(own.get("aliases", ())),
                config=f"{shape.replace('/', '--')}.json",
                quantization=own.get("quantization", {}),
                published=published,
                served_by=tuple(item.get("served_by", ())),
            )
    return entries


def _published(item: Mapping[str, Any]) -> Published:
    total_counts = tuple(item["total_counts"])
    return Published(
        total=float(item["total"]),
        active=float(item["active"]),
        active_to=float(item.get("active_to", 0.0)),
        total_counts=total_counts,
        active_counts=tuple(item.get("active_counts", total_counts)),
        source=item["source"],
    )


@lru_cache(maxsize=1)
def _index() -> Mapping[str, str]:
    """Every key that leads to a model, with and without its organisation; the earlier entry wins."""
    index: dict[str, str] = {}
    for name, entry in _entries().items():
        own, _ = _split(name)
        for spelling in (name, *entry.aliases):
            organisation, key = _split(spelling)
            index.setdefault(f"{organisation or own}/{key}", name)
    for name, entry in _entries().items():
        for spelling in (name, *entry.aliases):
            index.setdefault(_split(spelling)[1], name)
    return index


def _lookup(name: str) -> str | None:
    organisation, key = _split(name)
    return _index().get(f"{organisation}/{key}" if organisation else key)


def _split(name: str) -> tuple[str, str]:
    """Organisation and canonical key of a spelling: ``meta-llama``, ``llama-3.1-8b``."""
    organisation, _, rest = name.strip().lower().rpartition("/")
    organisation = _catalogue()["organisations"].get(organisation, organisation).lower()
    words = rest.replace("_", "-").split("-")
    if words[:2] == ["meta", "llama"]:
        words = words[1:]
    if len(words) > 2 and _REVISION.match(words[-1]):
        words = words[:-1]
    kept = [_SYNONYMS.get(word, word) for word in words if not _NOISE.match(word)]
    return organisation, "-".join(kept)


def _suggestion(name: str) -> str:
    names = {_split(spelling)[1]: spelling for spelling in reversed(model_names())}
    near = difflib.get_close_matches(_split(name)[1], names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {', '.join(names[key] for key in near)}? a path to a config.json works too"
    shapes = ", ".join(_catalogue()["models"])
    return f"known are {shapes} and their quantised variants; a path to a config.json works too"
