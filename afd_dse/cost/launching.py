"""What a release of the framework can run today, candidate by candidate; the terms are the catalogue's."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.model import Mla
from afd_dse.cost.columns import PHASES, TILE_SHARED, Candidates
from afd_dse.cost.expert_barrier import copies_experts
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import FrameworkProfile, Launch, Scenario
from afd_dse.spec.cells import Partition, Phase

BoolArray = npt.NDArray[np.bool_]


def runs(
    scenario: Scenario, partition: Partition, candidates: Candidates, phases: Sequence[Phase] = tuple(Phase)
) -> BoolArray:
    """Whether a release runs candidates of ``partition``, as far as ``phases`` tell, with what it takes, [n].

    No release shares GPUs by tiles, or copies experts while it serves.
    """
    framework, cuts = scenario.framework, {phase: Cut.of(candidates, phase) for phase in phases}
    launch = framework.launches.get(partition.text)
    if launch is None:
        return np.zeros(len(candidates), dtype=bool)
    found: BoolArray = candidates.integer("policy") != TILE_SHARED
    for phase, cut in cuts.items():
        found &= _is_cut(framework, cut) & ~copies_experts(cut.expert_policy)
        if phase == Phase.DECODE:
            found &= _meets(launch, scenario, partition, cuts, phase)
        for used, what in _taken(framework, partition, cut, phase):
            found &= ~used if what is None else ~used | _meets(what, scenario, partition, cuts, phase)
    return found


def needs(scenario: Scenario, partition: Partition, candidates: Candidates) -> list[str]:
    """What a release takes to run the one candidate that it :func:`runs`, in words."""
    framework, found = scenario.framework, [scenario.framework.launches[partition.text].words]
    for phase in Phase:
        for used, what in _taken(framework, partition, Cut.of(candidates, phase), phase):
            found += [what.words] if what is not None and used.any() else []
    return list(dict.fromkeys(found))


def _taken(
    framework: FrameworkProfile, partition: Partition, cut: Cut, phase: Phase
) -> list[tuple[BoolArray, Launch | None]]:
    """What goes beyond the partition: which candidates [n] use it, and what a release has for it."""
    several = (cut.micro_batches > 1) & (not partition.splits(phase))
    staged = (cut.pp > 1) & (not partition.is_joint)
    return [
        (several, framework.overlap),
        (cut.cp > 1, framework.context_parallel.get(PHASES[phase])),
        (staged, framework.pipeline_apart.get(PHASES[phase])),
    ]


def _is_cut(framework: FrameworkProfile, cut: Cut) -> BoolArray:
    """Whether a framework cuts a phase so, [n]."""
    attention, experts = (cut.tp > 1) & (cut.dp > 1), (cut.moe_tp > 1) & (cut.ep > 1)
    result: BoolArray = (framework.mixed_attention | ~attention) & (framework.mixed_experts | ~experts)
    return result


def _meets(
    launch: Launch, scenario: Scenario, partition: Partition, cuts: Mapping[Phase, Cut], phase: Phase
) -> BoolArray:
    """Whether candidates meet the terms of what a release has for ``phase``, [n]."""
    cut = cuts[phase]
    found = np.ones(len(cut.tp), dtype=bool)
    if launch.families and scenario.model.family not in launch.families:
        found[:] = False
    if launch.latent and not any(isinstance(kind.attention, Mla) for kind in scenario.model.kinds):
        found[:] = False
    if launch.apart and partition.is_joint:
        found[:] = False
    if launch.micro_batches:
        found &= cut.micro_batches == launch.micro_batches
    if launch.attention_leads:
        found &= cut.attention_gpus >= cut.ffn_gpus
    if launch.spread_experts:
        found &= (cut.dp > 1) & (cut.ep > 1)
    if launch.whole_heads:
        found &= cut.tp == 1
    # Prefill that is not known may be spread, too, or be cut otherwise.
    prefill = cuts.get(Phase.PREFILL)
    if launch.alone:
        found &= prefill.cp == 1 if prefill else False
    if launch.stages_of_prefill:
        found &= prefill.pp == cut.pp if prefill else False
    return found
