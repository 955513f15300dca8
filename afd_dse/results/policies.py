"""The sharing policy of a deployment in words, and whether a framework can run it."""

import numpy as np

from afd_dse.cost.columns import (
    CHUNKED,
    DECODE_PRIORITY,
    PHASES,
    POLICIES,
    PRIORITIZED,
    TILE_SHARED,
    Candidates,
)
from afd_dse.cost.expert_barrier import copies_experts
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Launch, Scenario
from afd_dse.spec.cells import PARTITIONS, Partition, Phase
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


def _runs(launch: Launch, scenario: Scenario, one: Candidates) -> bool:
    """Whether what a release has for a partition runs the model in the decode unit of ``one`` candidate."""
    cut = Cut.of(one, Phase.DECODE)
    return (
        (not launch.families or scenario.model.family in launch.families)
        and launch.micro_batches in (0, int(one.integer("decode_micro_batches")[0]))
        and not (launch.attention_leads and (cut.attention_gpus < cut.ffn_gpus).any())
    )


def launchable(scenario: Scenario, candidates: Candidates, row: int) -> str | None:
    """What the framework's release needs to run a candidate, :data:`RELEASED` if nothing; None where it can't.

    No release shares GPUs by tiles, or copies experts while it serves.
    """
    one, framework = candidates.take(np.array([row])), scenario.framework
    copies = [copies_experts(one.integer(f"{phase}_expert_policy")).any() for phase in PHASES]
    if (one.integer("policy") == TILE_SHARED).any() or any(copies):
        return None
    partition = PARTITIONS[int(one.integer("partition")[0])]
    launch = framework.launches.get(partition.text)
    if launch is None or not _runs(launch, scenario, one):
        return None
    spread = [phase for phase in PHASES if one.integer(f"{phase}_cp")[0] > 1]
    if not framework.context_parallel.keys() >= set(spread):
        return None
    needs = [] if launch.words == RELEASED else [launch.words]
    whole = [PHASES[phase] for phase in Phase if not partition.splits(phase)]
    if any(one.integer(f"{phase}_micro_batches")[0] > 1 for phase in whole):
        needs.append(framework.overlap)
    needs += [framework.context_parallel[phase] for phase in spread]
    return "; ".join(needs) or RELEASED
