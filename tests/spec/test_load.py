"""Every way in which a job file can be wrong, and that each gets a problem with its field, value and remedy."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from afd_dse.errors import InputError, Problem
from afd_dse.spec import load_job
from afd_dse.spec.document import MAX_BYTES, parse_document

GOOD: dict[str, Any] = {
    "model": "deepseek-ai/DeepSeek-V3",
    "quantization": {"gemm": "fp8_block", "kv_cache": "fp8"},
    "speculative": {"draft_tokens": 1, "accepted_tokens_per_step": 1.8},
    "framework": "trtllm",
    "cluster": {"pools": [{"name": "main", "accelerator": "b200_sxm", "count": 128}]},
    "workload": {"input_tokens": 4096, "output_tokens": 1024, "arrival": {"kind": "poisson"}},
    "slo": {"ttft_ms": 2000, "tpot_ms": 30, "percentile": 50},
    "search": {"modes": "all", "objective": "throughput_per_gpu"},
}
_POOL = GOOD["cluster"]["pools"][0]
_ACCELERATOR = "cluster/pools/0/accelerator"
_REMOVED = object()


def _shown(value: object) -> str:
    return "removed" if value is _REMOVED else f"{value!r:.40}"


def changed(path: str, value: object) -> dict[str, Any]:
    """A copy of the good job with the value at ``path`` (a/0/b) set, or removed."""
    job = copy.deepcopy(GOOD)
    node: Any = job
    steps: list[Any] = [int(step) if step.isdigit() else step for step in path.split("/")]
    *parents, last = steps
    for step in parents:
        node = node.setdefault(step, {}) if isinstance(node, dict) else node[step]
    if value is _REMOVED:
        del node[last]
    else:
        node[last] = value
    return job


def problems(source: Any, **options: Any) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        load_job(source, **options)
    return caught.value.problems


# (where, what stands there, field of the problem, part of the message, part of the remedy)
BROKEN: list[tuple[str, object, str, str, str]] = [
    # unknown keys
    ("cluster/pools/0/cuont", 3, "cluster.pools[0].cuont", "unknown key", "did you mean count?"),
    ("modle", "x", "modle", "unknown key", "did you mean model?"),
    ("sla", {"ttft": 1}, "sla", "unknown key", "did you mean slo?"),
    ("slo/itl_ms", 30, "slo.itl_ms", "unknown key", "did you mean tpot_ms?"),
    ("slo/tpot", 30, "slo.tpot", "unknown key", "did you mean tpot_ms?"),
    ("workload/isl", 1, "workload.isl", "unknown key", "did you mean input_tokens?"),
    ("cluster/pools/0/gpus", 1, "cluster.pools[0].gpus", "unknown key", "did you mean count?"),
    ("pools", [], "pools", "unknown key", "it belongs at cluster.pools"),
    ("ttft_ms", 5, "ttft_ms", "unknown key", "it belongs at slo.ttft_ms"),
    ("hardware", {}, "hardware", "unknown key", "did you mean cluster?"),
    ("search/banana", 1, "search.banana", "unknown key", "known here: modes, objective"),
    ("quantization/weights", "fp8", "quantization.weights", "unknown key", "known here: gemm, moe"),
    ("workload/input_tokens", {"mean": 5, "sd": 1}, "workload.input_tokens.sd", "unknown key", "mean, cv"),
    ("workload/arrival/rate", 1, "workload.arrival.rate", "unknown key", "kind, concurrency, file"),
    # missing
    ("model", _REMOVED, "model", "needed", "deepseek-ai/DeepSeek-V3"),
    ("cluster", _REMOVED, "cluster", "needed", "pools: [{name: main"),
    ("workload", _REMOVED, "workload", "needed", "input_tokens: 4096"),
    ("workload/output_tokens", _REMOVED, "workload.output_tokens", "needed", "output_tokens: 1024"),
    ("cluster/pools", _REMOVED, "cluster.pools", "needed", "pools: [{name: main"),
    ("cluster/pools/0/count", _REMOVED, "cluster.pools[0].count", "needed", "count: 128"),
    ("cluster/pools/0/name", _REMOVED, "cluster.pools[0].name", "needed", "name: main"),
    (_ACCELERATOR, _REMOVED, "cluster.pools[0].accelerator", "needed", "b200_sxm"),
    ("demand", {}, "demand.requests_per_s", "needed", "requests_per_s: 20.0"),
    # wrong types
    ("cluster/pools/0/count", True, "cluster.pools[0].count", "not true or false", "count: 128"),
    ("cluster/pools/0/count", "8", "cluster.pools[0].count", "not text", "count: 128"),
    ("cluster/pools/0/count", 8.5, "cluster.pools[0].count", "not a fraction", "count: 128"),
    ("cluster/pools/0/count", None, "cluster.pools[0].count", "not nothing", "count: 128"),
    ("cluster/pools/0/count", [8], "cluster.pools[0].count", "not a list", "count: 128"),
    ("cluster/pools/0/name", 7, "cluster.pools[0].name", "text is needed", "name: main"),
    (_ACCELERATOR, 5, "cluster.pools[0].accelerator", "text is needed", "b200_sxm"),
    ("cluster/pools", {"name": "a"}, "cluster.pools", "a list is needed, not a mapping", "pools: [{"),
    ("cluster/pools", "b200_sxm", "cluster.pools", "a list is needed, not text", "pools: [{"),
    ("cluster/pools/0", "b200_sxm", "cluster.pools[0]", "a mapping is needed, not text", "accelerator"),
    ("cluster", [_POOL], "cluster", "a mapping is needed, not a list", "pools"),
    ("slo", "fast", "slo", "a mapping is needed, not text", "ttft_ms"),
    ("slo", [2000, 30], "slo", "a mapping is needed, not a list", "ttft_ms"),
    ("slo/ttft_ms", "2s", "slo.ttft_ms", "a number is needed, not text", "ms"),
    ("slo/tpot_ms", False, "slo.tpot_ms", "not true or false", "ms"),
    ("slo/percentile", "p99", "slo.percentile", "a number is needed, not text", "50 to 99.9"),
    ("workload/input_tokens", [1, 2], "workload.input_tokens", "a number is needed, not a list", "{mean:"),
    ("workload/input_tokens", None, "workload.input_tokens", "a number is needed, not nothing", "4096"),
    ("workload/input_tokens", True, "workload.input_tokens", "not true or false", "4096"),
    ("workload/arrival", "poisson", "workload.arrival", "a mapping is needed, not text", "kind"),
    ("model", 3, "model", "text is needed, not a whole number", "Catalogue name"),
    ("model", ["a"], "model", "text is needed, not a list", "Catalogue name"),
    ("framework", ["trtllm"], "framework", "unknown value", "trtllm, sglang, vllm"),
    ("search/seed", "seven", "search.seed", "a whole number is needed", "seed: 0"),
    ("search/modes", 7, "search.modes", "a list is needed", "modes: all"),
    ("search/modes", ["pd", 5], "search.modes[1]", "text is needed", "modes: all"),
    # out of range
    ("cluster/pools/0/count", -1, "cluster.pools[0].count", "at least 1", "a budget"),
    ("cluster/pools/0/count", 0, "cluster.pools[0].count", "at least 1", "a budget"),
    ("cluster/pools/0/count", 10**30, "cluster.pools[0].count", "at most 1,000,000", "a budget"),
    ("cluster/pools/0/usd_per_gpu_hour", -2, "cluster.pools[0].usd_per_gpu_hour", "at least 0", "USD"),
    ("cluster/pools/0/usable_memory_fraction", 1.2, "cluster.pools[0].usable_memory_fraction", "at most 1", "Share"),
    ("cluster/pools/0/power_w", 0, "cluster.pools[0].power_w", "greater than 0", "watts"),
    ("cluster/pools/0/name", "", "cluster.pools[0].name", "empty", "name: main"),
    ("cluster/scale_out_gb_s", 0, "cluster.scale_out_gb_s", "greater than 0", "GB/s"),
    ("cluster/pools", [], "cluster.pools", "empty", "pools: [{name: main"),
    ("workload/output_tokens", 0, "workload.output_tokens", "at least 1", "output_tokens: 1024"),
    ("workload/output_tokens", 0.5, "workload.output_tokens", "at least 1", "output_tokens: 1024"),
    ("workload/input_tokens", -5, "workload.input_tokens", "at least 1", "input_tokens: 4096"),
    ("workload/input_tokens", {"mean": 0}, "workload.input_tokens.mean", "at least 1", "mean: 4096"),
    ("workload/input_tokens", {"mean": 9, "cv": -1}, "workload.input_tokens.cv", "at least 0", "standard dev"),
    ("workload/prefix_tokens", -1, "workload.prefix_tokens", "at least 0", "Prompt tokens"),
    ("slo/tpot_ms", 0, "slo.tpot_ms", "greater than 0", "tpot_ms: 30"),
    ("slo/ttft_ms", -1, "slo.ttft_ms", "greater than 0", "ttft_ms: 2000"),
    ("slo/ttft_ms", float("nan"), "slo.ttft_ms", "finite", "ttft_ms: 2000"),
    ("slo/ttft_ms", float("inf"), "slo.ttft_ms", "finite", "ttft_ms: 2000"),
    ("workload/input_tokens", float("inf"), "workload.input_tokens", "finite", "4096"),
    ("slo/percentile", 100, "slo.percentile", "at most 99.9", "50 to 99.9"),
    ("slo/percentile", 49, "slo.percentile", "at least 50", "50 to 99.9"),
    ("speculative/draft_tokens", -1, "speculative.draft_tokens", "at least 0", "drafted"),
    ("speculative/accepted_tokens_per_step", 0.5, "speculative.accepted_tokens_per_step", "at least 1", "1.8"),
    ("demand", {"requests_per_s": 0}, "demand.requests_per_s", "greater than 0", "requests_per_s: 20.0"),
    ("search/seed", -1, "search.seed", "at least 0", "Seed"),
    ("search/trials", 0, "search.trials", "at least 1", "trials: 20000"),
    # unknown values
    ("framework", "vLLM", "framework", "unknown value", "did you mean vllm?"),
    ("framework", "tensorrt-llm", "framework", "unknown value", "did you mean trtllm?"),
    (_ACCELERATOR, "h100_pcie", "cluster.pools[0].accelerator", "unknown accelerator", "h100_sxm"),
    (_ACCELERATOR, "b20_sxm", "cluster.pools[0].accelerator", "unknown accelerator", "b200_sxm"),
    (_ACCELERATOR, "tpu", "cluster.pools[0].accelerator", "unknown accelerator", "use one of h100"),
    ("quantization/gemm", "fp8block", "quantization.gemm", "unknown value", "did you mean fp8_block?"),
    ("quantization/gemm", "bf16", "quantization.gemm", "unknown value", "did you mean bfloat16?"),
    ("quantization/kv_cache", "int8", "quantization.kv_cache", "unknown value", "use one of bfloat16, fp8"),
    ("quantization/moe", 8, "quantization.moe", "unknown value", "use one of bfloat16"),
    ("quantization/gemm", ["fp9", "nvfp4"], "quantization.gemm[0]", "unknown value", "did you mean fp8?"),
    ("quantization/gemm", ["fp8", "fp8"], "quantization.gemm[1]", "this stands twice", "keep one of them"),
    ("quantization/kv_cache", [], "quantization.kv_cache", "this is empty", "write e.g. `kv_cache: fp8`"),
    ("workload/prefix_sharing", "public", "workload.prefix_sharing", "unknown value", "private, shared"),
    ("workload/expert_distribution", "zipf", "workload.expert_distribution", "unknown value", "balanced"),
    ("workload/arrival/kind", "closed", "workload.arrival.kind", "unknown value", "did you mean closed_loop?"),
    ("search/objective", "throughput", "search.objective", "unknown value", "throughput_per_gpu"),
    ("search/method", "grid", "search.method", "unknown value", "auto, exhaustive, optuna"),
    ("search/modes", "pdd", "search.modes[0]", "unknown mode", "did you mean pd"),
    ("search/modes", ["pd", "afdd"], "search.modes[1]", "unknown mode", "did you mean afd"),
    ("search/modes", ["PA PF | DA"], "search.modes[0]", "every cell", "PA PF DA DF once each"),
    ("search/modes", ["PA PF | DA | DX"], "search.modes[0]", "unknown cell 'DX'", "PA PF DA DF"),
    ("search/modes", ["PA PF || DA DF"], "search.modes[0]", "every cell", "PA PF DA DF"),
    ("search/modes", [], "search.modes", "empty", "modes: all"),
    ("search/space", "nope.yaml", "search.space", "no such search space", "path of a file"),
    ("search/space", "modes", "search.space", "no such search space", "path of a file"),
    ("search/journal", "no/such/study.log", "search.journal", "does not exist", "existing folder"),
    # what does not fit together
    ("cluster/pools", [_POOL, _POOL], "cluster.pools[1].name", "pools[0] has the same name", "its own"),
    ("search/objective", "fewest_gpus", "search.objective", "needs demand.requests_per_s", "add demand"),
    ("speculative/accepted_tokens_per_step", 2.5, "speculative.accepted_tokens_per_step", "more than 1", "raise"),
    ("workload/arrival/concurrency", 4, "workload.arrival.concurrency", "no meaning with kind: poisson", "closed_loop"),
    ("workload/arrival/file", "missing.csv", "workload.arrival.file", "does not exist", "CSV"),
    ("workload/arrival/kind", "trace", "workload.arrival.file", "needed with kind: trace", "add file"),
    ("workload/output_tokens", {"trace": "missing.csv"}, "workload.output_tokens.trace", "does not exist", "CSV"),
    ("workload/output_tokens", {"trace": ""}, "workload.output_tokens.trace", "empty", "requests.csv"),
    # the model
    ("model", "", "model", "empty", "catalogue name"),
    ("model", "  ", "model", "empty", "catalogue name"),
    ("model", {}, "model", "empty", "config.json"),
    ("model", "./nowhere", "model", "no such file", "config.json"),
    ("model", "missing/config.json", "model", "no such file", "config.json"),
    ("model", ".", "model", "holds no config.json", "config.json"),
    ("model", "x" * 5000, "model", "cannot be a path", "shorter"),
    ("model", "a\0b", "model", "cannot be a path", "simpler"),
    # an accelerator described in place
    (_ACCELERATOR, {"base": "b2000"}, "cluster.pools[0].accelerator.base", "unknown acc", "b200_sxm"),
    (_ACCELERATOR, {"base": "b200", "hbm_gbs": 1}, "cluster.pools[0].accelerator.hbm_gbs", "unk", "hbm_gb_s?"),
    (_ACCELERATOR, {"base": "b200", "hbm_gb_s": -1}, "cluster.pools[0].accelerator.hbm_gb_s", "greater", "GB/s"),
    (
        _ACCELERATOR,
        {"base": "b200", "hbm_gb_s": 1, "hbm_bytes_per_s": 1},
        "cluster.pools[0].accelerator.hbm_gb_s",
        "given together with hbm_bytes_per_s",
        "keep one",
    ),
    (
        _ACCELERATOR,
        {"base": "b200", "peak_tflops": {"bf16": 1}},
        "cluster.pools[0].accelerator.peak_tflops.bf16",
        "unknown data type",
        "did you mean bfloat16?",
    ),
    (
        _ACCELERATOR,
        {"base": "b200", "peak_tflops": {"fp8": 0}},
        "cluster.pools[0].accelerator.peak_tflops.fp8",
        "greater than 0",
        "TFLOP/s",
    ),
    (_ACCELERATOR, {"base": "b200", "peak_flops": {}}, "cluster.pools[0].accelerator.peak_flops", "no data", "bf"),
    (_ACCELERATOR, {"hbm_gb_s": 1}, "cluster.pools[0].accelerator", "efficiency_from", "base: <name>"),
    (_ACCELERATOR, {}, "cluster.pools[0].accelerator", "needs hbm_gib, hbm_gb_s", "base: <name>"),
    (
        _ACCELERATOR,
        {"base": "b200", "efficiency_from": "h100"},
        "cluster.pools[0].accelerator.efficiency_from",
        "measured tables of its own",
        "leave it out",
    ),
    (_ACCELERATOR, {"name": "h20"}, "cluster.pools[0].accelerator.name", "catalogue entry", "base: h20"),
    ("workload/output_tokens", 1e17, "workload.output_tokens", "at most 1,000,000,000", "1024"),
    ("workload/prefix_tokens", 1e300, "workload.prefix_tokens", "at most 1,000,000,000", "0"),
    ("demand", {"requests_per_s": 1e15}, "demand.requests_per_s", "at most 1,000,000,000", "20.0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "value", "field", "message", "remedy"), BROKEN, ids=[f"{b[0]}={_shown(b[1])}" for b in BROKEN]
)
def test_a_broken_job_names_field_value_and_remedy(
    where: str, value: object, field: str, message: str, remedy: str, tmp_path: Path
) -> None:
    found = problems(changed(where, value), folder=tmp_path)
    assert [problem.field for problem in found] == [field]
    assert message in found[0].message
    assert remedy in found[0].remedy
    assert "\n" not in str(found[0])
    told = isinstance(value, str | int | float) and field.endswith(where.split("/")[-1])
    if told and len(str(value)) < 100 and value not in ("", "missing.csv"):
        assert repr(value) in str(found[0])


def test_the_good_job_is_good() -> None:
    assert load_job(GOOD).cluster.pools[0].count == 128


def test_several_problems_are_reported_at_once_in_the_order_of_the_file() -> None:
    job = changed("cluster/pools/0/count", -3)
    job["slo"]["tpot_ms"] = 0
    job["serach"] = {}
    job["framework"] = "vlm"
    found = problems(job)
    fields = ["framework", "cluster.pools[0].count", "slo.tpot_ms", "serach"]
    assert [problem.field for problem in found] == fields
    assert str(InputError(found)).count("\n") == 3


def test_a_failing_element_does_not_also_call_its_list_empty() -> None:
    assert len(problems(changed("cluster/pools/0/count", 0))) == 1


# ---------------------------------------------------------------------------------------------------- documents

_ALIASES = "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(8)
)
DOCUMENTS: list[tuple[str, bytes, str, str, str]] = [
    ("empty", b"", "job.yaml", "empty", "cluster"),
    ("only a comment", b"# nothing\n", "job.yaml", "a mapping is needed", "key: value"),
    ("a list", b"- model: x\n", "job.yaml", "not a list", "key: value"),
    ("a scalar", b"hello\n", "job.yaml", "not a single value", "key: value"),
    ("an open bracket", b"model: [1\nx: 3", "job.yaml:2:2", "malformed YAML", "line and column"),
    ("a tab", b"model:\n\tname: x", "job.yaml:2:1", "malformed YAML", "line and column"),
    ("bad indentation", b"model: x\n  slo: y\n", "job.yaml:2:6", "malformed YAML", "line and column"),
    ("a repeated key", b"model: a\nslo: {}\nmodel: b\n", "job.yaml:3:1", "stands twice", "keep one"),
    ("two documents", b"model: a\n---\nmodel: b\n", "job.yaml:2:1", "another document", "line and column"),
    ("an undefined alias", b"model: *nobody\n", "job.yaml:1:8", "undefined alias", "line and column"),
    ("a foreign tag", b"!!python/object:os.system {}\n", "job.yaml:1:1", "constructor", "line and column"),
    ("a list as key", b"? [1, 2]\n: 3\n", "job.yaml:1:3", "malformed YAML", "line and column"),
    ("a number as key", b"model: x\n1: 2\n", "(top level)", "a key must be text", "quotes"),
    ("a number as a deep key", b"model: x\nslo: {3: 2}\n", "slo", "a key must be text", "quotes"),
    ("a binary file", b"\x89PNG\r\n\x1a\n\x00\xff", "job.yaml", "not UTF-8", "YAML or JSON"),
    ("a NUL", b"model: a\x00b", "job.yaml", "binary", "YAML or JSON"),
    ("UTF-16", "model: x".encode("utf-16"), "job.yaml", "not UTF-8", "YAML or JSON"),
    ("deep nesting", b"[" * 20_000, "job.yaml", "too deeply", "few levels"),
    ("deep nesting in JSON", b'{"a":' * 20_000, "job.yaml", "too deeply", "few levels"),
    ("exploding aliases", b"a: &a [1, 1, 1]\n" + _ALIASES.encode(), "job.yaml", "too large", "200000"),
    (
        "an alias of itself",
        b"model: &a {x: *a}\n",
        "job.yaml",
        "inside its own anchor",
        "write the value out",
    ),
    ("an endless integer", b"model: " + b"9" * 6000, "job.yaml", "too many digits", "exponent"),
    ("an endless integer in JSON", b'{"model": ' + b"9" * 6000 + b"}", "job.yaml", "too many digits", "expo"),
    ("a repeated JSON key", b'{"model": "a", "model": "b"}', "job.yaml", "stands twice", "keep one"),
    ("a huge file", b"#" * (MAX_BYTES + 1), "job.yaml", "larger than", "YAML or JSON"),
]


@pytest.mark.parametrize(
    ("content", "field", "message", "remedy"), [d[1:] for d in DOCUMENTS], ids=[d[0] for d in DOCUMENTS]
)
def test_an_unusable_document_names_the_place(
    content: bytes, field: str, message: str, remedy: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    (found,) = problems(path)
    assert found.field.removeprefix(f"{tmp_path}/") == field
    assert message in found.message
    assert remedy in found.remedy
    assert len(str(found)) < 600


def test_malformed_json_is_told_as_json(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text('{"model": "x",\n "slo": }')
    (found,) = problems(path)
    assert found.field == f"{path}:2:9"
    assert "malformed JSON" in found.message


def test_a_missing_file_is_told_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "deepseek.yaml").write_text("model: x")
    (found,) = problems(tmp_path / "deepsek.yaml")
    assert "does not exist" in found.message
    assert str(tmp_path / "deepseek.yaml") in found.remedy


@pytest.mark.parametrize("name", ["nowhere/job.yaml", "~nobody-of-this-name/job.yaml", "a\0b", "x" * 5000])
def test_a_path_that_leads_nowhere_is_bad_input(name: str) -> None:
    (found,) = problems(name)
    assert "file" in found.message


def test_a_folder_is_not_a_job(tmp_path: Path) -> None:
    assert "folder" in problems(tmp_path)[0].message


def test_yaml_and_json_are_told_apart_by_content_not_suffix(tmp_path: Path) -> None:
    as_yaml, as_json = tmp_path / "job.json", tmp_path / "job.yaml"
    as_yaml.write_text(yaml.safe_dump(GOOD))
    as_json.write_text("\n  " + json.dumps(GOOD), encoding="utf-8-sig")
    assert load_job(as_yaml) == load_job(as_json) == load_job(GOOD)


def test_yaml_numbers_are_those_of_yaml_1_2() -> None:
    text = "{a: 1e3, b: 010, c: on, d: 2024-01-01, e: 1:30, f: -.inf, g: 0x10, h: 1_000, i: .5, j: null, k: }"
    found = parse_document(text, "text")
    expected = {"a": 1e3, "b": 10, "c": "on", "d": "2024-01-01", "e": "1:30", "f": float("-inf")}
    assert found == {**expected, "g": 16, "h": "1_000", "i": 0.5, "j": None, "k": None}
    assert isinstance(found["a"], float)


def test_merge_keys_and_aliases_work() -> None:
    found = parse_document("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: *x\n", "text")
    assert found == {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}, "z": {"a": 1, "b": 2}}


@pytest.mark.parametrize("section", ["slo", "search", "quantization", "speculative", "demand"])
def test_a_section_left_blank_is_absent(section: str) -> None:
    assert load_job(changed(section, None)) == load_job(
        {key: part for key, part in GOOD.items() if key != section}
    )


# ---------------------------------------------------------------------------------------------------- the model


def test_check_model_reports_an_unknown_model_at_its_field() -> None:
    catalogue = pytest.importorskip("afd_dse.architecture.catalogue")
    assert catalogue.model_names()
    found = problems(changed("model", "deepseek-ai/DeepSeek-V33"), check_model=True)
    assert [problem.field for problem in found] == ["model"]
    assert "DeepSeek-V3" in found[0].remedy


def test_check_model_reports_what_an_inline_model_lacks_below_model() -> None:
    pytest.importorskip("afd_dse.architecture.catalogue")
    found = problems(changed("model", {"model_type": "deepseek_v3"}), check_model=True)
    assert found
    assert all(problem.field.startswith("model") for problem in found)


def test_check_model_accepts_a_catalogued_model() -> None:
    pytest.importorskip("afd_dse.architecture.catalogue")
    assert load_job(GOOD, check_model=True).model == "deepseek-ai/DeepSeek-V3"


def test_a_model_path_starts_at_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    config = tmp_path / "models" / "mine" / "config.json"
    config.write_text("{}")
    path = tmp_path / "job.yaml"
    for reference, expected in [
        ("models/mine", config.parent),
        ("./models/mine", config.parent),
        ("models/mine/config.json", config),
    ]:
        path.write_text(yaml.safe_dump(changed("model", reference)))
        assert load_job(path).model == str(expected)


def test_a_catalogued_name_is_not_shadowed_by_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("afd_dse.architecture.catalogue")
    folder = tmp_path / "deepseek-ai" / "DeepSeek-V3"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert load_job(GOOD, folder=tmp_path).model == "deepseek-ai/DeepSeek-V3"
    assert load_job(changed("model", "./deepseek-ai/DeepSeek-V3"), folder=tmp_path).model == str(folder)


# ---------------------------------------------------------------------------------------------------- anything

_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def _places(node: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    steps = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path] * bool(path) + [place for step, below in steps for place in _places(below, (*path, step))]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(place=st.sampled_from(_places(GOOD)), junk=_JUNK)
def test_whatever_stands_anywhere_only_input_errors_come_out(place: tuple[str | int, ...], junk: Any) -> None:
    job = changed("/".join(str(step) for step in place), junk)
    found: tuple[Problem, ...] = ()
    try:
        load_job(job)
    except InputError as error:
        found = error.problems
    for problem in found:
        assert problem.field.startswith(str(place[0]))
        assert problem.message
        assert problem.remedy


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=60) | st.text(alphabet='{}[]:,-&*!|>"\n\t a1.e#?%@', max_size=40))
def test_whatever_text_a_file_holds_only_input_errors_come_out(text: str) -> None:
    found: tuple[Problem, ...] = ()
    try:
        read: object = parse_document(text, "job.yaml")
    except InputError as error:
        read, found = None, error.problems
    assert isinstance(read, dict) != bool(found)
