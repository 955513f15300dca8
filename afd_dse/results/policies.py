"""The sharing policy of a deployment in words, and whether a framework can run it."""

from collections.abc import Mapping

import numpy as np

from afd_dse.architecture.model import Mla
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
from afd_dse.cost.scenario import FrameworkProfile, Launch, Scenario
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


def _runs(
    launch: Launch, scenario: Scenario, partition: Partition, cuts: Mapping[Phase, Cut], phase: Phase
) -> bool:
    """Whether what a release has runs the model in ``phase`` of ``partition``, whose phases are cut so."""
    cut = cuts[phase]
    latent = any(isinstance(kind.attention, Mla) for kind in scenario.model.kinds)
    return (
        (not launch.families or scenario.model.family in launch.families)
        and launch.micro_batches in (0, int(cut.micro_batches[0]))
        and not (launch.attention_leads and (cut.attention_gpus < cut.ffn_gpus).any())
        and not (launch.spread_experts and ((cut.dp == 1) | (cut.ep == 1)).any())
        and not (launch.latent and not latent)
        and not (launch.apart and partition.is_joint)
        and not (launch.alone and (cuts[Phase.PREFILL].cp > 1).any())
        and not (launch.whole_heads and (cut.tp > 1).any())
    )


def _is_cut(framework: FrameworkProfile, cut: Cut) -> bool:
    """Whether a framework cuts a phase so."""
    attention, experts = (cut.tp > 1) & (cut.dp > 1), (cut.moe_tp > 1) & (cut.ep > 1)
    return bool(
        (framework.mixed_attention or not attention.any()) and (framework.mixed_experts or not experts.any())
    )


def launchable(scenario: Scenario, candidates: Candidates, row: int) -> str | None:
    """What the framework's release needs to run a candidate, :data:`RELEASED` if nothing; None where it can't.

    No release shares GPUs by tiles, or copies experts while it serves.
    """
    one, framework = candidates.take(np.array([row])), scenario.framework
    partition = PARTITIONS[int(one.integer("partition")[0])]
    cuts = {phase: Cut.of(one, phase) for phase in Phase}
    whole = [p for p in Phase if not partition.splits(p) and (cuts[p].micro_batches > 1).any()]
    spread = [p for p in Phase if (cuts[p].cp > 1).any()]
    taken: list[tuple[Launch | None, Phase]] = [(framework.launches.get(partition.text), Phase.DECODE)]
    taken += [(framework.overlap, phase) for phase in whole]
    taken += [(framework.context_parallel.get(PHASES[phase]), phase) for phase in spread]
    if (one.integer("policy") == TILE_SHARED).any():
        return None
    if any(copies_experts(cut.expert_policy).any() or not _is_cut(framework, cut) for cut in cuts.values()):
        return None
    needs: dict[str, None] = {}
    for launch, phase in taken:
        if launch is None or not _runs(launch, scenario, partition, cuts, phase):
            return None
        needs[launch.words] = None
    return "; ".join(words for words in needs if words != RELEASED) or RELEASED
