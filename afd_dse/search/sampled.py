"""Optuna where enumeration ends: NSGA-II over the same spaces, asked and told in batches for one evaluation each."""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from afd_dse.cost.columns import ALL_COLUMNS, PHASES, Candidates
from afd_dse.cost.evaluate import CONSTRAINTS, evaluate
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.joint import refine_batch
from afd_dse.search.layouts import GroupOptions, Sharing, group_options, sharings, with_sharing
from afd_dse.search.objective import Objective
from afd_dse.search.pool import Found, keep, pareto_rows, ranking
from afd_dse.search.space import Grid, Space
from afd_dse.search.storage import Directions, crew_of
from afd_dse.spec.cells import ATTENTION_CELL, Cell, Partition, Phase, phase_of

# NSGA-II generation: large enough that one evaluation of the whole batch costs little more than that of one candidate.
POPULATION = 200
DEFAULT_TRIALS = 4000
# Tokens/s per GPU and tokens/s per user.
_DIRECTIONS: Directions = ("maximize", "maximize")
# How many of the best, and of the front, of a smaller space a study begins with.
STARTS = 50
_CUT = ("pool", "tp", "dp", "cp", "pp", "moe_tp", "ep", "redundant", "expert_policy")
# Near-miss violations are compared on this scale; a worse one says nothing more.
WORST_VIOLATION = 1e6


@dataclass(frozen=True, slots=True)
class _Sides:
    """The independent parts of a partition: one that serves both phases, or a prefill and a decode unit."""

    parts: tuple[tuple[GroupOptions, Grid], ...]


def _sides(scenario: Scenario, space: Space, partition: Partition) -> _Sides:
    if partition.is_joint:
        grid = space.whole if len(partition.groups) == 1 else space.shared
        return _Sides(((group_options(scenario, partition, tuple(Phase), grid), grid),))
    parts = []
    for phase in Phase:
        grid = space.split if partition.splits(phase) else space.whole
        parts.append((group_options(scenario, partition, (phase,), grid), grid))
    return _Sides(tuple(parts))


def _cuts(table: dict[str, IntArray]) -> dict[tuple[int, ...], int]:
    """Position of every cut in a group's table."""
    rows = np.stack([table[name] for name in _CUT], axis=1)
    return {tuple(int(value) for value in row): number for number, row in enumerate(rows)}


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
    """A partition's space as integer parameters with fixed ranges, and their decoding into candidates."""

    def __init__(self, scenario: Scenario, space: Space, partition: Partition) -> None:
        self._scenario = scenario
        self._sides = _sides(scenario, space, partition)
        load_grid = self._sides.parts[-1][1]
        self._batch = load_grid.batch.values()
        self._chunks = np.array(self._sides.parts[0][1].chunk_tokens, dtype=np.float64)
        self._ways = sharings(load_grid, partition) if partition.is_joint else [Sharing(0)]
        self.ranges: dict[str, int] = {
            "batch": len(self._batch),
            "chunk": len(self._chunks),
            "policy": len(self._ways),
        }
        for number, (options, grid) in enumerate(self._sides.parts):
            self.ranges[f"micro_batches_{number}"] = len(grid.micro_batches)
            self.ranges[f"replicas_{number}"] = int(scenario.pool_counts.max())
            for index, table in enumerate(options.tables):
                self.ranges[f"group_{number}_{index}"] = len(table["gpus"])

    @property
    def empty(self) -> bool:
        """Whether some group has no legal cut."""
        return min(self.ranges.values()) == 0

    def encode(self, candidates: Candidates) -> list[dict[str, int]]:
        """Parameters of the candidates that this space holds, loads rounded to the nearest; others are left out."""
        tables = [
            (f"group_{number}_{index}", group, _cuts(table))
            for number, (options, _) in enumerate(self._sides.parts)
            for index, (group, table) in enumerate(zip(options.groups, options.tables, strict=True))
        ]
        found = []
        for row in range(len(candidates)):
            one = {name: column[row] for name, column in candidates.columns.items()}
            params: dict[str, int | None] = {
                name: cuts.get(_cut_of(one, group)) for name, group, cuts in tables
            }
            params["batch"] = int(np.abs(np.log(self._batch / one["batch_size"])).argmin())
            params["chunk"] = _position(self._chunks, one["chunk_tokens"])
            params["policy"] = _position(self._ways, Sharing(int(one["policy"]), float(one["decode_share"])))
            for number, (options, grid) in enumerate(self._sides.parts):
                phase = PHASES[options.phases[0]]
                params[f"micro_batches_{number}"] = _position(
                    grid.micro_batches, one[f"{phase}_micro_batches"]
                )
                params[f"replicas_{number}"] = int(one[f"{phase}_replicas"]) - 1
            known = {name: value for name, value in params.items() if value is not None}
            if len(known) == len(params):
                found.append(known)
        return found

    def decode(self, params: list[dict[str, int]]) -> Candidates:
        """Candidates of the parameter sets. Replicas wrap around the number that fits the cluster."""
        value = {name: np.array([p[name] for p in params], dtype=np.int64) for name in self.ranges}
        blocks = []
        for number, (options, grid) in enumerate(self._sides.parts):
            picks = np.stack([value[f"group_{number}_{index}"] for index in range(len(options.tables))])
            micro = np.asarray(grid.micro_batches, dtype=np.int64)[value[f"micro_batches_{number}"]]
            block = options.candidates(picks, dict.fromkeys(options.phases, micro))
            gpus = np.sum([t["gpus"][pick] for t, pick in zip(options.tables, picks, strict=True)], axis=0)
            replicas = value[f"replicas_{number}"] % self._fitting(gpus) + 1
            names = [PHASES[phase] for phase in options.phases]
            blocks.append((names, block.replace(**{f"{name}_replicas": replicas for name in names})))
        columns = dict(blocks[0][1].columns)
        for names, block in blocks[1:]:
            columns |= {key: block.columns[key] for key in ALL_COLUMNS if key.split("_")[0] in names}
        columns |= {
            "batch_size": self._batch[value["batch"]],
            "chunk_tokens": self._chunks[value["chunk"]],
        }
        return with_sharing(Candidates.of(**columns), self._ways, value["policy"])

    def _fitting(self, gpus: IntArray) -> IntArray:
        result: IntArray = np.maximum(int(self._scenario.pool_counts.sum()) // np.maximum(gpus, 1), 1)
        return result

    @property
    def batch_ratio(self) -> float:
        """Ratio of neighbouring batches."""
        return self._sides.parts[-1][1].batch.ratio


def search_sampled(
    scenario: Scenario,
    space: Space,
    partition: Partition,
    objective: Objective,
    *,
    seed: int,
    trials: int | None,
    journal: str | None,
    progress: Callable[[int], None],
    start: Found | None = None,
) -> tuple[Found | None, int]:
    """Sample a partition with NSGA-II on tokens/s/GPU and tokens/s/user under all constraints.

    Equal candidates are evaluated once. With ``journal`` (a storage: a file, or the URL of a database) an interrupted
    study is continued, and processes at work at the same time share it; ``trials`` counts what all of them do. A new
    study begins with the best and the front of ``start``. Returns what is worth keeping and the number of distinct
    candidates evaluated.
    """
    sampled = SampledSpace(scenario, space, partition)
    if sampled.empty:
        return None, 0
    study, wanted = _study(), DEFAULT_TRIALS if trials is None else trials
    memo: dict[bytes, int] = {}
    kept: list[Found] = []
    values: list[tuple[float, float]] = []
    violations: list[FloatArray] = []

    def evaluate_new(params: list[dict[str, int]]) -> list[int]:
        """Evaluate what is not in the memo; returns every set's position in it."""
        if not params:
            return []
        candidates = sampled.decode(params)
        keys = [row.tobytes() for row in np.stack([candidates.number(name) for name in ALL_COLUMNS], axis=1)]
        fresh = {key: number for number, key in enumerate(keys) if key not in memo}
        if fresh:
            block = candidates.take(np.array(list(fresh.values()), dtype=np.int64))
            found = Found(block, evaluate(scenario, block))
            kept.append(keep(scenario, objective, found))
            m = found.evaluation.metrics
            for offset, key in enumerate(fresh):
                memo[key] = len(values)
                values.append(
                    (float(m["tokens_per_s_per_gpu"][offset]), float(m["tokens_per_s_per_user"][offset]))
                )
                violations.append(np.clip(-found.evaluation.slack[offset], -WORST_VIOLATION, WORST_VIOLATION))
        return [memo[key] for key in keys]

    def take_in(told: list[list[FrozenTrial]]) -> int:
        """Learn what was told before, or by other processes; the number of trials."""
        for batch in told:
            study.add_trials(batch)
            evaluate_new([dict(trial.params) for trial in batch])
        return sum(map(len, told))

    with crew_of(journal, _name(scenario, space, partition, seed), _DIRECTIONS, wanted) as crew:
        known = take_in(crew.fetch())
        if start is not None and not known and crew.alone:
            rows = np.concatenate([ranking(scenario, objective, start)[:STARTS], pareto_rows(start)[:STARTS]])
            for first in sampled.encode(start.candidates.take(np.unique(rows))):
                study.enqueue_trial(first, skip_if_exists=True)
        # A continued study draws on from where it stopped, not the same numbers again; processes at work draw apart.
        draws = seed + known if crew.alone else None
        study.sampler = optuna.samplers.NSGAIISampler(population_size=POPULATION, seed=draws)
        count = -1
        while count:
            with crew.batch(POPULATION) as count:
                take_in(crew.fetch())
                asked = {
                    trial: _suggest(trial, sampled.ranges) for trial in [study.ask() for _ in range(count)]
                }
                taken = crew.claim([_key(params) for params in asked.values()]) if count else set()
                take_in(crew.fetch())
                for trial in [trial for trial, params in asked.items() if _key(params) in taken]:
                    study.tell(trial, state=TrialState.FAIL)  # another process has it in hand
                    del asked[trial]
                told = []
                for trial, position in zip(asked, evaluate_new(list(asked.values())), strict=True):
                    for name, violation in zip(CONSTRAINTS, violations[position], strict=True):
                        trial.set_constraint(name, float(violation))
                    told.append(study.tell(trial, values[position]))
                crew.publish(told)
            progress(len(told))
    if not kept:
        return None, 0
    found = keep(scenario, objective, Found.join(kept), best=256)
    refined = refine_batch(scenario, objective, found, sampled.batch_ratio)
    return (Found.join([found, refined]) if len(refined) else found), len(memo) + len(refined)


def _key(params: Mapping[str, int]) -> str:
    """A short name of a parameter set, the same in every process."""
    return hashlib.sha256(repr(sorted(params.items())).encode()).hexdigest()[:16]


def _suggest(trial: Trial, ranges: dict[str, int]) -> dict[str, int]:
    return {name: trial.suggest_int(name, 0, size - 1) for name, size in ranges.items()}


def _name(scenario: Scenario, space: Space, partition: Partition, seed: int) -> str:
    """Name of a study.

    It holds a digest of everything that the answer depends on, so a stored study is never continued for another job.
    """
    digest = hashlib.sha256(repr((scenario, space, seed)).encode()).hexdigest()[:16]
    return f"{partition.text} {digest}"


def _study() -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.create_study(directions=_DIRECTIONS)
