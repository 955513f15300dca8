"""What may not get worse: predictions of the published runs, held to the errors of tests/data/accuracy.json.

Where a change is meant to move them, look at the new ones and store them with `python benchmarks/accuracy.py --write`.
"""

import json
from typing import Any

import pandas as pd
import pytest

from afd_dse.calibration.api import validate
from tests.calibration.examples import MEASURED_RUNS

STORED: dict[str, Any] = json.loads(MEASURED_RUNS.with_name("accuracy.json").read_text(encoding="utf-8"))
ALLOWED = 1.05
METRICS = ("tpot_mape", "ttft_mape", "throughput_mape")
MEDIANS = ("tpot_median_ape", "ttft_median_ape", "throughput_median_ape")


@pytest.fixture(scope="module")
def validated() -> tuple[dict[str, Any], pd.DataFrame]:
    return validate(MEASURED_RUNS)


@pytest.fixture(scope="module")
def facts(validated: tuple[dict[str, Any], pd.DataFrame]) -> dict[str, Any]:
    return validated[0]


def worse(now: dict[str, Any], stored: dict[str, Any]) -> dict[str, tuple[float | None, float]]:
    """Errors that exceed the stored ones by more than is allowed, or are gone: now and stored."""
    found = {}
    for name, value in stored.items():
        if value is not None and (now.get(name) is None or now[name] > ALLOWED * value):
            found[name] = (now.get(name), value)
    return found


def test_no_run_loses_its_prediction(validated: tuple[dict[str, Any], pd.DataFrame]) -> None:
    facts, table = validated
    lost = set(table.loc[table["reason"] != "", "id"]) - set(STORED["unpredicted"])
    assert lost == set(), facts["unsupported"]
    assert facts["predicted"] >= 0.98 * facts["rows"]
    answered = table[table["reason"] == ""]
    for name in ("tpot_ms", "ttft_ms", "output_tokens_per_s_per_gpu"):
        assert (answered[f"predicted_{name}"] > 0.0).all()


def test_the_errors_over_all_runs_do_not_grow(facts: dict[str, Any]) -> None:
    assert set(STORED["overall"]) == {*METRICS, *MEDIANS}
    assert worse(facts, STORED["overall"]) == {}


@pytest.mark.parametrize("partition", ["framework", "accelerator", "mode", "model"])
def test_the_errors_of_no_partition_grow(facts: dict[str, Any], partition: str) -> None:
    now, stored = facts["by"][partition], STORED["by"][partition]
    assert set(now) == set(stored)
    assert {name: bad for name in stored if (bad := worse(now[name], stored[name]))} == {}


def test_intervals_of_nine_in_ten_hold_for_about_nine_in_ten(facts: dict[str, Any]) -> None:
    assert 85.0 <= facts["coverage90"] <= 97.0
    for metric in ("tpot", "ttft", "throughput"):
        assert 85.0 <= facts[f"{metric}_coverage90"] <= 97.0
    for name, part in facts["by"]["framework"].items():
        assert 80.0 <= part["coverage90"] <= 98.0, name


def test_the_choice_among_measured_configurations_stays_good(facts: dict[str, Any]) -> None:
    assert facts["regret"] <= 4.0
    assert facts["rank_correlation"] >= 0.95


def test_the_gate_notices_an_error_that_grew_and_one_that_is_gone() -> None:
    assert worse({"tpot_mape": 10.5}, {"tpot_mape": 10.0}) == {}
    assert worse({"tpot_mape": 10.6}, {"tpot_mape": 10.0}) == {"tpot_mape": (10.6, 10.0)}
    assert worse({"tpot_mape": None}, {"tpot_mape": 10.0}) == {"tpot_mape": (None, 10.0)}
