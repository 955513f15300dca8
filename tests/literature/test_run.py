"""Published results against the package's functions and the page, and rows that are not as they should be."""

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from afd_dse.errors import InputError
from afd_dse.literature.answer import EVALUATORS
from afd_dse.literature.rows import read_rows
from afd_dse.literature.run import literature
from benchmarks.literature_table import PAGE, ROWS, line, published
from tests.literature.answers import DIFFERING, LEFT_TO_THE_SCRIPT, SEARCHED, answers

DERIVED = Path(__file__).resolve().parents[1] / "data" / "derived_results.csv"
DATA = Path(__file__).resolve().parents[1] / "data" / "published_results.csv"
RENEW = "run python -m benchmarks.literature_table"
HEADER = ["id", "evaluator", "system", "quantity", "inputs", "expected", "unit", "tolerance", "kind"]


def table(path: Path, *rows: dict[str, Any]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEADER)
        writer.writeheader()
        for row in rows:
            inputs = row.get("inputs", {})
            text = inputs if isinstance(inputs, str) else json.dumps(inputs)
            writer.writerow({"id": "x", "tolerance": "1%", **row, "inputs": text})
    return path


def answered(tmp_path: Path, **row: Any) -> dict[str, Any]:
    result: dict[str, Any] = literature(table(tmp_path / "rows.csv", row))["results"][0]
    return result


def test_every_published_row_without_a_search_is_as_published_or_known_to_differ() -> None:
    found = answers(False)
    wrong = {name: result["note"] for name, result in found.items() if not result["ok"]}
    assert set(wrong) == DIFFERING - SEARCHED - LEFT_TO_THE_SCRIPT, wrong
    assert len(found) == 89 - len(SEARCHED) - len(LEFT_TO_THE_SCRIPT)


def test_every_derived_row_is_as_the_formula_says_and_uses_all_its_inputs() -> None:
    found = literature(DERIVED)["results"]
    assert len(found) > 80
    assert {result["id"]: result["note"] for result in found if not result["ok"]} == {}
    assert [result["id"] for result in found if "not used" in result["note"]] == []


@pytest.mark.slow
def test_every_searched_row_gets_an_answer_and_the_known_ones_differ() -> None:
    found = answers(True)
    assert [name for name, result in found.items() if result["ours"] is None] == []
    assert {name for name, result in found.items() if not result["ok"]} == DIFFERING & SEARCHED


def test_every_evaluator_of_the_published_rows_is_known() -> None:
    assert {row.evaluator for row in read_rows(DATA)} <= set(EVALUATORS)


@pytest.mark.skipif("AFD_DSE_VALIDATION" not in os.environ, reason="needs a folder of published results")
def test_every_collected_row_is_read_and_answered_as_the_copy_here() -> None:
    collected = Path(os.environ["AFD_DSE_VALIDATION"]) / "published_results.csv"
    assert DATA.read_text() == collected.read_text()


# Other inputs than the published rows have; expected values by hand from each paper's formula.
OTHERS: list[tuple[str, dict[str, Any], str, str]] = [
    ("hfu_bound", {"model": "kimi-k2", "hardware": "h100", "ffn_nodes": [1, 4]}, "74.51; 20.7", "0.05 abs"),
    (
        "hfu_bound",
        {
            "moe_intermediate_size": 1000, "topk": 4, "num_experts": 64, "fp8_tflops": 1000, "scale_out_gb_s": 25,
            "scale_up_gb_s": 1000, "ffn_nodes": 2, "dispatch_bytes": 2, "combine_bytes": 2,
        },
        "7.5", "exact",
    ),
    ("hfu_intensity_ratio", {"model": "qwen3-coder-480b", "hardware": "h100", "ffn_nodes": 20}, "2.78", "exact"),
    ("node_discrete_efficiency", {"N_A": 4, "N_F": 2, "sigma": 0.7}, "0.84", "0.001"),
    ("node_discrete_efficiency", {"N_A": 4, "N_F": 2, "sigma": 0.7, "discrete": False}, "0.875", "exact"),
    ("ffn_utilisation", {"peak_tflops": 989, "hbm_tb_s": 3.35, "experts": 16, "topk": 4}, "295.2; 73.8; 0.25", "0.1%"),
    ("ffn_full_batch", {"model": "deepseek-v3", "peak_tflops": 312, "hbm_tb_s": 2}, "4992", "exact"),
    ("min_micro_batches", {"Tc_over_Tf": 0.5}, "3", "exact"),
    ("closed_pipeline_total", {"T_a": 2, "T_e": 1, "T_c_each_way": 0.5, "m": 4, "L": 10}, "82", "exact"),
    ("kv_load_moments", {"mu_P": 1000, "mu_D": 100}, "1100", "exact"),
    ("kv_load_moments", {"mu_P": 10, "mu_D": {"kind": "fixed", "mean": 21}}, "20", "exact"),
    ("optimal_ratio", {"alphaA": 0.04, "alphaF": 2, "betaA": 10, "betaF": 110, "mu_P": 100, "mu_D": 100, "B": 100},
     "3.5", "exact"),
    ("barrier_overhead", {"mu_P": 0.5, "mu_D": {"kind": "fixed", "mean": 3}, "B": 1, "r": 2}, "30.7", "0.1%"),
    ("tile_count", {"tokens_per_expert": [16, 17, 0], "tile": 16}, "3", "exact"),
    ("exposed_copy", {"copy_ms": 2.5, "window_ms": 2.0}, "0.5; = copy time", "exact"),
    ("best_device_per_role",
     {"columns": ["TFLOPS", "GB/s", "price"], "candidates": {"a": [100, 900, 1], "b": [300, 1000, 2]}},
     "a; b", "exact"),
    ("throughput_identity", {"points": [[3, 100, 30]], "N": 1}, "2500", "exact"),
    ("step_share_speedup", {"x": {"shares": [0.5, 0.2, 0.3], "batch": [2, 1], "M": 9, "m": 4, "N": 1}}, "1", "exact"),
    ("min_sparsity", {"hardware": "910b", "hidden": 7168, "layers": 61, "nics": "8x200Gb/s"}, "0.0344", "1%"),
    ("stage_budget", {"hbm_gb_s": 1000, "stage_us": 100, "linear_weight_mb": 50, "model": "qwen3-235b-a22b"},
     "100 MB; 50 MB; 48.8K", "0.1%"),
    ("min_sparsity", {"hardware": "Ascend 910B", "model": "step-3", "nics": "8x200Gb/s"}, "0.0344", "1%"),
    ("min_sparsity", {"peak_tflops": 280, "hbm_gb_s": 1600, "hidden": 7168, "layers": 61, "nics": "8x200Gb/s"},
     "0.0344", "1%"),
    # Not in the paper's profile, hence as the catalogue has it: 4,500 TFLOPS over 7.7 TB/s against 1,980 over 3.35.
    ("min_sparsity", {"hardware": "b200", "hidden": 7168, "layers": 61, "nics": "8x400Gb/s"}, "0.0575", "1%"),
    ("hfu_bound", {"model": "kimi-k2", "hardware": "gb300", "ffn_nodes": 4}, "73.7", "0.1%"),
    # Numbers as text, one instead of a list, names of other spellings.
    ("hfu_bound",
     {"moe_intermediate_size": "2048", "top_k": "8", "experts": 256, "peak_tflops": "1,979", "scale_out_gb_s": "50",
      "scale_up_gb_s": 360, "ffn_nodes": "2"}, "41.39", "exact"),
    ("operator_counts", {"model": "kimi-k2", "context": "4K"}, "1.439e8; 3.684e10; 1.234e10; 4.836e10", "0.1%"),
    ("ffn_full_batch", {"num_experts": 64, "top_k": 8, "peak_tflops": 312, "hbm_gb_s": 2000}, "1248", "exact"),
    ("throughput_identity", {"M": 3, "batch": "100", "step_ms": 30, "N": 1}, "2500", "exact"),
    ("stage_budget", {"device": "h20", "stage_us": 100, "linear_weight_mb": 67}, "400 MB; 333 MB; 650.4K", "0.1%"),
    ("best_device_per_role",
     {"columns": ["price", "GB/s", "TFLOPS"],
      "candidates": {"a": {"price": 1, "GB/s": 900, "TFLOPS": 100}, "b": ["2", "1000", "300"]}}, "a; b", "exact"),
    ("best_decode_cost", {"models": "step-3", "usd_per_hour": {"h800": "2.0"}}, "0.0632", "1%"),
    ("decode_cost", {"model": "glm-4.5", "part": "ffn", "usd_per_hour": {"b200": 4.0}}, "0.00961", "1%"),
    ("decode_cost", {"tokens": 100, "hidden": 1000, "bytes_per_element": 3, "window_us": 100}, "24", "exact"),
    ("decode_cost", {"model": "step-3", "part": "ffn", "usd_per_hour": {"h800": 4.0}}, "0.0299", "1%"),
    ("best_decode_cost", {"models": ["step-3"], "usd_per_hour": {"h800": 2.0}}, "0.0632", "1%"),
    ("feasibility", {"hardware": "h800", "gpus": 16, "weights_gb": 756, "mode": "shared_experts"}, "feasible", "exact"),
]  # fmt: skip


@pytest.mark.parametrize(("evaluator", "inputs", "expected", "tolerance"), OTHERS)
def test_rows_with_other_inputs_work_too(
    tmp_path: Path, evaluator: str, inputs: dict[str, Any], expected: str, tolerance: str
) -> None:
    found = answered(tmp_path, evaluator=evaluator, inputs=inputs, expected=expected, tolerance=tolerance)
    assert found["ok"], found


_UNIT = {"hardware": "h800", "model": "deepseek-v3", "context": 4096, "m": 2}
_POINT = {"model": "glm-4.5", "context": 8192, "batch": [48, 32], "M": 3}
_FULL = {"hardware": "gb200", "candidates": [3, 7]}
_SPLIT = {"context": 4096, "batch": 3072, "m": 3}
_SEARCH = {"hardware": "h20", "gpus": 8, "space": "quick"}
_LENGTHS = {"isl": 512, "osl": 128, "tpot_ms": 50}


@pytest.mark.parametrize(
    ("evaluator", "one", "other"),
    [
        ("deployment_throughput", _UNIT | {"ep": 32, "batch_per_gpu": 64}, _UNIT | {"ep": 32, "batch": 2048}),
        ("deployment_throughput", _SPLIT | {"layout": "1A1F"}, _SPLIT | {"layout": "1A + 1F", "gpus": 16}),
        ("mode_speedup",
         {"hardware": "gb200", "points": [_POINT], "m": 2, "baseline": "dp8 ep8"},
         {"hardware": "gb200", "points": [_POINT], "m": "2", "baseline": "EP8"}),
        ("best_ratio",
         _FULL | {"cases": [["minimax-m2.5", 8192]]},
         _FULL | {"model": "minimax-m2.5", "context": "8K"}),
        ("best_split",
         _SEARCH | {"cases": [{"model": "qwen3-30b-a3b", **_LENGTHS}]},
         _SEARCH | {"model": "qwen3-30b-a3b", "input_tokens": 512, "output_tokens": 128, "tpot_ms": 50}),
        ("micro_batch_gain",
         {"hardware": "H20", "gpus": "8 x H20", "model": "qwen3-30b-a3b", "from_to": [[1, 2]]},
         {"hardware": "H20", "gpus": 8, "models": ["qwen3-30b-a3b"], "from_to": [1, 2]}),
        ("mode_speedup_per_cost",
         {"attention": "h20", "experts": "l40s", "baseline": "h20", "model": "qwen3-30b-a3b", "gpus": 8,
          "price": {"h20": 0.59, "l40s": 0.35}},
         {"attention": "h20", "experts": "l40s", "baseline": "h20 colocated", "model": "qwen3-30b-a3b", "gpus": 8}),
    ],
    ids=["batch", "layout", "baseline", "cases", "split", "steps", "prices"],
)  # fmt: skip
def test_what_can_be_said_in_two_ways_is_answered_alike(
    tmp_path: Path, evaluator: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    ours = [
        answered(tmp_path, evaluator=evaluator, inputs=inputs, expected="1")["ours"]
        for inputs in (one, other)
    ]
    assert ours[0] is not None
    assert ours[0] == ours[1]


def test_a_device_that_the_inputs_leave_out_is_read_from_the_description_or_the_name(tmp_path: Path) -> None:
    inputs = {"hidden": 7168, "layers": 61, "nics": "8x400Gb/s"}
    asked = {"evaluator": "min_sparsity", "inputs": inputs}
    for named in ({"id": "S4-h20-b"}, {"quantity": "smallest sparsity on H20"}):
        assert answered(tmp_path, **asked, **named, expected="0.00728")["ok"]
    refused = answered(tmp_path, **asked, expected="0.00728")
    assert refused["ours"] is None
    assert "inputs.hardware: is missing; name the device" in refused["note"]


def test_modes_are_compared_under_the_names_that_the_row_gives_them(tmp_path: Path) -> None:
    inputs = {
        "hardware": "h20", "gpus": 8, "model": "qwen3-30b-a3b", "isl": 512, "osl": 128, "tpot_ms": 50,
        "modes": ["DistServe", "chunked prefill"], "space": "quick",
    }  # fmt: skip
    found = answered(tmp_path, evaluator="mode_order", inputs=inputs, expected="chunked > PD")
    assert found["ok"], found
    inputs["modes"] = ["DistServe", "teleportation"]
    assert (
        "teleportation" in answered(tmp_path, evaluator="mode_order", inputs=inputs, expected="x > y")["note"]
    )


def test_a_mode_that_no_layout_fits_is_infeasible_with_its_reason(tmp_path: Path) -> None:
    inputs = {
        "hardware": "h20", "gpus": 2, "model": "qwen3-30b-a3b", "isl": 512, "osl": 128,
        "modes": ["colocated", "pd_afd"], "space": "quick",
    }  # fmt: skip
    found = answered(tmp_path, evaluator="feasibility", inputs=inputs, expected="feasible; infeasible")
    assert found["ok"], found
    assert "pd_afd: " in found["note"]


def test_what_inputs_leave_out_is_read_from_the_description(tmp_path: Path) -> None:
    found = answered(
        tmp_path,
        evaluator="barrier_overhead",
        inputs={"mu_P": 100, "mu_D": 500, "B": 1024},
        quantity="mean barrier overhead for r = 2, 8",
        expected="1.47; 3.71",
    )
    assert found["ok"], found
    found = answered(
        tmp_path,
        evaluator="decode_cost",
        inputs={"model": "kimi-k2", "usd_per_hour": {"h20": 0.8}},
        quantity="USD per 1M tokens, attention 32K (H20)",
        expected="0.23",
    )
    assert found["ok"], found
    assert "attention at 32,768 tokens" in found["note"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"evaluator": "hfu_bond"}, "did you mean hfu_bound"),
        ({"evaluator": "hfu_bound", "inputs": "{"}, "not JSON"),
        ({"evaluator": "hfu_bound", "inputs": "[1]"}, "must be a JSON object"),
        ({"evaluator": "tile_count", "inputs": {"tile": 8}}, "inputs.tokens_per_expert: is missing"),
        ({"evaluator": "tile_count", "inputs": {"tokens_per_expert": [1], "tile": -8}}, "must be above 0"),
        ({"evaluator": "tile_count", "inputs": {"tokens_per_expert": ["a"], "tile": 8}}, "not a list of numbers"),
        ({"evaluator": "operator_counts", "inputs": {"model": "gpt-9"}}, "not in the catalogue"),
        ({"evaluator": "hfu_bound", "inputs": {"model": "qwen3-32b", "hardware": "h20"}}, "has no experts"),
        ({"evaluator": "throughput_identity", "inputs": {"points": 3}}, "inputs.points: is not a list"),
        ({"evaluator": "hfu_bound", "inputs": {"model": "kimi-k2", "hardware": "h20", "ffn_nodes": 0}}, "above 0"),
        ({"evaluator": "node_discrete_efficiency", "inputs": {"N_A": 5, "N_F": 1, "sigma": 1.25}}, "exceeds 1"),
        ({"evaluator": "exposed_copy", "inputs": {"copy_ms": -1, "window_ms": 1}}, "must not be negative"),
        ({"evaluator": "best_ratio", "inputs": {"hardware": "tpu"}}, "names no accelerator"),
        ({"evaluator": "feasibility", "inputs": {"hardware": "x", "mode": "pd", "weights_gb": 1}}, "no accelerator"),
        ({"evaluator": "step_share_speedup", "inputs": {"x": {"shares": [1, 2]}}}, "are not three"),
        ({"evaluator": "deployment_throughput", "inputs": {"layout": "two"}}, "write nodes as 2A2F"),
    ],
)  # fmt: skip
def test_a_broken_row_says_why_and_spoils_no_other(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    good = {
        "id": "good", "evaluator": "tile_count", "inputs": {"tokens_per_expert": [1], "tile": 8}, "expected": "1",
    }  # fmt: skip
    document = literature(table(tmp_path / "rows.csv", {"expected": "1", **row}, good))
    broken, other = document["results"]
    assert (broken["ok"], broken["ours"], other["ok"]) == (False, None, True)
    assert reason in broken["note"]
    assert (document["rows"], document["passed"]) == (2, 1)


def test_inputs_that_nothing_uses_are_told(tmp_path: Path) -> None:
    found = answered(
        tmp_path,
        evaluator="tile_count",
        inputs={"tokens_per_expert": [1], "tile": 8, "til": 4},
        expected="1",
    )
    assert found["ok"]
    assert found["note"].endswith("not used: til")


def test_an_infinite_answer_is_json(tmp_path: Path) -> None:
    found = answered(
        tmp_path,
        evaluator="stage_budget",
        inputs={"hbm_gb_s": 1, "stage_us": 1, "linear_weight_mb": 0.0001, "model": "Qwen3.5-397B"},
        expected="1",
    )
    json.dumps(found, allow_nan=False)


def test_a_file_that_is_no_table_of_results_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,inputs\n1,{}\n")
    with pytest.raises(InputError, match=r"rows\.evaluator: no such column"):
        literature(path)
    with pytest.raises(InputError, match="cannot be read"):
        literature(tmp_path / "missing.csv")


def shown_lines() -> dict[str, str]:
    text = PAGE.read_text(encoding="utf-8")
    found = re.finditer(r"^\| ([\w.-]+) \| `\w+` .*$", text, re.MULTILINE)
    return {match.group(1): match.group(0) for match in found}


def stale_lines(searched: bool) -> dict[str, str]:
    rows, shown = published(), shown_lines()
    lines = {name: line(rows[name], result) for name, result in answers(searched).items()}
    return {name: text for name, text in lines.items() if shown[name] != text}


def test_the_page_has_every_row() -> None:
    assert sorted(shown_lines()) == sorted(row.id for row in read_rows(ROWS))


def test_the_page_shows_todays_answers() -> None:
    assert stale_lines(searched=False) == {}, RENEW


@pytest.mark.slow
def test_the_page_shows_todays_answers_of_searches_too() -> None:
    assert stale_lines(searched=True) == {}, RENEW


def test_a_model_that_the_default_framework_does_not_serve_gets_the_kernels_of_one_that_does(
    tmp_path: Path,
) -> None:
    # TensorRT-LLM falls back to a kernel that reads the cache once per query head where more than 32 share a key head.
    asked = {"model": "step-3", "batch": 256, "gpus": 4, "context": 8192, "device": "h800"}
    ours = [
        answered(tmp_path, evaluator="attention_layer_latency", inputs=asked | framework, expected="281")[
            "ours"
        ]
        for framework in ({}, {"framework": "vllm"}, {"framework": "trtllm"})
    ]
    assert ours[0] == ours[1]
    assert ours[2] > 5.0 * ours[0]
