from typing import Any

import numpy as np
import pandas as pd
import pytest

from afd_dse.calibration.accuracy import compared, errors, summary
from afd_dse.calibration.intervals import METRICS
from afd_dse.calibration.measured import completed
from afd_dse.spec.calibration import UNCALIBRATED, load_calibration
from tests.calibration.examples import table

COLUMNS = ("framework", "model", "accelerator", "mode", "precision")


def row(
    measured: tuple[float, float, float],
    predicted: tuple[float, float, float],
    *,
    width: float | None = None,
    **columns: Any,
) -> dict[str, Any]:
    """A compared run: (TPOT ms, TTFT ms, tokens/s/GPU); ``width`` of its intervals as a share of the prediction."""
    found: dict[str, Any] = dict.fromkeys(COLUMNS, "x") | {"isl": 1024.0, "osl": 256.0, "concurrency": 8.0}
    for name, value, guess in zip(METRICS.values(), measured, predicted, strict=True):
        found |= {name: value, f"predicted_{name}": guess}
        found[f"low_{name}"] = np.nan if width is None else guess * (1.0 - width)
        found[f"high_{name}"] = np.nan if width is None else guess * (1.0 + width)
    return found | {"reason": ""} | columns


def test_errors_are_relative_to_what_was_measured_and_signed_by_the_prediction() -> None:
    made = pd.DataFrame(
        [
            row((10.0, 100.0, 50.0), (11.0, 150.0, 50.0), width=0.05),  # +10 %, +50 %, 0 %
            row((10.0, 100.0, 50.0), (8.0, 90.0, 55.0), width=0.3),  # −20 %, −10 %, +10 %
            row((10.0, np.nan, 50.0), (13.0, 90.0, 100.0), width=0.3),  # +30 %, not measured, +100 %
        ]
    )
    found = errors(made)
    assert found["tpot_mape"] == pytest.approx(20.0)
    assert found["tpot_median_ape"] == pytest.approx(20.0)
    assert found["tpot_bias"] == pytest.approx(10.0)
    assert (found["ttft_mape"], found["ttft_bias"]) == pytest.approx((30.0, 20.0))
    assert (found["throughput_mape"], found["throughput_median_ape"]) == pytest.approx((110.0 / 3.0, 10.0))
    # TPOT: 10 in 10.45–11.55 no; 10 in 5.6–10.4 yes; 10 in 9.1–16.9 yes.
    assert found["tpot_coverage90"] == pytest.approx(200.0 / 3.0)
    assert found["ttft_coverage90"] == pytest.approx(50.0)
    assert found["throughput_coverage90"] == pytest.approx(200.0 / 3.0)
    assert found["coverage90"] == pytest.approx(500.0 / 8.0)


def test_without_intervals_there_is_no_coverage_and_without_runs_no_error() -> None:
    bare = errors(pd.DataFrame([row((10.0, 100.0, 50.0), (11.0, 150.0, 50.0))]))
    assert bare["tpot_mape"] == pytest.approx(10.0)
    assert bare["coverage90"] is None
    assert bare["ttft_coverage90"] is None
    nothing = errors(pd.DataFrame([row((10.0, 100.0, 50.0), (11.0, 150.0, 50.0))]).iloc[:0])
    assert set(nothing.values()) == {None}


def question(*runs: tuple[float, float, float, float], **columns: Any) -> list[dict[str, Any]]:
    """Runs of one question: measured and predicted TPOT, measured and predicted throughput."""
    return [
        row((tpot, 100.0, got), (expected_tpot, 100.0, expected), **columns)
        for tpot, expected_tpot, got, expected in runs
    ]


def chosen(*rows: dict[str, Any]) -> dict[str, Any]:
    return summary(pd.DataFrame(list(rows)))


def test_regret_is_what_the_chosen_configuration_lacks_to_the_best() -> None:
    # The second is chosen: 80 of the best 100.
    found = chosen(*question((10, 10, 100, 50), (20, 20, 80, 60), (30, 30, 40, 20)))
    assert found["questions"] == 1
    assert found["regret"] == pytest.approx(20.0)
    # With the limit of 20 ms the third is not offered; the choice is the same, and the best is still the first.
    assert found["regret_under_tpot_limit"] == pytest.approx(20.0)
    assert found["limits_broken"] == 0
    # Ranks measured 3 2 1, predicted 2 3 1.
    assert found["rank_correlation"] == pytest.approx(0.5)


def test_a_perfect_prediction_regrets_nothing_and_breaks_no_limit() -> None:
    found = chosen(*question((10, 10, 30, 30), (20, 20, 60, 60), (30, 30, 90, 90)))
    assert (found["regret"], found["regret_under_tpot_limit"], found["limits_broken"]) == (0.0, 0.0, 0)
    assert found["rank_correlation"] == pytest.approx(1.0)


def test_a_choice_that_broke_the_limit_is_counted_and_not_credited() -> None:
    # Limit 20 ms: the third is predicted to keep it, and took 30.
    found = chosen(*question((10, 10, 30, 30), (20, 20, 60, 60), (30, 15, 90, 90)))
    assert found["limits_broken"] == 1
    assert found["regret"] == 0.0
    assert found["regret_under_tpot_limit"] is None


def test_the_noise_of_runs_breaks_no_limit_and_is_not_better_than_the_best() -> None:
    # Limit 20 ms: the third took 20.8, within 5 % of it. It counts as good as the best that kept the limit, no better.
    found = chosen(*question((10, 10, 30, 30), (20, 30, 60, 60), (20.8, 15, 90, 90)))
    assert found["limits_broken"] == 0
    assert found["regret_under_tpot_limit"] == 0.0


def test_where_nothing_is_predicted_to_keep_the_limit_the_fastest_is_chosen() -> None:
    found = chosen(*question((10, 40, 30, 30), (20, 60, 60, 60), (30, 50, 90, 90)))
    assert found["regret_under_tpot_limit"] == pytest.approx(50.0)


def test_a_question_is_a_model_on_an_accelerator_with_given_lengths() -> None:
    one = question((10, 10, 100, 50), (20, 20, 80, 60))
    other = question((10, 10, 100, 60), (20, 20, 80, 50), isl=2048.0)
    alone = question((10, 10, 100, 50), model="another")
    found = chosen(*one, *other, *alone)
    assert found["questions"] == 2
    assert found["regret"] == pytest.approx(10.0)
    assert found["rank_correlation"] is None  # two runs have no order worth the name


def test_errors_come_by_partition_and_empty_names_are_unstated() -> None:
    found = chosen(
        row((10.0, 100.0, 50.0), (11.0, 100.0, 50.0), framework="vllm", precision="", concurrency=8.0),
        row((10.0, 100.0, 50.0), (13.0, 100.0, 50.0), framework="vllm", precision="fp8", concurrency=9.0),
        row((10.0, 100.0, 50.0), (9.5, 100.0, 50.0), framework="sglang", precision="fp8", concurrency=500.0),
    )
    by = found["by"]
    assert set(by) == {"framework", "accelerator", "model", "mode", "precision", "concurrency_class"}
    assert {name: part["rows"] for name, part in by["framework"].items()} == {"vllm": 2, "sglang": 1}
    assert by["framework"]["vllm"]["tpot_mape"] == pytest.approx(20.0)
    assert by["framework"]["sglang"]["tpot_bias"] == pytest.approx(-5.0)
    assert set(by["precision"]) == {"unstated", "fp8"}
    assert {name: part["rows"] for name, part in by["concurrency_class"].items()} == {
        "up to 8": 1,
        "9 to 32": 1,
        "over 128": 1,
    }


def test_runs_without_a_prediction_are_counted_by_reason_and_enter_no_error() -> None:
    good = row((10.0, 100.0, 50.0), (11.0, 100.0, 50.0))
    lost = [row((10.0, 100.0, 50.0), (np.nan,) * 3, reason=why) for why in ("no model", "no model", "no cut")]
    found = chosen(good, *lost)
    assert (found["rows"], found["predicted"]) == (4, 1)
    assert found["unsupported"] == {"no model": 2, "no cut": 1}
    assert found["tpot_mape"] == pytest.approx(10.0)
    assert found["by"]["framework"]["x"]["rows"] == 1


def test_a_table_without_any_prediction_has_a_summary_of_nothing() -> None:
    found = chosen(row((10.0, 100.0, 50.0), (np.nan,) * 3, reason="no model"))
    assert (found["rows"], found["predicted"], found["questions"]) == (1, 0, 0)
    for name in ("tpot_mape", "coverage90", "regret", "regret_under_tpot_limit", "rank_correlation"):
        assert found[name] is None


RUNS = table({}, {"model": "nobody/knows-it"}, {"concurrency": 32}, {"framework": "trtllm"})


def test_predictions_stand_beside_what_was_measured_with_their_intervals() -> None:
    rows = completed(RUNS)
    found = compared(rows, load_calibration("default"))
    pd.testing.assert_frame_equal(found[list(rows.columns.drop("reason"))], rows.drop(columns="reason"))
    answered = found[found["reason"] == ""]
    assert answered.index.tolist() == [0, 2, 3]
    for name in METRICS.values():
        assert (answered[f"low_{name}"] < answered[f"predicted_{name}"]).all()
        assert (answered[f"predicted_{name}"] < answered[f"high_{name}"]).all()
        assert found.loc[1, [f"low_{name}", f"predicted_{name}", f"high_{name}"]].isna().all()
    ratio = found["high_tpot_ms"] / found["predicted_tpot_ms"]
    assert ratio[0] == pytest.approx(ratio[2])
    assert ratio[0] != pytest.approx(ratio[3])  # every framework has its own scatter


def test_without_a_calibration_there_are_predictions_and_no_intervals() -> None:
    found = compared(completed(RUNS), UNCALIBRATED)
    assert found.loc[[0, 2, 3], "predicted_tpot_ms"].notna().all()
    assert (
        found[[f"{end}_{name}" for end in ("low", "high") for name in METRICS.values()]].isna().all(axis=None)
    )
