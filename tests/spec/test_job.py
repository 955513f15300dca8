"""What a valid job means: defaults, overrides, derived figures, warnings, round trip, schema."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from afd_dse.architecture import model as architecture
from afd_dse.errors import InputError
from afd_dse.operators.table_schema import FRAMEWORKS
from afd_dse.resources import search_spaces_root
from afd_dse.spec import Job, accelerator_names, job_warnings, load_accelerator, load_job, named_modes
from afd_dse.spec import job as job_module

# The job of the interface description, word for word in its fields.
INTERFACE = """
model: deepseek-ai/DeepSeek-V3
quantization: {gemm: fp8_block, moe: fp8_block, attention: bfloat16, kv_cache: fp8}
speculative: {draft_tokens: 0, accepted_tokens_per_step: 1.0}
framework: trtllm
cluster:
  pools:
    - {name: main, accelerator: b200_sxm, count: 128, usd_per_gpu_hour: 4.0}
workload:
  input_tokens: 4096
  output_tokens: 1024
  prefix_tokens: 0
  prefix_sharing: private
  arrival: {kind: poisson}
slo: {ttft_ms: 2000, tpot_ms: 30, percentile: 50, request_latency_ms: null}
search:
  modes: all
  objective: throughput_per_gpu
  space: search_spaces/default.yaml
  method: auto
"""


def job(**sections: Any) -> dict[str, Any]:
    return {
        "model": "deepseek-ai/DeepSeek-V3",
        "cluster": {"pools": [{"name": "main", "accelerator": "b200", "count": 128}]},
        "workload": {"input_tokens": 4096, "output_tokens": 1024},
        **sections,
    }


def pool(**fields: Any) -> dict[str, Any]:
    return {"pools": [{"name": "main", "accelerator": "b200_sxm", "count": 128, **fields}]}


def test_the_interface_example_is_a_job(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(INTERFACE)
    read = load_job(path)
    assert read.slo.ttft_ms == 2000
    assert read.search.space == "default"
    assert read.search.space_path.is_file()
    assert read.search.partitions[0] == ("colocated", "PA PF DA DF")
    assert (read.workload.isl, read.workload.osl, read.workload.prefix) == (4096.0, 1024.0, 0.0)
    assert read.cluster.pools[0].resolved.usd_per_gpu_hour == 4.0
    assert job_warnings(read) == []


def test_a_framework_that_does_not_serve_the_model_is_warned_of() -> None:
    said = job_warnings(load_job(job(model="step-3", slo={"tpot_ms": 50})))
    assert any("trtllm does not serve step-3" in note and "vllm, sglang" in note for note in said)
    assert job_warnings(load_job(job(model="step-3", framework="vllm", slo={"tpot_ms": 50}))) == []


def test_what_is_not_said_takes_the_documented_defaults() -> None:
    read = load_job(job())
    assert read.framework == "trtllm"
    assert read.slo.is_open
    assert read.slo.percentile == 50
    assert read.quantization.gemm is None
    assert read.speculative.draft_tokens == 0
    assert read.workload.arrival.kind == "poisson"
    assert read.workload.expert_distribution == "uniform"
    assert (read.search.modes, read.search.objective, read.search.method) == (
        "all",
        "throughput_per_gpu",
        "auto",
    )
    assert read.demand is None


def test_a_job_cannot_be_changed() -> None:
    read = load_job(job())
    with pytest.raises(ValidationError):
        read.framework = "vllm"  # type: ignore[misc]


def test_an_accelerator_alias_is_stored_under_its_own_name() -> None:
    assert load_job(job()).cluster.pools[0].accelerator == "b200_sxm"


def test_one_mode_may_be_written_without_a_list() -> None:
    assert load_job(job(search={"modes": "disagg"})).search.modes == ("pd",)
    assert load_job(job(search={"modes": ["DF|DA|PF PA", "pd_afd"]})).search.modes == ("pd_afd",)
    assert len(load_job(job(search={"modes": "all_partitions"})).search.partitions) == 15


def test_token_lengths_may_vary() -> None:
    workload = {
        "input_tokens": {"mean": 6000, "cv": 0.5},
        "output_tokens": {"mean": 800},
        "prefix_tokens": 1000,
    }
    read = load_job(job(workload=workload)).workload
    assert (read.isl, read.isl_cv, read.osl, read.osl_cv, read.prefix) == (6000, 0.5, 800, 0, 1000)


def test_lengths_and_arrivals_may_come_from_a_trace_beside_the_job(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("timestamp,input_tokens,output_tokens\n0,100,7\n1000,300,7\n4000,200,7\n")
    path = tmp_path / "job.yaml"
    arrival = {"kind": "trace", "file": "t.csv"}
    workload = {"input_tokens": {"trace": "t.csv"}, "output_tokens": {"trace": "t.csv"}, "arrival": arrival}
    path.write_text(yaml.safe_dump(job(workload=workload)))
    read = load_job(path)
    assert (read.workload.isl, read.workload.osl, read.workload.osl_cv) == (200, 7, 0)
    assert read.workload.arrival_cv2 == pytest.approx(0.25)
    assert load_job(read.model_dump(mode="json")) == read


def test_a_trace_without_the_column_is_told_at_load(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("input_tokens\n5\n")
    for workload, field in [
        ({"input_tokens": 5, "output_tokens": {"trace": "t.csv"}}, "workload.output_tokens.trace"),
        (
            {"input_tokens": 5, "output_tokens": 5, "arrival": {"kind": "trace", "file": "t.csv"}},
            "workload.arrival.file",
        ),
    ]:
        with pytest.raises(Exception, match=field):
            load_job(job(workload=workload), folder=tmp_path)


def test_arrivals_vary_as_their_kind_says() -> None:
    assert load_job(job()).workload.arrival_cv2 == 1
    closed = {"input_tokens": 5, "output_tokens": 5, "arrival": {"kind": "closed_loop", "concurrency": 64}}
    assert load_job(job(workload=closed)).workload.arrival_cv2 == 0


# ------------------------------------------------------------------------------------------------------ pools


def test_an_override_changes_the_resolved_accelerator_and_not_the_reference() -> None:
    inline = {
        "base": "b200",
        "hbm_gb_s": 16000,
        "hbm_gib": 288,
        "scale_up_gb_s": 1800,
        "scale_out_gb_s": 100,
        "peak_tflops": {"bfloat16": 5000},
        "power_w": 900,
        "usd_per_gpu_hour": 3,
        "scale_up_gpus": 72,
        "node_gpus": 4,
    }
    read = load_job(job(cluster=pool(accelerator=inline))).cluster.pools[0]
    catalogued = load_accelerator("b200_sxm")
    assert read.reference == catalogued
    resolved = read.resolved
    assert resolved.name == "b200_sxm"
    assert resolved.tables == "b200_sxm"
    assert resolved.hbm_bytes_per_s == 16e12
    assert resolved.hbm_bytes == 288 * 2**30
    assert (resolved.scale_up_bytes_per_s, resolved.scale_out_bytes_per_s) == (1.8e12, 100e9)
    assert resolved.peak_flops == {**catalogued.peak_flops, "bfloat16": 5e15}
    assert (resolved.power_w, resolved.usd_per_gpu_hour) == (900, 3)
    assert (resolved.scale_up_gpus, resolved.node_gpus) == (72, 4)


def test_si_fields_say_the_same_as_edge_units() -> None:
    edge = {"base": "l40s", "hbm_gb_s": 900, "hbm_gib": 48, "scale_out_gb_s": 25, "scale_up_gb_s": 64}
    plain = {
        "base": "l40s",
        "hbm_bytes_per_s": 900e9,
        "hbm_bytes": 48 * 2**30,
        "scale_out_bytes_per_s": 25e9,
        "scale_up_bytes_per_s": 64e9,
    }
    one, other = (
        load_job(job(cluster=pool(accelerator=inline))).cluster.pools[0] for inline in (edge, plain)
    )
    assert one.resolved == other.resolved


def test_an_accelerator_may_be_wholly_described() -> None:
    inline = {
        "name": "dreamchip",
        "efficiency_from": "h20",
        "peak_tflops": {"bfloat16": 500, "fp8": 1000},
        "hbm_gib": 128,
        "hbm_gb_s": 6000,
        "scale_up_gpus": 16,
        "scale_up_gb_s": 600,
        "scale_out_gb_s": 50,
        "node_gpus": 16,
        "power_w": 1000,
        "usd_per_gpu_hour": 1.0,
    }
    read = load_job(job(cluster=pool(accelerator=inline, count=16)))
    resolved = read.cluster.pools[0].resolved
    assert (resolved.name, resolved.tables, resolved.efficiency_from) == ("dreamchip", None, "h100_sxm")
    assert resolved.generation == "hopper"
    assert resolved.peak_flops == {"bfloat16": 5e14, "fp8": 1e15}
    assert resolved == read.cluster.pools[0].reference
    assert any("dreamchip has no measured tables" in warning for warning in job_warnings(read))
    assert load_job(read.model_dump(mode="json")) == read


def test_price_power_and_network_of_pool_and_cluster_reach_the_resolved_accelerator() -> None:
    cluster = {
        "scale_out_gb_s": 25,
        "pools": [
            {"name": "a", "accelerator": "h200", "count": 8, "usd_per_gpu_hour": 0, "power_w": 800},
            {"name": "b", "accelerator": {"base": "h200", "scale_out_gb_s": 400}, "count": 8},
            {
                "name": "c",
                "accelerator": {"base": "h200", "usd_per_gpu_hour": 9},
                "count": 8,
                "usd_per_gpu_hour": 2,
            },
        ],
    }
    read = load_job(job(cluster=cluster))
    a, b, c = (each.resolved for each in read.cluster.pools)
    assert (a.scale_out_bytes_per_s, a.usd_per_gpu_hour, a.power_w) == (25e9, 0, 800)
    assert b.scale_out_bytes_per_s == 400e9
    assert c.usd_per_gpu_hour == 2
    assert read.cluster.gpus == 24
    assert read.cluster.pools[0].reference == load_accelerator("h200_sxm")
    assert load_job(read.model_dump(mode="json")) == read


# ------------------------------------------------------------------------------------------------------ search


def test_a_space_is_one_that_ships_or_a_file_beside_the_job(tmp_path: Path) -> None:
    for written in ("default", "default.yaml", "search_spaces/default.yaml"):
        assert load_job(job(search={"space": written}), folder=tmp_path).search.space == "default"
    shipped = search_spaces_root()
    at_home = load_job(job(search={"space": f"{shipped.name}/default.yaml"}), folder=shipped.parent)
    assert at_home.search.space == "default"
    (tmp_path / "search_spaces").mkdir()
    own = tmp_path / "search_spaces" / "default.yaml"
    own.write_text("{}")
    read = load_job(job(search={"space": "search_spaces/default.yaml"}), folder=tmp_path).search
    assert read.space == str(own)
    assert read.space_path == own


def test_a_journal_lies_beside_the_job(tmp_path: Path) -> None:
    read = load_job(job(search={"journal": "study.log"}), folder=tmp_path)
    assert read.search.journal == str(tmp_path / "study.log")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("study.log", "{folder}/study.log"),
        ("sqlite:///study.db", "sqlite:///{folder}/study.db"),
        ("sqlite:////{folder}/study.db", "sqlite:///{folder}/study.db"),
        ("sqlite+pysqlite:///study.db", "sqlite+pysqlite:///{folder}/study.db"),
        ("postgresql+psycopg2://me@host:5432/studies", "postgresql+psycopg2://me@host:5432/studies"),
    ],
)
def test_a_storage_is_a_file_beside_the_job_or_a_database(tmp_path: Path, written: str, read: str) -> None:
    storage = written.format(folder=str(tmp_path).lstrip("/"))
    found = load_job(job(search={"storage": storage}), folder=tmp_path).search.storage
    assert found == read.format(folder=tmp_path)
    # A job can be read again as it was written into a result.
    assert load_job(job(search={"storage": found})).search.storage == found


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"storage": "sqlite:///no/such/study.db"}, r"search\.storage: the folder .* does not exist"),
        ({"storage": "sqlite://"}, r"search\.storage: a database in memory is shared with nobody"),
        ({"storage": "postgresql://me:hunter2@host/x"}, r"search\.storage: a password would be written"),
        (
            {"storage": "a.log", "journal": "b.log"},
            r"search\.journal: storage says where .* leave journal out",
        ),
    ],
)
def test_a_storage_that_makes_no_sense_is_bad_input(
    tmp_path: Path, search: dict[str, str], words: str
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load_job(job(search=search), folder=tmp_path)
    assert "hunter2" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------- warnings


def test_what_may_not_be_meant_is_warned_of() -> None:
    cluster = {
        "pools": [
            {"name": "a", "accelerator": "h20", "count": 12},
            {"name": "b", "accelerator": "h100", "count": 6},
            {"name": "c", "accelerator": "gb200", "count": 6},
        ]
    }
    said = job_warnings(load_job(job(cluster=cluster)))
    assert len(said) == 4
    assert said[0].startswith("slo:")
    assert said[1].startswith("cluster.pools[0].accelerator: h20 has no measured tables")
    assert said[2].startswith("cluster.pools[0].count: 12 is not a multiple of the 8 GPUs")
    assert said[3].startswith("cluster.pools[2].count: 6 is not a multiple of the 4 GPUs")


# -------------------------------------------------------------------------------------------------- round trip

_number = st.floats(1, 1e6)
_length = _number | st.fixed_dictionaries({"mean": _number}, optional={"cv": st.floats(0, 3)})
_accelerator = st.sampled_from(accelerator_names()) | st.fixed_dictionaries(
    {"base": st.sampled_from(accelerator_names())},
    optional={
        "hbm_gb_s": _number,
        "hbm_bytes": _number,
        "peak_tflops": st.dictionaries(st.sampled_from(["bfloat16", "fp8"]), _number, min_size=1),
        "scale_up_gpus": st.integers(1, 72),
        "scale_out_gb_s": _number,
    },
)
_pool = st.fixed_dictionaries(
    {"accelerator": _accelerator, "count": st.integers(1, 10_000)},
    optional={"usd_per_gpu_hour": _number, "power_w": _number, "usable_memory_fraction": st.floats(0.1, 1)},
)
_cluster = st.fixed_dictionaries(
    {
        "pools": st.lists(_pool, min_size=1, max_size=3).map(
            lambda pools: [{"name": f"pool{index}", **each} for index, each in enumerate(pools)]
        )
    },
    optional={"scale_out_gb_s": _number},
)
_modes = st.sampled_from(["all", "all_partitions"]) | st.lists(
    st.sampled_from([*(mode.name for mode in named_modes()), "PA DF | PF DA"]), min_size=1, max_size=4
)
_job = st.fixed_dictionaries(
    {
        "model": st.sampled_from(
            ["deepseek-ai/DeepSeek-V3", {"model_type": "llama", "rope": {"theta": 1e6}}]
        ),
        "cluster": _cluster,
        "workload": st.fixed_dictionaries(
            {"input_tokens": _length, "output_tokens": _length},
            optional={
                "prefix_tokens": st.floats(0, 1e5),
                "arrival": st.sampled_from([{"kind": "poisson"}, {"kind": "closed_loop", "concurrency": 8}]),
            },
        ),
    },
    optional={
        "slo": st.fixed_dictionaries({}, optional={"ttft_ms": _number, "percentile": st.floats(50, 99.9)}),
        "search": st.fixed_dictionaries({}, optional={"modes": _modes, "seed": st.integers(0, 9)}),
        "demand": st.none() | st.fixed_dictionaries({"requests_per_s": _number}),
        "quantization": st.fixed_dictionaries({}, optional={"kv_cache": st.sampled_from(["fp8", None])}),
    },
)


@settings(max_examples=100, deadline=None)
@given(_job)
def test_a_dumped_job_loads_as_the_same_job(written: dict[str, Any]) -> None:
    read = load_job(written)
    assert load_job(read.model_dump(mode="json")) == read
    assert load_job(yaml.safe_load(yaml.safe_dump(read.model_dump(mode="json")))) == read
    assert Job.model_validate_json(read.model_dump_json()) == read


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "examples").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_example_is_a_job_that_round_trips(path: Path) -> None:
    read = load_job(path, check_model=True)
    assert load_job(read.model_dump(mode="json"), check_model=True) == read


# ------------------------------------------------------------------------------------------------------- schema


def _properties(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    models = {"Job": schema, **schema["$defs"]}
    return [
        (f"{name}.{key}", field) for name, each in models.items() for key, field in each["properties"].items()
    ]


def test_the_schema_describes_every_field_and_forbids_others() -> None:
    schema = Job.model_json_schema()
    for name, field in _properties(schema):
        assert len(field.get("description", "")) > 8, name
    for name, each in {"Job": schema, **schema["$defs"]}.items():
        assert each["additionalProperties"] is False, name
        assert each["description"], name
    assert schema["required"] == ["model", "cluster", "workload"]
    assert schema["properties"]["framework"]["enum"] == ["trtllm", "sglang", "vllm"]
    assert schema["properties"]["framework"]["default"] == "trtllm"


def test_the_schema_says_the_unit_of_every_field_that_has_one() -> None:
    units = {
        "_ms": "ms",
        "_gb_s": "GB/s",
        "_gib": "GiB",
        "_bytes": "bytes",
        "_bytes_per_s": "bytes/s",
        "_w": "watts",
    }
    checked = 0
    for name, field in _properties(Job.model_json_schema()):
        for ending, unit in units.items():
            if name.endswith(ending):
                assert unit in field["description"], name
                checked += 1
    assert checked >= 12


def test_data_types_and_frameworks_are_those_of_the_rooms_that_use_them() -> None:
    for name in ("GemmDtype", "MoeDtype", "AttentionDtype"):
        assert get_args(getattr(job_module, name)) == get_args(getattr(architecture, name))
    assert get_args(job_module.Framework) == FRAMEWORKS


def test_several_data_types_stand_for_every_combination_of_them() -> None:
    listed = {"gemm": ["fp8_block", "nvfp4"], "moe": ["nvfp4"], "kv_cache": ["bfloat16", "fp8"]}
    read = load_job(job(quantization=listed))
    assert read.quantization.choices == {"gemm": ("fp8_block", "nvfp4"), "kv_cache": ("bfloat16", "fp8")}
    found = [(q.gemm, q.moe, q.attention, q.kv_cache) for q in read.quantization.alternatives()]
    assert found == [
        (gemm, "nvfp4", None, kv) for gemm in ("fp8_block", "nvfp4") for kv in ("bfloat16", "fp8")
    ]
    assert load_job(read.model_dump(mode="json")) == read
    one = load_job(job(quantization={"gemm": "fp8_block"}))
    assert one.quantization.choices == {}
    assert one.quantization.alternatives() == [one.quantization]
