"""A partition's space as integer parameters with fixed ranges, each in an order in which neighbours are alike."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from afd_dse.cost.columns import PHASES, Candidates
from afd_dse.cost.launching import runs
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.joint import is_bounded
from afd_dse.search.layouts import GroupOptions, Sharing, group_options, sharings, with_sharing
from afd_dse.search.space import Grid, Space
from afd_dse.spec.cells import ATTENTION_CELL, Cell, Partition, Phase, phase_of

# The load is a mean, so it is sampled between the values of the grid as well: this many steps to one of the grid's.
LOAD_STEPS = 16
# Fields of a group's cut that are parameters, and how far one step in each takes it from its neighbours: where a cut
# is not legal, the nearest legal one gives way in the last fields first.
_FIELDS = {
    "pool": 1000.0,
    "gpus": 30.0,
    "tp": 10.0,
    "cp": 1.0,
    "pp": 1.0,
    "moe_tp": 1.0,
    "redundant": 1.0,
    "expert_policy": 1.0,
}
_UNORDERED = ("pool", "expert_policy")
_CUT = ("pool", "tp", "dp", "cp", "pp", "moe_tp", "ep", "redundant", "expert_policy")


@dataclass(frozen=True, slots=True)
class Parameter:
    """An integer parameter: 0 … ``size`` − 1. ``unordered`` values have no neighbours; ``steps`` are natural moves."""

    name: str
    size: int
    unordered: bool = False
    steps: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class _Group:
    """The cuts of one group: the parameters that choose among them, and their positions [cuts, parameters].

    ``nearest`` [values of each parameter, …] is the legal cut at a position or nearest to it.
    """

    cells: tuple[Cell, ...]
    values: Mapping[str, IntArray]
    names: tuple[str, ...]
    positions: IntArray
    table: dict[str, IntArray]
    nearest: IntArray


def _options(scenario: Scenario, space: Space, partition: Partition) -> tuple[GroupOptions, Grid]:
    """What is sampled: whole units where some group serves both phases, otherwise decode units."""
    phases = tuple(Phase) if partition.is_joint else (Phase.DECODE,)
    grid = space.grid(partition, Phase.DECODE)
    return group_options(scenario, partition, phases, grid), grid


def _group(
    number: int, cells: tuple[Cell, ...], table: dict[str, IntArray]
) -> tuple[_Group, list[Parameter]]:
    values = {name: found for name in _FIELDS if len(found := np.unique(table[name])) > 1}
    fields = tuple(values)
    names = tuple(f"group_{number}_{name}" for name in fields)
    columns = [np.searchsorted(values[name], table[name]) for name in fields]
    positions = np.stack(columns, axis=1) if fields else np.zeros((len(table["gpus"]), 0), dtype=np.int64)
    group = _Group(cells, values, names, positions, table, _nearest(positions, values))
    parameters = [
        Parameter(name, len(values[field]), field in _UNORDERED)
        for name, field in zip(names, fields, strict=True)
    ]
    return group, parameters


def _nearest(positions: IntArray, values: Mapping[str, IntArray]) -> IntArray:
    """Row of ``positions`` nearest to every combination of ``values``."""
    lengths = [len(found) for found in values.values()]
    if not lengths or not len(positions):
        return np.zeros(lengths, dtype=np.int64)
    scale = np.array([_FIELDS[name] for name in values])
    everywhere = np.indices(lengths).reshape(len(lengths), -1).T
    found = cKDTree(positions * scale).query(everywhere * scale, p=1)[1]
    return np.asarray(found, dtype=np.int64).reshape(lengths)


def _cut_of(candidate: Mapping[str, Any], group: tuple[Cell, ...]) -> tuple[int, ...]:
    """How a candidate cuts the group of these cells."""
    cut = {"tp": 1, "dp": 1, "cp": 1, "pp": 1, "moe_tp": 1, "ep": 1, "redundant": 0, "expert_policy": 0}
    for cell in group:
        phase, attention = PHASES[phase_of(cell)], cell in ATTENTION_CELL
        for name in ("tp", "dp", "cp", "pp") if attention else ("moe_tp", "ep", "redundant", "expert_policy"):
            cut[name] = int(candidate[f"{phase}_{name}"])
        cut["pool"] = int(candidate[f"{phase}_{'attention' if attention else 'ffn'}_pool"])
    return tuple(cut[name] for name in _CUT)


def _position(values: Iterable[Any], wanted: Any) -> int | None:
    return next((number for number, value in enumerate(values) if value == wanted), None)


class SampledSpace:
    """The parameters of a partition's space, and their decoding into candidates.

    Where phases have GPUs of their own, candidates are single decode units. A group is cut by one parameter for each
    field (GPUs, TP, …) rather than by one number for the whole cut; a cut that is not legal stands for the nearest one
    that is. There are as many replicas as fit; where the job bounds the load they are a parameter that counts down from
    there, in shares of that number. A parameter set is a row of integers [n, parameters]; several may stand for one
    candidate, of which :meth:`canonical` is the one that :meth:`encode` gives.
    """

    def __init__(self, scenario: Scenario, space: Space, partition: Partition) -> None:
        self._scenario, self._joint = scenario, partition.is_joint
        self._units, self._grid = _options(scenario, space, partition)
        grid = self._grid
        self._first, self.batch_ratio = grid.batch.first, grid.batch.ratio
        self._chunks = np.array(grid.chunk_tokens if self._joint else [1.0], dtype=np.float64)
        self._ways = sharings(grid, partition) if self._joint else [Sharing(0)]
        self._counts = scenario.pool_counts.astype(np.float64)
        self._most = int(self._counts.max())
        shares = tuple(sorted({1, max(self._most // 16, 1), max(self._most // 4, 1)}))
        replicas = self._most if self._joint and is_bounded(scenario) else 1
        found = [
            Parameter(
                "load", LOAD_STEPS * (len(grid.batch.values()) - 1) + 1, steps=(LOAD_STEPS, 4 * LOAD_STEPS)
            ),
            Parameter("chunk", len(self._chunks)),
            Parameter("policy", len(self._ways), unordered=True),
            Parameter("micro_batches", len(grid.micro_batches)),
            Parameter("replicas", replicas, steps=shares),
        ]
        self._groups: list[_Group] = []
        for number, (cells, table) in enumerate(zip(self._units.groups, self._units.tables, strict=True)):
            group, parameters = _group(number, cells, table)
            self._groups.append(group)
            found += parameters
        self.empty = any(not len(group.table["gpus"]) for group in self._groups)
        self.parameters = [parameter for parameter in found if parameter.size > 1]
        self.index = {parameter.name: number for number, parameter in enumerate(self.parameters)}
        self.sizes: IntArray = np.array([parameter.size for parameter in self.parameters], dtype=np.int64)

    def drawn(self, rows: IntArray, rng: np.random.Generator) -> IntArray:
        """The parameter sets with every group cut anew, every legal cut as likely as any other, in canonical form.

        Sets drawn by their parameters would mostly be illegal, and stand for the few cuts at the rim of what is legal.
        """
        found = rows.copy()
        for group in self._groups:
            pick = rng.integers(len(group.table["gpus"]), size=len(rows))
            found[:, self._columns(group.names)] = group.positions[pick]
        return self.canonical(found)

    def canonical(self, rows: IntArray) -> IntArray:
        """The parameter sets with every illegal cut and every number of replicas written as what it stands for."""
        found = rows.copy()
        picks = self._picks(rows)
        for group, pick in zip(self._groups, picks, strict=True):
            found[:, self._columns(group.names)] = group.positions[pick]
        fitting, replicas = self._replicas(rows, picks)
        self._write(found, "replicas", -(-(fitting - replicas) * self._most // fitting))
        return found

    def fits(self, rows: IntArray) -> npt.NDArray[np.bool_]:
        """Whether one unit fits into the cluster, [n], and is run by a release where only such are searched."""
        fitting = np.asarray((self._used(rows, self._picks(rows)) <= self._counts).all(axis=1))
        if self._scenario.only_launchable:
            fitting &= runs(self._scenario, self._units.partition, self.decode(rows), self._units.phases)
        return fitting

    def decode(self, rows: IntArray) -> Candidates:
        """Candidates of the parameter sets [n, parameters]."""
        picks = self._picks(rows)
        micro = np.asarray(self._grid.micro_batches, dtype=np.int64)[self._read(rows, "micro_batches")]
        names = [PHASES[phase] for phase in self._units.phases]
        block = self._units.candidates(np.stack(picks), dict.fromkeys(self._units.phases, micro))
        block = block.replace(
            batch_size=self._first * self.batch_ratio ** (self._read(rows, "load") / LOAD_STEPS),
            chunk_tokens=self._chunks[self._read(rows, "chunk")],
            **{f"{name}_replicas": self._replicas(rows, picks)[1] for name in names},
        )
        return with_sharing(block, self._ways, self._read(rows, "policy"))

    def encode(self, candidates: Candidates) -> IntArray:
        """Canonical parameter sets of the candidates that this space holds, loads rounded; others are left out."""
        cuts = [
            {
                tuple(int(v) for v in row): n
                for n, row in enumerate(zip(*(g.table[f] for f in _CUT), strict=True))
            }
            for g in self._groups
        ]
        phase = PHASES[self._units.phases[-1]]
        found: list[dict[str, int]] = []
        picks: list[list[int]] = []
        repeats: list[int] = []
        for row in range(len(candidates)):
            one = {name: column[row] for name, column in candidates.columns.items()}
            own = [
                known.get(_cut_of(one, group.cells)) for known, group in zip(cuts, self._groups, strict=True)
            ]
            octaves = float(np.log(one["batch_size"] / self._first))
            values: dict[str, int | None] = {
                "load": round(LOAD_STEPS * octaves / float(np.log(self.batch_ratio))),
                "micro_batches": _position(self._grid.micro_batches, one[f"{phase}_micro_batches"]),
            }
            if self._joint:
                way = Sharing(int(one["policy"]), float(one["decode_share"]))
                values |= {
                    "chunk": _position(self._chunks, one["chunk_tokens"]),
                    "policy": _position(self._ways, way),
                }
            known = {name: value for name, value in values.items() if value is not None}
            cut = [pick for pick in own if pick is not None]
            if len(known) == len(values) and len(cut) == len(own):
                found.append(known)
                picks.append(cut)
                repeats.append(int(one[f"{phase}_replicas"]))
        rows = np.zeros((len(found), len(self.parameters)), dtype=np.int64)
        if not found:
            return rows
        for name in found[0]:
            self._write(rows, name, np.array([params[name] for params in found], dtype=np.int64))
        chosen = list(np.array(picks, dtype=np.int64).T)
        for group, pick in zip(self._groups, chosen, strict=True):
            rows[:, self._columns(group.names)] = group.positions[pick]
        fitting = self._replicas(rows, chosen)[0]
        fewer = np.maximum(fitting - np.array(repeats, dtype=np.int64), 0)
        self._write(rows, "replicas", -(-fewer * self._most // fitting))
        return rows

    def layouts(self, rows: IntArray) -> IntArray:
        """The parameter sets without their load [n, parameters − 1]."""
        load = self.index.get("load")
        return rows if load is None else np.delete(rows, load, axis=1)

    def _read(self, rows: IntArray, name: str) -> IntArray:
        """A parameter's column; zero where only one value is possible."""
        number = self.index.get(name)
        return np.zeros(len(rows), dtype=np.int64) if number is None else rows[:, number]

    def _write(self, rows: IntArray, name: str, values: IntArray) -> None:
        number = self.index.get(name)
        if number is not None:
            rows[:, number] = np.clip(values, 0, self.sizes[number] - 1)

    def _columns(self, names: tuple[str, ...]) -> list[int]:
        return [self.index[name] for name in names]

    def _picks(self, rows: IntArray) -> list[IntArray]:
        """The cut of every group, as row of its table [n]."""
        return [
            np.broadcast_to(group.nearest[tuple(rows[:, self._columns(group.names)].T)], len(rows))
            for group in self._groups
        ]

    def _used(self, rows: IntArray, picks: list[IntArray]) -> FloatArray:
        """GPUs that one unit takes of every pool [n, pools]."""
        used = np.zeros((len(rows), len(self._counts)))
        for group, pick in zip(self._groups, picks, strict=True):
            np.add.at(used, (np.arange(len(rows)), group.table["pool"][pick]), group.table["gpus"][pick])
        return used

    def _replicas(self, rows: IntArray, picks: list[IntArray]) -> tuple[IntArray, IntArray]:
        """How many replicas fit, and how many there are; of decode units one [n]."""
        if not self._joint:
            return (np.ones(len(rows), dtype=np.int64),) * 2
        used = self._used(rows, picks)
        many = np.where(used > 0, self._counts / np.maximum(used, 1.0), np.inf).min(axis=1)
        fitting = np.maximum(np.floor(many + 1e-9), 1.0).astype(np.int64)
        return fitting, fitting - self._read(rows, "replicas") * fitting // self._most


__all__ = ["LOAD_STEPS", "Parameter", "SampledSpace"]
