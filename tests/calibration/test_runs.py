import numpy as np
import pandas as pd
import pytest

from afd_dse.calibration.measured import REASON, completed
from afd_dse.calibration.runs import METRICS, PREDICTED, predict
from afd_dse.spec.calibration import UNCALIBRATED, Calibration, load_calibration
from tests.calibration.examples import PD, table

SLOW = {"layer_overhead_us": 20.0, "step_overhead_ms": 1.0, "request_overhead_ms": 80.0}
ON_HOPPER = Calibration.model_validate({"source": "the test", "overheads": {"vllm": {"hopper": SLOW}}})
MOE = {"model": "Qwen/Qwen3-30B-A3B-FP8", "tp": 2, "gpus": 2}


def predicted(runs: pd.DataFrame, calibration: Calibration = UNCALIBRATED) -> pd.DataFrame:
    return predict(completed(runs), calibration)


def test_every_run_that_can_be_understood_gets_every_number() -> None:
    found = predicted(
        table(
            {},
            {"concurrency": 64, "tp": 2, "gpus": 2},
            {**MOE, "ep": 2},
            {**MOE, "tp": 1, "dp": 2, "ep": 2},
            {"pp": 2, "gpus": 2},
            {"origin": "InferenceX daily"},
            PD,
        )
    )
    assert (found[REASON] == "").all()
    assert list(found.columns) == [*PREDICTED, REASON]
    assert np.isfinite(found[list(PREDICTED)].to_numpy(np.float64)).all()
    assert (found[list(METRICS)] > 0.0).all(axis=None)


def test_throughput_is_concurrency_over_the_time_of_a_request_and_gpus() -> None:
    runs = table({}, {"concurrency": 32, "tp": 2}, {**MOE, "dp": 2, "ep": 4}, {**PD, "decode_tp": 2})
    found = predicted(runs)
    seconds = (found["ttft_ms"] + 255.0 * found["tpot_ms"]) / 1e3
    expected = np.array([8, 32, 8, 8]) * 256.0 / seconds / np.array([1.0, 2.0, 4.0, 5.0])
    assert found["output_tokens_per_s_per_gpu"].to_numpy() == pytest.approx(expected.to_numpy())


BAD = {
    "framework": ({"framework": "tensorrt"}, "framework tensorrt: unknown framework"),
    "accelerator": ({"accelerator": "h900"}, "accelerator h900: unknown accelerator"),
    "model": ({"model": "nobody/knows-it"}, "model nobody/knows-it: is not in the catalogue"),
    "type": ({"gemm_dtype": "int3"}, "quantization.gemm int3"),
    "type of another generation": ({"gemm_dtype": "nvfp4"}, "does not run on hopper"),
    "cache": ({"kv_dtype": "int3"}, "quantization.kv_cache int3"),
    "heads": ({"tp": 3}, "tp does not divide the attention heads"),
    "experts": ({**MOE, "tp": 1, "dp": 256, "ep": 256}, "do not spread evenly"),
    "stages": ({"pp": 900}, "pp exceeds the layers"),
    "decode worker": ({**PD, "decode_tp": 5}, "tp does not divide the attention heads"),
    "number": ({"isl": "long"}, "isl is not a number from 1"),
}


@pytest.mark.parametrize(("change", "reason"), BAD.values(), ids=BAD)
def test_a_run_that_cannot_be_predicted_says_why_and_the_others_keep_their_predictions(
    change: dict[str, object], reason: str
) -> None:
    good = {"concurrency": 16}
    found = predicted(table({}, change, good))
    alone = predicted(table({}, good))
    assert reason in found[REASON][1]
    assert found.loc[1, list(PREDICTED)].isna().all()
    kept = found.drop(index=1).reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, alone)


def test_a_table_of_hopeless_runs_still_gets_its_reasons() -> None:
    found = predicted(table({"model": "nobody/knows-it"}, {"isl": ""}))
    assert (found[REASON] != "").all()
    assert found[list(PREDICTED)].isna().all(axis=None)


def test_the_order_of_runs_does_not_matter() -> None:
    runs = table(
        *({"concurrency": load, "isl": isl} for load in (1, 16, 64) for isl in (512, 2048)),
        {"model": "nobody/knows-it"},
        {**MOE, "ep": 2},
        PD,
    )
    order = np.random.default_rng(3).permutation(len(runs))
    straight, shuffled = predicted(runs), predicted(runs.iloc[order])
    pd.testing.assert_frame_equal(shuffled, straight.iloc[order].reset_index(drop=True))


def test_overheads_of_a_calibration_lengthen_what_they_are_said_to() -> None:
    runs = table({}, {"concurrency": 64})
    bare, slow = predicted(runs), predicted(runs, ON_HOPPER)
    layers = 32  # of Llama-3.1-8B
    at_least = layers * SLOW["layer_overhead_us"] * 1e-3 + SLOW["step_overhead_ms"]
    assert (bare["layers"] == layers).all()
    # Slower steps leave fewer prompts between the tokens, so that a little of the rise is lost.
    assert (slow["tpot_ms"] - bare["tpot_ms"]).to_numpy() == pytest.approx([at_least] * 2, rel=0.15)
    assert (slow["ttft_ms"] - bare["ttft_ms"] > SLOW["request_overhead_ms"]).all()


def test_overheads_belong_to_their_framework_and_generation() -> None:
    runs = table({"framework": "trtllm"}, {"accelerator": "b200_sxm"})
    pd.testing.assert_frame_equal(predicted(runs), predicted(runs, ON_HOPPER))


def test_kernels_that_were_not_measured_count_as_borrowed() -> None:
    found = predicted(table({}, {"accelerator": "h20"}))
    assert found["borrowed_share"][0] < 0.05
    assert found["borrowed_share"][1] > 0.5


def test_layers_are_counted_by_kind() -> None:
    found = predicted(table({}, MOE, {"model": "Qwen/Qwen3.5-397B-A17B", "tp": 8, "gpus": 8}))
    assert found[["layers", "dense_layers", "linear_layers"]].to_numpy().tolist() == [
        [32, 32, 0],
        [48, 0, 0],
        [60, 0, 45],
    ]


def test_lengths_vary_where_the_benchmark_draws_them() -> None:
    found = predicted(table({}, {"origin": "InferenceX daily export"}, concurrency=64))
    assert found["equal_lengths"].tolist() == [1.0, 0.0]


def test_the_default_calibration_predicts_a_published_run_well() -> None:
    """Llama-3.1-70B in FP8 on four H100 under vLLM, sixteen requests in flight: 13.192 ms a token."""
    published = {
        "model": "meta-llama/Llama-3.1-70B",
        "gemm_dtype": "fp8",
        "isl": 922,
        "osl": 922,
        "concurrency": 16,
        "tp": 4,
        "gpus": 4,
        "origin": "InferenceX",
    }
    found = predicted(table(published), load_calibration("default"))
    assert found["tpot_ms"][0] == pytest.approx(13.192, rel=0.1)
