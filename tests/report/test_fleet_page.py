"""The page of a fleet from a document, without a search."""

from typing import Any

import pytest

from afd_dse.report.figures.fleet import staircases_figure
from afd_dse.report.fleet_page import executive, fleet_page
from afd_dse.spec.fleet import load_fleet
from tests.results.examples import answer
from tests.spec.test_fleet import SMALL


def model(name: str, demand: float | None, *, served: bool = True) -> dict[str, Any]:
    best = answer().document["best"]
    steps = [(1, 2.0), (2, 5.0), (4, 11.0)]
    return {
        "name": name,
        "demand": None if demand is None else {"requests_per_s": demand},
        "weight": 1.0,
        "gpus_by_pool": {"main": best["gpus"] if served else 0},
        "load": None if demand is None or not served else demand / best["requests_per_s"],
        "deployment": best if served else None,
        "explanation": "space 'quick'",
        "warnings": [],
        "steps": [
            {
                "gpus_by_pool": {"main": g},
                "requests_per_s": r,
                "tokens_per_s": 100 * r,
                "label": "TP1",
                "mode": "pd",
            }
            for g, r in steps
        ]
        if served
        else [],
    }


def document(*models: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {
        "fleet": load_fleet(SMALL).model_dump(mode="json"),
        "objective": "fewest_gpus",
        "feasible": True,
        "reason": None,
        "growth": 1.5,
        "gpus": 4,
        "gpus_by_pool": {"main": {"used": 4, "free": 4, "count": 8}},
        "usd_per_hour": 8.0,
        "tokens_per_s": 100.0,
        "explanation": "split proved optimal",
        "considered": 10,
        "evaluated": 5,
        "search_seconds": 1.0,
        "models": list(models),
        "warnings": ["GPUs are counted"],
    } | change


def test_lines_are_multiples_of_the_demand_and_end_at_the_cluster() -> None:
    figure = staircases_figure(document(model("a", 2.0), model("b", 4.0)))
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert list(lines[0].x) == [0, 1, 2, 4, 8]
    assert list(lines[0].y) == [0.0, 1.0, 2.5, 5.5, 5.5]
    assert list(lines[1].y) == pytest.approx([0.0, 0.5, 1.25, 2.75, 2.75])
    assert all(trace.line.shape == "hv" for trace in lines)
    without = staircases_figure(document(model("a", 2.0), model("b", None)))
    assert list(without.data[0].y) == [0.0, 200.0, 500.0, 1100.0, 1100.0]


def test_a_stronger_step_on_fewer_gpus_hides_a_weaker_one_of_other_pools() -> None:
    one = model("a", 1.0)
    one["steps"].append(one["steps"][0] | {"gpus_by_pool": {"main": 3}, "requests_per_s": 1.0})
    figure = staircases_figure(document(one))
    assert 3 not in list(figure.data[0].x)


def test_the_top_names_shares_and_what_is_wrong() -> None:
    fine = executive(document(model("chat", 2.0)))
    assert fine.title == "4 of 8 GPUs serve 1 model"
    assert fine.facts[0][0] == "chat"
    assert fine.warnings == ("GPUs are counted",)
    short = executive(document(model("chat", 2.0), feasible=False, reason="too few"))
    assert short.title == "These demands cannot be met"
    assert short.warnings[0] == "too few"


def test_a_page_is_made_where_a_model_or_all_of_them_have_nothing() -> None:
    some = fleet_page(document(model("a", 2.0), model("b", 2.0, served=False)))
    assert "no deployment meets its SLO" in some
    none = fleet_page(
        document(model("b", 2.0, served=False), feasible=False, reason="nothing fits", growth=None)
    )
    assert "nothing fits" in none
    assert "Nothing to show: no model gets GPUs" in none
