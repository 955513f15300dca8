from functools import lru_cache

import numpy as np
import pandas as pd
import pytest

from afd_dse.calibration.fit import GROUP, fit_overheads, generation_of, held_out
from afd_dse.calibration.measured import completed
from afd_dse.calibration.runs import METRICS, predict
from afd_dse.spec.calibration import Calibration, Overheads, load_calibration
from tests.calibration.examples import MODELS, grid, measured_as, table

TRUTH = Calibration(
    source="the test",
    overheads={
        "vllm": {
            "hopper": Overheads(
                layer_overhead_us=14.0,
                dense_layer_overhead_us=20.0,
                step_overhead_ms=0.3,
                sequence_overhead_us=9.0,
                request_overhead_ms=70.0,
                admission_steps=8.0,
                prompts_ahead=0.5,
            )
        }
    },
)


@lru_cache(maxsize=4)
def runs(noise: float = 0.0) -> pd.DataFrame:
    return measured_as(grid(), TRUTH, noise)


def errors(found: pd.DataFrame, measured: pd.DataFrame, metric: str) -> "pd.Series[float]":
    return (found[metric] / measured[metric] - 1.0).abs()


def calibrated(overheads: dict[str, dict[str, Overheads]]) -> Calibration:
    return Calibration(source="a fit", overheads=overheads)


@pytest.mark.parametrize(("noise", "slack"), [(0.0, 0.015), (0.05, 0.025)], ids=["exact", "noisy"])
def test_a_fit_finds_the_overheads_that_made_the_runs(noise: float, slack: float) -> None:
    """By what they predict: layers, dense layers and steps cost alike in runs of few models."""
    fitted = fit_overheads(completed(runs(noise)))
    truth, found = (predict(completed(runs()), c) for c in (TRUTH, calibrated(fitted)))
    bare = predict(completed(runs()), calibrated({}))
    for metric in ("tpot_ms", "ttft_ms"):
        assert errors(found, truth, metric).mean() < slack
        assert errors(found, truth, metric).mean() < errors(bare, truth, metric).mean() / 6.0
    hopper, true = fitted["vllm"]["hopper"], TRUTH.overheads_of("vllm", "hopper")
    # What weighs little in eighty runs stays nearer to the first guess of 3 µs.
    assert 3.5 < hopper.sequence_overhead_us <= true.sequence_overhead_us
    assert hopper.request_overhead_ms == pytest.approx(true.request_overhead_ms, rel=0.1)
    assert hopper.admission_steps == pytest.approx(true.admission_steps, rel=0.15)
    per_dense_layer = [h.layer_overhead_us + h.dense_layer_overhead_us for h in (hopper, true)]
    assert per_dense_layer[0] == pytest.approx(per_dense_layer[1], rel=0.3)


def test_a_few_wild_runs_do_not_spoil_the_fit() -> None:
    rows = completed(runs())
    wild = rows.copy()
    wild.loc[::9, "tpot_ms"] *= 4.0
    truth = predict(rows, TRUTH)["tpot_ms"]
    found = predict(rows, calibrated(fit_overheads(wild)))["tpot_ms"]
    assert (found / truth - 1.0).abs().median() < 0.05


def test_no_overhead_is_fitted_below_zero() -> None:
    """Runs faster than their kernels are noise or another machine, not gaps of negative length."""
    rows = completed(runs())
    rows["tpot_ms"] *= 0.3
    fitted = fit_overheads(rows)["vllm"]["hopper"]
    assert all(value >= 0.0 for value in fitted.model_dump().values())
    assert fitted.layer_overhead_us < 1.0


def start() -> Calibration:
    return load_calibration("default")


def five(truth: Calibration) -> pd.DataFrame:
    cases = [{"concurrency": load, "tp": 2, "gpus": 2} for load in (1, 8, 32, 64, 128)]
    return completed(measured_as(table(*cases), truth))


def test_five_runs_move_the_fit_from_its_start_toward_the_truth_and_not_beyond() -> None:
    rows = five(TRUTH)
    fitted = calibrated(fit_overheads(rows, start()))
    before, after, truth = (predict(rows, c) for c in (start(), fitted, TRUTH))
    for metric in ("tpot_ms", "ttft_ms"):
        left = (after[metric] - truth[metric]) / (before[metric] - truth[metric])
        assert left.between(0.0, 0.6).all()
    moved = fitted.overheads_of("vllm", "hopper").model_dump()
    known = start().overheads_of("vllm", "hopper").model_dump()
    for name, (value, width) in {
        "layer_overhead_us": (known["layer_overhead_us"], 10.0),
        "sequence_overhead_us": (known["sequence_overhead_us"], 8.0),
        "linear_layer_overhead_us": (known["linear_layer_overhead_us"], 0.01),
    }.items():
        assert moved[name] == pytest.approx(value, abs=width), name


def test_five_runs_that_agree_with_the_start_leave_it_where_it_was() -> None:
    fitted = fit_overheads(five(start()), start())["vllm"]["hopper"].model_dump()
    for name, value in start().overheads_of("vllm", "hopper").model_dump().items():
        assert fitted[name] == pytest.approx(value, rel=0.1, abs=1.0), name


def test_what_no_run_speaks_of_stays_as_it_started() -> None:
    fitted = fit_overheads(five(TRUTH), start())
    for framework, by_generation in start().overheads.items():
        for generation, overheads in by_generation.items():
            if (framework, generation) != ("vllm", "hopper"):
                assert fitted[framework][generation].model_dump() == pytest.approx(
                    overheads.model_dump(), abs=1e-3
                )


def test_one_run_moves_the_fit_less_than_many_do() -> None:
    one, many = five(TRUTH).iloc[[2]], completed(runs())
    known = start().overheads_of("vllm", "hopper").sequence_overhead_us
    small, large = (
        fit_overheads(rows, start())["vllm"]["hopper"].sequence_overhead_us - known for rows in (one, many)
    )
    assert 0.0 <= small < large


def test_the_order_of_the_runs_does_not_matter_to_the_fit() -> None:
    rows = completed(runs(0.05))
    shuffled = rows.sample(frac=1.0, random_state=4)
    one, other = (fit_overheads(table)["vllm"]["hopper"].model_dump() for table in (rows, shuffled))
    assert one == pytest.approx(other, rel=1e-3, abs=2e-3)


@lru_cache(maxsize=1)
def unknown() -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = completed(runs(0.05))
    return rows, held_out(rows)


def test_what_is_held_out_is_predicted_well_by_what_is_not() -> None:
    rows, found = unknown()
    assert list(found.columns) == [*METRICS, "borrowed_share"]
    assert found.notna().all(axis=None)
    for metric in METRICS:
        assert errors(found, rows, metric).median() < 0.08


def test_a_held_out_group_is_predicted_the_same_whatever_was_measured_of_it() -> None:
    rows, before = unknown()
    hidden = rows["model"] == MODELS[0]
    assert hidden.any()
    assert not hidden.all()
    perturbed = rows.copy()
    noise = np.random.default_rng(0).uniform(0.3, 3.0, (int(hidden.sum()), len(METRICS)))
    perturbed.loc[hidden, list(METRICS)] *= noise
    after = held_out(perturbed)
    pd.testing.assert_frame_equal(after[hidden], before[hidden])
    # The others had its runs among theirs.
    assert not np.allclose(after.loc[~hidden, "tpot_ms"], before.loc[~hidden, "tpot_ms"], rtol=1e-4)


def test_a_group_is_a_model_on_an_accelerator() -> None:
    assert GROUP == ["model", "accelerator"]


@pytest.mark.parametrize(
    ("accelerator", "generation"), [("h100_sxm", "hopper"), ("b200_sxm", "blackwell"), ("gb300", "blackwell")]
)
def test_accelerators_have_the_overheads_of_their_generation(accelerator: str, generation: str) -> None:
    assert generation_of(accelerator) == generation
