"""Optuna studies of a sampled search: opened, continued, and refused where they are not ours."""

import hashlib
import json
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from afd_dse.cost.scenario import Scenario
from afd_dse.errors import InputError, Problem
from afd_dse.operators.latency import IntArray
from afd_dse.search.encoding import Parameter
from afd_dse.search.space import Space
from afd_dse.spec.cells import Partition

# NSGA-II generation. Small, since the parents are renewed once a generation.
POPULATION = 40
# Part of a study's name: studies of another encoding are not continued.
_ENCODING = 2
_DIRECTIONS = (StudyDirection.MAXIMIZE, StudyDirection.MAXIMIZE)
# Attributes of a trial: number and size of its generation.
_GENERATION, _SIZE = "afd_dse:generation", "afd_dse:size"


@dataclass(frozen=True, slots=True)
class Study:
    """A study in memory, and the journal that holds its finished generations.

    Generations are written whole, one record a trial: every draw of its own would take dozens of records.
    """

    memory: optuna.Study
    journal: optuna.Study | None

    def finished(self) -> list[list[FrozenTrial]]:
        """The whole generations that the journal holds; what a stopped process has written of another is left out."""
        if self.journal is None:
            return []
        by_number: dict[int, list[FrozenTrial]] = defaultdict(list)
        for trial in self.journal.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
            by_number[trial.user_attrs[_GENERATION]].append(trial)
        found: list[list[FrozenTrial]] = []
        while trials := by_number.get(len(found)):
            size = trials[-1].user_attrs[_SIZE]
            if len(trials) < size:
                break
            found.append(trials[-size:])
        return found

    def finish(self, number: int, told: list[tuple[Trial, tuple[float, float]]]) -> None:
        """Tell the values of generation ``number`` and write it to the journal."""
        trials = []
        for trial, values in told:
            trial.set_user_attr(_GENERATION, number)
            trial.set_user_attr(_SIZE, len(told))
            trials.append(self.memory.tell(trial, values))
        if self.journal is not None:
            self.journal.add_trials(trials)


def open_study(
    scenario: Scenario, space: Space, partition: Partition, seed: int, journal: str | None
) -> Study:
    """The study, new or continued.

    Its name holds a digest of everything that the answer depends on, so a journal is never continued for another job.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    digest = hashlib.sha256(repr((scenario, space, seed, _ENCODING)).encode()).hexdigest()[:16]
    memory = optuna.create_study(directions=_DIRECTIONS)
    if journal is None:
        return Study(memory, None)
    _refuse_foreign(journal)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            storage = JournalStorage(JournalFileBackend(journal))
        except OSError as error:
            raise InputError(
                Problem("search.journal", journal, f"cannot be used: {error}", "give a writable file")
            ) from error
        written = optuna.create_study(
            study_name=f"{partition.text} {digest}",
            storage=storage,
            directions=_DIRECTIONS,
            load_if_exists=True,
        )
    study = Study(memory, written)
    for generation in study.finished():
        memory.add_trials(generation)
    return study


def sampler(seed: int, done: int) -> optuna.samplers.BaseSampler:
    """The sampler for the draws after ``done`` trials. Its numbers depend on nothing else: a study can be continued."""
    state = np.random.SeedSequence([seed, done]).generate_state(1)
    return optuna.samplers.NSGAIISampler(population_size=POPULATION, seed=int(state[0]))


def suggest(trial: Trial, parameters: list[Parameter]) -> IntArray:
    """The parameter set [parameters] of an asked trial."""
    return np.array([trial.suggest_int(p.name, 0, p.size - 1) for p in parameters], dtype=np.int64)


def read(trial: FrozenTrial, parameters: list[Parameter]) -> IntArray:
    """The parameter set [parameters] of a known trial."""
    return np.array([trial.params[p.name] for p in parameters], dtype=np.int64)


def as_params(row: IntArray, parameters: list[Parameter]) -> dict[str, int]:
    """A parameter set as Optuna takes it."""
    return {p.name: int(value) for p, value in zip(parameters, row, strict=True)}


def _refuse_foreign(journal: str) -> None:
    """Raise :class:`InputError` for a file that holds something other than a journal: opening it would append to it."""
    path = Path(journal)
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
        ours = not first or "op_code" in json.loads(first)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(
            Problem("search.journal", journal, f"cannot be used: {error}", "give a writable file")
        ) from error
    except (ValueError, TypeError):
        ours = False
    if not ours:
        remedy = "give a new file, or the journal of an earlier search"
        raise InputError(Problem("search.journal", journal, "this file is not a journal", remedy))
