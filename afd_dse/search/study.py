"""Optuna studies of a sampled search: opened, continued, and refused where they are not ours."""

import hashlib
import json
import warnings
from pathlib import Path

import numpy as np
import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
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


def open_study(
    scenario: Scenario, space: Space, partition: Partition, seed: int, journal: str | None
) -> tuple[optuna.Study, list[FrozenTrial]]:
    """The study, new or continued, and the trials it already holds.

    Its name holds a digest of everything that the answer depends on, so a journal is never continued for another job.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    digest = hashlib.sha256(repr((scenario, space, seed, _ENCODING)).encode()).hexdigest()[:16]
    storage = None
    if journal is not None:
        _refuse_foreign(journal)
        try:
            storage = JournalStorage(JournalFileBackend(journal))
        except OSError as error:
            raise InputError(
                Problem("search.journal", journal, f"cannot be used: {error}", "give a writable file")
            ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(
            study_name=f"{partition.text} {digest}",
            storage=storage,
            directions=["maximize", "maximize"],
            load_if_exists=True,
        )
    known = [t for t in study.get_trials(deepcopy=False) if t.state == TrialState.COMPLETE]
    return study, known


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
