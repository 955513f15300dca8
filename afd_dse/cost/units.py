"""One phase's unit by itself: what the search tabulates before it pairs prefill and decode units.

Uses the same engines and memory as the evaluator, so a pair's numbers do not change when it is evaluated whole.
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np

from afd_dse.cost.columns import Candidates
from afd_dse.cost.engines import Prefill, decode_alone, prefill_alone
from afd_dse.cost.evaluate import gpus_by_pool
from afd_dse.cost.memory import group_memory
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.cells import Partition, Phase, phase_of


@dataclass(frozen=True, slots=True)
class DecodeUnits:
    """Columns over decode units: seconds per token, requests/s of one unit, free share of memory, GPUs by pool."""

    tpot_s: FloatArray
    requests_per_s: FloatArray
    memory_slack: FloatArray
    gpus_by_pool: FloatArray


@dataclass(frozen=True, slots=True)
class PrefillUnits:
    """Columns over prefill units: what they do, free share of memory, GPUs by pool."""

    prefill: Prefill
    memory_slack: FloatArray
    gpus_by_pool: FloatArray


def _unit_gpus(scenario: Scenario, partition: Partition, cuts: dict[Phase, Cut], phase: Phase) -> FloatArray:
    """GPUs by pool of one unit (one replica) of ``phase``, [n, pools]."""
    total = gpus_by_pool(scenario, partition, cuts, (phase,))
    return np.asarray(total / cuts[phase].replicas[:, None], dtype=np.float64)


def _memory_slack(
    scenario: Scenario,
    partition: Partition,
    cuts: dict[Phase, Cut],
    phase: Phase,
    sequences: FloatArray,
    tokens: FloatArray,
) -> FloatArray:
    groups = [group for group in partition.groups if phase_of(group[0]) == phase]
    found = group_memory(scenario, groups, cuts, sequences, sequences, dict.fromkeys(Phase, tokens))
    result: FloatArray = reduce(np.minimum, [group.slack for group in found])
    return result


def decode_units(scenario: Scenario, partition: Partition, c: Candidates) -> DecodeUnits:
    """Evaluate the decode side of candidates of a partition whose groups serve one phase each."""
    cuts = {phase: Cut.of(c, phase) for phase in Phase}
    decode, _ = decode_alone(scenario, partition, c)
    tpot = decode.interval_s / scenario.accepted_per_step
    batch = c.number("batch_size")
    return DecodeUnits(
        tpot,
        batch * cuts[Phase.DECODE].dp / (scenario.workload.osl * tpot),
        _memory_slack(scenario, partition, cuts, Phase.DECODE, batch, decode.step_tokens),
        _unit_gpus(scenario, partition, cuts, Phase.DECODE),
    )


def prefill_units(scenario: Scenario, partition: Partition, c: Candidates) -> PrefillUnits:
    """Evaluate the prefill side of candidates of a partition whose groups serve one phase each."""
    cuts = {phase: Cut.of(c, phase) for phase in Phase}
    prefill, _, _ = prefill_alone(scenario, partition, c)
    sequences = prefill.sequences * cuts[Phase.PREFILL].pp
    return PrefillUnits(
        prefill,
        _memory_slack(scenario, partition, cuts, Phase.PREFILL, sequences, prefill.step_tokens),
        _unit_gpus(scenario, partition, cuts, Phase.PREFILL),
    )
