from pathlib import Path

import pytest

from afd_dse.calibration.api import calibrate, validate
from afd_dse.calibration.kv_capacity import MEASURED
from afd_dse.errors import InputError
from afd_dse.spec.calibration import load_calibration
from tests.calibration.examples import grid, measured_as, table, written

LOADS = (1, 8, 32, 64, 128)
FEW = table(*({"concurrency": load, "tp": 2, "gpus": 2} for load in LOADS))


@pytest.fixture
def five(tmp_path: Path) -> Path:
    """Five runs that are 20 % slower than the shipped calibration says, and one that cannot be predicted."""
    runs = measured_as(FEW, load_calibration("default"))
    for name, factor in (("tpot_ms", 1.2), ("ttft_ms", 1.5), ("output_tokens_per_s_per_gpu", 1 / 1.25)):
        runs[name] = (runs[name].astype(float) * factor).map(str)
    runs.loc[len(runs)] = {**runs.iloc[0].to_dict(), "accelerator": "h900"}
    return written(runs, tmp_path / "five.csv")


def test_validation_summarises_the_table_that_it_gives(five: Path) -> None:
    facts, found = validate(five)
    assert (facts["rows"], facts["predicted"]) == (6, 5)
    assert facts["unsupported"] == {"accelerator h900: unknown accelerator": 1}
    assert facts["tpot_bias"] == pytest.approx(100.0 * (1 / 1.2 - 1), abs=0.1)
    assert facts["ttft_mape"] == pytest.approx(100.0 / 3.0, abs=0.1)
    answered = found[found["reason"] == ""]
    ape = (answered["predicted_tpot_ms"] / answered["tpot_ms"] - 1.0).abs()
    assert facts["tpot_mape"] == pytest.approx(100.0 * ape.mean())


def test_the_calibration_of_a_validation_is_chosen_by_name(five: Path) -> None:
    bare, _ = validate(five, "none")
    default, _ = validate(five)
    assert bare["tpot_mape"] > default["tpot_mape"] + 5.0
    assert bare["coverage90"] is None
    assert default["coverage90"] is not None


def test_measured_capacities_are_recognised_by_their_column(tmp_path: Path) -> None:
    engines = table()[["model", "tp", "isl", "osl"]].assign(system="h100_sxm", **{MEASURED: "300"})
    facts, found = validate(written(engines, tmp_path / "kv.csv"))
    assert facts["kv_capacity_rows"] == facts["kv_capacity_predicted"] == 1
    assert "tpot_mape" not in facts
    assert found["predicted_max_concurrent_seqs"][0] > 1.0


def test_five_runs_bring_predictions_closer_and_keep_the_intervals_of_the_start(five: Path) -> None:
    fitted, errors = calibrate(five)
    for metric in ("tpot", "ttft", "throughput"):
        assert errors["after"][f"{metric}_mape"] < 0.5 * errors["before"][f"{metric}_mape"]
    shipped = load_calibration("default")
    assert fitted.intervals == shipped.intervals
    assert fitted.source == f"5 runs of five.csv, on top of: {shipped.source}"
    assert fitted.overheads["trtllm"] == shipped.overheads["trtllm"]


def test_a_fit_can_start_from_an_own_file_or_from_nothing(five: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("source: own\noverheads: {vllm: {hopper: {layer_overhead_us: 40.0}}}\n")
    from_own, _ = calibrate(five, str(own))
    assert from_own.source.endswith("on top of: own")
    assert from_own.intervals == {}
    assert from_own.overheads_of("vllm", "hopper").layer_overhead_us > 25.0
    from_nothing, errors = calibrate(five, None)
    assert from_nothing.source == "5 runs of five.csv"
    assert set(from_nothing.overheads) == {"vllm"}
    assert from_nothing.intervals == {}  # one model on one accelerator says nothing of others
    assert errors["after"]["tpot_mape"] < 0.75 * errors["before"]["tpot_mape"]


def test_many_models_give_a_fresh_fit_its_own_intervals(tmp_path: Path) -> None:
    runs = grid(accelerators=("h100_sxm", "h200_sxm"))
    runs = runs[(runs["tp"] == "2") & (runs["isl"] == "512")].reset_index(drop=True)
    runs = measured_as(runs, load_calibration("default"), noise=0.05)
    # A run that cannot be predicted must not stop the cross-validation.
    runs.loc[len(runs)] = {**runs.iloc[0].to_dict(), "accelerator": "h900"}
    fitted, errors = calibrate(written(runs, tmp_path / "many.csv"), None)
    assert set(fitted.intervals) == {"vllm"}
    assert errors["after"]["coverage90"] >= 85.0
    scatter = fitted.intervals["vllm"].of("tpot", borrowed=False)
    assert 0.75 < scatter.low < 1.0 < scatter.high < 1.3


def test_runs_of_which_none_can_be_predicted_are_refused(tmp_path: Path) -> None:
    path = written(table({"accelerator": "h900"}, {"isl": ""}), tmp_path / "bad.csv")
    with pytest.raises(InputError, match="no row can be predicted") as caught:
        calibrate(path)
    assert "accelerator h900: unknown accelerator" in str(caught.value)
    assert "isl is not a number from 1" in str(caught.value)
    facts, _ = validate(path)
    assert facts["predicted"] == 0


def test_an_unknown_calibration_is_refused(five: Path) -> None:
    for call in (validate, calibrate):
        with pytest.raises(InputError, match=r"defualt"):
            call(five, "defualt")
