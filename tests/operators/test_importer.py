"""Importing a small wheel made here: selection, merging, cleaning, reproducible bytes, and clear errors."""

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from afd_dse.errors import DatabaseError
from afd_dse.operators import store
from afd_dse.operators.importer import fetch_wheel, import_tables
from afd_dse.operators.table_schema import SCHEMAS

DATA = "aiconfigurator_core/systems/data"
METADATA = "Metadata-Version: 2.4\nName: aiconfigurator-core\nVersion: 9.9.9\n"
CURRENT = {"defaults": {name: {"current": "1.0.0"} for name in ("trtllm", "sglang", "vllm")}}


def gemm(
    rows: list[tuple[str, int, int, int, float]], version: str = "1.0.0", kernel: str = "kernel"
) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["gemm_dtype", "m", "n", "k", "latency"])
    return table.assign(
        framework="vLLM", version=version, device="H100", op_name="gemm", kernel_source=kernel
    )


def parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(table), buffer)
    return buffer.getvalue()


def wheel(folder: Path, tables: dict[str, pd.DataFrame | bytes], metadata: str = METADATA) -> Path:
    path = folder / "aiconfigurator_core-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("aiconfigurator_core-9.9.9.dist-info/METADATA", metadata)
        archive.writestr("aiconfigurator_core/systems/query_versions.yaml", yaml.safe_dump(CURRENT))
        for name, table in tables.items():
            archive.writestr(f"{DATA}/{name}", table if isinstance(table, bytes) else parquet(table))
    return path


def imported(tmp_path: Path, tables: dict[str, pd.DataFrame | bytes]) -> Path:
    import_tables(wheel(tmp_path, tables), tmp_path / "db")
    return tmp_path / "db"


GEMM = "h100_sxm/gemm/vllm/{}/gemm_perf.parquet"


def test_rows_reach_the_store_with_latency_in_milliseconds_and_without_the_source_s_bookkeeping(
    tmp_path: Path,
) -> None:
    root = imported(
        tmp_path, {GEMM.format("1.0.0"): gemm([("fp8", 8, 64, 32, 0.25), ("fp8", 1, 64, 32, 0.125)])}
    )
    table = store.load_table("h100_sxm", "vllm", "gemm", root)
    assert table is not None
    assert list(table.columns) == list(SCHEMAS["gemm"].columns)
    assert table["m"].tolist() == [1, 8]
    assert table["latency_ms"].tolist() == [0.125, 0.25]
    assert table["version"].tolist() == ["1.0.0", "1.0.0"]


def test_the_current_version_wins_then_later_drops_then_earlier_ones(tmp_path: Path) -> None:
    series = [("bfloat16", 64, 1), ("bfloat16", 64, 2), ("bfloat16", 64, 3)]
    versions = {"0.9.0": series, "0.10.0": series, "1.0.0": series[:1], "1.1.0": series[:2]}
    tables = {
        GEMM.format(version): gemm([(dtype, 1, n, k, 1.0) for dtype, n, k in known], version)
        for version, known in versions.items()
    }
    table = store.load_table("h100_sxm", "vllm", "gemm", imported(tmp_path, tables))
    assert table is not None
    assert dict(zip(table["k"], table["version"], strict=True)) == {1: "1.0.0", 2: "1.1.0", 3: "0.10.0"}


def test_a_series_is_never_mixed_from_two_versions(tmp_path: Path) -> None:
    tables = {
        GEMM.format("1.0.0"): gemm([("fp8", 1, 64, 32, 1.0)], "1.0.0", "new kernel"),
        GEMM.format("0.9.0"): gemm(
            [("fp8", 2, 64, 32, 9.0), ("fp8", 2, 128, 32, 9.0)], "0.9.0", "old kernel"
        ),
    }
    table = store.load_table("h100_sxm", "vllm", "gemm", imported(tmp_path, tables))
    assert table is not None
    assert table[["n", "m", "kernel_source"]].to_numpy().tolist() == [
        [64, 1, "new kernel"],
        [128, 2, "old kernel"],
    ]


def test_all_kernels_of_the_winning_version_are_kept(tmp_path: Path) -> None:
    both = pd.concat(
        [gemm([("fp8", 1, 64, 32, 1.0)], kernel="a"), gemm([("fp8", 1, 64, 32, 2.0)], kernel="b")]
    )
    table = store.load_table("h100_sxm", "vllm", "gemm", imported(tmp_path, {GEMM.format("1.0.0"): both}))
    assert table is not None
    assert table["kernel_source"].tolist() == ["a", "b"]


def test_invalid_rows_are_dropped_and_repeated_ones_become_their_median(tmp_path: Path) -> None:
    rows = [("fp8", 1, 64, 32, value) for value in (1.0, 2.0, 50.0)]
    rows += [
        ("fp8", m, 64, 32, value) for m, value in ((2, 0.0), (4, -1.0), (8, float("nan")), (16, float("inf")))
    ]
    path = wheel(tmp_path, {GEMM.format("1.0.0"): gemm(rows)})
    (written,) = import_tables(path, tmp_path / "db").tables
    assert (written.rows_in, written.rows_out, written.invalid_rows, written.repeated_rows) == (7, 1, 4, 2)
    table = store.load_table("h100_sxm", "vllm", "gemm", tmp_path / "db")
    assert table is not None
    assert table["latency_ms"].tolist() == [2.0]


def test_microseconds_of_the_all_to_all_table_become_milliseconds(tmp_path: Path) -> None:
    row = dict.fromkeys(SCHEMAS["moe_a2a"].integers, 8) | dict.fromkeys(SCHEMAS["moe_a2a"].text, "x")
    row |= {"transmit_us": 1500.0, "notify_us": 0.0, "latency": 1500.0}
    root = imported(tmp_path, {"gb200/comm/vllm/1.0.0/moe_a2a_perf.parquet": pd.DataFrame([row])})
    table = store.load_table("gb200", "vllm", "moe_a2a", root)
    assert table is not None
    assert table[["latency_ms", "transmit_us", "notify_us"]].iloc[0].tolist() == [1.5, 1500.0, 0.0]


def test_nccl_stands_under_its_own_name_and_prefers_its_own_source(tmp_path: Path) -> None:
    row = {
        "op_name": "all_gather",
        "nccl_dtype": "half",
        "num_gpus": 2,
        "message_size": 256,
        "kernel_source": "NCCL",
    }
    tables: dict[str, pd.DataFrame | bytes] = {
        "gb200/comm/nccl/2.27/nccl_perf.parquet": pd.DataFrame([row | {"latency": 1.0}]),
        "gb200/comm/trtllm/1.3.0/nccl_perf.parquet": pd.DataFrame([row | {"latency": 9.0}]),
    }
    table = store.load_table("gb200", "nccl", "nccl", imported(tmp_path, tables))
    assert table is not None
    assert table[["latency_ms", "version"]].iloc[0].tolist() == [1.0, "2.27"]


def test_what_is_out_of_scope_stays_out(tmp_path: Path) -> None:
    one = gemm([("fp8", 1, 64, 32, 1.0)])
    tables: dict[str, pd.DataFrame | bytes] = {
        GEMM.format("1.0.0"): one,
        "l4/gemm/vllm/1.0.0/gemm_perf.parquet": one,
        "h100_sxm/gemm/other/1.0.0/gemm_perf.parquet": one,
        "h100_sxm/encoder/vllm/1.0.0/encoder_attention_perf.parquet": one,
    }
    root = imported(tmp_path, tables)
    assert [(t.accelerator, t.framework, t.op, t.rows) for t in store.tables(root)] == [
        ("h100_sxm", "vllm", "gemm", 1)
    ]


def contents(root: Path, pattern: str = "*") -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob(pattern) if path.is_file()
    }


def test_importing_a_wheel_again_gives_the_same_bytes(tmp_path: Path) -> None:
    path = wheel(tmp_path, {GEMM.format("1.0.0"): gemm([("fp8", m, 64, 32, 0.1 * m) for m in (1, 2, 4)])})
    for name in ("first", "second"):
        import_tables(path, tmp_path / name)
    assert len(contents(tmp_path / "first")) == 2
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_the_order_of_the_source_s_rows_does_not_matter(tmp_path: Path) -> None:
    rows = [("fp8", m, n, 32, 0.1 * m * n) for m in (1, 2, 4) for n in (64, 128)]
    for name, part in {"forward": rows, "backward": rows[::-1]}.items():
        (tmp_path / name).mkdir()
        imported(tmp_path / name, {GEMM.format("1.0.0"): gemm(part)})
    assert contents(tmp_path / "forward" / "db", "*.parquet") == contents(
        tmp_path / "backward" / "db", "*.parquet"
    )


def test_provenance_names_package_licence_sources_and_hashes(tmp_path: Path) -> None:
    source = parquet(gemm([("fp8", 1, 64, 32, 1.0)]))
    path = wheel(tmp_path, {GEMM.format("1.0.0"): source})
    import_tables(path, tmp_path / "db")
    told: Any = store.provenance(tmp_path / "db")
    assert told["package"]["name"] == "aiconfigurator-core"
    assert told["package"]["version"] == "9.9.9"
    assert told["package"]["licence"] == "Apache-2.0"
    assert told["package"]["wheel_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert told["sources"] == {GEMM.format("1.0.0"): hashlib.sha256(source).hexdigest()}
    (name, entry), *_ = told["tables"].items()
    assert entry["sha256"] == hashlib.sha256((tmp_path / "db" / name).read_bytes()).hexdigest()
    assert entry["sources"] == [GEMM.format("1.0.0")]


def test_sources_that_add_nothing_are_recorded_with_the_reason(tmp_path: Path) -> None:
    one = gemm([("fp8", 1, 64, 32, 1.0)])
    old = one.drop(columns="n")
    tables = {GEMM.format("1.0.0"): one, GEMM.format("0.9.0"): one, GEMM.format("0.8.0"): old}
    report = import_tables(wheel(tmp_path, tables), tmp_path / "db")
    assert {name.removeprefix(f"{DATA}/"): why for name, why in report.set_aside.items()} == {
        GEMM.format("0.9.0"): "every series is in a better version",
        GEMM.format("0.8.0"): "lacks n",
    }


def test_an_import_replaces_the_tables_of_the_one_before(tmp_path: Path) -> None:
    imported(tmp_path, {GEMM.format("1.0.0"): gemm([("fp8", 1, 64, 32, 1.0)])})
    (tmp_path / "db" / "catalogue").mkdir()
    sglang = GEMM.format("1.0.0").replace("vllm", "sglang")
    imported(tmp_path, {sglang: gemm([("fp8", 1, 64, 32, 1.0)])})
    assert [t.framework for t in store.tables(tmp_path / "db")] == ["sglang"]
    assert sorted(p.name for p in (tmp_path / "db").iterdir()) == ["catalogue", "provenance.yaml", "tables"]


@pytest.mark.parametrize(
    ("tables", "metadata", "message"),
    [
        ({}, METADATA, "holds no usable operator table"),
        ({}, "Name: something-else\nVersion: 1.0\n", "is not a wheel of aiconfigurator-core"),
        ({GEMM.format("1.0.0"): b"no parquet"}, METADATA, "damaged table in the wheel"),
        (
            {GEMM.format("1.0.0"): gemm([("fp8", 1, 1, 1, 1.0)]).drop(columns="latency")},
            METADATA,
            "lacks latency",
        ),
        ({GEMM.format("nightly"): gemm([("fp8", 1, 1, 1, 1.0)])}, METADATA, "is no version"),
    ],
)
def test_a_bad_wheel_is_named_and_leaves_the_store_as_it_was(
    tmp_path: Path, tables: dict[str, pd.DataFrame | bytes], metadata: str, message: str
) -> None:
    root = imported(tmp_path, {GEMM.format("1.0.0"): gemm([("fp8", 1, 64, 32, 1.0)])})
    before = contents(root)
    with pytest.raises(DatabaseError, match=message):
        import_tables(wheel(tmp_path, tables, metadata), root)
    assert contents(root) == before


def test_a_file_that_is_no_wheel_and_one_that_is_absent_are_errors(tmp_path: Path) -> None:
    (tmp_path / "broken.whl").write_bytes(b"not a zip")
    with pytest.raises(DatabaseError, match="not a readable wheel"):
        import_tables(tmp_path / "broken.whl", tmp_path / "db")
    with pytest.raises(DatabaseError, match="no such wheel"):
        import_tables(tmp_path / "absent.whl", tmp_path / "db")


def test_progress_is_told_table_by_table(tmp_path: Path) -> None:
    one = gemm([("fp8", 1, 64, 32, 1.0)])
    tables = {GEMM.format("1.0.0"): one, GEMM.format("1.0.0").replace("vllm", "sglang"): one}
    heard: list[tuple[str, int, int]] = []
    import_tables(wheel(tmp_path, tables), tmp_path / "db", lambda *event: heard.append(event))
    assert heard == [
        ("tables/h100_sxm/sglang/gemm.parquet", 1, 2),
        ("tables/h100_sxm/vllm/gemm.parquet", 2, 2),
    ]


def test_a_failing_download_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DatabaseError, match=r"pip could not download aiconfigurator-core 0\.0\.0"):
        fetch_wheel("0.0.0", tmp_path)
