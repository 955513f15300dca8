import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.errors import InputError
from afd_dse.spec.calibration import UNCALIBRATED, Calibration, Overheads, Scatter, load_calibration
from afd_dse.spec.load import load_job

SCATTER = {
    "tpot": {"low": 0.9, "high": 1.2},
    "ttft": {"low": 0.5, "high": 2.0},
    "throughput": {"low": 0.8, "high": 1.1},
}
FILE: dict[str, Any] = {
    "source": "twelve runs of ours",
    "overheads": {"vllm": {"hopper": {"layer_overhead_us": 7.5}, "blackwell": {"step_overhead_ms": 0.25}}},
    "intervals": {"vllm": {"measured": SCATTER, "borrowed": SCATTER}},
}
JOB: dict[str, Any] = {
    "model": "Qwen/Qwen3-32B-FP8",
    "framework": "vllm",
    "cluster": {"pools": [{"name": "main", "accelerator": "h200_sxm", "count": 8}]},
    "workload": {"input_tokens": 1024, "output_tokens": 256},
}


def written(path: Path, document: Any) -> Path:
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(
    ("generation", "layer_us", "step_ms"),
    [("hopper", 7.5, 0.0), ("ada", 7.5, 0.0), ("blackwell", 0.0, 0.25), ("blackwell_ultra", 0.0, 0.25)],
)
def test_what_is_not_blackwell_has_the_overheads_of_hopper(
    generation: str, layer_us: float, step_ms: float
) -> None:
    found = Calibration.model_validate(FILE).overheads_of("vllm", generation)
    assert (found.layer_overhead_us, found.step_overhead_ms) == (layer_us, step_ms)


def test_a_framework_that_was_not_fitted_has_no_overheads_and_no_intervals() -> None:
    calibration = Calibration.model_validate(FILE)
    assert calibration.overheads_of("sglang", "hopper") == Overheads()
    assert "sglang" not in calibration.intervals


def test_the_shipped_calibration_knows_every_framework_on_both_generations() -> None:
    shipped = load_calibration("default")
    assert set(shipped.overheads) == set(shipped.intervals) == {"trtllm", "sglang", "vllm"}
    for by_generation in shipped.overheads.values():
        assert set(by_generation) == {"hopper", "blackwell"}
        for overheads in by_generation.values():
            assert overheads.request_overhead_ms > 0.0
    for intervals in shipped.intervals.values():
        for metric in ("tpot", "ttft", "throughput"):
            own, borrowed = intervals.of(metric, borrowed=False), intervals.of(metric, borrowed=True)
            assert borrowed.low <= own.low < 1.0 < own.high <= borrowed.high


def test_none_is_kernels_alone() -> None:
    assert load_calibration("none") is UNCALIBRATED
    assert UNCALIBRATED.overheads_of("vllm", "hopper") == Overheads()
    assert set(Overheads().model_dump().values()) == {0.0}


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = load_calibration(str(written(tmp_path / "own.yaml", FILE)))
    assert found == Calibration.model_validate(FILE)


def changed(*path: str, to: Any) -> dict[str, Any]:
    copy: dict[str, Any] = yaml.safe_load(yaml.safe_dump(FILE))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return copy


BAD = {
    "unknown framework": (
        changed("overheads", to={"trt": {}}),
        "overheads.trt: unknown framework (got 'trt'); did you mean trtllm?",
    ),
    "unknown generation": (
        changed("overheads", "vllm", to={"hoper": {}}),
        "overheads.vllm.hoper: unknown generation (got 'hoper'); did you mean hopper?",
    ),
    "unknown parameter": (
        changed("overheads", "vllm", "hopper", to={"layer_us": 1.0}),
        "overheads.vllm.hopper.layer_us: unknown key (got 1.0); did you mean layer_overhead_us?",
    ),
    "negative overhead": (
        changed("overheads", "vllm", "hopper", "layer_overhead_us", to=-1.0),
        "overheads.vllm.hopper.layer_overhead_us: this must be at least 0",
    ),
    "no source": ({"overheads": {}}, "source: this is needed"),
    "a metric without scatter": (
        changed("intervals", "vllm", "measured", to={"tpot": SCATTER["tpot"]}),
        "intervals.vllm.measured: lacks ttft, throughput",
    ),
    "ends exchanged": (
        changed("intervals", "vllm", "measured", "tpot", to={"low": 1.2, "high": 0.9}),
        "intervals.vllm.measured.tpot.low: above high = 0.9 (got 1.2)",
    ),
    "scatter of an unknown framework": (
        changed("intervals", to={"tgi": FILE["intervals"]["vllm"]}),
        "intervals.tgi: unknown framework",
    ),
}


@pytest.mark.parametrize(("document", "message"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_with_the_path_of_what_is_wrong(
    document: Any, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "bad.yaml", document)
    with pytest.raises(InputError) as caught:
        load_calibration(str(path))
    assert message in str(caught.value)
    with pytest.raises(InputError, match=r"calibration: "):
        load_job(JOB | {"calibration": str(path)})


def test_a_job_names_default_none_or_an_existing_file(tmp_path: Path) -> None:
    assert load_job(JOB).calibration == "default"
    assert load_job(JOB | {"calibration": "none"}).calibration == "none"
    path = written(tmp_path / "own.yaml", FILE)
    assert load_job(JOB | {"calibration": str(path)}).calibration == str(path)
    with pytest.raises(InputError, match=r"calibration: no such calibration \(got 'defualt'\)"):
        load_job(JOB | {"calibration": "defualt"})


def test_a_calibration_is_looked_for_beside_the_job_file(tmp_path: Path) -> None:
    written(tmp_path / "own.yaml", FILE)
    job = written(tmp_path / "job.yaml", JOB | {"calibration": "own.yaml"})
    assert load_job(job).calibration == str(tmp_path / "own.yaml")


scatters = st.tuples(st.floats(0.2, 1.5), st.floats(1.01, 4.0)).map(
    lambda pair: Scatter(low=pair[0], high=pair[0] * pair[1])
)


@given(scatters)
def test_five_per_cent_lie_below_the_low_end_and_above_the_high_end(scatter: Scatter) -> None:
    assert scatter.probability_below(scatter.low) == pytest.approx(0.05)
    assert scatter.probability_below(scatter.high) == pytest.approx(0.95)
    assert scatter.ratio(0.95) == pytest.approx(scatter.high)
    assert scatter.ratio(0.5) == pytest.approx(math.sqrt(scatter.low * scatter.high))


@given(scatters, st.floats(0.5, 0.99))
def test_a_ratio_and_its_probability_are_inverse(scatter: Scatter, confidence: float) -> None:
    assert scatter.probability_below(scatter.ratio(confidence)) == pytest.approx(confidence)


@given(scatters, st.floats(0.01, 10.0), st.floats(1.0, 3.0))
def test_a_larger_ratio_is_never_less_probable(scatter: Scatter, ratio: float, factor: float) -> None:
    assert scatter.probability_below(ratio) <= scatter.probability_below(ratio * factor)
    assert scatter.probability_below(0.0) == 0.0
