"""The sharing policy of a deployment in words, and whether a framework can run it."""

import numpy as np
import numpy.typing as npt

from afd_dse.cost.columns import CHUNKED, DECODE_PRIORITY, POLICIES, PRIORITIZED, TILE_SHARED, Candidates
from afd_dse.cost.launching import needs, runs
from afd_dse.cost.scenario import Scenario
from afd_dse.errors import InputError, Problem
from afd_dse.results.words import not_run
from afd_dse.spec.cells import PARTITIONS, Partition, parse_partition
from afd_dse.spec.job import Job
from afd_dse.spec.modes import mode_name
from afd_dse.spec.suggest import choose

# What is launched without conditions.
RELEASED = "released"


def policy_name(partition: Partition, code: int) -> str | None:
    """How the phases of a deployment share GPUs; None where none serves both."""
    if not partition.is_joint:
        return None
    return DECODE_PRIORITY if code == CHUNKED and not partition.shares_steps else POLICIES[code]


def policy_code(partition: Partition, name: str) -> tuple[int, str, str]:
    """The code of ``name`` in ``partition``, with message and remedy of what is wrong with it, empty if nothing is."""
    known = (*POLICIES, DECODE_PRIORITY)
    if name not in known:
        return CHUNKED, "unknown policy", choose(name, known)
    code = CHUNKED if name == DECODE_PRIORITY else POLICIES.index(name)
    if name == "chunked" or (not partition.is_joint and code == CHUNKED):
        return code, "", ""
    if code == PRIORITIZED and not partition.shares_steps:
        return code, f"has no meaning in {partition.text}, whose phases do not share steps", "leave it out"
    if name == DECODE_PRIORITY and partition.shares_steps:
        message = f"has no meaning in {partition.text}, whose phases share steps"
        return code, message, "use chunked, prioritized or tile_shared"
    if code == TILE_SHARED and not partition.is_joint:
        message = f"has no meaning in {partition.text}, in which no group serves both phases"
        return code, message, "leave it out"
    return code, "", ""


def runs_today(scenario: Scenario, candidates: Candidates) -> npt.NDArray[np.bool_]:
    """Whether the framework's release runs candidates of any partitions, with what it takes, [n]."""
    found, partitions = np.zeros(len(candidates), dtype=bool), candidates.integer("partition")
    for partition in np.unique(partitions):
        rows = np.flatnonzero(partitions == partition)
        found[rows] = runs(scenario, PARTITIONS[int(partition)], candidates.take(rows))
    return found


def launchable(scenario: Scenario, candidates: Candidates, row: int) -> str | None:
    """What the framework's release needs to run a candidate, :data:`RELEASED` if nothing; None where it can't."""
    one = candidates.take(np.array([row]))
    partition = PARTITIONS[int(one.integer("partition")[0])]
    if not runs(scenario, partition, one)[0]:
        return None
    return "; ".join(words for words in needs(scenario, partition, one) if words != RELEASED) or RELEASED


def modes_of(job: Job, scenario: Scenario) -> list[tuple[str, Partition]]:
    """The modes that ``job`` searches as (name, partition); of all of them those that a release runs where it says so.

    Raises :class:`InputError` for a mode that it names and no release runs.
    """
    found = [(name, parse_partition(text)) for name, text in job.search.partitions]
    if not job.search.launchable:
        return found
    kept = [(name, partition) for name, partition in found if partition.text in scenario.framework.launches]
    if not isinstance(job.search.modes, str) and len(kept) < len(found):
        left = next(name for name, partition in found if partition.text not in scenario.framework.launches)
        known = ", ".join(mode_name(text) for text in scenario.framework.launches)
        remedy = f"set search.launchable to false, or use {known}"
        raise InputError(Problem("search.modes", left, not_run(scenario.framework.name), remedy))
    return kept
