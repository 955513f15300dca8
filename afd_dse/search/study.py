"""Optuna studies of a sampled search: named, made, and what goes in and out of them."""

import hashlib
import warnings

import numpy as np
import optuna
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, Trial, create_trial

from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import IntArray
from afd_dse.search.encoding import Parameter
from afd_dse.search.space import Space
from afd_dse.search.storage import Directions
from afd_dse.spec.cells import Partition

# Trials of a generation. What is learnt of one decides the next, but each costs the choice of its trials; 20 find no
# better fronts.
POPULATION = 40
# Part of a study's name: studies of another encoding are not continued.
_ENCODING = 4
# Tokens/s per GPU and tokens/s per user.
DIRECTIONS: Directions = ("maximize", "maximize")


def study_name(scenario: Scenario, space: Space, partition: Partition, seed: int) -> str:
    """Name of a study.

    It holds a digest of everything that the answer depends on, so a stored study is never continued for another job.
    """
    digest = hashlib.sha256(repr((scenario, space, seed, _ENCODING)).encode()).hexdigest()[:16]
    return f"{partition.text} {digest}"


def new_study() -> optuna.Study:
    """An empty study in memory."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.create_study(directions=DIRECTIONS)


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


def tell(
    study: optuna.Study,
    trial: Trial | None,
    row: IntArray,
    parameters: list[Parameter],
    values: tuple[float, float],
    limits: dict[str, float],
) -> FrozenTrial:
    """Tell what the parameter set ``row`` [parameters] reaches, and by how much it breaks ``limits``.

    With the ``trial`` that was asked for it; without one as a trial of its own, which costs a fifth of enqueuing
    and asking for it.
    """
    if trial is not None:
        for name, violation in limits.items():
            trial.set_constraint(name, violation)
        return study.tell(trial, values)
    told = create_trial(
        params={p.name: int(value) for p, value in zip(parameters, row, strict=True)},
        distributions={p.name: IntDistribution(0, p.size - 1) for p in parameters},
        values=values,
        constraints=limits,
    )
    study.add_trial(told)
    return told
