import numpy as np
import pytest

from afd_dse.cost.evaluate import evaluate
from afd_dse.results.breakdown import breakdown
from afd_dse.spec.cells import PARTITIONS, Partition
from tests.strategies import SCENARIOS, layout, scenario


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
def test_operators_add_up_to_the_work_of_their_stations(partition: Partition) -> None:
    for seed, name in enumerate(SCENARIOS):
        case = scenario(name)
        candidates = layout(case, partition, np.random.default_rng(seed))
        metrics = evaluate(case, candidates).metrics
        for phase, detail in breakdown(case, candidates).items():
            stations = {row["station"]: row["ms_per_step"] for row in detail["stations"]}
            for station, metric in (("attention", "attention"), ("FFN", "ffn"), ("links", "link")):
                expected = 1e3 * metrics[f"{phase}_{metric}_s"][0]
                assert stations.get(station, 0.0) == pytest.approx(expected, rel=1e-6, abs=1e-9), (
                    name,
                    phase,
                    station,
                )
            assert detail["step_ms"] == pytest.approx(1e3 * metrics[f"{phase}_step_s"][0])
            assert sum(row["share"] for row in detail["operators"]) == pytest.approx(1.0)
            rows = detail["operators"]
            listed = sum(row["ms_per_step"] for row in rows if row["station"] == "outside")
            if phase == "decode":
                assert listed == pytest.approx(1e3 * metrics["decode_outside_s"][0], rel=1e-6)


def test_the_breakdown_is_of_one_candidate() -> None:
    case = scenario()
    two = layout(case, PARTITIONS[0], np.random.default_rng(0)).take(np.zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match="one candidate"):
        breakdown(case, two)
