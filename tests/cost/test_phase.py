"""Stations of a step: one call for several loads gives what one call for each gives."""

import numpy as np
import pytest

from afd_dse.cost import phase
from afd_dse.cost.columns import Candidates
from afd_dse.cost.phase import Cut, StepLoad, run_step, stations_under
from afd_dse.spec.cells import PARTITIONS, Phase
from tests.strategies import layout, scenario


@pytest.mark.parametrize("name", ["deepseek-v3 on b200", "glm-4.5 on h200 and b200"])
def test_stations_under_several_loads_are_those_under_each(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = scenario(name)
    rng = np.random.default_rng(5)
    candidates = Candidates.concatenate([layout(case, PARTITIONS[0], rng) for _ in range(6)])
    cut, none = Cut.of(candidates, Phase.DECODE), np.zeros(len(candidates))
    loads = [StepLoad(candidates.number("batch_size") * factor, *[none] * 4) for factor in (1.0, 0.5, 3.0)]
    steps = [(cut, load) for load in loads]
    at_once = stations_under(case, Phase.DECODE, False, steps)
    monkeypatch.setattr(phase, "ROWS_AT_ONCE", 0)
    each = stations_under(case, Phase.DECODE, False, steps)
    rows = np.arange(len(candidates))
    for one, other in zip(at_once, each, strict=True):
        step, same = run_step(case, one), run_step(case, other)
        np.testing.assert_allclose(step.seconds, same.seconds, rtol=1e-12)
        np.testing.assert_allclose(step.by_provenance(rows), same.by_provenance(rows), rtol=1e-12)
