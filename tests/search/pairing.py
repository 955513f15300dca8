"""What two tables of units make together, of one partition alone."""

from afd_dse.cost.scenario import Scenario
from afd_dse.search.objective import Objective
from afd_dse.search.pairs import combined, paired, throttled
from afd_dse.search.pool import Found
from afd_dse.search.sides import DecodeSide
from afd_dse.search.supply import Supplies
from afd_dse.spec.cells import Partition


def combine(
    scenario: Scenario, partition: Partition, supplies: Supplies, decode: DecodeSide, objective: Objective
) -> Found | None:
    """What is worth keeping of all pairs."""
    pairs = paired(scenario, partition, supplies, decode, objective)
    return None if pairs is None else combined(scenario, throttled(scenario, partition, pairs), objective)
