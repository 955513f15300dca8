import pandas as pd
import pytest

from afd_dse.errors import InputError
from afd_dse.results.stored import deployment_at
from tests.results.examples import answer, job


@pytest.mark.parametrize("mode", ["colocated", "pd", "afd", "pd_afd", "PA DF | PF | DA"])
def test_a_row_of_the_table_is_the_deployment_that_it_came_from(mode: str) -> None:
    candidates = answer().candidates
    rows = candidates[(candidates["mode"] == mode) & candidates["feasible"]]
    best = rows["rank"].idxmin()
    found = deployment_at(job(), candidates, int(best))
    expected = answer().document["best_per_mode"][mode]
    assert found["label"] == expected["label"]
    assert found["groups"] == expected["groups"]
    for name in ("tokens_per_s_per_gpu", "tpot_ms", "ttft_ms", "usd_per_mtok"):
        assert found[name] == pytest.approx(expected[name], rel=1e-9)


def test_a_table_without_layouts_is_refused_with_the_missing_column() -> None:
    with pytest.raises(InputError, match="missing"):
        deployment_at(job(), pd.DataFrame({"mode": ["pd"], "label": ["x"]}), 0)
