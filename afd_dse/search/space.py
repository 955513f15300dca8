"""The declared search space: a YAML file of what may vary, read and checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from afd_dse.errors import DatabaseError, InputError, Problem
from afd_dse.operators.latency import FloatArray
from afd_dse.resources import data_root, parse_yaml
from afd_dse.spec.cells import Partition, Phase

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]


class BatchGrid(BaseModel):
    """Decode sequences per attention rank: a geometric grid, the same for every cluster size."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: float = Field(gt=0)
    last: float = Field(gt=0)
    per_octave: Positive

    @model_validator(mode="after")
    def _ascends(self) -> "BatchGrid":
        if self.last < self.first:
            raise ValueError("last must not be smaller than first")
        return self

    def values(self) -> FloatArray:
        """The grid, ascending."""
        octaves = np.log2(self.last / self.first)
        steps = np.arange(int(np.floor(octaves * self.per_octave + 1e-9)) + 1)
        result: FloatArray = self.first * 2.0 ** (steps / self.per_octave)
        return result

    @property
    def ratio(self) -> float:
        """Ratio of neighbouring values."""
        return float(2.0 ** (1.0 / self.per_octave))


class Grid(BaseModel):
    """What may vary for one structure of a unit; every field lists the values to try.

    ``gpus`` sizes of groups that hold attention, ``ffn_gpus`` sizes of groups that hold only FFN; ``expert_policies``
    how experts and their ``redundant`` copies are placed on the ranks. ``policies`` how phases share GPUs: steps
    (``chunked``, ``prioritized``), one side of them (``decode_priority``), or either one (``tile_shared``, in which
    decode gets one of ``decode_shares`` of the SMs).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpus: list[Positive]
    ffn_gpus: list[Positive]
    tp: list[Positive]
    cp: list[Positive] = [1]
    pp: list[Positive] = [1]
    moe_tp: list[Positive]
    redundant: list[Count] = [0]
    micro_batches: list[Positive]
    batch: BatchGrid
    chunk_tokens: list[Positive]
    policies: list[Literal["chunked", "prioritized", "decode_priority", "tile_shared"]] = [
        "chunked",
        "prioritized",
        "decode_priority",
    ]
    decode_shares: list[Annotated[float, Field(gt=0, lt=1)]] = [0.25, 0.5, 0.75]
    expert_policies: list[Literal["static", "history", "prefetch", "prefetch_overlapped"]] = ["static"]

    @model_validator(mode="after")
    def _lists_hold_something(self) -> "Grid":
        for name in type(self).model_fields:
            if getattr(self, name) == []:
                raise ValueError(f"{name} must list at least one value")
        if not any(self.redundant) and all(name.startswith("prefetch") for name in self.expert_policies):
            raise ValueError("expert_policies that prefetch need redundant experts to copy into")
        return self


class Space(BaseModel):
    """A search space, with one grid for each structure of a unit.

    ``whole`` holds for units of one group, ``split`` for units whose attention and FFN are in different groups,
    ``shared`` for several groups of which some serve both phases.
    ``exhaustive_rows`` is the largest number of candidates of one mode that is enumerated; beyond it Optuna searches,
    from what the smaller space ``start`` (a name or path) holds, so that more freedom never makes the answer worse.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    whole: Grid
    split: Grid
    shared: Grid
    exhaustive_rows: Positive
    start: str | None = None

    def grid(self, partition: Partition, phase: Phase) -> Grid:
        """The grid of the units of ``phase``; of whole deployments where some group serves both phases."""
        if partition.is_joint:
            return self.whole if len(partition.groups) == 1 else self.shared
        return self.split if partition.splits(phase) else self.whole


def restricted(space: Space, grids: Mapping[str, Mapping[str, Any]], name: str) -> Space:
    """``space`` with lists of its grids replaced as ``grids`` says, for the preset ``name``.

    Raises :class:`DatabaseError` naming preset and field for a field or value that no grid can have.
    """
    if not grids:
        return space
    document = space.model_dump()
    for structure, fields in grids.items():
        document[structure] |= fields
    try:
        return Space.model_validate(document)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors())
        raise DatabaseError(f"preset {name}: {wrong}") from error


def without_unreleased(space: Space) -> Space:
    """``space`` without the ways to share GPUs and to place experts that no release has; ``shared`` units none has.

    Raises :class:`InputError` where a grid lists no other.
    """
    document = space.model_dump()
    for structure in ("whole", "split"):
        grid = document[structure]
        for name, unreleased in (("policies", "tile_shared"), ("expert_policies", "prefetch")):
            left = [value for value in grid[name] if not value.startswith(unreleased)]
            if not left:
                message = "no release has any of these"
                remedy = "set search.launchable to false, or list others"
                raise InputError(Problem(f"search.space.{structure}.{name}", grid[name], message, remedy))
            grid[name] = left
    return Space.model_validate(document)


def load_space(reference: str | Path) -> Space:
    """Read a space: a path, or the name of one that ships with the package (``default``, ``quick``, ``wide``).

    Raises :class:`InputError` naming the file and the field.
    """
    path = Path(reference)
    candidates = [path, data_root() / path, data_root() / "search_spaces" / f"{path.name}.yaml"]
    found = next((p for p in candidates if p.is_file()), None)
    if found is None:
        names = sorted(p.stem for p in (data_root() / "search_spaces").glob("*.yaml") if p.stem != "modes")
        raise InputError(
            Problem(
                "search.space",
                str(reference),
                "no such search space",
                f"give a path or one of {', '.join(names)}",
            )
        )
    try:
        return Space.model_validate(parse_yaml(found.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise InputError(
            Problem("search.space", str(reference), f"not readable as YAML: {error}", "mend the file")
        ) from error
    except ValidationError as error:
        raise InputError(
            [
                Problem(
                    "search.space." + ".".join(str(part) for part in item["loc"]),
                    item.get("input"),
                    item["msg"],
                    "see search_spaces/default.yaml",
                )
                for item in error.errors()
            ]
        ) from error
